/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of host buffers, vectorized by the compiler. */
#include "engine/comm/ucx/reduce.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The loader picks the widest of these instruction sets that the processor has. The functions only add
 * elements, so the width of the vectors does not change the result. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif

#define STREAM_MIN 8192 /* elements: a smaller result stays in the cache */

/* The maximum of a NaN and anything is a NaN, so that every rank sees an overflow. */
#define MAX_OF(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* The sum of large fp32 buffers is a quarter faster when its result is stored past the caches, since a peer
 * on another core reads it next. */
#if defined(__x86_64__)
static int64_t sum_f32_past_caches(float *restrict dst, const float *restrict src, int64_t n)
{
	int64_t i = 0;

	if ((uintptr_t)dst % 16 || n < STREAM_MIN)
		return 0;
	for (; i + 16 <= n; i += 16)
		for (int k = 0; k < 16; k += 4)
			_mm_stream_ps(dst + i + k,
			              _mm_add_ps(_mm_load_ps(dst + i + k), _mm_loadu_ps(src + i + k)));
	_mm_sfence();
	return i;
}
#else
static int64_t sum_f32_past_caches(float *restrict dst, const float *restrict src, int64_t n)
{
	return 0;
}
#endif

WIDE static void add_f32(float *restrict dst, const float *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] += src[i];
}

static void sum_f32(float *restrict dst, const float *restrict src, int64_t n)
{
	int64_t done = sum_f32_past_caches(dst, src, n);

	add_f32(dst + done, src + done, n - done);
}

WIDE static void max_f32(float *restrict dst, const float *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] = MAX_OF(dst[i], src[i]);
}

WIDE static void sum_f64(double *restrict dst, const double *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] += src[i];
}

WIDE static void max_f64(double *restrict dst, const double *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] = MAX_OF(dst[i], src[i]);
}

WIDE static void widen_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] = bf16_to_float(src[i]);
}

/* The same as bf16_from_float without a branch, so that the compiler vectorizes it. */
WIDE static void narrow_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		uint32_t u, rounded, nan;

		memcpy(&u, &src[i], 4);
		rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
		nan = u >> 16 | 0x40;
		dst[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
	}
}

static void many_bf16(uint16_t *dst, void *const *src, int count, int64_t n, enum comm_op op)
{
	enum { BLOCK = 1024 };
	float sum[BLOCK], next[BLOCK];

	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = n - i < BLOCK ? n - i : BLOCK;

		widen_bf16(sum, (const uint16_t *)src[0] + i, m);
		for (int k = 1; k < count; k++) {
			widen_bf16(next, (const uint16_t *)src[k] + i, m);
			if (op == COMM_SUM)
				sum_f32(sum, next, m);
			else
				max_f32(sum, next, m);
		}
		narrow_bf16(dst + i, sum, m);
	}
}

/* In blocks that stay in the first-level cache, since dst may be one of the sources. */
static void many_wide(char *dst, void *const *src, int count, int64_t n, enum element type, enum comm_op op)
{
	enum { BLOCK = 512 };
	double block[BLOCK];
	size_t size = element_size(type);

	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = n - i < BLOCK ? n - i : BLOCK;

		memcpy(block, (const char *)src[0] + i * size, m * size);
		for (int k = 1; k < count; k++)
			reduce_pair(block, (const char *)src[k] + i * size, m, type, op);
		memcpy(dst + i * size, block, m * size);
	}
}

/* dst[i] = a[i] + b[i]; dst may be a or b. The result is read later, and by this rank: it goes past the
 * caches, as above. */
static void sum_two_f32(float *dst, const float *a, const float *b, int64_t n)
{
	int64_t i = 0;

#if defined(__x86_64__)
	if ((uintptr_t)dst % 16 == 0 && n >= STREAM_MIN) {
		for (; i + 16 <= n; i += 16)
			for (int k = 0; k < 16; k += 4)
				_mm_stream_ps(dst + i + k,
				              _mm_add_ps(_mm_loadu_ps(a + i + k), _mm_loadu_ps(b + i + k)));
		_mm_sfence();
	}
#endif
	for (; i < n; i++)
		dst[i] = a[i] + b[i];
}

void reduce_pair(void *dst, const void *src, int64_t n, enum element type, enum comm_op op)
{
	switch (type) {
	case ELEMENT_F32:
		if (op == COMM_SUM)
			sum_f32(dst, src, n);
		else
			max_f32(dst, src, n);
		break;
	case ELEMENT_F64:
		if (op == COMM_SUM)
			sum_f64(dst, src, n);
		else
			max_f64(dst, src, n);
		break;
	case ELEMENT_BF16:
		many_bf16(dst, (void *const[]){dst, (void *)src}, 2, n, op);
		break;
	case ELEMENT_BYTE:
		break; /* never reduced */
	}
}

void reduce_many(void *dst, void *const *src, int count, int64_t n, enum element type, enum comm_op op)
{
	if (type == ELEMENT_BF16)
		many_bf16(dst, src, count, n, op);
	else if (type == ELEMENT_F32 && op == COMM_SUM && count == 2)
		sum_two_f32(dst, src[0], src[1], n);
	else
		many_wide(dst, src, count, n, type, op);
}
