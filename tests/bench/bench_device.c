/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times every operation of device.h at the training shapes of the 26M-parameter Llama (hidden 512, 8 layers,
 * 8 heads, 2 kv heads of 64, intermediate 1408, vocab 6400, 4 documents of 512 tokens), and puts them
 * together to a step. Usage: bench_device [THREADS], with OPENBLAS_CORETYPE unset. With one thread the clock
 * is the CPU time of the thread, so that other load on the machine has little influence.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/device/device.h"

enum {
	T = 2048,
	H = 512,
	I = 1408,
	V = 6400,
	L = 8,
	HEADS = 8,
	KV = 2,
	HD = 64,
	QKV = (HEADS + 2 * KV) * HD,
	CHUNK = 512
};

static struct device *dev;
static int threads;

static double now(void)
{
	struct timespec t;

	clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The best of some runs, in seconds. */
#define BEST(call)                                                                                           \
	({                                                                                                   \
		double best_ = 1e9, start_ = now();                                                          \
		for (int i_ = 0; i_ < 40 && (i_ < 4 || now() - start_ < 0.3); i_++) {                        \
			double t_ = now();                                                                   \
			call;                                                                                \
			t_ = now() - t_;                                                                     \
			best_ = t_ < best_ ? t_ : best_;                                                     \
		}                                                                                            \
		best_;                                                                                       \
	})

static void *buffer(int64_t n, enum dtype type, float scale)
{
	struct error err = ERROR_INIT;
	uint32_t state = 1;
	void *p;

	if (device_alloc(dev, (size_t)n * dtype_size(type), &p, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		exit(1);
	}
	for (int64_t i = 0; i < n; i++) {
		float f;

		state = state * 1664525u + 1013904223u;
		f = ((float)(state >> 8) / (1 << 24) - 0.5f) * scale;
		if (type == DTYPE_F32)
			((float *)p)[i] = f;
		else
			((uint16_t *)p)[i] = bf16_from_float(f);
	}
	return p;
}

static double gemm_rate, step_gemm, step_other;

static double gemm(const char *name, enum dtype type, enum dtype c_type, bool ta, bool tb, int64_t m,
                   int64_t n, int64_t k, float beta, int times)
{
	void *a = buffer(m * k, type, 1), *b = buffer(n * k, type, 1), *c = buffer(m * n, c_type, 1);
	struct device_gemm g = {.transpose_a = ta,
	                        .transpose_b = tb,
	                        .m = m,
	                        .n = n,
	                        .k = k,
	                        .alpha = 1,
	                        .beta = beta,
	                        .a = a,
	                        .b = b,
	                        .c = c,
	                        .lda = ta ? m : k,
	                        .ldb = tb ? k : n,
	                        .ldc = n,
	                        .ab_type = type,
	                        .c_type = c_type};
	double t = BEST(device_gemm(dev, &g)), rate = 2e-9 * (double)(m * n * k) / t;

	printf("%-28s %5lld %5lld %5lld %9.3f ms %8.1f GFLOP/s\n", name, (long long)m, (long long)n,
	       (long long)k, t * 1e3, rate);
	gemm_rate = rate > gemm_rate ? rate : gemm_rate;
	step_gemm += t * times;
	device_free(dev, a);
	device_free(dev, b);
	device_free(dev, c);
	return t;
}

static void gemms(const char *name, enum dtype type, int64_t rows, int64_t n, int64_t k, int times)
{
	char words[64];

	snprintf(words, sizeof(words), "%s forward NT", name);
	gemm(words, type, type, false, true, rows, n, k, 0, times);
	snprintf(words, sizeof(words), "%s d_input NN", name);
	gemm(words, type, type, false, false, rows, k, n, 0, times);
	snprintf(words, sizeof(words), "%s d_weight TN", name);
	gemm(words, type, DTYPE_F32, true, false, n, k, rows, 1, times);
}

/* bytes: the fewest that have to be read and written. */
static void report(const char *name, double t, double bytes, double flops, int times)
{
	printf("%-28s %27.3f ms", name, t * 1e3);
	if (flops > 0)
		printf(" %8.1f GFLOP/s (%.0f %% of gemm)", flops * 1e-9 / t,
		       100 * flops * 1e-9 / t / gemm_rate);
	else
		printf(" %8.1f GB/s", bytes * 1e-9 / t);
	printf("  x %d = %.1f ms a step\n", times, t * 1e3 * times);
	step_other += t * times;
}

static void bench(enum dtype type)
{
	static const int32_t starts[] = {0, 512, 1024, 1536, 2048};
	double s = (double)dtype_size(type), params = 25.8e6, flops;
	char *x = buffer(T * 2 * I, type, 4), *y = buffer(T * 2 * I, type, 4),
	     *z = buffer(T * 2 * I, type, 4);
	char *w = buffer(V * H, type, 1);
	float *grad = buffer(V * H, DTYPE_F32, 1), *rstd = buffer(T * HEADS, DTYPE_F32, 1);
	float *cs = buffer(T * HD / 2, DTYPE_F32, 2), *loss = buffer(T, DTYPE_F32, 1);
	int32_t *ids = malloc(T * sizeof(*ids)), *positions = malloc(T * sizeof(*positions));
	struct device_norm n = {
	    .rows = T, .groups = 1, .cols = H, .ld_x = H, .ld_y = H, .eps = 1e-5f, .type = type};
	struct device_attention a = {.tokens = T,
	                             .heads = HEADS,
	                             .kv_heads = KV,
	                             .head_dim = HD,
	                             .scale = 0.125f,
	                             .documents = 4,
	                             .starts = starts,
	                             .host_starts = starts,
	                             .ld_q = QKV,
	                             .ld_k = QKV,
	                             .ld_v = QKV,
	                             .ld_o = H,
	                             .type = type};
	struct device_rope rope = {T, QKV, HEADS + KV, HD, HD, false, positions, cs, cs, type};
	struct device_adamw h = {.learning_rate = 1e-3,
	                         .beta1 = 0.9,
	                         .beta2 = 0.999,
	                         .epsilon = 1e-8,
	                         .weight_decay = 0.1,
	                         .step = 10};
	size_t k_at = (size_t)(HEADS * HD) * dtype_size(type),
	       v_at = k_at + (size_t)(KV * HD) * dtype_size(type);
	double sum = 0;

	gemm_rate = step_gemm = step_other = 0;
	printf("\n---- %s ----\n", dtype_name(type));
	for (int i = 0; i < T; i++) {
		ids[i] = (int32_t)((uint32_t)i * 2654435761u % V);
		positions[i] = i % 512;
	}
	gemms("qkv", type, T, QKV, H, L);
	gemms("attention out", type, T, H, H, L);
	gemms("gate_up", type, T, 2 * I, H, L);
	gemms("down", type, T, H, I, L);
	gemms("head", type, CHUNK, V, H, T / CHUNK);

	flops = 4.0 * 512 * 513 / 2 * HD * HEADS * 4;
	report("attention forward", BEST(device_attention_forward(dev, &a, z, rstd, x, x + k_at, x + v_at)),
	       0, flops, L);
	report("attention backward",
	       BEST(device_attention_backward(dev, &a, y, y + k_at, y + v_at, z, z, rstd, x, x + k_at,
	                                      x + v_at)),
	       0, flops * 2.5, L);
	memset(rstd, 0, T * HEADS * sizeof(float));
	report("rmsnorm forward", BEST(device_rmsnorm_forward(dev, &n, y, rstd, x, w)), 2 * T * H * s, 0, 1);
	report("add + rmsnorm forward", BEST(device_add_rmsnorm_forward(dev, &n, y, rstd, z, x, w)),
	       4 * T * H * s, 0, 2 * L);
	report("rmsnorm backward, adding",
	       BEST(device_rmsnorm_backward(dev, &n, z, true, grad, DTYPE_F32, y, x, rstd, w)), 4 * T * H * s,
	       0, 2 * L + 1);
	report("rope, q and k", BEST(device_rope(dev, &rope, x)), 2.0 * T * (HEADS + KV) * HD * s, 0, 2 * L);
	report("swiglu forward", BEST(device_swiglu_forward(dev, y, x, T, I, type, NULL)), 3.0 * T * I * s, 0,
	       L);
	report("swiglu backward + forward", BEST(device_swiglu_backward(dev, z, y, y, x, T, I, type, NULL)),
	       6.0 * T * I * s, 0, L);
	report("embedding forward", BEST(device_embedding_forward(dev, y, ids, w, T, H, type)), 2 * T * H * s,
	       0, 1);
	report("embedding backward",
	       BEST(device_embedding_backward(dev, grad, DTYPE_F32, y, ids, ids, T, V, H, type)),
	       T * H * (s + 8), 0, 1);
	{
		char *logits = buffer((int64_t)CHUNK * V, type, 20);

		report("cross-entropy + gradient",
		       BEST(device_cross_entropy(dev, logits, type, ids, CHUNK, V, 1e-3f, NULL, loss, true)),
		       2.0 * CHUNK * V * s, 0, T / CHUNK);
		device_free(dev, logits);
	}
	{
		int64_t p = (int64_t)params;
		float *master = buffer(p, DTYPE_F32, 1), *g = buffer(p, DTYPE_F32, 1),
		      *m = buffer(p, DTYPE_F32, 0), *v = buffer(p, DTYPE_F32, 0);
		void *copy = type == DTYPE_F32 ? NULL : buffer(p, type, 1);

		report("sum of squares", BEST(device_sum_squares(dev, g, DTYPE_F32, p, &sum)), params * 4, 0,
		       1);
		report("zero the gradients", BEST(device_zero(dev, g, (size_t)p * 4)), params * 4, 0, 1);
		report("adamw", BEST(device_adamw(dev, master, copy, type, g, DTYPE_F32, m, v, p, NULL, &h)),
		       params * (type == DTYPE_F32 ? 28 : 30), 0, 1);
		device_free(dev, master);
		device_free(dev, g);
		device_free(dev, m);
		device_free(dev, v);
		if (copy)
			device_free(dev, copy);
	}
	printf("a step: %.1f ms in products, %.1f ms in the rest: %.0f tokens/s, %.2f of the product rate\n",
	       step_gemm * 1e3, step_other * 1e3, T / (step_gemm + step_other),
	       (6.0 * 25.8e6 * T + 3.5 * flops * L) * 1e-9 / (step_gemm + step_other) / gemm_rate);
	device_free(dev, x);
	device_free(dev, y);
	device_free(dev, z);
	device_free(dev, w);
	device_free(dev, grad);
	device_free(dev, rstd);
	device_free(dev, cs);
	device_free(dev, loss);
	free(ids);
	free(positions);
}

int main(int argc, char **argv)
{
	struct device_shapes shapes = {.tokens = T,
	                               .max_sequence = 512,
	                               .hidden = H,
	                               .intermediate = I,
	                               .heads = HEADS,
	                               .kv_heads = KV,
	                               .head_dim = HD,
	                               .vocab = V,
	                               .logits_rows = CHUNK,
	                               .type = DTYPE_BF16};
	struct error err = ERROR_INIT;

	threads = argc > 1 ? atoi(argv[1]) : 0;
	if (device_create(&(struct device_options){.threads = threads}, &dev, &err) < 0 ||
	    device_reserve_scratch(dev, device_scratch_bytes(dev, &shapes), &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	printf("%s, scratch %.1f MiB\n", device_describe(dev),
	       (double)device_scratch_bytes(dev, &shapes) / (1 << 20));
	if (argc < 3 || !strcmp(argv[2], "float32"))
		bench(DTYPE_F32);
	if (argc < 3 || !strcmp(argv[2], "bfloat16"))
		bench(DTYPE_BF16);
	if (device_synchronize(dev, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	device_destroy(dev);
	return 0;
}
