/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares every operation of device.h except attention with a plain float64 computation, at odd sizes and
 * with both dtypes. Each comparison has a tolerance: |got - want| <= tolerance · (|want| + scale); bf16
 * results differ by their rounding (slightly more than 2^-8) and sums by the rounding of fp32.
 */
#include "test_device_each.h"

START_TEST(describes)
{
	dev = test_device(2);
#if defined(TEST_ENGINE_SIMT)
	ck_assert_ptr_nonnull(strstr(device_describe(dev), "cuda:0: SIMT emulator"));
#elif defined(TEST_ENGINE_CUDA)
	ck_assert_ptr_nonnull(strstr(device_describe(dev), "cuda:0: "));
#else
	ck_assert_ptr_nonnull(strstr(device_describe(dev), "cpu: 2 threads"));
	ck_assert_ptr_nonnull(strstr(device_describe(dev), "OpenBLAS"));
	ck_assert_ptr_nonnull(strstr(device_describe(dev), "oneDNN"));
#endif
	ck_assert(device_supports(dev, DTYPE_F32));
#if defined(TEST_GPU)
	ck_assert(device_supports(dev, DTYPE_F16));
#else
	ck_assert(!device_supports(dev, DTYPE_F16)); /* computed in fp32 */
#endif
	device_destroy(dev);
}
END_TEST

START_TEST(elementwise)
{
	static const int64_t sizes[] = {1, 3, 17, 65, 1000, 40001};

	FOR_ALL for (size_t s = 0; s < COUNT(sizes); s++)
	{
		int64_t n = sizes[s];
		double *x = test_values(n, 1), *y = test_values(n, 2), squares = 3, sum = 4, sums[2] = {3, 4},
		       *got;
		void *dx = test_buffer(dev, x, n, type), *dy = test_buffer(dev, y, n, type);
		double *z = test_values(n, 1);
		float *f = test_buffer(dev, z, n, DTYPE_F32);
		double *dsums = test_put(dev, sums, sizeof(sums));

		device_add(dev, dx, dy, type, n);
		for (int64_t i = 0; i < n; i++)
			x[i] += y[i];
		test_close(dev, "add", dx, x, n, type, test_tolerance(type), 0);
		free(x);
		x = test_fetch_values(dev, dx, n, type);
		for (int64_t i = 0; i < n; i++)
			x[i] *= 0.37;
		device_scale(dev, dx, type, 0.37f, n);
		test_close(dev, "scale", dx, x, n, type, test_tolerance(type), 0);

		got = test_fetch_values(dev, dx, n, type);
		for (int64_t i = 0; i < n; i++) {
			squares += got[i] * got[i];
			sum += z[i];
		}
		free(got);
		device_sum_squares(dev, dx, type, n, &dsums[0]);
		device_sum(dev, f, n, &dsums[1]);
		test_fetch(dev, sums, dsums, sizeof(sums));
		ck_assert_double_eq_tol(sums[0], squares, 1e-6 * squares);
		ck_assert_double_eq_tol(sums[1], sum, 1e-6 * (double)n);

		device_cast(dev, f, DTYPE_F32, dy, type, n);
		test_close(dev, "cast", f, y, n, DTYPE_F32, 0, 0);
		device_cast(dev, dx, type, f, DTYPE_F32, n);
		test_close(dev, "cast back", dx, y, n, type, 0, 0);
		device_zero(dev, dx, (size_t)n * dtype_size(type));
		got = test_fetch_values(dev, dx, n, type);
		for (int64_t i = 0; i < n; i++)
			ck_assert(got[i] == 0);
		free(got);
		device_copy(dev, dx, dy, (size_t)n * dtype_size(type));
		test_close(dev, "copy", dx, y, n, type, 0, 0);
		device_free(dev, dx);
		device_free(dev, dy);
		device_free(dev, f);
		device_free(dev, dsums);
		free(x);
		free(y);
		free(z);
	}
}
END_TEST

/* Casts 32 elements of the host on the device. */
static void cast32(void *dst, enum dtype dst_type, const void *src, enum dtype src_type)
{
	const float room[32] = {0};
	void *from = test_put(dev, src, 32 * dtype_size(src_type)), *to = test_put(dev, room, sizeof(room));

	device_cast(dev, to, dst_type, from, src_type, 32);
	test_fetch(dev, dst, to, 32 * dtype_size(dst_type));
	device_free(dev, from);
	device_free(dev, to);
}

START_TEST(casts_round_to_nearest_even)
{
	static const uint32_t bits[] = {0x00000000, 0x80000000, 0x3f800000, 0x3f808000, 0x3f818000,
	                                0x3f808001, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff,
	                                0x477fefff, 0x477ff000, 0x38800000, 0xb8800000, 0x387fe000,
	                                0x33800000, 0x33000000, 0x33000001};
	float in[32] = {0}, back[32];
	uint16_t bf[32], half[32];

	threads = 1;
	setup();
	memcpy(in, bits, sizeof(bits));
	cast32(bf, DTYPE_BF16, in, DTYPE_F32);
	for (size_t i = 0; i < COUNT(bits); i++)
		ck_assert_msg(isnan(in[i]) ? isnan(bf16_to_float(bf[i])) : bf[i] == bf16_from_float(in[i]),
		              "%08x gives %04x", bits[i], bf[i]); /* a GPU has one NaN, 7fff */
	cast32(half, DTYPE_F16, in, DTYPE_F32);
	ck_assert_uint_eq(half[2], 0x3c00);
	ck_assert_uint_eq(half[6], 0x7c00);
	ck_assert_uint_eq(half[7], 0xfc00);
	ck_assert((half[8] & 0x7fff) > 0x7c00);
	ck_assert_uint_eq(half[10], 0x7bff);
	ck_assert_uint_eq(half[11], 0x7c00);
	ck_assert_uint_eq(half[12], 0x0400);
	ck_assert_uint_eq(half[14],
	                  0x03ff + 1); /* 0x387fe000 is halfway between two: rounded to even, upward */
	ck_assert_uint_eq(half[15], 0x0001);
	ck_assert_uint_eq(half[16], 0x0000);
	ck_assert_uint_eq(half[17], 0x0001);
	/* Every fp16 number is unchanged by the conversion to fp32 and back. */
	for (uint32_t h = 0; h < 0x10000; h += 32) {
		for (uint32_t i = 0; i < 32; i++)
			half[i] = (uint16_t)(h + i);
		cast32(back, DTYPE_F32, half, DTYPE_F16);
		cast32(bf, DTYPE_F16, back, DTYPE_F32);
		for (uint32_t i = 0; i < 32; i++)
			ck_assert(bf[i] == half[i] || ((half[i] & 0x7c00) == 0x7c00 && (half[i] & 0x3ff)));
	}
	teardown();
}
END_TEST

START_TEST(bias)
{
	static const int64_t shapes[][2] = {{1, 1}, {3, 17}, {17, 65}, {300, 131}, {70, 64}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		int64_t rows = shapes[s / 2][0], cols = shapes[s / 2][1], ld = cols + (cols % 8 ? 7 : 8);
		enum dtype grad_type = s & 1 ? type : DTYPE_F32;
		double *x = test_values(rows * ld, 1), *b = test_values(cols, 2), *g = test_values(cols, 3);
		void *dx = test_buffer(dev, x, rows * ld, type), *db = test_buffer(dev, b, cols, type);
		void *dg = test_buffer(dev, g, cols, grad_type);

		device_bias_backward(dev, dg, grad_type, dx, rows, cols, ld, type);
		for (int64_t i = 0; i < rows; i++)
			for (int64_t j = 0; j < cols; j++)
				g[j] += x[i * ld + j];
		test_close(dev, "bias_backward", dg, g, cols, grad_type, test_tolerance(grad_type), 10);
		device_bias_forward(dev, dx, db, rows, cols, ld, type);
		for (int64_t i = 0; i < rows; i++)
			for (int64_t j = 0; j < cols; j++)
				x[i * ld + j] += b[j];
		test_close(dev, "bias_forward", dx, x, rows * ld, type, test_tolerance(type), 1e-3);
		device_free(dev, dx);
		device_free(dev, db);
		device_free(dev, dg);
		free(x);
		free(b);
		free(g);
	}
}
END_TEST

/* Where element (row, col) of the whole lies in the parts. */
static int64_t in_parts(const struct device_groups *g, int64_t row, int64_t col)
{
	int64_t width = g->cols / g->groups;

	return (col / width * g->rows + row) * g->ld_part + col % width;
}

START_TEST(column_groups)
{
	/* Rows, columns of a group, groups, and elements between rows of the whole and of the parts. */
	static const int64_t shapes[][5] = {{1, 1, 1, 0, 0},    {3, 5, 2, 0, 0},    {17, 16, 4, 32, 8},
	                                    {300, 24, 3, 8, 0}, {70, 64, 8, 13, 5}, {5, 128, 2, 256, 128}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		int64_t cols = shapes[s][1] * shapes[s][2];
		struct device_groups g = {.rows = shapes[s][0],
		                          .cols = cols,
		                          .ld_whole = cols + shapes[s][3],
		                          .ld_part = shapes[s][1] + shapes[s][4],
		                          .groups = (int)shapes[s][2],
		                          .type = type};
		int64_t n = g.rows * g.ld_whole, of_parts = g.groups * g.rows * g.ld_part;
		double *whole = test_values(n, 1), *parts = test_values(of_parts, 2);
		void *d_whole = test_buffer(dev, whole, n, type),
		     *d_parts = test_buffer(dev, parts, of_parts, type);

		device_part_columns(dev, &g, d_parts, d_whole);
		for (int64_t i = 0; i < g.rows; i++)
			for (int64_t j = 0; j < cols; j++)
				parts[in_parts(&g, i, j)] = whole[i * g.ld_whole + j];
		test_close(dev, "part_columns", d_parts, parts, of_parts, type, 0, 0);
		device_free(dev, d_parts);
		for (int64_t i = 0; i < of_parts; i++)
			parts[i] = -parts[i];
		d_parts = test_buffer(dev, parts, of_parts, type);
		device_join_columns(dev, &g, d_whole, d_parts);
		for (int64_t i = 0; i < g.rows; i++)
			for (int64_t j = 0; j < cols; j++)
				whole[i * g.ld_whole + j] = parts[in_parts(&g, i, j)];
		test_close(dev, "join_columns", d_whole, whole, n, type, 0, 0);
		device_free(dev, d_whole);
		device_free(dev, d_parts);
		free(whole);
		free(parts);
	}
}
END_TEST

START_TEST(embedding)
{
	static const int64_t shapes[][3] = {{1, 3, 1}, {17, 5, 65}, {300, 40, 130}, {90, 7, 64}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		int64_t tokens = shapes[s][0], vocab = shapes[s][1], hidden = shapes[s][2];
		double *table = test_values(vocab * hidden, 1), *d = test_values(tokens * hidden, 2);
		double *g = test_values(vocab * hidden, 3), *out = test_values(tokens * hidden, 4);
		int32_t *ids = malloc((size_t)tokens * sizeof(*ids)), *dids;
		void *dt = test_buffer(dev, table, vocab * hidden, type);
		void *dd = test_buffer(dev, d, tokens * hidden, type);
		void *dg = test_buffer(dev, g, vocab * hidden, DTYPE_F32);
		void *dout = test_buffer(dev, out, tokens * hidden, type);

		for (int64_t t = 0; t < tokens; t++)
			ids[t] = (int32_t)(t * 7 % vocab);
		dids = test_put(dev, ids, (size_t)tokens * sizeof(*ids));
		device_embedding_forward(dev, dout, dids, dt, tokens, (int)hidden, type);
		device_embedding_backward(dev, dg, DTYPE_F32, dd, dids, ids, tokens, vocab, (int)hidden,
		                          type);
		for (int64_t t = 0; t < tokens; t++) {
			for (int64_t i = 0; i < hidden; i++) {
				out[t * hidden + i] = table[ids[t] * hidden + i];
				g[ids[t] * hidden + i] += d[t * hidden + i];
			}
		}
		test_close(dev, "embedding_forward", dout, out, tokens * hidden, type, 0, 0);
		test_close(dev, "embedding_backward", dg, g, vocab * hidden, DTYPE_F32, 2e-6, 10);
		device_free(dev, dt);
		device_free(dev, dd);
		device_free(dev, dg);
		device_free(dev, dout);
		device_free(dev, dids);
		free(ids);
		free(table);
		free(d);
		free(g);
		free(out);
	}
}
END_TEST

static double gelu_value(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

START_TEST(gelu)
{
	static const int shapes[][2] = {{1, 1}, {5, 17}, {9, 64}, {40, 131}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		int tokens = shapes[s / 2][0], cols = shapes[s / 2][1];
		bool gated = s & 1;
		int64_t n = (int64_t)tokens * cols, nx = (gated ? 2 : 1) * n;
		double *x = test_values(nx, 1), *dy = test_values(n, 2), *y = test_values(n, 3), h = 1e-5;
		double *dx = test_values(nx, 4);
		void *bx, *bdy = test_buffer(dev, dy, n, type), *by = test_buffer(dev, y, n, type), *again;

		for (int64_t i = 0; i < nx; i++)
			x[i] *= 3;
		bx = test_buffer(dev, x, nx, type);
		again = test_buffer(dev, y, n, type);
		device_gelu_forward(dev, by, bx, tokens, cols, gated, type);
		device_gelu_backward(dev, bx, again, bdy, bx, tokens, cols, gated, type);
		for (int64_t i = 0; i < n; i++) {
			double *in = x + i / cols * (gated ? 2 : 1) * cols + i % cols;
			double *out = dx + (in - x), up = gated ? in[cols] : 1;

			y[i] = gelu_value(in[0]) * up;
			out[0] = dy[i] * up * (gelu_value(in[0] + h) - gelu_value(in[0] - h)) / (2 * h);
			if (gated)
				out[cols] = dy[i] * gelu_value(in[0]);
		}
		test_close(dev, "gelu", by, y, n, type, test_tolerance(type), 0.1);
		test_close(dev, "gelu again", again, y, n, type, test_tolerance(type), 0.1);
		test_close(dev, "gelu d_x", bx, dx, nx, type, test_tolerance(type), 1);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bdy);
		device_free(dev, again);
		free(x);
		free(y);
		free(dx);
		free(dy);
	}
}
END_TEST

/* The sum over the row of y·d for y = layernorm(x)·w. */
static double layernorm_objective(const double *x, const double *w, const double *d, int64_t n, double eps)
{
	double mean = 0, squares = 0, sum = 0;

	for (int64_t i = 0; i < n; i++)
		mean += x[i] / (double)n;
	for (int64_t i = 0; i < n; i++) {
		squares += (x[i] - mean) * (x[i] - mean);
		sum += (x[i] - mean) * w[i] * d[i];
	}
	return sum / sqrt(squares / (double)n + eps);
}

START_TEST(layernorm)
{
	static const int64_t shapes[][2] = {{1, 2}, {5, 17}, {70, 48}, {130, 200}, {3, 1040}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		int64_t rows = shapes[s / 2][0], cols = shapes[s / 2][1], ld = cols + (cols % 8 ? 3 : 8);
		int64_t n = rows * ld;
		bool accumulate = s & 1;
		double *x = test_values(n, 1), *w = test_values(cols, 2), *b = test_values(cols, 3);
		double *y = test_values(n, 4), *dy = test_values(n, 5), *dx = test_values(n, 6);
		double *dw = test_values(cols, 7), *db = test_values(cols, 8), *st = test_values(2 * rows, 9);
		void *bx = test_buffer(dev, x, n, type), *bw = test_buffer(dev, w, cols, type);
		void *bb = test_buffer(dev, b, cols, type), *by = test_buffer(dev, y, n, type);
		void *bdy = test_buffer(dev, dy, n, type), *bdx = test_buffer(dev, dx, n, type);
		float *bdw = test_buffer(dev, dw, cols, DTYPE_F32),
		      *bdb = test_buffer(dev, db, cols, DTYPE_F32);
		float *bst = test_buffer(dev, st, 2 * rows, DTYPE_F32);
		struct device_norm norm = {.rows = rows,
		                           .groups = 1,
		                           .cols = (int)cols,
		                           .ld_x = ld,
		                           .ld_y = ld,
		                           .eps = 1e-3f,
		                           .type = type};

		device_layernorm_forward(dev, &norm, by, bst, bx, bw, bb);
		device_layernorm_backward(dev, &norm, bdx, accumulate, bdw, bdb, bdy, bx, bst, bw);
		for (int64_t r = 0; r < rows; r++) {
			double *xr = x + r * ld, mean = 0, squares = 0, rstd, h = 1e-5;

			for (int64_t i = 0; i < cols; i++)
				mean += xr[i] / (double)cols;
			for (int64_t i = 0; i < cols; i++)
				squares += (xr[i] - mean) * (xr[i] - mean);
			rstd = 1 / sqrt(squares / (double)cols + 1e-3);
			st[r] = rstd;
			st[rows + r] = mean;
			for (int64_t i = 0; i < cols; i++) {
				double keep = xr[i], up, down;

				y[r * ld + i] = (keep - mean) * rstd * w[i] + b[i];
				dw[i] += dy[r * ld + i] * (keep - mean) * rstd;
				db[i] += dy[r * ld + i];
				xr[i] = keep + h;
				up = layernorm_objective(xr, w, dy + r * ld, cols, 1e-3);
				xr[i] = keep - h;
				down = layernorm_objective(xr, w, dy + r * ld, cols, 1e-3);
				xr[i] = keep;
				dx[r * ld + i] = (accumulate ? dx[r * ld + i] : 0) + (up - down) / (2 * h);
			}
		}
		test_close(dev, "layernorm", by, y, n, type, test_tolerance(type), 1);
		test_close(dev, "layernorm statistics", bst, st, 2 * rows, DTYPE_F32, 4e-6, 1);
		test_close(dev, "layernorm d_x", bdx, dx, n, type, type == DTYPE_F32 ? 1e-5 : 1e-2, 3);
		test_close(dev, "layernorm d_w", bdw, dw, cols, DTYPE_F32, 4e-6, 20);
		test_close(dev, "layernorm d_b", bdb, db, cols, DTYPE_F32, 4e-6, 20);
		device_free(dev, bx);
		device_free(dev, bw);
		device_free(dev, bb);
		device_free(dev, by);
		device_free(dev, bdy);
		device_free(dev, bdx);
		device_free(dev, bdw);
		device_free(dev, bdb);
		device_free(dev, bst);
		free(x);
		free(w);
		free(b);
		free(y);
		free(dy);
		free(dx);
		free(dw);
		free(db);
		free(st);
	}
}
END_TEST

/* The sum over the row of y·d for y = norm(x)·w, whose derivative the backward pass has to compute. */
static double norm_objective(const double *x, const double *w, const double *d, int64_t n, double eps)
{
	double squares = 0, sum = 0;

	for (int64_t i = 0; i < n; i++) {
		squares += x[i] * x[i];
		sum += x[i] * w[i] * d[i];
	}
	return sum / sqrt(squares / (double)n + eps);
}

START_TEST(rmsnorm)
{
	/* Rows that fit into the registers of a warp or of a block, and longer ones, each with and without
	 * accesses of 16 bytes. */
	static const int64_t shapes[][3] = {{1, 1, 1},     {3, 1, 17},   {5, 3, 65},   {70, 2, 48},
	                                    {130, 1, 200}, {3, 1, 1040}, {2, 1, 1500}, {9, 1, 1000},
#ifdef TEST_GPU
	                                    {1, 1, 4000},  {1, 1, 8200}
#endif
	};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		int64_t rows = shapes[s / 2][0], groups = shapes[s / 2][1], cols = shapes[s / 2][2];
		int64_t ld_x = groups * cols + (cols % 8 ? 3 : 8), ld_y = ld_x + (cols % 8 ? 3 : 8),
		        nx = rows * ld_x, ny = rows * ld_y;
		bool accumulate = s & 1;
		double *x = test_values(nx, 1), *w = test_values(cols, 2), *y = test_values(ny, 3);
		double *dy = test_values(ny, 4), *dx = test_values(nx, 5), *dw = test_values(cols, 6);
		double *rs = test_values(rows * groups, 7), h = 1e-5;
		void *bx = test_buffer(dev, x, nx, type), *bw = test_buffer(dev, w, cols, type);
		void *by = test_buffer(dev, y, ny, type), *bdy = test_buffer(dev, dy, ny, type);
		void *bdx = test_buffer(dev, dx, nx, type), *bdw = test_buffer(dev, dw, cols, DTYPE_F32);
		float *rstd = test_buffer(dev, rs, rows * groups, DTYPE_F32);
		struct device_norm n = {.rows = rows,
		                        .groups = (int)groups,
		                        .cols = (int)cols,
		                        .ld_x = ld_x,
		                        .ld_y = ld_y,
		                        .eps = 1e-3f,
		                        .w_offset = (float)(s / 2 % 2),
		                        .type = type};

		device_rmsnorm_forward(dev, &n, by, rstd, bx, bw);
		device_rmsnorm_backward(dev, &n, bdx, accumulate, bdw, DTYPE_F32, bdy, bx, rstd, bw);
		for (int64_t i = 0; i < cols; i++)
			w[i] += n.w_offset;
		for (int64_t r = 0; r < rows * groups; r++) {
			double *xr = x + r / groups * ld_x + r % groups * cols, squares = 0;
			double *yr = y + r / groups * ld_y + r % groups * cols;
			double *dyr = dy + r / groups * ld_y + r % groups * cols;
			double *dxr = dx + r / groups * ld_x + r % groups * cols;

			for (int64_t i = 0; i < cols; i++)
				squares += xr[i] * xr[i];
			rs[r] = 1 / sqrt(squares / (double)cols + 1e-3);
			for (int64_t i = 0; i < cols; i++) {
				double keep = xr[i], up, down;

				yr[i] = xr[i] * rs[r] * w[i];
				dw[i] += dyr[i] * xr[i] * rs[r];
				xr[i] = keep + h;
				up = norm_objective(xr, w, dyr, cols, 1e-3);
				xr[i] = keep - h;
				down = norm_objective(xr, w, dyr, cols, 1e-3);
				xr[i] = keep;
				dxr[i] = (accumulate ? dxr[i] : 0) + (up - down) / (2 * h);
			}
		}
		test_close(dev, "rmsnorm", by, y, ny, type, test_tolerance(type), 0.1);
		test_close(dev, "rstd", rstd, rs, rows * groups, DTYPE_F32, 2e-6, 0);
		test_close(dev, "rmsnorm d_x", bdx, dx, nx, type, type == DTYPE_F32 ? 5e-6 : 1e-2, 3);
		test_close(dev, "rmsnorm d_w", bdw, dw, cols, DTYPE_F32, 2e-6, 20);

		if (groups == 1) { /* the fused addition */
			double *res = test_values(nx, 8), *sum;
			void *bres = test_buffer(dev, res, nx, type);

			device_add_rmsnorm_forward(dev, &n, by, rstd, bres, bx, bw);
			sum = test_fetch_values(dev, bres, nx, type);
			for (int64_t r = 0; r < rows; r++) {
				double squares = 0;

				for (int64_t i = 0; i < cols; i++)
					res[r * ld_x + i] += x[r * ld_x + i];
				for (int64_t i = 0; i < cols; i++)
					squares += sum[r * ld_x + i] * sum[r * ld_x + i];
				for (int64_t i = 0; i < cols; i++)
					y[r * ld_y + i] =
					    sum[r * ld_x + i] * w[i] / sqrt(squares / (double)cols + 1e-3);
			}
			test_close(dev, "residual", bres, res, nx, type, test_tolerance(type), 0.01);
			test_close(dev, "add_rmsnorm", by, y, ny, type, test_tolerance(type), 0.1);
			device_free(dev, bres);
			free(res);
			free(sum);
		}
		device_free(dev, bx);
		device_free(dev, bw);
		device_free(dev, by);
		device_free(dev, bdy);
		device_free(dev, bdx);
		device_free(dev, bdw);
		device_free(dev, rstd);
		free(x);
		free(w);
		free(y);
		free(dy);
		free(dx);
		free(dw);
		free(rs);
	}
}
END_TEST

START_TEST(rope)
{
	static const int shapes[][4] = {/* tokens, heads, head_dim, rotary_dim */
	                                {1, 1, 2, 2},     {17, 3, 6, 6},   {9, 2, 64, 64},
	                                {200, 5, 40, 40}, {19, 3, 64, 32}, {7, 2, 24, 18}};

	/* Each shape in halves, then interleaved. */
	FOR_ALL for (size_t k = 0; k < 2 * COUNT(shapes); k++)
	{
		size_t s = k % COUNT(shapes);
		bool interleaved = k >= COUNT(shapes);
		struct device_rope r;
		int tokens = shapes[s][0], heads = shapes[s][1], hd = shapes[s][2], rotary = shapes[s][3],
		    half = rotary / 2, ld = heads * hd + (hd % 16 ? 5 : 8);
		double *x = test_values(tokens * ld, 1), *c = test_values(64 * half, 2),
		       *sn = test_values(64 * half, 3);
		int32_t *pos = malloc((size_t)tokens * sizeof(*pos)), *bpos;
		void *bx;
		float *bc, *bs;

		for (int j = 0; j < 64 * half; j++) {
			double angle = c[j];

			c[j] = cos(angle);
			sn[j] = sin(angle);
		}
		bx = test_buffer(dev, x, tokens * ld, type);
		bc = test_buffer(dev, c, 64 * half, DTYPE_F32);
		bs = test_buffer(dev, sn, 64 * half, DTYPE_F32);
		for (int t = 0; t < tokens; t++)
			pos[t] = t * 5 % 64;
		bpos = test_put(dev, pos, (size_t)tokens * sizeof(*pos));
		r = (struct device_rope){tokens, ld, heads, hd, rotary, interleaved, bpos, bc, bs, type};
		device_rope(dev, &r, bx);
		for (int t = 0; t < tokens; t++) {
			for (int i = 0; i < heads * half; i++) {
				int element = i % half;
				double *a =
				           x + t * ld + i / half * hd + (interleaved ? 2 * element : element),
				       *b = a + (interleaved ? 1 : half), a0 = *a;
				double cs = c[pos[t] * half + i % half], si = sn[pos[t] * half + i % half];

				*a = a0 * cs - *b * si;
				*b = *b * cs + a0 * si;
			}
		}
		test_close(dev, "rope", bx, x, tokens * ld, type, test_tolerance(type), 1);
		/* The inverse of a rotation is its transpose. */
		free(x);
		x = test_values(tokens * ld, 1);
		device_rope_inverse(dev, &r, bx);
		test_close(dev, "rope and back", bx, x, tokens * ld, type, 2 * test_tolerance(type), 1);
		device_free(dev, bx);
		device_free(dev, bc);
		device_free(dev, bs);
		device_free(dev, bpos);
		free(x);
		free(c);
		free(sn);
		free(pos);
	}
}
END_TEST

/* One kernel for the two operations that are tested above. */
START_TEST(qk_norm_rope)
{
	static const int shapes[][5] = {/* tokens, heads, kv_heads, head_dim, beyond the row */
	                                {1, 1, 1, 2, 0},    {7, 3, 1, 6, 3},    {33, 2, 2, 64, 8},
	                                {19, 5, 2, 96, 16}, {50, 4, 1, 128, 8}, {3, 2, 1, 256, 8}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		const int *p = shapes[s / 2];
		int64_t tokens = p[0], heads = p[1], kv = p[2], hd = p[3], ld = (heads + kv) * hd + p[4];
		int64_t n = tokens * ld, half = hd / 2, rows = tokens * (heads + kv);
		double *x = test_values(n, 1), *y = test_values(n, 2), *wq = test_values(hd, 3);
		double *wk = test_values(hd, 4), *c = test_values(64 * half, 5),
		       *si = test_values(64 * half, 6);
		double *r = test_values(rows, 7), *head = test_values(hd, 8);
		void *bx = test_buffer(dev, x, n, type), *by = test_buffer(dev, y, n, type);
		void *bq = test_buffer(dev, wq, hd, type), *bk = test_buffer(dev, wk, hd, type);
		float *bc = test_buffer(dev, c, 64 * half, DTYPE_F32),
		      *bs = test_buffer(dev, si, 64 * half, DTYPE_F32);
		float *br = test_buffer(dev, r, rows, DTYPE_F32);
		int32_t *pos = malloc((size_t)tokens * sizeof(*pos)), *bpos;

		for (int64_t t = 0; t < tokens; t++)
			pos[t] = (int32_t)(t * 5 % 64);
		bpos = test_put(dev, pos, (size_t)tokens * sizeof(*pos));
		device_qk_norm_rope(dev,
		                    &(struct device_qk_norm){.tokens = tokens,
		                                             .heads = (int)heads,
		                                             .kv_heads = (int)kv,
		                                             .head_dim = (int)hd,
		                                             .ld = ld,
		                                             .eps = 1e-3f,
		                                             .positions = bpos,
		                                             .cos = bc,
		                                             .sin = bs,
		                                             .type = type},
		                    by, s & 1 ? br : NULL, bx, bq, bk);
		for (int64_t row = 0; row < rows; row++) {
			int64_t t = row / (heads + kv), h = row % (heads + kv), at = t * ld + h * hd;
			double squares = 0, rstd;

			for (int64_t i = 0; i < hd; i++)
				squares += x[at + i] * x[at + i];
			rstd = 1 / sqrt(squares / (double)hd + 1e-3);
			if (s & 1)
				r[h < heads ? t * heads + h : tokens * heads + t * kv + h - heads] = rstd;
			for (int64_t i = 0; i < hd; i++)
				head[i] = x[at + i] * rstd * (h < heads ? wq : wk)[i];
			for (int64_t i = 0; i < half; i++) {
				double cs = c[pos[t] * half + i], sn = si[pos[t] * half + i];

				y[at + i] = head[i] * cs - head[half + i] * sn;
				y[at + half + i] = head[half + i] * cs + head[i] * sn;
			}
		}
		/* In bf16 there are two roundings, of numbers that may cancel. */
		test_close(dev, "qk_norm_rope", by, y, n, type, test_tolerance(type), 6);
		test_close(dev, "rstd of heads", br, r, rows, DTYPE_F32, 2e-6, 0);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bq);
		device_free(dev, bk);
		device_free(dev, bc);
		device_free(dev, bs);
		device_free(dev, br);
		device_free(dev, bpos);
		free(x);
		free(y);
		free(wq);
		free(wk);
		free(c);
		free(si);
		free(r);
		free(head);
		free(pos);
	}
}
END_TEST

/* The same bits as the rotation back and the two gradients one after the other, which other tests compare
 * with plain loops. */
START_TEST(qk_norm_rope_backward)
{
	static const int shapes[][5] = {/* tokens, heads, kv_heads, head_dim, beyond the row */
	                                {1, 1, 1, 2, 0},    {7, 3, 1, 6, 3},    {33, 2, 2, 64, 8},
	                                {19, 5, 2, 96, 16}, {50, 4, 1, 128, 8}, {3, 2, 1, 256, 8},
	                                {300, 2, 1, 16, 0}, {5, 1, 1, 1040, 0}, {9, 2, 1, 8, 0}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		const int *p = shapes[s];
		int64_t tokens = p[0], heads = p[1], kv = p[2], hd = p[3], ld = (heads + kv) * hd + p[4];
		int64_t n = tokens * ld, half = hd / 2, rows = tokens * (heads + kv);
		size_t size = dtype_size(type), k = (size_t)(heads * hd) * size;
		double *x = test_values(n, 1), *dy = test_values(n, 2), *wq = test_values(hd, 3);
		double *wk = test_values(hd, 4), *c = test_values(64 * half, 5),
		       *si = test_values(64 * half, 6), *r = test_values(rows, 7), *dw = test_values(hd, 8);
		char *bx = test_buffer(dev, x, n, type), *bd[2], *got[2];
		void *bq = test_buffer(dev, wq, hd, type), *bk = test_buffer(dev, wk, hd, type);
		float *bc = test_buffer(dev, c, 64 * half, DTYPE_F32),
		      *bs = test_buffer(dev, si, 64 * half, DTYPE_F32);
		float *br = test_buffer(dev, r, rows, DTYPE_F32), *dq[2], *dk[2], sums[2][2][1040];
		int32_t *pos = malloc((size_t)tokens * sizeof(*pos)), *bpos;
		struct device_qk_norm qk = {.tokens = tokens,
		                            .heads = (int)heads,
		                            .kv_heads = (int)kv,
		                            .head_dim = (int)hd,
		                            .ld = ld,
		                            .w_offset = (float)(s % 2),
		                            .cos = bc,
		                            .sin = bs,
		                            .type = type};
		struct device_norm norm = {.rows = tokens,
		                           .groups = (int)heads,
		                           .cols = (int)hd,
		                           .ld_x = ld,
		                           .ld_y = ld,
		                           .w_offset = (float)(s % 2),
		                           .type = type};
		struct device_rope turn = {tokens, ld,  (int)(heads + kv), (int)hd, (int)hd, false, NULL, bc,
		                           bs,     type};
		struct error err = ERROR_INIT;

		for (int64_t t = 0; t < tokens; t++)
			pos[t] = (int32_t)(t * 5 % 64);
		turn.positions = qk.positions = bpos = test_put(dev, pos, (size_t)tokens * sizeof(*pos));
		for (int i = 0; i < 2; i++) {
			bd[i] = test_buffer(dev, dy, n, type);
			dq[i] = test_buffer(dev, dw, hd, DTYPE_F32);
			dk[i] = test_buffer(dev, dw, hd, DTYPE_F32);
		}
		device_qk_norm_rope_backward(dev, &qk, bd[0], dq[0], dk[0], DTYPE_F32, bx, br, bq, bk);
		device_rope_inverse(dev, &turn, bd[1]);
		device_rmsnorm_backward(dev, &norm, bd[1], false, dq[1], DTYPE_F32, bd[1], bx, br, bq);
		norm.groups = (int)kv;
		device_rmsnorm_backward(dev, &norm, bd[1] + k, false, dk[1], DTYPE_F32, bd[1] + k, bx + k,
		                        br + tokens * heads, bk);
		for (int i = 0; i < 2; i++) {
			got[i] = malloc((size_t)n * size);
			ck_ok(device_read(dev, got[i], bd[i], (size_t)n * size, &err), &err);
			ck_ok(device_read(dev, sums[i][0], dq[i], (size_t)hd * sizeof(float), &err), &err);
			ck_ok(device_read(dev, sums[i][1], dk[i], (size_t)hd * sizeof(float), &err), &err);
		}
		ck_assert_msg(!memcmp(got[0], got[1], (size_t)n * size), "shape %zu, %s", s,
		              dtype_name(type));
		for (int i = 0; i < 2; i++)
			ck_assert(!memcmp(sums[0][i], sums[1][i], (size_t)hd * sizeof(float)));
		for (int i = 0; i < 2; i++) {
			free(got[i]);
			device_free(dev, bd[i]);
			device_free(dev, dq[i]);
			device_free(dev, dk[i]);
		}
		device_free(dev, bx);
		device_free(dev, bq);
		device_free(dev, bk);
		device_free(dev, bc);
		device_free(dev, bs);
		device_free(dev, br);
		device_free(dev, bpos);
		free(x);
		free(dy);
		free(wq);
		free(wk);
		free(c);
		free(si);
		free(r);
		free(dw);
		free(pos);
	}
}
END_TEST

static double silu(double g)
{
	return g / (1 + exp(-g));
}

START_TEST(swiglu)
{
	static const int shapes[][2] = {{1, 1}, {3, 17}, {17, 65}, {100, 300}, {9, 64}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 2; s++)
	{
		int64_t tokens = shapes[s / 2][0], cols = shapes[s / 2][1], n = tokens * cols;
		double *gu = test_values(2 * n, 1), *dy = test_values(n, 2), *y = test_values(n, 3);
		double *d = test_values(2 * n, 4), h = 1e-5;
		void *bgu, *bdy = test_buffer(dev, dy, n, type), *by = test_buffer(dev, y, n, type);
		void *bd = test_buffer(dev, d, 2 * n, type);

		for (int64_t i = 0; i < 2 * n; i++)
			gu[i] *= i % 11 ? 3 : 60; /* the tails of the sigmoid too */
		bgu = test_buffer(dev, gu, 2 * n, type);
		device_swiglu_forward(dev, by, bgu, tokens, (int)cols, type, NULL);
		for (int64_t t = 0; t < tokens; t++) {
			for (int64_t i = 0; i < cols; i++) {
				double g = gu[2 * t * cols + i], u = gu[(2 * t + 1) * cols + i];

				y[t * cols + i] = silu(g) * u;
				d[2 * t * cols + i] =
				    dy[t * cols + i] * u * (silu(g + h) - silu(g - h)) / (2 * h);
				d[(2 * t + 1) * cols + i] = dy[t * cols + i] * silu(g);
			}
		}
		test_close(dev, "swiglu", by, y, n, type, test_tolerance(type), 1e-6);
		device_zero(dev, by, (size_t)n * dtype_size(type));
		if (s & 1) { /* in place */
			device_swiglu_backward(dev, bgu, by, bdy, bgu, tokens, (int)cols, type, NULL);
			test_close(dev, "swiglu d_gate_up", bgu, d, 2 * n, type, 2 * test_tolerance(type),
			           0.5);
			test_close(dev, "swiglu again", by, y, n, type, test_tolerance(type), 1e-6);
		} else {
			device_swiglu_backward(dev, bd, NULL, bdy, bgu, tokens, (int)cols, type, NULL);
			test_close(dev, "swiglu d_gate_up", bd, d, 2 * n, type, 2 * test_tolerance(type),
			           0.5);
		}
		device_free(dev, bgu);
		device_free(dev, bdy);
		device_free(dev, by);
		device_free(dev, bd);
		free(gu);
		free(dy);
		free(y);
		free(d);
	}
}
END_TEST

START_TEST(faults_stick_until_asked)
{
	struct error err = ERROR_INIT;
	struct device *d = NULL;
	float x[4] = {1, 2, 3, 4}, y[4], *p;

	ck_ok(device_create(NULL, &d, &err), &err);
	p = test_put(d, x, sizeof(x));
	device_gemm(d, &(struct device_gemm){.m = 1,
	                                     .n = 1,
	                                     .k = 1,
	                                     .lda = 1,
	                                     .ldb = 1,
	                                     .ldc = 1,
	                                     .alpha = 1,
	                                     .a = p,
	                                     .b = p,
	                                     .c = p,
	                                     .ab_type = DTYPE_F32,
	                                     .c_type = DTYPE_F16});
	ck_fails(device_synchronize(d, &err), &err, "float16");
	ck_ok(device_read(d, y, p, sizeof(y), &err), &err);
	ck_assert_float_eq(y[3], 4);
	device_free(d, p);
	device_destroy(d);
}
END_TEST

static Suite *suite_make(void)
{
	Suite *suite = suite_create("device");
	TCase *tc = tcase_create("operations");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, describes);
	tcase_add_test(tc, elementwise);
	tcase_add_test(tc, casts_round_to_nearest_even);
	tcase_add_test(tc, bias);
	tcase_add_test(tc, column_groups);
	tcase_add_test(tc, embedding);
	tcase_add_test(tc, rmsnorm);
	tcase_add_test(tc, rope);
	tcase_add_test(tc, qk_norm_rope);
	tcase_add_test(tc, qk_norm_rope_backward);
	tcase_add_test(tc, gelu);
	tcase_add_test(tc, layernorm);
	tcase_add_test(tc, swiglu);
	tcase_add_test(tc, faults_stick_until_asked);
	suite_add_tcase(suite, tc);
	suite_add_tcase(suite, test_device_adapters());
	suite_add_tcase(suite, test_device_delta());
	suite_add_tcase(suite, test_device_experts());
	suite_add_tcase(suite, test_device_fp8());
	suite_add_tcase(suite, test_device_gemm());
	suite_add_tcase(suite, test_device_generate());
	suite_add_tcase(suite, test_device_loss());
	suite_add_tcase(suite, test_device_rounding());
	suite_add_tcase(suite, test_device_quantize());
	suite_add_tcase(suite, test_device_update());
#ifndef TEST_ENGINE_SIMT
	/* On the CPU only once, since these tests try shapes of GPU kernels. */
	if (!getenv("DTRAIN_CPU_ISA") || !strcmp(getenv("DTRAIN_CPU_ISA"), "generic")) {
		suite_add_tcase(suite, test_device_large());
		suite_add_tcase(suite, test_device_large_rows());
	}
#endif
	return suite;
}

int main(void)
{
	return test_run_each(suite_make);
}
