/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_sgemm [THREADS]: measures single-precision matrix multiplication on this machine at the shapes of a
 * training step: the products of the benchmark's model (512 wide, 8 layers, intermediate 1408, vocabulary
 * 6400, 2,048 tokens), forward and both backward, each as often as a step needs it. Prints one JSON object;
 * gflops is the rate over all products of a step, the upper limit with which a step is compared.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TOKENS = 2048, ROUNDS = 5 };

static const struct {
	const char *name;
	int in, out, times;
} layers[] = {
    {"qkv", 512, 768, 8},   {"attention out", 512, 512, 8}, {"gate and up", 512, 2816, 8},
    {"down", 1408, 512, 8}, {"head", 512, 6400, 1},
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* y[T,out] = x[T,in] · w[out,in]ᵀ; dx = dy · w; dw = dyᵀ · x. The best of several rounds, since other
 * programs may use the machine. */
static double seconds_of(int in, int out, const float *x, const float *w, float *y)
{
	double best = 1e9;

	for (int i = 0; i < ROUNDS; i++) {
		double start = now(), took;

		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, TOKENS, out, in, 1, x, in, w, in, 0, y,
		            out);
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, TOKENS, in, out, 1, y, out, w, in, 0,
		            (float *)x, in);
		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, TOKENS, 1, y, out, x, in, 0,
		            (float *)w, in);
		took = now() - start;
		best = took < best ? took : best;
	}
	return best;
}

int main(int argc, char **argv)
{
	size_t most = (size_t)TOKENS * 6400;
	float *x = malloc(most * sizeof(*x)), *w = malloc(most * sizeof(*w)), *y = malloc(most * sizeof(*y));
	double flops = 0, seconds = 0;

	if (!x || !w || !y)
		return 1;
	for (size_t i = 0; i < most; i++) {
		x[i] = (float)(i % 13) * 1e-3f;
		w[i] = (float)(i % 7) * 1e-3f;
		y[i] = 0;
	}
	if (argc > 1)
		openblas_set_num_threads(atoi(argv[1]));
	printf("{\"corename\":\"%s\",\"threads\":%d,\"shapes\":{", openblas_get_corename(),
	       openblas_get_num_threads());
	for (size_t i = 0; i < sizeof(layers) / sizeof(*layers); i++) {
		double one = 6.0 * TOKENS * layers[i].in * layers[i].out;
		double took = seconds_of(layers[i].in, layers[i].out, x, w, y);

		printf("%s\"%s\":%.1f", i ? "," : "", layers[i].name, one / took * 1e-9);
		flops += one * layers[i].times;
		seconds += took * layers[i].times;
	}
	printf("},\"flops_per_token\":%.0f,\"gflops\":%.1f}\n", flops / TOKENS, flops / seconds * 1e-9);
	free(x);
	free(w);
	free(y);
	return 0;
}
