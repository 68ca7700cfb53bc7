/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of reductions: elementwise, on the host, in a fixed order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/comm/comm.h"

/* What a collective's elements are. */
enum element { ELEMENT_BYTE, ELEMENT_F32, ELEMENT_BF16, ELEMENT_F64 };

static inline size_t element_size(enum element e)
{
	return e == ELEMENT_F64 ? 8 : e == ELEMENT_F32 ? 4 : e == ELEMENT_BF16 ? 2 : 1;
}

/* dst[i] = dst[i] op src[i]. bf16 is added in fp32 and rounded once. */
void reduce_pair(void *dst, const void *src, int64_t n, enum element type, enum comm_op op);

/* dst[i] = src[0][i] op src[1][i] op … op src[count - 1][i], from left to right; bf16 is summed in fp32 and
 * rounded once. dst may be any one of the sources. */
void reduce_many(void *dst, void *const *src, int count, int64_t n, enum element type, enum comm_op op);
