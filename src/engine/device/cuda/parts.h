/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of CUDA take of the scratch: constants that their sizes are computed from, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/dtype.h"

#define COLUMN_PARTS 512
#define WORKSPACE    ((size_t)32 << 20) /* of cuBLASLt; what it recommends for Hopper */

/* Whether attention is computed on tensor cores; all else is in fp32 arithmetic (plain.cu). It needs rows
 * that begin at multiples of 16 bytes, too, which those of whole heads do. */
static inline bool attention_in_tiles(enum dtype type, int head_dim)
{
	return type != DTYPE_F32 && (head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256);
}

/* Our own attention's backward pass keeps a number for each row of each head. */
static inline size_t attention_scratch(int64_t tokens, int heads)
{
	return (size_t)tokens * (size_t)heads * sizeof(float);
}

/* New tokens of one sequence from which on attention to a cache is that of training. */
#define CACHED_MANY 8
/* With fewer it divides the keys of a token into stretches of at least so many, at most so many. */
#define CACHED_CHUNK  256
#define CACHED_SPLITS 64

/* Each stretch has a sum of values, one of weights, and a maximum. */
static inline size_t attention_cached_scratch(int64_t queries, int heads, int head_dim, int64_t stretches)
{
	return (size_t)queries * (size_t)heads * (size_t)stretches * (size_t)(head_dim + 2) * sizeof(float);
}

/* The gated delta rule (delta/rule.cuh): numbers of each token and head, beside its matrices. */
#define DELTA_GATES 6
/* Heads of values are computed so many at a time that their matrices take at most this, or as many as share a
 * head of q and k. */
#define DELTA_SCRATCH ((size_t)256 << 20)

/* The bytes of a matrix, up to where the next may begin. */
static inline size_t delta_matrix(size_t elements)
{
	return (elements * sizeof(float) + 255) / 256 * 256;
}

/* Bytes of a head of values, and those that all heads share. */
static inline size_t delta_head_scratch(int64_t tokens, int key_dim, int value_dim, bool backward)
{
	size_t tiles = ((size_t)tokens + 63) / 64, rows = 64 * tiles, k = (size_t)key_dim,
	       v = (size_t)value_dim;
	size_t forward = delta_matrix(rows * DELTA_GATES) + delta_matrix(rows * k) + delta_matrix(rows * v) +
	                 delta_matrix(tiles * k * v);

	return backward ? forward + delta_matrix(rows * 64) + delta_matrix(rows * k) +
	                      delta_matrix(rows * v) + delta_matrix(tiles * k * v) + delta_matrix(2 * tiles)
	                : forward;
}

static inline size_t delta_shared_scratch(int64_t tokens)
{
	return delta_matrix(((size_t)tokens + 63) / 64 * 64);
}

/* What calls of at most so many tokens need. */
static inline size_t delta_scratch(int64_t tokens, int key_heads, int value_heads, int key_dim, int value_dim,
                                   bool backward)
{
	size_t head = delta_head_scratch(tokens, key_dim, value_dim, backward),
	       all = (size_t)value_heads * head, least = (size_t)(value_heads / key_heads) * head;
	size_t bound = least > DELTA_SCRATCH ? least : DELTA_SCRATCH;

	return delta_shared_scratch(tokens) + (all < bound ? all : bound);
}

/* The convolution in front of it: its tokens are divided into parts of at least CONV_PART, at most
 * CONV_PARTS, each of which has a sum of the gradient of the weights. */
#define CONV_PART  64
#define CONV_PARTS 128

static inline int64_t conv_parts(int64_t tokens)
{
	int64_t parts = (tokens + CONV_PART - 1) / CONV_PART;

	return parts < CONV_PARTS ? parts : CONV_PARTS;
}

static inline size_t conv_scratch(int64_t tokens, int channels, int width)
{
	return (size_t)conv_parts(tokens) * (size_t)channels * (size_t)width * sizeof(float);
}
