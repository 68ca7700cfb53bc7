/* SPDX-License-Identifier: Apache-2.0 */
/* What adapters add to the products: dropout, the norms of rows, and scaled columns. And noise. */
#include "test_device_each.h"

static const int64_t lengths[] = {1, 15, 64, 1000, 40003};

/* The elements that are kept, as the first call finds them: the mask of ones. */
START_TEST(dropout_keeps_the_mean)
{
	FOR_ALL for (size_t s = 0; s < COUNT(lengths); s++)
	{
		int64_t n = lengths[s], kept = 0;
		struct device_dropout d = {.probability = 0.25, .seed = 7, .number = 3};
		double *ones = calloc((size_t)n, sizeof(*ones)), *x = test_values(n, 1),
		       *y = test_values(n, 2), *mask, *want = calloc((size_t)n, sizeof(*want));
		void *b1, *bx, *by, *bz;

		for (int64_t i = 0; i < n; i++)
			ones[i] = 1;
		b1 = test_buffer(dev, ones, n, DTYPE_F32);
		device_dropout(dev, &d, b1, false, b1, DTYPE_F32, n);
		mask = test_fetch_values(dev, b1, n, DTYPE_F32);
		for (int64_t i = 0; i < n; i++) {
			ck_assert(mask[i] == 0 || fabs(mask[i] - 4.0 / 3) < 1e-6);
			kept += mask[i] > 0;
		}
		if (n > 1000)
			ck_assert_msg(fabs((double)kept / (double)n - 0.75) < 0.01, "%lld of %lld",
			              (long long)kept, (long long)n);
		bx = test_buffer(dev, x, n, type);
		by = test_buffer(dev, y, n, type);
		bz = test_buffer(dev, y, n, type);
		device_dropout(dev, &d, by, false, bx, type, n);
		for (int64_t i = 0; i < n; i++)
			want[i] = mask[i] * x[i];
		test_close(dev, "dropout", by, want, n, type, test_tolerance(type), 1e-6);
		device_dropout(dev, &d, bz, true, bx, type, n);
		for (int64_t i = 0; i < n; i++)
			want[i] += y[i];
		test_close(dev, "dropout added", bz, want, n, type, test_tolerance(type), 0.1);
		device_free(dev, b1);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bz);
		free(ones);
		free(mask);
		free(want);
		free(x);
		free(y);
	}
}
END_TEST

static double *mask_of(const struct device_dropout *d, int64_t n)
{
	double *ones = calloc((size_t)n, sizeof(*ones)), *mask;
	void *b;

	for (int64_t i = 0; i < n; i++)
		ones[i] = 1;
	b = test_buffer(dev, ones, n, DTYPE_F32);
	device_dropout(dev, d, b, false, b, DTYPE_F32, n);
	mask = test_fetch_values(dev, b, n, DTYPE_F32);
	device_free(dev, b);
	free(ones);
	return mask;
}

/* The same call has the same mask; another seed, or another number, has one that agrees by chance alone. */
START_TEST(masks_are_their_own)
{
	static const struct device_dropout others[] = {{0.5, 1, 1}, {0.5, 2, 1}, {0.5, 1, 2}};
	enum { N = 20000 };

	FOR_ALL
	{
		double *first = mask_of(&others[0], N);

		for (size_t k = 0; k < COUNT(others); k++) {
			double *other = mask_of(&others[k], N);
			int same = 0;

			for (int i = 0; i < N; i++)
				same += first[i] == other[i];
			if (k == 0)
				ck_assert_int_eq(same, N);
			else
				ck_assert_msg(abs(same - N / 2) < N / 40, "%d of %d", same, N);
			free(other);
		}
		free(first);
	}
}
END_TEST

/* Moments and bounds are those of a uniform distribution; the same call has the same noise, another seed or
 * number has its own. What is added is a function of the place, in whatever pieces. */
START_TEST(noise_is_uniform)
{
	static const struct device_noise same = {0.5f, 7, 3, 0};
	enum { N = 40003, PIECE = 1001 };

	FOR_ALL
	{
		double *zeros = calloc(N, sizeof(*zeros)), *x = test_values(N, 1), *noise, *again, *narrow;
		double sum = 0, squares = 0, least = 0, most = 0;
		void *b0 = test_buffer(dev, zeros, N, DTYPE_F32), *b1 = test_buffer(dev, zeros, N, DTYPE_F32),
		     *bx = test_buffer(dev, x, N, type);

		device_add_noise(dev, &same, b0, DTYPE_F32, N);
		noise = test_fetch_values(dev, b0, N, DTYPE_F32);
		for (int i = 0; i < N; i++) {
			sum += noise[i];
			squares += noise[i] * noise[i];
			least = fmin(least, noise[i]);
			most = fmax(most, noise[i]);
		}
		/* Four standard deviations of these means. */
		ck_assert_msg(fabs(sum / N) < 4 * 0.2887 / 200 &&
		                  fabs(squares / N - 0.25 / 3) < 4 * 0.0745 / 200,
		              "mean %g, mean square %g", sum / N, squares / N);
		ck_assert_msg(least > -0.5 && least < -0.499 && most < 0.5 && most > 0.499, "from %g to %g",
		              least, most);
		for (int from = 0; from < N; from += PIECE) {
			struct device_noise piece = same;
			int64_t n = N - from < PIECE ? N - from : PIECE;

			piece.first = from;
			device_add_noise(dev, &piece, (float *)b1 + from, DTYPE_F32, n);
		}
		again = test_fetch_values(dev, b1, N, DTYPE_F32);
		for (int i = 0; i < N; i++)
			ck_assert_double_eq(again[i], noise[i]);
		device_add_noise(dev, &same, bx, type, N);
		for (int i = 0; i < N; i++)
			x[i] += noise[i];
		test_close(dev, "noise", bx, x, N, type, test_tolerance(type), 0.1);
		for (int k = 0; k < 3; k++) {
			struct device_noise other = same;
			double product = 0;

			other.seed += k == 0;
			other.number += k == 1;
			other.first += k == 2 ? (int64_t)1 << 32 : 0;
			device_zero(dev, b1, N * sizeof(float));
			device_add_noise(dev, &other, b1, DTYPE_F32, N);
			narrow = test_fetch_values(dev, b1, N, DTYPE_F32);
			for (int i = 0; i < N; i++)
				product += noise[i] * narrow[i];
			ck_assert_msg(fabs(product / N) < 4 * 0.25 / 3 / 200, "%d: correlated: %g", k,
			              product / N);
			free(narrow);
		}
		device_free(dev, b0);
		device_free(dev, b1);
		device_free(dev, bx);
		free(zeros);
		free(x);
		free(noise);
		free(again);
	}
}
END_TEST

START_TEST(row_norms)
{
	static const int shapes[][3] = {{1, 1, 1}, {3, 17, 2}, {17, 64, 8}, {40, 300, 5}, {5, 9000, 16}};

	FOR_ALL for (size_t s = 0; s < 2 * COUNT(shapes); s++)
	{
		struct device_row_norms n = {.rows = shapes[s / 2][0],
		                             .cols = shapes[s / 2][1],
		                             .rank = shapes[s / 2][2],
		                             .scale = 0.5f,
		                             .transposed = s % 2,
		                             .type = type};
		double *w = test_values(n.rows * n.cols, 1), *b = test_values(n.rows * n.rank, 2),
		       *a = test_values(n.rank * n.cols, 3), *want = test_values(n.rows, 4);
		void *bw = test_buffer(dev, w, n.rows * n.cols, type),
		     *bb = test_buffer(dev, b, n.rows * n.rank, type),
		     *ba = test_buffer(dev, a, n.rank * n.cols, type),
		     *norm = test_buffer(dev, want, n.rows, DTYPE_F32);

		for (int64_t j = 0; j < n.rows; j++) {
			double sum = 0;

			for (int64_t c = 0; c < n.cols; c++) {
				double x = w[n.transposed ? c * n.rows + j : j * n.cols + c];

				for (int64_t k = 0; k < n.rank; k++)
					x += 0.5 * b[j * n.rank + k] * a[k * n.cols + c];
				sum += x * x;
			}
			want[j] = sqrt(sum);
		}
		device_row_norms(dev, &n, norm, bw, bb, ba);
		test_close(dev, "row norms", norm, want, n.rows, DTYPE_F32, 1e-5, 1e-6);
		device_free(dev, bw);
		device_free(dev, bb);
		device_free(dev, ba);
		device_free(dev, norm);
		free(w);
		free(b);
		free(a);
		free(want);
	}
}
END_TEST

START_TEST(scaled_columns)
{
	enum { ROWS = 7, COLS = 37, LD = 50, N = ROWS * LD };

	FOR_ALL for (int which = 0; which < 16; which++)
	{
		double *x = test_values(N, 1), *times = test_values(N, 2), *magnitude = test_values(COLS, 3),
		       *bias = test_values(COLS, 4), *norm = test_values(COLS, 5), *want = test_values(N, 6);
		bool in_place = which & 8;
		void *bx, *by, *bt, *bm, *bb, *bn;

		for (int j = 0; j < COLS; j++)
			norm[j] = j == 5 ? 0 : fabs(norm[j]) + 0.5;
		bx = test_buffer(dev, x, N, type);
		by = test_buffer(dev, want, N, type);
		bt = test_buffer(dev, times, N, type);
		bm = test_buffer(dev, magnitude, COLS, type);
		bb = test_buffer(dev, bias, COLS, type);
		bn = test_buffer(dev, norm, COLS, DTYPE_F32);
		if (in_place)
			memcpy(want, x, N * sizeof(*x));
		for (int t = 0; t < ROWS; t++)
			for (int j = 0; j < COLS; j++) {
				double out = x[t * LD + j] * (which & 1 ? times[t * LD + j] : 1);

				out *= which & 2 ? magnitude[j] : 1;
				want[t * LD + j] =
				    (norm[j] > 0 ? out / norm[j] : 0) + (which & 4 ? bias[j] : 0);
			}
		device_scale_columns(dev,
		                     &(struct device_columns){.rows = ROWS,
		                                              .cols = COLS,
		                                              .ld = LD,
		                                              .times = which & 1 ? bt : NULL,
		                                              .magnitude = which & 2 ? bm : NULL,
		                                              .bias = which & 4 ? bb : NULL,
		                                              .norm = bn,
		                                              .type = type},
		                     in_place ? bx : by, bx);
		test_close(dev, "scaled columns", in_place ? bx : by, want, N, type, test_tolerance(type),
		           1e-1);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bt);
		device_free(dev, bm);
		device_free(dev, bb);
		device_free(dev, bn);
		free(x);
		free(times);
		free(magnitude);
		free(bias);
		free(norm);
		free(want);
	}
}
END_TEST

TCase *test_device_adapters(void)
{
	TCase *tc = tcase_create("adapters");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, dropout_keeps_the_mean);
	tcase_add_test(tc, noise_is_uniform);
	tcase_add_test(tc, masks_are_their_own);
	tcase_add_test(tc, row_norms);
	tcase_add_test(tc, scaled_columns);
	return tc;
}
