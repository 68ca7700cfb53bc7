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

/* gemma 3's tokenizer has a token for images, of which its text models have no embedding. */
int tokenizer_limit(struct tokenizer *t, const char *path, int64_t vocab_size, struct error *err)
{
	if (t->size <= vocab_size)
		return 0;
	if (t->vocab.size > vocab_size || t->bos >= vocab_size || t->eos >= vocab_size)
		return error_set(
		    err, -EINVAL,
		    "the tokenizer in %s has ids up to %d, but the model's vocab_size is %" PRId64
		    "; expected a vocab_size of at least %d",
		    path, t->size - 1, vocab_size, t->size);
	t->limit = (int32_t)vocab_size;
	t->hash = tokenizer_hash_bytes(&t->limit, sizeof(t->limit), t->hash);
	if (t->pad >= t->limit)
		t->pad = -1;
	return 0;
}

int32_t tokenizer_token_to_id(const struct tokenizer *t, const char *token)
{
	int32_t at = added_find(&t->added, token, strlen(token));
	int32_t id = at >= 0 ? t->added.v[at].id : vocab_find(&t->vocab, token, strlen(token));

	return id < t->limit ? id : -1;
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

int tokenizer_compare(const struct tokenizer *t, const struct tokenizer *other, int32_t *added,
                      struct error *err)
{
	*added = -1;
	for (int32_t id = 0; id < MIN(t->size, other->size); id++) {
		const char *a = tokenizer_id_to_token(t, id), *b = tokenizer_id_to_token(other, id);

		if (!a || !b || strcmp(a, b) == 0)
			continue;
		if (!t->added_by_id[id] && !other->added_by_id[id])
			return error_set(err, -EINVAL,
			                 "the id %d is \"%s\" there, and \"%s\" in the tokenizer of the run; "
			                 "the same tokenizer is needed",
			                 id, b, a);
		if (*added < 0)
			*added = id;
	}
	return 0;
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
