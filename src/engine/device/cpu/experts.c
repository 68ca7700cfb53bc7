/* SPDX-License-Identifier: Apache-2.0 */
/* The router of a mixture of experts, and what is done with the rows that its experts compute. */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* ---- the router ---- */
/* The softmax of a row, in fp32. What lies behind it in p, up to a whole vector, is 0. */
VINLINE void probabilities(float *p, const void *logits, int64_t n, enum dtype type)
{
	vf most = v_set(-INFINITY), sum = {};
	float max, factor;

	for (int64_t i = 0; i < n; i += VW) {
		int64_t part = n - i < VW ? n - i : VW;
		vf x = load_part(logits, i, type, part);

		x = part < VW ? v_select(v_lanes() < (int32_t)part, x, v_set(-INFINITY)) : x;
		most = v_max(most, x);
		*(vf_u *)(p + i) = x;
	}
	max = v_hmax(most);
	for (int64_t i = 0; i < n; i += VW) {
		vf e = v_exp2((*(vf_u *)(p + i) - max) * LOG2_E, false);

		*(vf_u *)(p + i) = e;
		sum += e;
	}
	factor = 1 / v_hsum(sum);
	for (int64_t i = 0; i < n; i += VW)
		*(vf_u *)(p + i) = *(vf_u *)(p + i) * factor;
}

/* The first of the largest that are left; whatever the numbers are, one of those. */
VINLINE int32_t take_largest(const void *logits, int64_t n, bool taken[DEVICE_EXPERTS_MAX], enum dtype type)
{
	int64_t best = -1;

	for (int64_t e = 0; e < n; e++)
		if (!taken[e] && (best < 0 || s_load(logits, e, type) > s_load(logits, best, type)))
			best = e;
	taken[best] = true;
	return (int32_t)best;
}

VINLINE void route_rows(const struct device_router *r, int32_t *expert, float *weight, const void *logits,
                        enum dtype type, int64_t lo, int64_t hi)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *row = at_const(logits, t * r->experts, type);
		bool taken[DEVICE_EXPERTS_MAX] = {false};
		float p[DEVICE_EXPERTS_MAX], sum = 0;

		probabilities(p, row, r->experts, type);
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
			expert[i] = take_largest(row, r->experts, taken, type);
			weight[i] = p[expert[i]];
			sum += weight[i];
		}
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen && r->normalized; i++)
			weight[i] /= sum;
	}
}

void KERNEL(route)(struct device *dev, const struct device_router *r, int32_t *expert, float *weight,
                   const void *logits)
{
#pragma omp parallel num_threads(dev->threads) if (r->tokens * r->experts > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(r->tokens, 1, &lo, &hi);
		WITH_TYPE(r->type, route_rows(r, expert, weight, logits, TYPE, lo, hi));
	}
}

/* d_p of the experts that a token has chosen, into d, which is 0 elsewhere. */
static void chosen_gradient(const struct device_router *r, float *d, const float *p, const int32_t *expert,
                            const float *weight, const float *d_weight)
{
	float sum = 0, mean = 0;

	for (int k = 0; k < r->chosen; k++) {
		sum += p[expert[k]];
		mean += d_weight[k] * weight[k];
	}
	for (int k = 0; k < r->chosen; k++)
		d[expert[k]] += r->normalized ? (d_weight[k] - mean) / sum : d_weight[k];
}

/* The arrays of a row end with a whole vector of zeros. */
VINLINE void route_backward_rows(const struct device_router *r, void *d_logits, const void *logits,
                                 const int32_t *expert, const float *weight, const float *d_weight,
                                 const float *balance, float scale, float *loss, enum dtype type, int64_t lo,
                                 int64_t hi)
{
	int64_t n = r->experts;

	for (int64_t t = lo; t < hi; t++) {
		float p[DEVICE_EXPERTS_MAX], d[DEVICE_EXPERTS_MAX];
		vf dot = {}, lost = {};
		float mean;

		probabilities(p, at_const(logits, t * n, type), n, type);
		for (int64_t e = 0; e < n; e += VW) {
			vf b = balance ? load_part(balance, e, DTYPE_F32, n - e < VW ? n - e : VW) : (vf){};

			*(vf_u *)(d + e) = b * scale;
			lost += b * *(vf_u *)(p + e);
		}
		chosen_gradient(r, d, p, expert + t * r->chosen, weight + t * r->chosen,
		                d_weight + t * r->chosen);
		for (int64_t e = 0; e < n; e += VW)
			dot += *(vf_u *)(p + e) * *(vf_u *)(d + e);
		mean = v_hsum(dot);
		for (int64_t e = 0; e < n; e += VW)
			store_part(d_logits, t * n + e, type, *(vf_u *)(p + e) * (*(vf_u *)(d + e) - mean),
			           n - e < VW ? n - e : VW);
		if (balance)
			loss[t] = v_hsum(lost);
	}
}

void KERNEL(route_backward)(struct device *dev, const struct device_router *r, void *d_logits,
                            const void *logits, const int32_t *expert, const float *weight,
                            const float *d_weight, const float *balance, float scale, float *loss)
{
#pragma omp parallel num_threads(dev->threads) if (r->tokens * r->experts > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(r->tokens, 1, &lo, &hi);
		WITH_TYPE(r->type, route_backward_rows(r, d_logits, logits, expert, weight, d_weight, balance,
		                                       scale, loss, TYPE, lo, hi));
	}
}

/* ---- the rows ---- */
void KERNEL(expert_rows)(struct device *dev, const struct device_router *r, void *y, const void *x,
                         const int32_t *row, int64_t places, int cols)
{
	size_t bytes = (size_t)cols * dtype_size(r->type);

#pragma omp parallel for schedule(static) num_threads(dev->threads) if (places * cols > PARALLEL_MIN)
	for (int64_t p = 0; p < places; p++) {
		char *to = (char *)y + (size_t)p * bytes;

		if (row[p] < 0)
			memset(to, 0, bytes);
		else
			memcpy(to, (const char *)x + (size_t)row[p] * bytes, bytes);
	}
}

VINLINE void sum_rows(const struct device_router *r, void *y, const void *x, const int32_t *place,
                      const float *weight, int64_t cols, enum dtype type, int64_t lo, int64_t hi)
{
	for (int64_t t = lo; t < hi; t++)
		for (int64_t j = 0; j < cols; j += VW) {
			int64_t n = cols - j < VW ? cols - j : VW;
			vf sum = {};

			for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
				vf part = load_part(x, place[i] * cols + j, type, n);

				sum += weight ? part * weight[i] : part;
			}
			store_part(y, t * cols + j, type, sum, n);
		}
}

void KERNEL(expert_sum)(struct device *dev, const struct device_router *r, void *y, const void *x,
                        const int32_t *place, const float *weight, int cols)
{
#pragma omp parallel num_threads(dev->threads) if (r->tokens * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(r->tokens, 1, &lo, &hi);
		WITH_TYPE(r->type, sum_rows(r, y, x, place, weight, cols, TYPE, lo, hi));
	}
}

VINLINE void weigh_rows(float *d_weight, void *d, void *x, const int32_t *place, const float *weight,
                        int64_t cols, enum dtype type, int64_t lo, int64_t hi)
{
	for (int64_t i = lo; i < hi; i++) {
		int64_t row = place[i] * cols;
		vf sum = {};

		for (int64_t j = 0; j < cols; j += VW) {
			int64_t n = cols - j < VW ? cols - j : VW;
			vf a = load_part(d, row + j, type, n), b = load_part(x, row + j, type, n);

			sum += a * b;
			store_part(d, row + j, type, a * weight[i], n);
			store_part(x, row + j, type, b * weight[i], n);
		}
		d_weight[i] = v_hsum(sum);
	}
}

void KERNEL(expert_weigh)(struct device *dev, const struct device_router *r, float *d_weight, void *d,
                          void *x, const int32_t *place, const float *weight, int cols)
{
#pragma omp parallel num_threads(dev->threads) if (r->tokens * r->chosen * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(r->tokens * r->chosen, 1, &lo, &hi);
		WITH_TYPE(r->type, weigh_rows(d_weight, d, x, place, weight, cols, TYPE, lo, hi));
	}
}
