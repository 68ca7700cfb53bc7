/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, checks and writes PEFT's adapter_config.json. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/peft.h"

#define CONFIG_MAX    (16u << 20)
#define RANK_MAX      65536
#define LAYERS_MAX    4096
#define VALUE_PRINTED 60

/* Keys that change what an adapter computes, in ways that dtrain does not have. Each may be absent, null,
 * false, or empty. */
static const char *const unsupported[] = {
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
    "ensure_weight_tying",
    "megatron_config",
};

/* The keys that are read, or that say nothing about what a trained adapter computes. Others, of later
 * versions, may be there as long as they switch nothing on. */
static const char *const known[] = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
};

static bool is_empty(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
	       (json_is_object(v) && !json_object_size(v)) || (json_is_string(v) && !*json_string_value(v));
}

/* "r: 0: expected an integer from 1 to 65536"; the value is cut where it is long. */
static int wrong(const char *where, const char *key, const json_t *v, int code, const char *expected,
                 struct error *err)
{
	_cleanup_free_ char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	if (!v)
		return error_set(err, code, "%s: %s is missing: %s", where, key, expected);
	return error_set(err, code, "%s: %.60s: %.*s%s: %s", where, key, VALUE_PRINTED, text ? text : "",
	                 text && strlen(text) > VALUE_PRINTED ? "…" : "", expected);
}

static int read_bool(const json_t *o, const char *key, const char *where, bool *out, struct error *err)
{
	const json_t *v = json_object_get(o, key);

	if (v && !json_is_null(v) && !json_is_boolean(v))
		return wrong(where, key, v, -EINVAL, "expected true or false", err);
	*out = json_is_true(v);
	return 0;
}

static int read_number(const json_t *v, const char *where, const char *key, double min, double max,
                       double *out, struct error *err)
{
	char expected[80];
	double x = json_number_value(v);

	snprintf(expected, sizeof(expected), "expected a number from %g to %g", min, max);
	if (!json_is_number(v) || !(x >= min && x <= max))
		return wrong(where, key, v, -EINVAL, expected, err);
	*out = x;
	return 0;
}

static int read_rank(const json_t *v, const char *where, const char *key, int64_t *out, struct error *err)
{
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > RANK_MAX)
		return wrong(where, key, v, -EINVAL, "expected an integer from 1 to 65536", err);
	*out = json_integer_value(v);
	return 0;
}

/* A list of strings; with `pattern` not NULL one string is a regular expression, which goes there. */
static int read_names(const json_t *o, const char *key, const char *where, char ***list, char **pattern,
                      struct error *err)
{
	const json_t *v = json_object_get(o, key), *item;
	size_t i;

	if (is_empty(v))
		return 0;
	if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v)) {
		if (!pattern) { /* one name */
			*list = calloc(2, sizeof(**list));
			pattern = *list;
		}
		return pattern && (*pattern = strdup(json_string_value(v))) ? 0 : error_oom(err);
	}
	if (!json_is_array(v))
		return wrong(where, key, v, -EINVAL, "expected a list of names", err);
	*list = calloc(json_array_size(v) + 1, sizeof(**list));
	if (!*list)
		return error_oom(err);
	json_array_foreach(v, i, item)
	{
		if (!json_is_string(item) || !json_string_length(item) ||
		    strlen(json_string_value(item)) != json_string_length(item))
			return wrong(where, key, v, -EINVAL, "expected a list of names", err);
		(*list)[i] = strdup(json_string_value(item));
		if (!(*list)[i])
			return error_oom(err);
	}
	return 0;
}

static int read_patterns(const json_t *o, const char *key, const char *where, bool rank,
                         struct peft_pattern **out, size_t *count, struct error *err)
{
	const json_t *v = json_object_get(o, key);
	const char *pattern;
	json_t *value;
	int r = 0;

	if (is_empty(v))
		return 0;
	if (!json_is_object(v))
		return wrong(where, key, v, -EINVAL, "expected an object of names and numbers", err);
	*out = calloc(json_object_size(v), sizeof(**out));
	if (!*out)
		return error_oom(err);
	json_object_foreach((json_t *)v, pattern, value)
	{
		struct peft_pattern *p = &(*out)[*count];
		_cleanup_free_ char *place = str_printf("%s.%s", key, pattern);
		int64_t whole = 0;

		p->pattern = strdup(pattern);
		if (!place || !p->pattern)
			return error_oom(err);
		(*count)++;
		if (rank) {
			r = read_rank(value, where, place, &whole, err);
			p->value = (double)whole;
		} else {
			r = read_number(value, where, place, 0, 1e9, &p->value, err);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_layers(const json_t *o, const char *where, struct peft_config *c, struct error *err)
{
	static const char key[] = "layers_to_transform", expected[] = "expected the numbers of layers";
	const json_t *v = json_object_get(o, key);
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (is_empty(v))
		return 0;
	if ((!json_is_array(v) && !json_is_integer(v)) || n > LAYERS_MAX)
		return wrong(where, key, v, -EINVAL, expected, err);
	c->layers = calloc(n, sizeof(*c->layers));
	if (!c->layers)
		return error_oom(err);
	for (c->n_layers = 0; c->n_layers < n; c->n_layers++) {
		const json_t *item = json_is_array(v) ? json_array_get(v, c->n_layers) : v;

		if (!json_is_integer(item) || json_integer_value(item) < 0)
			return wrong(where, key, v, -EINVAL, expected, err);
		c->layers[c->n_layers] = json_integer_value(item);
	}
	if (c->target_pattern)
		return wrong(where, key, v, -EINVAL, "only possible with a list of target_modules", err);
	return 0;
}

static int read_init(const json_t *o, const char *where, struct peft_config *c, struct error *err)
{
	static const char key[] = "init_lora_weights";
	/* What the other ways leave behind is an ordinary adapter of the base as it is. */
	static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
	const json_t *v = json_object_get(o, key);
	const char *word = json_string_value(v);

	if (!v || json_is_null(v) || json_is_true(v))
		return 0;
	if (json_is_false(v)) {
		c->init = PEFT_INIT_RANDOM;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
		if (word && str_eq(word, plain[i])) {
			c->init = i == 0 ? PEFT_INIT_GAUSSIAN : PEFT_INIT_DEFAULT;
			return 0;
		}
	if (word && (str_eq(word, "pissa") ||
	             (str_starts(word, "pissa_niter_") &&
	              str_to_int64(word + strlen("pissa_niter_"), 1, 1000, &c->pissa_iterations) == 0))) {
		c->init = PEFT_INIT_PISSA;
		return 0;
	}
	return wrong(where, key, v, word ? -ENOTSUP : -EINVAL,
	             "not supported; true, false, \"gaussian\" and \"pissa\" are", err);
}

static int check_unsupported(const json_t *o, const char *where, struct error *err)
{
	const char *key;
	json_t *v;

	for (size_t i = 0; i < ARRAY_SIZE(unsupported); i++) {
		v = json_object_get(o, unsupported[i]);
		if (!is_empty(v))
			return wrong(where, unsupported[i], v, -ENOTSUP, "not supported", err);
	}
	json_object_foreach((json_t *)o, key, v)
	{
		bool found = !json_is_true(v);

		for (size_t i = 0; i < ARRAY_SIZE(known) && !found; i++)
			found = str_eq(key, known[i]);
		if (!found)
			return wrong(where, key, v, -ENOTSUP, "this key is not known", err);
	}
	return 0;
}

static int read_word(const json_t *o, const char *key, const char *where, char **out, struct error *err)
{
	const json_t *v = json_object_get(o, key);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return wrong(where, key, v, -EINVAL, "expected a string", err);
	*out = strdup(json_string_value(v));
	return *out ? 0 : error_oom(err);
}

static int parse_object(const json_t *o, const char *where, struct peft_config *c, struct error *err)
{
	const json_t *type = json_object_get(o, "peft_type"), *bias = json_object_get(o, "bias");
	int r;

	if (!json_is_object(o))
		return error_set(err, -EINVAL, "%s: a JSON object is needed", where);
	if (!type || !str_eq(json_string_value(type), "LORA"))
		return wrong(where, "peft_type", type, -ENOTSUP, "only \"LORA\" is supported", err);
	if (!is_empty(bias) && !str_eq(json_string_value(bias), "none"))
		return wrong(where, "bias", bias, -ENOTSUP, "only \"none\" is supported", err);
	c->rank = 8; /* PEFT's defaults */
	c->alpha = 8;
	if ((r = check_unsupported(o, where, err)) < 0 ||
	    (json_object_get(o, "r") &&
	     (r = read_rank(json_object_get(o, "r"), where, "r", &c->rank, err)) < 0) ||
	    (json_object_get(o, "lora_alpha") &&
	     (r = read_number(json_object_get(o, "lora_alpha"), where, "lora_alpha", 0, 1e9, &c->alpha,
	                      err)) < 0) ||
	    (json_object_get(o, "lora_dropout") &&
	     (r = read_number(json_object_get(o, "lora_dropout"), where, "lora_dropout", 0, 1, &c->dropout,
	                      err)) < 0) ||
	    (r = read_bool(o, "use_rslora", where, &c->rslora, err)) < 0 ||
	    (r = read_bool(o, "use_dora", where, &c->dora, err)) < 0 ||
	    (r = read_bool(o, "fan_in_fan_out", where, &c->fan_in_fan_out, err)) < 0 ||
	    (r = read_init(o, where, c, err)) < 0 ||
	    (r = read_names(o, "target_modules", where, &c->targets, &c->target_pattern, err)) < 0 ||
	    (r = read_names(o, "exclude_modules", where, &c->excluded, &c->excluded_pattern, err)) < 0 ||
	    (r = read_layers(o, where, c, err)) < 0 ||
	    (r = read_names(o, "layers_pattern", where, &c->layers_pattern, NULL, err)) < 0 ||
	    (r = read_names(o, "modules_to_save", where, &c->modules_to_save, NULL, err)) < 0 ||
	    (r = read_patterns(o, "rank_pattern", where, true, &c->rank_pattern, &c->n_rank_pattern, err)) <
	        0 ||
	    (r = read_patterns(o, "alpha_pattern", where, false, &c->alpha_pattern, &c->n_alpha_pattern,
	                       err)) < 0 ||
	    (r = read_word(o, "base_model_name_or_path", where, &c->base_model, err)) < 0)
		return r;
	if (!c->targets && !c->target_pattern && !c->modules_to_save)
		return error_set(err, -EINVAL, "%s: target_modules names no module", where);
	return read_word(o, "task_type", where, &c->task_type, err);
}

int peft_config_parse(const char *text, size_t len, const char *where, struct peft_config *out,
                      struct error *err)
{
	_cleanup_(peft_config_free) struct peft_config c = {0};
	_cleanup_json_ json_t *o = NULL;
	int r = json_parse(text, len, where, &o, err);

	if (r < 0 || (r = parse_object(o, where, &c, err)) < 0)
		return r;
	*out = c;
	c = (struct peft_config){0};
	return 0;
}

int peft_config_read(const char *directory, struct peft_config *out, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, PEFT_CONFIG_FILE), *text = NULL;
	size_t len;
	int r;

	if (!path)
		return error_oom(err);
	r = file_read(path, CONFIG_MAX, &text, &len, err);
	return r < 0 ? r : peft_config_parse(text, len, path, out, err);
}

static void free_patterns(struct peft_pattern *p, size_t n)
{
	for (size_t i = 0; p && i < n; i++)
		free(p[i].pattern);
	free(p);
}

void peft_config_free(struct peft_config *c)
{
	str_list_free(c->targets);
	str_list_free(c->excluded);
	str_list_free(c->layers_pattern);
	str_list_free(c->modules_to_save);
	free_patterns(c->rank_pattern, c->n_rank_pattern);
	free_patterns(c->alpha_pattern, c->n_alpha_pattern);
	free(c->target_pattern);
	free(c->excluded_pattern);
	free(c->layers);
	free(c->base_model);
	free(c->task_type);
	*c = (struct peft_config){0};
}

/* ---- writing ---- */

/* The pattern, or the list, or null. */
static json_t *names_json(char *const *list, const char *pattern)
{
	json_t *array;

	if (pattern)
		return json_string(pattern);
	if (!list || !list[0])
		return json_null();
	array = json_array();
	for (; *list; list++)
		if (json_array_append_new(array, json_string(*list)) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

/* An integer where it is one, as PEFT declares lora_alpha. */
static json_t *number_json(double v)
{
	return v == floor(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

static json_t *patterns_json(const struct peft_pattern *p, size_t n)
{
	json_t *object = json_object();

	for (size_t i = 0; i < n; i++)
		if (json_object_set_new(object, p[i].pattern, number_json(p[i].value)) < 0) {
			json_decref(object);
			return NULL;
		}
	return object;
}

static json_t *layers_json(const struct peft_config *c)
{
	json_t *array = c->layers ? json_array() : json_null();

	for (size_t i = 0; i < c->n_layers; i++)
		json_array_append_new(array, json_integer(c->layers[i]));
	return array;
}

static json_t *init_json(const struct peft_config *c)
{
	if (c->init == PEFT_INIT_PISSA && c->pissa_iterations)
		return json_sprintf("pissa_niter_%lld", (long long)c->pissa_iterations);
	return c->init == PEFT_INIT_PISSA      ? json_string("pissa")
	       : c->init == PEFT_INIT_GAUSSIAN ? json_string("gaussian")
	                                       : json_boolean(c->init == PEFT_INIT_DEFAULT);
}

/* The keys that every version of PEFT since 0.9 knows, which is where DoRA begins. */
int peft_config_write(const char *directory, const struct peft_config *c, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, PEFT_CONFIG_FILE);
	_cleanup_json_ json_t *o = json_object();
	const struct {
		const char *key;
		json_t *value;
	} members[] = {
	    {"alpha_pattern", patterns_json(c->alpha_pattern, c->n_alpha_pattern)},
	    {"auto_mapping", json_null()},
	    {"base_model_name_or_path", c->base_model ? json_string(c->base_model) : json_null()},
	    {"bias", json_string("none")},
	    {"fan_in_fan_out", json_boolean(c->fan_in_fan_out)},
	    {"inference_mode", json_true()},
	    {"init_lora_weights", init_json(c)},
	    {"layers_pattern", names_json(c->layers_pattern, NULL)},
	    {"layers_to_transform", layers_json(c)},
	    {"lora_alpha", number_json(c->alpha)},
	    {"lora_dropout", json_real(c->dropout)},
	    {"modules_to_save", names_json(c->modules_to_save, NULL)},
	    {"peft_type", json_string("LORA")},
	    {"r", json_integer(c->rank)},
	    {"rank_pattern", patterns_json(c->rank_pattern, c->n_rank_pattern)},
	    {"revision", json_null()},
	    {"target_modules", names_json(c->targets, c->target_pattern)},
	    {"task_type", c->task_type ? json_string(c->task_type) : json_null()},
	    {"use_dora", json_boolean(c->dora)},
	    {"use_rslora", json_boolean(c->rslora)},
	};
	bool failed = !path || !o;

	for (size_t i = 0; i < ARRAY_SIZE(members); i++)
		failed |= json_object_set_new(o, members[i].key, members[i].value) < 0;
	/* Only later versions know it. */
	if (c->excluded || c->excluded_pattern)
		failed |= json_object_set_new(o, "exclude_modules",
		                              names_json(c->excluded, c->excluded_pattern)) < 0;
	return failed ? error_oom(err) : json_write_file(path, o, 2, true, err);
}
