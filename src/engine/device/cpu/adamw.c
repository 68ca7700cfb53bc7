/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW on vectors. Contraction of a product and a sum into one instruction is off, so that each operation is
 * rounded by itself: device.h promises the same bits on every device.
 */
#pragma GCC optimize("fp-contract=off")
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"
#include "engine/device/rounding.h"

struct factors {
	float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, epsilon,
	    grad_scale;
	struct rounding_key key;
	int64_t first;
};

struct arrays {
	float *master, *m, *v;
	void *param;
	const void *grad;
};

VINLINE void update(const struct factors *f, vf g, vf *p, vf *m, vf *v)
{
	g *= f->grad_scale;
	*m += (g - *m) * f->one_minus_beta1;
	*v = *v * f->beta2 + g * g * f->one_minus_beta2;
	*p = *p * f->decay - f->step_size * *m / (v_sqrt(*v) * f->inv_sqrt_correction2 + f->epsilon);
}

/* p rounded stochastically to values that bf16 can hold; infinities and NaNs stay as they are. */
VINLINE vf rounded_stochastically(const struct factors *f, vf p, int64_t i)
{
	uint64_t index = (uint64_t)(f->first + i);
	vu low = (vu){} + (uint32_t)index, bits = low + (vu)v_lanes(), u = (vu)p;
	/* A comparison gives -1 where it is true, so that subtracting it adds the carry. */
	vu high = (vu){} + (uint32_t)(index >> 32) - (vu)(bits < low);
	vi special = (vi)(u & 0x7f800000) == 0x7f800000;

	ROUNDING_BITS(bits, high, f->key);
	return v_select(special, p, (vf)((u + bits) & 0xffff0000));
}

VINLINE void part(const struct factors *f, const struct arrays *a, enum dtype param_type,
                  enum dtype grad_type, int64_t lo, int64_t hi)
{
	const void *from = a->master ? a->master : a->param;
	enum dtype from_type = a->master ? DTYPE_F32 : DTYPE_BF16;

	for (int64_t i = lo; i < hi; i += VW) {
		int64_t n = hi - i < VW ? hi - i : VW;
		bool whole = n == VW;
		vf p = whole ? v_load(from, i, from_type) : v_load_n(from, i, from_type, n);
		vf m = whole ? v_load(a->m, i, DTYPE_F32) : v_load_n(a->m, i, DTYPE_F32, n);
		vf v = whole ? v_load(a->v, i, DTYPE_F32) : v_load_n(a->v, i, DTYPE_F32, n);

		update(f, whole ? v_load(a->grad, i, grad_type) : v_load_n(a->grad, i, grad_type, n), &p, &m,
		       &v);
		if (whole) {
			v_store(a->m, i, DTYPE_F32, m);
			v_store(a->v, i, DTYPE_F32, v);
		} else {
			v_store_n(a->m, i, DTYPE_F32, m, n);
			v_store_n(a->v, i, DTYPE_F32, v, n);
		}
		if (!a->master)
			p = rounded_stochastically(f, p, i);
		else if (whole)
			v_store(a->master, i, DTYPE_F32, p);
		else
			v_store_n(a->master, i, DTYPE_F32, p, n);
		if (a->param && whole)
			v_store(a->param, i, param_type, p);
		else if (a->param)
			v_store_n(a->param, i, param_type, p, n);
	}
}

void KERNEL(adamw)(struct device *dev, float *master, void *param, enum dtype param_type, const void *grad,
                   enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
                   const struct device_adamw *h)
{
	double correction1 = 1 - pow(h->beta1, (double)h->step);
	double correction2 = 1 - pow(h->beta2, (double)h->step);
	const struct factors f = {
	    .decay = (float)(1 - h->learning_rate * h->weight_decay),
	    .one_minus_beta1 = (float)(1 - h->beta1),
	    .beta2 = (float)h->beta2,
	    .one_minus_beta2 = (float)(1 - h->beta2),
	    .step_size = (float)(h->learning_rate / correction1),
	    .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)),
	    .epsilon = (float)h->epsilon,
	    .grad_scale = grad_scale ? *grad_scale : 1,
	    .key = rounding_key(h->seed, h->step),
	    .first = h->first,
	};
	const struct arrays a = {master, m, v, param, grad};

#pragma omp parallel num_threads(dev->threads) if (n > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(n, CACHE_LINE, &lo, &hi);
		if (grad_type == DTYPE_F32)
			part(&f, &a, param_type, DTYPE_F32, lo, hi);
		else
			part(&f, &a, param_type, DTYPE_BF16, lo, hi);
	}
}
