/* SPDX-License-Identifier: Apache-2.0 */
/* Small kernels over the functions of hopper.cuh, which test_hopper.c starts in the emulator. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The address of element (row, k) of an operand that such a descriptor describes. */
uint32_t hopper_operand_address(uint32_t start, uint32_t leading, uint32_t stride, int swizzle,
                                bool transposed, unsigned row, unsigned k);

/* The kernel that was launched last, as the launch names it. */
const char *hopper_last_kernel(void);

enum { HOPPER_SIDE = 64, HOPPER_TILES = 5 };

/* Copies a box of 16 rows and as many columns as the swizzle is wide from (row, column) of `from`, [rows,
 * columns], and gives shared memory as it is then: `out`, 16 rows of that width. All on the device. */
void hopper_copy_box(struct device *dev, uint16_t *out, const uint16_t *from, int rows, int columns, int row,
                     int column, int swizzle);

/* What hopper_sum does wrong. */
enum hopper_mistake {
	HOPPER_RIGHT,
	HOPPER_NO_WAIT_FULL,    /* a tile is multiplied without a wait for it */
	HOPPER_WRONG_PARITY,    /* a wait for the other phase */
	HOPPER_NO_WAIT_EMPTY,   /* a tile is copied without a wait for its place */
	HOPPER_EARLY_RELEASE,   /* a place is given back before the product is finished */
	HOPPER_NO_FENCE,        /* no fence before a product */
	HOPPER_EARLY_WRITE,     /* sums are written before a product is finished */
	HOPPER_FEW_BYTES,       /* a barrier expects less than is copied */
	HOPPER_FEW_ARRIVALS,    /* a warp does not give a place back */
	HOPPER_MANY_ARRIVALS,   /* two lanes of a warp do */
	HOPPER_EARLY_END,       /* the last product is not waited for */
	HOPPER_UNALIGNED,       /* tiles are not aligned to their pattern */
	HOPPER_OTHER_OPERANDS,  /* a warp multiplies another part of a tile */
	HOPPER_UNSEEN,          /* one warp of four waits for a tile */
	HOPPER_INVISIBLE,       /* barriers are initialized without a barrier of the block behind it */
	HOPPER_NO_INIT_FENCE,   /* barriers are initialized without a fence for the copy engine */
	HOPPER_EARLY_FENCE,     /* registers of a product are accessed between the fence and the product */
	HOPPER_WRITTEN_OPERAND, /* a thread writes to what a product reads */
	HOPPER_WRITTEN_PLACE,   /* a thread writes to where something is copied */
	HOPPER_NOT_COPIED,      /* a product reads what nothing was copied to */
	HOPPER_SAME_PLACE,      /* two copies to one place at once */
	HOPPER_MANY_BYTES,      /* a barrier expects 2^20 bytes */
	HOPPER_OTHER_COUNT,     /* the threads of a named barrier name different numbers of threads */
	HOPPER_ACROSS, /* an operand begins 16 bytes too far right, so that it crosses the end of a row */
	HOPPER_STRIDE, /* the next eight rows of an operand do not begin where its pattern does */
	HOPPER_MANY_REGISTERS, /* no warpgroup gives back the registers that two take */
	HOPPER_PART_REGISTERS, /* two warps of four give registers back */
	HOPPER_MISTAKES
};

/* sum[64, 64] = the sum over HOPPER_TILES of a[64, 64] · tile i of b, which is [64, 64] each: transposed,
 * b[k, column], else b[column, k]. From registers: a is loaded by the threads. */
void hopper_sum(struct device *dev, float *sum, const uint16_t *a, const uint16_t *b, bool transposed,
                bool registers, enum hopper_mistake mistake);

#ifdef __cplusplus
}
#endif
