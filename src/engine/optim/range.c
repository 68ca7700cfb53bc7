/* SPDX-License-Identifier: Apache-2.0 */
/* What the optimizers do with the part of a unit or a parameter that this rank steps, and sums over
 * tensors. */
#include "engine/device/host.h"
#include "engine/optim/internal.h"

/* Of this rank's part of the unit, the element at which an array of state begins. */
static int64_t first_of(const struct shard *s, const struct shard_unit *u, enum shard_state which)
{
	return shard_state_is_on_disk(s, which) ? u->state_first
	       : which == SHARD_MOMENT1         ? u->m_from
	       : which == SHARD_MOMENT2         ? u->v_from
	                                        : 0;
}

struct own_range optimizer_range(const struct shard *s, int unit, int64_t first, int64_t n)
{
	const struct shard_unit *u = &s->unit[unit];
	struct own_range range = {0};
	int64_t at;

	range.n = u->frozen ? 0 : shard_own(u, first, n, &at);
	if (range.n == 0)
		return range;
	range.first = u->first + at - first;
	range.master = u->master ? u->master + (at - first_of(s, u, SHARD_MASTER)) : NULL;
	range.copy = s->o.type == DTYPE_F32 ? NULL
	                                    : (char *)(s->o.offload ? u->host_copy : u->own_weights) +
	                                          (size_t)at * dtype_size(s->o.type);
	range.gradient_type = u->gradient_type;
	range.gradient = (char *)(s->o.offload ? u->host_gradients : u->own_gradients) +
	                 (size_t)at * dtype_size(u->gradient_type);
	range.m = u->m && at >= u->m_from ? u->m + (at - first_of(s, u, SHARD_MOMENT1)) : NULL;
	range.v = u->v && at >= u->v_from ? u->v + (at - first_of(s, u, SHARD_MOMENT2)) : NULL;
	range.place = u->base + u->first + at;
	return range;
}

double optimizer_rate(const struct optimizer_options *options, const struct model_parameter *p)
{
	return p->base == 0                 ? options->learning_rate * options->embedding_rate
	       : p->role == PARAMETER_VALUE ? options->learning_rate * options->value_rate
	       : p->part == PART_LORA_B     ? options->learning_rate * options->plus_ratio
	                                    : options->learning_rate;
}

int optimizer_spans(const struct optimizer *o, int unit, const struct optimizer_options *options,
                    struct optimizer_span spans[OPTIMIZER_SPANS])
{
	const struct model_unit *from = &o->layout->unit[unit];
	const struct shard_unit *u = &o->s->unit[unit];
	double rate =
	    from->base == 0 ? options->learning_rate * options->embedding_rate : options->learning_rate;
	/* Matrices with a rate of their own: the B of adapters; or the value head, the last matrix of its
	 * unit, which has no adapters. */
	int64_t values = from->offset[PART_WEIGHT][PARAMETER_VALUE],
	        first = from->b > 0   ? from->first_b
	                : values >= 0 ? values
	                              : u->matrices,
	        end = from->b > 0 ? first + from->b : u->matrices;
	double own = options->learning_rate * (from->b > 0 ? options->plus_ratio : options->value_rate);
	int n = 0;

	if (u->frozen)
		return 0;
	spans[n++] = (struct optimizer_span){0, first, rate, options->weight_decay};
	if (first < end)
		spans[n++] = (struct optimizer_span){first, end - first, own, options->weight_decay};
	if (end < u->matrices)
		spans[n++] = (struct optimizer_span){end, u->matrices - end, rate, options->weight_decay};
	spans[n++] = (struct optimizer_span){u->matrices, u->padded - u->matrices, rate,
	                                     options->decay_all ? options->weight_decay : 0};
	return n;
}

double optimizer_decay(const struct optimizer_options *options, const struct model_parameter *p)
{
	return p->matrix || options->decay_all ? options->weight_decay : 0;
}

void optimizer_update(const struct shard *s, const struct own_range *range,
                      const struct optimizer_options *options, const float *grad_scale,
                      struct device_update h)
{
	h.step = options->step;
	h.seed = options->seed;
	h.first = range->place;
	if (range->n > 0 && s->o.offload)
		host_update(range->master, range->copy, s->o.type, range->gradient, range->m, NULL, range->n,
		            grad_scale, &h);
	else if (range->n > 0)
		device_update(s->dev, range->master, range->copy, s->o.type, range->gradient,
		              h.rule == DEVICE_APPLY ? NULL : range->m,
		              h.rule == DEVICE_LAMB ? range->v : NULL, range->n, grad_scale, &h);
}

void optimizer_adamw(const struct shard *s, const struct own_range *range,
                     const struct optimizer_options *options, const float *grad_scale, double learning_rate,
                     double weight_decay, int64_t width, int64_t kept)
{
	struct device_adamw h = {.learning_rate = learning_rate,
	                         .beta1 = options->beta1,
	                         .beta2 = options->beta2,
	                         .epsilon = options->epsilon,
	                         .weight_decay = weight_decay,
	                         .step = options->step,
	                         .seed = options->seed,
	                         .first = range->place,
	                         .width = kept > 0 ? width : 0,
	                         .decayed = width - kept,
	                         .column = kept > 0 ? range->first % width : 0};

	if (range->n > 0 && s->o.offload)
		host_adamw(range->master, range->copy, s->o.type, range->gradient, range->m, range->v,
		           range->n, grad_scale, &h);
	else if (range->n > 0)
		device_adamw(s->dev, range->master, range->copy, s->o.type, range->gradient,
		             range->gradient_type, range->m, range->v, range->n, grad_scale, &h);
}

void optimizer_lion(const struct shard *s, const struct own_range *range,
                    const struct optimizer_options *options, const float *grad_scale, double learning_rate,
                    double weight_decay)
{
	optimizer_update(s, range, options, grad_scale,
	                 (struct device_update){.rule = DEVICE_LION,
	                                        .learning_rate = learning_rate,
	                                        .beta1 = options->beta1,
	                                        .beta2 = options->beta2,
	                                        .weight_decay = weight_decay});
}

/* ---- sums over tensors ---- */

void optimizer_sums_start(struct optimizer *o)
{
	device_zero(o->s->dev, o->sums, 2 * (size_t)o->layout->parameters * sizeof(*o->sums));
}

void optimizer_sum_weights(struct optimizer *o, const struct own_range *range, double *sum)
{
	if (range->n > 0)
		device_sum_squares(o->s->dev, range->master ? (void *)range->master : range->copy,
		                   range->master ? DTYPE_F32 : o->s->o.type, range->n, sum);
}

int optimizer_sums_finish(struct optimizer *o, struct error *err)
{
	int64_t n = 2 * (int64_t)o->layout->parameters;
	int r = shard_sum(o->s, o->sums, n, err);

	return r < 0 ? r : device_read(o->s->dev, o->host_sums, o->sums, (size_t)n * sizeof(*o->sums), err);
}
