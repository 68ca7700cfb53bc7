/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sizes of real models (hidden 2048, vocabulary 128256), in fp32 and in bf16, against float64 at sampled
 * rows; the tensor cores' products against the fp32 ones over the whole matrix, too. On a GPU with room for
 * it, once more with more than 2^31 elements, so that no index may be kept in 32 bits. The CPU engine runs
 * few rows of the same width (with DTRAIN_TEST_BEYOND=1 all, for who has the memory and the time).
 */
#pragma once

#include "base/cleanup.h"
#include "test_device_each.h"

#define TILE   1000003 /* a prime: tensors repeat their values, rows do not */
#define BEYOND ((int64_t)1 << 31)
#define ROOM   ((size_t)42 << 30)

#ifdef TEST_ENGINE_CUDA
#define REAL_ROWS 8192
#else
#define REAL_ROWS 12
#endif

/* ---- tensors that the host knows without holding them ---- */
static double *tiles[8];

static inline double value(int seed, int64_t i, enum dtype t)
{
	double x = tiles[seed][i % TILE];

	return t == DTYPE_F32 ? (double)(float)x : bf16_to_float(bf16_from_float((float)x));
}

static inline void *empty(int64_t n, enum dtype t)
{
	struct error err = ERROR_INIT;
	void *p;

	ck_ok(device_alloc(dev, (size_t)n * dtype_size(t), &p, &err), &err);
	return p;
}

static inline void *filled(int seed, int64_t n, enum dtype t)
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

static inline double *row_of(const void *p, int64_t row, int64_t cols, enum dtype t)
{
	return test_fetch_values(dev, (const char *)p + (size_t)(row * cols) * dtype_size(t), cols, t);
}

static inline void check_row(const char *what, const void *p, int64_t row, const double *want, int64_t cols,
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
static inline int64_t sample(int64_t rows, int64_t cols, int which)
{
	const int64_t list[SAMPLES] = {0, 1, rows / 2, BEYOND / cols, 2 * BEYOND / cols, rows - 2, rows - 1};

	return MAX(MIN(list[which], rows - 1), 0);
}

static inline bool has_room(void)
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
static inline void each_size(int64_t cols, void (*f)(int64_t rows, enum dtype t))
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

enum { IN = 2048 }; /* the hidden size of Llama-3.2-1B */
