/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Hugging Face config.json says about a decoder-only transformer, as numbers. One table (families.c)
 * lists the families and where they differ, and config_read.c reads a file by it; the rest of the engine asks
 * the struct, never the family's name.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model/rope.h"

#define MODEL_LAYERS_MAX 4096
#define DELTA_DIM_MAX    256 /* of a head of linear attention */
#define CONV_WIDTH_MAX   8

/* How checkpoints name the parameters, and which of them there are (roles.c). */
enum model_naming {
	MODEL_NAMES_LLAMA,
	MODEL_NAMES_PHI3,
	MODEL_NAMES_OLMO2,
	MODEL_NAMES_GEMMA,
	MODEL_NAMES_GPT2,
	MODEL_NAMES_MIXTRAL,
	MODEL_NAMES_GLM,
	MODEL_NAMES_STARCODER2,
	MODEL_NAMINGS
};

/* Where the parameters of a multimodal model's language model are in its files (multimodal.h). */
enum model_multimodal {
	MULTIMODAL_NONE, /* it is a model of its own */
	MULTIMODAL_LLAVA,
	MULTIMODAL_QWEN2_VL,
	MULTIMODAL_QWEN3_VL
};

/* Where the norms of a block are. x is the residual stream, f attention or the MLP. */
enum model_norm_place {
	MODEL_NORM_BEFORE, /* x + f(norm(x)) */
	MODEL_NORM_AFTER,  /* x + norm(f(x)) */
	MODEL_NORM_AROUND  /* x + norm(f(norm(x))) */
};

/* RMSNorm of q and k before the rotation. */
enum model_qk_norm {
	MODEL_QK_NORM_NONE,
	MODEL_QK_NORM_HEADS,     /* of each head, with one weight for all */
	MODEL_QK_NORM_PROJECTION /* of all heads of a token together */
};

enum model_activation { MODEL_SILU, MODEL_GELU_TANH };

/* A set of layers. */
struct model_layers {
	uint64_t bits[MODEL_LAYERS_MAX / 64];
};

static inline void model_layers_add(struct model_layers *set, int layer)
{
	set->bits[layer / 64] |= (uint64_t)1 << layer % 64;
}

static inline bool model_layers_has(const struct model_layers *set, int layer)
{
	return set->bits[layer / 64] >> layer % 64 & 1;
}

/* Plain data, owns nothing. */
struct model_config {
	char family[16]; /* model_type: llama, mistral, … (families.c) */
	int hidden, intermediate, layers, heads, kv_heads, head_dim;
	int64_t vocab, max_positions;
	float norm_eps;
	double init_std; /* initializer_range */
	/* What that is multiplied by for the matrices whose outputs are added to the residual stream. */
	double residual_init;
	double dropout; /* the greatest that config.json names; none is applied */
	bool tied;      /* lm_head is embed_tokens */
	/* The head gives one number for each sequence, and no logits (AutoModelForSequenceClassification with
	 * one label). new_head: the files have none, and it begins at random. */
	bool scores, new_head;
	/* Beside the head of logits there is one that gives a number for each token, its value. */
	bool values;
	bool qkv_bias, o_bias, mlp_bias;
	enum model_naming naming;
	enum model_multimodal multimodal;
	char whole[16];  /* model_type of the multimodal model that it is a part of, such as qwen2_5_vl */
	bool fused_qkv;  /* q, k and v are one matrix */
	bool fused_mlp;  /* gate and up are */
	bool transposed; /* the matrices of a block are stored [in, out] */
	enum model_activation activation;
	bool gated; /* activation(gate) · up, else activation(up) */
	/* The MLP of a block is a mixture of so many experts, each of which is intermediate wide, and a token
	 * passes those that its router gives the largest weights; 0: there is one MLP. */
	int experts, chosen_experts;
	bool normalized_experts; /* the weights of a token add up to 1 */
	double router_loss; /* of config.json, the factor of the loss that balances the experts; 0: none */
	bool layer_norm;    /* norms with a mean and a bias, else RMSNorm */
	bool norm_plus_one; /* norms multiply by 1 + weight */
	enum model_norm_place norm_place;
	enum model_qk_norm qk_norm;

	int window;               /* sliding window in tokens, 0: none */
	int window_from;          /* first layer that has it */
	struct model_layers full; /* later ones that see all tokens all the same */
	/* Layers with linear attention (delta.h) in the place of attention, with so many heads of such sizes,
	 * and a convolution over so many tokens in front of it; delta_value_heads 0: there are none. */
	struct model_layers linear;
	int delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim, conv_width;
	bool gated_attention; /* what attention gives is multiplied by sigmoid(gate), which q_proj gives, too
	                       */
	struct model_layers unrotated; /* without rotary position embedding */
	bool learned_positions;        /* a table of them instead of the rotation */
	int rotary_dim;                /* elements of a head that are rotated, the first ones */
	bool interleaved;              /* neighbours with each other, else the halves */
	struct model_rope rope;
	bool two_ropes; /* layers with a window have other frequencies: */
	struct model_rope window_rope;
	/* Of token p queries are multiplied by 1 + beta · log(1 + floor(p / span)); beta 0: by 1. */
	double query_beta;
	int query_span;

	double attention_scale; /* of scores, 0: 1 / sqrt(head_dim) */
	double attention_cap;   /* of scores, c · tanh(score / c); 0: none */
	double logits_cap;
	/* Factors; 1: none. */
	double embedding_scale, residual_scale, logits_scale;
	bool noise_scaled;     /* noise on embeddings has their factor, too */
	int32_t bos, eos, pad; /* -1: not given; the first where a list is given */
};

/* `where` names the text in errors, which say which key is wrong and what is supported. */
int model_config_parse(const char *text, size_t len, const char *where, struct model_config *out,
                       struct error *err);
/* path: a config.json, or a directory that holds one. */
int model_config_read(const char *path, struct model_config *out, struct error *err);

/* The same for all configs that make the same model to train, whatever else their files say. The special
 * tokens do not count: training takes the tokenizer's. Only a model of scores reads `pad`, which its task
 * compares between the ranks. */
uint64_t model_config_digest(const struct model_config *c);
/* What of config.json the models differ in, in words, and its values in `a` and in `b` (NaN where these are
 * no numbers); NULL: nothing that decides what is computed with the weights, but for lists of layers. */
const char *model_config_difference(const struct model_config *a, const struct model_config *b,
                                    double out[2]);
int64_t model_config_parameters(const struct model_config *c);
/* Those that a token passes: of the experts the chosen ones. */
int64_t model_config_active_parameters(const struct model_config *c);
/* Rows of the head's matrix: the vocabulary, or 1. */
int64_t model_config_outputs(const struct model_config *c);
/* Replaces the head of logits by a new one of scores, which is not tied, and neither scaled nor capped. */
static inline void model_config_set_scores(struct model_config *c)
{
	c->scores = c->new_head = true;
	c->tied = false;
	c->logits_scale = 1;
	c->logits_cap = 0;
}

/* Forward and backward, per token, of documents of `length` tokens: 6·(N − N_embedding) + 6·L·H·d·T, causal
 * attention halved, recomputation not counted; the head's matrix counts, tied or not, and of experts the
 * chosen ones. */
double model_config_flops(const struct model_config *c, double length);
/* Sliding window of a layer, 0: none. */
int model_config_window(const struct model_config *c, int layer);
static inline bool model_config_is_linear(const struct model_config *c, int layer)
{
	return model_layers_has(&c->linear, layer);
}

/* Columns of linear attention: of v, of the convolution (q, k and v), and of the first product, which also
 * gives z, b and a. */
static inline int64_t model_config_delta_value(const struct model_config *c)
{
	return (int64_t)c->delta_value_heads * c->delta_value_dim;
}

static inline int64_t model_config_channels(const struct model_config *c)
{
	return 2 * (int64_t)c->delta_key_heads * c->delta_key_dim + model_config_delta_value(c);
}

static inline int64_t model_config_delta_row(const struct model_config *c)
{
	return model_config_channels(c) + model_config_delta_value(c) + 2 * (int64_t)c->delta_value_heads;
}

/* Frequencies differ between kinds of layers: the number of tables of angles (0, 1 or 2), and a layer's; -1:
 * it does not rotate. */
int model_config_rotary_tables(const struct model_config *c);
int model_config_rotary_table(const struct model_config *c, int layer);
/* Fills inv_freq[rotary_dim / 2] of a table; *length: factor of its cos and sin. longest: of the documents,
 * in tokens. */
void model_config_rope(const struct model_config *c, int table, int64_t longest, float *inv_freq,
                       float *length);
float model_config_attention_scale(const struct model_config *c);
