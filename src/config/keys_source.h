/* SPDX-License-Identifier: Apache-2.0 */
/* Between keys.c and the sources of values (libconfig, JSON): a value on its way into a field. */
#pragma once

#include "config/keys.h"

#define NAME_MAX_LEN 128

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
