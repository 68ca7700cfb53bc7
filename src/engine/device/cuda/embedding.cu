// SPDX-License-Identifier: Apache-2.0
/* Embedding: rows copied; the gradient's rows added in token order by the block of an id's first token. */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256

template <typename T, int N>
static __global__ void gather(T *out, const int32_t *ids, const T *table, int64_t tokens, int cols)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = p / packs, i = (p - t * packs) * N;

		*(pack<T, N> *)(out + t * cols + i) =
		    *(const pack<T, N> *)(table + (int64_t)ids[t] * cols + i);
	}
}

extern "C" void device_embedding_forward(struct device *dev, void *out, const int32_t *ids, const void *table,
                                         int64_t tokens, int hidden, enum dtype type)
{
	if (tokens <= 0 || hidden <= 0)
		return;
	with_type(type,
	          [&](auto t) { /* bits alone: fp16 goes as bf16 */
		                typedef decltype(t) T;
		                constexpr int N = WIDE<T>;

		                if (wide_rows(out, hidden, sizeof(T)) && aligned16(table))
			                LAUNCH(dev, (gather<T, N>), grid_for(tokens * hidden / N, THREADS),
			                       THREADS, 0, (T *)out, ids, (const T *)table, tokens, hidden);
		                else
			                LAUNCH(dev, (gather<T, 1>), grid_for(tokens * hidden, THREADS),
			                       THREADS, 0, (T *)out, ids, (const T *)table, tokens, hidden);
	          });
}

/*
 * One block a token. Where the id stood before, an earlier block has all its rows. Else: the later places of
 * the id, THREADS tokens at a time, are listed in order, and their rows added to the table's in that order.
 */
template <typename G, typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    scatter(G *d_table, const T *d_out, const int32_t *ids, int64_t tokens, int cols)
{
	__shared__ int64_t list[THREADS];
	__shared__ int counts[THREADS / 32];
	int64_t mine = blockIdx.x;
	int32_t id = ids[mine];
	G *row = d_table + (int64_t)id * cols;
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

	for (int64_t t = threadIdx.x; t - threadIdx.x < mine; t += THREADS)
		if (block_any(t < mine && ids[t] == id))
			return;
	for (int64_t first = mine; first < tokens; first += THREADS) {
		int64_t t = first + threadIdx.x;
		bool match = t < tokens && ids[t] == id;
		uint32_t votes = warp_ballot(match);
		int before = 0, n = 0;

		if (lane == 0)
			counts[warp] = __popc(votes);
		__syncthreads();
		for (int i = 0; i < THREADS / 32; i++) {
			before += i < warp ? counts[i] : 0;
			n += counts[i];
		}
		if (match)
			list[before + __popc(votes & ((1u << lane) - 1))] = t;
		__syncthreads();
		for (int i = (int)threadIdx.x * N; n && i < cols; i += THREADS * N) {
			float sum[N], v[N];

			load(sum, row + i);
			for (int j = 0; j < n; j++) {
				load(v, d_out + list[j] * cols + i);
#pragma unroll
				for (int k = 0; k < N; k++)
					sum[k] += v[k];
			}
			store(row + i, sum);
		}
		__syncthreads();
	}
}

extern "C" void device_embedding_backward(struct device *dev, void *d_table, enum dtype grad_type,
                                          const void *d_out, const int32_t *ids, const int32_t *host_ids,
                                          int64_t tokens, int64_t vocab, int hidden, enum dtype type)
{
	if (tokens <= 0 || hidden <= 0 || !computes(dev, "embedding_backward", type, grad_type))
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_type(grad_type, [&](auto g) {
			typedef decltype(g) G;
			constexpr int N = 4; /* 16 bytes of fp32 gradients, 8 of bf16 */

			if (hidden % 8 == 0 && aligned16(d_table) && aligned16(d_out))
				LAUNCH(dev, (scatter<G, T, N>), (unsigned)tokens, THREADS, 0, (G *)d_table,
				       (const T *)d_out, ids, tokens, hidden);
			else
				LAUNCH(dev, (scatter<G, T, 1>), (unsigned)tokens, THREADS, 0, (G *)d_table,
				       (const T *)d_out, ids, tokens, hidden);
		});
	});
}
