/* SPDX-License-Identifier: Apache-2.0 */
/* Weights from nothing. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/device/device.h"
#include "engine/model/layout.h"
#include "engine/model/normal.h"

/* The stream of random numbers of a parameter. The first roles had the multiples of their number of then, so
 * that a model from nothing begins as it did. */
static uint32_t stream_of(const struct model_parameter *p)
{
	enum { FIRST_ROLES = PARAMETER_HEAD + 1 };

	/* A block has three roles of experts' matrices. */
	if (p->expert > 0)
		return (uint32_t)1 << 30 |
		       (uint32_t)((p->base * 3 + (int)p->role - PARAMETER_GATE) * DEVICE_EXPERTS_MAX +
		                  p->expert);
	if ((int)p->role < FIRST_ROLES)
		return (uint32_t)(p->base * FIRST_ROLES + (int)p->role);
	return (uint32_t)1 << 31 | (uint32_t)(p->base * 256 + (int)p->role);
}

struct model_init model_init_of(const struct model_config *c, uint64_t seed, double std)
{
	std = std > 0 ? std : c->init_std;
	return (struct model_init){.seed = seed, .std = std, .residual_std = std * c->residual_init};
}

/* Logarithms of rates from 0.01 to 16, as transformers draws them for linear attention. */
static void fill_rates(uint64_t seed, uint32_t stream, int64_t first, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t words[4];

		random_words(seed, (uint64_t)(first + i) / 4, stream, words);
		out[i] = (float)log(0.01 + 15.99 * (((double)words[(first + i) % 4] + 0.5) * 0x1p-32));
	}
}

int model_init_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	const struct model_init *in = init;
	uint32_t stream = stream_of(p);
	bool residual = p->role == PARAMETER_O || p->role == PARAMETER_DOWN || p->role == PARAMETER_DELTA_OUT;

	if (p->role == PARAMETER_DELTA_A_LOG) {
		fill_rates(in->seed, stream, first, n, out);
		return 0;
	}
	/* All values begin at 0. */
	if ((!p->matrix && p->role != PARAMETER_DELTA_CONV) || p->role == PARAMETER_VALUE) {
		for (int64_t i = 0; i < n; i++)
			out[i] = p->start;
		return 0;
	}
	random_normals(in->seed, stream, first, n,
	               (float)(residual && in->residual_std > 0 ? in->residual_std : in->std), out);
	return 0;
}

/* ---- adapters ---- */

int model_adapter_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                       struct error *err)
{
	const struct model_init *in = init;
	/* No stream of the model's own parameters. */
	uint32_t stream = 3u << 30 | (uint32_t)(p->base * 256 + (int)p->role);
	float bound = (float)(1 / sqrt((double)p->shape[1]));

	if (p->part != PART_LORA_A) {
		for (int64_t i = 0; i < n; i++)
			out[i] = 0;
		return 0;
	}
	for (int64_t i = 0; i < n; i++) {
		uint32_t words[4];

		random_words(in->seed, (uint64_t)(first + i) / 4, stream, words);
		out[i] = bound * (((float)(words[(first + i) % 4] >> 8) + 0.5f) * 0x1p-23f - 1);
	}
	return 0;
}

/* The lengths of columns [first, first + n) of a matrix that is stored [in, out]; row: memory for n. */
static int column_norms(const struct model_parameter *w, model_fill_fn weights, void *context, int64_t first,
                        int64_t n, float *row, float *out, struct error *err)
{
	_cleanup_free_ double *sum = calloc((size_t)n + 1, sizeof(*sum));
	int r = 0;

	if (!sum)
		return error_oom(err);
	for (int64_t i = 0; i < w->shape[0] && r == 0; i++) {
		r = weights(context, w, i * w->shape[1] + first, n, row, err);
		for (int64_t j = 0; j < n && r == 0; j++)
			sum[j] += (double)row[j] * row[j];
	}
	for (int64_t j = 0; j < n; j++)
		out[j] = (float)sqrt(sum[j]);
	return r;
}

int model_magnitude_fill(const struct model_layout *layout, model_fill_fn weights, void *context,
                         const struct model_parameter *p, int64_t first, int64_t n, float *out,
                         struct error *err)
{
	const struct model_parameter *w = model_layout_matrix(layout, p);
	int64_t columns = w ? w->shape[1] : 0;
	_cleanup_free_ float *row = malloc((size_t)(columns + 1) * sizeof(*row));
	int r = 0;

	if (!row)
		return error_oom(err);
	if (!w)
		return error_set(err, -EINVAL, "%s belongs to no matrix", p->name);
	if (w->transposed)
		return column_norms(w, weights, context, first, n, row, out, err);
	for (int64_t i = 0; i < n && r == 0; i++) {
		double sum = 0;

		r = weights(context, w, (first + i) * columns, columns, row, err);
		for (int64_t j = 0; j < columns && r == 0; j++)
			sum += (double)row[j] * row[j];
		out[i] = (float)sqrt(sum);
	}
	return r;
}
