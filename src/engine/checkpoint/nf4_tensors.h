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

#define NF4_STATE_SUFFIX ".quant_state.bitsandbytes__nf4"

/* The stored bytes: all may be unaligned. */
struct tensor_nf4 {
	const void *absmax;        /* fp32, one a block; NULL: double quantization, that is: */
	const uint8_t *absmax8;    /* one a block */
	const void *nested_absmax; /* fp32, one for 256 blocks */
	float offset;
};

/* Finds the members of the weight whose state this is, and checks them: types, sizes, tables. members holds
 * what they are, without those that are absent: *n of them, the state first. */
#define NF4_MEMBERS 6
int nf4_tensor_read(const struct safetensors *st, const struct tensor *state, const char *where,
                    struct tensor *weight, struct tensor_nf4 *out, const struct tensor *members[NF4_MEMBERS],
                    size_t *n, struct error *err);

/* Elements [first, first + n), which are there, to fp32: the same numbers as device_nf4_dequantize gives. */
void nf4_tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out);
