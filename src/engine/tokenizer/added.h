/* SPDX-License-Identifier: Apache-2.0 */
/* Added tokens: those that are found in the text before the model sees it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/steps.h"
#include "engine/tokenizer/vocab.h"

struct added_token {
	int32_t id;
	char *content; /* as written */
	size_t len;
	char *normal; /* the text that is searched for: normalized if `normalized` is set */
	size_t normal_len;
	bool single_word, lstrip, rstrip, normalized, special;
};

/* A trie of patterns over bytes; the children of a node are a list of siblings. */
struct trie {
	struct trie_node {
		uint32_t child, sibling; /* 0: none */
		int32_t token;           /* index of the added token that ends here, or -1 */
		uint8_t byte;
	} * nodes;
	size_t n, cap;
	uint32_t first[256]; /* nodes of the first byte */
};

struct added {
	struct added_token *v;
	size_t n;
	struct trie plain, normal; /* searched for in the text as it is, and in the normalized text */
	struct strmap by_content;
};

int added_parse(struct added *a, const json_t *array, const struct vocab *v,
                const struct step_list *normalizer, const struct unicode *u, const char *where,
                struct error *err);
void added_release(struct added *a);
int32_t added_find(const struct added *a, const char *s, size_t len); /* index or -1 */
/* Finds the next token at or after *pos, and returns its index and the span that it takes, or -1. *pos moves
 * past it; `taken` is the end of what earlier matches took. */
int added_next(const struct added *a, const struct trie *t, const struct unicode *u, const char *text,
               size_t len, size_t *pos, size_t taken, size_t *start, size_t *end);
