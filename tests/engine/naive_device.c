/* SPDX-License-Identifier: Apache-2.0 */
/* An implementation of device.h in plain loops, in fp32 only: for tests of the model that are independent of
 * the kernels, and as a reference for the kernels. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/device/device.h"
#include "engine/device/nf4.h"
#include "engine/device/qk_norm.h"
#include "engine/device/rotation.h"
#include "engine/device/rounding.h"
#include "engine/device/sizes.h"
#include "naive_choice.h"

struct device {
	int unused;
};

int device_create(const struct device_options *options, struct device **out, struct error *err)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : error_oom(err);
}

void device_destroy(struct device *dev)
{
	free(dev);
}

int device_alloc(struct device *dev, size_t bytes, void **out, struct error *err)
{
	*out = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!*out)
		return error_oom(err);
	memset(*out, 0, bytes);
	return 0;
}

void device_free(struct device *dev, void *p)
{
	free(p);
}

size_t device_scratch_bytes(const struct device *dev, const struct device_shapes *shapes)
{
	return 0;
}

int device_reserve_scratch(struct device *dev, size_t bytes, struct error *err)
{
	return 0;
}

int device_synchronize(struct device *dev, struct error *err)
{
	return 0;
}

int device_read(struct device *dev, void *host, const void *src, size_t bytes, struct error *err)
{
	memcpy(host, src, bytes);
	return 0;
}

int device_write(struct device *dev, void *dst, const void *host, size_t bytes, struct error *err)
{
	memcpy(dst, host, bytes);
	return 0;
}

void device_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}

/* Of fp32 alone, as everything here. */
void device_add(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		((float *)dst)[i] += ((const float *)src)[i];
}

void device_zero(struct device *dev, void *dst, size_t bytes)
{
	memset(dst, 0, bytes);
}

void device_cast(struct device *dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                 int64_t n)
{
	memmove(dst, src, (size_t)n * 4);
}

void device_sum_squares(struct device *dev, const void *x, enum dtype type, int64_t n, double *sum)
{
	for (int64_t i = 0; i < n; i++)
		*sum += (double)((const float *)x)[i] * ((const float *)x)[i];
}

void device_sum(struct device *dev, const float *x, int64_t n, double *sum)
{
	for (int64_t i = 0; i < n; i++)
		*sum += x[i];
}

const char *device_describe(const struct device *d)
{
	return "plain loops";
}

void device_get_sizing(const struct device *d, struct device_sizing *out, int64_t *memory)
{
	*out = (struct device_sizing){.engine = DEVICE_ENGINE_CPU, .threads = 1};
	*memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

size_t device_logits_bytes(void)
{
	return 1 << 16;
}

bool device_supports_fp8(const struct device *dev)
{
	return true;
}

static void find_largest(float *amax, const float *x, int64_t rows, int64_t cols, int64_t ld)
{
	if (!amax)
		return;
	*amax = 0;
	for (int64_t i = 0; i < rows * cols; i++)
		*amax = fmaxf(*amax, fabsf(x[i / cols * ld + i % cols]));
}

void device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src)
{
	const float *x = src;
	float scale;

	if (q->amax)
		q->scale[1] = *q->amax;
	else
		find_largest(&q->scale[1], x, q->rows, q->cols, q->ld);
	scale = fp8_scale(q->format, q->scale[1]);
	q->scale[0] = 1 / scale;
	for (int64_t i = 0; i < q->rows * q->cols && q->codes; i++)
		q->codes[i] = fp8_from_float(q->format, x[i / q->cols * q->ld + i % q->cols] * scale);
	for (int64_t j = 0; j < q->cols && q->turned; j++)
		for (int64_t i = 0; i < fp8_padded(q->rows); i++)
			q->turned[j * fp8_padded(q->rows) + i] =
			    i < q->rows ? fp8_from_float(q->format, x[i * q->ld + j] * scale) : 0;
}

static void fp8_gemm(const struct device_gemm *g)
{
	const uint8_t *a = g->a, *b = g->b;

	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++) {
			float *c = (float *)g->c + i * g->ldc + j;
			double sum = 0;

			for (int64_t k = 0; k < g->k; k++)
				sum += (double)fp8_to_float(g->fp8_a, a[i * g->lda + k]) *
				       (double)fp8_to_float(g->fp8_b, b[j * g->ldb + k]);
			*c = (float)(g->alpha * *g->scale_a * *g->scale_b * sum) +
			     (g->beta != 0 ? g->beta * *c : 0) + (g->bias ? ((const float *)g->bias)[j] : 0);
		}
}

void device_gemm(struct device *dev, const struct device_gemm *g)
{
	const float *a = g->a, *b = g->b;

	if (g->fp8_a) {
		fp8_gemm(g);
		return;
	}
	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++) {
			float *c = (float *)g->c + i * g->ldc + j;
			double sum = 0;

			for (int64_t k = 0; k < g->k; k++)
				sum += (double)(g->transpose_a ? a[k * g->lda + i] : a[i * g->lda + k]) *
				       (g->transpose_b ? b[j * g->ldb + k] : b[k * g->ldb + j]);
			*c = (float)(g->alpha * sum) + (g->beta != 0 ? g->beta * *c : 0);
			*c += g->bias ? ((const float *)g->bias)[j] : 0;
		}
	for (int64_t i = 0; i < g->m && g->d_bias; i++)
		for (int64_t k = 0; k < g->k; k++)
			g->d_bias[i] += a[k * g->lda + i];
}

void device_bias_forward(struct device *dev, void *x, const void *bias, int64_t rows, int64_t cols,
                         int64_t ld, enum dtype type)
{
	for (int64_t t = 0; t < rows; t++)
		for (int64_t i = 0; i < cols; i++)
			((float *)x)[t * ld + i] += ((const float *)bias)[i];
}

void device_bias_backward(struct device *dev, void *d_bias, enum dtype grad_type, const void *d_y,
                          int64_t rows, int64_t cols, int64_t ld, enum dtype type)
{
	for (int64_t t = 0; t < rows; t++)
		for (int64_t i = 0; i < cols; i++)
			((float *)d_bias)[i] += ((const float *)d_y)[t * ld + i];
}

void device_embedding_forward(struct device *dev, void *out, const int32_t *ids, const void *table,
                              int64_t tokens, int hidden, enum dtype type)
{
	for (int64_t t = 0; t < tokens; t++)
		memcpy((float *)out + t * hidden, (const float *)table + (int64_t)ids[t] * hidden,
		       (size_t)hidden * 4);
}

void device_embedding_backward(struct device *dev, void *d_table, enum dtype grad_type, const void *d_out,
                               const int32_t *ids, const int32_t *host_ids, int64_t tokens, int64_t vocab,
                               int hidden, enum dtype type)
{
	for (int64_t t = 0; t < tokens; t++)
		for (int i = 0; i < hidden; i++)
			((float *)d_table)[(int64_t)ids[t] * hidden + i] +=
			    ((const float *)d_out)[t * hidden + i];
}

void device_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                            const void *x, const void *w)
{
	for (int64_t t = 0; t < n->rows; t++)
		for (int g = 0; g < n->groups; g++) {
			const float *in = (const float *)x + t * n->ld_x + (int64_t)g * n->cols;
			float *out = (float *)y + t * n->ld_y + (int64_t)g * n->cols;
			double sum = 0;
			float r;

			for (int i = 0; i < n->cols; i++)
				sum += (double)in[i] * in[i];
			r = (float)(1 / sqrt(sum / n->cols + n->eps));
			for (int i = 0; i < n->cols; i++)
				out[i] = in[i] * r * (((const float *)w)[i] + n->w_offset);
			if (rstd)
				rstd[t * n->groups + g] = r;
		}
	find_largest(n->amax, y, n->rows, n->cols, n->ld_y);
}

void device_add_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                                void *residual, const void *x, const void *w)
{
	for (int64_t i = 0; i < n->rows * n->cols; i++)
		((float *)residual)[i] += ((const float *)x)[i];
	device_rmsnorm_forward(dev, n, y, rstd, residual, w);
}

void device_rmsnorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                             void *d_w, enum dtype grad_type, const void *d_y, const void *x,
                             const float *rstd, const void *w)
{
	for (int64_t t = 0; t < n->rows; t++)
		for (int g = 0; g < n->groups; g++) {
			const float *in = (const float *)x + t * n->ld_x + (int64_t)g * n->cols;
			const float *dy = (const float *)d_y + t * n->ld_y + (int64_t)g * n->cols;
			float *dx = (float *)d_x + t * n->ld_x + (int64_t)g * n->cols,
			      r = rstd[t * n->groups + g];
			double dot = 0;

			for (int i = 0; i < n->cols; i++) {
				((float *)d_w)[i] += dy[i] * in[i] * r;
				dot += (double)dy[i] * (((const float *)w)[i] + n->w_offset) * in[i] * r;
			}
			for (int i = 0; i < n->cols; i++) {
				float d = (float)((dy[i] * (((const float *)w)[i] + n->w_offset) -
				                   in[i] * r * dot / n->cols) *
				                  r);

				dx[i] = accumulate ? dx[i] + d : d;
			}
		}
	find_largest(n->amax, d_x, n->rows, n->cols, n->ld_x);
}

static void rotate(const struct device_rope *r, float *x, float sign)
{
	int half = r->rotary_dim / 2;

	for (int64_t t = 0; t < r->tokens; t++)
		for (int h = 0; h < r->heads; h++)
			for (int i = 0; i < half; i++) {
				float *head = x + t * r->ld + (int64_t)h * r->head_dim,
				      *pa = head + (r->interleaved ? 2 * i : i),
				      *pb = r->interleaved ? pa + 1 : pa + half, a = *pa, b = *pb;
				float c = r->cos[(int64_t)r->positions[t] * half + i],
				      s = sign * r->sin[(int64_t)r->positions[t] * half + i];

				*pa = a * c - b * s;
				*pb = b * c + a * s;
			}
}

void device_rope(struct device *dev, const struct device_rope *r, void *x)
{
	rotate(r, x, 1);
}

void device_rope_inverse(struct device *dev, const struct device_rope *r, void *x)
{
	rotate(r, x, -1);
}

/* Scores of one query; returns the first key it sees. */
static int64_t scores(const struct device_attention *a, int64_t start, int64_t query, const float *q,
                      const float *k, double *s, double *lse)
{
	int64_t from = a->window && query - a->window + 1 > start ? query - a->window + 1 : start;
	double top = -DBL_MAX, sum = 0;

	for (int64_t j = from; j <= query; j++) {
		s[j] = 0;
		for (int i = 0; i < a->head_dim; i++)
			s[j] += (double)q[i] * k[j * a->ld_k + i];
		s[j] *= a->scale;
		if (a->cap > 0)
			s[j] = a->cap * tanh(s[j] / a->cap);
		top = s[j] > top ? s[j] : top;
	}
	for (int64_t j = from; j <= query; j++)
		sum += exp(s[j] - top);
	*lse = top + log(sum);
	return from;
}

static void attend(const struct device_attention *a, int64_t start, int64_t query, int head, const float *q,
                   const float *k, const float *v, float *o, double *s, double *lse)
{
	int kv = head / (a->heads / a->kv_heads);
	int64_t from = scores(a, start, query, q, k + (int64_t)kv * a->head_dim, s, lse);

	for (int i = 0; i < a->head_dim; i++) {
		double sum = 0;

		for (int64_t j = from; j <= query; j++)
			sum += exp(s[j] - *lse) * v[j * a->ld_v + (int64_t)kv * a->head_dim + i];
		o[i] = (float)sum;
	}
}

void device_qk_norm_rope(struct device *dev, const struct device_qk_norm *n, void *y, float *rstd,
                         const void *x, const void *w_q, const void *w_k)
{
	qk_norm_rope_apart(dev, n, y, rstd, x, w_q, w_k);
}

void device_qk_norm_rope_backward(struct device *dev, const struct device_qk_norm *n, void *d, void *d_w_q,
                                  void *d_w_k, enum dtype grad_type, const void *x, const float *rstd,
                                  const void *w_q, const void *w_k)
{
	qk_norm_rope_backward_apart(dev, n, d, d_w_q, d_w_k, grad_type, x, rstd, w_q, w_k);
}

void device_attention_forward(struct device *dev, const struct device_attention *a, void *o, float *lse,
                              const void *q, const void *k, const void *v)
{
	double *s = malloc((size_t)a->tokens * sizeof(double)), l;

	for (int d = 0; d < a->documents; d++)
		for (int64_t t = a->starts[d]; t < a->starts[d + 1]; t++)
			for (int h = 0; h < a->heads; h++) {
				attend(a, a->starts[d], t, h,
				       (const float *)q + t * a->ld_q + h * a->head_dim, k, v,
				       (float *)o + t * a->ld_o + h * a->head_dim, s, &l);
				lse[h * a->tokens + t] = (float)l;
			}
	free(s);
	find_largest(a->amax, o, a->tokens, (int64_t)a->heads * a->head_dim, a->ld_o);
}

void device_attention_cached(struct device *dev, const struct device_attention *a, int64_t past, void *o,
                             const void *q, const void *k_cache, const void *v_cache)
{
	double *s = malloc((size_t)(past + a->tokens) * sizeof(double)), l;

	for (int64_t t = 0; t < a->tokens; t++)
		for (int h = 0; h < a->heads; h++)
			attend(a, 0, past + t, h, (const float *)q + t * a->ld_q + h * a->head_dim, k_cache,
			       v_cache, (float *)o + t * a->ld_o + h * a->head_dim, s, &l);
	free(s);
}

void device_attention_rows(struct device *dev, const struct device_attention *a, const struct device_cache *c,
                           void *o, const void *q, const void *cache)
{
	struct device_attention one = *a;
	int64_t width = (int64_t)a->kv_heads * a->head_dim;

	one.tokens = 1;
	one.ld_k = one.ld_v = 2 * width;
	for (int64_t r = 0; r < c->rows; r++) {
		const float *k = (const float *)cache + c->sequences[r] * c->tokens * 2 * width;

		device_attention_cached(dev, &one, c->positions[r], (float *)o + r * a->ld_o,
		                        (const float *)q + r * a->ld_q, k, k + width);
	}
}

void device_cache_append(struct device *dev, const struct device_cache *c, void *cache, const void *k,
                         const void *v, int64_t width, int64_t ld, enum dtype type)
{
	for (int64_t r = 0; r < c->rows; r++)
		for (int64_t i = 0; i < width; i++) {
			float *to =
			    (float *)cache + (c->sequences[r] * c->tokens + c->positions[r]) * 2 * width;

			to[i] = ((const float *)k)[r * ld + i];
			to[width + i] = ((const float *)v)[r * ld + i];
		}
}

void device_choose(struct device *dev, const struct device_choice *d, int32_t *id, const float *logits,
                   int64_t rows, const double *uniform)
{
	for (int64_t r = 0; r < rows; r++)
		id[r] = naive_choice(d, logits + r * d->ld, uniform[r], NULL);
}

void device_attention_backward(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                               void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                               const void *k, const void *v)
{
	double *s = malloc((size_t)a->tokens * sizeof(double)), l;
	int dim = a->head_dim, group = a->heads / a->kv_heads;

	for (int64_t t = 0; t < a->tokens; t++) {
		memset((float *)d_q + t * a->ld_q, 0, (size_t)(a->heads * dim) * 4);
		memset((float *)d_k + t * a->ld_k, 0, (size_t)(a->kv_heads * dim) * 4);
		memset((float *)d_v + t * a->ld_v, 0, (size_t)(a->kv_heads * dim) * 4);
	}
	for (int d = 0; d < a->documents; d++)
		for (int64_t t = a->starts[d]; t < a->starts[d + 1]; t++)
			for (int h = 0; h < a->heads; h++) {
				int64_t kv = (int64_t)(h / group) * dim;
				const float *qt = (const float *)q + t * a->ld_q + h * dim,
				            *kh = (const float *)k + kv;
				const float *dot = (const float *)d_o + t * a->ld_o + h * dim;
				const float *ot = (const float *)o + t * a->ld_o + h * dim;
				int64_t from = scores(a, a->starts[d], t, qt, kh, s, &l);
				double delta = 0;

				for (int i = 0; i < dim; i++)
					delta += (double)dot[i] * ot[i];
				for (int64_t j = from; j <= t; j++) {
					double p = exp(s[j] - l), dp = 0, ds;

					for (int i = 0; i < dim; i++)
						dp +=
						    (double)dot[i] * ((const float *)v)[j * a->ld_v + kv + i];
					ds = p * (dp - delta) * a->scale;
					if (a->cap > 0)
						ds *= 1 - s[j] * s[j] / ((double)a->cap * a->cap);
					for (int i = 0; i < dim; i++) {
						((float *)d_v)[j * a->ld_v + kv + i] += (float)(p * dot[i]);
						((float *)d_q)[t * a->ld_q + h * dim + i] +=
						    (float)(ds * kh[j * a->ld_k + i]);
						((float *)d_k)[j * a->ld_k + kv + i] += (float)(ds * qt[i]);
					}
				}
			}
	free(s);
	rotation_undo(dev, a, d_q, d_k);
}

void device_swiglu_forward(struct device *dev, void *y, const void *gate_up, int64_t tokens, int cols,
                           enum dtype type, float *amax)
{
	for (int64_t t = 0; t < tokens; t++)
		for (int i = 0; i < cols; i++) {
			const float *g = (const float *)gate_up + t * 2 * cols + i;

			((float *)y)[t * cols + i] = g[0] / (1 + expf(-g[0])) * g[cols];
		}
	find_largest(amax, y, tokens, cols, cols);
}

void device_swiglu_backward(struct device *dev, void *d_gate_up, void *y, const void *d_y,
                            const void *gate_up, int64_t tokens, int cols, enum dtype type, float *amax)
{
	for (int64_t t = 0; t < tokens; t++)
		for (int i = 0; i < cols; i++) {
			const float *in = (const float *)gate_up + t * 2 * cols + i;
			float *out = (float *)d_gate_up + t * 2 * cols + i,
			      d = ((const float *)d_y)[t * cols + i];
			float gate = in[0], up = in[cols], s = 1 / (1 + expf(-gate));

			if (y)
				((float *)y)[t * cols + i] = gate * s * up;
			out[0] = d * up * s * (1 + gate * (1 - s));
			out[cols] = d * gate * s;
		}
	if (!amax)
		return;
	find_largest(&amax[0], y, y ? tokens : 0, cols, cols);
	find_largest(&amax[1], d_gate_up, tokens, 2 * (int64_t)cols, 2 * (int64_t)cols);
}

/* ---- a mixture of experts ---- */
static void softmax(double *p, const float *x, int n)
{
	double top = x[0], sum = 0;

	for (int e = 0; e < n; e++)
		top = x[e] > top ? x[e] : top;
	for (int e = 0; e < n; e++)
		sum += exp(x[e] - top);
	for (int e = 0; e < n; e++)
		p[e] = exp(x[e] - top) / sum;
}

void device_route(struct device *dev, const struct device_router *r, int32_t *expert, float *weight,
                  const void *logits)
{
	for (int64_t t = 0; t < r->tokens; t++) {
		const float *x = (const float *)logits + t * r->experts;
		double p[DEVICE_EXPERTS_MAX], sum = 0;
		bool taken[DEVICE_EXPERTS_MAX] = {false};

		softmax(p, x, r->experts);
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
			int best = -1;

			for (int e = 0; e < r->experts; e++)
				if (!taken[e] && (best < 0 || x[e] > x[best]))
					best = e;
			taken[best] = true;
			expert[i] = best;
			sum += p[best];
		}
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
			weight[i] = (float)(p[expert[i]] / (r->normalized ? sum : 1));
	}
}

void device_expert_places(struct device *dev, const struct device_router *r, int32_t *starts, int32_t *row,
                          int32_t *place, const int32_t *expert)
{
	int32_t *count = starts + r->experts + 1, places = 0;

	for (int64_t p = 0; p < device_places_most(r); p++)
		row[p] = -1;
	for (int e = 0; e < r->experts; e++) {
		starts[e] = places;
		for (int64_t i = 0; i < r->tokens * r->chosen; i++)
			if (expert[i] == e) {
				place[i] = places;
				row[places++] = (int32_t)(i / r->chosen);
			}
		count[e] = places - starts[e];
		while (places % r->multiple)
			places++;
	}
	starts[r->experts] = places;
}

static void move_columns(const struct device_groups *g, char *parts, char *whole, bool join)
{
	size_t size = dtype_size(g->type);
	int64_t width = g->cols / g->groups;

	for (int64_t row = 0; row < g->rows; row++)
		for (int64_t col = 0; col < g->cols; col++) {
			char *a = parts +
			          (size_t)((col / width * g->rows + row) * g->ld_part + col % width) * size,
			     *b = whole + (size_t)(row * g->ld_whole + col) * size;

			memcpy(join ? b : a, join ? a : b, size);
		}
}

void device_part_columns(struct device *dev, const struct device_groups *g, void *parts, const void *whole)
{
	move_columns(g, parts, (char *)(uintptr_t)whole, false);
}

void device_join_columns(struct device *dev, const struct device_groups *g, void *whole, const void *parts)
{
	move_columns(g, (char *)(uintptr_t)parts, whole, true);
}

void device_expert_rows(struct device *dev, const struct device_router *r, void *y, const void *x,
                        const int32_t *row, int64_t places, int cols)
{
	for (int64_t p = 0; p < places; p++)
		for (int64_t j = 0; j < cols; j++)
			((float *)y)[p * cols + j] =
			    row[p] < 0 ? 0 : ((const float *)x)[(int64_t)row[p] * cols + j];
}

void device_expert_sum(struct device *dev, const struct device_router *r, void *y, const void *x,
                       const int32_t *place, const float *weight, int cols)
{
	for (int64_t t = 0; t < r->tokens; t++)
		for (int64_t j = 0; j < cols; j++) {
			double sum = 0;

			for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
				sum += (weight ? (double)weight[i] : 1) *
				       ((const float *)x)[(int64_t)place[i] * cols + j];
			((float *)y)[t * cols + j] = (float)sum;
		}
}

void device_expert_weigh(struct device *dev, const struct device_router *r, float *d_weight, void *d, void *x,
                         const int32_t *place, const float *weight, int cols)
{
	for (int64_t i = 0; i < r->tokens * r->chosen; i++) {
		float *a = (float *)d + (int64_t)place[i] * cols, *b = (float *)x + (int64_t)place[i] * cols;
		double sum = 0;

		for (int j = 0; j < cols; j++) {
			sum += (double)a[j] * b[j];
			a[j] *= weight[i];
			b[j] *= weight[i];
		}
		d_weight[i] = (float)sum;
	}
}

/* Through the weights, whose sum over the chosen ones is 1 where they are normalized, then the softmax. */
void device_route_backward(struct device *dev, const struct device_router *r, void *d_logits,
                           const void *logits, const int32_t *expert, const float *weight,
                           const float *d_weight, const float *balance, float scale, float *loss)
{
	for (int64_t t = 0; t < r->tokens; t++) {
		double p[DEVICE_EXPERTS_MAX], d[DEVICE_EXPERTS_MAX] = {0}, sum = 0, mean = 0, lost = 0,
		                              dot = 0;

		softmax(p, (const float *)logits + t * r->experts, r->experts);
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
			sum += p[expert[i]];
			mean += (double)d_weight[i] * weight[i];
		}
		for (int64_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
			d[expert[i]] = r->normalized ? (d_weight[i] - mean) / sum : d_weight[i];
		for (int e = 0; e < r->experts; e++) {
			d[e] += balance ? (double)scale * balance[e] : 0;
			lost += balance ? balance[e] * p[e] : 0;
			dot += d[e] * p[e];
		}
		for (int e = 0; e < r->experts; e++)
			((float *)d_logits)[t * r->experts + e] = (float)(p[e] * (d[e] - dot));
		if (balance)
			loss[t] = (float)lost;
	}
}

/* ---- adapters ---- */
void device_dropout(struct device *dev, const struct device_dropout *d, void *y, bool accumulate,
                    const void *x, enum dtype type, int64_t n)
{
	struct rounding_key key = dropout_key(d->seed, d->number);
	uint32_t threshold = dropout_threshold(d->probability);
	const float *in = x;
	float *out = y;

	for (int64_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)i;
		float kept;

		ROUNDING_BITS(bits, (uint32_t)((uint64_t)i >> 32), key);
		kept = bits >= threshold ? in[i] * dropout_factor(threshold) : 0;
		out[i] = accumulate ? out[i] + kept : kept;
	}
}

void device_add_noise(struct device *dev, const struct device_noise *d, void *y, enum dtype type, int64_t n)
{
	struct rounding_key key = noise_key(d->seed, d->number);

	for (int64_t i = 0; i < n; i++) {
		uint64_t index = (uint64_t)(d->first + i);
		uint32_t bits = (uint32_t)index;

		ROUNDING_BITS(bits, (uint32_t)(index >> 32), key);
		((float *)y)[i] += d->magnitude * (float)NOISE_STEPS((int)bits) / 65536;
	}
}

void device_row_norms(struct device *dev, const struct device_row_norms *n, float *norm, const void *w,
                      const void *b, const void *a)
{
	for (int64_t j = 0; j < n->rows; j++) {
		double sum = 0;

		for (int64_t c = 0; c < n->cols; c++) {
			double x = 0;

			for (int64_t k = 0; k < n->rank; k++)
				x += (double)((const float *)b)[j * n->rank + k] *
				     ((const float *)a)[k * n->cols + c];
			x = ((const float *)w)[n->transposed ? c * n->rows + j : j * n->cols + c] +
			    n->scale * x;
			sum += x * x;
		}
		norm[j] = (float)sqrt(sum);
	}
}

void device_scale_columns(struct device *dev, const struct device_columns *c, void *y, const void *x)
{
	for (int64_t t = 0; t < c->rows; t++)
		for (int64_t j = 0; j < c->cols; j++) {
			int64_t at = t * c->ld + j;
			double out = ((const float *)x)[at];

			out *= c->times ? ((const float *)c->times)[at] : 1;
			out *= c->magnitude ? ((const float *)c->magnitude)[j] : 1;
			out = c->norm[j] > 0 ? out / c->norm[j] : 0;
			((float *)y)[at] = (float)(out + (c->bias ? ((const float *)c->bias)[j] : 0));
		}
}

void device_layernorm_forward(struct device *dev, const struct device_norm *n, void *y, float *statistics,
                              const void *x, const void *w, const void *b)
{
	for (int64_t t = 0; t < n->rows; t++) {
		const float *in = (const float *)x + t * n->ld_x;
		double mean = 0, squares = 0, rstd;

		for (int i = 0; i < n->cols; i++)
			mean += in[i] / (double)n->cols;
		for (int i = 0; i < n->cols; i++)
			squares += (in[i] - mean) * (in[i] - mean);
		rstd = 1 / sqrt(squares / n->cols + n->eps);
		for (int i = 0; i < n->cols; i++)
			((float *)y)[t * n->ld_y + i] =
			    (float)((in[i] - mean) * rstd * ((const float *)w)[i] + ((const float *)b)[i]);
		if (statistics) {
			statistics[t] = (float)rstd;
			statistics[n->rows + t] = (float)mean;
		}
	}
}

void device_layernorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                               float *d_w, float *d_b, const void *d_y, const void *x,
                               const float *statistics, const void *w)
{
	for (int64_t t = 0; t < n->rows; t++) {
		const float *in = (const float *)x + t * n->ld_x, *dy = (const float *)d_y + t * n->ld_y;
		float *dx = (float *)d_x + t * n->ld_x, rstd = statistics[t], mean = statistics[n->rows + t];
		double sum = 0, dot = 0;

		for (int i = 0; i < n->cols; i++) {
			double g = (double)dy[i] * ((const float *)w)[i], h = (in[i] - mean) * rstd;

			d_w[i] += (float)(dy[i] * h);
			d_b[i] += dy[i];
			sum += g;
			dot += g * h;
		}
		for (int i = 0; i < n->cols; i++) {
			double g = (double)dy[i] * ((const float *)w)[i], h = (in[i] - mean) * rstd;
			float d = (float)(rstd * (g - sum / n->cols - h * dot / n->cols));

			dx[i] = accumulate ? dx[i] + d : d;
		}
	}
}

static double gelu(double x, double *slope)
{
	double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));

	*slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
	return 0.5 * x * (1 + t);
}

void device_gelu_forward(struct device *dev, void *y, const void *x, int64_t tokens, int cols, bool gated,
                         enum dtype type)
{
	double slope;

	for (int64_t t = 0; t < tokens; t++)
		for (int i = 0; i < cols; i++) {
			const float *in = (const float *)x + t * (gated ? 2 : 1) * cols + i;

			((float *)y)[t * cols + i] = (float)(gelu(in[0], &slope) * (gated ? in[cols] : 1));
		}
}

void device_gelu_backward(struct device *dev, void *d_x, void *y, const void *d_y, const void *x,
                          int64_t tokens, int cols, bool gated, enum dtype type)
{
	for (int64_t t = 0; t < tokens; t++)
		for (int i = 0; i < cols; i++) {
			const float *in = (const float *)x + t * (gated ? 2 : 1) * cols + i;
			float *out = (float *)d_x + t * (gated ? 2 : 1) * cols + i;
			double slope, g = gelu(in[0], &slope), up = gated ? in[cols] : 1;
			float d = ((const float *)d_y)[t * cols + i];

			if (y)
				((float *)y)[t * cols + i] = (float)(g * up);
			out[0] = (float)(d * up * slope);
			if (gated)
				out[cols] = (float)(d * g);
		}
}

void device_variant_cross_entropy(struct device *dev, const struct device_loss *d, void *logits,
                                  enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,
                                  float scale, const float *row_scale, float *loss, bool backward)
{
	for (int64_t t = 0; t < rows; t++) {
		float *x = (float *)logits + t * vocab;
		double sum = 0, weight, even = (double)d->smoothing / (double)vocab, total = 0;

		for (int64_t i = 0; i < vocab && d->cap > 0; i++)
			sum += exp(d->cap * tanh(x[i] / (double)d->cap));
		for (int64_t i = 0; i < vocab && d->cap == 0; i++)
			sum += exp(x[i]);
		weight = targets[t] < 0 ? 0 : d->by_probability ? exp(x[targets[t]]) / sum : 1;
		if (d->by_probability && d->cap > 0 && targets[t] >= 0)
			weight = exp(d->cap * tanh(x[targets[t]] / (double)d->cap)) / sum;
		for (int64_t i = 0; i < vocab; i++) {
			double h = d->cap > 0 ? tanh(x[i] / (double)d->cap) : 0;
			double y = d->cap > 0 ? d->cap * h : x[i];
			double share = even + (i == targets[t] ? 1 - (double)d->smoothing : 0);

			total -= weight * share * (y - log(sum));
			if (backward)
				x[i] = (float)(weight * scale * (row_scale ? row_scale[t] : 1) *
				               (exp(y) / sum - share) * (1 - h * h));
		}
		loss[t] = (float)total;
	}
}

static double soft_cap(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

void device_distillation(struct device *dev, const struct device_distillation *d, void *logits,
                         enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                         float *loss)
{
	int64_t both = vocab < d->teacher_vocab ? vocab : d->teacher_vocab;
	double temperature = d->temperature, weight = d->weight;

	for (int64_t r = 0; r < rows; r++) {
		float *x = (float *)logits + r * vocab;
		const float *t = (const float *)d->teacher + r * d->teacher_vocab;
		double all = 0, student = 0, teacher = 0, divergence = 0;

		for (int64_t i = 0; i < vocab; i++)
			all += exp(soft_cap(x[i], d->cap));
		for (int64_t i = 0; i < both; i++) {
			student += exp(soft_cap(x[i], d->cap) / temperature);
			teacher += exp(soft_cap(t[i], d->teacher_cap) / temperature);
		}
		for (int64_t i = 0; i < both; i++) {
			double q = soft_cap(x[i], d->cap) / temperature - log(student);
			double p = soft_cap(t[i], d->teacher_cap) / temperature - log(teacher);

			divergence += exp(p) * (p - q);
		}
		loss[r] = targets[r] < 0
		              ? 0
		              : (float)((1 - weight) * (log(all) - soft_cap(x[targets[r]], d->cap)) +
		                        weight * temperature * temperature * divergence);
		for (int64_t i = 0; i < vocab; i++) {
			double y = soft_cap(x[i], d->cap), h = d->cap > 0 ? tanh(x[i] / (double)d->cap) : 0;
			double g = (1 - weight) * (exp(y) / all - (i == targets[r]));

			if (i < both)
				g += weight * temperature *
				     (exp(y / temperature) / student -
				      exp(soft_cap(t[i], d->teacher_cap) / temperature) / teacher);
			x[i] = targets[r] < 0 ? 0 : (float)(g * (1 - h * h) * scale);
		}
	}
}

void device_cross_entropy(struct device *dev, void *logits, enum dtype type, const int32_t *targets,
                          int64_t rows, int64_t vocab, float scale, const float *row_scale, float *loss,
                          bool backward)
{
	for (int64_t t = 0; t < rows; t++) {
		float *x = (float *)logits + t * vocab, top = x[0];
		double sum = 0, lse, factor = row_scale ? (double)scale * row_scale[t] : scale;

		for (int64_t i = 0; i < vocab; i++)
			top = x[i] > top ? x[i] : top;
		for (int64_t i = 0; i < vocab; i++)
			sum += exp((double)x[i] - top);
		lse = top + log(sum);
		loss[t] = targets[t] < 0 ? 0 : (float)(lse - x[targets[t]]);
		for (int64_t i = 0; i < vocab && backward; i++)
			x[i] = targets[t] < 0 ? 0 : (float)((exp(x[i] - lse) - (i == targets[t])) * factor);
	}
}

void device_adamw(struct device *dev, float *master, void *param, enum dtype param_type, const void *grad,
                  enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
                  const struct device_adamw *h)
{
	double c1 = 1 - pow(h->beta1, (double)h->step), c2 = 1 - pow(h->beta2, (double)h->step);

	for (int64_t i = 0; i < n; i++) {
		double g = ((const float *)grad)[i] * (grad_scale ? *grad_scale : 1), w = master[i];

		if (h->width == 0 || (h->column + i) % h->width < h->decayed)
			w -= (double)h->learning_rate * h->weight_decay * w;
		m[i] = (float)(h->beta1 * m[i] + (1 - (double)h->beta1) * g);
		v[i] = (float)(h->beta2 * v[i] + (1 - (double)h->beta2) * g * g);
		master[i] = (float)(w - h->learning_rate * (m[i] / c1) / (sqrt(v[i] / c2) + h->epsilon));
	}
}

void device_moment_quantize(struct device *dev, uint8_t *codes, float *scale, int64_t first, const float *src,
                            int64_t n, bool has_sign)
{
	abort();
}

void device_moment_dequantize(struct device *dev, float *dst, const uint8_t *codes, const float *scale,
                              int64_t first, int64_t n, bool has_sign)
{
	abort();
}

bool device_supports(const struct device *dev, enum dtype type)
{
	return type == DTYPE_F32;
}

bool device_runs_behind(const struct device *dev)
{
	return false;
}

/* The steps of optimizers other than AdamW are tried over the CPU's own device. */
void device_scale(struct device *dev, void *x, enum dtype type, float factor, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		((float *)x)[i] *= factor;
}

void device_update(struct device *dev, float *master, void *param, enum dtype param_type, float *grad,
                   float *m, float *v, int64_t n, const float *grad_scale, const struct device_update *h)
{
	abort();
}

void device_factor_sums(struct device *dev, const struct device_factored *f, const float *grad,
                        const float *grad_scale, float *row, float *col)
{
	abort();
}

void device_factor_direction(struct device *dev, const struct device_factored *f, float *grad,
                             const float *grad_scale, const float *row, const float *col, float factor,
                             float floor)
{
	abort();
}

void device_clip_scale(struct device *dev, const double *sum_squares, float max_norm, float loss_scale,
                       float *scale, float *norm)
{
	*norm = (float)sqrt(*sum_squares) / loss_scale;
	*scale =
	    (max_norm > 0 && max_norm / (*norm + 1e-6f) < 1 ? max_norm / (*norm + 1e-6f) : 1) / loss_scale;
}

/* ---- host memory is the device's ---- */
int device_alloc_host(struct device *dev, size_t bytes, void **out, struct error *err)
{
	return device_alloc(dev, bytes, out, err);
}

void device_free_host(struct device *dev, void *p)
{
	free(p);
}

void device_transfer(struct device *dev, enum device_direction direction, void *dst, const void *src,
                     size_t bytes, struct device_event *done)
{
	memcpy(dst, src, bytes);
}

int device_event_create(struct device *dev, struct device_event **out, struct error *err)
{
	*out = NULL;
	return 0;
}

void device_event_destroy(struct device_event *event)
{
}

void device_event_wait(struct device *dev, struct device_event *event)
{
}

void device_aside_begin(struct device *dev)
{
}

void device_aside_end(struct device *dev, struct device_event *done)
{
}

int device_event_finish(struct device *dev, struct device_event *event, struct error *err)
{
	return 0;
}

void device_nf4_quantize(struct device *dev, const struct device_nf4 *q, const void *src, enum dtype type)
{
	int64_t blocks = (q->n + NF4_BLOCK - 1) / NF4_BLOCK;
	float *absmax = calloc((size_t)blocks, sizeof(*absmax));
	const float *x = src;
	struct nf4_tables t;
	double sum = 0;

	nf4_tables_fill(&t);
	memset(q->codes, 0, (size_t)(q->n + 1) / 2);
	for (int64_t i = 0; i < q->n; i++)
		absmax[i / NF4_BLOCK] = fmaxf(absmax[i / NF4_BLOCK], fabsf(x[i]));
	for (int64_t i = 0; i < q->n; i++)
		q->codes[i / 2] |=
		    (uint8_t)(nf4_code(&t, x[i] * (1.0f / absmax[i / NF4_BLOCK])) << (i % 2 ? 0 : 4));
	for (int64_t b = 0; b < blocks; b++)
		sum += (double)absmax[b];
	if (q->absmax)
		memcpy(q->absmax, absmax, (size_t)blocks * sizeof(*absmax));
	else
		*q->offset = (float)(sum / (double)blocks);
	for (int64_t b = 0; b < blocks && !q->absmax; b += NF4_SCALES) {
		int64_t end = b + NF4_SCALES < blocks ? b + NF4_SCALES : blocks;
		float max = 0;

		for (int64_t i = b; i < end; i++)
			max = fmaxf(max, fabsf(absmax[i] - *q->offset));
		for (int64_t i = b; i < end; i++)
			q->absmax8[i] = nf4_scale_code(t.map, (absmax[i] - *q->offset) * (1.0f / max));
		q->absmax2[b / NF4_SCALES] = max;
	}
	free(absmax);
}

void device_nf4_dequantize(struct device *dev, void *dst, enum dtype type, const struct device_nf4 *q)
{
	struct nf4_tables t;

	nf4_tables_fill(&t);
	for (int64_t i = 0; i < q->n; i++) {
		int64_t b = i / NF4_BLOCK;
		float scale =
		    q->absmax ? q->absmax[b] : t.map[q->absmax8[b]] * q->absmax2[b / NF4_SCALES] + *q->offset;

		((float *)dst)[i] = t.code[q->codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale;
	}
}
