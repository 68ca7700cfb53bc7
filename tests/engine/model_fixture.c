/* SPDX-License-Identifier: Apache-2.0 */
/* Places a model, its weights and gradients in memory of its own, and runs single passes over it. */
#include "model_fixture.h"

#include <stdlib.h>

static void place(struct model_fixture *s)
{
	for (int u = 0; u < s->layout->units; u++) {
		size_t n = (size_t)s->layout->unit[u].count;

		s->w[u] = arena_take(&s->arena, BUFFER_WEIGHTS, n * dtype_size(s->type), "weights");
		s->g[u] = arena_take(&s->arena, BUFFER_GRADIENTS, n * 4, "gradients");
		model_set_unit(s->model, u, s->w[u], s->g[u]);
	}
	s->loss = arena_take(&s->arena, BUFFER_SCRATCH, sizeof(double), "loss");
	model_place_buffers(s->model, &s->arena);
}

/* Writes a parameter through fp32 memory of the device, since memory of the host is not accessible there. */
static int load_one(struct model_fixture *s, const struct model_parameter *p, model_fill_fn fill,
                    void *context, struct error *err)
{
	size_t bytes = (size_t)p->count * sizeof(float);
	_cleanup_free_ float *x = malloc(bytes);
	void *staging = NULL;
	int r = x ? fill(context, p, 0, p->count, x, err) : error_oom(err);

	if (r < 0 || (r = device_alloc(s->dev, bytes, &staging, err)) < 0)
		return r;
	r = device_write(s->dev, staging, x, bytes, err);
	if (r == 0) {
		device_cast(s->dev, s->w[p->unit] + (size_t)p->offset * dtype_size(s->type), s->type, staging,
		            DTYPE_F32, p->count);
		r = device_synchronize(s->dev, err);
	}
	device_free(s->dev, staging);
	return r;
}

static int load(struct model_fixture *s, model_fill_fn fill, void *context, struct error *err)
{
	int r = 0;

	for (int i = 0; i < s->layout->parameters && r == 0; i++)
		r = load_one(s, &s->layout->parameter[i], fill, context, err);
	return r;
}

int model_fixture_create(struct model_fixture *s, const struct model_config *c,
                         const struct model_options *options, model_fill_fn fill, void *context,
                         struct error *err)
{
	struct device_shapes shapes;
	int r;

	*s = (struct model_fixture){.c = *c, .type = options->type};
	if ((r = device_create(&(struct device_options){0}, &s->dev, err)) < 0 ||
	    (r = model_layout_create_tuned(c, options->tuning, &s->layout, err)) < 0 ||
	    (r = model_create(s->dev, &s->c, s->layout, options, &s->model, err)) < 0)
		return r;
	s->w = calloc((size_t)s->layout->units, sizeof(*s->w));
	s->g = calloc((size_t)s->layout->units, sizeof(*s->g));
	place(s);
	if ((r = device_alloc(s->dev, s->arena.used, &s->memory, err)) < 0)
		return r;
	arena_bind(&s->arena, s->memory);
	place(s);
	model_shapes(s->model, &shapes);
	if ((r = device_reserve_scratch(s->dev, device_scratch_bytes(s->dev, &shapes), err)) < 0 ||
	    (r = model_prepare(s->model, err)) < 0)
		return r;
	return load(s, fill, context, err);
}

void model_fixture_free(struct model_fixture *s)
{
	model_free(s->model);
	model_layout_free(s->layout);
	arena_free(&s->arena);
	if (s->memory)
		device_free(s->dev, s->memory);
	if (s->dev)
		device_destroy(s->dev);
	free(s->w);
	free(s->g);
}

static double counted(const struct model_batch *b)
{
	double n = 0;

	for (int64_t t = 0; t < b->tokens; t++)
		n += b->targets[t] >= 0;
	return n;
}

int model_fixture_loss(struct model_fixture *s, const struct model_batch *b, double *loss, struct error *err)
{
	double zero = 0;
	int r;

	if ((r = device_write(s->dev, s->loss, &zero, sizeof(zero), err)) < 0 ||
	    (r = model_evaluate(s->model, b, s->loss, NULL, err)) < 0 ||
	    (r = device_read(s->dev, loss, s->loss, sizeof(*loss), err)) < 0)
		return r;
	*loss /= counted(b);
	return 0;
}

int model_fixture_gradients(struct model_fixture *s, const struct model_batch *b, float scale, bool first,
                            double *loss_sum, struct error *err)
{
	double zero = 0;
	int r;

	if ((r = device_write(s->dev, s->loss, &zero, sizeof(zero), err)) < 0 ||
	    (r = model_forward_backward(s->model, b, scale, first, s->loss, err)) < 0)
		return r;
	return device_read(s->dev, loss_sum, s->loss, sizeof(*loss_sum), err);
}
