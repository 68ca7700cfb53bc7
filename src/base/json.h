/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers over jansson: reading with words for a person, and references freed by scope. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

/* json_decrefp comes with jansson. */
#define _cleanup_json_ _cleanup_(json_decrefp)

/* Parses text; `where` names it in the error: "where:line: what". Duplicate keys: the last one wins. */
int json_parse(const char *text, size_t len, const char *where, json_t **out, struct error *err);
int json_read_file(const char *path, json_t **out, struct error *err);
/* The same of what Python may write: NaN, Infinity and -Infinity, which JSON lacks, each become {"__float__":
 * "NaN"}, which is what transformers 5 writes and reads in their place. */
int json_parse_python(const char *text, size_t len, const char *where, json_t **out, struct error *err);
int json_read_python(const char *path, json_t **out, struct error *err);
/* indent 0: one compact line. The file ends with a newline. Reals have the fewest digits that read back as
 * the same number, as Python writes them. */
int json_write_file(const char *path, const json_t *value, int indent, bool sort_keys, struct error *err);
/* Owned by the caller; NULL: out of memory, or value is NULL. Reals as above. */
char *json_to_string(const json_t *value); /* compact */
char *json_to_text(const json_t *value, int indent);
/* The fewest digits that read back as v: "0.1", "1e-05", "10000.0"; NaN and infinities, which JSON lacks, as
 * "null". Into buf (at least 32 bytes), returned. */
const char *json_real_text(char *buf, size_t size, double v);

/* A member with a default where it is absent or null; a wrong type also gives the default. */
const char *json_get_string(const json_t *object, const char *key, const char *fallback);
int64_t json_get_int(const json_t *object, const char *key, int64_t fallback);
double json_get_number(const json_t *object, const char *key, double fallback); /* integers too */
bool json_get_bool(const json_t *object, const char *key, bool fallback);

/* A member that has to be there with that type: -EINVAL and "where: key: …" otherwise. */
int json_need_string(const json_t *object, const char *key, const char *where, const char **out,
                     struct error *err);
int json_need_int(const json_t *object, const char *key, const char *where, int64_t min, int64_t max,
                  int64_t *out, struct error *err);
