/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a Hugging Face config.json: a table of families, each with its keys and what it lacks. */
#include "engine/model/model_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"

/* Where the families differ, and what transformers takes where a key is absent. */
struct family {
	const char *name;
	bool qkv_bias;       /* always, whatever attention_bias says */
	bool attention_bias; /* the key is honoured: q, k, v and o */
	bool mlp_bias;       /* the key is honoured */
	bool qk_norm;
	bool window; /* sliding_window applies to every layer */
	/* With use_sliding_window it applies to the layers from max_window_layers on. */
	bool window_switch;
	int head_dim; /* default, 0: hidden / heads */
	int64_t default_window, default_positions;
};

static const struct family families[] = {
    {.name = "llama", .attention_bias = true, .mlp_bias = true, .default_positions = 2048},
    {.name = "mistral", .window = true, .default_window = 4096, .default_positions = 131072},
    {.name = "qwen2",
     .qkv_bias = true,
     .window_switch = true,
     .default_window = 4096,
     .default_positions = 32768},
    {.name = "qwen3",
     .attention_bias = true,
     .qk_norm = true,
     .window_switch = true,
     .head_dim = 128,
     .default_window = 4096,
     .default_positions = 32768},
};

#define FAMILY_NAMES "llama, mistral, qwen2, qwen3"

static const json_t *member(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

static int read_int(const json_t *o, const char *key, const char *where, int64_t min, int64_t max,
                    int64_t fallback, int64_t *out, struct error *err)
{
	*out = fallback;
	if (!member(o, key) && fallback >= min)
		return 0;
	return json_need_int(o, key, where, min, max, out, err);
}

static int read_number(const json_t *o, const char *key, const char *where, double min, double max,
                       double fallback, double *out, struct error *err)
{
	const json_t *v = member(o, key);

	*out = fallback;
	if (!v)
		return 0;
	if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max))
		return error_set(err, -EINVAL, "%s: %s: a number from %g to %g is needed", where, key, min,
		                 max);
	*out = json_number_value(v);
	return 0;
}

static int read_bool(const json_t *o, const char *key, const char *where, bool fallback, bool *out,
                     struct error *err)
{
	const json_t *v = member(o, key);

	*out = fallback;
	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return error_set(err, -EINVAL, "%s: %s: true or false is needed", where, key);
	*out = json_is_true(v);
	return 0;
}

static int32_t first_id(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (json_is_array(v))
		v = json_array_get(v, 0);
	return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT32_MAX
	           ? (int32_t)json_integer_value(v)
	           : -1;
}

/* A string with a default where the key is absent; null is a mistake, as it is to transformers. */
static int read_word(const json_t *o, const char *key, const char *where, const char *fallback,
                     const char **out, struct error *err)
{
	*out = fallback;
	return json_object_get(o, key) ? json_need_string(o, key, where, out, err) : 0;
}

/* The same for a number; without a fallback (NaN) it has to be there. */
static int need_number(const json_t *o, const char *key, const char *where, double min, double max,
                       double fallback, double *out, struct error *err)
{
	if (!json_object_get(o, key) && isnan(fallback))
		return error_set(err, -EINVAL, "%s: %s is missing", where, key);
	if (json_is_null(json_object_get(o, key)))
		return error_set(err, -EINVAL, "%s: %s: null; a number from %g to %g is needed", where, key,
		                 min, max);
	return read_number(o, key, where, min, max, fallback, out, err);
}

static int read_rope_type(const json_t *rope, const char *place, enum rope_type *out, struct error *err)
{
	static const char *const names[] = {
	    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};
	const char *key, *type;
	json_t *v;
	int r;

	json_object_foreach((json_t *)rope, key, v)
	{
		if (json_is_object(v))
			return error_set(
			    err, -EINVAL,
			    "%s: %.40s: other parameters for each kind of layer are not supported", place,
			    key);
	}
	r = read_word(rope, json_object_get(rope, "rope_type") ? "rope_type" : "type", place, "default",
	              &type, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (str_eq(type, names[i])) {
			*out = i;
			return 0;
		}
	}
	return error_set(err, -EINVAL,
	                 "%s: rope type \"%.40s\" is not supported (default, linear and llama3 are)", place,
	                 type);
}

/* rope_parameters (transformers 5) holds everything; before, rope_theta stood beside rope_scaling. What has
 * no default there has none here. */
static int read_rope(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const json_t *new_form = member(o, "rope_parameters"), *old_form = member(o, "rope_scaling");
	const json_t *rope = new_form ? new_form : old_form;
	double partial;
	char place[300];
	int r;

	snprintf(place, sizeof(place), "%s: %s", where, new_form ? "rope_parameters" : "rope_scaling");
	if (rope && !json_is_object(rope))
		return error_set(err, -EINVAL, "%s: an object is needed", place);
	c->rope.type = ROPE_DEFAULT;
	c->rope.factor = 1;
	if ((r = need_number(o, "rope_theta", where, 1, 1e15, 10000, &c->rope.theta, err)) < 0 ||
	    (r = read_number(o, "partial_rotary_factor", where, 0, 1, 1, &partial, err)) < 0)
		return r;
	if (rope &&
	    ((r = read_rope_type(rope, place, &c->rope.type, err)) < 0 ||
	     (r = need_number(rope, "rope_theta", place, 1, 1e15, c->rope.theta, &c->rope.theta, err)) < 0 ||
	     (r = read_number(rope, "partial_rotary_factor", place, 0, 1, partial, &partial, err)) < 0))
		return r;
	if (c->rope.type != ROPE_DEFAULT &&
	    (r = need_number(rope, "factor", place, 1, 1e6, NAN, &c->rope.factor, err)) < 0)
		return r;
	if (c->rope.type == ROPE_LLAMA3 &&
	    ((r = need_number(rope, "low_freq_factor", place, 1e-3, 1e6, NAN, &c->rope.low_freq_factor,
	                      err)) < 0 ||
	     (r = need_number(rope, "high_freq_factor", place, 1e-3, 1e6, NAN, &c->rope.high_freq_factor,
	                      err)) < 0 ||
	     (r = read_int(rope, "original_max_position_embeddings", place, 1, INT32_MAX, c->max_positions,
	                   &c->rope.original_positions, err)) < 0))
		return r;
	if (c->rope.type == ROPE_LLAMA3 && c->rope.high_freq_factor <= c->rope.low_freq_factor)
		return error_set(err, -EINVAL, "%s: high_freq_factor has to exceed low_freq_factor", place);
	if (partial != 1)
		return error_set(err, -EINVAL, "%s: partial_rotary_factor %g is not supported (only 1 is)",
		                 where, partial);
	return 0;
}

static int read_sizes(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                      struct error *err)
{
	int64_t hidden, intermediate, layers, heads, kv, dim;
	double eps;
	int r;

	if ((r = read_int(o, "hidden_size", where, 1, 1 << 20, -1, &hidden, err)) < 0 ||
	    (r = read_int(o, "intermediate_size", where, 1, 1 << 22, -1, &intermediate, err)) < 0 ||
	    (r = read_int(o, "num_hidden_layers", where, 1, 4096, -1, &layers, err)) < 0 ||
	    (r = read_int(o, "num_attention_heads", where, 1, 4096, -1, &heads, err)) < 0 ||
	    (r = read_int(o, "num_key_value_heads", where, 1, 4096, heads, &kv, err)) < 0 ||
	    (r = read_int(o, "head_dim", where, 1, 1024, f->head_dim ? f->head_dim : MAX(hidden / heads, 1),
	                  &dim, err)) < 0 ||
	    (r = read_int(o, "vocab_size", where, 1, 1 << 24, -1, &c->vocab, err)) < 0 ||
	    (r = read_int(o, "max_position_embeddings", where, 1, INT32_MAX, f->default_positions,
	                  &c->max_positions, err)) < 0 ||
	    (r = read_number(o, "rms_norm_eps", where, 0, 1, 1e-6, &eps, err)) < 0 ||
	    (r = read_number(o, "initializer_range", where, 0, 100, 0.02, &c->init_std, err)) < 0)
		return r;
	if (heads % kv != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: num_attention_heads (%d) has to be a multiple of num_key_value_heads (%d)", where,
		    (int)heads, (int)kv);
	if (dim % 2 != 0)
		return error_set(err, -EINVAL, "%s: head_dim (%d) has to be even", where, (int)dim);
	c->hidden = (int)hidden;
	c->intermediate = (int)intermediate;
	c->layers = (int)layers;
	c->heads = (int)heads;
	c->kv_heads = (int)kv;
	c->head_dim = (int)dim;
	c->norm_eps = (float)eps;
	return 0;
}

static int read_window(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err)
{
	int64_t window = f->default_window, from = 0;
	bool use = f->window;
	int r;

	if (!f->window && !f->window_switch)
		return 0;
	if (f->window_switch && (r = read_bool(o, "use_sliding_window", where, false, &use, err)) < 0)
		return r;
	if (!use)
		return 0;
	if (json_is_null(json_object_get(o, "sliding_window")))
		return 0;
	if ((r = read_int(o, "sliding_window", where, 1, INT32_MAX, window, &window, err)) < 0 ||
	    (f->window_switch &&
	     (r = read_int(o, "max_window_layers", where, 0, INT32_MAX, 28, &from, err)) < 0))
		return r;
	c->window = (int)window;
	c->window_from = (int)MIN(from, c->layers);
	return 0;
}

/* Newer configs also spell the kind of each layer out; what it says has to be what we do. */
static int check_layer_types(const json_t *o, const char *where, const struct model_config *c,
                             struct error *err)
{
	const json_t *types = member(o, "layer_types");

	if (!types || (!c->window && c->family[0] != 'q'))
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

/* Of quantized weights, those of bitsandbytes in NF4 can be read (checkpoint/nf4_tensors.h), and they say
 * themselves what they are. */
static int check_quantization(const json_t *o, const char *where, struct error *err)
{
	const json_t *q = member(o, "quantization_config");
	const char *method = json_get_string(q, "quant_method", "bitsandbytes"),
	           *type = json_get_string(q, "bnb_4bit_quant_type", "fp4");

	if (!q)
		return 0;
	if (!str_eq(method, "bitsandbytes"))
		return error_set(
		    err, -EINVAL,
		    "%s: quantization_config: quant_method \"%.40s\" is not supported (bitsandbytes "
		    "in 4 bits, nf4, is)",
		    where, method);
	if (!json_get_bool(q, "load_in_4bit", false) || !str_eq(type, "nf4"))
		return error_set(err, -EINVAL, "%s: quantization_config: %s is not supported (nf4 is)", where,
		                 json_get_bool(q, "load_in_4bit", false) ? type : "bitsandbytes in 8 bits");
	return 0;
}

static int parse_object(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const struct family *f = NULL;
	const char *type, *act;
	bool bias, mlp_bias;
	int r;

	if (!json_is_object(o))
		return error_set(err, -EINVAL, "%s: a JSON object is needed", where);
	if ((r = json_need_string(o, "model_type", where, &type, err)) < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(families); i++)
		if (str_eq(type, families[i].name))
			f = &families[i];
	if (!f)
		return error_set(err, -EINVAL, "%s: model_type \"%.60s\" is not supported (%s are)", where,
		                 type, FAMILY_NAMES);
	snprintf(c->family, sizeof(c->family), "%s", f->name);
	if ((r = read_word(o, "hidden_act", where, "silu", &act, err)) < 0)
		return r;
	if (!str_eq(act, "silu") && !str_eq(act, "swish"))
		return error_set(err, -EINVAL, "%s: hidden_act \"%.60s\" is not supported (silu is)", where,
		                 act);
	if ((r = check_quantization(o, where, err)) < 0 || (r = read_sizes(o, where, f, c, err)) < 0 ||
	    (r = read_rope(o, where, c, err)) < 0 || (r = read_window(o, where, f, c, err)) < 0 ||
	    (r = check_layer_types(o, where, c, err)) < 0 ||
	    (r = read_bool(o, "tie_word_embeddings", where, false, &c->tied, err)) < 0 ||
	    (r = read_bool(o, "attention_bias", where, false, &bias, err)) < 0 ||
	    (r = read_bool(o, "mlp_bias", where, false, &mlp_bias, err)) < 0)
		return r;
	c->qk_norm = f->qk_norm;
	c->qkv_bias = f->qkv_bias || (f->attention_bias && bias);
	c->o_bias = f->attention_bias && bias;
	c->mlp_bias = f->mlp_bias && mlp_bias;
	c->bos = first_id(o, "bos_token_id");
	c->eos = first_id(o, "eos_token_id");
	c->pad = first_id(o, "pad_token_id");
	return 0;
}

int model_config_parse(const char *text, size_t len, const char *where, struct model_config *out,
                       struct error *err)
{
	_cleanup_json_ json_t *o = NULL;
	struct model_config c = {0};
	int r = json_parse(text, len, where, &o, err);

	if (r < 0 || (r = parse_object(o, where, &c, err)) < 0)
		return r;
	*out = c;
	return 0;
}

int model_config_read(const char *path, struct model_config *out, struct error *err)
{
	_cleanup_free_ char *file = NULL, *text = NULL;
	struct stat st;
	size_t len;
	int r;

	file =
	    stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? str_printf("%s/config.json", path) : strdup(path);
	if (!file)
		return error_oom(err);
	if ((r = file_read(file, 16 << 20, &text, &len, err)) < 0)
		return r;
	return model_config_parse(text, len, file, out, err);
}

uint64_t model_config_digest(const struct model_config *c)
{
	const int64_t whole[] = {c->hidden,
	                         c->intermediate,
	                         c->layers,
	                         c->heads,
	                         c->kv_heads,
	                         c->head_dim,
	                         c->vocab,
	                         c->max_positions,
	                         c->tied,
	                         c->qkv_bias,
	                         c->o_bias,
	                         c->mlp_bias,
	                         c->qk_norm,
	                         c->window,
	                         c->window_from,
	                         c->rope.type,
	                         c->rope.original_positions};
	const double real[] = {c->norm_eps,
	                       c->init_std,
	                       c->rope.theta,
	                       c->rope.factor,
	                       c->rope.low_freq_factor,
	                       c->rope.high_freq_factor};
	uint64_t h = hash_bytes(c->family, strlen(c->family), 0);

	h = hash_bytes(whole, sizeof(whole), h);
	return hash_bytes(real, sizeof(real), h);
}

static int64_t block_parameters(const struct model_config *c)
{
	int64_t h = c->hidden, q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
	int64_t n = 2 * h * q + 2 * h * kv + 3 * h * c->intermediate + 2 * h;

	n += c->qkv_bias ? q + 2 * kv : 0;
	n += c->o_bias ? h : 0;
	n += c->mlp_bias ? 2 * (int64_t)c->intermediate + h : 0;
	n += c->qk_norm ? 2 * c->head_dim : 0;
	return n;
}

int64_t model_config_parameters(const struct model_config *c)
{
	return (c->tied ? 1 : 2) * c->vocab * c->hidden + c->layers * block_parameters(c) + c->hidden;
}

double model_config_flops(const struct model_config *c, double length)
{
	double n = (double)c->vocab * c->hidden + (double)c->layers * block_parameters(c) + c->hidden;

	return 6 * n + 6.0 * c->layers * c->heads * c->head_dim * length;
}

int model_config_window(const struct model_config *c, int layer)
{
	return layer >= c->window_from ? c->window : 0;
}

void model_config_rope(const struct model_config *c, float *inv_freq)
{
	float factor = (float)c->rope.factor, low = (float)c->rope.low_freq_factor;
	float high = (float)c->rope.high_freq_factor, original = (float)c->rope.original_positions;

	for (int i = 0; i < c->head_dim / 2; i++) {
		float f = 1.0f / powf((float)c->rope.theta, (float)(2 * i) / (float)c->head_dim);

		if (c->rope.type == ROPE_LINEAR) {
			f /= factor;
		} else if (c->rope.type == ROPE_LLAMA3) {
			float wavelength = (float)(2 * M_PI) / f;

			if (wavelength > original / low) {
				f /= factor;
			} else if (wavelength >= original / high) {
				float smooth = (original / wavelength - low) / (high - low);

				f = (1 - smooth) * f / factor + smooth * f;
			}
		}
		inv_freq[i] = f;
	}
}
