/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the algorithm of a product by measurement. Candidates are what the library suggests, first with the
 * epilogue that the product would like and then without one, which leaves a bias to a kernel of this engine:
 * the time of that kernel counts. They take turns, so that what slows the device down for a while slows
 * all, and the median of each one's turns is compared. The library's order decides between those that take
 * the same time, within MARGIN.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/gemm/gemm.h"

enum { CANDIDATES = 2 * GEMM_SUGGESTIONS, TURNS = 5, PATTERN = 1 << 20, RUNS_MAX = 20 };
#define MARGIN  0.01
#define TURN_MS 0.2f /* a turn has as many runs of a short product as about this takes */

struct candidate {
	struct gemm_entry *entry; /* described; the algorithm is set before a run */
	cublasLtMatmulAlgo_t algorithm;
	int runs; /* a turn */
	float ms[TURNS];
	bool refused;
};

struct measurement {
	struct device *dev;
	char *a, *b, *c, *bias, *d_bias;
	float *scale;
	cudaEvent_t from, to;
	struct gemm_entry fused, plain;
	struct candidate candidate[CANDIDATES];
	int count;
};

/* ---- operands ---- */

struct sizes {
	size_t a, b, c, bias, d_bias, scratch;
};

static size_t bytes_of(int64_t rows, int64_t ld, int32_t type)
{
	return (size_t)rows * (size_t)ld * dtype_size((enum dtype)type) + DEVICE_GEMM_ALIGNMENT;
}

static struct sizes sizes_of(const struct device_gemm_choice *choices, size_t n)
{
	struct sizes most = {0};

	for (size_t i = 0; i < n; i++) {
		const struct device_gemm_shape *s = &choices[i].shape;

		most.a = MAX(most.a, bytes_of(s->transpose_a ? s->k : s->m, s->lda, s->ab_type));
		most.b = MAX(most.b, bytes_of(s->transpose_b ? s->n : s->k, s->ldb, s->ab_type));
		most.c = MAX(most.c, bytes_of(s->m, s->ldc, s->c_type));
		most.bias = MAX(most.bias, bytes_of(1, s->n, s->c_type));
		most.d_bias = MAX(most.d_bias, bytes_of(1, s->m, DTYPE_F32));
		most.scratch = MAX(most.scratch, WORKSPACE + round_up((size_t)s->m * sizeof(float), 256));
		/* What the kernel of a separate gradient takes. */
		if (s->d_bias)
			most.scratch = MAX(most.scratch, (size_t)MIN(s->k / 64 + 1, COLUMN_PARTS) *
			                                     (size_t)s->m * sizeof(float));
	}
	return most;
}

/* Random numbers of [-1, 1), since zeros take less power and run faster. Numbers of 16 bits make numbers of
 * 32 bits in that range, too; their bytes are random codes of fp8. */
static int fill(struct device *dev, char *p, size_t bytes, enum dtype type, struct error *err)
{
	_cleanup_free_ char *pattern = malloc(PATTERN);
	size_t size = dtype_size(type), done = MIN(bytes, (size_t)PATTERN);
	uint64_t state = 1;
	int r;

	if (!pattern)
		return error_oom(err);
	for (size_t i = 0; i < PATTERN / size; i++) {
		float x;
		uint16_t half;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		x = (float)(int32_t)(state >> 32) * 0x1p-31f;
		half = type == DTYPE_F16 ? f16_from_float(x) : bf16_from_float(x);
		memcpy(pattern + i * size, type == DTYPE_F32 ? (void *)&x : (void *)&half, size);
	}
	r = device_write(dev, p, pattern, done, err);
	for (; r == 0 && done < bytes; done += MIN(done, bytes - done))
		device_copy(dev, p + done, p, MIN(done, bytes - done));
	return r;
}

static enum dtype narrowest(const struct device_gemm_choice *choices, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (choices[i].shape.ab_type != DTYPE_F32)
			return (enum dtype)choices[i].shape.ab_type;
	return DTYPE_F32;
}

static int begin(struct measurement *m, const struct device_gemm_choice *choices, size_t n, struct error *err)
{
	struct sizes most = sizes_of(choices, n);
	enum dtype type = narrowest(choices, n);
	const float one = 1;
	cudaError_t status;
	int r;

	if ((r = device_reserve_scratch(m->dev, most.scratch, err)) < 0 ||
	    (r = device_alloc(m->dev, most.a, (void **)&m->a, err)) < 0 ||
	    (r = device_alloc(m->dev, most.b, (void **)&m->b, err)) < 0 ||
	    (r = device_alloc(m->dev, most.c, (void **)&m->c, err)) < 0 ||
	    (r = device_alloc(m->dev, most.bias, (void **)&m->bias, err)) < 0 ||
	    (r = device_alloc(m->dev, most.d_bias, (void **)&m->d_bias, err)) < 0 ||
	    (r = device_alloc(m->dev, sizeof(one), (void **)&m->scale, err)) < 0 ||
	    (r = device_write(m->dev, m->scale, &one, sizeof(one), err)) < 0 ||
	    (r = fill(m->dev, m->a, most.a, type, err)) < 0 ||
	    (r = fill(m->dev, m->b, most.b, type, err)) < 0 ||
	    (r = fill(m->dev, m->bias, most.bias, type, err)) < 0)
		return r;
	if ((status = cudaEventCreateWithFlags(&m->from, cudaEventDefault)) ||
	    (status = cudaEventCreateWithFlags(&m->to, cudaEventDefault)))
		return device_cuda_error(m->dev, status, "cannot make an event", err);
	return 0;
}

static void end(struct measurement *m)
{
	(void)cudaStreamSynchronize(m->dev->stream);
	if (m->from)
		(void)cudaEventDestroy(m->from);
	if (m->to)
		(void)cudaEventDestroy(m->to);
	device_free(m->dev, m->a);
	device_free(m->dev, m->b);
	device_free(m->dev, m->c);
	device_free(m->dev, m->bias);
	device_free(m->dev, m->d_bias);
	device_free(m->dev, m->scale);
}

/* A buffer is aligned to 256 bytes; this address of it to `align` and no more, where that is less than all
 * that matters. */
static void *aligned(char *p, int32_t align)
{
	return p + (align < DEVICE_GEMM_ALIGNMENT ? align : 0);
}

/* ---- candidates ---- */

/* What the library suggests for an entry; without an error nothing, where it has nothing for it. */
static void add_candidates(struct measurement *m, struct gemm_entry *e, const struct gemm_work *w, bool plain)
{
	cublasLtMatmulHeuristicResult_t results[GEMM_SUGGESTIONS];
	struct gemm_cache *g = m->dev->gemm;
	int found = 0;

	if (gemm_entry_describe(e, w, plain) || gemm_suggest(g, e, GEMM_SUGGESTIONS, results, &found))
		return;
	for (int i = 0; i < found; i++)
		if (results[i].state == CUBLAS_STATUS_SUCCESS && gemm_accepts(g, e, &results[i].algo))
			m->candidate[m->count++] =
			    (struct candidate){.entry = e, .algorithm = results[i].algo, .runs = 1};
}

static int run(struct measurement *m, const struct gemm_work *w, struct candidate *c, float *ms,
               struct error *err)
{
	struct device *dev = m->dev;
	cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
	cudaError_t status;
	int r;

	c->entry->algorithm = c->algorithm;
	status = cudaEventRecord(m->from, dev->stream);
	for (int i = 0; i < c->runs && !s; i++) {
		s = gemm_multiply(dev, w, c->entry);
		if (!s)
			gemm_finish(dev, w, c->entry);
	}
	if (!status)
		status = cudaEventRecord(m->to, dev->stream);
	if ((r = device_synchronize(dev, err)) < 0)
		return r;
	c->refused = s != CUBLAS_STATUS_SUCCESS;
	if (!status)
		status = cudaEventElapsedTime(ms, m->from, m->to);
	*ms /= (float)c->runs;
	return status ? device_cuda_error(dev, status, "cannot time a product", err) : 0;
}

/* The first run of an algorithm loads its kernel; the second tells how many runs a turn has. */
static int warm_up(struct measurement *m, const struct gemm_work *w, struct error *err)
{
	int r;

	for (int i = 0; i < m->count; i++) {
		struct candidate *c = &m->candidate[i];
		float ms = 0;

		if ((r = run(m, w, c, &ms, err)) < 0 || (!c->refused && (r = run(m, w, c, &ms, err)) < 0))
			return r;
		c->runs = ms > 0 ? (int)MIN(MAX(TURN_MS / ms, 1), RUNS_MAX) : RUNS_MAX;
	}
	return 0;
}

static int take_turns(struct measurement *m, const struct gemm_work *w, struct error *err)
{
	int r;

	for (int turn = 0; turn < TURNS; turn++)
		for (int i = 0; i < m->count; i++)
			if (!m->candidate[i].refused &&
			    (r = run(m, w, &m->candidate[i], &m->candidate[i].ms[turn], err)) < 0)
				return r;
	return 0;
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* NULL: the library has refused all. */
static const struct candidate *fastest(struct measurement *m)
{
	const struct candidate *best = NULL;

	for (int i = 0; i < m->count; i++) {
		struct candidate *c = &m->candidate[i];

		qsort(c->ms, TURNS, sizeof(*c->ms), compare);
		if (!c->refused && (!best || c->ms[TURNS / 2] < best->ms[TURNS / 2] * (float)(1 - MARGIN)))
			best = c;
	}
	return best;
}

static int choose(struct measurement *m, struct device_gemm_choice *choice, struct error *err)
{
	const struct device_gemm_shape *shape = &choice->shape;
	const struct gemm_operands operands = {.a = aligned(m->a, shape->align_a),
	                                       .b = aligned(m->b, shape->align_b),
	                                       .c = aligned(m->c, shape->align_c),
	                                       .bias = aligned(m->bias, shape->align_bias),
	                                       .d_bias = (float *)m->d_bias,
	                                       .scale = m->scale};
	struct device_gemm product = gemm_product_of(shape, &operands);
	const struct candidate *best;
	struct gemm_work w;
	int r = 0;

	m->count = 0;
	gemm_work_init(m->dev, &product, &w);
	gemm_work_place(m->dev, &w);
	/* The buffers are aligned better than those that the algorithm will have to do with. */
	w.key.align_a = choice->shape.align_a;
	w.key.align_b = choice->shape.align_b;
	w.key.align_c = choice->shape.align_c;
	add_candidates(m, &m->fused, &w, false);
	if (w.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
		add_candidates(m, &m->plain, &w, true);
	if (m->count > 1 && ((r = warm_up(m, &w, err)) < 0 || (r = take_turns(m, &w, err)) < 0))
		return r;
	best = fastest(m);
	if (!best)
		return error_set(err, -EIO, "%s has no algorithm for the product of %lld x %lld x %lld",
		                 m->dev->gemm_kind, (long long)choice->shape.m, (long long)choice->shape.n,
		                 (long long)choice->shape.k);
	choice->separate = best->entry == &m->plain;
	memset(choice->algorithm, 0, sizeof(choice->algorithm));
	memcpy(choice->algorithm, &best->algorithm, sizeof(best->algorithm));
	return 0;
}

int device_gemm_measure(struct device *dev, struct device_gemm_choice *choices, size_t n, struct error *err)
{
	struct measurement *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return error_oom(err);
	m->dev = dev;
	r = begin(m, choices, n, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = choose(m, &choices[i], err);
		gemm_entry_clear(&m->fused);
		gemm_entry_clear(&m->plain);
	}
	end(m);
	free(m);
	return r;
}
