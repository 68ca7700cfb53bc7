/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers of one process, and parameters or moments of a whole model, out of a trainer and into one. */
#pragma once

#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/train/trainer.h"

/* A trainer of a model that begins with random weights, on one thread. The caller frees it, and then *dev. */
static inline struct trainer *trainer_state_begin(const char *model, const struct train_options *o,
                                                  const struct dataset *rows, struct device **dev)
{
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct model_config c;
	struct trainer *t;

	ck_ok(model_config_parse(model, strlen(model), "config.json", &c, &err), &err);
	ck_ok(device_create(&(struct device_options){.threads = 1}, dev, &err), &err);
	ck_ok(trainer_create(*dev, NULL, &c, o, rows, rows, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	return t;
}

/* All elements in the order of the layout, the caller's; zeros where there are none. */
static inline float *trainer_state_read(struct trainer *t, enum parameter_state which)
{
	const struct model_layout *l = trainer_layout(t);
	float *out = calloc((size_t)l->elements, sizeof(float)), *at = out;
	struct error err = ERROR_INIT;

	for (int i = 0; i < l->parameters; at += l->parameter[i++].count)
		if (trainer_read(t, which, &l->parameter[i], 0, l->parameter[i].count, at, &err) < 0)
			memset(at, 0, (size_t)l->parameter[i].count * sizeof(float));
	return out;
}

/* state: parameters and both moments. */
static inline void trainer_state_write(struct trainer *t, float *const state[3], int64_t step)
{
	const struct model_layout *l = trainer_layout(t);
	struct error err = ERROR_INIT;

	for (int s = 0; s < 3; s++) {
		const float *at = state[s];

		for (int i = 0; i < l->parameters; at += l->parameter[i++].count)
			ck_ok(trainer_write(t, (enum parameter_state)s, &l->parameter[i], 0,
			                    l->parameter[i].count, at, &err),
			      &err);
	}
	ck_ok(trainer_set_step(t, step, &err), &err);
}
