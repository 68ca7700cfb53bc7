// SPDX-License-Identifier: Apache-2.0
/*
 * Embedding. The forward pass copies rows. The backward pass adds the rows of the gradient in token order:
 * one block adds all rows of an id, for THREADS · 4 columns. So the gradient is read once, and the rows of
 * the table that change are read once and written once.
 */
#include "engine/device/cuda/kernel.cuh"

#include <stdlib.h>
#include <string.h>

#define THREADS 256

template <typename T, int N>
static __global__ void gather(T *out, const int32_t *ids, const T *table, int64_t tokens, int cols)
{
	int64_t packs = cols / N, stride = (int64_t)gridDim.x * blockDim.x;

	for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < tokens * packs; p += stride) {
		int64_t t = quotient(p, packs), i = (p - t * packs) * N;

		*(pack<T, N> *)(out + t * cols + i) =
		    *(const pack<T, N> *)(table + (int64_t)ids[t] * cols + i);
	}
}

extern "C" void device_embedding_forward(struct device *dev, void *out, const int32_t *ids, const void *table,
                                         int64_t tokens, int hidden, enum dtype type)
{
	if (tokens <= 0 || hidden <= 0)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;
		constexpr int N = WIDE<T>;

		if (wide_rows(out, hidden, sizeof(T)) && aligned16(table))
			LAUNCH(dev, (gather<T, N>), grid_for(tokens * hidden / N, THREADS), THREADS, 0,
			       (T *)out, ids, (const T *)table, tokens, hidden);
		else
			LAUNCH(dev, (gather<T, 1>), grid_for(tokens * hidden, THREADS), THREADS, 0, (T *)out,
			       ids, (const T *)table, tokens, hidden);
	});
}

/* ---- the gradient ---- */
/* Sorts the positions of the tokens by id; positions of the same id keep their order. `other` has as many
 * elements as `order`. Returns the array that has the result. */
static int32_t *sort_places(const int32_t *ids, int32_t *order, int32_t *other, int64_t n, int64_t vocab)
{
	enum { BITS = 11, DIGITS = 1 << BITS };
	int64_t first[DIGITS + 1];

	for (int64_t i = 0; i < n; i++)
		order[i] = (int32_t)i;
	for (int shift = 0; (vocab - 1) >> shift; shift += BITS) {
		int32_t *from = order;

		memset(first, 0, sizeof(first));
		for (int64_t i = 0; i < n; i++)
			first[(ids[i] >> shift & (DIGITS - 1)) + 1]++;
		for (int d = 0; d < DIGITS; d++)
			first[d + 1] += first[d];
		for (int64_t i = 0; i < n; i++)
			other[first[ids[from[i]] >> shift & (DIGITS - 1)]++] = from[i];
		order = other;
		other = from;
	}
	return order;
}

/* Adds all rows of one id to its row of the table, in the order of the tokens; AHEAD loads are under way at a
 * time. */
#define AHEAD 8

template <typename G, typename T, int N>
static __global__ void __launch_bounds__(THREADS) scatter(G *d_table, const T *d_out, const int32_t *ids,
                                                          const int32_t *order, const int32_t *runs, int cols)
{
	int lo = runs[blockIdx.x], hi = runs[blockIdx.x + 1],
	    i = (int)(blockIdx.y * THREADS + threadIdx.x) * N;
	G *row = d_table + (int64_t)ids[order[lo]] * cols + i;
	float sum[N];

	if (i >= cols)
		return;
	load(sum, row);
	for (int j = lo; j < hi; j += AHEAD) {
		float v[AHEAD][N];

#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			if (j + a < hi)
				load(v[a], d_out + (int64_t)order[j + a] * cols + i);
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += j + a < hi ? v[a][k] : 0;
	}
	store(row, sum);
}

/* Sorts the tokens on the host, which is idle then, and writes order[tokens] and runs[*count + 1] to the
 * scratch: the beginning of each id's tokens in `order`, and the end of the last. */
static int32_t *upload_runs(struct device *dev, const int32_t *ids, int64_t tokens, int64_t vocab,
                            int64_t *count)
{
	size_t n = (size_t)tokens, bytes = (2 * n + 1) * sizeof(int32_t);
	int32_t *scratch = (int32_t *)device_scratch(dev, bytes, "embedding_backward");
	int32_t *host = scratch ? (int32_t *)malloc(3 * (n + 1) * sizeof(int32_t)) : NULL, *order, *runs;
	struct error err = ERROR_INIT;

	if (!host) {
		device_fault(dev, -ENOMEM, "out of memory");
		return NULL;
	}
	order = sort_places(ids, host, host + n, tokens, vocab);
	if (order != host)
		memcpy(host, order, n * sizeof(int32_t));
	runs = host + n;
	*count = 0;
	for (int64_t i = 0; i < tokens; i++)
		if (i == 0 || ids[host[i]] != ids[host[i - 1]])
			runs[(*count)++] = (int32_t)i;
	runs[*count] = (int32_t)tokens;
	if (device_write(dev, scratch, host, (n + (size_t)*count + 1) * sizeof(int32_t), &err) < 0)
		device_fault(dev, err.code, "embedding_backward: %s", err.message);
	free(host);
	return scratch;
}

extern "C" void device_embedding_backward(struct device *dev, void *d_table, enum dtype grad_type,
                                          const void *d_out, const int32_t *ids, const int32_t *host_ids,
                                          int64_t tokens, int64_t vocab, int hidden, enum dtype type)
{
	int64_t count;
	int32_t *order;

	if (tokens <= 0 || hidden <= 0)
		return;
	order = upload_runs(dev, host_ids, tokens, vocab, &count);
	if (!order)
		return;
	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		with_type(grad_type, [&](auto g) {
			typedef decltype(g) G;
			constexpr int N = 4; /* 16 bytes of fp32 gradients, 8 of bf16 */
			dim3 wide((unsigned)count, (unsigned)ceil_div(hidden, THREADS * N));
			dim3 narrow((unsigned)count, (unsigned)ceil_div(hidden, THREADS));

			if (hidden % 8 == 0 && aligned16(d_table) && aligned16(d_out))
				LAUNCH(dev, (scatter<G, T, N>), wide, THREADS, 0, (G *)d_table,
				       (const T *)d_out, ids, order, order + tokens, hidden);
			else
				LAUNCH(dev, (scatter<G, T, 1>), narrow, THREADS, 0, (G *)d_table,
				       (const T *)d_out, ids, order, order + tokens, hidden);
		});
	});
}
