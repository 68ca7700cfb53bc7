/* SPDX-License-Identifier: Apache-2.0 */
/* Tests fp8 in the way of test_device.c: its codes, how matrices are quantized, and their products. */
#include "engine/device/fp8.h"

#include "test_device_each.h"

static const enum fp8_format formats[] = {FP8_E4M3, FP8_E5M2};

/* What a code stands for, by the definition of the formats. */
static double value_of(enum fp8_format format, int code)
{
	int mantissa = format == FP8_E4M3 ? 3 : 2, bias = format == FP8_E4M3 ? 7 : 15;
	int e = (code & 0x7f) >> mantissa, m = code & ((1 << mantissa) - 1);
	double sign = code & 0x80 ? -1 : 1;

	if (format == FP8_E4M3 && (code & 0x7f) == 0x7f)
		return NAN;
	if (format == FP8_E5M2 && e == 31)
		return m ? NAN : sign * INFINITY;
	return sign * (e ? ldexp(m + (1 << mantissa), e - bias - mantissa) : ldexp(m, 1 - bias - mantissa));
}

/* The nearest code, found among all; of two as near the even one. */
static int nearest(enum fp8_format format, double x)
{
	int best = 0;

	if (isnan(x))
		return 0x7f;
	for (int c = 0; c < 0x7f; c++) {
		double distance = fabs(value_of(format, c) - fabs(x)),
		       least = fabs(value_of(format, best) - fabs(x));

		if (isfinite(value_of(format, c)) &&
		    (fabs(x) > 1e30 || distance < least || (distance == least && c % 2 == 0)))
			best = c;
	}
	return best | (signbit(x) ? 0x80 : 0);
}

static void try_float(enum fp8_format format, double x)
{
	ck_assert_msg(fp8_from_float(format, (float)x) == nearest(format, (float)x),
	              "E%dM%d of %.9g is 0x%02x, not 0x%02x", format == FP8_E4M3 ? 4 : 5,
	              format == FP8_E4M3 ? 3 : 2, x, fp8_from_float(format, (float)x),
	              nearest(format, (float)x));
}

START_TEST(numbers)
{
	for (size_t f = 0; f < COUNT(formats); f++) {
		uint64_t state = 1;

		for (int c = 0; c < 256; c++) {
			double want = value_of(formats[f], c), got = fp8_to_float(formats[f], (uint8_t)c);

			ck_assert_msg(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want),
			              "code 0x%02x is %g, not %g", c, got, want);
			if (isfinite(want))
				ck_assert_int_eq(fp8_from_float(formats[f], (float)want), c);
		}
		/* All numbers between two codes, on both sides of the middle, and there. */
		for (int c = 0; isfinite(value_of(formats[f], c + 1)) && c < 0x7e; c++) {
			float low = (float)value_of(formats[f], c), high = (float)value_of(formats[f], c + 1);
			float middle = (low + high) / 2;

			for (int sign = -1; sign <= 1; sign += 2) {
				try_float(formats[f], sign * middle);
				try_float(formats[f], sign * nextafterf(middle, low));
				try_float(formats[f], sign * nextafterf(middle, high));
			}
		}
		for (int i = 0; i < 20000; i++)
			try_float(formats[f], test_random(&state) * exp(12 * test_random(&state)));
		try_float(formats[f], NAN);
		try_float(formats[f], 1e31);
		try_float(formats[f], 464);
		try_float(formats[f], 61440);
		try_float(formats[f], 0x1p-140f);
		ck_assert_int_eq(fp8_from_float(formats[f], -INFINITY), formats[f] == FP8_E4M3 ? 0xfe : 0xfb);
	}
}
END_TEST

/* Fails unless *amax is the largest magnitude of a matrix on the device: of each of its elements, and of the
 * pass that quantizing makes without it, bit for bit; and with it, quantizing has the same results. */
static void check_amax(const char *what, const float *amax, const void *x, int64_t rows, int64_t cols,
                       int64_t ld)
{
	int64_t n = rows * ld, padded = fp8_padded(rows);
	double *values = test_fetch_values(dev, x, n, type);
	bool quantizes = rows > 0 && cols % FP8_MULTIPLE == 0;
	float got, want = 0, scales[2][2] = {{0}};
	uint8_t *codes[2] = {NULL, NULL};

	for (int64_t i = 0; i < rows * cols; i++)
		want = fmaxf(want, fabsf((float)values[i / cols * ld + i % cols]));
	test_fetch(dev, &got, amax, sizeof(got));
	ck_assert_msg(!memcmp(&got, &want, sizeof(got)), "%s: %a, not %a", what, got, want);
	for (int i = 0; i < 2 && quantizes; i++) {
		struct device_fp8 q = {
		    .format = FP8_E5M2, .type = type, .rows = rows, .cols = cols, .ld = ld};

		codes[i] = calloc(1, (size_t)(cols * padded));
		q.turned = test_put(dev, codes[i], (size_t)(cols * padded));
		q.scale = test_put(dev, codes[i], sizeof(scales[i]));
		q.amax = i ? amax : NULL;
		device_fp8_quantize(dev, &q, x);
		test_fetch(dev, codes[i], q.turned, (size_t)(cols * padded));
		test_fetch(dev, scales[i], q.scale, sizeof(scales[i]));
		ck_assert_msg(!memcmp(&scales[i][1], &want, sizeof(want)), "%s: quantized", what);
		device_free(dev, q.turned);
		device_free(dev, q.scale);
	}
	if (quantizes) {
		ck_assert(!memcmp(codes[0], codes[1], (size_t)(cols * padded)));
		ck_assert(!memcmp(scales[0], scales[1], sizeof(scales[0])));
		free(codes[0]);
		free(codes[1]);
	}
	free(values);
}

/* Kernels find the largest magnitude of what they write: nothing in the gaps between rows, and nothing that
 * was there before, counts. */
START_TEST(largest_of_norms)
{
	/* Rows that fit into the registers of a warp or of a block, and longer ones. */
	static const int64_t shapes[][3] = {{1, 1, 1},       {3, 17, 20},      {70, 48, 48},
	                                    {130, 200, 208}, {3, 1040, 1040},  {2, 1500, 1507},
	                                    {9, 1000, 1000}, {67, 2048, 2048},
#ifdef TEST_GPU
	                                    {1, 4000, 4003}, {2, 8208, 8208}
#endif
	};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 3; s++)
	{
		int64_t rows = shapes[s / 3][0], cols = shapes[s / 3][1], ld = shapes[s / 3][2],
		        n = rows * ld;
		double *x = test_values(n, s), *w = test_values(cols, 2), *gap = test_values(n, 3);
		float *statistics = test_buffer(dev, x, rows, DTYPE_F32),
		      *dw = test_buffer(dev, w, cols, DTYPE_F32);
		float before = 1e30f, *amax = test_put(dev, &before, sizeof(before));
		struct device_norm norm = {.rows = rows,
		                           .groups = 1,
		                           .cols = (int)cols,
		                           .ld_x = ld,
		                           .ld_y = ld,
		                           .eps = 1e-3f,
		                           .type = type,
		                           .amax = amax};
		void *bx, *by, *bw;

		for (int64_t i = 0; i < n; i++)
			gap[i] = i % ld < cols ? gap[i] : 1000;
		if (s % 3 == 2) /* it stays a NaN, as do those that it is added to, and is not the largest */
			x[n / ld / 2 * ld] = NAN;
		bx = test_buffer(dev, x, n, type);
		by = test_buffer(dev, gap, n, type);
		bw = test_buffer(dev, w, cols, type);
		if (s % 3)
			device_add_rmsnorm_forward(dev, &norm, by, statistics, bx, bx, bw);
		else
			device_rmsnorm_forward(dev, &norm, by, statistics, bx, bw);
		check_amax("a norm", amax, by, rows, cols, ld);
		device_rmsnorm_backward(dev, &norm, by, s % 3, dw, DTYPE_F32, bx, bx, statistics, bw);
		check_amax("the gradient of a norm", amax, by, rows, cols, ld);
		test_guard(dev, "amax", amax, sizeof(float));
		norm.rows = 0;
		device_rmsnorm_forward(dev, &norm, by, statistics, bx, bw);
		check_amax("nothing", amax, by, 0, cols, ld);
		device_free(dev, statistics);
		device_free(dev, dw);
		device_free(dev, amax);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bw);
		free(x);
		free(w);
		free(gap);
	}
}
END_TEST

START_TEST(largest_of_swiglu)
{
	static const int64_t shapes[][2] = {{1, 1}, {3, 17}, {64, 48}, {5, 1040}, {700, 16}, {2, 2056}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
		double *x = test_values(2 * n, s), *d = test_values(n, 9);
		float before[2] = {1e30f, 1e30f}, *amax = test_put(dev, before, sizeof(before));
		void *bx = test_buffer(dev, x, 2 * n, type), *bd = test_buffer(dev, d, n, type);
		void *by = test_buffer(dev, d, n, type), *bdx = test_buffer(dev, x, 2 * n, type);

		device_swiglu_forward(dev, by, bx, rows, (int)cols, type, amax);
		check_amax("SwiGLU", amax, by, rows, cols, cols);
		device_swiglu_backward(dev, bdx, NULL, bd, bx, rows, (int)cols, type, amax);
		check_amax("no output", amax, by, 0, cols, cols);
		check_amax("the gradient of SwiGLU", amax + 1, bdx, rows, 2 * cols, 2 * cols);
		device_swiglu_backward(dev, bx, by, bd, bx, rows, (int)cols, type, amax);
		check_amax("SwiGLU again", amax, by, rows, cols, cols);
		check_amax("the gradient of SwiGLU in place", amax + 1, bx, rows, 2 * cols, 2 * cols);
		test_guard(dev, "amax", amax, sizeof(before));
		device_free(dev, amax);
		device_free(dev, bx);
		device_free(dev, bd);
		device_free(dev, by);
		device_free(dev, bdx);
		free(x);
		free(d);
	}
}
END_TEST

static void try_quantize(enum fp8_format format, int64_t rows, int64_t cols, int64_t ld, const double *x,
                         bool codes, bool turned)
{
	int64_t n = rows * ld, padded = fp8_padded(rows);
	double *values = malloc((size_t)n * sizeof(*values));
	uint8_t *ones = calloc(1, (size_t)(cols * padded)), *got = malloc((size_t)(cols * padded));
	struct device_fp8 q = {.format = format, .type = type, .rows = rows, .cols = cols, .ld = ld};
	float scale[2], amax = 0, factor;
	void *src;

	memset(ones, 0xff, (size_t)(cols * padded));
	memcpy(values, x, (size_t)n * sizeof(*values));
	src = test_buffer(dev, values, n, type);
	q.codes = codes ? test_put(dev, ones, (size_t)(rows * cols)) : NULL;
	q.turned = turned ? test_put(dev, ones, (size_t)(cols * padded)) : NULL;
	q.scale = test_put(dev, ones, sizeof(scale));
	device_fp8_quantize(dev, &q, src);
	for (int64_t i = 0; i < rows * cols; i++)
		amax = fmaxf(amax, fabsf((float)values[i / cols * ld + i % cols]));
	factor = amax > 0 && isfinite(amax) ? (format == FP8_E4M3 ? 448 : 57344) / amax : 1;
	test_fetch(dev, scale, q.scale, sizeof(scale));
	ck_assert(scale[0] == 1 / factor);
	ck_assert(scale[1] == amax);
	if (codes) {
		test_fetch(dev, got, q.codes, (size_t)(rows * cols));
		for (int64_t i = 0; i < rows * cols; i++)
			ck_assert_int_eq(
			    got[i], fp8_from_float(format, (float)values[i / cols * ld + i % cols] * factor));
		test_guard(dev, "codes", q.codes, (size_t)(rows * cols));
	}
	if (turned) {
		test_fetch(dev, got, q.turned, (size_t)(cols * padded));
		for (int64_t i = 0; i < cols * padded; i++) {
			int64_t row = i % padded, col = i / padded;

			ck_assert_int_eq(
			    got[i],
			    row < rows ? fp8_from_float(format, (float)values[row * ld + col] * factor) : 0);
		}
		test_guard(dev, "turned codes", q.turned, (size_t)(cols * padded));
	}
	test_guard(dev, "scale", q.scale, sizeof(scale));
	device_free(dev, src);
	device_free(dev, q.codes);
	device_free(dev, q.turned);
	device_free(dev, q.scale);
	free(values);
	free(ones);
	free(got);
}

START_TEST(quantize)
{
	static const int64_t shapes[][3] = {
	    {1, 16, 16}, {17, 48, 48}, {64, 80, 112}, {33, 160, 160}, {130, 64, 72}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		int64_t rows = shapes[s][0], cols = shapes[s][1], ld = shapes[s][2];
		double *x = test_values(rows * ld, s);

		for (size_t f = 0; f < COUNT(formats); f++) {
			try_quantize(formats[f], rows, cols, ld, x, true, true);
			try_quantize(formats[f], rows, cols, ld, x, true, false);
			try_quantize(formats[f], rows, cols, ld, x, false, true);
		}
		x[(rows - 1) * ld + cols - 1] = NAN; /* stays one, and is not the largest */
		try_quantize(FP8_E4M3, rows, cols, ld, x, true, true);
		x[(rows - 1) * ld + cols - 1] = -INFINITY;
		try_quantize(FP8_E5M2, rows, cols, ld, x, true, true);
		memset(x, 0, (size_t)(rows * ld) * sizeof(*x));
		try_quantize(FP8_E4M3, rows, cols, ld, x, true, true);
		free(x);
	}
}
END_TEST

/* A matrix of random codes, without NaNs, and what they stand for. */
static void *random_codes(enum fp8_format format, int64_t n, uint64_t seed, double *values)
{
	uint8_t *host = malloc((size_t)n);
	void *p;

	for (int64_t i = 0; i < n; i++) {
		host[i] = fp8_from_float(format, (float)(test_random(&seed) * 8));
		values[i] = value_of(format, host[i]);
	}
	p = test_put(dev, host, (size_t)n);
	free(host);
	return p;
}

START_TEST(products)
{
	static const int64_t shapes[][3] = {{1, 16, 16}, {16, 32, 48}, {77, 48, 80}, {130, 80, 32}};
	static const enum fp8_format operands[][2] = {
	    {FP8_E4M3, FP8_E4M3}, {FP8_E5M2, FP8_E4M3}, {FP8_E4M3, FP8_E5M2}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * COUNT(operands) * 8 && device_supports_fp8(dev); s++)
	{
		const int64_t *mnk = shapes[s / 8 / COUNT(operands)];
		const enum fp8_format *format = operands[s / 8 % COUNT(operands)];
		int64_t m = mnk[0], n = mnk[1], k = mnk[2], ldc = n + 16;
		double *a = malloc((size_t)(m * k) * sizeof(*a)), *b = malloc((size_t)(n * k) * sizeof(*b));
		double *c = test_values(m * ldc, 3), *bias = test_values(n, 4);
		enum dtype c_type = s & 1 ? DTYPE_F32 : type;
		float beta = s & 2 ? 1 : 0, scale_a = 0.37f, scale_b = 1.25e-3f;
		double most = 0, tolerance, scale;
		void *da, *db, *dc, *dbias = NULL, *sa, *sb;

		da = random_codes(format[0], m * k, 5, a);
		db = random_codes(format[1], n * k, 6, b);
		dc = test_buffer(dev, c, m * ldc, c_type);
		sa = test_put(dev, &scale_a, sizeof(scale_a));
		sb = test_put(dev, &scale_b, sizeof(scale_b));
		if (s & 4)
			dbias = test_buffer(dev, bias, n, c_type);
		device_gemm(dev, &(struct device_gemm){.transpose_b = true,
		                                       .m = m,
		                                       .n = n,
		                                       .k = k,
		                                       .alpha = 1,
		                                       .beta = beta,
		                                       .a = da,
		                                       .b = db,
		                                       .c = dc,
		                                       .lda = k,
		                                       .ldb = k,
		                                       .ldc = ldc,
		                                       .ab_type = type,
		                                       .c_type = c_type,
		                                       .bias = dbias,
		                                       .fp8_a = format[0],
		                                       .fp8_b = format[1],
		                                       .scale_a = sa,
		                                       .scale_b = sb});
		for (int64_t i = 0; i < m; i++)
			for (int64_t j = 0; j < n; j++) {
				double sum = 0, all = 0;

				for (int64_t p = 0; p < k; p++) {
					sum += a[i * k + p] * b[j * k + p];
					all += fabs(a[i * k + p] * b[j * k + p]);
				}
				most = MAX(most, (double)scale_a * scale_b * all);
				c[i * ldc + j] = (double)scale_a * scale_b * sum + beta * c[i * ldc + j] +
				                 (dbias ? bias[j] : 0);
			}
		tolerance = 2 * test_tolerance(c_type);
		scale = 1 + (double)k / 100;
#ifdef TEST_ENGINE_CUDA
		/* Tensor cores of Hopper add products of fp8 with 13 bits behind the point of the largest. */
		scale = MAX(scale, most * 0x1p-13 / tolerance);
#endif
		test_close(dev, "fp8 product", dc, c, m * ldc, c_type, tolerance, scale);
		device_free(dev, da);
		device_free(dev, db);
		device_free(dev, dc);
		device_free(dev, dbias);
		device_free(dev, sa);
		device_free(dev, sb);
		free(a);
		free(b);
		free(c);
		free(bias);
	}
}
END_TEST

TCase *test_device_fp8(void)
{
	TCase *tc = tcase_create("fp8");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small");
	tcase_add_test(tc, numbers);
	tcase_add_test(tc, quantize);
	tcase_add_test(tc, largest_of_norms);
	tcase_add_test(tc, largest_of_swiglu);
	tcase_add_test(tc, products);
	return tc;
}
