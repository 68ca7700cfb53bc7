/* SPDX-License-Identifier: Apache-2.0 */
/* What a config.json says of the kinds of layers: windows, linear attention, layers without rotation. */
#include "engine/model/config_layers.h"

#include <errno.h>

#include "base/str.h"
#include "engine/model/config_values.h"

/* layer_types, or the family's pattern: which layers have the window. */
static int read_layer_types(const json_t *o, const char *where, const struct family *f,
                            struct model_config *c, struct error *err)
{
	const json_t *types = config_member(o, "layer_types");
	int64_t every = f->window_every;
	int r;

	if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->layers))
		return error_set(err, -EINVAL, "%s: layer_types: a list of %d kinds of layers is needed",
		                 where, c->layers);
	if (!types && f->window_every_key &&
	    (r = config_int(o, f->window_every_key, where, 1, MODEL_LAYERS_MAX, every, &every, err)) < 0)
		return r;
	for (int l = 0; l < c->layers; l++) {
		const char *type = json_string_value(json_array_get(types, (size_t)l));
		bool window = !types && (every               ? (l + 1) % every != 0
		                         : f->no_rope_layers ? model_layers_has(&c->unrotated, l)
		                                             : true);

		if (types &&
		    (!type || (!str_eq(type, "sliding_attention") && !str_eq(type, "full_attention"))))
			return error_set(err, -EINVAL,
			                 "%s: layer_types: layer %d is \"%.40s\"; expected one of "
			                 "full_attention, sliding_attention",
			                 where, l, type ? type : "");
		if (types)
			window = str_eq(type, "sliding_attention");
		if (!window)
			model_layers_add(&c->full, l);
		else if (!c->window)
			return error_set(err, -EINVAL,
			                 "%s: layer_types: layer %d has a window, and "
			                 "sliding_window gives none",
			                 where, l);
	}
	return 0;
}

static int read_window(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err)
{
	int64_t window = f->default_window, from = 0;
	bool types = f->window_types, use = f->window || types;
	int r;

	if (!f->window && !f->window_switch && !types)
		return 0;
	/* smollm3 has a switch, and the types that follow from it. */
	if ((f->window_switch || f->no_rope_layers) &&
	    (r = config_bool(o, "use_sliding_window", where, false, &use, err)) < 0)
		return r;
	if (types && f->no_rope_layers && config_member(o, "layer_types"))
		use = true;
	if (!use)
		return 0;
	if (json_is_null(json_object_get(o, "sliding_window")) ||
	    (window < 0 && !json_object_get(o, "sliding_window")))
		window = 0;
	else if ((r = config_int(o, "sliding_window", where, 1, INT32_MAX, window, &window, err)) < 0)
		return r;
	c->window = (int)window;
	if (window == 0 && !types)
		return 0;
	if (types)
		return window || config_member(o, "layer_types") ? read_layer_types(o, where, f, c, err) : 0;
	if (f->window_switch &&
	    (r = config_int(o, "max_window_layers", where, 0, INT32_MAX,
	                    f->default_window_from ? f->default_window_from : 28, &from, err)) < 0)
		return r;
	c->window_from = (int)MIN(from, c->layers);
	return 0;
}

/* Which layers have linear attention, and its sizes. */
static int read_linear(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const json_t *types = config_member(o, "layer_types");
	struct {
		const char *key;
		int *to;
		int64_t absent, most;
	} sizes[] = {{"linear_num_key_heads", &c->delta_key_heads, 16, 4096},
	             {"linear_num_value_heads", &c->delta_value_heads, 32, 4096},
	             {"linear_key_head_dim", &c->delta_key_dim, 128, DELTA_DIM_MAX},
	             {"linear_value_head_dim", &c->delta_value_dim, 128, DELTA_DIM_MAX},
	             {"linear_conv_kernel_dim", &c->conv_width, 4, CONV_WIDTH_MAX}};
	int64_t every, value;
	int r = config_int(o, "full_attention_interval", where, 1, MODEL_LAYERS_MAX, 4, &every, err);

	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(sizes); i++) {
		r = config_int(o, sizes[i].key, where, 1, sizes[i].most, sizes[i].absent, &value, err);
		*sizes[i].to = (int)value;
	}
	if (r < 0)
		return r;
	if (c->delta_value_heads % c->delta_key_heads)
		return error_set(
		    err, -EINVAL,
		    "%s: linear_num_value_heads (%d) has to be a multiple of linear_num_key_heads (%d)",
		    where, c->delta_value_heads, c->delta_key_heads);
	if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->layers))
		return error_set(err, -EINVAL, "%s: layer_types: a list of %d kinds of layers is needed",
		                 where, c->layers);
	for (int l = 0; l < c->layers; l++) {
		const char *type = json_string_value(json_array_get(types, (size_t)l));
		bool linear = types ? type && str_eq(type, "linear_attention") : (l + 1) % every != 0;

		if (types && !linear && (!type || !str_eq(type, "full_attention")))
			return error_set(
			    err, -EINVAL,
			    "%s: layer_types: layer %d is \"%.40s\"; expected one of full_attention, "
			    "linear_attention",
			    where, l, type ? type : "");
		if (linear)
			model_layers_add(&c->linear, l);
	}
	return 0;
}

/* Newer configs also spell the kind of each layer out; what it says has to be what we do. */
static int check_layer_types(const json_t *o, const char *where, const struct model_config *c,
                             struct error *err)
{
	const json_t *types = config_member(o, "layer_types");

	if (!types || c->delta_value_heads || (!c->window && c->family[0] != 'q'))
		return 0;
	for (int l = 0; l < c->layers && json_is_array(types); l++) {
		const char *type = json_string_value(json_array_get(types, (size_t)l));
		const char *ours = model_config_window(c, l) ? "sliding_attention" : "full_attention";

		if (type && !str_eq(type, ours))
			return error_set(
			    err, -EINVAL,
			    "%s: layer_types: layer %d is %.40s, but use_sliding_window, sliding_window and "
			    "max_window_layers make it %s",
			    where, l, type, ours);
	}
	return 0;
}

/* no_rope_layers has a 1 for each layer that rotates, and a 0 for one that does not. */
static int read_no_rope(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const json_t *list = config_member(o, "no_rope_layers");
	int64_t every;
	int r = config_int(o, "no_rope_layer_interval", where, 1, INT32_MAX, 4, &every, err);

	if (r < 0)
		return r;
	if (list && (!json_is_array(list) || json_array_size(list) < (size_t)c->layers))
		return error_set(err, -EINVAL, "%s: no_rope_layers: a list of %d numbers is needed", where,
		                 c->layers);
	for (int l = 0; l < c->layers; l++) {
		const json_t *v = json_array_get(list, (size_t)l);

		if (list && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1))
			return error_set(err, -EINVAL, "%s: no_rope_layers: %d: 0 or 1 is needed", where, l);
		if (list ? json_integer_value(v) == 0 : (l + 1) % every == 0)
			model_layers_add(&c->unrotated, l);
	}
	return 0;
}

int config_read_layers(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err)
{
	int r;

	if ((f->no_rope_layers && (r = read_no_rope(o, where, c, err)) < 0) ||
	    (f->linear_types && (r = read_linear(o, where, c, err)) < 0) ||
	    (r = read_window(o, where, f, c, err)) < 0 ||
	    (!f->window_types && (r = check_layer_types(o, where, c, err)) < 0))
		return r;
	for (int l = 0; l < c->layers && f->window_rotates && c->window; l++)
		if (!model_config_window(c, l))
			model_layers_add(&c->unrotated, l);
	return 0;
}
