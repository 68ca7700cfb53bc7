/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hopper's kernel of attention in the emulator, beside the portable one; and the emulation itself
 * (asynchrony.h): its layouts against numbers from the tables of the PTX ISA, and that it ends a program
 * whose kernel does not wait as it has to.
 */
#include <errno.h>
#include <signal.h>

#include "base/cleanup.h"
#include "engine/device/device.h"
#include "simt/hopper_kernels.h"
#include "unit.h"

static struct device *open_device(void)
{
	struct error err = ERROR_INIT;
	struct device *dev = NULL;

	ck_ok(device_create(&(struct device_options){.attention = DEVICE_ATTENTION_OWN}, &dev, &err), &err);
	return dev;
}

/* ---- the kernel ---- */

static const struct {
	int head_dim;
	enum dtype type;
} kernels[] = {{64, DTYPE_BF16}, {96, DTYPE_BF16}, {128, DTYPE_BF16},
               {64, DTYPE_F16},  {96, DTYPE_F16},  {128, DTYPE_F16}};

START_TEST(kernel_agrees)
{
	struct device_attention_shape s = {.tokens = 130,
	                                   .rows = 130,
	                                   .heads = 1,
	                                   .kv_heads = 1,
	                                   .head_dim = kernels[_i].head_dim,
	                                   .type = kernels[_i].type};
	struct device *dev = open_device();
	struct error err = ERROR_INIT;
	double seconds[2];

	ck_assert(device_attention_has_hopper(dev, &s));
	ck_ok(device_attention_check(dev, &s, seconds, &err), &err);
	device_destroy(dev);
}
END_TEST

/* ---- layouts ---- */

/* By hand from the canonical layouts of the PTX ISA ("Shared Memory Matrix Layout" of wgmma, T = 8 elements
 * of 2 bytes) and their swizzles, for an operand at 1024. The swizzles: 0 none, 1 128 bytes, 2 64, 3 32. */
static const struct {
	uint32_t start, leading, stride;
	int swizzle;
	bool transposed;
	unsigned row, k;
	uint32_t expected;
} places[] = {
    /* Row by row without a swizzle: rows of 16 bytes, the next 8 k's `leading` on, the next 8 rows `stride`.
     */
    {1024, 128, 256, 0, false, 0, 0, 1024},
    {1024, 128, 256, 0, false, 0, 8, 1152},
    {1024, 128, 256, 0, false, 9, 3, 1024 + 256 + 16 + 6},
    /* 128 bytes: row r has its piece p at p ^ r % 8. */
    {1024, 16, 1024, 1, false, 0, 8, 1040},
    {1024, 16, 1024, 1, false, 1, 0, 1024 + 128 + 16},
    {1024, 16, 1024, 1, false, 3, 8, 1024 + 384 + 32},
    {1024, 16, 1024, 1, false, 3, 9, 1024 + 384 + 34},
    {1024, 16, 1024, 1, false, 13, 0, 1024 + 1024 + 640 + 80},
    /* The second 16 k's of these rows begin 32 bytes on: piece 2 of row 1 is at 3. */
    {1056, 16, 1024, 1, false, 1, 0, 1024 + 128 + 48},
    /* 64 bytes: two rows share a line of 128, and exchange pieces alike. */
    {1024, 16, 512, 2, false, 1, 0, 1024 + 64},
    {1024, 16, 512, 2, false, 2, 0, 1024 + 128 + 16},
    {1024, 16, 512, 2, false, 6, 8, 1024 + 384 + 32},
    {1024, 16, 512, 2, false, 10, 0, 1024 + 512 + 128 + 16},
    /* 32 bytes: four rows share a line. */
    {1024, 16, 256, 3, false, 3, 8, 1024 + 96 + 16},
    {1024, 16, 256, 3, false, 4, 0, 1024 + 128 + 16},
    {1024, 16, 256, 3, false, 4, 8, 1024 + 128},
    /* k by k without a swizzle: the next 8 rows `stride` on, the next 8 k's `leading`. */
    {1024, 128, 256, 0, true, 9, 3, 1024 + 256 + 2 + 48},
    {1024, 128, 256, 0, true, 0, 9, 1024 + 128 + 16},
    /* 128 bytes: 64 rows in a line, the next ones `leading` on; the next 8 k's `stride` on. */
    {1024, 4096, 1024, 1, true, 0, 1, 1024 + 128 + 16},
    {1024, 4096, 1024, 1, true, 63, 0, 1024 + 126},
    {1024, 4096, 1024, 1, true, 70, 10, 1024 + 4096 + 1024 + 256 + 32 + 12},
    /* 64 bytes: 32 rows in a line. */
    {1024, 2048, 512, 2, true, 31, 0, 1024 + 62},
    {1024, 2048, 512, 2, true, 40, 3, 1024 + 2048 + 192},
};

START_TEST(operands_lie_as_the_isa_says)
{
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		uint32_t at = hopper_operand_address(places[i].start, places[i].leading, places[i].stride,
		                                     places[i].swizzle, places[i].transposed, places[i].row,
		                                     places[i].k);

		ck_assert_msg(at == places[i].expected, "place %zu: %u instead of %u", i, at,
		              places[i].expected);
	}
}
END_TEST

static void *put(struct device *dev, const void *host, size_t bytes)
{
	struct error err = ERROR_INIT;
	void *p = NULL;

	ck_ok(device_alloc(dev, bytes, &p, &err), &err);
	if (host)
		ck_ok(device_write(dev, p, host, bytes, &err), &err);
	return p;
}

static void fetch(struct device *dev, void *host, const void *p, size_t bytes)
{
	struct error err = ERROR_INIT;

	ck_ok(device_read(dev, host, p, bytes, &err), &err);
}

/* A box that ends beyond the matrix, below and at its right. */
START_TEST(boxes_are_copied)
{
	enum { ROWS = 20, COLUMNS = 72, BOX_ROWS = 16 };
	static const int widths[] = {8, 64, 32, 16}, lines[] = {1, 1, 2, 4}, masks[] = {0, 7, 3, 1};
	int width = widths[_i], row = 7, column = 16;
	uint16_t from[ROWS * COLUMNS], out[BOX_ROWS * 64];
	struct device *dev = open_device();
	uint16_t *d_from, *d_out;

	for (int i = 0; i < ROWS * COLUMNS; i++)
		from[i] = (uint16_t)(i + 1);
	d_from = put(dev, from, sizeof(from));
	d_out = put(dev, NULL, sizeof(out));
	hopper_copy_box(dev, d_out, d_from, ROWS, COLUMNS, row, column, _i);
	fetch(dev, out, d_out, (size_t)(BOX_ROWS * width) * 2);
	for (int r = 0; r < BOX_ROWS; r++)
		for (int c = 0; c < width; c++) {
			int piece = c / 8 ^ (r / lines[_i] & masks[_i]);
			bool inside = row + r < ROWS && column + c < COLUMNS;

			ck_assert_int_eq(out[r * width + piece * 8 + c % 8],
			                 inside ? from[(row + r) * COLUMNS + column + c] : 0);
		}
	device_free(dev, d_from);
	device_free(dev, d_out);
	device_destroy(dev);
}
END_TEST

/* ---- products ---- */

enum { SIDE = HOPPER_SIDE, ALL = HOPPER_TILES * SIDE };

static void sum(enum hopper_mistake mistake, bool transposed, bool registers, const uint16_t *a,
                const uint16_t *b, float *out)
{
	struct device *dev = open_device();
	uint16_t *d_a = put(dev, a, SIDE * SIDE * 2), *d_b = put(dev, b, ALL * SIDE * 2);
	float *d_out = put(dev, NULL, SIDE * SIDE * sizeof(float));

	hopper_sum(dev, d_out, d_a, d_b, transposed, registers, mistake);
	fetch(dev, out, d_out, SIDE * SIDE * sizeof(float));
	device_free(dev, d_a);
	device_free(dev, d_b);
	device_free(dev, d_out);
	device_destroy(dev);
}

/* Small whole numbers: all sums are exact. */
static void numbers(uint16_t *p, int n, unsigned state)
{
	for (int i = 0; i < n; i++) {
		state = state * 1664525 + 1013904223;
		p[i] = bf16_from_float((float)((int)(state >> 24) % 17 - 8));
	}
}

START_TEST(products_are_exact)
{
	bool transposed = _i & 1, registers = _i & 2;
	static uint16_t a[SIDE * SIDE], b[ALL * SIDE];
	static float out[SIDE * SIDE];

	numbers(a, SIDE * SIDE, 1);
	numbers(b, ALL * SIDE, 2);
	sum(HOPPER_RIGHT, transposed, registers, a, b, out);
	for (int r = 0; r < SIDE; r++)
		for (int c = 0; c < SIDE; c++) {
			float expected = 0;

			for (int i = 0; i < ALL; i++) {
				int tile = i / SIDE * SIDE, k = i % SIDE;
				int at = transposed ? (tile + k) * SIDE + c : (tile + c) * SIDE + k;

				expected += bf16_to_float(a[r * SIDE + k]) * bf16_to_float(b[at]);
			}
			ck_assert_float_eq(out[r * SIDE + c], expected);
		}
}
END_TEST

/* Each ends the program. */
START_TEST(mistake_ends_it)
{
	static uint16_t a[SIDE * SIDE], b[ALL * SIDE];
	static float out[SIDE * SIDE];

	sum((enum hopper_mistake)_i, false, false, a, b, out);
}
END_TEST

static Suite *suite_make(void)
{
	Suite *suite = suite_create("hopper");
	TCase *emulation = tcase_create("emulation"), *kernel = tcase_create("kernel");

	tcase_add_test(emulation, operands_lie_as_the_isa_says);
	tcase_add_loop_test(emulation, boxes_are_copied, 0, 4);
	tcase_add_loop_test(emulation, products_are_exact, 0, 4);
	tcase_add_loop_test_raise_signal(emulation, mistake_ends_it, SIGABRT, HOPPER_RIGHT + 1,
	                                 HOPPER_MISTAKES);
	tcase_set_timeout(kernel, 300);
	tcase_add_loop_test(kernel, kernel_agrees, 0, ARRAY_SIZE(kernels));
	suite_add_tcase(suite, emulation);
	suite_add_tcase(suite, kernel);
	return suite;
}

/* The threads of a block in the usual order, and in the opposite one. */
int main(void)
{
	int r = unit_run(suite_make());

	if (r)
		return r;
	setenv("SIMT_ORDER", "reverse", 1);
	return unit_run(suite_make());
}
