/* SPDX-License-Identifier: Apache-2.0 */
/* Between keys.c and the sources of values (libconfig, JSON): a value on its way into a field. */
#pragma once

#include "base/str.h"
#include "config/keys.h"

#define NAME_MAX_LEN 128
#define COUNT_ALL    "all" /* of a KEY_COUNT */

/* A value on its way from a source to its field. */
struct value {
	enum { VALUE_INT, VALUE_NUMBER, VALUE_BOOL, VALUE_STRING, VALUE_LIST, VALUE_GROUP } kind;
	int64_t i;
	double d;
	bool b;
	const char *s; /* VALUE_GROUP: the JSON text */
	char **list;   /* borrowed */
};

extern const char *const keys_type_words[]; /* by enum key_type: "a string", "a number" … */

/* "section.name" into buf, returned. */
const char *keys_name(const struct key *k, char *buf, size_t size);
const struct key *keys_find(const struct keys *keys, const char *section, const char *name);
bool keys_is_section(const struct keys *keys, const char *name);
int keys_unknown(const struct keys *keys, const char *where, const char *dotted, struct error *err);
/* The one place where a value is checked and becomes a field; notes it in seen. */
int keys_assign(const struct keys *keys, const struct key *k, void *target, const struct value *v,
                const char *where, bool *seen, struct error *err);

/* keys_quantities.c: -EINVAL where the text is no such value, -ERANGE where no 64 bits hold it. */
int keys_parse_duration(const char *text, int64_t *seconds);
int keys_parse_range(const char *text, struct key_range *range);

/* keys_integers.c: libconfig text in which every integer that needs more than 32 bits is written with an L.
 * Owned by the caller. An error for one that needs more than 64. */
int keys_widen_integers(const char *text, const char *where, char **out, struct error *err);
/* Past a comment, a string or white space at p; else p. */
const char *keys_skip_blank(const char *p);
const char *keys_skip_name(const char *p); /* past a setting's name, or p */

/* keys_text.c: libconfig text with the files that it includes, and where each of its lines is from. */
struct keys_line {
	size_t file; /* index */
	unsigned line;
};
struct keys_text {
	struct strbuf text;
	char **files;
	struct keys_line *lines;
	size_t file_count, line_count, line_cap;
};

/* Into *out, which is {0}; to be released in any case. */
int keys_text_read(struct keys_text *out, const char *text, const char *where, struct error *err);
void keys_text_release(struct keys_text *text);
/* "file:line" of a line of the whole text, into buf, returned. */
const char *keys_text_where(const struct keys_text *text, unsigned line, char *buf, size_t size);
/* What libconfig refused, `words` at `line`, in words of ours. Returns -EINVAL. */
int keys_text_error(const struct keys_text *text, const char *words, unsigned line, struct error *err);
