/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its weights and a cache of keys and values, fed a prompt and then one token at a time. */
#include "engine/model/generate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

/* Tokens of a prompt that go through the model at once. */
#define PREFILL 256

struct generator {
	struct device *dev;
	struct model_config c;
	struct model_layout *layout;
	struct model *model;
	struct arena arena;
	void *memory;
	char **weights; /* of each unit */
	int64_t max_tokens, ids, length;
	float *logits; /* host */
	void *work;
};

static void take(struct generator *g, struct arena *a, size_t size)
{
	for (int u = 0; u < g->layout->units; u++) {
		void *w = arena_take(a, BUFFER_WEIGHTS, (size_t)g->layout->unit[u].count * size,
		                     "unit %d weights", u);

		model_set_unit(g->model, u, w, NULL);
		g->weights[u] = w;
	}
	model_place_buffers(g->model, a);
}

/* Weights arrive as fp32 pieces on the host and are rounded there. */
static int load(struct generator *g, enum dtype type, model_fill_fn fill, void *context, struct error *err)
{
	enum { PIECE = 1 << 20 };
	_cleanup_free_ float *piece = malloc(PIECE * sizeof(float));
	int r;

	if (!piece)
		return error_oom(err);
	for (int i = 0; i < g->layout->parameters; i++) {
		const struct model_parameter *p = &g->layout->parameter[i];
		char *to = g->weights[p->unit] + (size_t)p->offset * dtype_size(type);

		for (int64_t first = 0; first < p->count; first += PIECE) {
			int64_t n = MIN(p->count - first, PIECE);

			if ((r = fill(context, p, first, n, piece, err)) < 0)
				return r;
			if (type == DTYPE_BF16)
				for (int64_t j = 0; j < n; j++)
					((uint16_t *)(void *)piece)[j] = bf16_from_float(piece[j]);
			if ((r = device_write(g->dev, to + (size_t)first * dtype_size(type), piece,
			                      (size_t)n * dtype_size(type), err)) < 0)
				return r;
		}
	}
	return 0;
}

int generator_create(struct device *dev, const struct model_config *c,
                     const struct generator_options *options, model_fill_fn fill, void *fill_context,
                     struct generator **out, struct error *err)
{
	_cleanup_(generator_freep) struct generator *g = calloc(1, sizeof(*g));
	struct model_options o = {.type = options->type, .logits_rows = 1};
	struct device_shapes shapes;
	int r;

	if (!g)
		return error_oom(err);
	g->dev = dev;
	g->c = *c;
	g->max_tokens = options->max_tokens ? options->max_tokens : c->max_positions;
	g->ids = options->ids ? MIN(options->ids, c->vocab) : c->vocab;
	o.max_tokens = MIN(PREFILL, g->max_tokens);
	o.logits_bytes = device_logits_bytes();
	o.max_sequence = o.cache_tokens = g->max_tokens;
	g->logits = malloc((size_t)c->vocab * sizeof(float));
	g->work = malloc(sampling_work_bytes(c->vocab));
	if (!g->logits || !g->work)
		return error_oom(err);
	if ((r = model_layout_create(c, &g->layout, err)) < 0)
		return r;
	g->weights = calloc((size_t)g->layout->units, sizeof(*g->weights));
	if (!g->weights)
		return error_oom(err);
	if ((r = model_create(dev, c, g->layout, &o, &g->model, err)) < 0)
		return r;
	take(g, &g->arena, dtype_size(o.type));
	if (g->arena.failed)
		return error_oom(err);
	if ((r = device_alloc(dev, g->arena.used, &g->memory, err)) < 0)
		return r;
	arena_bind(&g->arena, g->memory);
	take(g, &g->arena, dtype_size(o.type));
	model_shapes(g->model, &shapes);
	if ((r = device_reserve_scratch(dev, device_scratch_bytes(dev, &shapes), err)) < 0 ||
	    (r = model_prepare(g->model, err)) < 0 || (r = load(g, o.type, fill, fill_context, err)) < 0)
		return r;
	*out = steal_pointer(g);
	return 0;
}

void generator_free(struct generator *g)
{
	if (!g)
		return;
	model_free(g->model);
	model_layout_free(g->layout);
	arena_free(&g->arena);
	if (g->memory)
		device_free(g->dev, g->memory);
	free(g->weights);
	free(g->logits);
	free(g->work);
	free(g);
}

void generator_reset(struct generator *g)
{
	model_decode_reset(g->model);
	g->length = 0;
}

int generator_feed(struct generator *g, const int32_t *ids, int64_t n, struct error *err)
{
	int r;

	if (g->length + n > g->max_tokens)
		return error_set(err, -E2BIG, "%lld tokens are more than the %lld there is room for",
		                 (long long)(g->length + n), (long long)g->max_tokens);
	for (int64_t first = 0; first < n; first += PREFILL) {
		int piece = (int)MIN(n - first, PREFILL);

		if ((r = model_decode(g->model, ids + first, piece, first + piece == n ? g->logits : NULL,
		                      err)) < 0)
			return r;
	}
	g->length += n;
	return 0;
}

const float *generator_logits(const struct generator *g)
{
	return g->logits;
}

void generator_penalize(struct generator *g, const int32_t *ids, size_t n, double penalty)
{
	sampling_penalize(g->logits, g->ids, ids, n, penalty, g->work);
}

int32_t generator_choose(struct generator *g, const struct sampling *s)
{
	return sampling_choose(s, g->logits, g->ids, g->length, g->work);
}
