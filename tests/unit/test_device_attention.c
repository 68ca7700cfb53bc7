/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares attention with a plain float64 computation, its gradients with textbook formulas in float64, and
 * these with finite differences: packed documents, windows, grouped heads, odd sizes.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "test_device.h"
#ifdef TEST_ENGINE_SIMT
#include <cuda_runtime_api.h>
#endif

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* From one length of the cache to the next. */
#ifdef TEST_GPU
#define CACHE_STEP(past) (1 + 4 * (past))
#else
#define CACHE_STEP(past) (1 + (past) / 3)
#endif

struct shape {
	int heads, kv_heads, head_dim, window, documents;
	int32_t starts[6];
	bool aligned; /* rows are multiples of 16 bytes, which the tensor-core kernels need */
	double cap;   /* of scores, 0: none */
};

static const struct shape shapes[] = {
    {1, 1, 4, 0, 1, {0, 1}, false, 0},
    {2, 1, 8, 0, 1, {0, 17}, false, 0},
    {4, 2, 16, 0, 3, {0, 1, 4, 69}, false, 0},
    {3, 3, 20, 0, 2, {0, 65, 130}, false, 0},
    {4, 1, 64, 0, 2, {0, 64, 200}, false, 0},
    {2, 2, 10, 1, 1, {0, 70}, false, 0},
    {4, 2, 24, 5, 3, {0, 3, 80, 209}, false, 0},
    {2, 1, 64, 70, 2, {0, 200, 300}, false, 0},
    {8, 2, 32, 64, 5, {0, 63, 127, 192, 320, 323}, false, 0},
    {2, 1, 130, 0, 1, {0, 90}, false, 0},
    {4, 2, 24, 0, 2, {0, 80, 209}, false, 2.0},
    {2, 1, 16, 70, 1, {0, 150}, true, 1.0},
#ifdef TEST_GPU
    {1, 1, 64, 0, 1, {0, 1}, true, 0},
    {2, 1, 64, 0, 1, {0, 150}, true, 0},
    {4, 2, 128, 0, 3, {0, 17, 130, 145}, true, 0},
    {2, 2, 96, 40, 2, {0, 65, 200}, true, 0},
    {2, 1, 128, 1, 1, {0, 70}, true, 0},
    {3, 1, 64, 33, 2, {0, 128, 256}, true, 0},
    {2, 2, 64, 0, 5, {0, 50, 51, 116, 300, 310}, true, 0},
    {2, 1, 256, 0, 2, {0, 1, 150}, true, 0},
    {2, 2, 256, 40, 2, {0, 65, 200}, true, 0},
    {3, 1, 256, 0, 3, {0, 17, 130, 145}, true, 2.0},
    {2, 1, 256, 33, 1, {0, 70}, true, 1.0},
    {4, 2, 128, 0, 2, {0, 130, 145}, true, 2.0},
    {2, 1, 64, 0, 1, {0, 70}, true, 1.0},
    {3, 1, 64, 33, 2, {0, 50, 150}, true, 2.0},
    {2, 1, 96, 40, 3, {0, 17, 80, 145}, true, 2.0},
    {1, 1, 64, 0, 1, {0, 1024}, true, 0},
#endif
#ifdef TEST_ENGINE_CUDA
    {4, 2, 128, 0, 3, {0, 1000, 1001, 2500}, true, 0},
    {4, 1, 64, 512, 2, {0, 2048, 2100}, true, 0},
    {2, 2, 96, 0, 1, {0, 1500}, true, 0},
    {4, 2, 128, 0, 2, {0, 1024, 2600}, true, 0},
    {4, 2, 256, 0, 2, {0, 1024, 1500}, true, 0},
    {4, 2, 256, 512, 2, {0, 1024, 1500}, true, 2.0},
#endif
};

/* The kernels of the engine, cuDNN wherever it is possible, cuDNN where it is expected to be faster, and the
 * kernels of the engine with Hopper's: all four on a GPU, or the one that TEST_ATTENTION names. */
static const char *const choices[] = {"own", "cudnn", "auto", "hopper"};
static const enum device_attention_choice values[] = {DEVICE_ATTENTION_OWN, DEVICE_ATTENTION_CUDNN,
                                                      DEVICE_ATTENTION_AUTO, DEVICE_ATTENTION_OWN};

static bool with_hopper(void)
{
	const char *choice = getenv("TEST_ATTENTION");

	return choice && !strcmp(choice, "hopper");
}

static enum device_attention_choice chosen(void)
{
	const char *choice = getenv("TEST_ATTENTION");

	for (size_t i = 0; choice && i < COUNT(choices); i++)
		if (!strcmp(choice, choices[i]))
			return values[i];
	return DEVICE_ATTENTION_AUTO;
}

static struct device *open_device(int threads)
{
	struct device_options o = {.threads = threads, .attention = chosen()};
	struct error err = ERROR_INIT;
	struct device *dev = NULL;

	ck_ok(device_create(&o, &dev, &err), &err);
	ck_ok(device_reserve_scratch(dev, 64 << 20, &err), &err);
	for (int pass = 0; pass < DEVICE_ATTENTION_PASSES; pass++)
		device_attention_use_hopper(dev, (enum device_attention_pass)pass, with_hopper());
	return dev;
}

/* The number of plans of cuDNN that have run; known on the emulated GPU only. */
static int cudnn_count(void)
{
#ifdef TEST_ENGINE_SIMT
	return simt_cudnn_executions();
#else
	return 0;
#endif
}

/* Whether cuDNN has to have computed the call. */
static bool cudnn_expected(const struct shape *s, enum dtype type)
{
#ifdef TEST_ENGINE_SIMT
	return chosen() != DEVICE_ATTENTION_OWN && s->aligned && s->cap <= 0 && s->head_dim <= 128 &&
	       type == DTYPE_BF16;
#else
	return false;
#endif
}

/* The emulated GPU is slow: it runs long cases for "auto" only, and short cases otherwise. On a GPU the
 * reference is what takes long: long cases have the types alone that have kernels of their own there. Tools
 * that watch each access ask for short cases (TEST_ATTENTION_ROWS, the most rows). */
static bool skipped(const struct shape *s, enum dtype type)
{
#ifdef TEST_GPU
	const char *rows = getenv("TEST_ATTENTION_ROWS");

	if (rows && s->starts[s->documents] > atoi(rows))
		return true;
#endif
#ifdef TEST_ENGINE_CUDA
	return s->starts[s->documents] >= 1000 &&
	       (type == DTYPE_F32 || (type == DTYPE_F16 && s->head_dim <= 128));
#elif defined(TEST_ENGINE_SIMT)
	bool is_auto = chosen() == DEVICE_ATTENTION_AUTO;

	if (with_hopper() && (!s->aligned || s->cap > 0 || s->head_dim > 128 || type == DTYPE_F32))
		return true; /* the same as with "own" */
	if (chosen() != DEVICE_ATTENTION_OWN && (s->head_dim > 128 || type == DTYPE_F16))
		return true; /* likewise */
	if (s->head_dim > 128 && s->aligned && type == DTYPE_F32)
		return true; /* the kernel that the other sizes have */
	return s->starts[s->documents] >= 1024 ? !is_auto || type != DTYPE_BF16 : is_auto;
#else
	return false;
#endif
}

struct problem {
	const struct shape *s;
	int64_t tokens, ld, ld_o; /* q, k and v lie in one matrix */
	double scale, *qkv, *o, *lse, *d_o, *d_qkv;
};

static double dot(const double *a, const double *b, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static double score(const struct problem *p, const double *q, const double *k)
{
	double s = p->scale * dot(q, k, p->s->head_dim), cap = p->s->cap;

	return cap > 0 ? cap * tanh(s / cap) : s;
}

static int first_key(const struct shape *s, int start, int t)
{
	return s->window > 0 && t - s->window + 1 > start ? t - s->window + 1 : start;
}

/* Forward and, where d_qkv is there, the gradients, all in float64. */
static void reference(const struct problem *p)
{
	const struct shape *s = p->s;
	int hd = s->head_dim, group = s->heads / s->kv_heads;
	double *prob = malloc((size_t)p->tokens * sizeof(double));

	if (p->d_qkv)
		for (int64_t i = 0; i < p->tokens; i++)
			memset(p->d_qkv + i * p->ld, 0,
			       (size_t)((s->heads + 2 * s->kv_heads) * hd) * sizeof(double));
	for (int d = 0; d < s->documents; d++) {
		for (int h = 0; h < s->heads; h++) {
			for (int t = s->starts[d]; t < s->starts[d + 1]; t++) {
				int at_k = (s->heads + h / group) * hd, at_v = at_k + s->kv_heads * hd;
				int first = first_key(s, s->starts[d], t);
				double *q = p->qkv + t * p->ld + h * hd, *o = p->o + t * p->ld_o + h * hd;
				double max = -INFINITY, sum = 0, delta, *d_o = p->d_o + t * p->ld_o + h * hd;

				for (int j = first; j <= t; j++) {
					prob[j] = score(p, q, p->qkv + j * p->ld + at_k);
					max = fmax(max, prob[j]);
				}
				for (int j = first; j <= t; j++)
					sum += prob[j] = exp(prob[j] - max);
				p->lse[h * p->tokens + t] = max + log(sum);
				memset(o, 0, (size_t)hd * sizeof(double));
				for (int j = first; j <= t; j++) {
					prob[j] /= sum;
					for (int i = 0; i < hd; i++)
						o[i] += prob[j] * p->qkv[j * p->ld + at_v + i];
				}
				if (!p->d_qkv)
					continue;
				delta = dot(d_o, o, hd);
				for (int j = first; j <= t; j++) {
					double dp = dot(d_o, p->qkv + j * p->ld + at_v, hd);
					double ds = prob[j] * (dp - delta) * p->scale;
					double capped =
					    s->cap > 0 ? score(p, q, p->qkv + j * p->ld + at_k) / s->cap : 0;

					ds *= 1 - capped * capped;

					for (int i = 0; i < hd; i++) {
						p->d_qkv[t * p->ld + h * hd + i] +=
						    ds * p->qkv[j * p->ld + at_k + i];
						p->d_qkv[j * p->ld + at_k + i] += ds * q[i];
						p->d_qkv[j * p->ld + at_v + i] += prob[j] * d_o[i];
					}
				}
			}
		}
	}
	free(prob);
}

static struct problem problem_make(const struct shape *s)
{
	struct problem p = {.s = s, .tokens = s->starts[s->documents]};

	p.ld = (s->heads + 2 * s->kv_heads) * s->head_dim + (s->aligned ? 8 : 3);
	p.ld_o = s->heads * s->head_dim + (s->aligned ? 16 : 5);
	p.scale = (float)(1 / sqrt(s->head_dim));
	p.qkv = test_values(p.tokens * p.ld, 1);
	p.o = test_values(p.tokens * p.ld_o, 2);
	p.d_o = test_values(p.tokens * p.ld_o, 3);
	p.d_qkv = test_values(p.tokens * p.ld, 4);
	p.lse = test_values(p.tokens * s->heads, 5);
	for (int64_t i = 0; i < p.tokens * p.ld; i++)
		p.qkv[i] *= 2; /* sharp enough for the maximum to matter */
	return p;
}

static void problem_free(struct problem *p)
{
	free(p->qkv);
	free(p->o);
	free(p->d_o);
	free(p->d_qkv);
	free(p->lse);
}

/* Tests the reference itself. */
START_TEST(reference_agrees_with_differences)
{
	struct problem p = problem_make(&shapes[2]);
	double h = 1e-5, *d_qkv = p.d_qkv;
	int64_t cols = p.ld - 3;

	reference(&p);
	p.d_qkv = NULL;
	for (int64_t x = 0; x < 60; x++) {
		int64_t i = x * 37 % p.tokens * p.ld + x * 11 % cols;
		double keep = p.qkv[i], change = 0;

		for (int side = 1; side >= -1; side -= 2) {
			p.qkv[i] = keep + side * h;
			reference(&p);
			for (int64_t t = 0; t < p.tokens; t++)
				change += side * dot(p.o + t * p.ld_o, p.d_o + t * p.ld_o, (int)p.ld_o - 5);
		}
		p.qkv[i] = keep;
		ck_assert_double_eq_tol(change / (2 * h), d_qkv[i], 1e-6);
	}
	p.d_qkv = d_qkv;
	problem_free(&p);
}
END_TEST

static void check_largest(float largest, const void *o, int64_t rows, int64_t cols, int64_t ld,
                          enum dtype type)
{
	float want = 0;

	for (int64_t i = 0; i < rows * cols; i++)
		want = fmaxf(want, fabsf((float)test_get(o, i / cols * ld + i % cols, type)));
	ck_assert_msg(!memcmp(&largest, &want, sizeof(want)), "the largest of o is %a, not %a", want,
	              largest);
}

/* The backward pass of q and k that were rotated has the bits of the same pass, whose result is `plain`, and
 * of the inverse rotation behind it. apart: k's gradient and v's lie in another matrix than q's. */
static void check_rotated(struct device *dev, struct device_attention a, int rotary_dim, bool apart,
                          const void *plain, const char *qkv, const char *d_o, const char *o,
                          const float *lse)
{
	int64_t nq = a.tokens * a.ld_q, half = rotary_dim / 2, at_k = (int64_t)a.heads * a.head_dim;
	size_t size = dtype_size(a.type), k = (size_t)at_k * size, bytes = (size_t)nq * size,
	       v = k + (size_t)a.kv_heads * (size_t)a.head_dim * size;
	double *angles = test_values(a.tokens * half, 5), *sines = malloc((size_t)(a.tokens * half + 1) * 8);
	int32_t *positions = calloc((size_t)a.tokens, sizeof(*positions));
	char *want = test_put(dev, plain, bytes), *got = test_put(dev, plain, bytes);
	char *other = apart ? test_put(dev, plain, bytes) : got;
	char *wanted = malloc(bytes), *row = malloc(bytes), *rest = malloc(bytes);
	struct device_rope rope;

	for (int64_t i = 0; i < a.tokens * half; i++) {
		sines[i] = sin(angles[i]);
		angles[i] = cos(angles[i]);
	}
	for (int64_t t = 0; t < a.tokens; t++)
		positions[t] = (int32_t)(t * 7 % a.tokens);
	a.rotary_dim = rotary_dim;
	a.positions = test_put(dev, positions, (size_t)a.tokens * sizeof(*positions));
	a.cos = test_buffer(dev, angles, a.tokens * half, DTYPE_F32);
	a.sin = test_buffer(dev, sines, a.tokens * half, DTYPE_F32);
	rope = (struct device_rope){a.tokens,   a.ld_q, a.heads + a.kv_heads, a.head_dim,
	                            rotary_dim, false,  a.positions,          a.cos,
	                            a.sin,      a.type};
	device_rope_inverse(dev, &rope, want);
	device_attention_backward(dev, &a, got, other + k, other + v, d_o, o, lse, qkv, qkv + k, qkv + v);
	test_fetch(dev, wanted, want, bytes);
	test_fetch(dev, row, got, bytes);
	test_fetch(dev, rest, other, bytes);
	for (size_t t = 0, ld = (size_t)a.ld_q * size; t < (size_t)a.tokens; t++) {
		ck_assert_msg(!memcmp(wanted + t * ld, row + t * ld, k), "d_q of row %zu", t);
		ck_assert_msg(!memcmp(wanted + t * ld + k, rest + t * ld + k, ld - k), "d_k, d_v of row %zu",
		              t);
	}
	device_free(dev, want);
	device_free(dev, got);
	if (apart)
		device_free(dev, other);
	device_free(dev, (void *)a.positions);
	device_free(dev, (void *)a.cos);
	device_free(dev, (void *)a.sin);
	free(angles);
	free(sines);
	free(positions);
	free(wanted);
	free(row);
	free(rest);
}

static double by_type(enum dtype type, double fp32, double bf16, double fp16)
{
	return type == DTYPE_F32 ? fp32 : type == DTYPE_BF16 ? bf16 : fp16;
}

/* The first `cols` columns differ from `want` by no more than `most`, as roots of mean squares, to which a
 * hundredth is added, since those of the first rows of documents may be zero. A bound of single elements has
 * to allow for what rounding does at worst; this is a small multiple of what it does on average: it tells
 * probabilities of fp16 from those of bf16, and finds an error of many elements that hides behind the bound
 * of each. Rounding to fp32 leaves no such room: there the bounds of elements suffice. */
static void check_mean(struct device *dev, const char *what, const void *p, const double *want, int64_t rows,
                       int64_t cols, int64_t ld, enum dtype type, double most)
{
	double *got = test_fetch_values(dev, p, (rows - 1) * ld + cols, type), apart = 0, square = 0,
	       n = (double)(rows * cols);

	for (int64_t i = 0; i < rows * cols; i++) {
		int64_t at = i / cols * ld + i % cols;

		apart += pow(got[at] - want[at], 2);
		square += pow(want[at], 2);
	}
	apart = sqrt(apart / n) / (sqrt(square / n) + 0.01);
	ck_assert_msg(apart <= most, "%s is %g apart, as roots of mean squares", what, apart);
	free(got);
}

START_TEST(attention)
{
	for (size_t x = 0; x < COUNT(shapes) * COUNT(test_threads) * COUNT(test_types); x++) {
		const struct shape *s = &shapes[x / COUNT(test_types) / COUNT(test_threads)];
		enum dtype type = test_types[x % COUNT(test_types)];
		if (skipped(s, type))
			continue;
		struct device *dev = open_device(test_threads[x / COUNT(test_types) % COUNT(test_threads)]);
		struct error err = ERROR_INIT;
		struct problem p = problem_make(s);
		int64_t nq = p.tokens * p.ld, no = p.tokens * p.ld_o, nl = p.tokens * s->heads;
		int64_t at_k = s->heads * s->head_dim, at_v = at_k + s->kv_heads * s->head_dim;
		size_t size = dtype_size(type);
		char *qkv = test_buffer(dev, p.qkv, nq, type), *o = test_buffer(dev, p.o, no, type);
		char *d_o = test_buffer(dev, p.d_o, no, type), *d_qkv = test_buffer(dev, p.d_qkv, nq, type);
		float *lse = test_buffer(dev, p.lse, nl, DTYPE_F32);
		int32_t *starts = test_put(dev, s->starts, sizeof(s->starts));
		struct device_attention a = {.tokens = p.tokens,
		                             .heads = s->heads,
		                             .kv_heads = s->kv_heads,
		                             .head_dim = s->head_dim,
		                             .scale = (float)p.scale,
		                             .window = s->window,
		                             .cap = (float)s->cap,
		                             .documents = s->documents,
		                             .starts = starts,
		                             .host_starts = s->starts,
		                             .ld_q = p.ld,
		                             .ld_k = p.ld,
		                             .ld_v = p.ld,
		                             .ld_o = p.ld_o,
		                             .type = type};
		struct device_shapes need = {.tokens = p.tokens,
		                             .max_sequence = p.tokens,
		                             .hidden = 16,
		                             .intermediate = 16,
		                             .heads = s->heads,
		                             .kv_heads = s->kv_heads,
		                             .head_dim = s->head_dim,
		                             .type = type,
		                             .windowed = s->window > 0,
		                             .ld_qkv = p.ld,
		                             .ld_o = p.ld_o};
		char *copy_q = malloc((size_t)nq * size), *copy_o = malloc((size_t)no * size);
		char *again = malloc((size_t)MAX(nq, no) * size);
		double fp32 = s->head_dim > 128 ? 4e-5 : 2e-5; /* of sums of as many products */
		float largest = 1e30f, *amax = test_put(dev, &largest, sizeof(largest));
		int before = cudnn_count();

		ck_assert(device_scratch_bytes(dev, &need) < 64 << 20);
		device_attention_forward(dev, &a, o, lse, qkv, qkv + (size_t)at_k * size,
		                         qkv + (size_t)at_v * size);
		device_attention_backward(dev, &a, d_qkv, d_qkv + (size_t)at_k * size,
		                          d_qkv + (size_t)at_v * size, d_o, o, lse, qkv,
		                          qkv + (size_t)at_k * size, qkv + (size_t)at_v * size);
		ck_ok(device_synchronize(dev, &err), &err);
		ck_assert_int_eq(cudnn_count() - before, cudnn_expected(s, type) ? 2 : 0);
		reference(&p);
		test_close(dev, "o", o, p.o, no, type, by_type(type, fp32, 1e-2, 2e-3), 1);
		test_close(dev, "lse", lse, p.lse, nl, DTYPE_F32, type == DTYPE_F32 ? 2e-6 : 1e-4, 5);
		test_close(dev, "d_qkv", d_qkv, p.d_qkv, nq, type, by_type(type, 2 * fp32, 4e-2, 5e-3), 3);
		check_mean(dev, "o", o, p.o, p.tokens, at_k, p.ld_o, type,
		           by_type(type, INFINITY, 4e-3, 5e-4));
		for (int part = 0; part < 3; part++) { /* d_q, d_k, d_v */
			int64_t at = part == 0 ? 0 : part == 1 ? at_k : at_v;

			check_mean(dev, "d_qkv", d_qkv + (size_t)at * size, p.d_qkv + at, p.tokens,
			           part == 0 ? at_k : at_v - at_k, p.ld, type,
			           by_type(type, INFINITY, 1.2e-2, 1.5e-3));
		}

		/* The same call gives the same bits, and finds their largest magnitude. */
		test_fetch(dev, copy_q, d_qkv, (size_t)nq * size);
		test_fetch(dev, copy_o, o, (size_t)no * size);
		a.amax = amax;
		device_attention_forward(dev, &a, o, lse, qkv, qkv + (size_t)at_k * size,
		                         qkv + (size_t)at_v * size);
		device_attention_backward(dev, &a, d_qkv, d_qkv + (size_t)at_k * size,
		                          d_qkv + (size_t)at_v * size, d_o, o, lse, qkv,
		                          qkv + (size_t)at_k * size, qkv + (size_t)at_v * size);
		test_fetch(dev, again, d_qkv, (size_t)nq * size);
		ck_assert(!memcmp(copy_q, again, (size_t)nq * size));
		test_fetch(dev, again, o, (size_t)no * size);
		ck_assert(!memcmp(copy_o, again, (size_t)no * size));
		test_fetch(dev, &largest, amax, sizeof(largest));
		check_largest(largest, again, p.tokens, at_k, p.ld_o, type);

		check_rotated(dev, a, s->head_dim / 2 * 2, false, copy_q, qkv, d_o, o, lse);
		check_rotated(dev, a, s->head_dim / 4 * 2, true, copy_q, qkv, d_o, o, lse);

		/* One document, continued from a cache at any place, is the same. */
		for (int past = 0; s->documents == 1 && past < p.tokens; past += CACHE_STEP(past)) {
			for (int64_t n = 1; past + n <= p.tokens; n += n < 3 ? 1
			                                               : p.tokens - past - n
			                                                   ? p.tokens - past - n
			                                                   : 1) {
				a.tokens = n;
				device_zero(dev, o, (size_t)no * size);
				device_attention_cached(dev, &a, past, o + (size_t)(past * p.ld_o) * size,
				                        qkv + (size_t)(past * p.ld) * size,
				                        qkv + (size_t)at_k * size, qkv + (size_t)at_v * size);
				test_fetch(dev, again, o, (size_t)no * size);
				for (int64_t t = past; t < past + n; t++)
					for (int64_t i = 0; i < at_k; i++)
						ck_assert_double_eq_tol(test_get(again, t * p.ld_o + i, type),
						                        p.o[t * p.ld_o + i],
						                        by_type(type, fp32, 5e-2, 1e-2));
			}
		}
		ck_ok(device_synchronize(dev, &err), &err);
		device_free(dev, qkv);
		device_free(dev, o);
		device_free(dev, d_o);
		device_free(dev, d_qkv);
		device_free(dev, lse);
		device_free(dev, starts);
		test_guard(dev, "amax", amax, sizeof(largest));
		device_free(dev, amax);
		device_destroy(dev);
		problem_free(&p);
		free(copy_q);
		free(copy_o);
		free(again);
	}
}
END_TEST

/* Gradients that fp16 cannot hold, as with a loss scale that is too large, are infinite or no numbers: never
 * finite and wrong, so that the step is skipped. */
static const struct shape overflowing[] = {
    {2, 1, 64, 0, 2, {0, 64, 150}, true, 0},
    {2, 1, 128, 40, 1, {0, 130}, true, 0},
    {2, 1, 80, 0, 1, {0, 90}, true, 0},
    {2, 2, 256, 0, 1, {0, 70}, true, 2.0},
};

START_TEST(gradients_overflow)
{
	const struct shape *s = &overflowing[_i];
	struct device *dev = open_device(1);
	struct problem p = problem_make(s);
	int64_t nq = p.tokens * p.ld, no = p.tokens * p.ld_o, overflown = 0;
	int64_t at_k = s->heads * s->head_dim, at_v = at_k + s->kv_heads * s->head_dim;
	char *qkv, *o, *d_o, *d_qkv;
	double *got;
	struct device_attention a = {.tokens = p.tokens,
	                             .heads = s->heads,
	                             .kv_heads = s->kv_heads,
	                             .head_dim = s->head_dim,
	                             .scale = (float)p.scale,
	                             .window = s->window,
	                             .cap = (float)s->cap,
	                             .documents = s->documents,
	                             .host_starts = s->starts,
	                             .ld_q = p.ld,
	                             .ld_k = p.ld,
	                             .ld_v = p.ld,
	                             .ld_o = p.ld_o,
	                             .type = DTYPE_F16};
	float *lse;

	for (int64_t i = 0; i < no; i++)
		p.d_o[i] *= 3e4;
	qkv = test_buffer(dev, p.qkv, nq, DTYPE_F16);
	o = test_buffer(dev, p.o, no, DTYPE_F16);
	d_o = test_buffer(dev, p.d_o, no, DTYPE_F16);
	d_qkv = test_buffer(dev, p.d_qkv, nq, DTYPE_F16);
	lse = test_buffer(dev, p.lse, p.tokens * s->heads, DTYPE_F32);
	a.starts = test_put(dev, s->starts, sizeof(s->starts));
	device_attention_forward(dev, &a, o, lse, qkv, qkv + at_k * 2, qkv + at_v * 2);
	device_attention_backward(dev, &a, d_qkv, d_qkv + at_k * 2, d_qkv + at_v * 2, d_o, o, lse, qkv,
	                          qkv + at_k * 2, qkv + at_v * 2);
	got = test_fetch_values(dev, d_qkv, nq, DTYPE_F16);
	reference(&p);
	for (int64_t i = 0; i < nq; i++) {
		if (isfinite(got[i]))
			ck_assert_msg(test_is_close(got[i], p.d_qkv[i], 5e-3, 1e5), "d_qkv[%lld]: %g, not %g",
			              (long long)i, got[i], p.d_qkv[i]);
		overflown += !isfinite(got[i]);
	}
	ck_assert_int_gt(overflown, 0);
	free(got);
	device_free(dev, qkv);
	device_free(dev, o);
	device_free(dev, d_o);
	device_free(dev, d_qkv);
	device_free(dev, lse);
	device_free(dev, (void *)a.starts);
	device_destroy(dev);
	problem_free(&p);
}
END_TEST

/* The division of the work depends on the number of threads; the bits do not. */
START_TEST(threads_do_not_matter)
{
	const struct shape *s = &shapes[8];
	struct problem p = problem_make(s);
	int64_t nq = p.tokens * p.ld, no = p.tokens * p.ld_o;
	int64_t at_k = s->heads * s->head_dim, at_v = at_k + s->kv_heads * s->head_dim;
	float *first = NULL, *last = NULL;

	for (int threads = 1; threads <= 24; threads += threads < 4 ? 1 : 10) {
		struct device *dev = open_device(threads);
		float *qkv = test_buffer(dev, p.qkv, nq, DTYPE_F32),
		      *o = test_buffer(dev, p.o, no, DTYPE_F32);
		float *d_o = test_buffer(dev, p.d_o, no, DTYPE_F32),
		      *d_qkv = test_buffer(dev, p.d_qkv, nq, DTYPE_F32);
		float *lse = test_buffer(dev, p.lse, p.tokens * s->heads, DTYPE_F32);
		float *again = malloc((size_t)MAX(nq, no) * sizeof(float));
		int32_t *starts = test_put(dev, s->starts, sizeof(s->starts));
		struct device_attention a = {.tokens = p.tokens,
		                             .heads = s->heads,
		                             .kv_heads = s->kv_heads,
		                             .head_dim = s->head_dim,
		                             .scale = (float)p.scale,
		                             .documents = s->documents,
		                             .starts = starts,
		                             .host_starts = s->starts,
		                             .ld_q = p.ld,
		                             .ld_k = p.ld,
		                             .ld_v = p.ld,
		                             .ld_o = p.ld_o,
		                             .type = DTYPE_F32};

		device_attention_forward(dev, &a, o, lse, qkv, qkv + at_k, qkv + at_v);
		device_attention_backward(dev, &a, d_qkv, d_qkv + at_k, d_qkv + at_v, d_o, o, lse, qkv,
		                          qkv + at_k, qkv + at_v);
		test_fetch(dev, again, d_qkv, (size_t)nq * sizeof(float));
		if (first)
			ck_assert(!memcmp(first, again, (size_t)nq * sizeof(float)));
		else
			first = memcpy(malloc((size_t)nq * sizeof(float)), again, (size_t)nq * sizeof(float));
		test_fetch(dev, again, o, (size_t)no * sizeof(float));
		if (last)
			ck_assert(!memcmp(last, again, (size_t)no * sizeof(float)));
		else
			last = memcpy(malloc((size_t)no * sizeof(float)), again, (size_t)no * sizeof(float));
		device_free(dev, qkv);
		device_free(dev, o);
		device_free(dev, d_o);
		device_free(dev, d_qkv);
		device_free(dev, lse);
		device_free(dev, starts);
		device_destroy(dev);
		free(again);
	}
	free(first);
	free(last);
	problem_free(&p);
}
END_TEST

#ifdef TEST_ENGINE_SIMT
/* With a library without engines the kernels of the engine are used; a plan that does not run is an error. */
START_TEST(cudnn_that_cannot)
{
	const struct shape *s = &shapes[COUNT(shapes) - 1];
	bool fails = _i && chosen() != DEVICE_ATTENTION_OWN;
	struct error err = ERROR_INIT;
	struct device *dev;
	struct problem p = problem_make(s);
	int before = cudnn_count();
	struct device_attention a = {.tokens = p.tokens,
	                             .heads = s->heads,
	                             .kv_heads = s->kv_heads,
	                             .head_dim = s->head_dim,
	                             .scale = (float)p.scale,
	                             .documents = s->documents,
	                             .host_starts = s->starts,
	                             .ld_q = p.ld,
	                             .ld_k = p.ld,
	                             .ld_v = p.ld,
	                             .ld_o = p.ld_o,
	                             .type = DTYPE_BF16};
	char *qkv, *o;
	float *lse;
	int r;

	struct device_shapes need = {.tokens = p.tokens,
	                             .max_sequence = p.tokens,
	                             .heads = s->heads,
	                             .kv_heads = s->kv_heads,
	                             .head_dim = s->head_dim,
	                             .type = DTYPE_BF16,
	                             .ld_qkv = p.ld,
	                             .ld_o = p.ld_o};

	setenv("SIMT_CUDNN", _i ? "fails" : "none", 1);
	dev = open_device(1);
	ck_assert(device_scratch_bytes(dev, &need) < 64 << 20);
	qkv = test_buffer(dev, p.qkv, p.tokens * p.ld, DTYPE_BF16);
	o = test_buffer(dev, p.o, p.tokens * p.ld_o, DTYPE_BF16);
	lse = test_buffer(dev, p.lse, p.tokens * s->heads, DTYPE_F32);
	a.starts = test_put(dev, s->starts, sizeof(s->starts));
	for (int again = 0; again < 2; again++)
		device_attention_forward(dev, &a, o, lse, qkv, qkv + s->heads * s->head_dim * 2,
		                         qkv + (s->heads + s->kv_heads) * s->head_dim * 2);
	r = device_synchronize(dev, &err);
	ck_assert_int_eq(r, fails ? -EIO : 0);
	ck_assert_int_eq(cudnn_count(), before);
	if (r < 0) {
		ck_assert_msg(strstr(err.message, "told to fail") != NULL &&
		                  strstr(err.message, "train.attention = \"own\"") != NULL,
		              "%s", err.message);
	} else {
		reference(&p);
		test_close(dev, "o", o, p.o, p.tokens * p.ld_o, DTYPE_BF16, 1e-2, 1);
	}
	device_free(dev, qkv);
	device_free(dev, o);
	device_free(dev, lse);
	device_free(dev, (void *)a.starts);
	device_destroy(dev);
	unsetenv("SIMT_CUDNN");
	problem_free(&p);
}
END_TEST

/* One micro-batch of `documents` whole rows of `rows` tokens through both passes, into out[2]. */
static void whole_rows(struct device *dev, int documents, int rows, uint16_t *out)
{
	enum { LD = 3 * 64 };
	int64_t tokens = (int64_t)documents * rows, n = tokens * LD;
	double *some = test_values(n, 7);
	int32_t *starts = calloc((size_t)documents + 1, sizeof(*starts));
	char *qkv = test_buffer(dev, some, n, DTYPE_BF16), *d_qkv = test_buffer(dev, some, n, DTYPE_BF16);
	char *o = test_buffer(dev, some, tokens * 64, DTYPE_BF16);
	float *lse = test_buffer(dev, some, tokens, DTYPE_F32);
	struct device_attention a = {.tokens = tokens,
	                             .heads = 1,
	                             .kv_heads = 1,
	                             .head_dim = 64,
	                             .scale = 0.125,
	                             .documents = documents,
	                             .host_starts = starts,
	                             .ld_q = LD,
	                             .ld_k = LD,
	                             .ld_v = LD,
	                             .ld_o = 64,
	                             .type = DTYPE_BF16};

	for (int d = 0; d <= documents; d++)
		starts[d] = d * rows;
	a.starts = test_put(dev, starts, ((size_t)documents + 1) * sizeof(*starts));
	device_attention_forward(dev, &a, o, lse, qkv, qkv + 128, qkv + 256);
	device_attention_backward(dev, &a, d_qkv, d_qkv + 128, d_qkv + 256, o, o, lse, qkv, qkv + 128,
	                          qkv + 256);
	test_fetch(dev, out, o, (size_t)tokens * 128);
	test_fetch(dev, out + tokens * 64, d_qkv, (size_t)n * 2);
	device_free(dev, qkv);
	device_free(dev, d_qkv);
	device_free(dev, o);
	device_free(dev, lse);
	device_free(dev, (void *)a.starts);
	free(starts);
	free(some);
}

/* The choice of kernels for a call, and its bits, do not depend on earlier calls: a resumed run has made
 * other calls than one that was not interrupted. */
START_TEST(history_does_not_matter)
{
	enum { ROWS = 16, MOST = 64 };
	struct device_shapes need = {.tokens = ROWS * MOST,
	                             .max_sequence = ROWS,
	                             .heads = 1,
	                             .kv_heads = 1,
	                             .head_dim = 64,
	                             .type = DTYPE_BF16};
	size_t size = (size_t)ROWS * MOST * 64 * 4;
	uint16_t *used = calloc(size, 2), *fresh = calloc(size, 2);
	struct device *dev = open_device(1);

	ck_assert(device_scratch_bytes(dev, &need) < 64 << 20);
	for (int documents = 1; documents <= MOST; documents++) {
		int before = cudnn_count();

		whole_rows(dev, documents, ROWS, used);
		ck_assert_msg(cudnn_count() - before == 2, "%d documents: %d passes by cuDNN", documents,
		              cudnn_count() - before);
		if (documents % 21)
			continue;
		struct device *other = open_device(1);

		ck_assert(device_scratch_bytes(other, &need) < 64 << 20);
		whole_rows(other, documents, ROWS, fresh);
		ck_assert_msg(!memcmp(used, fresh, size * 2), "%d documents", documents);
		device_destroy(other);
	}
	device_destroy(dev);
	free(used);
	free(fresh);
}
END_TEST
#endif

static Suite *suite_make(void)
{
	Suite *suite = suite_create("device attention");
	TCase *tc = tcase_create("cpu");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, reference_agrees_with_differences);
	tcase_add_test(tc, attention);
	tcase_add_loop_test(tc, gradients_overflow, 0, (int)COUNT(overflowing));
#ifdef TEST_ENGINE_SIMT
	tcase_add_loop_test(tc, cudnn_that_cannot, 0, 2);
	if (chosen() == DEVICE_ATTENTION_CUDNN)
		tcase_add_test(tc, history_does_not_matter);
#endif
	if (COUNT(test_threads) > 1)
		tcase_add_test(tc, threads_do_not_matter);
	suite_add_tcase(suite, tc);
	return suite;
}

#ifdef TEST_GPU
int main(void)
{
	int r;

	if (getenv("TEST_ATTENTION"))
		return test_run_each(suite_make);
	for (size_t i = 0; i < COUNT(choices); i++) {
		setenv("TEST_ATTENTION", choices[i], 1);
		r = test_run_each(suite_make);
		/* Without a GPU all is skipped; without cuDNN only the cases with cuDNN. */
		if (r && !(i > 0 && r == 77))
			return r;
	}
	return EXIT_SUCCESS;
}
#else
int main(void)
{
	return test_run_each(suite_make);
}
#endif
