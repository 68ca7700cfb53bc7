/* SPDX-License-Identifier: Apache-2.0 */
/* One step of an optimizer over this rank's part of every unit, with the norm of all gradients first. */
#include "engine/optim/optimizer.h"

#include <math.h>

#include "engine/optim/internal.h"

static int gradient_norm(struct shard *s, const struct optimizer_options *o, const struct optimizer_work *w,
                         struct error *err)
{
	int r;

	device_zero(s->dev, w->sum_squares, sizeof(double));
	/* The units are in the order in which the backward pass finished them, so that the last reductions go
	 * on while the first units are summed. */
	for (int i = s->units - 1; i >= 0; i--) {
		if (s->unit[i].frozen)
			continue;
		if ((r = shard_wait_gradients(s, i, err)) < 0)
			return r;
		shard_sum_squares(s, i, w->sum_squares);
	}
	if ((r = shard_sum(s, w->sum_squares, 1, err)) < 0)
		return r;
	device_clip_scale(s->dev, w->sum_squares, (float)o->clip, o->loss_scale, w->scale, w->norm);
	return 0;
}

/* AdamW, where what is kept of adapters has no weight decay. */
static void step_adapters(const struct optimizer *o, int unit, const struct optimizer_span *span,
                          const struct optimizer_options *options, const float *grad_scale)
{
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		bool a = p->part == PART_LORA_A, kept = a || p->part == PART_LORA_B;
		int64_t begin = MAX(span->first, p->offset),
		        n = MIN(span->first + span->n, p->offset + p->count) - begin;
		int64_t row = p->shape[1], width = a ? p->count : row;
		struct own_range range;

		if (p->unit != unit || n <= 0)
			continue;
		range = optimizer_range(o->s, unit, begin, n);
		range.first += begin - p->offset;
		optimizer_adamw(o->s, &range, options, grad_scale, span->rate, span->decay, width,
		                kept ? o->layout->kept_rank * (a ? row : 1) : 0);
	}
}

/* A part of a unit, under a rule that looks at each element by itself. */
static void step_span(const struct optimizer *o, int unit, const struct optimizer_span *span,
                      const struct optimizer_options *options, const float *grad_scale)
{
	struct own_range range = optimizer_range(o->s, unit, span->first, span->n);
	double rate = span->rate, decay = span->decay;

	if (o->kind == OPTIMIZER_ADAMW && o->layout->kept_rank > 0 && decay > 0)
		step_adapters(o, unit, span, options, grad_scale);
	else if (o->kind == OPTIMIZER_ADAMW)
		optimizer_adamw(o->s, &range, options, grad_scale, rate, decay, 0, 0);
	else if (o->kind == OPTIMIZER_LION)
		optimizer_lion(o->s, &range, options, grad_scale, rate, decay);
	else
		optimizer_update(o->s, &range, options, grad_scale,
		                 (struct device_update){.rule = DEVICE_SGD,
		                                        .learning_rate = rate,
		                                        .beta1 = options->momentum,
		                                        .weight_decay = decay,
		                                        .ratio = 1,
		                                        .nesterov = options->nesterov});
}

/* The elements [first, end) of a unit. */
static void step_part(const struct optimizer *o, int unit, int64_t first, int64_t end,
                      const struct optimizer_options *options, const float *grad_scale)
{
	struct optimizer_span spans[OPTIMIZER_SPANS];
	int n = optimizer_spans(o, unit, options, spans);

	for (int i = 0; i < n; i++) {
		struct optimizer_span part = spans[i];

		part.first = MAX(spans[i].first, first);
		part.n = MIN(spans[i].first + spans[i].n, end) - part.first;
		if (part.n > 0)
			step_span(o, unit, &part, options, grad_scale);
	}
}

/* A rule that looks at each element by itself, piece by piece of the unit's state. */
static int step_unit(const struct optimizer *o, int unit, const struct optimizer_options *options,
                     const float *grad_scale, struct error *err)
{
	struct shard *s = o->s;
	int64_t first, n;
	int r;

	for (int64_t i = 0; i < shard_state_pieces(s, unit); i++) {
		if ((r = shard_need_state(s, unit, i, &first, &n, err)) < 0)
			return r;
		step_part(o, unit, first, first + n, options, grad_scale);
		if ((r = shard_put_state(s, unit, err)) < 0)
			return r;
	}
	return 0;
}

int optimizer_step(struct optimizer *o, const struct optimizer_options *options,
                   const struct optimizer_work *w, struct error *err)
{
	static int (*const by_tensors[OPTIMIZERS])(struct optimizer *, const struct optimizer_options *,
	                                           const float *, struct error *) = {
	    [OPTIMIZER_LAMB] = optimizer_lamb,
	    [OPTIMIZER_LARS] = optimizer_lars,
	    [OPTIMIZER_ADAFACTOR] = optimizer_adafactor,
	    [OPTIMIZER_MUON] = optimizer_muon,
	    [OPTIMIZER_ADAMW_8BIT] = optimizer_step_8bit,
	    [OPTIMIZER_LION_8BIT] = optimizer_step_8bit};
	struct shard *s = o->s;
	const float *grad_scale = w->scale;
	float scale = 1;
	int r = gradient_norm(s, options, w, err);

	if (r < 0)
		return r;
	if (by_tensors[o->kind]) {
		/* Not all that these do would leave the weights as they are. Only fp16 goes on after an
		 * overflow. */
		if ((s->o.type == DTYPE_F16 &&
		     (r = device_read(s->dev, &scale, w->scale, sizeof(scale), err)) < 0) ||
		    (!isnan(scale) && (r = by_tensors[o->kind](o, options, w->scale, err)) < 0))
			return r;
	}
	if (s->o.offload) {
		if ((r = device_read(s->dev, &scale, w->scale, sizeof(scale), err)) < 0)
			return r;
		grad_scale = &scale;
	}
	for (int i = 0; i < s->units; i++) {
		if (s->unit[i].frozen)
			continue;
		if ((r = shard_wait_host(s, i, err)) < 0)
			return r;
		if (!by_tensors[o->kind])
			shard_begin_step(s, i);
		/* After an overflow nothing would change; on the disk that need not be read. */
		if (!by_tensors[o->kind] && !(s->o.offload_dir && isnan(scale)))
			r = step_unit(o, i, options, grad_scale, err);
		if (r == 0)
			shard_publish(s, i, true);
		if (!by_tensors[o->kind])
			shard_end_step(s, i);
		if (r < 0)
			return r;
	}
	return shard_published(s, err);
}

int optimizer_loaded(struct optimizer *o, struct error *err)
{
	return o->kind == OPTIMIZER_ADAFACTOR ? factors_loaded(o, err)
	       : optimizer_has_8bit(o)        ? moments8_loaded(o, err)
	                                      : 0;
}
