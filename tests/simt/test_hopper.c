/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hopper's kernels of attention in the emulator, beside the portable ones; and the emulation itself
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

/* ---- the kernels ---- */

static const struct {
	int head_dim;
	enum dtype type;
	enum device_attention_pass pass;
} kernels[] = {{64, DTYPE_BF16, DEVICE_ATTENTION_FORWARD},  {96, DTYPE_BF16, DEVICE_ATTENTION_FORWARD},
               {128, DTYPE_BF16, DEVICE_ATTENTION_FORWARD}, {64, DTYPE_F16, DEVICE_ATTENTION_FORWARD},
               {96, DTYPE_F16, DEVICE_ATTENTION_FORWARD},   {128, DTYPE_F16, DEVICE_ATTENTION_FORWARD},
               {64, DTYPE_BF16, DEVICE_ATTENTION_BACKWARD}, {96, DTYPE_BF16, DEVICE_ATTENTION_BACKWARD},
               {128, DTYPE_BF16, DEVICE_ATTENTION_BACKWARD}};

START_TEST(kernel_agrees)
{
	struct device_attention_shape s = {.tokens = 130,
	                                   .rows = 130,
	                                   .heads = 1,
	                                   .kv_heads = 1,
	                                   .head_dim = kernels[_i].head_dim,
	                                   .type = kernels[_i].type,
	                                   .pass = kernels[_i].pass};
	struct device *dev = open_device();
	struct error err = ERROR_INIT;
	double seconds[2];

	ck_assert(device_attention_has_hopper(dev, &s));
	ck_ok(device_attention_check(dev, &s, seconds, &err), &err);
	device_destroy(dev);
}
END_TEST

/* ---- packed documents ---- */

/* Packed documents, of which the middle one begins and ends within a tile, in memory for more rows. */
enum { DOCUMENTS = 3, MIDDLE = 70, MIDDLE_END = 200, PACKED_ROWS = 270, ALLOCATED = 400, LD_GAP = 8 };

static const struct {
	int heads, kv_heads, head_dim, window;
} packed[] = {{3, 1, 64, 0}, {2, 2, 96, 0}, {2, 1, 128, 0}, {4, 2, 64, 45}};

struct packed {
	struct device_attention a;
	int64_t ld;
	uint16_t *qkv, *d_o, *o, *d_qkv; /* [ALLOCATED][ld]; the rows of d_o and o have that length, too */
};

/* Rows of numbers from -1 to 1. */
static void random_rows(uint16_t *p, int64_t ld, int from, int to, unsigned state)
{
	for (int64_t i = from * ld; i < to * ld; i++) {
		state = state * 1664525 + 1013904223;
		p[i] = bf16_from_float((float)(state >> 8) * 0x1p-23f - 1);
	}
}

static struct packed packed_make(int i)
{
	static const int32_t starts[DOCUMENTS + 1] = {0, MIDDLE, MIDDLE_END, PACKED_ROWS};
	struct packed p = {.a = {.tokens = PACKED_ROWS,
	                         .heads = packed[i].heads,
	                         .kv_heads = packed[i].kv_heads,
	                         .head_dim = packed[i].head_dim,
	                         .scale = 0.125f,
	                         .window = packed[i].window,
	                         .documents = DOCUMENTS,
	                         .host_starts = starts,
	                         .type = DTYPE_BF16}};

	p.ld = (int64_t)(p.a.heads + 2 * p.a.kv_heads) * p.a.head_dim + LD_GAP;
	p.a.ld_q = p.a.ld_k = p.a.ld_v = p.a.ld_o = p.ld;
	p.qkv = calloc((size_t)(ALLOCATED * p.ld), 2);
	p.d_o = calloc((size_t)(ALLOCATED * p.ld), 2);
	p.o = calloc((size_t)(ALLOCATED * p.ld), 2);
	p.d_qkv = calloc((size_t)(ALLOCATED * p.ld), 2);
	random_rows(p.qkv, p.ld, 0, PACKED_ROWS, 1);
	random_rows(p.d_o, p.ld, 0, PACKED_ROWS, 2);
	return p;
}

static void packed_free(struct packed *p)
{
	free(p->qkv);
	free(p->d_o);
	free(p->o);
	free(p->d_qkv);
}

static void packed_run(struct packed *p, bool hopper)
{
	size_t bytes = (size_t)(ALLOCATED * p->ld) * 2, k = (size_t)(p->a.heads * p->a.head_dim) * 2;
	size_t v = k + (size_t)(p->a.kv_heads * p->a.head_dim) * 2;
	struct device *dev = open_device();
	struct error err = ERROR_INIT;
	char *qkv = put(dev, p->qkv, bytes), *d_o = put(dev, p->d_o, bytes), *o = put(dev, p->o, bytes);
	char *d_qkv = put(dev, p->d_qkv, bytes);
	float *lse = put(dev, NULL, PACKED_ROWS * (size_t)p->a.heads * sizeof(float));
	int32_t *starts = put(dev, p->a.host_starts, (DOCUMENTS + 1) * sizeof(int32_t));

	ck_ok(device_reserve_scratch(dev, 1 << 20, &err), &err);
	p->a.starts = starts;
	device_attention_use_hopper(dev, DEVICE_ATTENTION_FORWARD, hopper);
	device_attention_use_hopper(dev, DEVICE_ATTENTION_BACKWARD, hopper);
	device_attention_forward(dev, &p->a, o, lse, qkv, qkv + k, qkv + v);
	ck_assert_int_eq(strstr(hopper_last_kernel(), "forward_kernel<T, HD>") != NULL, hopper);
	device_attention_backward(dev, &p->a, d_qkv, d_qkv + k, d_qkv + v, d_o, o, lse, qkv, qkv + k,
	                          qkv + v);
	fetch(dev, p->o, o, bytes);
	fetch(dev, p->d_qkv, d_qkv, bytes);
	ck_assert_int_eq(strstr(hopper_last_kernel(), "gradient_hopper") != NULL, hopper);
	device_free(dev, qkv);
	device_free(dev, d_o);
	device_free(dev, o);
	device_free(dev, d_qkv);
	device_free(dev, lse);
	device_free(dev, starts);
	device_destroy(dev);
}

/* The gradients of a document have the same bits whatever the other rows of the batch are. */
START_TEST(other_rows_do_not_matter)
{
	struct packed p = packed_make(_i), other = packed_make(_i);

	random_rows(other.qkv, other.ld, 0, MIDDLE, 3);
	random_rows(other.qkv, other.ld, MIDDLE_END, PACKED_ROWS, 4);
	random_rows(other.d_o, other.ld, 0, MIDDLE, 5);
	random_rows(other.d_o, other.ld, MIDDLE_END, PACKED_ROWS, 6);
	packed_run(&p, true);
	packed_run(&other, true);
	ck_assert_mem_ne(p.d_qkv, other.d_qkv, (size_t)(MIDDLE * p.ld) * 2);
	ck_assert_mem_eq(p.d_qkv + MIDDLE * p.ld, other.d_qkv + MIDDLE * p.ld,
	                 (size_t)((MIDDLE_END - MIDDLE) * p.ld) * 2);
	packed_free(&p);
	packed_free(&other);
}
END_TEST

/* Rows of NaNs behind the last one, which tiles reach over: the outputs and gradients have the bits that they
 * have without, and nothing is written there. _i: with Hopper's kernels; then each of the problems. */
START_TEST(rows_behind_the_end_do_not_matter)
{
	bool hopper = _i % 2;
	struct packed p = packed_make(_i / 2), other = packed_make(_i / 2);
	size_t rows = (size_t)(PACKED_ROWS * p.ld), all = (size_t)(ALLOCATED * p.ld);
	uint16_t *const places[] = {other.qkv, other.d_o, other.o, other.d_qkv};

	for (size_t i = 0; i < ARRAY_SIZE(places); i++)
		memset(places[i] + rows, 0xff, (all - rows) * 2);
	packed_run(&p, hopper);
	packed_run(&other, hopper);
	ck_assert_mem_eq(p.o, other.o, rows * 2);
	ck_assert_mem_eq(p.d_qkv, other.d_qkv, rows * 2);
	for (size_t i = rows; i < all; i++)
		ck_assert(other.o[i] == 0xffff && other.d_qkv[i] == 0xffff);
	packed_free(&p);
	packed_free(&other);
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

/* What the emulator says of each. NULL: that depends on the order in which the threads run. */
static const char *const reasons[HOPPER_MISTAKES] = {
    [HOPPER_NO_WAIT_FULL] = NULL,
    [HOPPER_WRONG_PARITY] = NULL,
    [HOPPER_NO_WAIT_EMPTY] = "more threads arrive at a barrier than it expects",
    [HOPPER_EARLY_RELEASE] = "a copy overwrites what a product reads",
    [HOPPER_NO_FENCE] = "a product without a fence after the last wait",
    [HOPPER_EARLY_WRITE] = "sums are written before their product is finished",
    [HOPPER_FEW_BYTES] = NULL,
    [HOPPER_FEW_ARRIVALS] = "some threads wait where the others never come",
    [HOPPER_MANY_ARRIVALS] = "some threads wait where the others never come",
    [HOPPER_EARLY_END] = "it ends before its products",
    [HOPPER_UNALIGNED] = "a copy to a place that is not aligned to its pattern",
    [HOPPER_OTHER_OPERANDS] = "the warps of a warpgroup multiply different operands",
    [HOPPER_UNSEEN] = NULL,
    [HOPPER_INVISIBLE] = NULL,
    [HOPPER_NO_INIT_FENCE] = "a copy at a barrier whose initialization the copy engine does not see yet",
    [HOPPER_EARLY_FENCE] = "a product without a fence after the last wait",
    [HOPPER_WRITTEN_OPERAND] = "a product reads what threads have written: no fence.proxy.async is emulated",
    [HOPPER_WRITTEN_PLACE] = "a copy overwrites what threads have written: no fence.proxy.async is emulated",
    [HOPPER_NOT_COPIED] = "a product reads what no copy has brought",
    [HOPPER_SAME_PLACE] = "two copies write to one place",
    [HOPPER_MANY_BYTES] = "a barrier expects more bytes than it can count",
    [HOPPER_OTHER_COUNT] = "threads wait at a named barrier for different numbers of threads",
    [HOPPER_ACROSS] = "a descriptor that leads out of a row of the pattern",
    [HOPPER_STRIDE] = "a descriptor whose groups of eight rows do not begin with the pattern",
    [HOPPER_MANY_REGISTERS] = "the warpgroups take more registers than the block has",
    [HOPPER_PART_REGISTERS] = "a part of a warpgroup changes its registers",
};

/* Each ends the program, and for its own reason. */
START_TEST(mistake_ends_it)
{
	static uint16_t a[SIDE * SIDE], b[ALL * SIDE];
	static float out[SIDE * SIDE];

	if (reasons[_i])
		setenv("SIMT_REASON", reasons[_i], 1);
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
	tcase_add_loop_test(kernel, other_rows_do_not_matter, 0, ARRAY_SIZE(packed));
	tcase_add_loop_test(kernel, rows_behind_the_end_do_not_matter, 0, 2 * ARRAY_SIZE(packed));
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
