// SPDX-License-Identifier: Apache-2.0
/*
 * What Hopper does asynchronously, in the emulator: barriers in shared memory (mbarrier), copies of boxes of
 * a tensor by the copy engine (cp.async.bulk.tensor), and products of warpgroups (wgmma).
 *
 * A copy arrives as late as possible, and fills its place with NaNs before that. A product is computed as
 * late as possible, when its threads wait for it; its sums are NaNs before that. The program ends where
 *
 *   - a product reads what has not arrived, or what its thread did not see arrive at the barrier;
 *   - a copy writes to what a product, for which not all threads have waited, still reads;
 *   - the sums or the register operand of a product are written before a wait for it;
 *   - a product begins without a wgmma.fence after the last wait or the last access to its registers;
 *   - a product reads, or a copy overwrites, what threads have written to shared memory, for which they would
 *     have to execute fence.proxy.async; no kernel does that, so it is not emulated;
 *   - the lanes of a warp or the warps of a warpgroup name different operands;
 *   - a barrier is used before its initialization is visible to threads or to the copy engine, or more
 *     threads arrive than it expects;
 *   - a descriptor or a box breaks a rule of the PTX ISA (alignments, sizes);
 *   - warpgroups take more registers than others of the block have given back (setmaxnreg), or
 *     only a part of a warpgroup does;
 *   - a block ends before what it has begun.
 *
 * Addresses in shared memory count from SHARED_BASE, so that the beginning of dynamic shared memory is
 * aligned to 128 bytes and no more, as its declaration says.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt
{
enum { SHARED_BASE = 128 };
enum { SHARED_FILL = 0xff }; /* what shared memory is filled with before a block: NaNs */

/* ---- for the scheduler (simt.cc) ---- */
void asynchrony_begin(unsigned threads, unsigned char *shared, size_t bytes); /* of a block */
void asynchrony_end();
/* One copy arrives; false: there is none on its way. */
bool asynchrony_deliver(bool newest_first);
/* These threads have met at a barrier: what one has seen arrive, all may read. */
void asynchrony_join(unsigned first, unsigned threads);

/* ---- for kernels (hopper.h) ---- */
uint32_t shared_address(const void *p);

void barrier_init(uint64_t *barrier, uint32_t count);
void barrier_init_fence();
void barrier_expect(uint64_t *barrier, uint32_t bytes); /* and arrives */
void barrier_arrive(uint64_t *barrier);
void barrier_wait(uint64_t *barrier, uint32_t parity);
void group_barrier(int id, unsigned threads);

/* A matrix of 16-bit elements in global memory, and the boxes of it that are copied. */
struct tensor {
	const unsigned char *address;
	uint64_t rows, columns, row_bytes;
	uint32_t box_rows, box_columns;
	int swizzle; /* as in a descriptor */
};
/* Whether the driver would make a map of it. */
bool tensor_check(const tensor &t);
void tensor_load(void *to, const tensor &t, uint64_t *barrier, int column, int row);

/* setmaxnreg. more: a warpgroup takes registers; otherwise it gives some back. */
void registers_change(unsigned registers, bool more);

struct product {
	int columns; /* of b and the sums */
	bool f16, transpose_a, transpose_b, accumulate;
	bool registers; /* a is in registers */
	uint64_t a, b;  /* descriptors */
};
/* a: NULL: it is in shared memory. sums and a stay where they are until the wait. */
void product_begin(const product &p, float *sums, const uint32_t *a);
void product_fence();
void product_touched(); /* registers of a product may have been written: not after a fence */
void product_commit();
void product_wait(unsigned groups);
/* The address of element (row, k) of an operand: row: of a, or a column of b. */
uint32_t operand_address(uint64_t descriptor, bool transposed, unsigned row, unsigned k);
} // namespace simt
