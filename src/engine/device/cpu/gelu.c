/* SPDX-License-Identifier: Apache-2.0 */
/* GELU by its approximation with tanh, with a gate or without. Since (1 + tanh(z)) / 2 is the sigmoid of 2z,
 * it is x · sigmoid(2z), with z = sqrt(2/pi) · (x + 0.044715 · x^3). */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

#define TWICE_ROOT 1.5957691216057308f /* 2 · sqrt(2/pi) */
#define CUBE       0.044715f

VINLINE vf v_gelu(vf x, vf *slope)
{
	vf square = x * x, z = TWICE_ROOT * x * (1.0f + CUBE * square);
	vf s = 1.0f / (1.0f + v_exp(-z)), y = x * s;

	*slope = s + y * (1.0f - s) * (TWICE_ROOT * (1.0f + 3.0f * CUBE * square));
	return y;
}

VINLINE void forward_rows(void *y, const void *x, int64_t lo, int64_t hi, int64_t cols, bool gated,
                          enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *gate = at_const(x, (gated ? 2 : 1) * t * cols, type);
		const void *up = at_const(gate, cols, type);
		void *out = at(y, t * cols, type);

		for (int64_t i = 0; i < cols; i += VW) {
			int64_t n = cols - i < VW ? cols - i : VW;
			vf slope, v = v_gelu(v_load_n(gate, i, type, n), &slope);

			if (gated)
				v *= v_load_n(up, i, type, n);
			v_store_n(out, i, type, v, n);
		}
	}
}

void KERNEL(gelu_forward)(struct device *dev, void *y, const void *x, int64_t tokens, int cols, bool gated,
                          enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (tokens * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(tokens, 1, &lo, &hi);
		WITH_TYPE(type, forward_rows(y, x, lo, hi, cols, gated, TYPE));
	}
}

VINLINE void backward_rows(void *d_x, void *y, const void *d_y, const void *x, int64_t lo, int64_t hi,
                           int64_t cols, bool gated, enum dtype type)
{
	for (int64_t t = lo; t < hi; t++) {
		const void *gate = at_const(x, (gated ? 2 : 1) * t * cols, type);
		const void *up = at_const(gate, cols, type), *dy = at_const(d_y, t * cols, type);
		void *d_gate = at(d_x, (gated ? 2 : 1) * t * cols, type), *d_up = at(d_gate, cols, type);
		void *out = y ? at(y, t * cols, type) : NULL;

		for (int64_t i = 0; i < cols; i += VW) {
			int64_t n = cols - i < VW ? cols - i : VW;
			vf slope, v = v_gelu(v_load_n(gate, i, type, n), &slope),
			          d = v_load_n(dy, i, type, n);

			if (gated) {
				vf u = v_load_n(up, i, type, n);

				v_store_n(d_up, i, type, d * v, n);
				v *= u;
				d *= u;
			}
			v_store_n(d_gate, i, type, d * slope, n);
			if (out)
				v_store_n(out, i, type, v, n);
		}
	}
}

void KERNEL(gelu_backward)(struct device *dev, void *d_x, void *y, const void *d_y, const void *x,
                           int64_t tokens, int cols, bool gated, enum dtype type)
{
#pragma omp parallel num_threads(dev->threads) if (tokens * cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(tokens, 1, &lo, &hi);
		WITH_TYPE(type, backward_rows(d_x, y, d_y, x, lo, hi, cols, gated, TYPE));
	}
}
