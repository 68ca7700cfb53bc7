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
