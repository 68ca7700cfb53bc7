/* SPDX-License-Identifier: Apache-2.0 */
/* Large tensors (test_device_large.h): flat ones, products, tables. */
#include "test_device_large.h"

/* sqrt(sum (a - b)² / sum b²); overwrites b, which is fp32. */
static double rms_difference(const void *a, enum dtype a_type, float *b, int64_t n)
{
	double zero[2] = {0}, *sums = test_put(dev, zero, sizeof(zero));
	float *wide = empty(n, DTYPE_F32);

	device_sum_squares(dev, b, DTYPE_F32, n, &sums[1]);
	device_cast(dev, wide, DTYPE_F32, a, a_type, n);
	device_scale(dev, b, DTYPE_F32, -1, n);
	device_add(dev, b, wide, DTYPE_F32, n);
	device_sum_squares(dev, b, DTYPE_F32, n, &sums[0]);
	test_fetch(dev, zero, sums, sizeof(zero));
	device_free(dev, sums);
	device_free(dev, wide);
	return sqrt(zero[0] / zero[1]);
}

/* bf16 keeps 8 bits: a rounding is at most 2^-9, and 0.6 of that on average. Slightly more than two
 * roundings. */
static void check_rms(const char *what, const void *a, enum dtype a_type, float *b, int64_t n)
{
	double d = rms_difference(a, a_type, b, n);

	ck_assert_msg(d < 4e-3, "%s: bf16 and fp32 differ by %.3g", what, d);
}

/* ---- elementwise ---- */
static void elementwise_at(int64_t rows, enum dtype t)
{
	const int64_t n = rows * 33;
	float *f = filled(0, n, DTYPE_F32);
	void *x = empty(n, t), *y = filled(1, n, t);
	double sums[2] = {0}, want[2] = {0}, *bsums = test_put(dev, sums, sizeof(sums));

	device_cast(dev, x, t, f, DTYPE_F32, n);
	device_add(dev, x, y, t, n);
	device_scale(dev, x, t, 0.5f, n);
	device_sum(dev, f, n, &bsums[0]);
	device_sum_squares(dev, y, t, n, &bsums[1]);
	test_fetch(dev, sums, bsums, sizeof(sums));
	for (int64_t i = 0; i < MIN(n, TILE); i++) {
		double times = (double)(n / TILE + (i < n % TILE));

		want[0] += times * value(0, i, DTYPE_F32);
		want[1] += times * value(1, i, t) * value(1, i, t);
	}
	ck_assert_msg(fabs(sums[0] - want[0]) < 1e-6 * (double)n, "sum is %.9g, not %.9g", sums[0], want[0]);
	ck_assert_msg(fabs(sums[1] - want[1]) < 1e-6 * want[1], "squares are %.9g, not %.9g", sums[1],
	              want[1]);
	for (int s = 0; s < SAMPLES; s++) {
		int64_t cols = 33, row = sample(n / cols, cols, s);
		double w[33];

		for (int64_t i = 0; i < cols; i++)
			w[i] = 0.5 * (value(0, row * cols + i, t) + value(1, row * cols + i, t));
		check_row("add and scale", x, row, w, cols, t, 2 * test_tolerance(t), 1e-6);
	}
	device_free(dev, f);
	device_free(dev, x);
	device_free(dev, y);
	device_free(dev, bsums);
}

START_TEST(elementwise)
{
	each_size(33, elementwise_at);
}
END_TEST

/* ---- products: forward, gradient of the input, gradient of the weights ---- */
#ifdef TEST_ENGINE_CUDA
enum { OUT = 32768 };
#else
enum { OUT = 3072 };
#endif

static double product(const struct device_gemm *g, int64_t i, int64_t j)
{
	double sum = 0;

	for (int64_t p = 0; p < g->k; p++)
		sum += value(0, g->transpose_a ? p * g->lda + i : i * g->lda + p, g->ab_type) *
		       value(1, g->transpose_b ? j * g->ldb + p : p * g->ldb + j, g->ab_type);
	return sum;
}

static void try_gemm(struct device_gemm g, bool beyond)
{
	int64_t na = g.m * g.k, nb = g.k * g.n, nc = g.m * g.n;
	void *a = filled(0, na, g.ab_type), *b = filled(1, nb, g.ab_type), *c = empty(nc, g.c_type);
	void *aw = NULL, *bw = NULL, *cw = NULL;

	g.a = a;
	g.b = b;
	g.c = c;
	g.alpha = 1;
	g.lda = g.transpose_a ? g.m : g.k;
	g.ldb = g.transpose_b ? g.k : g.n;
	g.ldc = g.n;
	device_gemm(dev, &g);
	for (int s = 0; s < 10 * SAMPLES; s++) {
		int64_t i = sample(g.m, g.n, s % SAMPLES), j = (s * 7919 + 13) % g.n;
		size_t at = (size_t)(i * g.n + j) * dtype_size(g.c_type);
		double *got = test_fetch_values(dev, (char *)c + at, 1, g.c_type), want = product(&g, i, j),
		       scale;

		/* Sums of k products of numbers about 1, in fp32. */
		scale = 1 + 2 * sqrt((double)g.k);
#ifdef TEST_ENGINE_CUDA
		/* Tensor cores cut off what is behind the last bit, each time that they have added 16
		 * products; so long a sum of fp32, one after the other, is about as far away. A product that
		 * is missing is more. */
		scale += (double)g.k / 16 * 0x1p-23 * (fabs(want) + 3 * sqrt((double)g.k)) /
		         test_tolerance(g.c_type);
#endif
		ck_assert_msg(test_is_close(*got, want, test_tolerance(g.c_type), scale),
		              "gemm[%lld, %lld] is %.9g, not %.9g", (long long)i, (long long)j, *got, want);
		free(got);
	}
	if (g.ab_type == DTYPE_BF16 && !beyond) {
		aw = empty(na, DTYPE_F32);
		bw = empty(nb, DTYPE_F32);
		cw = empty(nc, DTYPE_F32);
		device_cast(dev, aw, DTYPE_F32, a, g.ab_type, na);
		device_cast(dev, bw, DTYPE_F32, b, g.ab_type, nb);
		g.ab_type = DTYPE_F32;
		g.a = aw;
		g.b = bw;
		g.c = cw;
		enum dtype c_type = g.c_type;
		g.c_type = DTYPE_F32;
		device_gemm(dev, &g);
		check_rms("gemm", c, c_type, cw, nc);
		device_free(dev, aw);
		device_free(dev, bw);
		device_free(dev, cw);
	}
	device_free(dev, a);
	device_free(dev, b);
	device_free(dev, c);
}

static void gemm_at(int64_t rows, enum dtype t)
{
	bool beyond = rows * OUT > BEYOND;
	int64_t in = beyond ? 64 : IN; /* the size of the products does not matter there */

	try_gemm(
	    (struct device_gemm){
	        .transpose_b = true, .m = rows, .n = OUT, .k = in, .ab_type = t, .c_type = t},
	    beyond);
	try_gemm((struct device_gemm){.m = rows, .n = in, .k = OUT, .ab_type = t, .c_type = t}, beyond);
	try_gemm(
	    (struct device_gemm){
	        .transpose_a = true, .m = OUT, .n = in, .k = rows, .ab_type = t, .c_type = DTYPE_F32},
	    beyond);
}

START_TEST(gemm)
{
	each_size(OUT, gemm_at);
}
END_TEST

/* ---- embedding: the table is what is large ---- */
static void embedding_at(int64_t vocab, enum dtype t)
{
	const int64_t cols = IN, tokens = REAL_ROWS;
	void *table = filled(0, vocab * cols, t), *d = filled(1, tokens * cols, t),
	     *out = empty(tokens * cols, t);
	float *g = empty(vocab * cols, DTYPE_F32);
	int32_t *ids = malloc((size_t)tokens * sizeof(*ids)), *p;

	for (int64_t i = 0; i < tokens; i++) /* some often, including the last, others once */
		ids[i] = (int32_t)(i % 3 ? vocab - 1 - i % 5 : i * 7919 % vocab);
	p = test_put(dev, ids, (size_t)tokens * sizeof(*ids));
	device_embedding_forward(dev, out, p, table, tokens, (int)cols, t);
	device_embedding_backward(dev, g, DTYPE_F32, d, p, ids, tokens, vocab, (int)cols, t);
	for (int s = 0; s < SAMPLES + 3; s++) {
		int64_t token = s < SAMPLES ? sample(tokens, cols, s) : s, id = ids[token];
		double *want = calloc((size_t)cols, sizeof(*want));

		for (int64_t i = 0; i < cols; i++)
			want[i] = value(0, id * cols + i, t);
		check_row("embedding", out, token, want, cols, t, 0, 0);
		memset(want, 0, (size_t)cols * sizeof(*want));
		for (int64_t r = 0; r < tokens; r++)
			for (int64_t i = 0; i < cols && ids[r] == id; i++)
				want[i] += value(1, r * cols + i, t);
		check_row("embedding d_table", g, id, want, cols, DTYPE_F32, 1e-5, 100);
		free(want);
	}
	free(ids);
	device_free(dev, table);
	device_free(dev, d);
	device_free(dev, out);
	device_free(dev, g);
	device_free(dev, p);
}

START_TEST(embedding)
{
	each_size(IN, embedding_at);
}
END_TEST

/* ---- AdamW ---- */
static void adamw_at(int64_t n, enum dtype t)
{
	float *p = filled(0, n, DTYPE_F32), *m = filled(1, n, DTYPE_F32), *v = empty(n, DTYPE_F32);
	void *copy = empty(n, t), *g = filled(2, n, DTYPE_F32);
	struct device_adamw h = {.learning_rate = 1e-2,
	                         .beta1 = 0.9,
	                         .beta2 = 0.95,
	                         .epsilon = 1e-8,
	                         .weight_decay = 0.1,
	                         .step = 3};

	device_adamw(dev, p, copy, t, g, DTYPE_F32, m, v, n, NULL, &h);
	for (int s = 0; s < SAMPLES; s++) {
		int64_t cols = MIN(n, 33), row = sample(n / cols, cols, s);
		double want[33], rounded[33];

		for (int64_t i = 0; i < cols; i++) {
			double x = value(2, row * cols + i, DTYPE_F32);
			double mm = 0.9 * value(1, row * cols + i, DTYPE_F32) + 0.1 * x, vv = 0.05 * x * x;

			want[i] = value(0, row * cols + i, DTYPE_F32) * (1 - 1e-3) -
			          1e-2 / (1 - pow(0.9, 3)) * mm / (sqrt(vv / (1 - pow(0.95, 3))) + 1e-8);
		}
		check_row("adamw", p, row, want, cols, DTYPE_F32, 1e-5, 1);
		memcpy(rounded, want, sizeof(rounded));
		check_row("adamw copy", copy, row, rounded, cols, t, test_tolerance(t), 1e-2);
	}
	device_free(dev, p);
	device_free(dev, m);
	device_free(dev, v);
	device_free(dev, copy);
	device_free(dev, g);
}

START_TEST(adamw)
{
	each_size(1, adamw_at);
}
END_TEST

/* ---- NF4: no element is further from its code than half the widest gap ---- */
static void nf4_at(int64_t blocks, enum dtype t)
{
	int64_t n = blocks * 64;
	struct device_nf4 q = {.n = n, .codes = empty((n + 1) / 8 + 1, DTYPE_F32)};
	void *x = filled(0, n, t), *y = empty(n, t);

	q.absmax8 = empty(blocks / 4 + 1, DTYPE_F32);
	q.absmax2 = empty(blocks / 256 + 1, DTYPE_F32);
	q.offset = empty(1, DTYPE_F32);
	device_nf4_quantize(dev, &q, x, t);
	device_nf4_dequantize(dev, y, t, &q);
	for (int s = 0; s < SAMPLES; s++) {
		int64_t block = sample(blocks, 64, s);
		double want[64], max = 0;

		for (int64_t i = 0; i < 64; i++) {
			want[i] = value(0, block * 64 + i, t);
			max = fmax(max, fabs(want[i]));
		}
		check_row("nf4", y, block, want, 64, t, 0.17 * max, 1);
	}
	device_free(dev, x);
	device_free(dev, y);
	device_free(dev, q.codes);
	device_free(dev, q.absmax8);
	device_free(dev, q.absmax2);
	device_free(dev, q.offset);
}

START_TEST(nf4)
{
	each_size(64, nf4_at);
}
END_TEST

TCase *test_device_large(void)
{
	TCase *tc = tcase_create("large");

	tcase_set_timeout(tc, 600);
	tcase_add_test(tc, elementwise);
	tcase_add_test(tc, gemm);
	tcase_add_test(tc, embedding);
	tcase_add_test(tc, adamw);
	tcase_add_test(tc, nf4);
	return tc;
}
