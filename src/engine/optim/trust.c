/* SPDX-License-Identifier: Apache-2.0 */
/* LAMB and LARS: each tensor's step is scaled by the norm of its weights over that of its direction. */
#include <math.h>

#include "engine/optim/internal.h"

/* 1 where one of the two is zero, as the papers' implementations have it. */
static double ratio_of(double weights, double direction)
{
	return weights > 0 && direction > 0 ? weights / direction : 1;
}

int optimizer_lamb(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err)
{
	int r;

	optimizer_sums_start(o);
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		optimizer_update(o->s, &range, options, grad_scale,
		                 (struct device_update){.rule = DEVICE_LAMB,
		                                        .beta1 = options->beta1,
		                                        .beta2 = options->beta2,
		                                        .epsilon = options->epsilon,
		                                        .weight_decay = optimizer_decay(options, p)});
		optimizer_sum_weights(o, &range, &o->sums[2 * i]);
		if (range.n > 0)
			device_sum_squares(o->s->dev, range.gradient, DTYPE_F32, range.n,
			                   &o->sums[2 * i + 1]);
	}
	if ((r = optimizer_sums_finish(o, err)) < 0)
		return r;
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		optimizer_update(o->s, &range, options, NULL,
		                 (struct device_update){.rule = DEVICE_APPLY,
		                                        .learning_rate = optimizer_rate(options, p),
		                                        .ratio = ratio_of(sqrt(o->host_sums[2 * i]),
		                                                          sqrt(o->host_sums[2 * i + 1]))});
	}
	return 0;
}

/* The paper's coefficient, eta. */
#define LARS_TRUST 0.001

int optimizer_lars(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err)
{
	float scale;
	int r;

	optimizer_sums_start(o);
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		optimizer_sum_weights(o, &range, &o->sums[2 * i]);
		if (range.n > 0)
			device_sum_squares(o->s->dev, range.gradient, DTYPE_F32, range.n,
			                   &o->sums[2 * i + 1]);
	}
	if ((r = optimizer_sums_finish(o, err)) < 0 ||
	    (r = device_read(o->s->dev, &scale, grad_scale, sizeof(scale), err)) < 0)
		return r;
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);
		double decay = optimizer_decay(options, p), weights = sqrt(o->host_sums[2 * i]);
		double gradient = sqrt(o->host_sums[2 * i + 1]) * (double)scale;
		double ratio = ratio_of(LARS_TRUST * weights,
		                        gradient > 0 ? gradient + decay * weights + options->epsilon : 0);

		if (p->frozen)
			continue;
		optimizer_update(o->s, &range, options, grad_scale,
		                 (struct device_update){.rule = DEVICE_SGD,
		                                        .learning_rate = optimizer_rate(options, p),
		                                        .beta1 = options->momentum,
		                                        .weight_decay = decay,
		                                        .ratio = p->matrix ? ratio : 1,
		                                        .nesterov = options->nesterov});
	}
	return 0;
}
