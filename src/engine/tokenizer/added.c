/* SPDX-License-Identifier: Apache-2.0 */
/* Finds added tokens in a text before the model encodes it: the leftmost first, and of
 * several the longest. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "engine/tokenizer/added.h"
#include "engine/tokenizer/internal.h"

static uint32_t new_node(struct trie *t, uint8_t byte)
{
	if (!t->n)
		t->n = 1; /* 0 means none */
	if (tokenizer_grow(&t->nodes, &t->cap, t->n + 1, sizeof(*t->nodes)) < 0)
		return 0;
	t->nodes[t->n] = (struct trie_node){.token = -1, .byte = byte};
	return (uint32_t)t->n++;
}

static int trie_put(struct trie *t, const char *s, size_t len, int32_t token)
{
	uint32_t at = t->first[(uint8_t)s[0]];

	if (!at) {
		at = new_node(t, (uint8_t)s[0]);
		if (!at)
			return -ENOMEM;
		t->first[(uint8_t)s[0]] = at;
	}
	for (size_t i = 1; i < len; i++) {
		uint8_t byte = (uint8_t)s[i];
		uint32_t child = t->nodes[at].child;

		while (child && t->nodes[child].byte != byte)
			child = t->nodes[child].sibling;
		if (!child) {
			child = new_node(t, byte);
			if (!child)
				return -ENOMEM;
			t->nodes[child].sibling = t->nodes[at].child;
			t->nodes[at].child = child;
		}
		at = child;
	}
	if (t->nodes[at].token < 0)
		t->nodes[at].token = token;
	return 0;
}

/* Returns the token of the longest pattern with which the text begins, or -1. */
static int32_t trie_longest(const struct trie *t, const char *text, size_t len, size_t *length)
{
	uint32_t at = t->first[(uint8_t)text[0]];
	int32_t found = -1;

	for (size_t i = 0; at;) {
		if (t->nodes[at].token >= 0) {
			found = t->nodes[at].token;
			*length = i + 1;
		}
		if (++i >= len)
			break;
		at = t->nodes[at].child;
		while (at && t->nodes[at].byte != (uint8_t)text[i])
			at = t->nodes[at].sibling;
	}
	return found;
}

int added_next(const struct added *a, const struct trie *t, const struct unicode *u, const char *text,
               size_t len, size_t *pos, size_t taken, size_t *start, size_t *end)
{
	for (size_t i = *pos; i < len; i++) {
		const struct added_token *tok;
		size_t n = 0;
		unsigned c;
		int32_t found;

		if (!t->first[(uint8_t)text[i]] || (found = trie_longest(t, text + i, len - i, &n)) < 0)
			continue;
		tok = &a->v[found];
		*start = i;
		*end = *pos = i + n;
		i = *end - 1;
		if (tok->single_word &&
		    ((*start > 0 &&
		      (utf8_class(u, text + *start - utf8_back(text, text + *start), &c) & U_WORD)) ||
		     (*end < len && (utf8_class(u, text + *end, &c) & U_WORD))))
			continue;
		if (tok->lstrip) {
			while (*start > taken) {
				unsigned back = utf8_back(text, text + *start);

				if (!(utf8_class(u, text + *start - back, &c) & U_SPACE))
					break;
				*start -= back;
			}
			/* White space that an earlier token has taken on its right is not taken again, and a
			 * token that is nothing but such is dropped. */
			*start = MAX(*start, taken);
			if (*start >= *end)
				continue;
		}
		if (tok->rstrip)
			while (*end < len && (utf8_class(u, text + *end, &c) & U_SPACE))
				*end += c;
		return found;
	}
	*pos = len;
	return -1;
}

int32_t added_find(const struct added *a, const char *s, size_t len)
{
	uint32_t h = (uint32_t)tokenizer_hash_bytes(s, len, 0);

	if (!a->n)
		return -1;
	for (uint32_t i = h & a->by_content.mask;; i = (i + 1) & a->by_content.mask) {
		int32_t at = a->by_content.slots[i].id;

		if (at == TOKEN_NONE)
			return -1;
		if (a->by_content.slots[i].hash == h && a->v[at].len == len &&
		    !memcmp(a->v[at].content, s, len))
			return at;
	}
}

static void map_added(struct added *a, int32_t at)
{
	uint32_t h = (uint32_t)tokenizer_hash_bytes(a->v[at].content, a->v[at].len, 0),
	         i = h & a->by_content.mask;

	while (a->by_content.slots[i].id != TOKEN_NONE)
		i = (i + 1) & a->by_content.mask;
	a->by_content.slots[i] = (struct strmap_slot){h, at};
}

static int normal_form(struct added_token *t, const struct step_list *normalizer, const struct unicode *u,
                       struct match_scratch *scratch, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	int r;

	strbuf_add(&text, t->content, t->len);
	if (text.failed)
		return error_oom(err);
	if (t->normalized) {
		r = normalizer_apply(normalizer, u, scratch, &text, err);
		if (r < 0)
			return r;
	}
	t->normal_len = text.len;
	t->normal = strbuf_steal(&text);
	return t->normal ? 0 : error_oom(err);
}

/*
 * Hugging Face gives added tokens their ids itself and ignores those of the file: a token that is in the
 * vocabulary keeps its id, the others follow the vocabulary in order. A file with other ids is refused.
 */
static int check_id(const struct added *a, const struct vocab *v, const struct added_token *t, int32_t next,
                    const char *where, struct error *err)
{
	int32_t id = vocab_find(v, t->content, t->len);

	if (id < 0)
		id = next;
	if (id != t->id)
		return error_set(err, -EINVAL,
		                 "%s: added_tokens[%zu]: \"%.100s\" has the id %d; by the vocabulary and the "
		                 "added tokens before it, it is %d",
		                 where, a->n, t->content, t->id, id);
	return 0;
}

static int parse_one(struct added *a, const json_t *json, const struct vocab *v, int32_t *next,
                     const char *where, struct error *err)
{
	struct added_token *t = &a->v[a->n];
	const json_t *id = json_object_get(json, "id"), *content = json_object_get(json, "content");
	int r;

	if (!json_is_integer(id) || !json_is_string(content) || json_integer_value(id) < 0 ||
	    json_integer_value(id) > INT32_MAX / 2)
		return error_set(
		    err, -EINVAL,
		    "%s: added_tokens[%zu]: an object with \"id\" (from 0 on) and \"content\" is needed",
		    where, a->n);
	if (!json_string_length(content) ||
	    added_find(a, json_string_value(content), json_string_length(content)) >= 0)
		return 0; /* empty and repeated tokens are ignored */
	*t = (struct added_token){
	    .id = (int32_t)json_integer_value(id),
	    .len = json_string_length(content),
	    .content = malloc(json_string_length(content) + 1),
	    .single_word = json_get_bool(json, "single_word", false),
	    .lstrip = json_get_bool(json, "lstrip", false),
	    .rstrip = json_get_bool(json, "rstrip", false),
	    .special = json_get_bool(json, "special", false),
	};
	if (!t->content)
		return error_oom(err);
	memcpy(t->content, json_string_value(content), t->len + 1);
	t->normalized = json_get_bool(json, "normalized", !t->special);
	r = check_id(a, v, t, *next, where, err);
	if (r < 0) {
		free(t->content);
		return r;
	}
	if (t->id == *next)
		(*next)++;
	map_added(a, (int32_t)a->n);
	a->n++;
	return 0;
}

int added_parse(struct added *a, const json_t *array, const struct vocab *v,
                const struct step_list *normalizer, const struct unicode *u, const char *where,
                struct error *err)
{
	struct match_scratch scratch = {0};
	int32_t next = 0;
	int r = 0;

	if (!array || json_is_null(array))
		return 0;
	if (!json_is_array(array))
		return error_set(err, -EINVAL, "%s: added_tokens: not an array", where);
	a->v = calloc(json_array_size(array) + 1, sizeof(*a->v));
	if (!a->v || strmap_init(&a->by_content, json_array_size(array)) < 0)
		return error_oom(err);
	/* The next id is the number of tokens, as in Hugging Face. */
	for (int32_t i = 0; i < v->size; i++)
		next += v->token[i].len != UINT32_MAX;
	for (size_t i = 0; i < json_array_size(array); i++) {
		r = parse_one(a, json_array_get(array, i), v, &next, where, err);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < a->n && r == 0; i++) {
		struct added_token *t = &a->v[i];

		r = normal_form(t, normalizer, u, &scratch, err);
		if (r == 0 && t->normal_len &&
		    trie_put(t->normalized ? &a->normal : &a->plain, t->normal, t->normal_len, (int32_t)i) <
		        0)
			r = error_oom(err);
	}
	match_scratch_release(&scratch);
	return r;
}

void added_release(struct added *a)
{
	for (size_t i = 0; a->v && i < a->n; i++) {
		free(a->v[i].content);
		free(a->v[i].normal);
	}
	free(a->v);
	free(a->plain.nodes);
	free(a->normal.nodes);
	free(a->by_content.slots);
}
