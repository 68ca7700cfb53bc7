// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda/hopper.cuh"

#include "simt/hopper_kernels.h"

enum { SIDE = HOPPER_SIDE, TILES = HOPPER_TILES, TILE = SIDE * SIDE * 2, PLACES = 2, BOX_ROWS = 16 };

extern "C" uint32_t hopper_operand_address(uint32_t start, uint32_t leading, uint32_t stride, int swizzle,
                                           bool transposed, unsigned row, unsigned k)
{
	return simt::operand_address(matrix_descriptor(start, leading, stride, (enum swizzle)swizzle),
	                             transposed, row, k);
}

extern "C" const char *hopper_last_kernel()
{
	return simt::last_kernel();
}

static void copy_kernel(uint16_t *out, tensor_map map, int bytes, int column, int row)
{
	DYNAMIC_SHARED(memory);
	unsigned char *box = memory + (1024 - shared_address(memory) % 1024) % 1024;
	uint64_t *full = (uint64_t *)(box + bytes);

	if (threadIdx.x == 0) {
		barrier_init(full, 1);
		barrier_init_fence();
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		barrier_expect(full, (uint32_t)bytes);
		tensor_load(box, &map, full, column, row);
	}
	barrier_wait(full, 0);
	for (int i = (int)threadIdx.x; i < bytes / 2; i += (int)blockDim.x)
		out[i] = ((const uint16_t *)box)[i];
}

extern "C" void hopper_copy_box(struct device *dev, uint16_t *out, const uint16_t *from, int rows,
                                int columns, int row, int column, int swizzle)
{
	static const int widths[] = {8, 64, 32, 16};
	int bytes = BOX_ROWS * widths[swizzle] * 2;
	tensor_map map;

	if (!tensor_map_make(dev, &map, from, rows, columns, columns, BOX_ROWS, widths[swizzle], swizzle))
		simt::die("no map");
	LAUNCH(dev, copy_kernel, 1, 32, (size_t)(2048 + bytes), out, map, bytes, column, row);
}

struct sum_barriers {
	uint64_t a_full, full[PLACES], empty[PLACES];
};

static void produce(unsigned char *a, sum_barriers *at, const tensor_map *map_a, const tensor_map *map_b,
                    int mistake)
{
	unsigned char *tiles = a + TILE;
	uint32_t bytes = mistake == HOPPER_FEW_BYTES ? TILE / 2 : TILE;

	if (mistake == HOPPER_WRITTEN_PLACE)
		tiles[TILE] = 0;
	barrier_expect(&at->a_full, mistake == HOPPER_MANY_BYTES ? 1 << 20 : TILE);
	tensor_load(a, map_a, &at->a_full, 0, 0);
	if (mistake == HOPPER_SAME_PLACE)
		tensor_load(a, map_a, &at->a_full, 0, 0);
	for (int i = 0; i < TILES; i++) {
		int place = i % PLACES;

		if (mistake != HOPPER_NO_WAIT_EMPTY)
			barrier_wait(&at->empty[place], (uint32_t)(i / PLACES + 1) & 1);
		barrier_expect(&at->full[place], bytes);
		/* In two halves. */
		tensor_load(tiles + place * TILE, map_b, &at->full[place], 0, i * SIDE);
		tensor_load(tiles + place * TILE + TILE / 2, map_b, &at->full[place], 0, i * SIDE + SIDE / 2);
	}
}

static void wait_for_tile(sum_barriers *at, int i, int mistake)
{
	uint32_t parity = (uint32_t)(i / PLACES) & 1;

	if (mistake == HOPPER_NO_WAIT_FULL || (mistake == HOPPER_UNSEEN && threadIdx.x / 32 % 4 == 2))
		return;
	barrier_wait(&at->full[i % PLACES], mistake == HOPPER_WRONG_PARITY ? parity ^ 1 : parity);
}

static void release(sum_barriers *at, int i, int mistake)
{
	unsigned lanes = mistake == HOPPER_MANY_ARRIVALS ? 2 : 1;

	if (threadIdx.x % 32 < lanes && !(mistake == HOPPER_FEW_ARRIVALS && threadIdx.x / 32 % 4 == 3))
		barrier_arrive(&at->empty[i % PLACES]);
}

static void consume(unsigned char *shared_a, sum_barriers *at, float *sum, const bf16 *a, bool transposed,
                    bool registers, int mistake)
{
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = (int)threadIdx.x / 32 % 4;
	uint32_t from = shared_address(shared_a), r[SIDE / 16][4];
	float d[SIDE / 2];

	for (int k = 0; k < SIDE / 16; k++)
		for (int i = 0; i < 4; i++)
			memcpy(&r[k][i], a + (16 * warp + g + i % 2 * 8) * SIDE + 16 * k + i / 2 * 8 + 2 * t,
			       4);
	barrier_wait(&at->a_full, 0);
	if (mistake == HOPPER_WRITTEN_OPERAND && threadIdx.x % WARPGROUP == 0)
		shared_a[0] ^= 1;
	if (mistake == HOPPER_NOT_COPIED)
		from += (1 + PLACES) * TILE;
	group_barrier(1, mistake == HOPPER_OTHER_COUNT && warp == 3 ? 2 * WARPGROUP : WARPGROUP);
	for (int i = 0; i < TILES; i++) {
		uint32_t tile = shared_address(shared_a) + (uint32_t)(TILE + i % PLACES * TILE);

		wait_for_tile(at, i, mistake);
		registers_settle(d);
		if (mistake != HOPPER_NO_FENCE || i == 0)
			wgmma_fence();
		if (mistake == HOPPER_EARLY_FENCE)
			registers_settle(d);
		for (int k = 0; k < SIDE / 16; k++) {
			uint32_t step = (uint32_t)(mistake == HOPPER_OTHER_OPERANDS && warp == 1 ? 0 : k);
			uint64_t b = transposed
			                 ? matrix_descriptor(tile + step * 2048, 8192, 1024, SWIZZLE_128)
			                 : matrix_descriptor(tile + step * 32, 16, 1024, SWIZZLE_128);
			uint32_t column = (uint32_t)k * 32 + (mistake == HOPPER_ACROSS ? 16 : 0);
			uint32_t stride = mistake == HOPPER_STRIDE ? 512 : 1024;
			uint64_t rows = matrix_descriptor(from + column, 16, stride, SWIZZLE_128);
			bool more = i > 0 || k > 0;

			if (registers && transposed)
				wgmma<bf16, SIDE, true>(d, r[k], b, more);
			else if (registers)
				wgmma<bf16, SIDE, false>(d, r[k], b, more);
			else if (transposed)
				wgmma<bf16, SIDE, false, true>(d, rows, b, more);
			else
				wgmma<bf16, SIDE, false, false>(d, rows, b, more);
		}
		wgmma_commit();
		if (mistake == HOPPER_EARLY_RELEASE)
			release(at, i, mistake);
		if (mistake == HOPPER_EARLY_WRITE)
			d[3] = 0;
		if (mistake == HOPPER_EARLY_END && i == TILES - 1)
			return;
		wgmma_wait<0>();
		registers_settle(d);
		if (mistake != HOPPER_EARLY_RELEASE)
			release(at, i, mistake);
	}
	for (int j = 0; j < SIDE / 2; j++)
		sum[(16 * warp + g + j / 2 % 2 * 8) * SIDE + j / 4 * 8 + 2 * t + j % 2] = d[j];
}

static void sum_kernel(float *sum, const bf16 *a, tensor_map map_a, tensor_map map_b, bool transposed,
                       bool registers, int mistake)
{
	DYNAMIC_SHARED(memory);
	uint32_t aligned = mistake == HOPPER_UNALIGNED ? 0 : (1024 - shared_address(memory) % 1024) % 1024;
	unsigned char *shared_a = memory + aligned;
	/* Behind a tile that nothing is copied to. */
	sum_barriers *at = (sum_barriers *)(shared_a + (2 + PLACES) * TILE);

	if (threadIdx.x == 0) {
		barrier_init(&at->a_full, 1);
		for (int i = 0; i < PLACES; i++) {
			barrier_init(&at->full[i], 1);
			barrier_init(&at->empty[i], 4);
		}
		if (mistake != HOPPER_NO_INIT_FENCE)
			barrier_init_fence();
	}
	if (mistake != HOPPER_INVISIBLE)
		__syncthreads();
	if (threadIdx.x / WARPGROUP == 0) {
		if (mistake != HOPPER_MANY_REGISTERS &&
		    (mistake != HOPPER_PART_REGISTERS || threadIdx.x < 64))
			registers_fewer<24>();
		if (threadIdx.x == 0)
			produce(shared_a, at, &map_a, &map_b, mistake);
	} else { /* two that take registers, of which the second does nothing else */
		registers_more<240>();
		if (threadIdx.x / WARPGROUP == 1)
			consume(shared_a, at, sum, a, transposed, registers, mistake);
	}
}

extern "C" void hopper_sum(struct device *dev, float *sum, const uint16_t *a, const uint16_t *b,
                           bool transposed, bool registers, enum hopper_mistake mistake)
{
	tensor_map map_a, map_b;

	if (!tensor_map_make(dev, &map_a, a, SIDE, SIDE, SIDE, SIDE, SIDE, SWIZZLE_128) ||
	    !tensor_map_make(dev, &map_b, b, TILES * SIDE, SIDE, SIDE, SIDE / 2, SIDE, SWIZZLE_128))
		simt::die("no map");
	LAUNCH(dev, sum_kernel, 1, 3 * WARPGROUP, (size_t)(2048 + (2 + PLACES) * TILE), sum, (const bf16 *)a,
	       map_a, map_b, transposed, registers, (int)mistake);
}
