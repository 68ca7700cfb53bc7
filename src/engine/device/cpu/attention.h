/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small matrix products of attention, on blocks of 64 rows that lie packed in cache.
 *
 * Everything packed is made of 32-bit words, so that fp32 and pairs of bf16 share one code. With `dot` a word
 * is a pair of bf16 and a product of words adds both (AVX512_BF16); without it a word is an fp32 number. A
 * matrix X of rows × width exists in up to three forms: rows      [rows][width words]    neighbours of a row
 * share a word pairs     [rows words][width]    an even row and the one below it share a word; in fp32 the
 * same as rows columns   [width words][rows]    `rows` with the words transposed
 */
#pragma once

#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/vec.h"

#define BLOCK ATTENTION_BLOCK

typedef float word __attribute__((may_alias));
typedef int32_t word_bits __attribute__((may_alias));

VINLINE vf word_fma(vf acc, const word *a, vf b, bool dot)
{
#if defined(__AVX512BF16__) && VW == 16
	if (dot)
		return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32(*(const word_bits *)a),
		                            (__m512bh)b);
#endif
	return acc + *a * b;
}

/* One tile: 4 rows of A against 1, 2 or 4 vectors of B. */
#define TILE_ROW(r, a)                                                                                       \
	c##r##0 = word_fma(c##r##0, a, b0, dot);                                                             \
	if (vectors > 1)                                                                                     \
		c##r##1 = word_fma(c##r##1, a, b1, dot);                                                     \
	if (vectors > 2) {                                                                                   \
		c##r##2 = word_fma(c##r##2, a, b2, dot);                                                     \
		c##r##3 = word_fma(c##r##3, a, b3, dot);                                                     \
	}
#define TILE_OUT_ONE(r, v)                                                                                   \
	if (vectors > v) {                                                                                   \
		vf_u *out = (vf_u *)(c + r * ldc + v * VW);                                                  \
		if (add)                                                                                     \
			c##r##v += *out;                                                                     \
		*out = c##r##v;                                                                              \
	}
#define TILE_OUT(r) TILE_OUT_ONE(r, 0) TILE_OUT_ONE(r, 1) TILE_OUT_ONE(r, 2) TILE_OUT_ONE(r, 3)

VINLINE void tile(int vectors, int64_t k, const word *a, int64_t row_a, int64_t col_a, const word *b,
                  int64_t ldb, float *c, int64_t ldc, bool add, bool dot)
{
	const word *a0 = a, *a1 = a + row_a, *a2 = a + 2 * row_a, *a3 = a + 3 * row_a;
	vf c00 = {}, c01 = {}, c02 = {}, c03 = {}, c10 = {}, c11 = {}, c12 = {}, c13 = {};
	vf c20 = {}, c21 = {}, c22 = {}, c23 = {}, c30 = {}, c31 = {}, c32 = {}, c33 = {};

	for (int64_t p = 0; p < k; p++) {
		vf b0 = *(const vf_u *)b, b1 = b0, b2 = b0, b3 = b0;

		if (vectors > 1)
			b1 = *(const vf_u *)(b + VW);
		if (vectors > 2) {
			b2 = *(const vf_u *)(b + 2 * VW);
			b3 = *(const vf_u *)(b + 3 * VW);
		}
		TILE_ROW(0, a0)
		TILE_ROW(1, a1)
		TILE_ROW(2, a2)
		TILE_ROW(3, a3)
		a0 += col_a;
		a1 += col_a;
		a2 += col_a;
		a3 += col_a;
		b += ldb;
	}
	TILE_OUT(0)
	TILE_OUT(1)
	TILE_OUT(2)
	TILE_OUT(3)
}

/* C[4, vectors·VW] (+)= A[4, k words] · B[k words, …]: element (i, p) of A is a[i·row_a + p·col_a]. */
VINLINE void strip(int64_t vectors, int64_t k, const word *a, int64_t row_a, int64_t col_a, const word *b,
                   int64_t ldb, float *c, int64_t ldc, bool add, bool dot)
{
	int64_t v = 0;

	/* With 16 registers, two vectors of accumulators are all that fit. */
	for (; VW == 16 && v + 4 <= vectors; v += 4)
		tile(4, k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add, dot);
	for (; v + 2 <= vectors; v += 2)
		tile(2, k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add, dot);
	if (v < vectors)
		tile(1, k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add, dot);
}

/* ---- packing: `rows` rows of head_dim elements, ld apart, padded with zeros to `padded` rows of `width`
 * ---- */
VINLINE vf load_padded(const void *row, int64_t i, int64_t n, enum dtype type)
{
	if (i + VW <= n)
		return v_load(row, i, type);
	return i < n ? v_load_n(row, i, type, n - i) : v_set(0.0f);
}

VINLINE void pack_rows(word *dst, const void *src, int64_t ld, int64_t rows, int64_t padded, int64_t head_dim,
                       int64_t width, enum dtype type, bool dot)
{
	int64_t words = dot ? width / 2 : width;

	for (int64_t r = 0; r < rows; r++) {
		const void *row = at_const(src, r * ld, type);

		for (int64_t i = 0; i < width; i += VW) {
			vf v = load_padded(row, i, head_dim, type);

			v_store(dst + r * words, i, dot ? DTYPE_BF16 : DTYPE_F32, v);
		}
	}
	memset(dst + rows * words, 0, (size_t)((padded - rows) * words) * sizeof(word));
}

/* Two vectors of fp32 to one of pairs: the first in the low halves. */
VINLINE vf v_pair(vf low, vf high)
{
	return (vf)(__builtin_convertvector(v_narrow(low), vu) | __builtin_convertvector(v_narrow(high), vu)
	                                                             << 16);
}

VINLINE void pack_pairs(word *dst, const void *src, int64_t ld, int64_t rows, int64_t padded,
                        int64_t head_dim, int64_t width, enum dtype type, bool dot)
{
	if (!dot) {
		pack_rows(dst, src, ld, rows, padded, head_dim, width, type, false);
		return;
	}
	for (int64_t r = 0; r < rows; r += 2) {
		const void *a = at_const(src, r * ld, type), *b = at_const(a, ld, type);

		for (int64_t i = 0; i < width; i += VW) {
			vf low = load_padded(a, i, head_dim, type);
			vf high = r + 1 < rows ? load_padded(b, i, head_dim, type) : v_set(0.0f);

			*(vf_u *)(dst + r / 2 * width + i) = v_pair(low, high);
		}
	}
	rows = (rows + 1) & ~(int64_t)1;
	memset(dst + rows / 2 * width, 0, (size_t)((padded - rows) / 2 * width) * sizeof(word));
}

/* [BLOCK][words] -> [words][BLOCK]; words is a multiple of 8. */
static inline void transpose_words(word *dst, const word *src, int64_t words)
{
	for (int64_t e = 0; e < words; e += 8)
		for (int64_t r = 0; r < BLOCK; r++)
			for (int64_t i = 0; i < 8; i++)
				dst[(e + i) * BLOCK + r] = src[r * words + e + i];
}
