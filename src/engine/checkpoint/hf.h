/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face directories: reads tensors into named parameters, and writes a model with its config and
 * tokenizer so that transformers can read it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/model_config.h"

struct peft_config;

struct hf_parameter {
	const char *name;
	int dims;
	int64_t shape[TENSOR_MAX_DIMS];
	bool optional;       /* may be absent: hf_load then does not call store for it */
	bool tied_embedding; /* as hf_find_tied takes it */
};

/* Checks that every parameter is there, with its shape and a floating-point type, and that there are no other
 * tensors, except for some that are known to be harmless (the lm_head of a model that ties it, rotary tables
 * of old checkpoints). A head beside the embedding that it is tied to has to have the same values. Otherwise
 * -EINVAL, with the names of the tensors. `where` names the checkpoint. */
int hf_check(const struct safetensors *st, const char *where, const struct hf_parameter *parameters, size_t n,
             struct error *err);
/* Whether these are parameters of a multimodal model's language model: its files may have tensors of other
 * parts. */
bool hf_is_multimodal(const struct hf_parameter *parameters, size_t n);
/* NULL: none. Names are also tried without "model." or "transformer.", which the body of a causal model saved
 * alone lacks, and as multimodal_other_name has them. */
const struct tensor *hf_find(const struct safetensors *st, const char *name);
/* The same. tied_embedding: the name is that of an embedding to which the head is tied, and lm_head.weight is
 * found where the files have that alone. */
const struct tensor *hf_find_tied(const struct safetensors *st, const char *name, bool tied_embedding);

/* Reads t with tensor_convert, in pieces; t is valid during the call only. */
typedef int (*hf_store_fn)(void *context, size_t index, const struct tensor *t, struct error *err);
/* Opens path (as safetensors_open), checks all, then hands each parameter's tensor to store. */
int hf_load(const char *path, const struct hf_parameter *parameters, size_t n, hf_store_fn store,
            void *context, struct error *err);

/* What a saved directory holds besides the weights. Strings are borrowed for the call. */
struct hf_save_options {
	const char *config; /* path of the config.json that the model was made from */
	const char *source; /* directory with a generation_config.json to copy; NULL: one is made */
	/* Directory, or the tokenizer.json in one, to copy the tokenizer's files from; NULL: none. */
	const char *tokenizer;
	const char *chat_template; /* Jinja source, in place of the tokenizer's own; NULL: that stays */
	/* Of an adapter: what is saved is not the model. NULL: it is. */
	const struct peft_config *adapter;
	bool scores;           /* the model ends in a score, whatever config says */
	enum dtype type;       /* of the saved weights */
	int32_t bos, eos, pad; /* the tokenizer's; put into the config where it says nothing; -1: none */
	/* Ids that end an answer of what was trained: generation_config.json names them, too. */
	const int32_t *stops;
	size_t n_stops;
};

/* Writes into `directory`, which exists, what is there besides the weights: config.json with dtype and
 * architectures right, generation_config.json, the tokenizer's files. All synced; published by the caller. */
int hf_save_files(const char *directory, const struct hf_save_options *options, struct error *err);

/* The ids of eos_token_id in a directory's generation_config.json; none where there is no such file. The
 * caller frees *out. */
int hf_read_stops(const char *directory, int32_t **out, size_t *n, struct error *err);
/* Writes a generation_config.json that has these alone, for an adapter, from which a merged model gets them;
 * none where n is 0. */
int hf_save_stops(const char *directory, const int32_t *stops, size_t n, struct error *err);

/* The tokenizer's part of that. tokenizer: as in hf_save_options, not NULL. */
int hf_save_tokenizer(const char *directory, const char *tokenizer, struct error *err);

/* Whether hf_save_files writes a file of that name, for some options; code, which has any name, apart. */
bool hf_saves(const char *name);

/* "LlamaForCausalLM" for "llama", or with scores "LlamaForSequenceClassification"; NULL: not known. */
const char *hf_architecture(const char *model_type, bool scores);
/* Says that `where`, a model or an adapter of one, gives scores, where a model of tokens is needed:
 * -EINVAL. */
int hf_refuse_scores(const char *where, bool adapter, struct error *err);
/* Makes c what a task trains or uses: with `scores` a model of scores, whose head is new where the directory
 * `where` is that of a causal model. -EINVAL where it is one of scores and no such is wanted, -ENOTSUP where
 * transformers has no such model of the family. */
int hf_choose_head(struct model_config *c, bool scores, const char *where, struct error *err);
