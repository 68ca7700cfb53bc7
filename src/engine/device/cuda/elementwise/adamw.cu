// SPDX-License-Identifier: Apache-2.0
/*
 * AdamW over a flat shard: one reading and one writing of everything. A parameter with its master copy moves
 * 30 bytes (gradient, master, m and v in, the last three and the bf16 copy out), without one 24.
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/rounding.h"

#define THREADS 256

struct adamw_factors {
	float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, epsilon;
	struct rounding_key key;
	int64_t first;
};

/* p rounded to bf16 stochastically; infinities and NaNs stay. */
static __device__ __forceinline__ bf16 rounded_stochastically(const adamw_factors &f, float p, int64_t i)
{
	uint64_t index = (uint64_t)(f.first + i);
	uint32_t u = float_bits(p), bits = (uint32_t)index;

	ROUNDING_BITS(bits, (uint32_t)(index >> 32), f.key);
	return (u & 0x7f800000) == 0x7f800000 ? from_float<bf16>(p) : bf16{(uint16_t)((u + bits) >> 16)};
}

/* Every operation is rounded by itself: device.h promises the bits. */
static __device__ __forceinline__ void adamw_update(const adamw_factors &f, float g, float &p, float &m,
                                                    float &v)
{
	m += exact_product(g - m, f.one_minus_beta1);
	v = exact_product(v, f.beta2) + exact_product(exact_product(g, g), f.one_minus_beta2);
	p = exact_product(p, f.decay) -
	    exact_product(f.step_size, m) / (exact_product(sqrtf(v), f.inv_sqrt_correction2) + f.epsilon);
}

template <typename P, typename G, int N, bool MASTER>
static __device__ __forceinline__ void adamw_pack(const adamw_factors &f, float scale, float *master,
                                                  P *param, const G *grad, float *m, float *v, int64_t i)
{
	float g[N], p[N], mm[N], vv[N];

	load(g, grad + i);
	if (MASTER)
		load(p, master + i);
	else
		load(p, param + i);
	load(mm, m + i);
	load(vv, v + i);
#pragma unroll
	for (int k = 0; k < N; k++)
		adamw_update(f, exact_product(g[k], scale), p[k], mm[k], vv[k]);
	store(m + i, mm);
	store(v + i, vv);
	if constexpr (MASTER) {
		store(master + i, p);
		if (param)
			store(param + i, p);
	} else {
		pack<bf16, N> out;

#pragma unroll
		for (int k = 0; k < N; k++)
			out.v[k] = rounded_stochastically(f, p[k], i + k);
		*(pack<bf16, N> *)(param + i) = out;
	}
}

template <typename P, typename G, int N, bool MASTER>
static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(adamw_factors f, float *master, P *param, const G *grad, float *m, float *v, int64_t n,
                 const float *grad_scale)
{
	int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
	        stride = (int64_t)gridDim.x * blockDim.x;
	float scale = grad_scale ? *grad_scale : 1.0f;

	for (int64_t i = first; i < n / N; i += stride)
		adamw_pack<P, G, N, MASTER>(f, scale, master, param, grad, m, v, i * N);
	if (N > 1)
		for (int64_t i = n / N * N + first; i < n; i += stride)
			adamw_pack<P, G, 1, MASTER>(f, scale, master, param, grad, m, v, i);
}

template <typename P, typename G, bool MASTER>
static void launch(struct device *dev, const adamw_factors &f, float *master, P *param, const G *grad,
                   float *m, float *v, int64_t n, const float *grad_scale)
{
	if (aligned16(master) && aligned16(param) && aligned16(grad) && aligned16(m) && aligned16(v))
		LAUNCH(dev, (adamw_kernel<P, G, 4, MASTER>), grid_for(n / 4, THREADS), THREADS, 0, f, master,
		       param, grad, m, v, n, grad_scale);
	else
		LAUNCH(dev, (adamw_kernel<P, G, 1, MASTER>), grid_for(n, THREADS), THREADS, 0, f, master,
		       param, grad, m, v, n, grad_scale);
}

extern "C" void device_adamw(struct device *dev, float *master, void *param, enum dtype param_type,
                             const void *grad, enum dtype grad_type, float *m, float *v, int64_t n,
                             const float *grad_scale, const struct device_adamw *h)
{
	double correction1 = 1 - pow(h->beta1, (double)h->step);
	double correction2 = 1 - pow(h->beta2, (double)h->step);
	adamw_factors f = {(float)(1 - h->learning_rate * h->weight_decay),
	                   (float)(1 - h->beta1),
	                   (float)h->beta2,
	                   (float)(1 - h->beta2),
	                   (float)(h->learning_rate / correction1),
	                   (float)(1 / sqrt(correction2)),
	                   (float)h->epsilon,
	                   rounding_key(h->seed, h->step),
	                   h->first};

	if (!master && (!param || param_type != DTYPE_BF16)) {
		device_fault(dev, -EINVAL, "adamw without a master copy is for bfloat16 parameters");
		return;
	}
	if (n <= 0 || !device_computes(dev, "adamw", param ? param_type : DTYPE_F32, grad_type))
		return;
	with_type(grad_type, [&](auto g) {
		typedef const decltype(g) G;

		if (!master)
			launch<bf16, decltype(g), false>(dev, f, master, (bf16 *)param, (G *)grad, m, v, n,
			                                 grad_scale);
		else
			with_type(param ? param_type : DTYPE_F32, [&](auto p) {
				launch<decltype(p), decltype(g), true>(dev, f, master, (decltype(p) *)param,
				                                       (G *)grad, m, v, n, grad_scale);
			});
	});
}
