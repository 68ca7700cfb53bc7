/* SPDX-License-Identifier: Apache-2.0 */
/* A model that is not trained, with all of its weights in memory: that of generation, and the teacher of
 * knowledge distillation. */
#pragma once

#include "base/error.h"
#include "engine/device/device.h"
#include "engine/memory/arena.h"
#include "engine/model/layout.h"
#include "engine/model/model.h"

struct whole_model {
	struct device *dev; /* borrowed */
	struct model_layout *layout;
	struct model *model;
	char **weights; /* of each unit */
	enum dtype type;
};

/* Fills w. dev NULL: for planning alone. On error, too, it is to be cleared. */
int whole_model_create(struct device *dev, const struct model_config *c, const struct model_options *o,
                       struct whole_model *w, struct error *err);
void whole_model_clear(struct whole_model *w); /* one of zeros is fine */
/* Weights and buffers; both passes of the arena. `what` begins the weights' names there. */
void whole_model_place(struct whole_model *w, struct arena *a, const char *what);
/* The weights, which are rounded to the model's type. fill is asked for so many elements at most. */
enum { WHOLE_MODEL_PIECE = 1 << 18 };
int whole_model_load(const struct whole_model *w, model_fill_fn fill, void *context, struct error *err);
