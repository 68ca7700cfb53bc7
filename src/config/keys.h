/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration as data: a table of keys says name, type, default, range and meaning of every field of a
 * plain struct; reading libconfig text, command-line overrides and JSON, writing JSON, and freeing all go by
 * that table. Every error names the place ("file:line", "--set", a JSON name), the key, what is wrong and
 * what would be right.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum key_type {
	KEY_STRING,   /* char * */
	KEY_CHOICE,   /* char *, one of `choices` */
	KEY_INT,      /* int64_t */
	KEY_COUNT,    /* int64_t: an integer from 1, or "all", which is 0 */
	KEY_RANGE,    /* struct key_range: an integer, or two of them, "2..4" */
	KEY_DURATION, /* int64_t, seconds: an integer, or "90s", "15m", "1h30m", "2d" */
	KEY_NUMBER,   /* double; integers are fine in the source */
	KEY_BOOL,     /* bool */
	KEY_LIST,     /* char **, NULL-terminated: a string or a list of strings in the source */
	KEY_TEXTS,    /* the same, where an override keeps the blanks around the items, which may matter */
	KEY_GROUP,    /* char *: a group of strings, kept as JSON text */
};

struct key_range {
	int64_t low, high; /* the same: one number */
};

struct key {
	const char *section; /* NULL: top level */
	const char *name;
	enum key_type type;
	size_t offset;
	const char *fallback; /* as an override would spell it; NULL: absent (strings), 0, false */
	double min, max;      /* of numbers; both 0: any */
	const char *choices;  /* KEY_CHOICE: "a|b|c" */
	const char *help;     /* one line for the man page */
};

/* A name that other programs have for a key, without a group unless that is needed to know it, and what the
 * key is here: its dotted name, maybe with its value; NULL: nothing corresponds to it. */
struct key_name {
	const char *name, *here;
};

/* A table with the struct it describes. `seen` in the calls below is an array of `count` flags, set for each
 * key that the source gave (NULL: not asked for). */
struct keys {
	const struct key *list;
	size_t count;
	const struct key_name *other_names; /* ends with a name that is NULL; NULL: none */
};

int keys_set_defaults(const struct keys *keys, void *target, struct error *err);
/* libconfig text. `where` is the file's name in errors. */
int keys_read_text(const struct keys *keys, void *target, const char *text, const char *where, bool *seen,
                   struct error *err);
/* One "section.name=value"; lists are comma-separated. */
int keys_override(const struct keys *keys, void *target, const char *assignment, bool *seen,
                  struct error *err);
int keys_from_json(const struct keys *keys, void *target, const json_t *json, const char *where, bool *seen,
                   struct error *err);
/* Removes from such JSON what the table does not know: how many, and (size above 0) the first name into
 * buf. */
size_t keys_drop_unknown(const struct keys *keys, json_t *json, char *buf, size_t size);
/* Absent strings and lists are left out. */
int keys_to_json(const struct keys *keys, const void *target, json_t **out, struct error *err);
void keys_free(const struct keys *keys, void *target); /* the strings and lists, not target itself */

/* The flag in `seen` of a key by its dotted name; false for an unknown one. */
bool keys_seen(const struct keys *keys, const bool *seen, const char *dotted);
/* The known key, or section where `dotted` has no dot, nearest to `dotted` (Levenshtein distance at most a
 * third of it), or NULL. */
const char *keys_nearest(const struct keys *keys, const char *dotted, char *buf, size_t size);
