// SPDX-License-Identifier: Apache-2.0
/*
 * The optimizers' steps over a flat shard: one reading and one writing of everything. Under AdamW a parameter
 * with its master copy moves 30 bytes (gradient, master, m and v in, the last three and the bf16 copy out),
 * without one 24.
 */
#include "engine/device/cuda/kernel.cuh"
#include "engine/device/rounding.h"

#define THREADS 256

struct adamw_factors {
	float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, epsilon;
	struct rounding_key key;
	int64_t first;
	int64_t width, decayed, column; /* device.h */
};

/* p rounded to bf16 stochastically; infinities and NaNs stay. */
static __device__ __forceinline__ bf16 rounded_stochastically(const struct rounding_key &key, float p,
                                                              uint64_t index)
{
	uint32_t u = float_bits(p), bits = (uint32_t)index;

	ROUNDING_BITS(bits, (uint32_t)(index >> 32), key);
	return (u & 0x7f800000) == 0x7f800000 ? from_float<bf16>(p) : bf16{(uint16_t)((u + bits) >> 16)};
}

/* Every operation is rounded by itself: device.h promises the bits. */
static __device__ __forceinline__ void adamw_update(const adamw_factors &f, float decay, float g, float &p,
                                                    float &m, float &v)
{
	m += exact_product(g - m, f.one_minus_beta1);
	v = exact_product(v, f.beta2) + exact_product(exact_product(g, g), f.one_minus_beta2);
	p = exact_product(p, decay) -
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
	for (int k = 0; k < N; k++) {
		bool decays = f.width == 0 || (f.column + i + k) % f.width < f.decayed;

		adamw_update(f, decays ? f.decay : 1.0f, exact_product(g[k], scale), p[k], mm[k], vv[k]);
	}
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
			out.v[k] = rounded_stochastically(f.key, p[k], (uint64_t)(f.first + i + k));
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

	if (isnan(scale))
		return;
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
	                   h->first,
	                   h->width,
	                   h->decayed,
	                   h->column};

	if (!master && (!param || param_type != DTYPE_BF16)) {
		device_fault(dev, -EINVAL, "adamw without a master copy is for bfloat16 parameters");
		return;
	}
	if (n <= 0)
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

/* ---- the other rules: device.h says what each computes ---- */

struct update_factors {
	float decay, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_correction1,
	    inv_sqrt_correction2, epsilon, ratio;
	bool nesterov;
	struct rounding_key key;
	int64_t first;
};

struct update_arrays {
	float *master, *grad, *m, *v;
};

template <int RULE>
static __device__ __forceinline__ void update_one(const update_factors &f, float d, float &g, float &p,
                                                  float &m, float &v)
{
	if constexpr (RULE == DEVICE_SGD) {
		d = exact_product(d + exact_product(p, f.weight_decay), f.ratio);
		m = exact_product(m, f.beta1) + d;
		p -= exact_product(f.nesterov ? d + exact_product(m, f.beta1) : m, f.step_size);
	} else if constexpr (RULE == DEVICE_LION) {
		float c = exact_product(m, f.beta1) + exact_product(d, f.one_minus_beta1);

		c = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
		m = exact_product(m, f.beta2) + exact_product(d, f.one_minus_beta2);
		p = exact_product(p, f.decay) - exact_product(c, f.step_size);
	} else if constexpr (RULE == DEVICE_LAMB) {
		m += exact_product(d - m, f.one_minus_beta1);
		v = exact_product(v, f.beta2) + exact_product(exact_product(d, d), f.one_minus_beta2);
		g = exact_product(m, f.inv_correction1) /
		        (exact_product(sqrtf(v), f.inv_sqrt_correction2) + f.epsilon) +
		    exact_product(p, f.weight_decay);
	} else if constexpr (RULE == DEVICE_MEAN) {
		d = exact_product(d, f.ratio);
		m += exact_product(d - m, f.one_minus_beta1);
		g = f.nesterov ? d + exact_product(m - d, f.beta1) : m;
	} else {
		p = exact_product(p, f.decay) - exact_product(d, f.ratio);
	}
}

template <int RULE, typename P, int N, bool MASTER>
static __device__ __forceinline__ void update_pack(const update_factors &f, float scale,
                                                   const update_arrays &a, P *param, int64_t i)
{
	constexpr bool writes_gradient = RULE == DEVICE_LAMB || RULE == DEVICE_MEAN;
	float g[N], p[N] = {}, m[N] = {}, v[N] = {};

	load(g, a.grad + i);
	if constexpr (RULE != DEVICE_MEAN) {
		if constexpr (MASTER)
			load(p, a.master + i);
		else
			load(p, param + i);
	}
	if (a.m)
		load(m, a.m + i);
	if (a.v)
		load(v, a.v + i);
#pragma unroll
	for (int k = 0; k < N; k++)
		update_one<RULE>(f, exact_product(g[k], scale), g[k], p[k], m[k], v[k]);
	if (a.m)
		store(a.m + i, m);
	if (a.v)
		store(a.v + i, v);
	if constexpr (writes_gradient) {
		store(a.grad + i, g);
	} else if constexpr (MASTER) {
		store(a.master + i, p);
		if (param)
			store(param + i, p);
	} else {
		pack<bf16, N> out;

#pragma unroll
		for (int k = 0; k < N; k++)
			out.v[k] = rounded_stochastically(f.key, p[k], (uint64_t)(f.first + i + k));
		*(pack<bf16, N> *)(param + i) = out;
	}
}

template <int RULE, typename P, int N, bool MASTER>
static __global__ void __launch_bounds__(THREADS)
    update_kernel(update_factors f, update_arrays a, P *param, int64_t n, const float *grad_scale)
{
	int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
	        stride = (int64_t)gridDim.x * blockDim.x;
	float scale = grad_scale ? *grad_scale : 1.0f;

	if (isnan(scale))
		return;
	for (int64_t i = first; i < n / N; i += stride)
		update_pack<RULE, P, N, MASTER>(f, scale, a, param, i * N);
	if (N > 1)
		for (int64_t i = n / N * N + first; i < n; i += stride)
			update_pack<RULE, P, 1, MASTER>(f, scale, a, param, i);
}

template <int RULE, typename P, bool MASTER>
static void launch_update(struct device *dev, const update_factors &f, const update_arrays &a, P *param,
                          int64_t n, const float *grad_scale)
{
	if (aligned16(a.master) && aligned16(param) && aligned16(a.grad) && aligned16(a.m) && aligned16(a.v))
		LAUNCH(dev, (update_kernel<RULE, P, 4, MASTER>), grid_for(n / 4, THREADS), THREADS, 0, f, a,
		       param, n, grad_scale);
	else
		LAUNCH(dev, (update_kernel<RULE, P, 1, MASTER>), grid_for(n, THREADS), THREADS, 0, f, a,
		       param, n, grad_scale);
}

template <int RULE>
static void update_rule(struct device *dev, const update_factors &f, const update_arrays &a, void *param,
                        enum dtype type, int64_t n, const float *grad_scale)
{
	if (!a.master && RULE != DEVICE_MEAN)
		launch_update<RULE, bf16, false>(dev, f, a, (bf16 *)param, n, grad_scale);
	else
		with_type(param ? type : DTYPE_F32, [&](auto p) {
			launch_update<RULE, decltype(p), true>(dev, f, a, (decltype(p) *)param, n,
			                                       grad_scale);
		});
}

extern "C" void device_update(struct device *dev, float *master, void *param, enum dtype param_type,
                              float *grad, float *m, float *v, int64_t n, const float *grad_scale,
                              const struct device_update *h)
{
	static void (*const rules[])(struct device *, const update_factors &, const update_arrays &, void *,
	                             enum dtype, int64_t, const float *) = {
	    update_rule<DEVICE_SGD>, update_rule<DEVICE_LION>, update_rule<DEVICE_LAMB>,
	    update_rule<DEVICE_MEAN>, update_rule<DEVICE_APPLY>};
	double correction1 = 1 - pow(h->beta1, (double)h->step);
	double correction2 = 1 - pow(h->beta2, (double)h->step);
	update_factors f = {
	    (float)(1 - h->learning_rate * h->weight_decay),
	    (float)h->weight_decay,
	    (float)h->beta1,
	    (float)(1 - h->beta1),
	    (float)h->beta2,
	    (float)(1 - h->beta2),
	    (float)h->learning_rate,
	    (float)(1 / correction1),
	    (float)(1 / sqrt(correction2)),
	    (float)h->epsilon,
	    (float)(h->rule == DEVICE_APPLY ? h->learning_rate * h->ratio : h->ratio),
	    h->nesterov,
	    rounding_key(h->seed, h->step),
	    h->first,
	};
	update_arrays a = {master, grad, m, v};

	if (n > 0 && device_update_fits(dev, master, param, param_type, h))
		rules[h->rule](dev, f, a, param, param_type, n, grad_scale);
}

/* ---- Adafactor ---- */

/* A block a row: the squares of its elements that are here. */
static __global__ void __launch_bounds__(THREADS)
    factor_rows(device_factored f, const float *grad, const float *grad_scale, float *row)
{
	int64_t r = f.first / f.cols + blockIdx.x, lo = r * f.cols, hi = lo + f.cols;
	float scale = grad_scale ? *grad_scale : 1.0f, sum = 0;

	if (isnan(scale))
		return;
	lo = lo < f.first ? f.first : lo;
	hi = hi > f.first + f.n ? f.first + f.n : hi;
	for (int64_t i = lo + threadIdx.x; i < hi; i += THREADS) {
		float g = grad[i - f.first] * scale;

		sum += g * g;
	}
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		row[r] += sum;
}

/* A thread a column: the rows in their order. */
static __global__ void __launch_bounds__(THREADS)
    factor_columns(device_factored f, const float *grad, const float *grad_scale, float *col)
{
	int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x, end = f.first + f.n;
	float scale = grad_scale ? *grad_scale : 1.0f, sum = 0;

	if (j >= f.cols || isnan(scale))
		return;
	for (int64_t i = f.first / f.cols * f.cols + j; i < end; i += f.cols)
		if (i >= f.first) {
			float g = grad[i - f.first] * scale;

			sum += g * g;
		}
	col[j] += sum;
}

extern "C" void device_factor_sums(struct device *dev, const struct device_factored *f, const float *grad,
                                   const float *grad_scale, float *row, float *col)
{
	if (f->n <= 0)
		return;
	LAUNCH(dev, factor_rows, (unsigned)((f->first + f->n + f->cols - 1) / f->cols - f->first / f->cols),
	       THREADS, 0, *f, grad, grad_scale, row);
	if (col)
		LAUNCH(dev, factor_columns, (unsigned)ceil_div(f->cols, THREADS), THREADS, 0, *f, grad,
		       grad_scale, col);
}

static __global__ void __launch_bounds__(THREADS)
    factor_direction_kernel(device_factored f, float *grad, const float *grad_scale, const float *row,
                            const float *col, float factor, float floor)
{
	int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
	float scale = grad_scale ? *grad_scale : 1.0f;

	if (isnan(scale))
		return;
	for (int64_t i = first; i < f.n; i += stride) {
		float estimate = row[(f.first + i) / f.cols] * factor;

		if (col)
			estimate *= col[(f.first + i) % f.cols];

		grad[i] = grad[i] * scale / sqrtf(estimate > floor ? estimate : floor);
	}
}

extern "C" void device_factor_direction(struct device *dev, const struct device_factored *f, float *grad,
                                        const float *grad_scale, const float *row, const float *col,
                                        float factor, float floor)
{
	if (f->n > 0)
		LAUNCH(dev, factor_direction_kernel, grid_for(f->n, THREADS), THREADS, 0, *f, grad,
		       grad_scale, row, col, factor, floor);
}
