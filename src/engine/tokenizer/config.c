/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the post-processor, and the files next to tokenizer.json that name the special tokens and the chat
 * template. */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/tokenizer/parts.h"

static int add_id(struct tokenizer *t, struct token_list *list, const json_t *id, const char *where,
                  struct error *err)
{
	int32_t v;

	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= t->size)
		return error_set(err, -EINVAL,
		                 "%s: the id of a special token is not a whole number from 0 to %d", where,
		                 t->size - 1);
	v = (int32_t)json_integer_value(id);
	return token_list_add(list, &v, 1) < 0 ? error_oom(err) : 0;
}

/* Reads one piece of a template: {"SpecialToken": {"id": …}} or {"Sequence": …}. */
static int template_token(struct tokenizer *t, const json_t *piece, const json_t *known,
                          struct token_list *list, const char *where, struct error *err)
{
	const char *name = json_get_string(json_object_get(piece, "SpecialToken"), "id", NULL);
	const json_t *ids = name ? json_object_get(json_object_get(known, name), "ids") : NULL;
	int r = 0;

	if (!json_is_array(ids))
		return error_set(err, -EINVAL, "%s: single: \"%.60s\" is not among its special_tokens", where,
		                 name ? name : "");
	for (size_t i = 0; i < json_array_size(ids) && r == 0; i++)
		r = add_id(t, list, json_array_get(ids, i), where, err);
	return r;
}

static int parse_template(struct tokenizer *t, const json_t *json, const char *where, struct error *err)
{
	const json_t *single = json_object_get(json, "single"),
	             *known = json_object_get(json, "special_tokens");
	bool text = false;
	int r = 0;

	if (!json_is_array(single))
		return error_set(err, -EINVAL, "%s: single: an array is needed", where);
	for (size_t i = 0; i < json_array_size(single) && r == 0; i++) {
		const json_t *piece = json_array_get(single, i),
		             *sequence = json_object_get(piece, "Sequence");

		if (!sequence)
			r = template_token(t, piece, known, text ? &t->after : &t->before, where, err);
		else if (text || !str_eq(json_get_string(sequence, "id", "A"), "A"))
			r = error_set(err, -ENOTSUP, "%s: single: the text has to stand in it once, as A",
			              where);
		else
			text = true;
	}
	if (r == 0 && !text)
		r = error_set(err, -ENOTSUP, "%s: single: the text (Sequence A) is missing", where);
	return r;
}

/* Reads RobertaProcessing and BertProcessing: "cls": [token, id] comes before the text, "sep" after it. */
static int parse_pair_tokens(struct tokenizer *t, const json_t *json, const char *where, struct error *err)
{
	int r = add_id(t, &t->before, json_array_get(json_object_get(json, "cls"), 1), where, err);

	return r < 0 ? r : add_id(t, &t->after, json_array_get(json_object_get(json, "sep"), 1), where, err);
}

static int parse_processor(struct tokenizer *t, const json_t *json, const char *where, int depth,
                           struct error *err)
{
	const char *type = json_get_string(json, "type", NULL);
	const json_t *array = json_object_get(json, "processors");
	struct token_list before = t->before, after = t->after;
	int r = 0;

	if (!type)
		return error_set(err, -EINVAL, "%s: an object with a \"type\" is needed", where);
	if (str_eq(type, "ByteLevel")) /* moves offsets only */
		return 0;
	if (str_eq(type, "Sequence")) {
		if (!json_is_array(array))
			return error_set(err, -EINVAL, "%s: processors: an array is needed", where);
		if (depth > 16)
			return error_set(err, -EINVAL, "%s: Sequences more than 16 deep", where);
		for (size_t i = 0; i < json_array_size(array) && r == 0; i++)
			r = parse_processor(t, json_array_get(array, i), where, depth + 1, err);
		return r;
	}
	/* A later processor puts its tokens around those of the earlier ones. */
	t->before = t->after = (struct token_list){0};
	if (str_eq(type, "TemplateProcessing"))
		r = parse_template(t, json, where, err);
	else if (str_eq(type, "RobertaProcessing") || str_eq(type, "BertProcessing"))
		r = parse_pair_tokens(t, json, where, err);
	else
		r = error_set(
		    err, -ENOTSUP,
		    "%s: type \"%.60s\" is not supported; these are: ByteLevel, TemplateProcessing, "
		    "RobertaProcessing, BertProcessing, Sequence",
		    where, type);
	if (r == 0 && (token_list_add(&t->before, before.ids, before.len) < 0 ||
	               token_list_add(&after, t->after.ids, t->after.len) < 0))
		r = error_oom(err);
	token_list_free(&before);
	token_list_free(&t->after);
	t->after = after;
	return r;
}

int postprocessor_parse(struct tokenizer *t, const json_t *json, const char *where, struct error *err)
{
	int r;

	if (!json || json_is_null(json))
		return 0;
	r = parse_processor(t, json, where, 0, err);
	t->adds_bos = r == 0 && t->before.len > 0;
	return r;
}

/* ---- special tokens ---- */

enum { BOS, EOS, PAD, ROLES };

static const char *const role_keys[ROLES] = {"bos_token", "eos_token", "pad_token"};
static const char *const usual[ROLES][12] = {
    [BOS] = {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>",
             "<\xef\xbd\x9c"
             "begin\xe2\x96\x81of\xe2\x96\x81"
             "sentence\xef\xbd\x9c>",
             "[BOS]"},
    [EOS] = {"<|im_end|>", "<|eot_id|>", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>",
             "<\xef\xbd\x9c"
             "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
             "[EOS]"},
    [PAD] = {"<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>"},
};

static int32_t *role(struct tokenizer *t, int which)
{
	return which == BOS ? &t->bos : which == EOS ? &t->eos : &t->pad;
}

static void guess(struct tokenizer *t, int which)
{
	for (size_t i = 0; usual[which][i] && *role(t, which) < 0; i++)
		*role(t, which) = tokenizer_token_to_id(t, usual[which][i]);
}

void tokenizer_guess_specials(struct tokenizer *t)
{
	for (int i = 0; i < ROLES; i++)
		guess(t, i);
}

/* Reads a file that may be absent; then *out is NULL. Integers are read as reals, since some, such as 1e30 as
 * model_max_length, are larger than json_parse accepts. */
static int read_optional(const char *directory, const char *name, json_t **out, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, name), *text = NULL;
	json_error_t je;
	size_t len;
	int r;

	*out = NULL;
	if (!path)
		return error_oom(err);
	if (!file_exists(path))
		return 0;
	r = file_read(path, 64 << 20, &text, &len, err);
	if (r < 0)
		return r;
	*out = json_loadb(text, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &je);
	if (!json_is_object(*out))
		return error_set(err, -EINVAL, "%s:%d: not a JSON object: %s", path, *out ? 1 : je.line,
		                 *out ? "" : je.text);
	return 0;
}

/* Reads "bos_token": "<s>" or {"content": "<s>"}. Returns true where the key exists, even if it is null. */
static bool read_role(struct tokenizer *t, const json_t *config, int which)
{
	const json_t *v = json_object_get(config, role_keys[which]);
	const char *name = json_is_string(v) ? json_string_value(v) : json_get_string(v, "content", NULL);

	if (name)
		*role(t, which) = tokenizer_token_to_id(t, name);
	return v != NULL;
}

/* The template is a string, or the one named "default" in a list of {"name", "template"}. */
static const char *find_template(const json_t *config)
{
	const json_t *v = json_object_get(config, "chat_template"), *item;
	const char *first = NULL;
	size_t i;

	if (json_is_string(v))
		return json_string_value(v);
	json_array_foreach(v, i, item)
	{
		const char *text = json_get_string(item, "template", NULL);

		if (str_eq(json_get_string(item, "name", ""), "default") && text)
			return text;
		first = first ? first : text;
	}
	return first;
}

static int read_template(struct tokenizer *t, const json_t *config, const char *directory, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "chat_template.jinja");
	const char *text;
	size_t len;

	if (!path)
		return error_oom(err);
	/* chat_template.jinja is the newer form, and takes precedence. */
	if (file_exists(path))
		return file_read(path, 16 << 20, &t->chat_template, &len, err);
	text = find_template(config);
	if (!text)
		return 0;
	t->chat_template = strdup(text);
	return t->chat_template ? 0 : error_oom(err);
}

int tokenizer_read_config(struct tokenizer *t, const char *directory, struct error *err)
{
	_cleanup_json_ json_t *config = NULL, *map = NULL;
	int r;

	if ((r = read_optional(directory, "tokenizer_config.json", &config, err)) < 0 ||
	    (r = read_optional(directory, "special_tokens_map.json", &map, err)) < 0)
		return r;
	for (int i = 0; i < ROLES; i++)
		if (!read_role(t, config, i) && !read_role(t, map, i))
			guess(t, i);
	if (json_get_bool(config, "add_bos_token", false))
		t->adds_bos = true;
	return read_template(t, config, directory, err);
}
