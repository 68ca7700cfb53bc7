/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its memory, for tests: all units whole, one micro-batch. */
#pragma once

#include "engine/model/model.h"

struct model_fixture {
	struct device *dev;
	struct model_config c;
	struct model_layout *layout;
	struct model *model;
	struct arena arena;
	void *memory;
	char **w;
	float **g;
	double *loss; /* device */
	enum dtype type;
};

/* options: max_tokens and max_sequence have to be set. */
int model_fixture_create(struct model_fixture *fixture, const struct model_config *c,
                         const struct model_options *options, model_fill_fn fill, void *context,
                         struct error *err);
void model_fixture_free(struct model_fixture *fixture);
/* Mean loss of a batch over its targets, without and with gradients. */
int model_fixture_loss(struct model_fixture *fixture, const struct model_batch *b, double *loss,
                       struct error *err);
int model_fixture_gradients(struct model_fixture *fixture, const struct model_batch *b, float scale,
                            bool first, double *loss_sum, struct error *err);
