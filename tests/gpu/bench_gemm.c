/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gemm CONFIG_JSON TOKENS [CHUNK [SECONDS]]: times every matrix product of a training step in bf16 with
 * the algorithm that the library suggests first for it, and with the one that the engine chooses by
 * measurement. CHUNK: rows of logits at a time; SECONDS: how long each is timed. Prints one line for each
 * product, and the time that a step gains with the chosen algorithms.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"

enum { PATTERN = 1 << 20 };

struct product {
	const char *name;
	bool transpose_a, transpose_b;
	int64_t m, n, k;
	enum dtype c_type;
	double times; /* in a step */
};

struct bench {
	struct device *dev;
	void *a, *b, *c;
	double seconds;
};

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Random numbers, since zeros take less power and run faster. */
static int fill(struct device *dev, void *p, int64_t bytes, struct error *err)
{
	_cleanup_free_ uint16_t *pattern = malloc(PATTERN * sizeof(*pattern));
	int64_t size = PATTERN * (int64_t)sizeof(*pattern);
	uint64_t state = 1;
	int r = 0;

	if (!pattern)
		return error_oom(err);
	for (int i = 0; i < PATTERN; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		pattern[i] = bf16_from_float((float)(int32_t)(state >> 32) * 0x1p-31f);
	}
	for (int64_t at = 0; at < bytes && r == 0; at += size)
		r = device_write(dev, (char *)p + at, pattern,
		                 (size_t)(bytes - at < size ? bytes - at : size), err);
	return r;
}

static struct device_gemm operands(const struct bench *b, const struct product *p)
{
	return (struct device_gemm){.transpose_a = p->transpose_a,
	                            .transpose_b = p->transpose_b,
	                            .m = p->m,
	                            .n = p->n,
	                            .k = p->k,
	                            .alpha = 1,
	                            .a = b->a,
	                            .b = b->b,
	                            .c = b->c,
	                            .lda = p->transpose_a ? p->m : p->k,
	                            .ldb = p->transpose_b ? p->k : p->n,
	                            .ldc = p->n,
	                            .ab_type = DTYPE_BF16,
	                            .c_type = p->c_type};
}

/* Seconds of one product, the median of three; a negative errno where the device refuses it. */
static int measure(struct bench *b, const struct product *p, double *seconds, struct error *err)
{
	struct device_gemm g = operands(b, p);
	double each[3], begun;
	int runs = 1, r;

	for (int i = 0; i < 2; i++) { /* the first prepares the product */
		begun = clock_monotonic();
		device_gemm(b->dev, &g);
		if ((r = device_synchronize(b->dev, err)) < 0)
			return r;
		runs = (int)(b->seconds / 3 / (clock_monotonic() - begun));
	}
	runs = MAX(MIN(runs, 1000), 1);
	for (int i = 0; i < 3; i++) {
		begun = clock_monotonic();
		for (int j = 0; j < runs; j++)
			device_gemm(b->dev, &g);
		if ((r = device_synchronize(b->dev, err)) < 0)
			return r;
		each[i] = (clock_monotonic() - begun) / runs;
	}
	*seconds = MAX(MIN(each[0], each[1]), MIN(MAX(each[0], each[1]), each[2]));
	return 0;
}

/* With the library's first suggestion, and with what the engine chooses. */
static int compare(struct bench *b, const struct product *p, double *first, double *chosen, struct error *err)
{
	struct device_gemm_choice choice = {.separate = false};
	struct device_gemm g = operands(b, p);
	int r;

	device_gemm_shape(&g, &choice.shape);
	if ((r = device_gemm_use(b->dev, NULL, 0, err)) < 0 || (r = measure(b, p, first, err)) < 0 ||
	    (r = device_gemm_measure(b->dev, &choice, 1, err)) < 0 ||
	    (r = device_gemm_use(b->dev, &choice, 1, err)) < 0)
		return r;
	return measure(b, p, chosen, err);
}

/* The products with weights [out, in] of a layer or the head, `times` in each step, over `tokens` rows. */
static int weights(struct bench *b, const char *name, int64_t tokens, int64_t out, int64_t in, double times,
                   double *guessed, double *fastest, struct error *err)
{
	const struct product products[] = {
	    {"forward", false, true, tokens, out, in, DTYPE_BF16, times},
	    {"input's gradient", false, false, tokens, in, out, DTYPE_BF16, times},
	    {"weights' gradient", true, false, out, in, tokens, DTYPE_F32, times},
	};

	for (size_t i = 0; i < ARRAY_SIZE(products); i++) {
		const struct product *p = &products[i];
		double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k, first, chosen;
		int r = compare(b, p, &first, &chosen, err);

		if (r < 0)
			return r;
		printf("%s, %s, %lld x %lld x %lld: %.0f TFLOP/s, chosen by measurement %.0f, %.2f of the "
		       "time\n",
		       name, p->name, (long long)p->m, (long long)p->n, (long long)p->k,
		       flops / first * 1e-12, flops / chosen * 1e-12, chosen / first);
		fflush(stdout);
		*guessed += p->times * first;
		*fastest += p->times * chosen;
	}
	return 0;
}

static int all(struct bench *b, const struct model_config *c, int64_t tokens, int64_t chunk,
               struct error *err)
{
	int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
	double guessed = 0, fastest = 0, layers = c->layers;
	int r;

	if ((r = weights(b, "qkv", tokens, q + 2 * kv, c->hidden, layers, &guessed, &fastest, err)) < 0 ||
	    (r = weights(b, "o", tokens, c->hidden, q, layers, &guessed, &fastest, err)) < 0 ||
	    (r = weights(b, "gate and up", tokens, 2 * (int64_t)c->intermediate, c->hidden, layers, &guessed,
	                 &fastest, err)) < 0 ||
	    (r = weights(b, "down", tokens, c->hidden, c->intermediate, layers, &guessed, &fastest, err)) <
	        0 ||
	    (r = weights(b, "head", chunk, c->vocab, c->hidden, (double)tokens / (double)chunk, &guessed,
	                 &fastest, err)) < 0)
		return r;
	printf("all products of a step: %.2f ms; as chosen by measurement %.2f ms, %.3f of it\n",
	       guessed * 1e3, fastest * 1e3, fastest / guessed);
	return 0;
}

static int run(char **argv, struct error *err)
{
	int64_t tokens = atoll(argv[2]), chunk = argv[3] ? atoll(argv[3]) : tokens, wide, rows, vocab;
	struct bench b = {.seconds = argv[3] && argv[4] ? atof(argv[4]) : 0.03};
	struct device_shapes shapes;
	struct model_config c;
	int r = model_config_read(argv[1], &c, err);

	if (r < 0)
		return r;
	vocab = c.vocab;
	wide = larger(larger(2 * (int64_t)c.intermediate, c.hidden),
	              (int64_t)(c.heads + 2 * c.kv_heads) * c.head_dim);
	rows = larger(tokens * wide, larger(chunk * vocab, wide * wide));
	shapes = (struct device_shapes){.tokens = tokens,
	                                .max_sequence = tokens,
	                                .hidden = c.hidden,
	                                .intermediate = c.intermediate,
	                                .heads = c.heads,
	                                .kv_heads = c.kv_heads,
	                                .head_dim = c.head_dim,
	                                .vocab = vocab,
	                                .logits_rows = chunk,
	                                .type = DTYPE_BF16};
	if ((r = device_create(NULL, &b.dev, err)) < 0 ||
	    (r = device_reserve_scratch(b.dev, device_scratch_bytes(b.dev, &shapes), err)) < 0)
		return r;
	rows = larger(rows, vocab * c.hidden);
	if ((r = device_alloc(b.dev, (size_t)rows * 2, &b.a, err)) < 0 ||
	    (r = device_alloc(b.dev, (size_t)rows * 2, &b.b, err)) < 0 ||
	    (r = device_alloc(b.dev, (size_t)rows * 4, &b.c, err)) < 0 ||
	    (r = fill(b.dev, b.a, rows * 2, err)) < 0 || (r = fill(b.dev, b.b, rows * 2, err)) < 0 ||
	    (r = device_synchronize(b.dev, err)) < 0)
		return r;
	printf("%s\n", device_describe(b.dev));
	r = all(&b, &c, tokens, chunk, err);
	device_free(b.dev, b.a);
	device_free(b.dev, b.b);
	device_free(b.dev, b.c);
	device_destroy(b.dev);
	return r;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (argc < 3 || atoll(argv[2]) < 1) {
		fprintf(stderr, "usage: bench_gemm CONFIG_JSON TOKENS [CHUNK [SECONDS]]\n");
		return 2;
	}
	if (run(argv, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	return 0;
}
