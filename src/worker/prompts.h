/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of a file, and where a generated text ends. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct prompts {
	struct prompt {
		char *text;
		json_t *object; /* of a .jsonl: the whole line; else {"prompt": text} */
	} * items;
	size_t n;
};

/* A line each, empty ones left out; or where the name ends with .jsonl, the "prompt" of each line's object.
 * Errors name file and line. */
int prompts_read(const char *path, struct prompts *out, struct error *err);
void prompts_free(struct prompts *p); /* {0}, and after a failure, too */

/* Whether one of the strings (NULL-terminated; NULL: none) occurs in text[from, len); *at: where the first
 * one begins. */
bool stop_find(char *const *strings, const char *text, size_t from, size_t len, size_t *at);
/* How many bytes at the end of text[from, len) may be the beginning of one of the strings. */
size_t stop_pending(char *const *strings, const char *text, size_t from, size_t len);
