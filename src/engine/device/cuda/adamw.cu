// SPDX-License-Identifier: Apache-2.0
/* AdamW over a flat shard: one reading and one writing of everything. */
#include "engine/device/cuda/kernel.cuh"

#define THREADS 256

struct adamw_factors {
	float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, epsilon;
};

template <typename P, typename G, int N>
static __device__ __forceinline__ void adamw_pack(const adamw_factors &f, float scale, float *master,
                                                  P *param, const G *grad, float *m, float *v, int64_t i)
{
	float g[N], p[N], mm[N], vv[N];

	load(g, grad + i);
	load(p, master + i);
	load(mm, m + i);
	load(vv, v + i);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float x = g[k] * scale;

		mm[k] += (x - mm[k]) * f.one_minus_beta1;
		vv[k] = vv[k] * f.beta2 + x * x * f.one_minus_beta2;
		p[k] = p[k] * f.decay -
		       f.step_size * mm[k] / (sqrtf(vv[k]) * f.inv_sqrt_correction2 + f.epsilon);
	}
	store(master + i, p);
	store(m + i, mm);
	store(v + i, vv);
	if (param)
		store(param + i, p);
}

template <typename P, typename G, int N>
static __global__ void adamw_kernel(adamw_factors f, float *master, P *param, const G *grad, float *m,
                                    float *v, int64_t n, const float *grad_scale)
{
	int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
	        stride = (int64_t)gridDim.x * blockDim.x;
	float scale = grad_scale ? *grad_scale : 1.0f;

	for (int64_t i = first; i < n / N; i += stride)
		adamw_pack<P, G, N>(f, scale, master, param, grad, m, v, i * N);
	if (N > 1)
		for (int64_t i = n / N * N + first; i < n; i += stride)
			adamw_pack<P, G, 1>(f, scale, master, param, grad, m, v, i);
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
	                   (float)h->epsilon};

	if (n <= 0 || !computes(dev, "adamw", param ? param_type : DTYPE_F32, grad_type))
		return;
	with_type(param ? param_type : DTYPE_F32, [&](auto p) {
		typedef decltype(p) P;

		with_type(grad_type, [&](auto g) {
			typedef decltype(g) G;

			if (aligned16(master) && aligned16(param) && aligned16(grad) && aligned16(m) &&
			    aligned16(v))
				LAUNCH(dev, (adamw_kernel<P, G, 4>), grid_for(n / 4, THREADS), THREADS, 0, f,
				       master, (P *)param, (const G *)grad, m, v, n, grad_scale);
			else
				LAUNCH(dev, (adamw_kernel<P, G, 1>), grid_for(n, THREADS), THREADS, 0, f,
				       master, (P *)param, (const G *)grad, m, v, n, grad_scale);
		});
	});
}
