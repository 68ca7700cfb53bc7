/* SPDX-License-Identifier: Apache-2.0 */
/* Byte pair encoding of one piece of text, with the merges of a tokenizer.json. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"

struct bpe {
	const struct vocab *vocab;
	struct bpe_pair {
		int32_t left, right; /* left TOKEN_NONE: empty */
		uint32_t rank;
		int32_t id;
	} * pairs;
	uint32_t mask;
	int32_t byte_id[256];     /* raw: the token of a byte */
	int32_t fallback_id[256]; /* <0xNN> */
	int32_t unk;
	bool has_unk, fuse_unk, byte_fallback, ignore_merges;
	char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
	size_t prefix_len, suffix_len;
	bool raw;         /* the vocabulary is known by bytes, too, so that pieces need not be mapped */
	bool cut_at_mark; /* no merge joins another character and U+2581: each word can be merged by itself */
	uint8_t *whole;   /* [vocab.size] whether the text of a token is encoded as that token alone */
};

/* The working memory of one call. */
struct bpe_scratch {
	int32_t *id, *next, *prev;
	uint32_t *rank;
	int32_t *new_id;
	size_t cap;
	uint64_t *heap;
	size_t heap_cap;
	struct strbuf text;
};

int bpe_parse(struct bpe *b, const struct vocab *v, const json_t *model, bool raw, const char *where,
              struct error *err);
void bpe_release(struct bpe *b);
void bpe_scratch_release(struct bpe_scratch *s);
/* Appends the ids of one piece. raw: the piece consists of bytes that were not mapped to the byte-level
 * alphabet. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, bool raw,
               struct token_list *out);
