/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its memory, for tests: all units whole, one micro-batch. */
#pragma once

#include "engine/model/model.h"

struct rig {
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
int rig_create(struct rig *rig, const struct model_config *c, const struct model_options *options,
               model_fill_fn fill, void *context, struct error *err);
void rig_free(struct rig *rig);
/* Mean loss of a batch over its targets, without and with gradients. */
int rig_loss(struct rig *rig, const struct model_batch *b, double *loss, struct error *err);
int rig_gradients(struct rig *rig, const struct model_batch *b, float scale, bool first, double *loss_sum,
                  struct error *err);
