/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a Hugging Face config.json: its family's row of the table says which keys count. */
#include "engine/model/model_config.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hub_name.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/model/config_experts.h"
#include "engine/model/config_layers.h"
#include "engine/model/config_values.h"
#include "engine/model/families.h"
#include "engine/model/multimodal.h"

#define HEAD_DIM_MAX 1024

/* Where the keys of the sizes are those of GPT-2, which transformers also reads. */
struct size_keys {
	const char *hidden, *intermediate, *layers, *heads, *kv_heads, *positions, *eps;
};

static const struct size_keys usual_keys = {
    "hidden_size",         "intermediate_size",       "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"};
static const struct size_keys gpt2_keys = {"n_embd", "n_inner",     "n_layer",           "n_head",
                                           NULL,     "n_positions", "layer_norm_epsilon"};

/* A size that a configuration within another may leave to its family. */
static int64_t absent(const struct model_config *c, int64_t size)
{
	return c->multimodal && size ? size : -1;
}

static int read_sizes(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                      struct error *err)
{
	const struct size_keys *keys = f->naming == MODEL_NAMES_GPT2 ? &gpt2_keys : &usual_keys;
	int64_t hidden, intermediate, layers, heads, kv, dim;
	double eps;
	int r;

	if ((r = config_int(o, keys->hidden, where, 1, 1 << 20, absent(c, f->sizes.hidden), &hidden, err)) <
	        0 ||
	    (r = config_int(o, keys->intermediate, where, 1, 1 << 22,
	                    f->naming == MODEL_NAMES_GPT2 ? 4 * hidden : absent(c, f->sizes.intermediate),
	                    &intermediate, err)) < 0 ||
	    (r = config_int(o, keys->layers, where, 1, MODEL_LAYERS_MAX, absent(c, f->sizes.layers), &layers,
	                    err)) < 0 ||
	    (r = config_int(o, keys->heads, where, 1, 4096, absent(c, f->sizes.heads), &heads, err)) < 0)
		return r;
	/* null stands for the number of heads, an absent key for the family's default. */
	kv = f->default_kv_heads && keys->kv_heads && !json_object_get(o, keys->kv_heads)
	         ? f->default_kv_heads
	         : heads;
	dim = f->head_dim ? f->head_dim : MAX(hidden / heads, 1);
	if ((keys->kv_heads && (r = config_int(o, keys->kv_heads, where, 1, 4096, kv, &kv, err)) < 0) ||
	    (f->naming != MODEL_NAMES_GPT2 &&
	     (r = config_int(o, "head_dim", where, 1, HEAD_DIM_MAX, dim, &dim, err)) < 0) ||
	    (r = config_int(o, "vocab_size", where, 1, 1 << 24, absent(c, f->sizes.vocab), &c->vocab, err)) <
	        0 ||
	    (r = config_int(o, keys->positions, where, 1, INT32_MAX, f->default_positions, &c->max_positions,
	                    err)) < 0 ||
	    (r = config_number(o, f->eps_key ? f->eps_key : keys->eps, where, 0, 1,
	                       f->default_eps > 0 ? f->default_eps : 1e-6, &eps, err)) < 0 ||
	    (r = config_number(o, "initializer_range", where, 0, 100,
	                       f->default_init > 0 ? f->default_init : 0.02, &c->init_std, err)) < 0)
		return r;
	if (heads % kv != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: num_attention_heads (%d) has to be a multiple of num_key_value_heads (%d)", where,
		    (int)heads, (int)kv);
	if (f->learned_positions && hidden % heads != 0)
		return error_set(err, -EINVAL, "%s: n_embd (%d) has to be a multiple of n_head (%d)", where,
		                 (int)hidden, (int)heads);
	if (dim % 2 != 0)
		return error_set(err, -EINVAL, "%s: head_dim (%d) has to be even", where, (int)dim);
	/* Where it follows from two other sizes. */
	if (dim > HEAD_DIM_MAX)
		return error_set(err, -EINVAL, "%s: head_dim (%d) is more than %d", where, (int)dim,
		                 HEAD_DIM_MAX);
	c->hidden = (int)hidden;
	c->intermediate = (int)intermediate;
	c->layers = (int)layers;
	c->heads = (int)heads;
	c->kv_heads = (int)kv;
	c->head_dim = (int)dim;
	c->norm_eps = (float)eps;
	return 0;
}

static bool same_rope(const struct model_rope *a, const struct model_rope *b)
{
	return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
	       a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
	       a->original_positions == b->original_positions && a->length == b->length &&
	       a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
	       a->exact_ramp == b->exact_ramp &&
	       !memcmp(a->short_factor, b->short_factor, sizeof(a->short_factor)) &&
	       !memcmp(a->long_factor, b->long_factor, sizeof(a->long_factor));
}

/* Where a file has both forms, transformers 5 takes rope_scaling, and older ones know nothing else: they have
 * to mean the same. */
static int check_old_form(const json_t *old_form, const char *where, const struct rope_defaults *d,
                          double partial, const struct model_rope *rope, double rope_partial,
                          struct error *err)
{
	struct model_rope old;
	char place[300];
	int r;

	snprintf(place, sizeof(place), "%s: rope_scaling", where);
	if ((r = rope_read(old_form, place, d, &old, &partial, err)) < 0)
		return r;
	return same_rope(&old, rope) && partial == rope_partial
	           ? 0
	           : error_set(err, -EINVAL,
	                       "%s: rope_scaling and rope_parameters differ; expected one of them", where);
}

/* Of a model whose queries are scaled; outer: the original positions that the config itself has, 0: none. */
static int read_query_scale(const json_t *rope, const char *place, int64_t outer, struct model_config *c,
                            struct error *err)
{
	static const char original[] = "original_max_position_embeddings";
	int64_t span;
	int r;

	if ((r = config_number(rope, "llama_4_scaling_beta", place, 0, 100, 0, &c->query_beta, err)) < 0 ||
	    (r = config_int(rope, original, place, 0, INT32_MAX, outer, &span, err)) < 0)
		return r;
	span = outer > 0 ? outer : span;
	if (c->query_beta > 0 && span == 0)
		return error_set(err, -EINVAL, "%s: llama_4_scaling_beta needs %s, of at least 1", place,
		                 original);
	c->query_span = (int)span;
	return 0;
}

/* rope_parameters (transformers 5) holds everything; before, rope_theta stood beside rope_scaling. What has
 * no default there has none here. */
static int read_rope(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                     struct error *err)
{
	const json_t *new_form = config_member(o, "rope_parameters"),
	             *old_form = config_member(o, "rope_scaling");
	const json_t *rope = new_form ? new_form : old_form, *local = NULL;
	_cleanup_json_ json_t *of_family = NULL;
	struct rope_defaults d = {.max_positions = c->max_positions,
	                          .yarn_is_longrope = f->original_positions,
	                          .multimodal = c->multimodal != MULTIMODAL_NONE};
	/* It overrides that of the rope parameters, unless each kind of layer has its own. */
	bool outer_original =
	    f->original_positions || (!f->two_ropes && config_member(o, "original_max_position_embeddings"));
	double partial = f->default_partial > 0 ? f->default_partial : 1, whole;
	char place[300];
	int r;

	if (f->learned_positions)
		return 0;
	snprintf(place, sizeof(place), "%s: %s", where, new_form ? "rope_parameters" : "rope_scaling");
	if (rope && !json_is_object(rope))
		return error_set(err, -EINVAL, "%s: an object is needed", place);
	if (!rope && f->default_rope) {
		if (!(of_family = json_loads(f->default_rope, 0, NULL)))
			return error_oom(err);
		rope = of_family;
	}
	if ((r = config_need_number(o, "rope_theta", where, 1, 1e15,
	                            f->default_theta > 0 ? f->default_theta : 10000, &d.theta, err)) < 0 ||
	    (r = config_number(o, "partial_rotary_factor", where, 0, 1, partial, &partial, err)) < 0 ||
	    (outer_original && (r = config_int(o, "original_max_position_embeddings", where, 1, INT32_MAX,
	                                       4096, &d.original_positions, err)) < 0))
		return r;
	if (f->two_ropes && new_form) {
		local = config_member(new_form, "sliding_attention");
		rope = config_member(new_form, "full_attention");
		if (!local && !rope)
			return error_set(err, -EINVAL, "%s: full_attention and sliding_attention are needed",
			                 place);
	}
	whole = partial;
	if ((r = rope_read(rope, place, &d, &c->rope, &partial, err)) < 0)
		return r;
	if (new_form && json_object_size(old_form) > 0 && !json_equal(new_form, old_form) &&
	    (r = check_old_form(old_form, where, &d, whole, &c->rope, partial, err)) < 0)
		return r;
	if (partial != 1 && !f->partial_rotary)
		return error_set(err, -EINVAL, "%s: partial_rotary_factor %g is not supported (only 1 is)",
		                 where, partial);
	if (f->scaled_queries && (r = read_query_scale(rope, place, d.original_positions, c, err)) < 0)
		return r;
	c->rotary_dim = (int)(c->head_dim * partial);
	if (c->rotary_dim < 2 || c->rotary_dim % 2 != 0)
		return error_set(err, -EINVAL,
		                 "%s: partial_rotary_factor %g rotates %d elements of a head; their number "
		                 "has to be even, and at least 2",
		                 where, partial, c->rotary_dim);
	if ((r = rope_check_factors(rope, place, c->rotary_dim / 2, &c->rope, err)) < 0 || !f->two_ropes)
		return r;
	c->two_ropes = true;
	partial = 1;
	if (f->window_theta > 0)
		d.theta = f->window_theta;
	if (f->window_theta_key &&
	    (r = config_need_number(o, f->window_theta_key, where, 1, 1e15, d.theta, &d.theta, err)) < 0)
		return r;
	if ((r = rope_read(local, place, &d, &c->window_rope, &partial, err)) < 0)
		return r;
	return rope_check_factors(local, place, c->rotary_dim / 2, &c->window_rope, err);
}

/* A bias key: what it says, or where it is absent the default. */
static int read_bias(const json_t *o, const char *key, const char *where, bool absent, bool *out,
                     struct error *err)
{
	bool given = absent;
	int r = key ? config_bool(o, key, where, absent, &given, err) : 0;

	*out = key && given;
	return r;
}

/* Which projections have biases. */
static int read_biases(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err)
{
	const char *qkv_key = f->attention_bias ? "attention_bias" : f->qkv_bias_key;
	const char *o_key = f->attention_bias ? "attention_bias" : f->o_bias_key;
	bool all, qkv, out, mlp;
	int r;

	if ((r = read_bias(o, f->all_bias_key, where, f->default_bias, &all, err)) < 0 ||
	    (r = read_bias(o, qkv_key, where, f->default_bias, &qkv, err)) < 0 ||
	    (r = read_bias(o, o_key, where, false, &out, err)) < 0 ||
	    (r = read_bias(o, f->mlp_bias ? "mlp_bias" : NULL, where, false, &mlp, err)) < 0)
		return r;
	all = all || f->all_bias;
	c->qkv_bias = all || f->qkv_bias || qkv;
	c->o_bias = all || out;
	c->mlp_bias = all || mlp;
	return 0;
}

static int read_activation(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                           struct error *err)
{
	static const struct {
		const char *name;
		enum model_activation is;
	} names[] = {{"silu", MODEL_SILU},
	             {"swish", MODEL_SILU},
	             {"gelu_pytorch_tanh", MODEL_GELU_TANH},
	             {"gelu_new", MODEL_GELU_TANH}};
	const char *key = f->activation_key ? f->activation_key : "hidden_act", *name;
	int r = config_word(o, key, where, f->activation == MODEL_SILU ? "silu" : "gelu_pytorch_tanh", &name,
	                    err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		bool same = str_eq(name, names[i].name) || (f->gelu_is_tanh && str_eq(name, "gelu"));

		if (same && names[i].is == f->activation) {
			c->activation = names[i].is;
			return 0;
		}
	}
	return error_set(err, -EINVAL, "%s: %s \"%.60s\" is not supported (%s)", where, key, name,
	                 f->activation == MODEL_SILU ? "silu is"
	                 : f->gelu_is_tanh           ? "gelu, gelu_pytorch_tanh and gelu_new are"
	                                             : "gelu_pytorch_tanh and gelu_new are");
}

static int read_scales(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err)
{
	double query = 0, divisor = 1;
	int r;

	c->embedding_scale = f->embedding_scale ? sqrt(c->hidden) : 1;
	c->residual_scale = c->logits_scale = 1;
	if (f->default_query_scalar > 0 && (r = config_number(o, "query_pre_attn_scalar", where, 1e-6, 1e9,
	                                                      f->default_query_scalar, &query, err)) < 0)
		return r;
	if (query > 0)
		c->attention_scale = pow(query, -0.5);
	/* null turns a cap off. */
	if (f->default_attention_cap > 0 && !json_is_null(json_object_get(o, "attn_logit_softcapping")) &&
	    (r = config_number(o, "attn_logit_softcapping", where, 1e-3, 1e9, f->default_attention_cap,
	                       &c->attention_cap, err)) < 0)
		return r;
	if (f->logits_cap && !json_is_null(json_object_get(o, "final_logit_softcapping")) &&
	    (r = config_number(o, "final_logit_softcapping", where, 1e-3, 1e9, f->default_logits_cap,
	                       &c->logits_cap, err)) < 0)
		return r;
	if (!f->multipliers)
		return 0;
	if ((r = config_number(o, "embedding_multiplier", where, 1e-6, 1e6, 1, &c->embedding_scale, err)) <
	        0 ||
	    (r = config_number(o, "attention_multiplier", where, 1e-6, 1e6, 1, &c->attention_scale, err)) <
	        0 ||
	    (r = config_number(o, "residual_multiplier", where, 1e-6, 1e6, 1, &c->residual_scale, err)) < 0 ||
	    (r = config_number(o, "logits_scaling", where, 1e-6, 1e6, 1, &divisor, err)) < 0)
		return r;
	c->logits_scale = 1 / divisor;
	/* transformers has this factor behind the embedding's module, to whose output it adds noise; gemma's
	 * is within it. */
	c->noise_scaled = true;
	return 0;
}

static int check_switches(const json_t *o, const char *where, const struct family *f, struct error *err)
{
	for (const struct family_switch *s = f->switches; s && s->key; s++) {
		bool value;
		int r = config_bool(o, s->key, where, s->value, &value, err);

		if (r < 0)
			return r;
		if (value != s->value)
			return error_set(err, -EINVAL, "%s: %s: %s is not supported", where, s->key,
			                 value ? "true" : "false");
	}
	return 0;
}

/* Of quantized weights, those of bitsandbytes in NF4 can be read (checkpoint/nf4_tensors.h), and they say
 * themselves what they are. */
static int check_quantization(const json_t *o, const char *where, struct error *err)
{
	const json_t *q = config_member(o, "quantization_config");
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

/* A model of sequence classification says so by its architecture alone; only one with a single label, a
 * number, is of use here. transformers has two labels where the file names none. */
static int read_head(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const char *architecture = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));
	const json_t *names = config_member(o, "id2label");
	int64_t labels = names ? (int64_t)json_object_size(names) : 2;
	int r;

	if (!architecture || !str_ends(architecture, "ForSequenceClassification"))
		return 0;
	if ((r = config_int(o, "num_labels", where, 1, 1 << 20, labels, &labels, err)) < 0)
		return r;
	if (labels != 1)
		return error_set(err, -EINVAL,
		                 "%s: a %.60s of %lld labels is not supported (one label, a reward, is)",
		                 where, architecture, (long long)labels);
	model_config_set_scores(c);
	c->new_head = false;
	return 0;
}

static int read_dropout(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                        struct error *err)
{
	static const char *const usual[] = {"attention_dropout", NULL};
	int r = 0;

	for (const char *const *key = f->dropout_keys ? f->dropout_keys : usual; r == 0 && *key; key++) {
		double p = 0;

		r = config_number(o, *key, where, 0, 1, f->default_dropout, &p, err);
		c->dropout = MAX(c->dropout, p);
	}
	return r;
}

static int parse_family(const json_t *o, const char *type, const char *where, struct model_config *c,
                        struct error *err)
{
	const struct family *f = family_find(type);
	char names[600];
	int r;

	if (f && f->part && !c->multimodal)
		f = NULL;
	if (!f)
		return error_set(err, -EINVAL, "%s: model_type \"%.60s\" is not supported (%s are)", where,
		                 type, family_names(names, sizeof(names)));
	snprintf(c->family, sizeof(c->family), "%s", f->name);
	if ((r = check_quantization(o, where, err)) < 0 || (r = read_activation(o, where, f, c, err)) < 0 ||
	    (r = read_sizes(o, where, f, c, err)) < 0 || (r = config_read_experts(o, where, f, c, err)) < 0 ||
	    (r = read_rope(o, where, f, c, err)) < 0 || (r = config_read_layers(o, where, f, c, err)) < 0 ||
	    (r = read_biases(o, where, f, c, err)) < 0 || (r = read_scales(o, where, f, c, err)) < 0 ||
	    (r = check_switches(o, where, f, err)) < 0 || (r = read_dropout(o, where, f, c, err)) < 0 ||
	    (r = config_bool(o, "tie_word_embeddings", where, f->tied, &c->tied, err)) < 0)
		return r;
	c->naming = f->naming;
	c->fused_qkv = f->fused_qkv;
	c->fused_mlp = f->fused_mlp;
	c->transposed = f->transposed;
	c->gated = !f->plain_mlp;
	c->residual_init = f->scaled_residual_init ? 1 / sqrt(2.0 * c->layers) : 1;
	c->layer_norm = f->layer_norm;
	c->norm_plus_one = f->norm_plus_one;
	c->norm_place = f->norm_place;
	c->learned_positions = f->learned_positions;
	c->qk_norm = f->qk_norm;
	c->interleaved = f->interleaved;
	c->gated_attention = f->gated_attention;
	c->bos = config_first_id(o, "bos_token_id");
	c->eos = config_first_id(o, "eos_token_id");
	c->pad = config_first_id(o, "pad_token_id");
	return read_head(o, where, c, err);
}

/* transformers ties the head of some where either of two keys says so, and of the others by that of the
 * whole. */
static int read_tie(const json_t *o, const struct multimodal *whole, const char *where,
                    struct model_config *c, struct error *err)
{
	bool tied = false;
	int r =
	    config_bool(o, "tie_word_embeddings", where, whole->ties_either ? false : c->tied, &tied, err);

	c->tied = whole->ties_either ? tied || c->tied : tied;
	return r;
}

static int refuse_scores(const json_t *o, const char *where, struct error *err)
{
	const char *architecture = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));

	if (architecture && str_ends(architecture, "ForSequenceClassification"))
		return error_set(err, -EINVAL, "%s: a %.60s, a multimodal model of scores, is not supported",
		                 where, architecture);
	return 0;
}

/* The language model of a multimodal one. Before transformers 4.52, Qwen2-VL and Qwen2.5-VL had its keys
 * among those of the whole. */
static int parse_multimodal(const json_t *o, const struct multimodal *whole, const char *where,
                            struct model_config *c, struct error *err)
{
	const json_t *text = config_member(o, "text_config");
	const char *type = whole->family ? whole->family : whole->default_family;
	char place[300];
	int r;

	snprintf(place, sizeof(place), "%s%s", where, text ? ": text_config" : "");
	if (text && !json_is_object(text))
		return error_set(err, -EINVAL, "%s: an object is needed", place);
	if (!text && !whole->family)
		return error_set(err, -EINVAL, "%s: text_config is missing", where);
	c->multimodal = whole->naming;
	snprintf(c->whole, sizeof(c->whole), "%s", whole->name);
	if ((!whole->family && (r = config_word(text, "model_type", place, type, &type, err)) < 0) ||
	    (r = refuse_scores(o, where, err)) < 0 ||
	    (r = parse_family(text ? text : o, type, place, c, err)) < 0 ||
	    (r = check_quantization(o, where, err)) < 0 || (r = read_tie(o, whole, where, c, err)) < 0)
		return r;
	c->bos = c->bos < 0 ? config_first_id(o, "bos_token_id") : c->bos;
	c->eos = c->eos < 0 ? config_first_id(o, "eos_token_id") : c->eos;
	c->pad = c->pad < 0 ? config_first_id(o, "pad_token_id") : c->pad;
	return text ? refuse_scores(text, place, err) : 0;
}

static int parse_object(const json_t *o, const char *where, struct model_config *c, struct error *err)
{
	const struct multimodal *whole;
	const char *type;
	int r;

	if (!json_is_object(o))
		return error_set(err, -EINVAL, "%s: a JSON object is needed", where);
	if ((r = json_need_string(o, "model_type", where, &type, err)) < 0)
		return r;
	whole = multimodal_find(type);
	return whole ? parse_multimodal(o, whole, where, c, err) : parse_family(o, type, where, c, err);
}

int model_config_parse(const char *text, size_t len, const char *where, struct model_config *out,
                       struct error *err)
{
	_cleanup_json_ json_t *o = NULL;
	struct model_config c = {0};
	int r = json_parse_python(text, len, where, &o, err);

	if (r < 0 || (r = parse_object(o, where, &c, err)) < 0)
		return r;
	*out = c;
	return 0;
}

/* Of the newest checkpoint-N in the directory: N; -1: there is none. */
static int64_t newest_checkpoint(const char *directory)
{
	DIR *list = opendir(directory);
	int64_t newest = -1, step;
	const struct dirent *d;

	while (list && (d = readdir(list)))
		if (str_starts(d->d_name, "checkpoint-") &&
		    str_to_int64(d->d_name + strlen("checkpoint-"), 0, INT64_MAX, &step) == 0)
			newest = MAX(newest, step);
	if (list)
		closedir(list);
	return newest;
}

/* The reason why `file` cannot be read, for three common mistakes: a model that was named as on a
 * hub, an adapter in place of a model, and the output directory of a run that was stopped. 0: another one. */
static int explain_missing(const char *file, struct error *err)
{
	static const char config[] = "/config.json";
	_cleanup_free_ char *directory =
	    str_ends(file, config) ? strndup(file, strlen(file) - strlen(config)) : strdup(file);
	int64_t step;

	if (!directory)
		return error_oom(err);
	if (is_hub_name(directory) && !file_exists(directory))
		return error_set(err, -ENOENT, "%s: No such file or directory, and " HUB_HINT, directory);
	if (file_exists_in(directory, "adapter_config.json") && !file_exists_in(directory, config + 1))
		return error_set(err, -EINVAL,
		                 "%s is an adapter, not a model; name the model that it belongs to, and the "
		                 "adapter with lora.from, or for dtrain generate with --adapter",
		                 directory);
	step = file_exists_in(directory, config + 1) ? -1 : newest_checkpoint(directory);
	if (step >= 0)
		return error_set(err, -ENOENT,
		                 "%s has no model, but checkpoints of a run that has not ended: name one of "
		                 "them, such as %s/checkpoint-%lld",
		                 directory, directory, (long long)step);
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
	if ((r = explain_missing(file, err)) < 0 || (r = file_read(file, 16 << 20, &text, &len, err)) < 0)
		return r;
	return model_config_parse(text, len, file, out, err);
}
