/* SPDX-License-Identifier: Apache-2.0 */
/* A simple implementation of tokenizer.h, but for token_list.c, which the tests link: the id of a byte is its
 * value + 16; a few special tokens have lower ids. Since every id is readable, tests can write their expected
 * ids as text. */
#pragma once

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"

struct tokenizer {
	const char *chat_template;
	bool adds_bos, no_eos;
	bool space_first; /* each text gets a space in front, as SentencePiece does it */
	uint64_t hash;
};

static const char *const stub_specials[] = {"<|endoftext|>", "<s>",   "</s>",    "<|im_start|>",
                                            "<|im_end|>",    "<sep>", "<think>", "</think>"};

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len, bool add_special,
                     struct token_list *out, struct error *err)
{
	if (tok->space_first && len && token_list_add(out, &(int32_t){16 + ' '}, 1) < 0)
		return error_oom(err);
	for (size_t i = 0; i < len;) {
		int32_t id = 16 + (unsigned char)text[i];
		size_t step = 1;

		for (size_t k = 0; k < ARRAY_SIZE(stub_specials); k++) {
			size_t n = strlen(stub_specials[k]);

			if (len - i >= n && memcmp(text + i, stub_specials[k], n) == 0) {
				id = k;
				step = n;
			}
		}
		if (token_list_add(out, &id, 1) < 0)
			return error_oom(err);
		i += step;
	}
	return 0;
}

int32_t tokenizer_token_to_id(const struct tokenizer *tok, const char *token)
{
	for (size_t k = 0; k < ARRAY_SIZE(stub_specials); k++)
		if (str_eq(stub_specials[k], token) && !(tok->no_eos && k == 0))
			return k;
	return -1;
}

const char *tokenizer_id_to_token(const struct tokenizer *tok, int32_t id)
{
	return id >= 0 && (size_t)id < ARRAY_SIZE(stub_specials) ? stub_specials[id] : NULL;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
	return 1;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
	return tok->no_eos ? -1 : 2;
}

bool tokenizer_adds_bos(const struct tokenizer *tok)
{
	return tok->adds_bos;
}

const char *tokenizer_chat_template(const struct tokenizer *tok)
{
	return tok->chat_template;
}

uint64_t tokenizer_hash(const struct tokenizer *tok)
{
	return tok->hash;
}

/* Ids as text again; "_" for -100. Owned by the caller. */
static inline char *stub_text(const int32_t *ids, size_t n)
{
	struct strbuf b = {0};

	for (size_t i = 0; i < n; i++) {
		if (ids[i] == -100)
			strbuf_addc(&b, '_');
		else if (ids[i] < 16)
			strbuf_adds(&b, stub_specials[ids[i]]);
		else
			strbuf_addc(&b, ids[i] - 16);
	}
	return strbuf_steal(&b);
}
