/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small matrix products of attention, on blocks of 64 rows that are packed so that they stay in the
 * cache.
 *
 * Packed matrices consist of 32-bit words, so that fp32 and pairs of bf16 share their code. With `dot` a word
 * is a pair of bf16 numbers, and the product of two words adds both products (AVX512_BF16); without it a word
 * is one fp32 number. A matrix of rows × width elements has up to three packed forms:
 *
 * - rows, [rows][width words]: two neighbouring elements of a row share a word;
 * - pairs, [rows words][width]: an element of an even row and the one below it share a word;
 * - columns, [width words][rows]: the words of `rows`, transposed.
 *
 * In fp32, where a word is a single element, pairs and rows are the same.
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

/* One tile is the product of 4 rows of A with 1, 2 or 4 vectors of B. */
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

/* These are never inlined: together with the variables of the caller, the accumulators would not fit into the
 * registers. */
#define TILE(name, vectors, dot)                                                                             \
	static __attribute__((noinline)) void name(int64_t k, const word *a, int64_t row_a, int64_t col_a,   \
	                                           const word *b, int64_t ldb, float *c, int64_t ldc,        \
	                                           bool add)                                                 \
	{                                                                                                    \
		tile(vectors, k, a, row_a, col_a, b, ldb, c, ldc, add, dot);                                 \
	}
TILE(tile_1, 1, false)
TILE(tile_2, 2, false)
/* Four vectors need the 32 registers of AVX-512; with 16 registers the accumulators of two are
 * all that fit. */
#if VW == 16
TILE(tile_4, 4, false)
#endif
#if defined(__AVX512BF16__) && VW == 16
TILE(tile_dot_1, 1, true)
TILE(tile_dot_2, 2, true)
TILE(tile_dot_4, 4, true)
#endif

/* C[4, vectors·VW] (+)= A[4, k words] · B[k words, …]: element (i, p) of A is a[i·row_a + p·col_a]. */
VINLINE void strip(int64_t vectors, int64_t k, const word *a, int64_t row_a, int64_t col_a, const word *b,
                   int64_t ldb, float *c, int64_t ldc, bool add, bool dot)
{
	int64_t v = 0;

#if defined(__AVX512BF16__) && VW == 16
	if (dot) {
		for (; v + 4 <= vectors; v += 4)
			tile_dot_4(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
		for (; v + 2 <= vectors; v += 2)
			tile_dot_2(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
		if (v < vectors)
			tile_dot_1(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
		return;
	}
#endif
#if VW == 16
	for (; v + 4 <= vectors; v += 4)
		tile_4(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
#endif
	for (; v + 2 <= vectors; v += 2)
		tile_2(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
	if (v < vectors)
		tile_1(k, a, row_a, col_a, b + v * VW, ldb, c + v * VW, ldc, add);
}

/* ---- packing ---- */
/* Packed are `rows` rows of head_dim elements, which are ld elements apart in memory. They are padded with
 * zeros to `padded` rows of `width` elements. */
VINLINE vf load_padded(const void *row, int64_t i, int64_t n, enum dtype type)
{
	if (i + VW <= n)
		return v_load(row, i, type);
	return i < n ? v_load_n(row, i, type, n - i) : v_set(0.0f);
}

/* The same for bf16, which is not widened. */
VINLINE vh load_padded_bits(const uint16_t *row, int64_t i, int64_t n)
{
	vh h = {};

	if (i + VW <= n)
		return *(const vh_u *)(row + i);
	if (i < n)
		memcpy(&h, row + i, (size_t)(n - i) * sizeof(*row));
	return h;
}

VINLINE void pack_rows(word *dst, const void *src, int64_t ld, int64_t rows, int64_t padded, int64_t head_dim,
                       int64_t width, enum dtype type, bool dot)
{
	int64_t words = dot ? width / 2 : width;

	for (int64_t r = 0; r < rows; r++) {
		const void *row = at_const(src, r * ld, type);

		for (int64_t i = 0; i < width; i += VW) {
			if (dot)
				*(vh_u *)((uint16_t *)(dst + r * words) + i) =
				    load_padded_bits(row, i, head_dim);
			else
				*(vf_u *)(dst + r * words + i) = load_padded(row, i, head_dim, type);
		}
	}
	memset(dst + rows * words, 0, (size_t)((padded - rows) * words) * sizeof(word));
}

/* Joins two rows to one row of pairs; the first row fills the low halves of the words. */
VINLINE vf v_pair(vh low, vh high)
{
	return (vf)(__builtin_convertvector(low, vu) | __builtin_convertvector(high, vu) << 16);
}

VINLINE void pack_pairs(word *dst, const void *src, int64_t ld, int64_t rows, int64_t padded,
                        int64_t head_dim, int64_t width, enum dtype type, bool dot)
{
	if (!dot) {
		pack_rows(dst, src, ld, rows, padded, head_dim, width, type, false);
		return;
	}
	for (int64_t r = 0; r < rows; r += 2) {
		const uint16_t *a = at_const(src, r * ld, type), *b = r + 1 < rows ? a + ld : a;
		int64_t high = r + 1 < rows ? head_dim : 0;

		for (int64_t i = 0; i < width; i += VW)
			*(vf_u *)(dst + r / 2 * width + i) =
			    v_pair(load_padded_bits(a, i, head_dim), load_padded_bits(b, i, high));
	}
	rows = (rows + 1) & ~(int64_t)1;
	memset(dst + rows / 2 * width, 0, (size_t)((padded - rows) / 2 * width) * sizeof(word));
}

#if VW == 16
/* Transposes 16 x 16 words. The four rounds interleave rows that are 1, 2, 4 and 8 apart. */
VINLINE void transpose_16(word *dst, int64_t ld_dst, const word *src, int64_t ld_src)
{
	__m512 a[16], b[16];

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		a[i] = _mm512_loadu_ps(src + i * ld_src);
#pragma GCC unroll 8
	for (int i = 0; i < 16; i += 2) {
		b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
		b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 16; i += 4) {
		a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
		a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
		a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
		a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
		b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
		b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
		b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
	}
#pragma GCC unroll 8
	for (int i = 0; i < 8; i++) {
		_mm512_storeu_ps(dst + i * ld_dst, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
		_mm512_storeu_ps(dst + (i + 8) * ld_dst, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
	}
}
#endif

/* Transposes [BLOCK][words] to [words][BLOCK]; words is a multiple of 8. */
VINLINE void transpose_words(word *dst, const word *src, int64_t words)
{
	int64_t e = 0;

#if VW == 16
	for (; e + 16 <= words; e += 16)
		for (int64_t r = 0; r < BLOCK; r += 16)
			transpose_16(dst + e * BLOCK + r, BLOCK, src + r * words + e, words);
#endif
	for (; e < words; e += 8)
		for (int64_t r = 0; r < BLOCK; r++)
			for (int64_t i = 0; i < 8; i++)
				dst[(e + i) * BLOCK + r] = src[r * words + e + i];
}

/* Soft caps of n scores, a multiple of a vector: with in = scale / cap and out = 1 / in these are the scores
 * before they are scaled. */
static __attribute__((noinline)) void cap_scores(float *scores, int64_t n, float in)
{
	float out = 1.0f / in;

	for (int64_t i = 0; i < n; i += VW)
		*(vf_u *)(scores + i) = v_tanh(*(vf_u *)(scores + i) * in) * out;
}

/* ---- which keys a query sees ---- */
/* A query at `position` (its place among the keys) sees the keys [key_begin, key_end) of the block of keys
 * that starts at j. Both are relative to j. */
VINLINE int64_t key_end(int64_t position, int64_t j, int64_t keys)
{
	int64_t end = position - j + 1;

	if (end > keys - j)
		end = keys - j;
	return end < 0 ? 0 : end > BLOCK ? BLOCK : end;
}

VINLINE int64_t key_begin(int64_t position, int64_t j, int window)
{
	int64_t begin = window > 0 ? position - window + 1 - j : 0;

	return begin < 0 ? 0 : begin;
}

/* Whether all queries [position, position + rows) see all keys of the block that starts at j. */
VINLINE bool sees_whole(int64_t position, int64_t rows, int64_t j, int window)
{
	return position >= j + BLOCK - 1 && (window <= 0 || position + rows - 1 - j < window);
}

VINLINE vi lane_mask(int64_t begin, int64_t end, int64_t base)
{
	vi lane = v_lanes() + (int32_t)base;

	return (lane >= (int32_t)begin) & (lane < (int32_t)end);
}

VINLINE void store_rows(void *dst, int64_t ld, const float *src, int64_t rows, int64_t head_dim,
                        int64_t width, enum dtype type)
{
	for (int64_t r = 0; r < rows; r++) {
		void *row = at(dst, r * ld, type);
		int64_t c = 0;

		for (; c + VW <= head_dim; c += VW)
			v_store(row, c, type, *(const vf_u *)(src + r * width + c));
		if (c < head_dim)
			v_store_n(row, c, type, *(const vf_u *)(src + r * width + c), head_dim - c);
	}
}

#if defined(__AVX512BF16__) && VW == 16
#define DOT true
#else
#define DOT false
#endif

static inline int64_t longest_document(const struct device_attention *a)
{
	int64_t longest = 0;

	for (int d = 0; d < a->documents; d++) {
		int64_t n = a->host_starts[d + 1] - a->host_starts[d];

		longest = n > longest ? n : longest;
	}
	return longest;
}
