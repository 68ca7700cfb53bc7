/* SPDX-License-Identifier: Apache-2.0 */
/* What a loaded tokenizer is asked for: ids of tokens, tokens of ids, special tokens, and whether a model has
 * them all. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "engine/tokenizer/parts.h"

int32_t tokenizer_vocab_size(const struct tokenizer *t)
{
	return t->size;
}

int tokenizer_fits(const struct tokenizer *t, const char *path, int64_t vocab_size, struct error *err)
{
	if (t->size <= vocab_size)
		return 0;
	return error_set(err, -EINVAL,
	                 "the tokenizer in %s has ids up to %d, but the model's vocab_size is %" PRId64
	                 "; expected a vocab_size of at least %d",
	                 path, t->size - 1, vocab_size, t->size);
}

int32_t tokenizer_token_to_id(const struct tokenizer *t, const char *token)
{
	int32_t at = added_find(&t->added, token, strlen(token));

	return at >= 0 ? t->added.v[at].id : vocab_find(&t->vocab, token, strlen(token));
}

const char *tokenizer_id_to_token(const struct tokenizer *t, int32_t id)
{
	if (id < 0 || id >= t->size)
		return NULL;
	if (t->added_by_id[id])
		return t->added_by_id[id]->content;
	if (id >= t->vocab.size || t->vocab.token[id].len == UINT32_MAX)
		return NULL;
	return t->vocab.pool.data + t->vocab.token[id].off;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
	return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
	return t->eos;
}

int32_t tokenizer_pad(const struct tokenizer *t)
{
	return t->pad;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
	return t->adds_bos;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
	return t->chat_template;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
	return t->hash;
}
