/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face tokenizers (tokenizer.json) in C: byte-level BPE (Sennrich et al. 2016; Radford et al. 2019)
 * and SentencePiece-style BPE with byte fallback; ids equal those of Hugging Face's tokenizers library. A
 * tokenizer is immutable after loading and may be used by several threads at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct tokenizer;

/* path: a directory with tokenizer.json (and tokenizer_config.json, special_tokens_map.json where there), or
 * the tokenizer.json itself. */
int tokenizer_load(const char *path, struct tokenizer **out, struct error *err);
/* Loads a tokenizer.json from memory, for the fuzz target; `where` names it in errors. */
int tokenizer_parse(const char *json, size_t len, const char *where, struct tokenizer **out,
                    struct error *err);
void tokenizer_free(struct tokenizer *tok);
DEFINE_CLEANUP(struct tokenizer *, tokenizer_free)

/* A growing list of ids; {0} is empty. */
struct token_list {
	int32_t *ids;
	size_t len, cap;
};
int token_list_add(struct token_list *list, const int32_t *ids, size_t n); /* 0 or -ENOMEM */
void token_list_free(struct token_list *list);
static inline bool token_list_has(const struct token_list *list, int32_t id)
{
	for (size_t i = 0; i < list->len; i++)
		if (list->ids[i] == id)
			return true;
	return false;
}

/* Appends the ids of text (UTF-8; invalid bytes as U+FFFD, as Python's decode with errors="replace") to out.
 * add_special: run the post-processor (bos, eos as tokenizer.json says). Special tokens written out in the
 * text are recognised either way, as Hugging Face does. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len, bool add_special,
                     struct token_list *out, struct error *err);
/* Returns the text of ids, NUL-terminated; the caller frees it. Ids out of range are an error. */
int tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *len, struct error *err);

int32_t tokenizer_vocab_size(const struct tokenizer *tok); /* highest id + 1, added tokens included */
/* For a model of this vocab_size: added tokens of which it has no embedding are refused where a text has
 * them, and none of them is the padding. -EINVAL: the tokenizer, read from path, has other tokens than such
 * beyond it. */
int tokenizer_limit(struct tokenizer *tok, const char *path, int64_t vocab_size, struct error *err);
int32_t tokenizer_token_to_id(const struct tokenizer *tok, const char *token); /* -1: none */
/* The string as the vocabulary has it; NULL where there is no such token. */
const char *tokenizer_id_to_token(const struct tokenizer *tok, int32_t id);
/* Whether an id that both have is the same token in both. -EINVAL: a token of the vocabulary is not, and the
 * message names it. *added: the first added token that is not, which may be one that nothing uses; -1: none.
 */
int tokenizer_compare(const struct tokenizer *tok, const struct tokenizer *other, int32_t *added,
                      struct error *err);
/* The special tokens that tokenizer_config.json or special_tokens_map.json names, else those with the usual
 * names; -1 where there is none. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_pad(const struct tokenizer *tok);
/* Whether add_bos_token is set, or the post-processor puts a bos first. */
bool tokenizer_adds_bos(const struct tokenizer *tok);
const char *tokenizer_chat_template(const struct tokenizer *tok); /* Jinja source, NULL: none */
/* A stable 64-bit hash of everything that decides ids: keys the cache of tokenized data. */
uint64_t tokenizer_hash(const struct tokenizer *tok);

/* Trains a byte-level BPE on texts (GPT-2's or llama3's pre-tokenizer) and writes a Hugging Face directory:
 * tokenizer.json, tokenizer_config.json, special_tokens_map.json, loadable by transformers.AutoTokenizer. */
struct tokenizer_train_options {
	int32_t vocab_size;                /* specials and the 256 bytes included */
	const char *const *special_tokens; /* NULL-terminated; get the first ids, in order */
	const char *bos, *eos, *pad;       /* among the special tokens, or NULL */
	const char *chat_template;         /* Jinja source or NULL */
	int64_t min_frequency;
	/* Called with the number of tokens so far, and vocab_size. The last call has the final number, which
	 * is less than vocab_size where the texts have no more pairs to merge. */
	void (*progress)(void *context, int64_t done, int64_t total);
	void *progress_context;
};
/* next returns 1 with a text, 0 at the end, or a negative errno; the text stays valid until the next call. */
typedef int (*tokenizer_text_fn)(void *context, const char **text, size_t *len, struct error *err);
int tokenizer_train(const struct tokenizer_train_options *options, tokenizer_text_fn next, void *context,
                    const char *directory, struct error *err);
