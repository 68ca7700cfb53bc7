/* SPDX-License-Identifier: Apache-2.0 */
/* Tests matrix products and the operations that are fused with them, in the way of test_device.c. */
#include "test_device_each.h"

START_TEST(gemm)
{
	static const int64_t shapes[][3] = {{1, 1, 1},   {3, 17, 65},    {17, 65, 3},
	                                    {65, 3, 17}, {128, 96, 300}, {2, 130, 70}};
	static const float factors[][2] = {{1, 0}, {1, 1}, {0.5f, 1}, {2, 0.25f}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 4 * COUNT(factors) * 2; s++)
	{
		const int64_t *mnk = shapes[s / (8 * COUNT(factors))];
		const float *f = factors[s / 8 % COUNT(factors)];

		if (s / 8 % COUNT(factors) > 1 && s / (8 * COUNT(factors)) % 2)
			continue; /* all factors on every other shape */
		bool ta = s & 1, tb = s & 2;
		int64_t m = mnk[0], n = mnk[1], k = mnk[2], pad = 5;
		int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
		int64_t na = (ta ? k : m) * lda, nb = (tb ? n : k) * ldb, nc = m * ldc;
		enum dtype c_type = s & 4 ? type : DTYPE_F32;
		double *a = test_values(na, 1), *b = test_values(nb, 2), *c = test_values(nc, 3);
		void *da = test_buffer(dev, a, na, type), *db = test_buffer(dev, b, nb, type);
		void *dc = test_buffer(dev, c, nc, c_type);

		device_gemm(dev, &(struct device_gemm){.transpose_a = ta,
		                                       .transpose_b = tb,
		                                       .m = m,
		                                       .n = n,
		                                       .k = k,
		                                       .alpha = f[0],
		                                       .beta = f[1],
		                                       .a = da,
		                                       .b = db,
		                                       .c = dc,
		                                       .lda = lda,
		                                       .ldb = ldb,
		                                       .ldc = ldc,
		                                       .ab_type = type,
		                                       .c_type = c_type});
		for (int64_t i = 0; i < m; i++) {
			for (int64_t j = 0; j < n; j++) {
				double sum = 0;

				for (int64_t p = 0; p < k; p++)
					sum += a[ta ? p * lda + i : i * lda + p] *
					       b[tb ? j * ldb + p : p * ldb + j];
				c[i * ldc + j] = f[0] * sum + f[1] * c[i * ldc + j];
			}
		}
		test_close(dev, "gemm", dc, c, nc, c_type, test_tolerance(c_type), 8 + (double)k / 8);
		device_free(dev, da);
		device_free(dev, db);
		device_free(dev, dc);
		free(a);
		free(b);
		free(c);
	}
}
END_TEST

/* Biases with the product: fused where the library can, in separate kernels where it cannot or fusing is
 * off. */
static void try_biases(void)
{
	static const int64_t shapes[][3] = {{1, 1, 1}, {17, 65, 3}, {40, 96, 70}, {70, 64, 33}, {129, 8, 50}};

	for (size_t s = 0; s < COUNT(shapes) * 2; s++) {
		int64_t rows = shapes[s / 2][0], out = shapes[s / 2][1], in = shapes[s / 2][2];
		float beta = s & 1;
		double *x = test_values(rows * in, 1), *w = test_values(out * in, 2);
		double *b = test_values(out, 3), *y = test_values(rows * out, 4);
		double *dw = test_values(out * in, 5), *db = test_values(out, 6);
		void *bx, *bw, *bb, *by;
		float *bdw, *bdb;

		bx = test_buffer(dev, x, rows * in, type);
		bw = test_buffer(dev, w, out * in, type);
		bb = test_buffer(dev, b, out, type);
		by = test_buffer(dev, y, rows * out, type);
		bdw = test_buffer(dev, dw, out * in, DTYPE_F32);
		bdb = test_buffer(dev, db, out, DTYPE_F32);
		device_gemm(dev, &(struct device_gemm){.transpose_b = true,
		                                       .m = rows,
		                                       .n = out,
		                                       .k = in,
		                                       .alpha = 1,
		                                       .beta = beta,
		                                       .a = bx,
		                                       .b = bw,
		                                       .c = by,
		                                       .lda = in,
		                                       .ldb = in,
		                                       .ldc = out,
		                                       .ab_type = type,
		                                       .c_type = type,
		                                       .bias = bb});
		for (int64_t i = 0; i < rows * out; i++) {
			y[i] = beta * y[i] + b[i % out];
			for (int64_t k = 0; k < in; k++)
				y[i] += x[i / out * in + k] * w[i % out * in + k];
		}
		test_close(dev, "gemm with bias", by, y, rows * out, type, 2 * test_tolerance(type),
		           4 + (double)in / 8);
		/* The gradients for the present y. */
		free(y);
		y = test_fetch_values(dev, by, rows * out, type);
		device_gemm(dev, &(struct device_gemm){.transpose_a = true,
		                                       .m = out,
		                                       .n = in,
		                                       .k = rows,
		                                       .alpha = 1,
		                                       .beta = beta,
		                                       .a = by,
		                                       .b = bx,
		                                       .c = bdw,
		                                       .lda = out,
		                                       .ldb = in,
		                                       .ldc = in,
		                                       .ab_type = type,
		                                       .c_type = DTYPE_F32,
		                                       .d_bias = bdb});
		for (int64_t i = 0; i < out * in; i++) {
			dw[i] *= beta;
			for (int64_t t = 0; t < rows; t++)
				dw[i] += y[t * out + i / in] * x[t * in + i % in];
		}
		for (int64_t i = 0; i < rows * out; i++)
			db[i % out] += y[i];
		test_close(dev, "d_weights", bdw, dw, out * in, DTYPE_F32, 2e-6, 40 + (double)rows);
		test_close(dev, "d_bias", bdb, db, out, DTYPE_F32, 2e-6, 40 + (double)rows);
		device_free(dev, bx);
		device_free(dev, bw);
		device_free(dev, bb);
		device_free(dev, by);
		device_free(dev, bdw);
		device_free(dev, bdb);
		free(x);
		free(w);
		free(b);
		free(y);
		free(dw);
		free(db);
	}
}

/* The CPU fuses nothing. */
#ifdef TEST_GPU
#define FUSINGS 4
#else
#define FUSINGS 1
#endif

START_TEST(gemm_biases)
{
	for (int unfused = 0; unfused < FUSINGS; unfused++)
		FOR_ALL
		{
			struct device_options o = {.threads = threads, .unfused = unfused};
			struct error err = ERROR_INIT;

			device_destroy(dev);
			ck_ok(device_create(&o, &dev, &err), &err);
			ck_ok(device_reserve_scratch(dev, 64 << 20, &err), &err);
			try_biases();
		}
}
END_TEST

TCase *test_device_gemm(void)
{
	TCase *tc = tcase_create("products");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, gemm);
	tcase_add_test(tc, gemm_biases);
	return tc;
}
