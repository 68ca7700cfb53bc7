/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bitsandbytes' 4-bit tensors, as transformers saves them: of a weight X there are
 *
 *   X                                   U8 [ceil(n / 2), 1]  the codes, flattened row-major
 *   X.absmax                            F32, or U8 with double quantization: a scale for each 64 elements
 *   X.quant_map                         F32 [16], what the codes stand for
 *   X.nested_absmax, X.nested_quant_map F32, with double quantization: the scales of 256 scales, F32 [256]
 *   X.quant_state.bitsandbytes__nf4     U8, JSON: shape, block sizes, nested_offset
 *
 * safetensors_open makes one tensor of them, of type TENSOR_NF4 and the weight's own shape, which is read
 * like any other; the members no longer appear.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "engine/checkpoint/safetensors.h"

/* The stored bytes: all may be unaligned. */
struct tensor_nf4 {
	const void *absmax;        /* fp32, one a block; NULL: double quantization, that is: */
	const uint8_t *absmax8;    /* one a block */
	const void *nested_absmax; /* fp32, one for 256 blocks */
	float offset;
};

/* The members of a weight, without the codes; the state makes it one. */
enum { NF4_STATE, NF4_ABSMAX, NF4_MAP, NF4_NESTED_ABSMAX, NF4_NESTED_MAP, NF4_MEMBERS };
extern const char *const nf4_suffixes[NF4_MEMBERS]; /* behind the weight's name */

/* Checks what the members say: types, sizes, tables. members: NULL for one that is not there, but for the
 * state. On success *weight, the tensor of the codes, is one of TENSOR_NF4, and *out, to which it refers, is
 * filled. */
int nf4_tensor_read(const struct tensor *const members[NF4_MEMBERS], const char *where, struct tensor *weight,
                    struct tensor_nf4 *out, struct error *err);
