/* SPDX-License-Identifier: Apache-2.0 */
/* Weights from nothing, by a counter-based generator (Salmon et al. 2011, Philox 4x32-10). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/layout.h"

static void philox(uint64_t key, uint64_t counter, uint32_t stream, uint32_t out[4])
{
	uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), stream, 0};
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
		uint32_t c1 = c[1], c3 = c[3];

		c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c[3] = (uint32_t)a;
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
	for (int i = 0; i < 4; i++)
		out[i] = c[i];
}

/* Two normals from two words (Box and Muller 1958); the first word never gives log(0). */
static void normal_pair(uint32_t a, uint32_t b, float *x, float *y)
{
	float radius = sqrtf(-2 * logf(((float)(a >> 8) + 0.5f) * 0x1p-24f));
	float angle = (float)(2 * M_PI) * ((float)(b >> 8) * 0x1p-24f);

	*x = radius * cosf(angle);
	*y = radius * sinf(angle);
}

/* The stream of random numbers of a parameter. The first roles had the multiples of their number of then, so
 * that a model from nothing begins as it did. */
static uint32_t stream_of(const struct model_parameter *p)
{
	enum { FIRST_ROLES = PARAMETER_HEAD + 1 };

	if ((int)p->role < FIRST_ROLES)
		return (uint32_t)(p->base * FIRST_ROLES + (int)p->role);
	return (uint32_t)1 << 31 | (uint32_t)(p->base * 256 + (int)p->role);
}

int model_init_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	const struct model_init *in = init;
	uint32_t stream = stream_of(p);

	if (!p->matrix) {
		for (int64_t i = 0; i < n; i++)
			out[i] = p->start;
		return 0;
	}
#pragma omp parallel for schedule(static)
	for (int64_t block = first / 4; block <= (first + n - 1) / 4; block++) {
		uint32_t words[4];
		float z[4];

		philox(in->seed, (uint64_t)block, stream, words);
		normal_pair(words[0], words[1], &z[0], &z[1]);
		normal_pair(words[2], words[3], &z[2], &z[3]);
		for (int j = 0; j < 4; j++) {
			int64_t i = 4 * block + j - first;

			if (i >= 0 && i < n)
				out[i] = (float)in->std * z[j];
		}
	}
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

		philox(in->seed, (uint64_t)(first + i) / 4, stream, words);
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
