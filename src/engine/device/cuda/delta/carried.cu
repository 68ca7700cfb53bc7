// SPDX-License-Identifier: Apache-2.0
/*
 * The gated delta rule for the next tokens of sequences, token by token (delta.h has the rule). A block has
 * SLICE columns of the state of one head and one sequence, in registers: lanes are columns, and the rows are
 * divided among the warps. For one token a state is read and written once, and that takes the time: 4 MB for
 * each sequence and block of 32 heads of 128. For a prompt the tokens wait for each other, about 2 µs for
 * each, while the state stays where it is. These kernels have not run on a GPU yet.
 */
#include "engine/device/cuda/delta/rule.cuh"

#define WARPS (RULE_THREADS / 32)

/* The sum of the warps' parts of each column, in every thread. To be called by all, behind another barrier
 * than the last one that read the parts. */
static __device__ __forceinline__ float column_sum(float (*parts)[SLICE], float part)
{
	int lane = (int)threadIdx.x % 32;
	float sum = 0;

	parts[threadIdx.x / 32][lane] = part;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		sum += parts[w][lane];
	return sum;
}

/* ROWS: of a warp, for key_dim of at most WARPS times as many. */
template <typename T, int ROWS>
static __global__ void __launch_bounds__(RULE_THREADS)
    carried_kernel(struct device_delta d, float *states, const int32_t *sequences, T *o, const T *q,
                   const T *k, const T *v, const T *b, const T *a)
{
	__shared__ float unit_q[DELTA_DIM], unit_k[DELTA_DIM], of_state[WARPS][SLICE],
	    of_output[WARPS][SLICE];
	int head = (int)blockIdx.y, key_head = head / (d.value_heads / d.key_heads), dk = d.key_dim,
	    dv = d.value_dim, i = (int)threadIdx.x, lane = i % 32, warp = i / 32,
	    col = (int)blockIdx.z * SLICE + lane;
	int64_t begin = d.starts[blockIdx.x], end = d.starts[blockIdx.x + 1];
	float rate = expf(to_float(((const T *)d.a_log)[head])),
	      bias = to_float(((const T *)d.dt_bias)[head]), scale = 1.0f / sqrtf((float)dk), s[ROWS];

	if (begin >= end)
		return;
	states += ((int64_t)sequences[begin] * d.value_heads + head) * dk * dv + col;
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int row = warp + r * WARPS;

		s[r] = row < dk && col < dv ? states[(int64_t)row * dv] : 0.0f;
	}
	for (int64_t t = begin; t < end; t++) {
		int64_t at = t * d.ld + (int64_t)key_head * dk + i;
		float x = i < dk ? to_float(q[at]) : 0.0f, y = i < dk ? to_float(k[at]) : 0.0f;
		float step = to_float(a[t * d.ld_gates + head]) + bias,
		      kept = expf(-rate * (step > 20.0f ? step : log1pf(expf(step)))),
		      beta = delta_sigmoid(to_float(b[t * d.ld_gates + head]));
		float value = col < dv ? to_float(v[t * d.ld + (int64_t)head * dv + col]) : 0.0f, part = 0;

		unit_q[i] = x * (scale / sqrtf(block_sum(x * x) + 1e-6f));
		unit_k[i] = y * (1.0f / sqrtf(block_sum(y * y) + 1e-6f));
		__syncthreads();
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			s[r] *= kept;
			part += s[r] * unit_k[warp + r * WARPS];
		}
		value = beta * (value - column_sum(of_state, part));
		part = 0;
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			s[r] += unit_k[warp + r * WARPS] * value;
			part += s[r] * unit_q[warp + r * WARPS];
		}
		part = column_sum(of_output, part);
		if (warp == 0 && col < dv)
			o[t * d.ld_o + (int64_t)head * dv + col] = from_float<T>(part);
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int row = warp + r * WARPS;

		if (row < dk && col < dv)
			states[(int64_t)row * dv] = s[r];
	}
}

extern "C" void device_delta_carried(struct device *dev, const struct device_delta *d, float *states,
                                     const int32_t *sequences, void *o, const void *q, const void *k,
                                     const void *v, const void *b, const void *a)
{
	dim3 grid((unsigned)d->documents, (unsigned)d->value_heads, (unsigned)ceil_div(d->value_dim, SLICE));

	static_assert(DELTA_DIM <= RULE_THREADS, "a thread for each element of q and k");
	if (d->tokens <= 0 || d->documents <= 0 || !delta_fits(dev, d, "delta_carried"))
		return;
	with_type(d->type, [&](auto t) {
		typedef decltype(t) T;

		with_flag(d->key_dim <= DELTA_DIM / 2, [&](auto small) {
			constexpr int ROWS = DELTA_DIM / WARPS / (decltype(small)::value ? 2 : 1);

			LAUNCH(dev, (carried_kernel<T, ROWS>), grid, RULE_THREADS, 0, *d, states, sequences,
			       (T *)o, (const T *)q, (const T *)k, (const T *)v, (const T *)b, (const T *)a);
		});
	});
}
