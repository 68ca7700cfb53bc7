/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the normalizer and the pre-tokenizer of a tokenizer.json into flat lists of steps. The members of a
 * Sequence become members of the list, and a compound such as ByteLevel becomes the steps that it consists
 * of. */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/steps.h"

#define SEQUENCE_DEPTH 16

static struct step *add_step(struct step_list *list, enum step_kind kind)
{
	if (tokenizer_grow(&list->v, &list->cap, list->n + 1, sizeof(*list->v)) < 0)
		return NULL;
	list->v[list->n] = (struct step){.kind = kind};
	return &list->v[list->n++];
}

void step_list_release(struct step_list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		matcher_release(&list->v[i].matcher);
		free(list->v[i].text);
	}
	free(list->v);
}

static int copy_text(const json_t *value, char **text, size_t *len)
{
	*len = json_string_length(value);
	*text = malloc(*len + 1);
	if (!*text)
		return -ENOMEM;
	memcpy(*text, json_string_value(value), *len + 1);
	return 0;
}

/* Reads object[key], a string that may contain NUL. */
static int need_text(const json_t *object, const char *key, const char *where, char **text, size_t *len,
                     struct error *err)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_string(v))
		return error_set(err, -EINVAL, "%s: %s: %s; a string is needed", where, key,
		                 v ? "not a string" : "missing");
	return copy_text(v, text, len) < 0 ? error_oom(err) : 0;
}

int pattern_parse(struct matcher *m, const json_t *object, const char *where, struct error *err)
{
	const json_t *regex = json_object_get(object, "Regex"), *text = json_object_get(object, "String");

	if (json_is_string(regex))
		return matcher_regex(m, json_string_value(regex), json_string_length(regex), where, err);
	if (!json_is_string(text) || !json_string_length(text))
		return error_set(err, -EINVAL,
		                 "%s: pattern: {\"String\": …} or {\"Regex\": …}, not empty, is needed",
		                 where);
	return matcher_literal(m, json_string_value(text), json_string_length(text)) < 0 ? error_oom(err) : 0;
}

/* ---- normalizers ---- */

static int parse_prepend(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_step(list, STEP_PREPEND);

	return s ? need_text(json, "prepend", where, &s->text, &s->len, err) : error_oom(err);
}

static int parse_replace(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_step(list, STEP_REPLACE);
	int r;

	if (!s)
		return error_oom(err);
	r = pattern_parse(&s->matcher, json_object_get(json, "pattern"), where, err);
	return r < 0 ? r : need_text(json, "content", where, &s->text, &s->len, err);
}

static int parse_strip(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_step(list, STEP_STRIP);

	if (!s)
		return error_oom(err);
	s->left = json_get_bool(json, "strip_left", true);
	s->right = json_get_bool(json, "strip_right", true);
	return 0;
}

/* ---- pre-tokenizers ---- */

static struct step *add_split(struct step_list *list, enum match_kind kind, uint8_t classes,
                              enum split_behaviour behaviour)
{
	struct step *s = add_step(list, STEP_SPLIT);

	if (!s)
		return NULL;
	s->matcher.kind = kind;
	s->matcher.classes = classes;
	s->behaviour = behaviour;
	return s;
}

static int parse_bytelevel(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	if (json_get_bool(json, "add_prefix_space", true) && !add_step(list, STEP_PREFIX_SPACE))
		return error_oom(err);
	if (json_get_bool(json, "use_regex", true) && !add_split(list, MATCH_GPT2, 0, SPLIT_ISOLATED))
		return error_oom(err);
	return add_step(list, STEP_BYTES) ? 0 : error_oom(err);
}

static const char *const behaviours[] = {
    [SPLIT_REMOVED] = "Removed",
    [SPLIT_ISOLATED] = "Isolated",
    [SPLIT_PREVIOUS] = "MergedWithPrevious",
    [SPLIT_NEXT] = "MergedWithNext",
    [SPLIT_CONTIGUOUS] = "Contiguous",
};

static int parse_behaviour(const json_t *json, const char *where, const char *fallback,
                           enum split_behaviour *out, struct error *err)
{
	const char *s = json_get_string(json, "behavior", fallback);

	for (size_t i = 0; s && i < ARRAY_SIZE(behaviours); i++)
		if (!strcasecmp(s, behaviours[i])) {
			*out = (enum split_behaviour)i;
			return 0;
		}
	return error_set(
	    err, -EINVAL,
	    "%s: behavior: Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous is "
	    "needed",
	    where);
}

static int parse_split(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_step(list, STEP_SPLIT);
	int r;

	if (!s)
		return error_oom(err);
	s->invert = json_get_bool(json, "invert", false);
	r = parse_behaviour(json, where, NULL, &s->behaviour, err);
	return r < 0 ? r : pattern_parse(&s->matcher, json_object_get(json, "pattern"), where, err);
}

static int parse_scheme(const json_t *json, const char *where, enum prepend_scheme *out, struct error *err)
{
	static const char *const names[] = {"always", "first", "never"};
	const char *s = json_get_string(json, "prepend_scheme", "always");
	bool known = false;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_eq(s, names[i])) {
			*out = (enum prepend_scheme)i;
			known = true;
		}
	if (!known)
		return error_set(err, -EINVAL, "%s: prepend_scheme: always, first or never is needed", where);
	/* Older files have this key in place of prepend_scheme. */
	if (!json_get_bool(json, "add_prefix_space", true))
		*out = PREPEND_NEVER;
	return 0;
}

/* The replacement has to be one character. */
static int parse_replacement(const json_t *json, const char *where, char **text, size_t *len,
                             struct error *err)
{
	uint32_t cp;
	int r = need_text(json, "replacement", where, text, len, err);

	if (r < 0)
		return r;
	if (!*len || utf8_get(*text, &cp) != *len)
		return error_set(err, -EINVAL, "%s: replacement: a single character is needed", where);
	return 0;
}

static int parse_metaspace(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_step(list, STEP_METASPACE);
	int r;

	if (!s)
		return error_oom(err);
	if ((r = parse_replacement(json, where, &s->text, &s->len, err)) < 0 ||
	    (r = parse_scheme(json, where, &s->scheme, err)) < 0 || !json_get_bool(json, "split", true))
		return r;
	s = add_split(list, MATCH_LITERAL, 0, SPLIT_NEXT);
	if (!s || matcher_literal(&s->matcher, s[-1].text, s[-1].len) < 0)
		return error_oom(err);
	return 0;
}

static int parse_whitespace(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_split(list, MATCH_WORDS, 0, SPLIT_REMOVED);

	if (!s)
		return error_oom(err);
	s->invert = true;
	return 0;
}

static int parse_whitespace_split(struct step_list *list, const json_t *json, const char *where,
                                  struct error *err)
{
	return add_split(list, MATCH_CLASS, U_SPACE, SPLIT_REMOVED) ? 0 : error_oom(err);
}

static int parse_digits(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	bool each = json_get_bool(json, "individual_digits", false);

	return add_split(list, MATCH_CLASS, U_NUMBER, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS)
	           ? 0
	           : error_oom(err);
}

static int parse_punctuation(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_split(list, MATCH_CLASS, U_PUNCT, SPLIT_ISOLATED);

	if (!s)
		return error_oom(err);
	s->matcher.ascii_punct = true;
	return parse_behaviour(json, where, "Isolated", &s->behaviour, err);
}

static int parse_bert(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	int r = parse_whitespace_split(list, json, where, err);

	return r < 0 ? r : parse_punctuation(list, json, where, err);
}

static int parse_delimiter(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	struct step *s = add_split(list, MATCH_LITERAL, 0, SPLIT_REMOVED);
	const json_t *c = json_object_get(json, "delimiter");

	if (!s)
		return error_oom(err);
	if (!json_is_string(c) || !json_string_length(c))
		return error_set(err, -EINVAL, "%s: delimiter: a character is needed", where);
	return matcher_literal(&s->matcher, json_string_value(c), json_string_length(c)) < 0 ? error_oom(err)
	                                                                                     : 0;
}

/* ---- both ---- */

typedef int (*parse_fn)(struct step_list *list, const json_t *json, const char *where, struct error *err);

struct part {
	const char *type;
	parse_fn parse; /* NULL: the step has no options */
	enum step_kind kind;
	int form;
};

static const struct part normalizers[] = {
    {"NFC", NULL, STEP_FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", NULL, STEP_FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", NULL, STEP_FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", NULL, STEP_FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    {"Lowercase", NULL, STEP_LOWERCASE, 0},
    {"Prepend", parse_prepend, 0, 0},
    {"Replace", parse_replace, 0, 0},
    {"Strip", parse_strip, 0, 0},
    {"StripAccents", NULL, STEP_STRIP_ACCENTS, 0},
    {"Nmt", NULL, STEP_NMT, 0},
    {"ByteLevel", NULL, STEP_BYTES, 0},
    {NULL, NULL, 0, 0},
};

static const struct part pretokenizers[] = {
    {"ByteLevel", parse_bytelevel, 0, 0},
    {"Split", parse_split, 0, 0},
    {"Metaspace", parse_metaspace, 0, 0},
    {"Whitespace", parse_whitespace, 0, 0},
    {"WhitespaceSplit", parse_whitespace_split, 0, 0},
    {"Digits", parse_digits, 0, 0},
    {"Punctuation", parse_punctuation, 0, 0},
    {"BertPreTokenizer", parse_bert, 0, 0},
    {"CharDelimiterSplit", parse_delimiter, 0, 0},
    {NULL, NULL, 0, 0},
};

static int parse_part(struct step_list *list, const struct part *parts, const char *members,
                      const json_t *json, const char *where, int depth, struct error *err)
{
	const char *type = json_get_string(json, "type", NULL);
	_cleanup_strbuf_ struct strbuf known = {0};

	if (!json || json_is_null(json))
		return 0;
	if (!type)
		return error_set(err, -EINVAL, "%s: an object with a \"type\" is needed", where);
	if (str_eq(type, "Sequence")) {
		const json_t *array = json_object_get(json, members);

		if (!json_is_array(array))
			return error_set(err, -EINVAL, "%s: %s: an array is needed", where, members);
		if (depth >= SEQUENCE_DEPTH)
			return error_set(err, -EINVAL, "%s: Sequences more than %d deep", where,
			                 SEQUENCE_DEPTH);
		for (size_t i = 0; i < json_array_size(array); i++) {
			int r =
			    parse_part(list, parts, members, json_array_get(array, i), where, depth + 1, err);

			if (r < 0)
				return r;
		}
		return 0;
	}
	for (const struct part *p = parts; p->type; p++) {
		struct step *s;

		if (!str_eq(type, p->type))
			continue;
		if (p->parse)
			return p->parse(list, json, where, err);
		s = add_step(list, p->kind);
		if (!s)
			return error_oom(err);
		s->form = p->form;
		return 0;
	}
	for (const struct part *p = parts; p->type; p++)
		strbuf_addf(&known, "%s, ", p->type);
	return error_set(err, -ENOTSUP, "%s: type \"%.60s\" is not supported; these are: %s%s", where, type,
	                 known.data ? known.data : "", "Sequence");
}

int normalizer_parse(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	return parse_part(list, normalizers, "normalizers", json, where, 0, err);
}

int pretokenizer_parse(struct step_list *list, const json_t *json, const char *where, struct error *err)
{
	return parse_part(list, pretokenizers, "pretokenizers", json, where, 0, err);
}

/* The decoders use it, too. */
int replacement_parse(const json_t *json, const char *where, char **text, size_t *len,
                      enum prepend_scheme *scheme, struct error *err)
{
	int r = parse_replacement(json, where, text, len, err);

	return r < 0 ? r : parse_scheme(json, where, scheme, err);
}

int string_parse(const json_t *object, const char *key, const char *where, char **text, size_t *len,
                 struct error *err)
{
	return need_text(object, key, where, text, len, err);
}
