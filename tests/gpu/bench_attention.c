/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_attention [SHAPE [AGAIN]]: compares the attention kernels of the engine with those of cuDNN on one
 * GPU, and the portable ones with Hopper's, and where neither computes a shape, with the plain ones in fp32:
 * time forward and backward, whether the results agree, whether each gives the same bits again, and whether
 * "auto" chooses the faster. SHAPE: those shapes alone whose name
 * begins so. AGAIN: so many times the backward pass of Hopper's kernels, or of the portable ones where there
 * are none, has to give the same bits; once by default, as all others. Prints one line and one JSON object
 * for each shape, and a summary; exit status 1 where they disagree, or no shape has that name, 77 without a
 * GPU.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/device/cuda/attention/cudnn_attention.h"

struct shape {
	const char *name;
	int heads, kv_heads, head_dim, window;
	int32_t tokens, lengths[12]; /* of documents, again and again until there are `tokens`; 0 ends them */
	struct {
		bool fp16;       /* rather than bf16 */
		float cap;       /* of scores, 0: none */
		int expected[2]; /* TFLOP/s of our own on an H200, predicted; 0: not */
	} kind;                  /* {0}: bf16 */
};

#ifdef TEST_ENGINE_SIMT
#define ROUNDS 1
static const struct shape shapes[] = {
    {"d=64 T=128", 2, 1, 64, 0, 256, {128}, {0}},
    {"d=64 packed", 2, 1, 64, 0, 200, {37, 64, 99}, {0}},
    {"d=128 window", 2, 2, 128, 33, 128, {128}, {0}},
    {"d=64 fp16", 2, 1, 64, 0, 128, {128}, {true, 0, {1, 1}}},
    {"d=256 capped", 2, 1, 256, 0, 128, {37, 64}, {false, 50, {0}}},
    {"d=96 capped", 2, 1, 96, 0, 128, {37, 64}, {false, 50, {0}}},
};
#else
#define ROUNDS 10
static const struct shape shapes[] = {
    {"d=64 T=1024", 32, 8, 64, 0, 16384, {1024}, {0}},
    {"d=64 T=4096", 32, 8, 64, 0, 16384, {4096}, {0}},
    {"d=64 T=8192", 32, 8, 64, 0, 16384, {8192}, {0}},
    {"d=128 T=1024", 32, 8, 128, 0, 16384, {1024}, {0}},
    {"d=128 T=4096", 32, 8, 128, 0, 16384, {4096}, {0}},
    {"d=128 T=8192", 32, 8, 128, 0, 16384, {8192}, {0}},
    {"d=128 T=4096 x1", 32, 8, 128, 0, 4096, {4096}, {0}},
    {"d=128 T=8192 x1", 32, 8, 128, 0, 8192, {8192}, {0}},
    {"d=64 packed x1", 32, 8, 64, 0, 8192, {900, 4096, 1700, 700, 796}, {0}},
    {"d=96 T=4096", 32, 32, 96, 0, 8192, {4096}, {0}},
    {"d=128 T=8192 w=1024", 32, 8, 128, 1024, 16384, {8192}, {0}},
    {"d=64 packed long", 32, 8, 64, 0, 16384, {900, 4096, 1700, 700, 2600, 1301, 3000, 2087}, {0}},
    {"d=64 packed short", 32, 8, 64, 0, 16384, {90, 410, 170, 70, 1260, 131, 300, 208, 512, 37}, {0}},
    {"d=128 packed long", 32, 8, 128, 0, 16384, {900, 4096, 1700, 700, 2600, 1301, 3000, 2087}, {0}},
    {"d=64 T=4096 fp16", 32, 8, 64, 0, 8192, {4096}, {true, 0, {270, 150}}},
    {"d=128 T=4096 fp16", 32, 8, 128, 0, 8192, {4096}, {true, 0, {280, 180}}},
    {"d=64 T=4096 capped", 32, 8, 64, 0, 8192, {4096}, {false, 50, {0}}},
    {"d=96 T=4096 capped", 32, 32, 96, 0, 8192, {4096}, {false, 50, {0}}},
    {"d=128 T=4096 capped", 32, 8, 128, 0, 8192, {4096}, {false, 50, {150, 130}}},
    {"d=256 T=4096", 8, 4, 256, 0, 8192, {4096}, {false, 0, {200, 110}}},
    {"d=256 T=4096 fp16", 8, 4, 256, 0, 8192, {4096}, {true, 0, {200, 110}}},
    {"d=256 T=4096 capped", 8, 4, 256, 0, 8192, {4096}, {false, 50, {160, 95}}},
    {"d=256 w=1024 fp16 capped", 8, 4, 256, 1024, 8192, {8192}, {true, 50, {140, 85}}},
};
#endif

enum { OWN, CUDNN, HOPPER, SIDES };
enum { FORWARD = DEVICE_ATTENTION_FORWARD, BACKWARD = DEVICE_ATTENTION_BACKWARD, PASSES };
static const char *const pass_names[PASSES] = {"forward", "backward"};

struct bench {
	int again;
	struct device *dev[SIDES];
	const struct shape *s;
	struct device_attention a;
	int64_t ld, ld_o;
	double pairs; /* of queries and keys that they see */
	int32_t *host_starts;
	void *qkv, *d_o, *starts, *o[SIDES], *d_qkv[SIDES], *lse[SIDES];
};

struct tally {
	int passes, right, slower, wrong, unsteady;
	double worst;
};

static void stop(const struct error *err)
{
	fprintf(stderr, "error: %s\n", err->message);
	exit(EXIT_FAILURE);
}

static void *on_device(struct bench *b, size_t bytes)
{
	struct error err = ERROR_INIT;
	void *p = NULL;

	if (device_alloc(b->dev[OWN], bytes, &p, &err) < 0)
		stop(&err);
	return p;
}

static void *noise(struct bench *b, int64_t n, uint64_t state)
{
	void *p = on_device(b, (size_t)n * 2);
	_cleanup_free_ uint16_t *host = malloc((size_t)n * 2);
	struct error err = ERROR_INIT;

	if (!host)
		exit(EXIT_FAILURE);
	for (int64_t i = 0; i < n; i++) {
		double sum = 0;

		for (int j = 0; j < 4; j++) {
			state = state * 6364136223846793005ull + 1442695040888963407ull;
			sum += (double)(state >> 40) / (1 << 24) - 0.5;
		}
		host[i] = b->s->kind.fp16 ? f16_from_float((float)(sum * 1.7))
		                          : bf16_from_float((float)(sum * 1.7));
	}
	if (device_write(b->dev[OWN], p, host, (size_t)n * 2, &err) < 0 ||
	    device_synchronize(b->dev[OWN], &err) < 0)
		stop(&err);
	return p;
}

static enum dtype type_of(const struct shape *s)
{
	return s->kind.fp16 ? DTYPE_F16 : DTYPE_BF16;
}

static double seen(int64_t rows, int64_t window)
{
	int64_t w = window > 0 && window < rows ? window : rows;

	return (double)w * (double)(w + 1) / 2 + (double)(rows - w) * (double)w;
}

static void cut(struct bench *b)
{
	const struct shape *s = b->s;
	int n = 0;

	b->host_starts = calloc((size_t)s->tokens + 1, sizeof(*b->host_starts));
	if (!b->host_starts)
		exit(EXIT_FAILURE);
	for (int i = 0; b->host_starts[n] < s->tokens; i = i + 1 < 12 && s->lengths[i + 1] ? i + 1 : 0) {
		int32_t end = MIN(b->host_starts[n] + s->lengths[i], s->tokens);

		b->pairs += seen(end - b->host_starts[n], s->window);
		b->host_starts[++n] = end;
	}
	b->a.documents = n;
}

static void prepare(struct bench *b)
{
	const struct shape *s = b->s;
	struct error err = ERROR_INIT;
	size_t starts;

	cut(b);
	b->ld = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
	b->ld_o = (int64_t)s->heads * s->head_dim;
	b->qkv = noise(b, s->tokens * b->ld, 1);
	b->d_o = noise(b, s->tokens * b->ld_o, 2);
	for (int side = 0; side < SIDES; side++) {
		b->o[side] = on_device(b, (size_t)(s->tokens * b->ld_o) * 2);
		b->d_qkv[side] = on_device(b, (size_t)(s->tokens * b->ld) * 2);
		b->lse[side] = on_device(b, (size_t)s->tokens * (size_t)s->heads * sizeof(float));
	}
	starts = (size_t)(b->a.documents + 1) * sizeof(*b->host_starts);
	b->starts = on_device(b, starts);
	if (device_write(b->dev[OWN], b->starts, b->host_starts, starts, &err) < 0 ||
	    device_synchronize(b->dev[OWN], &err) < 0)
		stop(&err);
	b->a = (struct device_attention){.tokens = s->tokens,
	                                 .heads = s->heads,
	                                 .kv_heads = s->kv_heads,
	                                 .head_dim = s->head_dim,
	                                 .scale = (float)(1 / sqrt(s->head_dim)),
	                                 .window = s->window,
	                                 .documents = b->a.documents,
	                                 .starts = b->starts,
	                                 .host_starts = b->host_starts,
	                                 .ld_q = b->ld,
	                                 .ld_k = b->ld,
	                                 .ld_v = b->ld,
	                                 .ld_o = b->ld_o,
	                                 .cap = s->kind.cap,
	                                 .type = type_of(s)};
}

static void release(struct bench *b)
{
	device_free(b->dev[OWN], b->qkv);
	device_free(b->dev[OWN], b->d_o);
	device_free(b->dev[OWN], b->starts);
	for (int side = 0; side < SIDES; side++) {
		device_free(b->dev[OWN], b->o[side]);
		device_free(b->dev[OWN], b->d_qkv[side]);
		device_free(b->dev[OWN], b->lse[side]);
	}
	free(b->host_starts);
}

static void run(struct bench *b, int side, int pass)
{
	size_t k = (size_t)b->ld_o * 2, v = k + (size_t)b->a.kv_heads * (size_t)b->a.head_dim * 2;
	char *qkv = b->qkv, *d_qkv = b->d_qkv[side];

	if (pass == FORWARD)
		device_attention_forward(b->dev[side], &b->a, b->o[side], b->lse[side], qkv, qkv + k,
		                         qkv + v);
	else
		device_attention_backward(b->dev[side], &b->a, d_qkv, d_qkv + k, d_qkv + v, b->d_o,
		                          b->o[side], b->lse[side], qkv, qkv + k, qkv + v);
}

/* Seconds of one pass. */
static double measure(struct bench *b, int side, int pass)
{
	struct error err = ERROR_INIT;
	double from;

	run(b, side, pass);
	if (device_synchronize(b->dev[side], &err) < 0)
		stop(&err);
	from = clock_monotonic();
	for (int i = 0; i < ROUNDS; i++)
		run(b, side, pass);
	if (device_synchronize(b->dev[side], &err) < 0)
		stop(&err);
	return (clock_monotonic() - from) / ROUNDS;
}

static uint16_t *fetch(struct bench *b, int side, int pass)
{
	int64_t n = b->a.tokens * (pass == FORWARD ? b->ld_o : b->ld);
	uint16_t *host = malloc((size_t)n * 2);
	struct error err = ERROR_INIT;

	if (!host)
		exit(EXIT_FAILURE);
	if (device_read(b->dev[side], host, pass == FORWARD ? b->o[side] : b->d_qkv[side], (size_t)n * 2,
	                &err) < 0)
		stop(&err);
	return host;
}

/* The largest difference of two elements, relative to their size and to the root of the mean square. */
static double difference(const struct bench *b, const uint16_t *x, const uint16_t *y, int64_t n)
{
	float (*wide)(uint16_t) = b->s->kind.fp16 ? f16_to_float : bf16_to_float;
	double most = 0, square = 0;

	for (int64_t i = 0; i < n; i++)
		square += pow(wide(x[i]), 2);
	square = sqrt(square / (double)n) + 1e-30;
	for (int64_t i = 0; i < n; i++) {
		double a = wide(x[i]), c = wide(y[i]), d = fabs(a - c) / (fabs(a) + square);

		if (!(d <= most)) /* a NaN, too */
			most = d;
	}
	return most;
}

/* The largest difference from what the plain kernels compute of the same operands in fp32. */
static double difference_from_plain(struct bench *b, int pass, const uint16_t *result)
{
	int64_t nq = b->a.tokens * b->ld, no = b->a.tokens * b->ld_o, n = pass == FORWARD ? no : nq;
	float *qkv = on_device(b, (size_t)nq * 4), *d_qkv = on_device(b, (size_t)nq * 4);
	float *o = on_device(b, (size_t)no * 4), *d_o = on_device(b, (size_t)no * 4);
	float *lse = on_device(b, (size_t)b->a.tokens * (size_t)b->a.heads * 4);
	void *rounded = on_device(b, (size_t)n * 2);
	_cleanup_free_ uint16_t *host = malloc((size_t)n * 2);
	int64_t k = b->ld_o, v = k + (int64_t)b->a.kv_heads * b->a.head_dim;
	struct device_attention a = b->a;
	struct device *dev = b->dev[OWN];
	struct error err = ERROR_INIT;

	if (!host)
		exit(EXIT_FAILURE);
	a.type = DTYPE_F32;
	device_cast(dev, qkv, DTYPE_F32, b->qkv, type_of(b->s), nq);
	device_attention_forward(dev, &a, o, lse, qkv, qkv + k, qkv + v);
	if (pass == BACKWARD) {
		device_cast(dev, d_o, DTYPE_F32, b->d_o, type_of(b->s), no);
		device_attention_backward(dev, &a, d_qkv, d_qkv + k, d_qkv + v, d_o, o, lse, qkv, qkv + k,
		                          qkv + v);
	}
	device_cast(dev, rounded, type_of(b->s), pass == FORWARD ? o : d_qkv, DTYPE_F32, n);
	if (device_read(dev, host, rounded, (size_t)n * 2, &err) < 0)
		stop(&err);
	device_free(dev, qkv);
	device_free(dev, d_qkv);
	device_free(dev, o);
	device_free(dev, d_o);
	device_free(dev, lse);
	device_free(dev, rounded);
	return difference(b, host, result, n);
}

static bool has_hopper(const struct bench *b, enum device_attention_pass pass)
{
	const struct shape *s = b->s;
	struct device_attention_shape shape = {.tokens = s->tokens,
	                                       .rows = s->lengths[0],
	                                       .heads = s->heads,
	                                       .kv_heads = s->kv_heads,
	                                       .head_dim = s->head_dim,
	                                       .window = s->window,
	                                       .type = type_of(s),
	                                       .pass = pass};

	return s->kind.cap <= 0 && device_attention_has_hopper(b->dev[HOPPER], &shape);
}

static void bench_pass(struct bench *b, int pass, struct tally *t)
{
	int64_t n = b->a.tokens * (pass == FORWARD ? b->ld_o : b->ld);
	double flops = 4.0 * b->a.head_dim * b->a.heads * b->pairs * (pass == FORWARD ? 1 : 2.5);
	bool taken = b->s->kind.cap <= 0 && attention_cudnn_takes(b->dev[CUDNN], &b->a, pass == BACKWARD),
	     is_auto, same = true;
	const bool takes[SIDES] = {true, taken, has_hopper(b, (enum device_attention_pass)pass)};
	double seconds[SIDES] = {0}, apart = 0, hopper_apart = 0, plain_apart = 0;
	uint16_t *result[SIDES] = {NULL};

	for (int side = OWN; side < SIDES; side++) {
		bool often = pass == BACKWARD && side == (takes[HOPPER] ? HOPPER : OWN);

		if (!takes[side])
			continue;
		seconds[side] = measure(b, side, pass);
		result[side] = fetch(b, side, pass);
		for (int i = 0; i < (often ? b->again : 1); i++) {
			_cleanup_free_ uint16_t *again = NULL;

			run(b, side, pass);
			again = fetch(b, side, pass);
			same = same && !memcmp(result[side], again, (size_t)n * 2);
		}
	}
	if (taken)
		apart = difference(b, result[OWN], result[CUDNN], n);
	else
		run(b, CUDNN, pass); /* what the backward then needs */
	if (takes[HOPPER])
		hopper_apart = difference(b, result[OWN], result[HOPPER], n);
	if (!taken && !takes[HOPPER])
		plain_apart = difference_from_plain(b, pass, result[OWN]);
	is_auto = taken && attention_cudnn_by_auto(b->dev[CUDNN], &b->a);
	t->passes += taken;
	t->right += taken && is_auto == (seconds[CUDNN] < seconds[OWN]);
	t->slower += taken && seconds[CUDNN] > seconds[OWN];
	t->wrong += (taken && !(apart < 0.1)) + !(hopper_apart < 0.1) + !(plain_apart < 0.1);
	t->unsteady += !same;
	t->worst = fmax(t->worst, fmax(plain_apart, fmax(apart, hopper_apart)));
	printf("%-20s %-8s own %6.1f TFLOP/s", b->s->name, pass_names[pass], flops / seconds[OWN] * 1e-12);
	if (b->s->kind.expected[pass])
		printf(" (%d predicted for an H200)", b->s->kind.expected[pass]);
	if (taken)
		printf(", cuDNN %6.1f, auto takes %s, apart %.3f", flops / seconds[CUDNN] * 1e-12,
		       is_auto ? "cuDNN" : "our own", apart);
	else
		printf(", cuDNN has none");
	if (takes[HOPPER])
		printf(", Hopper's %6.1f, apart %.3f", flops / seconds[HOPPER] * 1e-12, hopper_apart);
	if (!taken && !takes[HOPPER])
		printf(", apart from fp32 %.4f", plain_apart);
	printf("%s\n", same ? "" : ", NOT THE SAME BITS AGAIN");
	printf("{\"shape\":\"%s\",\"pass\":\"%s\",\"own_ms\":%.4f,\"own_tflops\":%.1f", b->s->name,
	       pass_names[pass], seconds[OWN] * 1e3, flops / seconds[OWN] * 1e-12);
	if (taken)
		printf(",\"cudnn_ms\":%.4f,\"cudnn_tflops\":%.1f,\"apart\":%.4f", seconds[CUDNN] * 1e3,
		       flops / seconds[CUDNN] * 1e-12, apart);
	if (takes[HOPPER])
		printf(",\"hopper_ms\":%.4f,\"hopper_tflops\":%.1f,\"hopper_apart\":%.4f",
		       seconds[HOPPER] * 1e3, flops / seconds[HOPPER] * 1e-12, hopper_apart);
	if (!taken && !takes[HOPPER])
		printf(",\"plain_apart\":%.4f", plain_apart);
	printf(",\"auto\":\"%s\",\"same_bits\":%s}\n", is_auto ? "cudnn" : "own", same ? "true" : "false");
	fflush(stdout);
	free(result[OWN]);
	free(result[CUDNN]);
	free(result[HOPPER]);
}

static int open_devices(struct device **dev, struct error *err)
{
	static const enum device_attention_choice choices[SIDES] = {
	    DEVICE_ATTENTION_OWN, DEVICE_ATTENTION_CUDNN, DEVICE_ATTENTION_OWN};
	int r = device_create(&(struct device_options){.attention = choices[OWN]}, &dev[OWN], err);

	if (r < 0)
		return r;
	r = device_create(&(struct device_options){.attention = choices[HOPPER]}, &dev[HOPPER], err);
	if (r < 0)
		return r;
	for (int pass = 0; pass < PASSES; pass++)
		device_attention_use_hopper(dev[HOPPER], (enum device_attention_pass)pass, true);
	r = device_create(&(struct device_options){.attention = choices[CUDNN]}, &dev[CUDNN], err);
	if (r < 0) {
		printf("without cuDNN: %s\n", err->message);
		r = device_create(&(struct device_options){.attention = choices[OWN]}, &dev[CUDNN], err);
	}
	return r;
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";
	int again = argc > 2 ? atoi(argv[2]) : 1, shown = 0;
	struct device *dev[SIDES] = {NULL};
	struct error err = ERROR_INIT;
	struct tally t = {0};
	int r = open_devices(dev, &err);

	if (r < 0) {
		printf("skipped: %s\n", err.message);
		return r == -ENODEV || r == -ENOENT || r == -ELIBBAD ? 77 : EXIT_FAILURE;
	}
	printf("%s\n", device_describe(dev[CUDNN]));
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		const struct shape *s = &shapes[i];
		struct device_shapes need = {.tokens = s->tokens,
		                             .windowed = s->window > 0,
		                             .hidden = s->heads * s->head_dim,
		                             .heads = s->heads,
		                             .kv_heads = s->kv_heads,
		                             .head_dim = s->head_dim,
		                             .capped = s->kind.cap > 0,
		                             .type = type_of(s)};
		struct bench b = {.again = again, .dev = {dev[OWN], dev[CUDNN], dev[HOPPER]}, .s = s};

		if (strncmp(s->name, only, strlen(only)) != 0)
			continue;
		shown++;

		for (size_t l = 0; l < ARRAY_SIZE(s->lengths); l++)
			need.max_sequence = MAX(need.max_sequence, s->lengths[l]);
		for (int side = 0; side < SIDES; side++)
			if (device_reserve_scratch(dev[side], device_scratch_bytes(dev[side], &need), &err) <
			    0)
				stop(&err);
		prepare(&b);
		for (int pass = 0; pass < PASSES; pass++)
			bench_pass(&b, pass, &t);
		release(&b);
	}
	if (shown == 0)
		stop(&(struct error){.message = "no shape has a name that begins so"});
	printf("cuDNN took %d of %d passes, slower than our own in %d; auto chose the faster in %d; worst "
	       "difference %.3f%s%s\n",
	       t.passes, shown * PASSES, t.slower, t.right, t.worst, t.wrong ? ": TOO MUCH" : "",
	       t.unsteady ? "; NOT THE SAME BITS AGAIN" : "");
	device_destroy(dev[OWN]);
	device_destroy(dev[CUDNN]);
	device_destroy(dev[HOPPER]);
	return t.wrong || t.unsteady ? EXIT_FAILURE : EXIT_SUCCESS;
}
