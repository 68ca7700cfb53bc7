/* SPDX-License-Identifier: Apache-2.0 */
/* Splits matrices into their largest singular values, for adapters to begin with. */
#include "engine/model/pissa.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/str.h"
#include "engine/model/svd.h"

struct pissa_start {
	const struct model_layout *layout;
	int64_t rank;
	int iterations;
	float scale; /* of the adapters' output */
	uint64_t seed;
	model_fill_fn weights;
	void *context;
	const struct model_parameter *of; /* of this matrix: */
	float *u, *s, *v;
};

int pissa_start_create(const struct model_layout *layout, const struct model_tuning *tuning, uint64_t seed,
                       model_fill_fn weights, void *context, struct pissa_start **out, struct error *err)
{
	struct pissa_start *p = calloc(1, sizeof(*p));

	if (!p)
		return error_oom(err);
	*p = (struct pissa_start){.layout = layout,
	                          .rank = tuning->rank,
	                          .iterations = tuning->pissa_iterations,
	                          .scale = (float)tuning_scale(tuning),
	                          .seed = seed,
	                          .weights = weights,
	                          .context = context};
	*out = p;
	return 0;
}

static void forget(struct pissa_start *p)
{
	p->of = NULL;
	free(steal_pointer(p->u));
	free(steal_pointer(p->s));
	free(steal_pointer(p->v));
}

void pissa_start_free(struct pissa_start *p)
{
	if (!p)
		return;
	forget(p);
	free(p);
}

/* What one thread takes for each of rows · cols · min(rows, cols) of a matrix that no cache holds, on a
 * processor of 3 GHz; of matrices in the cache it measures 12e-9. */
#define EXACT_SECONDS 20e-9

int pissa_check_time(const struct model_layout *layout, const struct model_tuning *tuning, int threads,
                     double timeout_s, struct error *err)
{
	const struct model_parameter *largest = NULL;
	double seconds = 0;
	char text[32];

	for (int i = 0; i < layout->parameters && tuning->pissa_iterations == 0; i++) {
		const struct model_parameter *a = &layout->parameter[i],
		                             *w = a->part == PART_LORA_A ? model_layout_matrix(layout, a)
		                                                         : NULL;
		double takes = w ? EXACT_SECONDS * (double)w->count * (double)MIN(w->shape[0], w->shape[1]) /
		                       MAX(threads, 1)
		                 : 0;

		if (takes > seconds) {
			seconds = takes;
			largest = w;
		}
	}
	if (!largest || seconds <= timeout_s / 2)
		return 0;
	return error_set(err, -EINVAL,
	                 "lora.pissa_iterations = 0: the exact singular values of %s, a matrix of %lld x "
	                 "%lld, take rank 0 about %s, for which the other ranks wait parallel.timeout = %g s "
	                 "at most; expected lora.pissa_iterations = 16, or parallel.timeout = %.0f",
	                 largest->name, (long long)largest->shape[0], (long long)largest->shape[1],
	                 str_duration(text, sizeof(text), seconds), timeout_s, ceil(2 * seconds));
}

static int decompose(struct pissa_start *p, const struct model_parameter *w, struct error *err)
{
	_cleanup_free_ float *all = malloc((size_t)w->count * sizeof(*all));
	int r;

	forget(p);
	p->u = malloc((size_t)(w->shape[0] * p->rank) * sizeof(*p->u));
	p->s = malloc((size_t)p->rank * sizeof(*p->s));
	p->v = malloc((size_t)(p->rank * w->shape[1]) * sizeof(*p->v));
	if (!all || !p->u || !p->s || !p->v)
		return error_oom(err);
	if ((r = p->weights(p->context, w, 0, w->count, all, err)) < 0 ||
	    (r = svd_largest(all, w->shape[0], w->shape[1], p->rank, p->iterations,
	                     p->seed + (uint64_t)(w->base * PARAMETER_ROLES + (int)w->role), p->u, p->s, p->v,
	                     err)) < 0)
		return r;
	p->of = w;
	return 0;
}

int pissa_start_fill(struct pissa_start *s, const struct model_parameter *p, int64_t first, int64_t n,
                     float *out, struct error *err)
{
	const struct model_parameter *w = model_layout_matrix(s->layout, p);
	int r;

	if (!w)
		return error_set(err, -EINVAL, "%s belongs to no matrix", p->name);
	if (s->of != w && (r = decompose(s, w, err)) < 0)
		return r;
	/* Of a matrix that is stored [in, out], the left vectors are those of the inputs. */
	for (int64_t i = 0; i < n; i++) {
		int64_t row = (first + i) / p->shape[1], column = (first + i) % p->shape[1];
		int64_t k = (p->part == PART_LORA_A ? row : column) % s->rank;
		float half = sqrtf(s->s[k] / s->scale);

		if (p->part == PART_LORA_A)
			out[i] = half * (w->transposed ? s->u[column * s->rank + k]
			                               : s->v[k * w->shape[1] + column]);
		else
			out[i] = (column < s->rank ? half : -half) *
			         (w->transposed ? s->v[k * w->shape[1] + row] : s->u[row * s->rank + k]);
	}
	return 0;
}
