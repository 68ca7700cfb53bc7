/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution over tokens, gates, and copies of columns in groups (delta.h). Threads have tokens of their
 * own, and in the gradient of the convolution's weights channels. */
#include "engine/device/delta.h"

#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

VINLINE vf silu_of(vf z, enum dtype type)
{
	return z * v_sigmoid(z, type);
}

VINLINE vf slope_of_silu(vf z, enum dtype type)
{
	vf s = v_sigmoid(z, type);

	return s + z * s * (1.0f - s);
}

/* The weights as [width, channels] in fp32, so that neighbouring channels are a vector. NULL: no scratch. */
static float *turned_weights(struct device *dev, const struct device_conv *c, const void *w)
{
	float *out = device_scratch(dev, conv_bytes(c->channels, c->width), "conv");

	for (int k = 0; out && k < c->channels; k++)
		for (int j = 0; j < c->width; j++)
			out[j * c->channels + k] = s_load(w, (int64_t)k * c->width + j, c->type);
	return out;
}

/* Of n channels from k on, in front of silu: `last` has the width - 1 rows in front of the document, NULL:
 * zeros. */
VINLINE vf convolve(const struct device_conv *c, const void *x, const float *w, const void *last,
                    int64_t first, int64_t t, int k, int n, enum dtype type)
{
	vf sum = v_set(0);

	for (int j = 0; j < c->width; j++) {
		int64_t row = t - c->width + 1 + j;

		if (row < first && !last)
			continue;
		sum +=
		    load_part(w, (int64_t)j * c->channels + k, DTYPE_F32, n) *
		    (row >= first ? load_part(x, row * c->ld_x + k, type, n)
		                  : load_part(last, (c->width - 1 + row - first) * c->channels + k, type, n));
	}
	return sum;
}

/* The channels from k on that are computed at once. */
VINLINE int some(int channels, int k)
{
	return channels - k < VW ? channels - k : VW;
}

/* The document that token t is in. */
static int document_of(const struct device_conv *c, int64_t t)
{
	int low = 0, high = c->documents;

	while (high - low > 1) {
		int middle = (low + high) / 2;

		if (c->host_starts[middle] <= t)
			low = middle;
		else
			high = middle;
	}
	return low;
}

VINLINE void conv_rows(const struct device_conv *c, void *y, const void *x, const float *w, const void *last,
                       const int32_t *sequences, int64_t lo, int64_t hi, enum dtype type)
{
	int document = lo < hi ? document_of(c, lo) : 0;

	for (int64_t t = lo; t < hi; t++) {
		const void *before = NULL;

		while (t >= c->host_starts[document + 1])
			document++;
		if (last)
			before = (const char *)last + (size_t)sequences[t] * (size_t)(c->width - 1) *
			                                  (size_t)c->channels * dtype_size(type);
		for (int k = 0; k < c->channels; k += VW) {
			int n = some(c->channels, k);
			vf z = convolve(c, x, w, before, c->host_starts[document], t, k, n, type);

			store_part(y, t * c->ld_y + k, type, silu_of(z, type), n);
		}
	}
}

/* The last rows of a part, and of what was in front of it where it has fewer. */
VINLINE void keep_rows(const struct device_conv *c, void *last, const int32_t *sequences, const void *x,
                       int document, enum dtype type)
{
	int64_t first = c->host_starts[document], n = c->host_starts[document + 1] - first;
	char *kept = (char *)last + (size_t)sequences[first] * (size_t)(c->width - 1) * (size_t)c->channels *
	                                dtype_size(type);

	for (int j = 0; j < c->width - 1; j++)
		for (int k = 0; k < c->channels; k++) {
			int64_t row = n - (c->width - 1) + j;

			s_store(kept, (int64_t)j * c->channels + k, type,
			        row >= 0 ? s_load(x, (first + row) * c->ld_x + k, type)
			                 : s_load(kept, (row + c->width - 1) * c->channels + k, type));
		}
}

void KERNEL(conv_forward)(struct device *dev, const struct device_conv *c, void *last,
                          const int32_t *sequences, void *y, const void *x, const void *w)
{
	const float *turned = turned_weights(dev, c, w);

	if (!turned)
		return;
#pragma omp parallel num_threads(dev->threads) if (c->tokens * c->channels > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(c->tokens, 1, &lo, &hi);
		WITH_TYPE(c->type, conv_rows(c, y, x, turned, last, sequences, lo, hi, TYPE));
	}
	for (int i = 0; last && i < c->documents; i++)
		WITH_TYPE(c->type, keep_rows(c, last, sequences, x, i, TYPE));
}

/* d_y becomes the gradient in front of silu. */
VINLINE void conv_slopes(const struct device_conv *c, void *d_y, const void *x, const float *w, int64_t lo,
                         int64_t hi, enum dtype type)
{
	int document = lo < hi ? document_of(c, lo) : 0;

	for (int64_t t = lo; t < hi; t++) {
		while (t >= c->host_starts[document + 1])
			document++;
		for (int k = 0; k < c->channels; k += VW) {
			int n = some(c->channels, k);
			vf z = convolve(c, x, w, NULL, c->host_starts[document], t, k, n, type),
			   dy = load_part(d_y, t * c->ld_y + k, type, n);

			store_part(d_y, t * c->ld_y + k, type, dy * slope_of_silu(z, type), n);
		}
	}
}

VINLINE void conv_input_gradient(const struct device_conv *c, void *d_x, const void *d_z, const float *w,
                                 int64_t lo, int64_t hi, enum dtype type)
{
	int document = lo < hi ? document_of(c, lo) : 0;

	for (int64_t t = lo; t < hi; t++) {
		while (t >= c->host_starts[document + 1])
			document++;
		for (int k = 0; k < c->channels; k += VW) {
			int n = some(c->channels, k);
			vf sum = v_set(0);

			for (int j = 0; j < c->width; j++) {
				int64_t row = t + c->width - 1 - j;

				if (row < c->host_starts[document + 1])
					sum += load_part(w, (int64_t)j * c->channels + k, DTYPE_F32, n) *
					       load_part(d_z, row * c->ld_y + k, type, n);
			}
			store_part(d_x, t * c->ld_x + k, type, sum, n);
		}
	}
}

/* Of n channels from k on. Sums of so many tokens are added up, so that rounding does not grow with the
 * batch. */
#define SUMMED 256
VINLINE void conv_weight_gradient(const struct device_conv *c, float *d_w, const void *d_z, const void *x,
                                  int k, int n, enum dtype type)
{
	vf all[DEVICE_CONV_WIDTH], sum[DEVICE_CONV_WIDTH];
	int64_t added = 0;

	for (int j = 0; j < c->width; j++)
		all[j] = sum[j] = v_set(0);
	for (int i = 0; i < c->documents; i++)
		for (int64_t t = c->host_starts[i]; t < c->host_starts[i + 1]; t++) {
			vf dz = load_part(d_z, t * c->ld_y + k, type, n);

			for (int j = 0; j < c->width; j++)
				if (t - c->width + 1 + j >= c->host_starts[i])
					sum[j] +=
					    dz * load_part(x, (t - c->width + 1 + j) * c->ld_x + k, type, n);
			if (++added % SUMMED)
				continue;
			for (int j = 0; j < c->width; j++) {
				all[j] += sum[j];
				sum[j] = v_set(0);
			}
		}
	for (int j = 0; j < c->width; j++) {
		all[j] += sum[j];
		for (int i = 0; i < n; i++)
			d_w[(k + i) * c->width + j] += all[j][i];
	}
}

void KERNEL(conv_backward)(struct device *dev, const struct device_conv *c, void *d_x, float *d_w, void *d_y,
                           const void *x, const void *w)
{
	const float *turned = turned_weights(dev, c, w);

	if (!turned)
		return;
#pragma omp parallel num_threads(dev->threads) if (c->tokens * c->channels > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(c->tokens, 1, &lo, &hi);
		WITH_TYPE(c->type, conv_slopes(c, d_y, x, turned, lo, hi, TYPE));
#pragma omp barrier
		WITH_TYPE(c->type, conv_input_gradient(c, d_x, d_y, turned, lo, hi, TYPE));
		parallel_part(c->channels, VW, &lo, &hi);
		for (int64_t k = lo; k < hi; k += VW)
			WITH_TYPE(c->type, conv_weight_gradient(c, d_w, d_y, x, (int)k,
			                                        some(c->channels, (int)k), TYPE));
	}
}

VINLINE void gate_rows(const struct device_gating *g, void *y, const void *x, const void *gate, int64_t lo,
                       int64_t hi, enum dtype type)
{
	for (int64_t r = lo; r < hi; r++)
		for (int k = 0; k < g->cols; k += VW) {
			int n = some(g->cols, k);
			vf z = load_part(gate, r * g->ld_gate + k, type, n), f = v_sigmoid(z, type);

			store_part(y, r * g->ld_y + k, type,
			           load_part(x, r * g->ld_x + k, type, n) * (g->silu ? z * f : f), n);
		}
}

void KERNEL(gate_forward)(struct device *dev, const struct device_gating *g, void *y, const void *x,
                          const void *gate)
{
#pragma omp parallel num_threads(dev->threads) if (g->rows * g->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(g->rows, 1, &lo, &hi);
		WITH_TYPE(g->type, gate_rows(g, y, x, gate, lo, hi, TYPE));
	}
}

VINLINE void gate_gradient_rows(const struct device_gating *g, void *d_x, void *d_gate, const void *d_y,
                                const void *x, const void *gate, int64_t lo, int64_t hi, enum dtype type)
{
	for (int64_t r = lo; r < hi; r++)
		for (int k = 0; k < g->cols; k += VW) {
			int n = some(g->cols, k);
			vf z = load_part(gate, r * g->ld_gate + k, type, n), s = v_sigmoid(z, type),
			   dy = load_part(d_y, r * g->ld_y + k, type, n), slope = s * (1.0f - s);

			if (g->silu)
				slope = s + z * slope;
			store_part(d_gate, r * g->ld_gate + k, type,
			           dy * load_part(x, r * g->ld_x + k, type, n) * slope, n);
			store_part(d_x, r * g->ld_y + k, type, dy * (g->silu ? z * s : s), n);
		}
}

void KERNEL(gate_backward)(struct device *dev, const struct device_gating *g, void *d_x, void *d_gate,
                           const void *d_y, const void *x, const void *gate)
{
#pragma omp parallel num_threads(dev->threads) if (g->rows * g->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(g->rows, 1, &lo, &hi);
		WITH_TYPE(g->type, gate_gradient_rows(g, d_x, d_gate, d_y, x, gate, lo, hi, TYPE));
	}
}

void KERNEL(copy_groups)(struct device *dev, const struct device_group_copy *c, void *y, const void *x)
{
	size_t size = dtype_size(c->type);

#pragma omp parallel num_threads(dev->threads) if (c->rows * c->groups * c->cols > PARALLEL_MIN)
	{
		int64_t lo, hi;

		parallel_part(c->rows, 1, &lo, &hi);
		for (int64_t r = lo; r < hi; r++)
			for (int g = 0; g < c->groups; g++)
				memcpy((char *)y + (size_t)(r * c->ld_y + g * c->step_y) * size,
				       (const char *)x + (size_t)(r * c->ld_x + g * c->step_x) * size,
				       (size_t)c->cols * size);
	}
}
