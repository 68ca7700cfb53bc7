/* SPDX-License-Identifier: Apache-2.0 */
/* One step of AdamW over this rank's part of every unit, with the norm of all gradients first. */
#include "engine/optim/adamw.h"

static int gradient_norm(struct shard *s, const struct adamw_options *o, const struct adamw_work *w,
                         struct error *err)
{
	int r;

	device_zero(s->dev, w->sum_squares, sizeof(double));
	/* The units are in the order in which the backward pass finished them, so that the last reductions go
	 * on while the first units are summed. */
	for (int i = s->units - 1; i >= 0; i--) {
		struct shard_unit *u = &s->unit[i];

		if ((r = shard_wait_gradients(s, i, err)) < 0)
			return r;
		device_sum_squares(s->dev, u->own_gradients, DTYPE_F32, u->own, w->sum_squares);
	}
	if ((r = shard_sum(s, w->sum_squares, 1, err)) < 0)
		return r;
	device_clip_scale(s->dev, w->sum_squares, (float)o->clip, w->scale, w->norm);
	return 0;
}

/* Updates the elements [first, first + n) of a unit that this rank holds. */
static void step_range(struct shard *s, struct shard_unit *u, int64_t first, int64_t n, double decay,
                       const struct adamw_options *o, const struct adamw_work *w)
{
	struct device_adamw h = {.learning_rate = o->learning_rate,
	                         .beta1 = o->beta1,
	                         .beta2 = o->beta2,
	                         .epsilon = o->epsilon,
	                         .weight_decay = decay,
	                         .step = o->step,
	                         .seed = o->seed};
	int64_t at, count = shard_own(u, first, n, &at);
	float *master = u->master ? u->master + at : NULL;
	char *copy =
	    s->o.type == DTYPE_F32 ? NULL : (char *)u->own_weights + (size_t)at * dtype_size(s->o.type);

	h.first = u->base + u->first + at;
	if (count > 0)
		device_adamw(s->dev, master, copy, s->o.type, u->own_gradients + at, DTYPE_F32, u->m + at,
		             u->v + at, count, w->scale, &h);
}

int adamw_step(struct shard *s, const struct adamw_options *o, const struct adamw_work *w, struct error *err)
{
	int r = gradient_norm(s, o, w, err);

	if (r < 0)
		return r;
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		step_range(s, u, 0, u->matrices, o->weight_decay, o, w);
		step_range(s, u, u->matrices, u->padded - u->matrices, o->decay_all ? o->weight_decay : 0, o,
		           w);
		shard_publish(s, i, true);
	}
	return shard_published(s, err);
}
