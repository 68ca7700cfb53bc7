/* SPDX-License-Identifier: Apache-2.0 */
/* Places the weights of a model that is not trained. (Without a device, too: the plan.) */
#include "engine/model/whole.h"

#include <stdlib.h>

int whole_model_create(struct device *dev, const struct model_config *c, const struct model_options *o,
                       struct whole_model *w, struct error *err)
{
	int r;

	*w = (struct whole_model){.dev = dev, .type = o->type};
	if ((r = model_layout_create(c, &w->layout, err)) < 0 ||
	    (r = model_create(dev, c, w->layout, o, &w->model, err)) < 0)
		return r;
	w->weights = calloc((size_t)w->layout->units, sizeof(*w->weights));
	return w->weights ? 0 : error_oom(err);
}

void whole_model_clear(struct whole_model *w)
{
	model_free(w->model);
	model_layout_free(w->layout);
	free(w->weights);
	*w = (struct whole_model){0};
}

void whole_model_place(struct whole_model *w, struct arena *a, const char *what)
{
	size_t size = dtype_size(w->type);

	for (int u = 0; u < w->layout->units; u++) {
		w->weights[u] = arena_take(a, BUFFER_WEIGHTS, (size_t)w->layout->unit[u].count * size,
		                           "%s %d weights", what, u);
		model_set_unit(w->model, u, w->weights[u], NULL);
	}
	model_place_buffers(w->model, a);
}
