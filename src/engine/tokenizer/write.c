/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a trained tokenizer as a Hugging Face directory, which transformers.AutoTokenizer can load. */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "engine/tokenizer/train.h"
#include "engine/tokenizer/unicode.h"

static json_t *byte_level(void)
{
	return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
	                 "use_regex", 1);
}

static json_t *token_text(const struct trained *t, int32_t id)
{
	const struct trained_token *tok = &t->tokens[id - t->first];
	struct strbuf text = {0};
	json_t *v;

	bytelevel_encode(&text, t->pool.data + tok->off, tok->len);
	v = text.failed ? NULL : json_stringn(text.data, text.len);
	strbuf_free(&text);
	return v;
}

static json_t *special_token(const char *content, bool with_id, int32_t id)
{
	json_t *v = json_pack("{s:s,s:b,s:b,s:b,s:b,s:b}", "content", content, "single_word", 0, "lstrip", 0,
	                      "rstrip", 0, "normalized", 0, "special", 1);

	if (v && with_id)
		json_object_set_new(v, "id", json_integer(id));
	return v;
}

/* NULL: out of memory, also where it lacks only one of the tokens. */
static json_t *model_json(const struct trained *t, const struct tokenizer_train_options *o)
{
	_cleanup_json_ json_t *vocab = json_object(), *merges = json_array();
	bool complete = true;

	for (int32_t i = 0; i < t->first; i++)
		json_object_set_new(vocab, o->special_tokens[i], json_integer(i));
	for (size_t i = 0; i < t->n && complete; i++) {
		json_t *text = token_text(t, t->first + (int32_t)i);

		complete = json_object_set_new(vocab, json_string_value(text),
		                               json_integer(t->first + (json_int_t)i)) == 0;
		json_decref(text);
	}
	for (size_t i = 0; i < t->merges_n && complete; i++)
		complete = json_array_append_new(merges, json_pack("[o,o]", token_text(t, t->merges[i].left),
		                                                   token_text(t, t->merges[i].right))) == 0;
	if (!complete)
		return NULL;
	return json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:O,s:O}", "type", "BPE", "dropout", "unk_token",
	                 "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
	                 "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

static json_t *tokenizer_json(const struct trained *t, const struct tokenizer_train_options *o)
{
	json_t *added = json_array();

	for (int32_t i = 0; i < t->first; i++)
		json_array_append_new(added, special_token(o->special_tokens[i], true, i));
	return json_pack("{s:s,s:n,s:n,s:o,s:n,s:o,s:n,s:o,s:o}", "version", "1.0", "truncation", "padding",
	                 "added_tokens", added, "normalizer", "pre_tokenizer", byte_level(), "post_processor",
	                 "decoder", byte_level(), "model", model_json(t, o));
}

static void set_roles(json_t *object, const struct tokenizer_train_options *o)
{
	if (o->bos)
		json_object_set_new(object, "bos_token", json_string(o->bos));
	if (o->eos)
		json_object_set_new(object, "eos_token", json_string(o->eos));
	if (o->pad)
		json_object_set_new(object, "pad_token", json_string(o->pad));
}

static json_t *config_json(const struct trained *t, const struct tokenizer_train_options *o)
{
	json_t *config = json_object(), *decoder = json_object();
	char id[16];

	json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
	set_roles(config, o);
	json_object_set_new(config, "add_bos_token", json_false());
	json_object_set_new(config, "add_eos_token", json_false());
	json_object_set_new(config, "add_prefix_space", json_false());
	json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
	for (int32_t i = 0; i < t->first; i++) {
		snprintf(id, sizeof(id), "%d", i);
		json_object_set_new(decoder, id, special_token(o->special_tokens[i], false, 0));
	}
	json_object_set_new(config, "added_tokens_decoder", decoder);
	if (o->chat_template)
		json_object_set_new(config, "chat_template", json_string(o->chat_template));
	return config;
}

static int write_one(const char *directory, const char *name, json_t *value, int indent, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	_cleanup_json_ json_t *owned = value;

	if (!path || !value)
		return error_oom(err);
	return json_write_file(path, value, indent, false, err);
}

int tokenizer_write_trained(const struct trained *t, const struct tokenizer_train_options *o,
                            const char *directory, struct error *err)
{
	json_t *map;
	int r = file_mkdirs(directory, 0777, err);

	if (r < 0 || (r = write_one(directory, "tokenizer.json", tokenizer_json(t, o), 2, err)) < 0 ||
	    (r = write_one(directory, "tokenizer_config.json", config_json(t, o), 2, err)) < 0)
		return r;
	map = json_object();
	if (map)
		set_roles(map, o);
	return write_one(directory, "special_tokens_map.json", map, 2, err);
}
