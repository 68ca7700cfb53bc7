/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON read and written as Python's json does it: what a model has seen, and what LLaMA-Factory writes.
 * Jansson alone refuses a text with an integer above 64 bits; Python keeps it to the last digit.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

struct strbuf;

/* A JSON value of any kind, strings with \u0000 included; NULL with je filled where the text is no JSON, and
 * with je->text empty without memory. An integer above int64 becomes an object that no text can contain:
 * exact_json_integer() knows it. NaN, Infinity and numbers beyond double, which Python's json takes for
 * missing values and infinities, become null. */
json_t *exact_json_load(const char *text, size_t len, json_error_t *je);
/* The same, with an error message: -EBADMSG "where: not valid JSON: …". */
int exact_json_parse(const char *text, size_t len, const char *where, json_t **out, struct error *err);
/* The digits of an integer above int64, sign included; NULL: v is something else. */
const char *exact_json_integer(const json_t *v);
/* Appends value as Python's json.dumps(…, ensure_ascii=False, indent=indent) writes it (indent 0: one
 * line; -1: without spaces, too). */
void exact_json_dump(const json_t *value, int indent, struct strbuf *out);
