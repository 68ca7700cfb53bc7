/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model as a Hugging Face directory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/peft.h"
#include "engine/model/multimodal.h"

#define CONFIG            "config.json"
#define GENERATION_CONFIG "generation_config.json"
#define SMALL_FILE_MAX    (1u << 30) /* far more than a tokenizer of 10^6 tokens needs */

static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",  "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json",
};

/* Of a model that also takes images. */
static const char *const processor_files[] = {"processor_config.json", "preprocessor_config.json",
                                              "video_preprocessor_config.json"};

static const struct {
	const char *model_type, *architecture, *scores; /* NULL: transformers has none */
} architectures[] = {
    {"llama", "LlamaForCausalLM", "LlamaForSequenceClassification"},
    {"mistral", "MistralForCausalLM", "MistralForSequenceClassification"},
    {"ministral3", "Ministral3ForCausalLM", "Ministral3ForSequenceClassification"},
    {"qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification"},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification"},
    {"minimind", "MiniMindForCausalLM", NULL},
    {"olmo2", "Olmo2ForCausalLM", "Olmo2ForSequenceClassification"},
    {"olmo3", "Olmo3ForCausalLM", "Olmo3ForSequenceClassification"},
    {"gpt_oss", "GptOssForCausalLM", "GptOssForSequenceClassification"},
    {"gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification"},
    {"smollm3", "SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"},
    {"granite", "GraniteForCausalLM", NULL},
    {"phi3", "Phi3ForCausalLM", "Phi3ForSequenceClassification"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5ForSequenceClassification"},
    {"gemma", "GemmaForCausalLM", "GemmaForSequenceClassification"},
    {"glm", "GlmForCausalLM", "GlmForSequenceClassification"},
    {"glm4", "Glm4ForCausalLM", "Glm4ForSequenceClassification"},
    {"ernie4_5", "Ernie4_5ForCausalLM", NULL},
    {"helium", "HeliumForCausalLM", "HeliumForSequenceClassification"},
    {"seed_oss", "SeedOssForCausalLM", "SeedOssForSequenceClassification"},
    {"ministral", "MinistralForCausalLM", "MinistralForSequenceClassification"},
    {"exaone4", "Exaone4ForCausalLM", "Exaone4ForSequenceClassification"},
    {"starcoder2", "Starcoder2ForCausalLM", "Starcoder2ForSequenceClassification"},
    {"stablelm", "StableLmForCausalLM", "StableLmForSequenceClassification"},
    {"gemma2", "Gemma2ForCausalLM", "Gemma2ForSequenceClassification"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"},
    {"mixtral", "MixtralForCausalLM", "MixtralForSequenceClassification"},
    {"olmoe", "OlmoeForCausalLM", NULL},
    {"gemma3_text", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"},
};

const char *hf_architecture(const char *model_type, bool scores)
{
	for (size_t i = 0; i < ARRAY_SIZE(architectures); i++)
		if (str_eq(architectures[i].model_type, model_type))
			return scores ? architectures[i].scores : architectures[i].architecture;
	return NULL;
}

int hf_refuse_scores(const char *where, bool adapter, struct error *err)
{
	return error_set(err, -EINVAL,
	                 "%s is %sa reward model (its head gives a score, and no tokens); expected %s", where,
	                 adapter ? "an adapter of " : "",
	                 adapter ? "one of a causal model" : "a causal model, or task = \"reward\"");
}

int hf_choose_head(struct model_config *c, bool scores, const char *where, struct error *err)
{
	if (c->scores && !scores)
		return hf_refuse_scores(where, false, err);
	if (!scores)
		return 0;
	if (c->multimodal)
		return error_set(
		    err, -ENOTSUP,
		    "%s is a multimodal model, of which no reward model is made; expected one of "
		    "text alone",
		    where);
	if (!hf_architecture(c->family, true))
		return error_set(err, -ENOTSUP,
		                 "%s: transformers has no sequence classification of the family %s, in "
		                 "which a reward model could be saved; expected another family, such as "
		                 "llama or qwen3",
		                 where, c->family);
	if (!c->scores)
		model_config_set_scores(c);
	return 0;
}

/* Copies the content only. With the mode of a read-only original, the next save could not
 * replace the copy. */
static int copy_where_present(const char *from_dir, const char *to_dir, const char *name, struct error *err)
{
	_cleanup_free_ char *from = str_path_join(from_dir, name), *to = str_path_join(to_dir, name),
	                    *data = NULL;
	size_t len;
	int r;

	if (!from || !to)
		return error_oom(err);
	if (!file_exists(from))
		return 0;
	r = file_read(from, SMALL_FILE_MAX, &data, &len, err);
	return r < 0 ? r : file_write_atomic(to, data, len, 0644, err);
}

static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!str_ends(path, ".json"))
		return strdup(path);
	return slash ? strndup(path, slash - path) : strdup(".");
}

static void set_default_id(json_t *config, const char *key, int32_t id)
{
	json_t *v = json_object_get(config, key);

	if (id >= 0 && (!v || json_is_null(v)))
		json_object_set_new(config, key, json_integer(id));
}

/* The keys by which transformers makes a model of scores of a config. */
static int add_scores(json_t *config, struct error *err)
{
	const char *architecture = hf_architecture(json_get_string(config, "model_type", ""), true);
	json_t *keys = architecture ? json_pack("{s:[s], s:{s:s}, s:{s:i}}", "architectures", architecture,
	                                        "id2label", "0", "LABEL_0", "label2id", "LABEL_0", 0)
	                            : NULL;
	int r;

	if (!architecture)
		return error_set(err, -ENOTSUP,
		                 "transformers has no sequence classification of the family %s: a head of "
		                 "scores cannot be saved with it",
		                 json_get_string(config, "model_type", "(none)"));
	r = keys && json_object_update(config, keys) == 0 ? 0 : error_oom(err);
	json_decref(keys);
	json_object_del(config, "num_labels");
	return r;
}

/* Where the ids of special tokens are: a multimodal model has them in the configuration of its language
 * model. */
static json_t *language_config(const json_t *config)
{
	json_t *text = json_object_get(config, "text_config");

	return json_is_object(text) ? text : (json_t *)config;
}

static int save_config(const char *directory, const struct hf_save_options *o, json_t **out,
                       struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, CONFIG);
	_cleanup_json_ json_t *config = NULL;
	const char *architecture;
	const struct multimodal *whole;
	json_t *text;
	int r;

	if (!path)
		return error_oom(err);
	r = json_read_python(o->config, &config, err);
	if (r < 0)
		return r;
	if (!json_is_object(config))
		return error_set(err, -EINVAL, "%s: not a JSON object", o->config);
	whole = multimodal_find(json_get_string(config, "model_type", ""));
	architecture =
	    whole ? whole->architecture : hf_architecture(json_get_string(config, "model_type", ""), false);
	if (o->scores && (r = add_scores(config, err)) < 0)
		return r;
	if (!json_array_size(json_object_get(config, "architectures")) && architecture)
		json_object_set_new(config, "architectures", json_pack("[s]", architecture));
	/* transformers 5 writes dtype and reads both keys; transformers 4 knows only torch_dtype. */
	if (!json_object_get(config, "dtype") || json_object_get(config, "torch_dtype"))
		json_object_set_new(config, "torch_dtype", json_string(dtype_name(o->type)));
	if (json_object_get(config, "dtype"))
		json_object_set_new(config, "dtype", json_string(dtype_name(o->type)));
	/* What is written is not quantized. */
	json_object_del(config, "quantization_config");
	text = language_config(config);
	json_object_del(text, "quantization_config");
	set_default_id(text, "bos_token_id", o->bos);
	set_default_id(text, "eos_token_id", o->eos);
	set_default_id(text, "pad_token_id", o->pad);
	if ((r = json_write_file(path, config, 2, true, err)) < 0)
		return r;
	*out = steal_pointer(config);
	return 0;
}

/* The i-th id of eos_token_id, which is a number or a list of them; -1: there are not so many. */
static json_int_t stop_at(const json_t *generation, size_t i)
{
	const json_t *v = json_object_get(generation, "eos_token_id");

	if (json_is_array(v))
		v = json_array_get(v, i);
	else if (i > 0)
		v = NULL;
	return json_is_integer(v) ? json_integer_value(v) : -1;
}

static bool has_stop(const json_t *generation, int32_t id)
{
	size_t n = MAX(json_array_size(json_object_get(generation, "eos_token_id")), (size_t)1);

	for (size_t i = 0; i < n; i++)
		if (stop_at(generation, i) == id)
			return true;
	return false;
}

/* Puts the ids in front of those of eos_token_id, as transformers' Trainer does where the tokenizer has
 * another end token than the model. Returns 1 where that changes anything. */
static int add_stops(json_t *generation, const int32_t *stops, size_t n, struct error *err)
{
	_cleanup_json_ json_t *list = json_array();
	json_t *was = json_object_get(generation, "eos_token_id");

	if (!list)
		return error_oom(err);
	for (size_t i = 0; i < n; i++)
		if (!has_stop(generation, stops[i]))
			json_array_append_new(list, json_integer(stops[i]));
	if (json_array_size(list) == 0)
		return 0;
	if (json_is_array(was))
		json_array_extend(list, was);
	else if (json_is_integer(was))
		json_array_append(list, was);
	/* With this key transformers may take what config.json has instead. */
	json_object_del(generation, "_from_model_config");
	return json_object_set(generation, "eos_token_id",
	                       json_array_size(list) == 1 ? json_array_get(list, 0) : list) < 0
	           ? error_oom(err)
	           : 1;
}

static int save_generation_config(const char *directory, const struct hf_save_options *o,
                                  const json_t *config, struct error *err)
{
	static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
	_cleanup_free_ char *path = str_path_join(directory, GENERATION_CONFIG);
	_cleanup_json_ json_t *generation = NULL;
	bool copied;
	int r;

	if (!path)
		return error_oom(err);
	if (o->source && (r = copy_where_present(o->source, directory, GENERATION_CONFIG, err)) < 0)
		return r;
	copied = o->source && file_exists(path);
	if (copied && o->n_stops == 0)
		return 0;
	if (copied) {
		if ((r = json_read_python(path, &generation, err)) < 0)
			return r;
		if (!json_is_object(generation))
			return error_set(err, -EINVAL, "%s: not a JSON object", path);
	} else if (!(generation = json_pack("{s:b}", "_from_model_config", 1))) {
		return error_oom(err);
	}
	for (size_t i = 0; i < ARRAY_SIZE(keys) && !copied; i++) {
		json_t *v = json_object_get(language_config(config), keys[i]);

		if (v && !json_is_null(v))
			json_object_set(generation, keys[i], v);
	}
	r = add_stops(generation, o->stops, o->n_stops, err);
	return r < 0 || (r == 0 && copied) ? r : json_write_file(path, generation, 2, true, err);
}

int hf_read_stops(const char *directory, int32_t **out, size_t *n, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, GENERATION_CONFIG);
	_cleanup_json_ json_t *generation = NULL;
	size_t count;
	int r;

	*out = NULL;
	*n = 0;
	if (!path)
		return error_oom(err);
	if (!file_exists(path))
		return 0;
	r = json_read_python(path, &generation, err);
	if (r < 0)
		return r;
	count = MAX(json_array_size(json_object_get(generation, "eos_token_id")), (size_t)1);
	if (!(*out = malloc(count * sizeof(**out))))
		return error_oom(err);
	for (size_t i = 0; i < count; i++) {
		json_int_t id = stop_at(generation, i);

		if (id >= 0 && id <= INT32_MAX)
			(*out)[(*n)++] = (int32_t)id;
	}
	return 0;
}

int hf_save_stops(const char *directory, const int32_t *stops, size_t n, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, GENERATION_CONFIG);
	_cleanup_json_ json_t *generation = json_object();
	int r;

	if (!path || !generation)
		return error_oom(err);
	r = add_stops(generation, stops, n, err);
	return r <= 0 ? r : json_write_file(path, generation, 2, true, err);
}

/* A model with code of its own needs its .py files to load again. */
static int copy_code(const char *directory, const char *source, const json_t *config, struct error *err)
{
	_cleanup_closedir_ DIR *d = NULL;
	struct dirent *e;
	int r = 0;

	if (!source || !json_is_object(json_object_get(config, "auto_map")) || !(d = opendir(source)))
		return 0;
	while (r == 0 && (e = readdir(d)))
		if (e->d_name[0] != '.' && str_ends(e->d_name, ".py"))
			r = copy_where_present(source, directory, e->d_name, err);
	return r;
}

int hf_save_tokenizer(const char *directory, const char *tokenizer, struct error *err)
{
	_cleanup_free_ char *from = directory_of(tokenizer);
	int r = from ? 0 : error_oom(err);

	for (size_t i = 0; i < ARRAY_SIZE(tokenizer_files) && r == 0; i++)
		r = copy_where_present(from, directory, tokenizer_files[i], err);
	return r;
}

/* Readers prefer this file to the chat template in tokenizer_config.json. */
static int save_chat_template(const char *directory, const char *source, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "chat_template.jinja");

	return path ? file_write_atomic(path, source, strlen(source), 0644, err) : error_oom(err);
}

static int copy_processor(const char *directory, const char *source, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(processor_files) && r == 0 && source; i++)
		r = copy_where_present(source, directory, processor_files[i], err);
	return r;
}

bool hf_saves(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(processor_files); i++)
		if (str_eq(name, processor_files[i]))
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(tokenizer_files); i++)
		if (str_eq(name, tokenizer_files[i]))
			return true;
	return str_eq(name, CONFIG) || str_eq(name, GENERATION_CONFIG) || str_eq(name, PEFT_CONFIG_FILE);
}

int hf_save_files(const char *directory, const struct hf_save_options *o, struct error *err)
{
	_cleanup_json_ json_t *config = NULL;
	int r;

	r = o->adapter ? peft_config_write(directory, o->adapter, err)
	               : save_config(directory, o, &config, err);
	if (r < 0 || (!config && (r = hf_save_stops(directory, o->stops, o->n_stops, err)) < 0) ||
	    (config && ((!o->scores && (r = save_generation_config(directory, o, config, err)) < 0) ||
	                (r = copy_code(directory, o->source, config, err)) < 0 ||
	                (r = copy_processor(directory, o->source, err)) < 0)))
		return r;
	r = o->tokenizer ? hf_save_tokenizer(directory, o->tokenizer, err) : 0;
	return r == 0 && o->chat_template ? save_chat_template(directory, o->chat_template, err) : r;
}
