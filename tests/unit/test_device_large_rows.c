/* SPDX-License-Identifier: Apache-2.0 */
/* Large tensors (test_device_large.h): operations on rows. */
#include "test_device_large.h"

/* One row of the operation in float64. */
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

	device_swiglu_forward(dev, y, gu, rows, WIDE_COLS, t, NULL);
	check_rows("swiglu", y, rows, WIDE_COLS, t, swiglu_row, test_tolerance(t), 1e-3);
	device_zero(dev, y, (size_t)n * dtype_size(t));
	device_swiglu_backward(dev, gu, y, dy, gu, rows, WIDE_COLS, t, NULL);
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
	struct device_rope rope;

	for (int64_t i = 0; i < rows; i++)
		positions[i] = (int32_t)(i * 5 % PLACES);
	p = test_put(dev, positions, (size_t)rows * sizeof(*positions));
	rope = (struct device_rope){rows, cols, HEADS, HEAD_DIM, HEAD_DIM, false, p, c, s, t};
	device_rope(dev, &rope, x);
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

/* ---- experts: the places are in the opposite order of the choices ---- */
enum { CHOSEN = 4 };
static int64_t last_place;

static double weight_of(int64_t choice)
{
	return value(1, choice, DTYPE_F32);
}

static void expert_sum_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	for (int64_t i = 0; i < cols; i++) {
		out[i] = 0;
		for (int64_t k = row * CHOSEN; k < (row + 1) * CHOSEN; k++)
			out[i] += weight_of(k) * value(0, (last_place - k) * cols + i, t);
	}
}

/* Every third place belongs to no choice. */
static int32_t row_at(int64_t place)
{
	return place % 3 == 1 ? -1 : (int32_t)((last_place - place) / CHOSEN);
}

static void expert_row(int64_t place, int64_t cols, enum dtype t, double *out)
{
	for (int64_t i = 0; i < cols; i++)
		out[i] = row_at(place) < 0 ? 0 : value(2, row_at(place) * cols + i, t);
}

static void weighed_row(int64_t row, int64_t cols, enum dtype t, double *out)
{
	for (int64_t i = 0; i < cols; i++)
		out[i] = weight_of(last_place - row) * value(2, row * cols + i, t);
}

static void check_weight_gradient(const float *d_weight, int64_t places, enum dtype t)
{
	double *got = test_fetch_values(dev, d_weight, places, DTYPE_F32);

	for (int s = 0; s < SAMPLES; s++) {
		int64_t row = sample(places, IN, s), choice = last_place - row;
		double want = 0;

		for (int64_t i = row * IN; i < (row + 1) * IN; i++)
			want += value(0, i, t) * value(2, i, t);
		ck_assert_msg(fabs(got[choice] - want) < 4e-6 * (fabs(want) + 45),
		              "d_weight[%lld] is %.9g, not %.9g", (long long)choice, got[choice], want);
	}
	free(got);
}

static int32_t *places_put(int64_t places, bool rows)
{
	int32_t *host = malloc((size_t)places * sizeof(*host)), *p;

	for (int64_t i = 0; i < places; i++)
		host[i] = rows ? row_at(i) : (int32_t)(last_place - i);
	p = test_put(dev, host, (size_t)places * sizeof(*host));
	free(host);
	return p;
}

static void experts_at(int64_t rows, enum dtype t)
{
	struct device_router r = {(rows + CHOSEN - 1) / CHOSEN, 64, CHOSEN, 1, false, t};
	int64_t places = r.tokens * CHOSEN;
	void *x = filled(0, places * IN, t), *d = filled(2, places * IN, t), *y = empty(r.tokens * IN, t);
	float *weight = filled(1, places, DTYPE_F32), *d_weight = empty(places, DTYPE_F32);
	int32_t *place, *row;

	last_place = places - 1;
	place = places_put(places, false);
	row = places_put(places, true);
	device_expert_sum(dev, &r, y, x, place, weight, IN);
	check_rows("expert sum", y, r.tokens, IN, t, expert_sum_row, test_tolerance(t), 3);
	device_expert_weigh(dev, &r, d_weight, d, x, place, weight, IN);
	check_rows("weighed d", d, places, IN, t, weighed_row, test_tolerance(t), 0);
	check_weight_gradient(d_weight, places, t);
	device_free(dev, y);
	y = filled(2, r.tokens * IN, t);
	device_expert_rows(dev, &r, x, y, row, places, IN);
	check_rows("expert rows", x, places, IN, t, expert_row, 0, 0);
	device_free(dev, x);
	device_free(dev, d);
	device_free(dev, y);
	device_free(dev, weight);
	device_free(dev, d_weight);
	device_free(dev, place);
	device_free(dev, row);
}

START_TEST(experts)
{
	each_size(IN, experts_at);
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
	device_cross_entropy(dev, x, t, targets, rows, VOCAB, 1, NULL, loss, true);
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

TCase *test_device_large_rows(void)
{
	TCase *tc = tcase_create("large rows");

	tcase_set_timeout(tc, 600);
	tcase_add_test(tc, rmsnorm);
	tcase_add_test(tc, swiglu);
	tcase_add_test(tc, rope);
	tcase_add_test(tc, bias);
	tcase_add_test(tc, experts);
	tcase_add_test(tc, cross_entropy);
	return tc;
}
