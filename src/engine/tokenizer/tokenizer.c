/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a tokenizer.json: checks its form, and calls the functions that read its parts. */
#include "engine/tokenizer/tokenizer.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/parts.h"

static int check_version(const json_t *root, const char *where, struct error *err)
{
	const char *version = json_get_string(root, "version", "1.0");

	if (!json_is_object(root))
		return error_set(err, -EINVAL,
		                 "%s: not an object; a tokenizer.json of Hugging Face is needed", where);
	if (!str_eq(version, "1.0"))
		return error_set(err, -ENOTSUP, "%s: version \"%.20s\"; 1.0 is what dtrain reads", where,
		                 version);
	return 0;
}

/* Checks that the model is a BPE. Older files have no type; then it is a BPE if it has merges. */
static int check_model(const json_t *model, const char *where, struct error *err)
{
	const char *type = json_get_string(model, "type", NULL);

	if (!json_is_object(model))
		return error_set(err, -EINVAL, "%s: model: %s; an object is needed", where,
		                 model ? "not an object" : "missing");
	if (!type)
		type = json_object_get(model, "merges") ? "BPE" : "of no type and without merges";
	if (!str_eq(type, "BPE"))
		return error_set(err, -ENOTSUP, "%s: model.type: \"%.40s\" is not supported; BPE is", where,
		                 type);
	return 0;
}

/* Whether the last step maps bytes to the byte-level alphabet. That can be left out where no normalizer does
 * it before, as bpe.c can look up bytes. */
static bool ends_in_bytes(const struct step_list *list)
{
	return list->n && list->v[list->n - 1].kind == STEP_BYTES;
}

static int index_added(struct tokenizer *t, struct error *err)
{
	t->size = t->vocab.size;
	for (size_t i = 0; i < t->added.n; i++)
		t->size = MAX(t->size, t->added.v[i].id + 1);
	t->limit = t->size;
	t->added_by_id = calloc((size_t)t->size + 1, sizeof(*t->added_by_id));
	if (!t->added_by_id)
		return error_oom(err);
	for (size_t i = 0; i < t->added.n; i++)
		t->added_by_id[t->added.v[i].id] = &t->added.v[i];
	return 0;
}

typedef int (*part_fn)(void *part, const json_t *json, const char *where, struct error *err);

static int parse_part(struct tokenizer *t, const json_t *root, const char *key, part_fn fn, void *part,
                      struct error *err)
{
	_cleanup_free_ char *where = str_printf("%s: %s", t->where, key);

	return where ? fn(part, json_object_get(root, key), where, err) : error_oom(err);
}

static int parse_normalizer(void *part, const json_t *json, const char *where, struct error *err)
{
	return normalizer_parse(part, json, where, err);
}

static int parse_pretokenizer(void *part, const json_t *json, const char *where, struct error *err)
{
	return pretokenizer_parse(part, json, where, err);
}

static int parse_decoder(void *part, const json_t *json, const char *where, struct error *err)
{
	return decoder_parse(part, json, where, err);
}

static int parse_postprocessor(void *part, const json_t *json, const char *where, struct error *err)
{
	return postprocessor_parse(part, json, where, err);
}

static int parse_root(struct tokenizer *t, const json_t *root, struct error *err)
{
	const json_t *model = json_object_get(root, "model");
	int r;

	if ((r = check_version(root, t->where, err)) < 0 || (r = check_model(model, t->where, err)) < 0 ||
	    (r = parse_part(t, root, "normalizer", parse_normalizer, &t->normalizer, err)) < 0 ||
	    (r = parse_part(t, root, "pre_tokenizer", parse_pretokenizer, &t->pretokenizer, err)) < 0 ||
	    (r = parse_part(t, root, "decoder", parse_decoder, &t->decoder, err)) < 0 ||
	    (r = vocab_parse(&t->vocab, json_object_get(model, "vocab"), t->where, err)) < 0 ||
	    (r = bpe_parse(&t->bpe, &t->vocab, model, ends_in_bytes(&t->pretokenizer), t->where, err)) < 0 ||
	    (r = added_parse(&t->added, json_object_get(root, "added_tokens"), &t->vocab, &t->normalizer,
	                     &t->unicode, t->where, err)) < 0 ||
	    (r = index_added(t, err)) < 0)
		return r;
	return parse_part(t, root, "post_processor", parse_postprocessor, t, err);
}

static int parse_text(const char *json, size_t len, const char *where, struct tokenizer **out,
                      struct error *err)
{
	_cleanup_(tokenizer_freep) struct tokenizer *t = calloc(1, sizeof(*t));
	_cleanup_json_ json_t *root = NULL;
	int r;

	if (!t)
		return error_oom(err);
	t->bos = t->eos = t->pad = TOKEN_NONE;
	t->where = strdup(where);
	if (!t->where)
		return error_oom(err);
	unicode_init(&t->unicode);
	if ((r = json_parse(json, len, where, &root, err)) < 0 || (r = parse_root(t, root, err)) < 0)
		return r;
	t->hash = tokenizer_hash_bytes(json, len, 0x6474726169);
	*out = steal_pointer(t);
	return 0;
}

int tokenizer_parse(const char *json, size_t len, const char *where, struct tokenizer **out,
                    struct error *err)
{
	int r = parse_text(json, len, where, out, err);

	if (r < 0)
		return r;
	tokenizer_guess_specials(*out);
	return 0;
}

int tokenizer_load(const char *path, struct tokenizer **out, struct error *err)
{
	_cleanup_(tokenizer_freep) struct tokenizer *t = NULL;
	_cleanup_free_ char *file = NULL, *directory = NULL, *json = NULL;
	struct stat st;
	size_t len;
	int r;

	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "%s", path);
	directory = strdup(path);
	file = S_ISDIR(st.st_mode) ? str_path_join(path, "tokenizer.json") : strdup(path);
	if (!directory || !file)
		return error_oom(err);
	if (!S_ISDIR(st.st_mode)) {
		char *slash = strrchr(directory, '/');

		if (slash)
			*slash = 0;
		else
			strcpy(directory, ".");
	} else if (!file_exists(file)) {
		return error_set(err, -ENOENT,
		                 "%s: no tokenizer.json there; name a directory that has one (in a run file: "
		                 "model.tokenizer)",
		                 path);
	}
	if ((r = file_read(file, 0, &json, &len, err)) < 0 ||
	    (r = parse_text(json, len, file, &t, err)) < 0 ||
	    (r = tokenizer_read_config(t, *directory ? directory : "/", err)) < 0)
		return r;
	*out = steal_pointer(t);
	return 0;
}

void tokenizer_free(struct tokenizer *t)
{
	if (!t)
		return;
	added_release(&t->added);
	bpe_release(&t->bpe);
	vocab_release(&t->vocab);
	step_list_release(&t->normalizer);
	step_list_release(&t->pretokenizer);
	decoder_release(&t->decoder);
	token_list_free(&t->before);
	token_list_free(&t->after);
	free(t->added_by_id);
	free(t->chat_template);
	free(t->where);
	free(t);
}
