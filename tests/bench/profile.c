/* SPDX-License-Identifier: Apache-2.0 */
/* The linker's --wrap leads each call of device_X to __wrap_device_X here; __real_device_X is the device's
 * own. */
#include "profile.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

enum { MARKS = 1 << 15 };

/* A point in time of the device. On the CPU and the emulated GPU each operation is done when it returns. */
#ifdef PROFILE_CUDA
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "engine/device/cuda/cuda.h"

typedef cudaEvent_t point;

static void point_set(struct device *dev, point *p)
{
	if (!*p)
		(void)cudaEventCreate(p);
	(void)cudaEventRecord(*p, dev->stream);
}

static double point_seconds(const point *from, const point *to)
{
	float ms = 0;

	(void)cudaEventElapsedTime(&ms, *from, *to);
	return ms * 1e-3;
}

static void point_clear(point *p)
{
	if (*p)
		(void)cudaEventDestroy(*p);
}

int64_t profile_memory(void)
{
	size_t available, total;

	return cudaMemGetInfo(&available, &total) ? -1 : (int64_t)(total - available);
}

void profile_capture(bool on)
{
	(void)(on ? cudaProfilerStart() : cudaProfilerStop());
}
#else
typedef double point;

static void point_set(struct device *dev, point *p)
{
	*p = clock_monotonic();
}

static double point_seconds(const point *from, const point *to)
{
	return *to - *from;
}

static void point_clear(point *p)
{
}

int64_t profile_memory(void)
{
	return -1;
}

void profile_capture(bool on)
{
}
#endif

struct mark {
	char name[64];
	double operations, bytes;
	point begin, end;
};

/* The wrapped calls have no context parameter: therefore a program has one profile. */
static struct profile {
	struct device *dev; /* NULL: not now */
	bool within;        /* an operation, whose own calls of others count as its */
	int n;
	struct mark mark[MARKS];
	point begin, end;
} * profile;

static struct mark *begin(struct device *dev, double operations, double bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static struct mark *begin(struct device *dev, double operations, double bytes, const char *fmt, ...)
{
	struct mark *m;
	va_list ap;

	if (!profile || profile->dev != dev || profile->within || profile->n == MARKS)
		return NULL;
	profile->within = true;
	m = &profile->mark[profile->n++];
	va_start(ap, fmt);
	vsnprintf(m->name, sizeof(m->name), fmt, ap);
	va_end(ap);
	m->operations = operations;
	m->bytes = bytes;
	point_set(dev, &m->begin);
	return m;
}

static void end(struct device *dev, struct mark *m)
{
	if (!m)
		return;
	point_set(dev, &m->end);
	profile->within = false;
}

int profile_start(struct device *dev, struct error *err)
{
	int r = device_synchronize(dev, err);

	if (r < 0)
		return r;
	profile = calloc(1, sizeof(*profile));
	if (!profile)
		return error_oom(err);
	profile->dev = dev;
	point_set(dev, &profile->begin);
	return 0;
}

struct sum {
	const char *name;
	int calls;
	double seconds, operations, bytes;
};

static int costliest(const void *a, const void *b)
{
	double x = ((const struct sum *)a)->seconds, y = ((const struct sum *)b)->seconds;

	return (x < y) - (x > y);
}

static int summarise(struct sum *sums)
{
	int n = 0;

	for (int i = 0; i < profile->n; i++) {
		const struct mark *m = &profile->mark[i];
		int at = 0;

		while (at < n && strcmp(sums[at].name, m->name))
			at++;
		if (at == n)
			sums[n++].name = m->name;
		sums[at].calls++;
		sums[at].seconds += point_seconds(&m->begin, &m->end);
		sums[at].operations += m->operations;
		sums[at].bytes += m->bytes;
	}
	qsort(sums, (size_t)n, sizeof(*sums), costliest);
	return n;
}

int profile_stop(struct device *dev, FILE *out, struct error *err)
{
	_cleanup_free_ struct sum *sums = calloc(MARKS, sizeof(*sums));
	double all = 0;
	int n, r;

	if (!sums)
		return error_oom(err);
	point_set(dev, &profile->end);
	profile->dev = NULL;
	r = device_synchronize(dev, err);
	if (r < 0)
		return r;
	n = summarise(sums);
	for (int i = 0; i < n; i++) {
		fprintf(out, "profile\t%s\t%d\t%.4f\t%.6g\t%.6g\n", sums[i].name, sums[i].calls,
		        sums[i].seconds * 1e3, sums[i].operations, sums[i].bytes);
		all += sums[i].seconds;
	}
	fprintf(out, "profile total\tall operations\t%.4f\t%.4f\t0\t0\n",
	        point_seconds(&profile->begin, &profile->end) * 1e3, all * 1e3);
	for (int i = 0; i < profile->n; i++) {
		point_clear(&profile->mark[i].begin);
		point_clear(&profile->mark[i].end);
	}
	point_clear(&profile->begin);
	point_clear(&profile->end);
	free(profile);
	profile = NULL;
	return 0;
}

/* ---- the operations: the fewest computations and bytes that each needs ---- */
/* A function of device.h and its wrapped twin; `work` names the operation and counts. */
#define OPERATION(name, parameters, arguments, ...)                                                          \
	void __real_device_##name parameters;                                                                \
	void __wrap_device_##name parameters;                                                                \
	void __wrap_device_##name parameters                                                                 \
	{                                                                                                    \
		struct mark *mark = begin(dev, __VA_ARGS__);                                                 \
                                                                                                             \
		__real_device_##name arguments;                                                              \
		end(dev, mark);                                                                              \
	}

static double size_of(enum dtype type)
{
	return (double)dtype_size(type);
}

/* The number of pairs of query and key of one head. */
static double attention_pairs(const struct device_attention *a)
{
	double pairs = 0;

	for (int d = 0; d < a->documents; d++) {
		double n = a->host_starts[d + 1] - a->host_starts[d];
		double w = a->window > 0 && a->window < n ? a->window : n;

		pairs += w * (w + 1) / 2 + (n - w) * w;
	}
	return pairs;
}

static double attention_bytes(const struct device_attention *a, double of_queries, double of_keys)
{
	return (double)a->tokens * a->head_dim * size_of(a->type) *
	       (of_queries * a->heads + of_keys * a->kv_heads);
}

OPERATION(copy, (struct device * dev, void *dst, const void *src, size_t bytes), (dev, dst, src, bytes), 0,
          2.0 * (double)bytes, "copy")
OPERATION(zero, (struct device * dev, void *dst, size_t bytes), (dev, dst, bytes), 0, (double)bytes, "zero")
OPERATION(cast,
          (struct device * dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
           int64_t n),
          (dev, dst, dst_type, src, src_type, n), 0, (double)n *(size_of(dst_type) + size_of(src_type)),
          "cast")
OPERATION(scale, (struct device * dev, void *x, enum dtype type, float factor, int64_t n),
          (dev, x, type, factor, n), 0, 2.0 * (double)n * size_of(type), "scale")
OPERATION(add, (struct device * dev, void *dst, const void *src, enum dtype type, int64_t n),
          (dev, dst, src, type, n), 0, 3.0 * (double)n * size_of(type), "add")
OPERATION(sum_squares, (struct device * dev, const void *x, enum dtype type, int64_t n, double *sum),
          (dev, x, type, n, sum), 0, (double)n *size_of(type), "global norm")
OPERATION(sum, (struct device * dev, const float *x, int64_t n, double *sum), (dev, x, n, sum), 0,
          4.0 * (double)n, "sum")
OPERATION(gemm, (struct device * dev, const struct device_gemm *g), (dev, g),
          2.0 * (double)g->m * (double)g->n * (double)g->k,
          ((double)g->m + (double)g->n) * (double)g->k * (g->fp8_a ? 1 : size_of(g->ab_type)) +
              (double)g->m * (double)g->n * size_of(g->c_type) * (g->beta != 0 ? 2 : 1),
          "gemm %" PRId64 "x%" PRId64 "x%" PRId64 " %c%c %s to %s", g->m, g->n, g->k,
          g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->fp8_a ? "fp8" : dtype_name(g->ab_type),
          dtype_name(g->c_type))
OPERATION(fp8_quantize, (struct device * dev, const struct device_fp8 *q, const void *src), (dev, q, src), 0,
          (2.0 * size_of(q->type) + (q->codes ? 1 : 0) + (q->turned ? 1 : 0)) * (double)q->rows *
              (double)q->cols,
          "fp8 of %" PRId64 "x%" PRId64, q->rows, q->cols)
OPERATION(bias_forward,
          (struct device * dev, void *x, const void *bias, int64_t rows, int64_t cols, int64_t ld,
           enum dtype type),
          (dev, x, bias, rows, cols, ld, type), 0, 2.0 * (double)rows * (double)cols * size_of(type), "bias")
OPERATION(bias_backward,
          (struct device * dev, void *d_bias, enum dtype grad_type, const void *d_y, int64_t rows,
           int64_t cols, int64_t ld, enum dtype type),
          (dev, d_bias, grad_type, d_y, rows, cols, ld, type), 0, (double)rows *(double)cols *size_of(type),
          "bias backward")
OPERATION(embedding_forward,
          (struct device * dev, void *out, const int32_t *ids, const void *table, int64_t tokens, int hidden,
           enum dtype type),
          (dev, out, ids, table, tokens, hidden, type), 0, 2.0 * (double)tokens * hidden * size_of(type),
          "embedding")
OPERATION(embedding_backward,
          (struct device * dev, void *d_table, enum dtype grad_type, const void *d_out, const int32_t *ids,
           const int32_t *host_ids, int64_t tokens, int64_t vocab, int hidden, enum dtype type),
          (dev, d_table, grad_type, d_out, ids, host_ids, tokens, vocab, hidden, type), 0,
          (double)tokens *hidden *(size_of(type) + 2 * size_of(grad_type)), "embedding backward")
OPERATION(rmsnorm_forward,
          (struct device * dev, const struct device_norm *n, void *y, float *rstd, const void *x,
           const void *w),
          (dev, n, y, rstd, x, w), 0, 2.0 * (double)n->rows * n->groups * n->cols * size_of(n->type),
          "rmsnorm %dx%d", n->groups, n->cols)
OPERATION(add_rmsnorm_forward,
          (struct device * dev, const struct device_norm *n, void *y, float *rstd, void *residual,
           const void *x, const void *w),
          (dev, n, y, rstd, residual, x, w), 0, 4.0 * (double)n->rows * n->cols * size_of(n->type),
          "add + rmsnorm %d", n->cols)
OPERATION(rmsnorm_backward,
          (struct device * dev, const struct device_norm *n, void *d_x, bool accumulate, void *d_w,
           enum dtype grad_type, const void *d_y, const void *x, const float *rstd, const void *w),
          (dev, n, d_x, accumulate, d_w, grad_type, d_y, x, rstd, w), 0,
          (accumulate ? 4.0 : 3.0) * (double)n->rows * n->groups * n->cols * size_of(n->type),
          "rmsnorm backward %dx%d", n->groups, n->cols)
OPERATION(rope,
          (struct device * dev, void *x, int64_t ld, int heads, int head_dim, int rotary_dim,
           const int32_t *positions, const float *cos, const float *sin, int64_t tokens, bool inverse,
           enum dtype type),
          (dev, x, ld, heads, head_dim, rotary_dim, positions, cos, sin, tokens, inverse, type), 0,
          2.0 * (double)tokens * heads * rotary_dim * size_of(type), "rope")
OPERATION(qk_norm_rope,
          (struct device * dev, const struct device_qk_norm *n, void *y, float *rstd, const void *x,
           const void *w_q, const void *w_k),
          (dev, n, y, rstd, x, w_q, w_k), 0,
          2.0 * (double)n->tokens * (n->heads + n->kv_heads) * n->head_dim * size_of(n->type),
          "q/k norm + rope")
OPERATION(qk_norm_rope_backward,
          (struct device * dev, const struct device_qk_norm *n, void *d, void *d_w_q, void *d_w_k,
           enum dtype grad_type, const void *x, const float *rstd, const void *w_q, const void *w_k),
          (dev, n, d, d_w_q, d_w_k, grad_type, x, rstd, w_q, w_k), 0,
          3.0 * (double)n->tokens * (n->heads + n->kv_heads) * n->head_dim * size_of(n->type),
          "q/k norm + rope backward")
OPERATION(attention_forward,
          (struct device * dev, const struct device_attention *a, void *o, float *lse, const void *q,
           const void *k, const void *v),
          (dev, a, o, lse, q, k, v), 4.0 * attention_pairs(a) * a->heads * a->head_dim,
          attention_bytes(a, 2, 2), "attention head %d", a->head_dim)
OPERATION(attention_backward,
          (struct device * dev, const struct device_attention *a, void *d_q, void *d_k, void *d_v,
           const void *d_o, const void *o, const float *lse, const void *q, const void *k, const void *v),
          (dev, a, d_q, d_k, d_v, d_o, o, lse, q, k, v), 10.0 * attention_pairs(a) * a->heads * a->head_dim,
          attention_bytes(a, 4, 4), "attention backward head %d", a->head_dim)
OPERATION(swiglu_forward,
          (struct device * dev, void *y, const void *gate_up, int64_t tokens, int cols, enum dtype type,
           float *amax),
          (dev, y, gate_up, tokens, cols, type, amax), 0, 3.0 * (double)tokens * cols * size_of(type),
          "swiglu")
OPERATION(swiglu_backward,
          (struct device * dev, void *d_gate_up, void *y, const void *d_y, const void *gate_up,
           int64_t tokens, int cols, enum dtype type, float *amax),
          (dev, d_gate_up, y, d_y, gate_up, tokens, cols, type, amax), 0,
          (y ? 6.0 : 5.0) * (double)tokens * cols * size_of(type), "swiglu backward")
OPERATION(route,
          (struct device * dev, const struct device_router *r, int32_t *expert, float *weight,
           const void *logits),
          (dev, r, expert, weight, logits), 0,
          (double)r->tokens *(r->experts *size_of(r->type) + 8.0 * r->chosen), "route")
OPERATION(route_backward,
          (struct device * dev, const struct device_router *r, void *d_logits, const void *logits,
           const int32_t *expert, const float *weight, const float *d_weight, const float *balance,
           float scale, float *loss),
          (dev, r, d_logits, logits, expert, weight, d_weight, balance, scale, loss), 0,
          (double)r->tokens *(2 * r->experts * size_of(r->type) + 12.0 * r->chosen), "route backward")
OPERATION(expert_places,
          (struct device * dev, const struct device_router *r, int32_t *starts, int32_t *row, int32_t *place,
           const int32_t *expert),
          (dev, r, starts, row, place, expert), 0,
          12.0 * (double)r->tokens * r->chosen + 4.0 * (double)device_places_most(r), "expert places")
OPERATION(expert_rows,
          (struct device * dev, const struct device_router *r, void *y, const void *x, const int32_t *row,
           int64_t places, int cols),
          (dev, r, y, x, row, places, cols), 0, 2.0 * (double)places * cols * size_of(r->type), "expert rows")
OPERATION(expert_sum,
          (struct device * dev, const struct device_router *r, void *y, const void *x, const int32_t *place,
           const float *weight, int cols),
          (dev, r, y, x, place, weight, cols), 0,
          (r->chosen + 1.0) * (double)r->tokens * cols * size_of(r->type), "expert sum")
OPERATION(expert_weigh,
          (struct device * dev, const struct device_router *r, float *d_weight, void *d, void *x,
           const int32_t *place, const float *weight, int cols),
          (dev, r, d_weight, d, x, place, weight, cols), 0,
          4.0 * (double)r->tokens * r->chosen * cols * size_of(r->type), "expert weigh")
OPERATION(dropout,
          (struct device * dev, const struct device_dropout *d, void *y, bool accumulate, const void *x,
           enum dtype type, int64_t n),
          (dev, d, y, accumulate, x, type, n), 0, (accumulate ? 3.0 : 2.0) * (double)n * size_of(type),
          "dropout")
OPERATION(add_noise, (struct device * dev, const struct device_noise *d, void *y, enum dtype type, int64_t n),
          (dev, d, y, type, n), 0, 2.0 * (double)n * size_of(type), "noise")
OPERATION(row_norms,
          (struct device * dev, const struct device_row_norms *n, float *norm, const void *w, const void *b,
           const void *a),
          (dev, n, norm, w, b, a), 2.0 * (double)n->rows * (double)n->cols * (double)(n->rank + 1),
          (double)n->rows *(double)n->cols *size_of(n->type), "row norms")
OPERATION(scale_columns, (struct device * dev, const struct device_columns *c, void *y, const void *x),
          (dev, c, y, x), 0, (c->times ? 3.0 : 2.0) * (double)c->rows * (double)c->cols * size_of(c->type),
          "scaled columns")
OPERATION(layernorm_forward,
          (struct device * dev, const struct device_norm *n, void *y, float *statistics, const void *x,
           const void *w, const void *b),
          (dev, n, y, statistics, x, w, b), 0, 2.0 * (double)n->rows * n->cols * size_of(n->type),
          "layernorm %d", n->cols)
OPERATION(layernorm_backward,
          (struct device * dev, const struct device_norm *n, void *d_x, bool accumulate, float *d_w,
           float *d_b, const void *d_y, const void *x, const float *statistics, const void *w),
          (dev, n, d_x, accumulate, d_w, d_b, d_y, x, statistics, w), 0,
          (accumulate ? 4.0 : 3.0) * (double)n->rows * n->cols * size_of(n->type), "layernorm backward %d",
          n->cols)
OPERATION(gelu_forward,
          (struct device * dev, void *y, const void *x, int64_t tokens, int cols, bool gated,
           enum dtype type),
          (dev, y, x, tokens, cols, gated, type), 0,
          (gated ? 3.0 : 2.0) * (double)tokens * cols * size_of(type), "gelu")
OPERATION(gelu_backward,
          (struct device * dev, void *d_x, void *y, const void *d_y, const void *x, int64_t tokens, int cols,
           bool gated, enum dtype type),
          (dev, d_x, y, d_y, x, tokens, cols, gated, type), 0,
          ((gated ? 5.0 : 3.0) + (y ? 1.0 : 0.0)) * (double)tokens * cols * size_of(type), "gelu backward")
OPERATION(variant_cross_entropy,
          (struct device * dev, const struct device_loss *d, void *logits, enum dtype type,
           const int32_t *targets, int64_t rows, int64_t vocab, float scale, const float *row_scale,
           float *loss, bool backward),
          (dev, d, logits, type, targets, rows, vocab, scale, row_scale, loss, backward), 0,
          (backward ? 3.0 : 1.0) * (double)rows * (double)vocab * size_of(type), "variant cross-entropy")
OPERATION(distillation,
          (struct device * dev, const struct device_distillation *d, void *logits, enum dtype type,
           const int32_t *targets, int64_t rows, int64_t vocab, float scale, float *loss),
          (dev, d, logits, type, targets, rows, vocab, scale, loss), 0,
          (double)rows *(3.0 * (double)vocab + 2.0 * (double)d->teacher_vocab) * size_of(type),
          "distillation")
OPERATION(cross_entropy,
          (struct device * dev, void *logits, enum dtype type, const int32_t *targets, int64_t rows,
           int64_t vocab, float scale, const float *row_scale, float *loss, bool backward),
          (dev, logits, type, targets, rows, vocab, scale, row_scale, loss, backward), 0,
          (backward ? 2.0 : 1.0) * (double)rows * (double)vocab * size_of(type), "cross-entropy")
OPERATION(adamw,
          (struct device * dev, float *master, void *param, enum dtype param_type, const void *grad,
           enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
           const struct device_adamw *h),
          (dev, master, param, param_type, grad, grad_type, m, v, n, grad_scale, h), 0,
          (double)n *((master ? 24 : 16 + size_of(param_type)) + size_of(grad_type) +
                      (param ? size_of(param_type) : 0)),
          "adamw")
