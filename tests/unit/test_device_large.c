/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sizes of real models (hidden 2048, vocabulary 128256), in fp32 and in bf16, against float64 at sampled
 * rows; the tensor cores' products against the fp32 ones over the whole matrix, too. On a GPU with room for
 * it, once more with more than 2^31 elements, so that no index may be kept in 32 bits. The CPU engine runs
 * few rows of the same width (with DTRAIN_TEST_BEYOND=1 all, for who has the memory and the time).
 */
#include "base/cleanup.h"
#include "test_device_each.h"

#define TILE   1000003 /* a prime: tensors repeat their values, rows do not */
#define BEYOND ((int64_t)1 << 31)
#define ROOM   ((size_t)42 << 30)

#ifdef TEST_ENGINE_CUDA
#define REAL_ROWS 8192
#else
#define REAL_ROWS 37
#endif

/* ---- tensors that the host knows without holding them ---- */
static double *tiles[8];

static double value(int seed, int64_t i, enum dtype t)
{
	double x = tiles[seed][i % TILE];

	return t == DTYPE_F32 ? (double)(float)x : bf16_to_float(bf16_from_float((float)x));
}

static void *empty(int64_t n, enum dtype t)
{
	struct error err = ERROR_INIT;
	void *p;

	ck_ok(device_alloc(dev, (size_t)n * dtype_size(t), &p, &err), &err);
	return p;
}

static void *filled(int seed, int64_t n, enum dtype t)
{
	struct error err = ERROR_INIT;
	int64_t have = MIN(n, TILE);
	size_t size = dtype_size(t);
	char *host = malloc((size_t)have * size), *p = empty(n, t);

	if (!tiles[seed])
		tiles[seed] = test_values(TILE, (uint64_t)seed + 1);
	for (int64_t i = 0; i < have; i++)
		test_set(host, i, t, tiles[seed][i]);
	ck_ok(device_write(dev, p, host, (size_t)have * size, &err), &err);
	for (; have < n; have *= 2)
		device_copy(dev, p + (size_t)have * size, p, (size_t)MIN(have, n - have) * size);
	free(host);
	return p;
}

/* sqrt(sum (a - b)² / sum b²); b, in fp32, is spent. */
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

/* bf16 keeps 8 bits: a rounding is 2^-9 at most, 0.6 of that in the mean. Two of them, and some. */
static void check_rms(const char *what, const void *a, enum dtype a_type, float *b, int64_t n)
{
	double d = rms_difference(a, a_type, b, n);

	ck_assert_msg(d < 4e-3, "%s: bf16 and fp32 differ by %.3g", what, d);
}

static double *row_of(const void *p, int64_t row, int64_t cols, enum dtype t)
{
	return test_fetch_values(dev, (const char *)p + (size_t)(row * cols) * dtype_size(t), cols, t);
}

static void check_row(const char *what, const void *p, int64_t row, const double *want, int64_t cols,
                      enum dtype t, double tolerance, double scale)
{
	double *got = row_of(p, row, cols, t);

	for (int64_t i = 0; i < cols; i++)
		ck_assert_msg(test_is_close(got[i], want[i], tolerance, scale),
		              "%s[%lld, %lld] is %.9g, not %.9g", what, (long long)row, (long long)i, got[i],
		              want[i]);
	free(got);
}

/* Rows to look at: the ends, the middle, and where the index passes 2^31 and 2^32. */
#define SAMPLES 7
static int64_t sample(int64_t rows, int64_t cols, int which)
{
	const int64_t list[SAMPLES] = {0, 1, rows / 2, BEYOND / cols, 2 * BEYOND / cols, rows - 2, rows - 1};

	return MAX(MIN(list[which], rows - 1), 0);
}

static bool has_room(void)
{
	struct error err = ERROR_INIT;
	void *p;

#ifndef TEST_ENGINE_CUDA
	if (!getenv("DTRAIN_TEST_BEYOND"))
		return false;
#else
	if (device_alloc(dev, ROOM, &p, &err) < 0) {
		printf("less than %zu GiB are free: no indices beyond 2^31\n", ROOM >> 30);
		return false;
	}
	device_free(dev, p);
#endif
	(void)p;
	(void)err;
	return true;
}

/* Calls f with rows and a type for the sizes that this device is to try; `cols` are those of the tensor that
 * is to pass 2^31. */
static void each_size(int64_t cols, void (*f)(int64_t rows, enum dtype t))
{
	struct error err = ERROR_INIT;

	threads = 0;
	setup();
	ck_ok(device_reserve_scratch(dev, (size_t)512 << 20, &err), &err);
	f(REAL_ROWS, DTYPE_F32);
	f(REAL_ROWS, DTYPE_BF16);
	if (has_room())
		f(BEYOND / cols + 3, DTYPE_BF16);
	teardown();
	for (size_t i = 0; i < COUNT(tiles); i++) {
		free(tiles[i]);
		tiles[i] = NULL;
	}
}

/* ---- elementwise ---- */
static void elementwise_at(int64_t n, enum dtype t)
{
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
	each_size(1, elementwise_at);
}
END_TEST

/* ---- products: forward, gradient of the input, gradient of the weights ---- */
enum { OUT = 32768, IN = 2048 };

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
		double *got = test_fetch_values(dev, (char *)c + at, 1, g.c_type), want = product(&g, i, j);

		/* Sums of k products of numbers about 1, in fp32. */
		ck_assert_msg(test_is_close(*got, want, test_tolerance(g.c_type), 1 + 2 * sqrt((double)g.k)),
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
	int64_t in = beyond ? 64 : IN; /* the products' size is not what is tried there */

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

/* ---- operations on rows ---- */
/* What one row of the operation is in float64. */
typedef void (*row_fn)(int64_t row, int64_t cols, enum dtype t, double *out);

static void check_rows(const char *what, const void *p, int64_t rows, int64_t cols, enum dtype t, row_fn want,
                       double tolerance, double scale)
{
	double *w = malloc((size_t)cols * sizeof(*w));

	for (int s = 0; s < SAMPLES; s++) {
		int64_t row = sample(rows, cols, s);

		want(row, cols, t, w);
		check_row(what, p, row, w, cols, t, tolerance, scale);
	}
	free(w);
}

static double row_rstd(int64_t row, int64_t cols, enum dtype t)
{
	double squares = 0;

	for (int64_t i = 0; i < cols; i++)
		squares += pow(value(0, row * cols + i, t), 2);
	return 1 / sqrt(squares / (double)cols + 1e-5);
}

static void norm_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	double r = row_rstd(row, cols, t);

	for (int64_t i = 0; i < cols; i++)
		out[i] = value(0, row * cols + i, t) * r * value(1, i, t);
}

static void norm_backward_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	double r = row_rstd(row, cols, t), mean = 0;

	for (int64_t i = 0; i < cols; i++)
		mean += value(2, row * cols + i, t) * value(1, i, t) * value(0, row * cols + i, t) * r;
	for (int64_t i = 0; i < cols; i++)
		out[i] = r * (value(2, row * cols + i, t) * value(1, i, t) -
		              value(0, row * cols + i, t) * r * mean / (double)cols);
}

static void rmsnorm_at(int64_t rows, enum dtype t)
{
	const int64_t cols = IN, n = rows * cols;
	struct device_norm norm = {.rows = rows,
	                           .groups = 1,
	                           .cols = (int)cols,
	                           .ld_x = cols,
	                           .ld_y = cols,
	                           .eps = 1e-5f,
	                           .type = t};
	void *x = filled(0, n, t), *w = filled(1, cols, t), *d = filled(2, n, t), *y = empty(n, t);
	float *rstd = empty(rows, DTYPE_F32), *dw = empty(cols, DTYPE_F32);
	double *r, *got;

	device_rmsnorm_forward(dev, &norm, y, rstd, x, w);
	check_rows("rmsnorm", y, rows, cols, t, norm_row, test_tolerance(t), 0.1);
	device_rmsnorm_backward(dev, &norm, y, false, dw, DTYPE_F32, d, x, rstd, w);
	check_rows("rmsnorm d_x", y, rows, cols, t, norm_backward_row, t == DTYPE_F32 ? 5e-6 : 1e-2, 1);
	r = test_fetch_values(dev, rstd, rows, DTYPE_F32);
	got = test_fetch_values(dev, dw, cols, DTYPE_F32);
	for (int64_t i = 0; i < cols; i += 401) {
		double sum = 0;

		for (int64_t k = 0; k < rows; k++)
			sum += value(2, k * cols + i, t) * value(0, k * cols + i, t) * r[k];
		ck_assert_msg(fabs(got[i] - sum) < 1e-5 * sqrt((double)rows) + 1e-6 * fabs(sum),
		              "d_w[%lld] is %.9g, not %.9g", (long long)i, got[i], sum);
	}
	free(r);
	free(got);
	device_free(dev, x);
	device_free(dev, w);
	device_free(dev, d);
	device_free(dev, y);
	device_free(dev, rstd);
	device_free(dev, dw);
}

START_TEST(rmsnorm)
{
	each_size(IN, rmsnorm_at);
}
END_TEST

enum { WIDE_COLS = 8192 };

static double silu(double g)
{
	return g / (1 + exp(-g));
}

static void swiglu_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	for (int64_t i = 0; i < cols; i++)
		out[i] = silu(value(0, 2 * row * cols + i, t)) * value(0, (2 * row + 1) * cols + i, t);
}

static void swiglu_backward_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	int64_t half = cols / 2;

	for (int64_t i = 0; i < half; i++) {
		double g = value(0, row * cols + i, t), u = value(0, row * cols + half + i, t);
		double s = 1 / (1 + exp(-g)), dy = value(1, row * half + i, t);

		out[i] = dy * u * s * (1 + g * (1 - s));
		out[half + i] = dy * g * s;
	}
}

static void swiglu_at(int64_t rows, enum dtype t)
{
	int64_t n = rows * WIDE_COLS;
	void *gu = filled(0, 2 * n, t), *dy = filled(1, n, t), *y = empty(n, t);

	device_swiglu_forward(dev, y, gu, rows, WIDE_COLS, t);
	check_rows("swiglu", y, rows, WIDE_COLS, t, swiglu_row, test_tolerance(t), 1e-3);
	device_zero(dev, y, (size_t)n * dtype_size(t));
	device_swiglu_backward(dev, gu, y, dy, gu, rows, WIDE_COLS, t);
	check_rows("swiglu again", y, rows, WIDE_COLS, t, swiglu_row, test_tolerance(t), 1e-3);
	check_rows("swiglu d_gate_up", gu, rows, 2 * WIDE_COLS, t, swiglu_backward_row, test_tolerance(t),
	           0.5);
	device_free(dev, gu);
	device_free(dev, dy);
	device_free(dev, y);
}

START_TEST(swiglu)
{
	each_size(WIDE_COLS, swiglu_at);
}
END_TEST

enum { HEADS = 40, HEAD_DIM = 64, PLACES = 4096 };

static void rope_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	int64_t half = HEAD_DIM / 2, place = row * 5 % PLACES * half;

	for (int64_t i = 0; i < cols / 2; i++) {
		int64_t at = i / half * HEAD_DIM + i % half;
		double a = value(0, row * cols + at, t), b = value(0, row * cols + at + half, t);
		double c = value(1, place + i % half, DTYPE_F32), s = value(2, place + i % half, DTYPE_F32);

		out[at] = a * c - b * s;
		out[at + half] = b * c + a * s;
	}
}

static void rope_at(int64_t rows, enum dtype t)
{
	const int64_t cols = HEADS * HEAD_DIM;
	void *x = filled(0, rows * cols, t), *b = filled(3, cols, t);
	float *c = filled(1, PLACES * HEAD_DIM / 2, DTYPE_F32),
	      *s = filled(2, PLACES * HEAD_DIM / 2, DTYPE_F32);
	int32_t *positions = malloc((size_t)rows * sizeof(*positions)), *p;

	for (int64_t i = 0; i < rows; i++)
		positions[i] = (int32_t)(i * 5 % PLACES);
	p = test_put(dev, positions, (size_t)rows * sizeof(*positions));
	device_rope(dev, x, cols, HEADS, HEAD_DIM, p, c, s, rows, false, t);
	check_rows("rope", x, rows, cols, t, rope_row, test_tolerance(t), 3);
	free(positions);
	device_free(dev, x);
	device_free(dev, b);
	device_free(dev, c);
	device_free(dev, s);
	device_free(dev, p);
}

START_TEST(rope)
{
	each_size(HEADS * HEAD_DIM, rope_at);
}
END_TEST

static void bias_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	for (int64_t i = 0; i < cols; i++)
		out[i] = value(0, row * cols + i, t) + value(1, i, t);
}

static void bias_at(int64_t rows, enum dtype t)
{
	const int64_t cols = IN;
	void *x = filled(0, rows * cols, t), *b = filled(1, cols, t);
	float *d = empty(cols, DTYPE_F32);
	double *got;

	device_bias_backward(dev, d, DTYPE_F32, x, rows, cols, cols, t);
	got = test_fetch_values(dev, d, cols, DTYPE_F32);
	for (int64_t i = 0; i < cols; i += 203) {
		double sum = 0;

		for (int64_t r = 0; r < rows; r++)
			sum += value(0, r * cols + i, t);
		ck_assert_msg(fabs(got[i] - sum) < 1e-5 * sqrt((double)rows) + 1e-6 * fabs(sum),
		              "d_bias[%lld] is %.9g, not %.9g", (long long)i, got[i], sum);
	}
	device_bias_forward(dev, x, b, rows, cols, cols, t);
	check_rows("bias", x, rows, cols, t, bias_row, test_tolerance(t), 1e-3);
	free(got);
	device_free(dev, x);
	device_free(dev, b);
	device_free(dev, d);
}

START_TEST(bias)
{
	each_size(IN, bias_at);
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

	for (int64_t i = 0; i < tokens; i++) /* some often, the last among them, some once */
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

/* ---- cross-entropy ---- */
enum { VOCAB = 128256 };

static int32_t target_of(int64_t row)
{
	return row % 7 == 5 ? -100 : (int32_t)(row * 7919 % VOCAB);
}

static double row_lse(int64_t row, int64_t cols, enum dtype t)
{
	double sum = 0;

	for (int64_t i = 0; i < cols; i++)
		sum += exp(value(0, row * cols + i, t));
	return log(sum);
}

static void cross_entropy_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	int32_t target = target_of(row);
	double lse = row_lse(row, cols, t);

	for (int64_t i = 0; i < cols; i++)
		out[i] = target < 0 ? 0 : exp(value(0, row * cols + i, t) - lse) - (i == target);
}

static void cross_entropy_at(int64_t rows, enum dtype t)
{
	int32_t *host = malloc((size_t)rows * sizeof(*host)), *targets, *ids;
	void *x = filled(0, rows * VOCAB, t);
	float *loss = empty(rows, DTYPE_F32);
	double *got;

	for (int64_t r = 0; r < rows; r++)
		host[r] = target_of(r);
	targets = test_put(dev, host, (size_t)rows * sizeof(*host));
	ids = test_put(dev, host, (size_t)rows * sizeof(*host));
	device_argmax(dev, ids, x, t, rows, VOCAB);
	device_cross_entropy(dev, x, t, targets, rows, VOCAB, 1, loss, true);
	test_fetch(dev, host, ids, (size_t)rows * sizeof(*host));
	got = test_fetch_values(dev, loss, rows, DTYPE_F32);
	for (int s = 0; s < SAMPLES; s++) {
		int64_t row = sample(rows, VOCAB, s), best = 0;
		double want = 0;

		for (int64_t i = 1; i < VOCAB; i++)
			if (value(0, row * VOCAB + i, t) > value(0, row * VOCAB + best, t))
				best = i;
		ck_assert_int_eq(host[row], best);
		if (target_of(row) >= 0)
			want = row_lse(row, VOCAB, t) - value(0, row * VOCAB + target_of(row), t);
		ck_assert_msg(fabs(got[row] - want) < 2e-6 * (1 + want), "loss[%lld] is %.9g, not %.9g",
		              (long long)row, got[row], want);
	}
	check_rows("d_logits", x, rows, VOCAB, t, cross_entropy_row, t == DTYPE_F32 ? 2e-5 : 8e-3, 1e-7);
	free(host);
	free(got);
	device_free(dev, x);
	device_free(dev, loss);
	device_free(dev, targets);
	device_free(dev, ids);
}

START_TEST(cross_entropy)
{
	each_size(VOCAB, cross_entropy_at);
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
static void nf4_at(int64_t n, enum dtype t)
{
	int64_t blocks = (n + 63) / 64;
	struct device_nf4 q = {.n = n, .codes = empty((n + 1) / 8 + 1, DTYPE_F32)};
	void *x = filled(0, n, t), *y = empty(n, t);

	q.absmax8 = empty(blocks / 4 + 1, DTYPE_F32);
	q.absmax2 = empty(blocks / 256 + 1, DTYPE_F32);
	q.offset = empty(1, DTYPE_F32);
	device_nf4_quantize(dev, &q, x, t);
	device_nf4_dequantize(dev, y, t, &q);
	for (int s = 0; s < SAMPLES; s++) {
		int64_t block = sample(n / 64, 64, s);
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
	each_size(1, nf4_at);
}
END_TEST

TCase *test_device_large(void)
{
	TCase *tc = tcase_create("large");

	tcase_set_timeout(tc, 600);
	tcase_add_test(tc, elementwise);
	tcase_add_test(tc, gemm);
	tcase_add_test(tc, rmsnorm);
	tcase_add_test(tc, swiglu);
	tcase_add_test(tc, rope);
	tcase_add_test(tc, bias);
	tcase_add_test(tc, embedding);
	tcase_add_test(tc, cross_entropy);
	tcase_add_test(tc, adamw);
	tcase_add_test(tc, nf4);
	return tc;
}
