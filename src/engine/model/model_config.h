/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Hugging Face config.json says about a decoder-only transformer, as numbers. One table
 * (model_config.c) lists the families and where they differ; the rest of the engine asks the struct, never
 * the family's name.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum rope_type {
	ROPE_DEFAULT,
	ROPE_LINEAR, /* all frequencies divided by factor */
	ROPE_LLAMA3  /* low frequencies divided, a smooth ramp between */
};

/* Plain data, owns nothing. */
struct model_config {
	char family[16]; /* model_type: llama, mistral, qwen2, qwen3 */
	int hidden, intermediate, layers, heads, kv_heads, head_dim;
	int64_t vocab, max_positions;
	float norm_eps;
	double init_std; /* initializer_range */
	bool tied;       /* lm_head is embed_tokens */
	bool qkv_bias, o_bias, mlp_bias;
	bool qk_norm;    /* RMSNorm over each head of q and k before RoPE */
	int window;      /* sliding window in tokens, 0: none */
	int window_from; /* first layer that has it */
	struct {
		enum rope_type type;
		double theta, factor, low_freq_factor, high_freq_factor;
		int64_t original_positions;
	} rope;
	int32_t bos, eos, pad; /* -1: not given; the first where a list is given */
};

/* `where` names the text in errors, which say which key is wrong and what is supported. */
int model_config_parse(const char *text, size_t len, const char *where, struct model_config *out,
                       struct error *err);
/* path: a config.json, or a directory that holds one. */
int model_config_read(const char *path, struct model_config *out, struct error *err);

/* The same for all configs that make the same model to train, whatever else their files say. The special
 * tokens do not count: training takes the tokenizer's. */
uint64_t model_config_digest(const struct model_config *c);
int64_t model_config_parameters(const struct model_config *c);
/* Forward and backward, per token, of documents of `length` tokens: 6·(N − N_embedding) + 6·L·H·d·T, causal
 * attention halved, recomputation not counted; the head's matrix counts, tied or not. */
double model_config_flops(const struct model_config *c, double length);
/* Sliding window of a layer, 0: none. */
int model_config_window(const struct model_config *c, int layer);
/* Fills inv_freq[head_dim / 2], in the float arithmetic of transformers, so that angles agree to the last
 * bit. */
void model_config_rope(const struct model_config *c, float *inv_freq);
