/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer hands to the writer of the files. */
#pragma once

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"

struct trained_token {
	size_t off, len; /* raw bytes in the pool */
	bool special;
	int32_t id; /* of a special one */
};

struct trained_merge {
	int32_t left, right; /* ids */
};

/* Ids: the special tokens from 0, then tokens[i] has first + i: 256 bytes, and what was merged. */
struct trained {
	int32_t first;
	char alphabet[256];
	struct strbuf pool;
	struct trained_token *tokens;
	size_t n;
	struct trained_merge *merges;
	size_t merges_n, merges_cap;
};

/* tokenizer.json, tokenizer_config.json and special_tokens_map.json into the directory, made where needed. */
int tokenizer_write_trained(const struct trained *t, const struct tokenizer_train_options *options,
                            const char *directory, struct error *err);
