/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks Hopper's kernels of attention before anything uses them, and measures them. The results of one over
 * small problems of random numbers are compared with those of the portable kernel: several documents, with
 * and without a window, grouped heads, more than one block, with rows that are wider than their contents.
 * Both kernels round the probabilities, the gradients of scores and what they write; only their sums are in
 * different orders.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/attention/hopper.h"
#include "engine/device/cuda/cuda.h"
#include "engine/device/device.h"

enum { PORTABLE, HOPPER, KERNELS };
enum { TURNS = 5, GAP = 8 /* elements behind a row */ };

/* Both kernels round each factor of their sums and each result, by 2^-9 in bf16 and 2^-12 in fp16 at most.
 * What all elements differ by, as the root of the mean square, is about one such rounding; a single one,
 * relative to itself and to the root of the mean square, can differ by several. */
static const struct bounds {
	double mean, most;
} bounds_bf16 = {1.0 / 512, 1.0 / 24}, bounds_f16 = {1.0 / 2048, 1.0 / 192};
#define BOUND_LSE 1e-4

struct problem {
	struct device *dev;
	struct device_attention a;
	int64_t ld, ld_o;
	int32_t *host_starts;
	char *qkv, *starts, *o, *d_o, *d_qkv; /* the last two: of the backward pass alone */
	float *lse;
	enum device_attention_pass pass;
};

bool device_attention_has_hopper(const struct device *dev, const struct device_attention_shape *s)
{
	return attention_hopper_built() && dev->major == 9 && s->pass < DEVICE_ATTENTION_PASSES &&
	       (s->type == DTYPE_BF16 || (s->type == DTYPE_F16 && s->pass == DEVICE_ATTENTION_FORWARD)) &&
	       (s->head_dim == 64 || s->head_dim == 96 || s->head_dim == 128) && s->tokens > 0 &&
	       s->rows > 0 && s->heads > 0 && s->kv_heads > 0;
}

void device_attention_use_hopper(struct device *dev, enum device_attention_pass pass, bool use)
{
	dev->attention_hopper[pass] = use;
}

/* Sums of random numbers, which are about normal. Scores of them are so far apart that the maximum of a row
 * matters. */
static int fill(struct problem *p, char *to, int64_t n, uint64_t state, struct error *err)
{
	_cleanup_free_ uint16_t *host = malloc((size_t)n * sizeof(*host));

	if (!host)
		return error_oom(err);
	for (int64_t i = 0; i < n; i++) {
		float sum = 0;

		for (int j = 0; j < 4; j++) {
			state = state * 6364136223846793005ull + 1442695040888963407ull;
			sum += (float)(state >> 40) * 0x1p-24f - 0.5f;
		}
		sum *= 2;
		host[i] = p->a.type == DTYPE_F16 ? f16_from_float(sum) : bf16_from_float(sum);
	}
	return device_write(p->dev, to, host, (size_t)n * sizeof(*host), err);
}

static void problem_release(struct problem *p)
{
	device_free(p->dev, p->qkv);
	device_free(p->dev, p->starts);
	device_free(p->dev, p->o);
	device_free(p->dev, p->d_o);
	device_free(p->dev, p->d_qkv);
	device_free(p->dev, p->lse);
	free(p->host_starts);
}

static void run(struct problem *p, int kernel, enum device_attention_pass pass)
{
	size_t k = (size_t)p->a.heads * (size_t)p->a.head_dim * 2;
	size_t v = k + (size_t)p->a.kv_heads * (size_t)p->a.head_dim * 2;
	struct attention_cudnn *cudnn = p->dev->cudnn;
	bool before = p->dev->attention_hopper[pass];

	p->dev->cudnn = NULL;
	p->dev->attention_hopper[pass] = kernel == HOPPER;
	if (pass == DEVICE_ATTENTION_FORWARD)
		device_attention_forward(p->dev, &p->a, p->o, p->lse, p->qkv, p->qkv + k, p->qkv + v);
	else
		device_attention_backward(p->dev, &p->a, p->d_qkv, p->d_qkv + k, p->d_qkv + v, p->d_o, p->o,
		                          p->lse, p->qkv, p->qkv + k, p->qkv + v);
	p->dev->cudnn = cudnn;
	p->dev->attention_hopper[pass] = before;
}

/* What the backward pass reads: gradients of the output, and what the portable kernel computes forward. */
static int prepare_backward(struct problem *p, struct error *err)
{
	size_t rows = (size_t)p->a.tokens;
	int r;

	if ((r = device_alloc(p->dev, rows * (size_t)p->ld_o * 2, (void **)&p->d_o, err)) < 0 ||
	    (r = device_alloc(p->dev, rows * (size_t)p->ld * 2, (void **)&p->d_qkv, err)) < 0 ||
	    (r = device_reserve_scratch(p->dev, attention_scratch(p->a.tokens, p->a.heads), err)) < 0 ||
	    (r = fill(p, p->d_o, p->a.tokens * p->ld_o, 8, err)) < 0)
		return r;
	run(p, PORTABLE, DEVICE_ATTENTION_FORWARD);
	return 0;
}

/* documents of `rows` rows, and a last one of what is left */
static int problem_make(struct problem *p, const struct device_attention_shape *s, struct error *err)
{
	int32_t documents = (int32_t)((s->tokens + s->rows - 1) / s->rows);
	size_t starts = ((size_t)documents + 1) * sizeof(*p->host_starts), rows = (size_t)s->tokens;
	int r;

	p->ld = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim + GAP;
	p->ld_o = (int64_t)s->heads * s->head_dim + GAP;
	p->host_starts = malloc(starts);
	if (!p->host_starts)
		return error_oom(err);
	for (int32_t i = 0; i <= documents; i++)
		p->host_starts[i] = (int32_t)MIN(i * s->rows, s->tokens);
	p->a = (struct device_attention){.tokens = s->tokens,
	                                 .heads = s->heads,
	                                 .kv_heads = s->kv_heads,
	                                 .head_dim = s->head_dim,
	                                 .scale = (float)(1 / sqrt(s->head_dim)),
	                                 .window = s->window,
	                                 .documents = documents,
	                                 .host_starts = p->host_starts,
	                                 .ld_q = p->ld,
	                                 .ld_k = p->ld,
	                                 .ld_v = p->ld,
	                                 .ld_o = p->ld_o,
	                                 .type = s->type};
	if ((r = device_alloc(p->dev, rows * (size_t)p->ld * 2, (void **)&p->qkv, err)) < 0 ||
	    (r = device_alloc(p->dev, starts, (void **)&p->starts, err)) < 0 ||
	    (r = device_alloc(p->dev, rows * (size_t)p->ld_o * 2, (void **)&p->o, err)) < 0 ||
	    (r = device_alloc(p->dev, rows * (size_t)s->heads * sizeof(float), (void **)&p->lse, err)) < 0 ||
	    (r = device_write(p->dev, p->starts, p->host_starts, starts, err)) < 0)
		return r;
	p->a.starts = (const int32_t *)p->starts;
	p->pass = s->pass;
	r = fill(p, p->qkv, s->tokens * p->ld, 7, err);
	return r < 0 || p->pass == DEVICE_ATTENTION_FORWARD ? r : prepare_backward(p, err);
}

/* ---- the results ---- */

/* o, or the gradients of q, k and v; lse of the forward pass alone. */
struct results {
	uint16_t *values;
	float *lse;
};

static void results_free(struct results *r)
{
	free(r->values);
	free(r->lse);
}

static int64_t value_count(const struct problem *p)
{
	return p->a.tokens * (p->pass == DEVICE_ATTENTION_FORWARD ? p->ld_o : p->ld);
}

static int compute(struct problem *p, int kernel, struct results *out, struct error *err)
{
	size_t bytes = (size_t)value_count(p) * 2, lse = (size_t)p->a.tokens * (size_t)p->a.heads * 4;
	char *values = p->pass == DEVICE_ATTENTION_FORWARD ? p->o : p->d_qkv;
	int r;

	out->values = malloc(bytes);
	out->lse = malloc(lse);
	if (!out->values || !out->lse)
		return error_oom(err);
	device_zero(p->dev, values, bytes);
	if (p->pass == DEVICE_ATTENTION_FORWARD)
		device_zero(p->dev, p->lse, lse);
	run(p, kernel, p->pass);
	if ((r = device_synchronize(p->dev, err)) < 0 ||
	    (r = device_read(p->dev, out->values, values, bytes, err)) < 0)
		return r;
	return device_read(p->dev, out->lse, p->lse, lse, err);
}

static double value(const struct problem *p, uint16_t bits)
{
	return p->a.type == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

/* Columns of a matrix of results. */
struct part {
	const char *name;
	int64_t ld, first, width;
};

/* Whether two results are one up to rounding. */
static int compare_part(const struct problem *p, const struct part *part, const uint16_t *x,
                        const uint16_t *y, struct error *err)
{
	const struct bounds *bound = p->a.type == DTYPE_F16 ? &bounds_f16 : &bounds_bf16;
	double square = 0, apart = 0, n = (double)(p->a.tokens * part->width);

	for (int64_t t = 0; t < p->a.tokens; t++)
		for (int64_t c = part->first; c < part->first + part->width; c++)
			square += pow(value(p, x[t * part->ld + c]), 2);
	square = sqrt(square / n);
	for (int64_t t = 0; t < p->a.tokens; t++)
		for (int64_t c = part->first; c < part->first + part->width; c++) {
			double a = value(p, x[t * part->ld + c]), b = value(p, y[t * part->ld + c]);

			if (!(fabs(a - b) <= bound->most * (fabs(a) + square)))
				return error_set(
				    err, -EBADMSG, "row %lld, column %lld of %s is %g instead of %g",
				    (long long)t, (long long)(c - part->first), part->name, b, a);
			apart += (a - b) * (a - b);
		}
	apart = sqrt(apart / n);
	if (!(apart <= bound->mean * square))
		return error_set(err, -EBADMSG, "%s differs by %g, and is %g (roots of mean squares)",
		                 part->name, apart, square);
	return 0;
}

/* What is behind a row is as it was: zero. */
static int compare(const struct problem *p, const struct results *x, const struct results *y,
                   struct error *err)
{
	int64_t q = (int64_t)p->a.heads * p->a.head_dim, kv = (int64_t)p->a.kv_heads * p->a.head_dim;
	const struct part output = {"the output", p->ld_o, 0, q},
	                  gradients[] = {{"the gradient of q", p->ld, 0, q},
	                                 {"the gradient of k", p->ld, q, kv},
	                                 {"the gradient of v", p->ld, q + kv, kv}};
	bool forward = p->pass == DEVICE_ATTENTION_FORWARD;
	const struct part *parts = forward ? &output : gradients;
	int64_t ld = parts->ld;

	for (size_t i = 0; i < (forward ? 1 : ARRAY_SIZE(gradients)); i++) {
		int r = compare_part(p, &parts[i], x->values, y->values, err);

		if (r < 0)
			return r;
	}
	for (int64_t i = 0; i < p->a.tokens; i++)
		for (int64_t c = ld - GAP; c < ld; c++)
			if (y->values[i * ld + c] != 0)
				return error_set(err, -EBADMSG, "it writes behind row %lld", (long long)i);
	for (int64_t i = 0; i < p->a.tokens * p->a.heads; i++)
		if (!(fabs(x->lse[i] - y->lse[i]) <= BOUND_LSE * (1 + fabs(x->lse[i]))))
			return error_set(err, -EBADMSG, "log-sum-exp %lld is %g instead of %g", (long long)i,
			                 (double)y->lse[i], (double)x->lse[i]);
	return 0;
}

static int check_problem(struct problem *p, struct error *err)
{
	_cleanup_(results_free) struct results expected = {NULL}, first = {NULL}, again = {NULL};
	int r;

	if ((r = compute(p, PORTABLE, &expected, err)) < 0 || (r = compute(p, HOPPER, &first, err)) < 0 ||
	    (r = compute(p, HOPPER, &again, err)) < 0 || (r = compare(p, &expected, &first, err)) < 0)
		return r;
	if (memcmp(first.values, again.values, (size_t)value_count(p) * 2))
		return error_set(err, -EBADMSG, "the same call gives other bits again");
	return 0;
}

static int check_results(struct device *dev, const struct device_attention_shape *shape, struct error *err)
{
	enum { PROBLEMS = 4 };
	static const struct size {
		int64_t tokens, rows;
		int32_t window, kv_heads;
	} all[][PROBLEMS] = {[DEVICE_ATTENTION_FORWARD] = {{520, 520, 0, 1},
	                                                   {200, 70, 0, 2},
	                                                   {300, 170, 100, 1},
	                                                   {129, 129, 1, 1}},
	                     [DEVICE_ATTENTION_BACKWARD] = {
	                         {330, 330, 0, 1}, {150, 70, 0, 2}, {200, 140, 100, 1}, {129, 129, 1, 1}}};
	const struct size *small = all[shape->pass];
	int r = 0;

	for (size_t i = 0; i < PROBLEMS && r == 0; i++) {
		_cleanup_(problem_release) struct problem p = {.dev = dev};
		struct device_attention_shape s = *shape;

		s.tokens = small[i].tokens;
		s.rows = small[i].rows;
		s.window = small[i].window;
		s.kv_heads = small[i].kv_heads;
		s.heads = 2 * s.kv_heads;
		r = problem_make(&p, &s, err);
		if (r == 0)
			r = check_problem(&p, err);
	}
	return r;
}

/* ---- time ---- */

struct clock {
	cudaEvent_t from, to;
};

static void clock_release(struct clock *c)
{
	if (c->from)
		(void)cudaEventDestroy(c->from);
	if (c->to)
		(void)cudaEventDestroy(c->to);
}

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* The median of turns, which the kernels take one after the other. */
static int measure(struct problem *p, double seconds[KERNELS], struct error *err)
{
	_cleanup_(clock_release) struct clock c = {NULL};
	float ms[KERNELS][TURNS] = {{0}};
	struct device *dev = p->dev;
	cudaError_t status;
	int r;

	if ((status = cudaEventCreateWithFlags(&c.from, cudaEventDefault)) ||
	    (status = cudaEventCreateWithFlags(&c.to, cudaEventDefault)))
		return device_cuda_error(dev, status, "cannot make an event", err);
	for (int turn = -1; turn < TURNS; turn++) /* the first loads the kernel */
		for (int kernel = 0; kernel < KERNELS; kernel++) {
			status = cudaEventRecord(c.from, dev->stream);
			run(p, kernel, p->pass);
			if (!status)
				status = cudaEventRecord(c.to, dev->stream);
			if ((r = device_synchronize(dev, err)) < 0)
				return r;
			if (!status)
				status = cudaEventElapsedTime(&ms[kernel][MAX(turn, 0)], c.from, c.to);
			if (status)
				return device_cuda_error(dev, status, "cannot time attention", err);
		}
	for (int kernel = 0; kernel < KERNELS; kernel++) {
		qsort(ms[kernel], TURNS, sizeof(float), compare_floats);
		seconds[kernel] = ms[kernel][TURNS / 2] * 1e-3;
	}
	return 0;
}

int device_attention_check(struct device *dev, const struct device_attention_shape *shape, double seconds[2],
                           struct error *err)
{
	_cleanup_(problem_release) struct problem p = {.dev = dev};
	int r;

	if (!device_attention_has_hopper(dev, shape))
		return error_set(err, -EOPNOTSUPP, "there is no such kernel for this device");
	if ((r = check_results(dev, shape, err)) < 0 || (r = problem_make(&p, shape, err)) < 0)
		return r;
	return measure(&p, seconds, err);
}
