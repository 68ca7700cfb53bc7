/* SPDX-License-Identifier: Apache-2.0 */
/* The result of training, which write.c writes to files. */
#pragma once

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"

struct trained_token {
	size_t off, len; /* raw bytes in the pool */
	bool special;
	int32_t id; /* of a special token */
};

struct trained_merge {
	int32_t left, right; /* ids */
};

/* The special tokens have the first ids, from 0; tokens[i], the 256 bytes and then the merges, has id first +
 * i. */
struct trained {
	int32_t first;
	char alphabet[256];
	struct strbuf pool;
	struct trained_token *tokens;
	size_t n;
	struct trained_merge *merges;
	size_t merges_n, merges_cap;
};

/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json; makes the directory if needed. */
int tokenizer_write_trained(const struct trained *t, const struct tokenizer_train_options *options,
                            const char *directory, struct error *err);
