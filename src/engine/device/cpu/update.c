/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers' steps on vectors. Contraction of a product and a sum into one instruction is off, so that
 * each operation is rounded by itself: device.h promises the same bits on every device.
 */
#pragma GCC optimize("fp-contract=off")
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"
#include "engine/device/rounding.h"

/* Of the rules, AdamW is one more here. */
enum { ADAMW = DEVICE_RULES };

struct factors {
	/* decay: what a weight is multiplied by; weight_decay: what of it is added to its gradient or
	 * direction. */
	float decay, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_correction1,
	    inv_sqrt_correction2, epsilon, ratio, grad_scale;
	bool nesterov;
	struct rounding_key key;
	int64_t first;
	int64_t width, decayed, column; /* of AdamW (device.h) */
};

struct arrays {
	float *master, *m, *v;
	void *param;
	void *grad;
};

VINLINE vf adam_denominator(const struct factors *f, vf v)
{
	return v_sqrt(v) * f->inv_sqrt_correction2 + f->epsilon;
}

/* What AdamW multiplies elements from i on with. */
VINLINE vf decay_at(const struct factors *f, int64_t i)
{
	float lane[VW];

	if (f->width == 0)
		return v_set(f->decay);
	for (int k = 0; k < VW; k++)
		lane[k] = (f->column + i + k) % f->width < f->decayed ? f->decay : 1;
	return load_part(lane, 0, DTYPE_F32, VW);
}

/* What the rule does with one element: its gradient (or, for some, its direction), weight and moments. */
VINLINE void update(const struct factors *f, int rule, vf decay, vf *g, vf *p, vf *m, vf *v)
{
	vf zero = {}, one = v_set(1), c, d = *g * f->grad_scale;

	switch (rule) {
	case ADAMW:
		*m += (d - *m) * f->one_minus_beta1;
		*v = *v * f->beta2 + d * d * f->one_minus_beta2;
		*p = *p * decay - f->step_size * *m / adam_denominator(f, *v);
		break;
	case DEVICE_SGD:
		d = (d + *p * f->weight_decay) * f->ratio;
		*m = *m * f->beta1 + d;
		*p -= (f->nesterov ? d + *m * f->beta1 : *m) * f->step_size;
		break;
	case DEVICE_LION:
		c = *m * f->beta1 + d * f->one_minus_beta1;
		c = v_select(c > zero, one, v_select(c < zero, -one, c));
		*m = *m * f->beta2 + d * f->one_minus_beta2;
		*p = *p * f->decay - c * f->step_size;
		break;
	case DEVICE_LAMB:
		*m += (d - *m) * f->one_minus_beta1;
		*v = *v * f->beta2 + d * d * f->one_minus_beta2;
		*g = *m * f->inv_correction1 / adam_denominator(f, *v) + *p * f->weight_decay;
		break;
	case DEVICE_MEAN:
		d *= f->ratio;
		*m += (d - *m) * f->one_minus_beta1;
		*g = f->nesterov ? d + (*m - d) * f->beta1 : *m;
		break;
	case DEVICE_APPLY:
		*p = *p * f->decay - d * f->ratio;
		break;
	}
}

/* p rounded stochastically to values that bf16 can hold; infinities and NaNs stay as they are. */
VINLINE vf rounded_stochastically(const struct factors *f, vf p, int64_t i)
{
	uint64_t index = (uint64_t)(f->first + i);
	vu low = (vu){} + (uint32_t)index, bits = low + (vu)v_lanes(), u = (vu)p;
	/* A comparison gives -1 where it is true, so that subtracting it adds the carry. */
	vu high = (vu){} + (uint32_t)(index >> 32) - (vu)(bits < low);
	vi special = (vi)(u & 0x7f800000) == 0x7f800000;

	ROUNDING_BITS(bits, high, f->key);
	return v_select(special, p, (vf)((u + bits) & 0xffff0000));
}

/* Whether a rule writes the gradient's place, and not the weights. */
VINLINE bool writes_gradient(int rule)
{
	return rule == DEVICE_LAMB || rule == DEVICE_MEAN;
}

VINLINE void part(const struct factors *f, int rule, const struct arrays *a, enum dtype param_type,
                  enum dtype grad_type, int64_t lo, int64_t hi)
{
	const void *from = a->master ? a->master : a->param;
	enum dtype from_type = a->master ? DTYPE_F32 : DTYPE_BF16;

	for (int64_t i = lo; i < hi; i += VW) {
		int64_t n = hi - i < VW ? hi - i : VW;
		vf p = rule == DEVICE_MEAN ? (vf){} : load_part(from, i, from_type, n);
		vf g = load_part(a->grad, i, grad_type, n);
		vf m = a->m ? load_part(a->m, i, DTYPE_F32, n) : (vf){};
		vf v = a->v ? load_part(a->v, i, DTYPE_F32, n) : (vf){};

		update(f, rule, rule == ADAMW ? decay_at(f, i) : (vf){}, &g, &p, &m, &v);
		if (a->m)
			store_part(a->m, i, DTYPE_F32, m, n);
		if (a->v)
			store_part(a->v, i, DTYPE_F32, v, n);
		if (writes_gradient(rule)) {
			store_part(a->grad, i, grad_type, g, n);
			continue;
		}
		if (!a->master)
			p = rounded_stochastically(f, p, i);
		else
			store_part(a->master, i, DTYPE_F32, p, n);
		if (a->param)
			store_part(a->param, i, param_type, p, n);
	}
}

/* Whether a step with this scale of the gradients is to change nothing. */
static bool skips(float grad_scale)
{
	return isnan(grad_scale);
}

void KERNEL(adamw)(struct device *dev, float *master, void *param, enum dtype param_type, const void *grad,
                   enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
                   const struct device_adamw *h)
{
	double correction1 = 1 - pow(h->beta1, (double)h->step);
	double correction2 = 1 - pow(h->beta2, (double)h->step);
	const struct factors f = {
	    .decay = (float)(1 - h->learning_rate * h->weight_decay),
	    .one_minus_beta1 = (float)(1 - h->beta1),
	    .beta2 = (float)h->beta2,
	    .one_minus_beta2 = (float)(1 - h->beta2),
	    .step_size = (float)(h->learning_rate / correction1),
	    .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)),
	    .epsilon = (float)h->epsilon,
	    .grad_scale = grad_scale ? *grad_scale : 1,
	    .key = rounding_key(h->seed, h->step),
	    .first = h->first,
	    .width = h->width,
	    .decayed = h->decayed,
	    .column = h->column,
	};
	const struct arrays a = {master, m, v, param, (void *)grad};

	if (skips(f.grad_scale))
		return;
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		if (grad_type == DTYPE_F32)
			part(&f, ADAMW, &a, param_type, DTYPE_F32, lo, hi);
		else
			part(&f, ADAMW, &a, param_type, grad_type, lo, hi);
	}
}

void KERNEL(update)(struct device *dev, float *master, void *param, enum dtype param_type, float *grad,
                    float *m, float *v, int64_t n, const float *grad_scale, const struct device_update *h)
{
	double correction1 = 1 - pow(h->beta1, (double)h->step);
	double correction2 = 1 - pow(h->beta2, (double)h->step);
	const struct factors f = {
	    .decay = (float)(1 - h->learning_rate * h->weight_decay),
	    .weight_decay = (float)h->weight_decay,
	    .beta1 = (float)h->beta1,
	    .one_minus_beta1 = (float)(1 - h->beta1),
	    .beta2 = (float)h->beta2,
	    .one_minus_beta2 = (float)(1 - h->beta2),
	    .step_size = (float)h->learning_rate,
	    .inv_correction1 = (float)(1 / correction1),
	    .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)),
	    .epsilon = (float)h->epsilon,
	    .ratio = (float)(h->rule == DEVICE_APPLY ? h->learning_rate * h->ratio : h->ratio),
	    .grad_scale = grad_scale ? *grad_scale : 1,
	    .nesterov = h->nesterov,
	    .key = rounding_key(h->seed, h->step),
	    .first = h->first,
	};
	const struct arrays a = {master, m, v, param, grad};

	if (skips(f.grad_scale))
		return;
#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		switch (h->rule) {
		case DEVICE_SGD:
			part(&f, DEVICE_SGD, &a, param_type, DTYPE_F32, lo, hi);
			break;
		case DEVICE_LION:
			part(&f, DEVICE_LION, &a, param_type, DTYPE_F32, lo, hi);
			break;
		case DEVICE_LAMB:
			part(&f, DEVICE_LAMB, &a, param_type, DTYPE_F32, lo, hi);
			break;
		case DEVICE_MEAN:
			part(&f, DEVICE_MEAN, &a, param_type, DTYPE_F32, lo, hi);
			break;
		case DEVICE_APPLY:
			part(&f, DEVICE_APPLY, &a, param_type, DTYPE_F32, lo, hi);
			break;
		case DEVICE_RULES:
			break;
		}
	}
}

/* ---- Adafactor ---- */

void KERNEL(factor_sums)(struct device *dev, const struct device_factored *f, const float *grad,
                         const float *grad_scale, float *row, float *col)
{
	int64_t first_row = f->first / f->cols, end_row = (f->first + f->n + f->cols - 1) / f->cols;
	float scale = grad_scale ? *grad_scale : 1;

	if (skips(scale))
		return;
		/* Two passes, so that neither sum depends on the number of threads. */
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (f->n > PARALLEL_MIN)
	for (int64_t r = first_row; r < end_row; r++) {
		int64_t lo = r * f->cols < f->first ? f->first : r * f->cols;
		int64_t end = (r + 1) * f->cols, hi = end > f->first + f->n ? f->first + f->n : end;
		vf sum = {};

		for (int64_t i = lo; i < hi; i += VW) {
			vf g = load_part(grad, i - f->first, DTYPE_F32, hi - i < VW ? hi - i : VW) * scale;

			sum += g * g;
		}
		row[r] += v_hsum(sum);
	}
	if (!col)
		return;
#pragma omp parallel num_threads(dev->threads) if (f->n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(f->cols, VW, &lo, &hi);
		for (int64_t r = first_row; r < end_row; r++) {
			int64_t begin = r * f->cols + lo, end = r * f->cols + hi;
			int64_t from = begin < f->first ? f->first : begin;
			int64_t to = end > f->first + f->n ? f->first + f->n : end;

			for (int64_t i = from; i < to; i++) {
				float g = grad[i - f->first] * scale;

				col[i - r * f->cols] += g * g;
			}
		}
	}
}

void KERNEL(factor_direction)(struct device *dev, const struct device_factored *f, float *grad,
                              const float *grad_scale, const float *row, const float *col, float factor,
                              float floor)
{
	float scale = grad_scale ? *grad_scale : 1;

	if (skips(scale))
		return;
#pragma omp parallel num_threads(dev->threads) if (f->n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(f->n, CACHE_LINE, &lo, &hi);
		for (int64_t i = lo; i < hi;) {
			int64_t r = (f->first + i) / f->cols, j = (f->first + i) % f->cols;
			int64_t end = i + f->cols - j < hi ? i + f->cols - j : hi;
			float share = row[r] * factor;

			for (; i < end; i++, j++) {
				float estimate = col ? share * col[j] : share;

				grad[i] = grad[i] * scale / sqrtf(estimate > floor ? estimate : floor);
			}
		}
	}
}
