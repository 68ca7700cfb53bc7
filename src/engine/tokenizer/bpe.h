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
	bool raw;         /* pieces of bytes may be looked up as they are, unmapped */
	bool cut_at_mark; /* no merge crosses from something into U+2581: words can be merged apart */
	uint8_t *whole;   /* [vocab.size] the text of this token encodes to just this token */
};

/* Scratch of one call. */
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
/* Appends the ids of one piece; raw: it is bytes that the byte-level alphabet would stand for. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, bool raw,
               struct token_list *out);
