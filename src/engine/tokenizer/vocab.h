/* SPDX-License-Identifier: Apache-2.0 */
/* The strings of a vocabulary: ids by string and strings by id. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

/* String -> id, open addressing; the strings lie in a pool that the caller keeps. */
struct strmap {
	struct strmap_slot {
		uint32_t hash;
		int32_t id; /* TOKEN_NONE: empty */
	} * slots;
	uint32_t mask;
};

struct token_span {
	uint32_t off, len; /* len UINT32_MAX: no such token */
};

struct vocab {
	int32_t size;             /* highest id + 1 of the model */
	struct strbuf pool;       /* strings of all tokens, each NUL-terminated */
	struct token_span *token; /* [size] as in the file */
	struct strbuf raw_pool;
	struct token_span *raw; /* [size] the bytes that a byte-level token stands for */
	struct strmap by_string, by_raw;
};

uint64_t tokenizer_hash_bytes(const void *data, size_t len, uint64_t seed);
int vocab_parse(struct vocab *v, const json_t *object, const char *where, struct error *err);
void vocab_release(struct vocab *v);
int32_t vocab_find(const struct vocab *v, const char *s, size_t len);
int32_t vocab_find_raw(const struct vocab *v, const char *s, size_t len);

int strmap_init(struct strmap *m, size_t entries);
