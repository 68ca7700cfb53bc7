/* SPDX-License-Identifier: Apache-2.0 */
/* Compares NF4 storage with a direct implementation of its definition, and its tables with those of
 * bitsandbytes. */
#pragma GCC optimize("fp-contract=off")
#include "test_device_each.h"

#include "base/cleanup.h"
#include "engine/device/nf4.h"

/* bitsandbytes' thresholds (csrc/kernels.cu) and functional.create_dynamic_map(), in fp32. */
static const float thresholds[15] = {-0.8480964004993439f,   -0.6106329262256622f,  -0.4599952697753906f,
                                     -0.33967943489551544f,  -0.23460740596055984f, -0.13791173323988914f,
                                     -0.045525018125772476f, 0.03979014977812767f,  0.1202552504837513f,
                                     0.2035212516784668f,    0.2920137718319893f,   0.3893125355243683f,
                                     0.5016634166240692f,    0.6427869200706482f,   0.8614784181118011f};
#define MAP_HASH          0xd677f22a96665bc4u
#define UNSIGNED_MAP_HASH 0x43811b16730a873eu

static uint64_t hash_of(const float map[256])
{
	const unsigned char *bytes = (const unsigned char *)map;
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < 256 * sizeof(*map); i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3u;
	return hash;
}

START_TEST(tables_are_bitsandbytes)
{
	struct nf4_tables t;
	float moments[256];

	nf4_tables_fill(&t);
	for (int i = 0; i < 15; i++) {
		ck_assert(t.middle[i] == thresholds[i]);
		ck_assert(fabs(t.middle[i] - ((double)t.code[i] + t.code[i + 1]) / 2) < 3.1e-8);
	}
	for (int i = 0; i < 255; i++)
		ck_assert(t.map[i] < t.map[i + 1]);
	ck_assert(t.map[127] == 0 && t.map[255] == 1);
	ck_assert_uint_eq(hash_of(t.map), MAP_HASH);
	nf4_map_fill(moments, false);
	ck_assert_uint_eq(hash_of(moments), UNSIGNED_MAP_HASH);
}
END_TEST

/* The search of bitsandbytes, whose order of comparisons decides ties. */
static int scale_code(const float *map, float x)
{
	int pivot = 127, above = 255, below = 0;

	for (int step = 64; step; step /= 2) {
		if (x > map[pivot]) {
			below = pivot;
			pivot += step;
		} else {
			above = pivot;
			pivot -= step;
		}
	}
	if (x > map[pivot])
		return x > (map[above] + map[pivot]) * 0.5f ? above : pivot;
	return x < (map[below] + map[pivot]) * 0.5f ? below : pivot;
}

START_TEST(scales_are_found_as_bitsandbytes_does)
{
	struct nf4_tables t;

	nf4_tables_fill(&t);
	for (int i = 0; i < 255; i++) {
		float middle = (t.map[i] + t.map[i + 1]) * 0.5f;
		const float x[] = {t.map[i], nextafterf(t.map[i], 2), nextafterf(middle, -2),
		                   middle,   nextafterf(middle, 2),   nextafterf(t.map[i + 1], -2)};

		for (size_t k = 0; k < COUNT(x); k++)
			ck_assert_msg(nf4_scale_code(t.map, x[k]) == scale_code(t.map, x[k]),
			              "%.9g gives %d, not %d", x[k], nf4_scale_code(t.map, x[k]),
			              scale_code(t.map, x[k]));
	}
	ck_assert_int_eq(nf4_scale_code(t.map, 1), 255);
	ck_assert_int_eq(nf4_scale_code(t.map, -1), 0);
	ck_assert_int_eq(nf4_scale_code(t.map, NAN), 0);
}
END_TEST

/* A quantized tensor. */
struct expected {
	int64_t blocks;
	uint8_t *codes, *absmax8;
	float *absmax, *absmax2, offset;
};

static struct expected expect(const double *x, int64_t n)
{
	struct expected e = {.blocks = (n + 63) / 64};
	struct nf4_tables t;
	double sum = 0;

	nf4_tables_fill(&t);
	e.codes = calloc((size_t)(n + 1) / 2, 1);
	e.absmax8 = calloc((size_t)e.blocks, 1);
	e.absmax = calloc((size_t)e.blocks, sizeof(float));
	e.absmax2 = calloc((size_t)(e.blocks + 255) / 256, sizeof(float));
	for (int64_t i = 0; i < n; i++)
		e.absmax[i / 64] = fmaxf(e.absmax[i / 64], fabsf((float)x[i]));
	for (int64_t i = 0; i < n + n % 2; i++) {
		float v = (i < n ? (float)x[i] : 0) * (1.0f / e.absmax[i / 64]);
		int code = 0;

		while (code < 15 && v > thresholds[code])
			code++;
		e.codes[i / 2] |= (uint8_t)(i % 2 ? code : code << 4);
	}
	for (int64_t b = 0; b < e.blocks; b++)
		sum += e.absmax[b];
	e.offset = (float)(sum / (double)e.blocks);
	for (int64_t b = 0; b < e.blocks; b++)
		e.absmax2[b / 256] = fmaxf(e.absmax2[b / 256], fabsf(e.absmax[b] - e.offset));
	for (int64_t b = 0; b < e.blocks; b++)
		e.absmax8[b] = nf4_scale_code(t.map, (e.absmax[b] - e.offset) * (1.0f / e.absmax2[b / 256]));
	return e;
}

static double dequantized(const struct expected *e, bool twice, int64_t i, enum dtype t)
{
	struct nf4_tables tables;
	float scale = e->absmax[i / 64], x;

	nf4_tables_fill(&tables);
	if (twice)
		scale = tables.map[e->absmax8[i / 64]] * e->absmax2[i / 64 / 256] + e->offset;
	x = tables.code[e->codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale;
	return test_rounded((double)x, t);
}

static void same_bytes(const char *what, const void *p, const void *want, size_t bytes)
{
	unsigned char *got = malloc(bytes);

	test_fetch(dev, got, p, bytes);
	for (size_t i = 0; i < bytes; i++)
		ck_assert_msg(got[i] == ((const unsigned char *)want)[i], "%s: byte %zu is %02x, not %02x",
		              what, i, got[i], ((const unsigned char *)want)[i]);
	free(got);
	test_guard(dev, what, p, bytes);
}

START_TEST(nf4)
{
	static const int64_t sizes[] = {1, 2, 63, 64, 65, 1000, 4096, 16384 + 64, 64 * 600 + 7};

	FOR_ALL for (size_t s = 0; s < COUNT(sizes) * 2; s++)
	{
		int64_t n = sizes[s / 2], blocks = (n + 63) / 64;
		bool twice = s & 1;
		double *x = test_values(n, 7), error = 0, squares = 0;
		void *bx, *y, *room;
		struct expected e;
		struct device_nf4 q = {.n = n};

		for (int64_t i = 0; i < n; i++)
			x[i] *= 0.02 * (1 + (double)(i / 64 % 5));
		for (int64_t i = 128; i < MIN(n, 192); i++)
			x[i] = 0; /* a block of zeros */
		bx = test_buffer(dev, x, n, type);
		e = expect(x, n);
		room = calloc((size_t)n + 8, 8);
		q.codes = test_put(dev, room, (size_t)(n + 1) / 2);
		q.absmax = twice ? NULL : test_put(dev, room, (size_t)blocks * 4);
		q.absmax8 = twice ? test_put(dev, room, (size_t)blocks) : NULL;
		q.absmax2 = twice ? test_put(dev, room, (size_t)(blocks + 255) / 256 * 4) : NULL;
		q.offset = twice ? test_put(dev, room, 4) : NULL;
		y = test_put(dev, room, (size_t)n * dtype_size(type));
		device_nf4_quantize(dev, &q, bx, type);
		same_bytes("codes", q.codes, e.codes, (size_t)(n + 1) / 2);
		if (twice) {
			same_bytes("absmax8", q.absmax8, e.absmax8, (size_t)blocks);
			same_bytes("absmax2", q.absmax2, e.absmax2, (size_t)(blocks + 255) / 256 * 4);
			same_bytes("offset", q.offset, &e.offset, 4);
		} else {
			same_bytes("absmax", q.absmax, e.absmax, (size_t)blocks * 4);
		}
		device_nf4_dequantize(dev, y, type, &q);
		free(room);
		room = test_fetch_values(dev, y, n, type);
		for (int64_t i = 0; i < n; i++) {
			double got = ((double *)room)[i], want = dequantized(&e, twice, i, type);

			ck_assert_msg(got == want, "[%lld] is %.9g, not %.9g", (long long)i, got, want);
			error += pow(got - x[i], 2);
			squares += x[i] * x[i];
		}
		test_guard(dev, "dequantized", y, (size_t)n * dtype_size(type));
		/* The published error for normally distributed weights is about 0.09 of their standard
		 * deviation. */
		ck_assert_msg(n < 1000 || sqrt(error / squares) < 0.12, "error of %.3g",
		              sqrt(error / squares));
		device_free(dev, bx);
		device_free(dev, y);
		device_free(dev, q.codes);
		device_free(dev, q.absmax);
		device_free(dev, q.absmax8);
		device_free(dev, q.absmax2);
		device_free(dev, q.offset);
		free(room);
		free(x);
		free(e.codes);
		free(e.absmax);
		free(e.absmax8);
		free(e.absmax2);
	}
}
END_TEST

static void quantize_moments(int64_t n, bool has_sign)
{
	double *x = test_values(n, 8), *back, *again;
	_cleanup_free_ void *zeros = calloc((size_t)n, 4), *codes = malloc((size_t)n);
	size_t blocks = (size_t)(n + DEVICE_MOMENT_BLOCK - 1) / DEVICE_MOMENT_BLOCK;
	float *src, *dst, *scale, map[256];
	uint8_t *c;

	for (int64_t i = 0; i < n; i++)
		x[i] *= i / DEVICE_MOMENT_BLOCK % 3 * pow(10, -(double)(i % 5)) * (i % 7 ? 1 : -1);
	for (int64_t i = 0; i < n && !has_sign; i++)
		x[i] *= x[i];
	src = test_buffer(dev, x, n, DTYPE_F32);
	dst = test_put(dev, zeros, (size_t)n * 4);
	c = test_put(dev, zeros, (size_t)n);
	scale = test_put(dev, zeros, blocks * 4);
	device_moment_quantize(dev, c, scale, 0, src, n, has_sign);
	device_moment_dequantize(dev, dst, c, scale, 0, n, has_sign);
	back = test_fetch_values(dev, dst, n, DTYPE_F32);
	nf4_map_fill(map, has_sign);
	for (int64_t b = 0; b < n; b += DEVICE_MOMENT_BLOCK) {
		double largest = 0;

		for (int64_t i = b; i < MIN(n, b + DEVICE_MOMENT_BLOCK); i++)
			if (fabs(x[i]) > fabs(largest) || x[i] == -largest)
				largest = fabs(x[i]) > fabs(largest) ? x[i] : fabs(x[i]);
		for (int64_t i = b; i < MIN(n, b + DEVICE_MOMENT_BLOCK); i++) {
			double least = INFINITY;

			/* A second moment above 0 stays above it. */
			for (int k = !has_sign && x[i] > 0; k < 256; k++)
				least = fmin(least, fabs((double)map[k] * largest - x[i]));
			ck_assert_msg(fabs(back[i] - x[i]) <= least + 1e-6 * fmax(fabs(x[i]), fabs(back[i])),
			              "[%lld] is %.9g, not %.9g, in a block of up to %.9g", (long long)i,
			              back[i], x[i], largest);
		}
	}
	/* Quantizing what came back changes nothing. */
	test_fetch(dev, codes, c, (size_t)n);
	device_moment_quantize(dev, c, scale, 0, dst, n, has_sign);
	same_bytes("codes again", c, codes, (size_t)n);
	device_moment_dequantize(dev, src, c, scale, 0, n, has_sign);
	again = test_fetch_values(dev, src, n, DTYPE_F32);
	for (int64_t i = 0; i < n; i++)
		ck_assert_double_eq(again[i], back[i]);
	/* A part of them, from the middle of a block on. */
	if (n > 300) {
		device_moment_quantize(dev, c, scale, DEVICE_MOMENT_BLOCK, dst + DEVICE_MOMENT_BLOCK,
		                       n - DEVICE_MOMENT_BLOCK, has_sign);
		device_moment_dequantize(dev, dst, c, scale, 100, n - 100, has_sign);
		free(again);
		again = test_fetch_values(dev, dst, n - 100, DTYPE_F32);
		for (int64_t i = 0; i < n - 100; i++)
			ck_assert_double_eq(again[i], back[i + 100]);
	}
	test_guard(dev, "scales", scale, blocks * 4);
	device_free(dev, src);
	device_free(dev, dst);
	device_free(dev, c);
	device_free(dev, scale);
	free(x);
	free(back);
	free(again);
}

START_TEST(moments)
{
	static const int64_t sizes[] = {1, 255, 256, 257, 1000, 20000};

	for (size_t t = 0; t < COUNT(test_threads); t++) {
		threads = test_threads[t];
		setup();
		for (size_t s = 0; s < COUNT(sizes) * 2; s++)
			quantize_moments(sizes[s / 2], s % 2);
		teardown();
	}
}
END_TEST

/* Numbers at the borders between codes, and others of every size, in blocks whose scale is 1: their codes are
 * those that a search finds, but for second moments above 0 that are next to it. */
static void codes_are_nearest(bool has_sign)
{
	enum { N = 256 * DEVICE_MOMENT_BLOCK };
	_cleanup_free_ float *x = calloc(N, sizeof(*x));
	_cleanup_free_ void *zeros = calloc(N, 1), *codes = malloc(N);
	uint32_t state = 1;
	float map[256], *scale, *src;
	int64_t n = 0;
	uint8_t *c;

	nf4_map_fill(map, has_sign);
	for (int i = 0; i < N; i++) {
		int k = i / 5;
		float border = (map[k % 255] + map[k % 255 + 1]) * 0.5f;

		state = state * 1664525 + 1013904223;
		if (i % DEVICE_MOMENT_BLOCK == 0)
			x[n++] = 1;
		else if (k < 255)
			x[n++] = i % 5 == 0   ? border
			         : i % 5 == 1 ? nextafterf(border, 2)
			         : i % 5 == 2 ? nextafterf(border, -2)
			         : i % 5 == 3 ? map[k]
			                      : NAN;
		else
			x[n++] = powf(10, -(float)(state >> 16) / 7000) * (state & 1024 && has_sign ? -1 : 1);
	}
	x[1] = 0;
	x[2] = -0.0f;
	src = test_put(dev, x, N * sizeof(*x));
	c = test_put(dev, zeros, N);
	scale = test_put(dev, zeros, N / DEVICE_MOMENT_BLOCK * sizeof(*scale));
	device_moment_quantize(dev, c, scale, 0, src, N, has_sign);
	test_fetch(dev, codes, c, N);
	for (int i = 0; i < N; i++) {
		int want = MAX(nf4_scale_code(map, x[i]), !has_sign && x[i] > 0);

		ck_assert_msg(((uint8_t *)codes)[i] == want, "[%d] %.9g has the code %d, not %d", i, x[i],
		              ((uint8_t *)codes)[i], want);
	}
	device_free(dev, src);
	device_free(dev, c);
	device_free(dev, scale);
}

START_TEST(moment_codes)
{
	setup();
	codes_are_nearest(true);
	codes_are_nearest(false);
	teardown();
}
END_TEST

TCase *test_device_quantize(void)
{
	TCase *tc = tcase_create("quantization");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, tables_are_bitsandbytes);
	tcase_add_test(tc, scales_are_found_as_bitsandbytes_does);
	tcase_add_test(tc, nf4);
	tcase_add_test(tc, moments);
	tcase_add_test(tc, moment_codes);
	return tc;
}
