/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct device on the CPU, shared by the files of this directory alone.
 *
 * Every kernel is one source file that is compiled once for each instruction set (kernels.h); device_create
 * picks a table of kernels. A kernel divides its work between threads. Wherever it takes sums, it divides the
 * work by shape, never by the number of threads, so that the bits of a result do not depend on that number.
 * The GEMM libraries promise less: the same bits for the same number of threads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/fault.h"

#define CACHE_LINE 64
/* A long reduction has at most this many partial sums, which are added up in order. */
#define REDUCE_PARTS 1024

struct kernels;
struct gemm_cache;
struct moment_table;

struct device {
	struct device_base base; /* its scratch is aligned to CACHE_LINE */
	int threads;
	const struct kernels *kernels;
	struct gemm_cache *gemm;
	double *parts;                /* [REDUCE_PARTS] */
	struct moment_table *moments; /* [2]: without and with a sign */
	char description[160];
};

static inline size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* gemm.c */
int gemm_create(struct device *dev, struct error *err);
void gemm_destroy(struct device *dev);
bool gemm_native_bf16(const struct device *dev);
/* fp8.c: device_gemm of fp8, without the bias. */
void fp8_gemm(struct device *dev, const struct device_gemm *g);
/* *amax = the largest magnitude of a matrix whose rows are ld apart; amax NULL: nothing. */
void fp8_find_largest(struct device *dev, float *amax, const void *x, enum dtype type, int64_t rows,
                      int64_t cols, int64_t ld);
/* The library and its version, such as "oneDNN 2.6.3"; static. */
const char *gemm_describe(void);
