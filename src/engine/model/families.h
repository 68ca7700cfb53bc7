/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model families: a row of a table for each model_type of a config.json, with where it differs from
 * llama, and with what transformers takes where a key is absent. config_read.c reads a config by its row,
 * and everything else asks the struct model_config that comes of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/model_config.h"

/* A key that has one value, with which the model is what is implemented. */
struct family_switch {
	const char *key;
	bool value; /* also where the key is absent */
};

/* What transformers takes where keys are absent, which happens in configurations within others: of a model of
 * its own they are needed. */
struct family_sizes {
	int64_t hidden, intermediate, layers, heads, vocab;
};

struct family {
	const char *name; /* model_type */
	enum model_naming naming;
	bool part; /* of a multimodal model alone */
	struct family_sizes sizes;

	/* The projections. */
	bool qkv_bias;       /* always, whatever attention_bias says */
	bool all_bias;       /* every projection has one */
	bool attention_bias; /* the key is honoured: q, k, v and o */
	bool mlp_bias;       /* the key is honoured */
	/* Keys in their place, which also have default_bias where they are absent: of all projections, of q,
	 * k and v, of o. */
	const char *all_bias_key, *qkv_bias_key, *o_bias_key;
	bool default_bias;
	bool fused_qkv;  /* q, k and v are one matrix */
	bool fused_mlp;  /* gate and up are */
	bool transposed; /* the matrices of a block are stored [in, out] */

	/* The MLP. activation_key NULL: hidden_act. */
	const char *activation_key;
	enum model_activation activation;
	bool gelu_is_tanh; /* "gelu" stands for its approximation */
	bool plain_mlp;    /* one matrix and the activation, no gate */

	/* The MLP is a mixture of so many experts where the config does not say how many; 0: there is one
	 * MLP. num_experts and num_local_experts both name the number. */
	int default_experts, default_chosen;
	const char *expert_width_key; /* NULL: intermediate_size */
	int default_expert_width;     /* with it */
	bool always_normalized;       /* else norm_topk_prob says so, false where it is absent */
	double default_router_loss;   /* router_aux_loss_coef, which counts with output_router_logits */

	/* Of a model from nothing, the matrices whose outputs are added to the residual stream begin smaller.
	 */
	bool scaled_residual_init;
	double default_init;             /* initializer_range, 0: 0.02 */
	const char *const *dropout_keys; /* NULL: attention_dropout alone; ends with a NULL */
	double default_dropout;

	/* The norms. */
	bool layer_norm; /* with a mean and a bias, else RMSNorm */
	bool norm_plus_one;
	enum model_norm_place norm_place;
	enum model_qk_norm qk_norm;
	const char *eps_key; /* NULL: rms_norm_eps */
	double default_eps;  /* 0: 1e-6 */

	/* Positions. */
	bool learned_positions;   /* a table of them, no rotation */
	bool interleaved;         /* neighbours are rotated with each other */
	bool scaled_queries;      /* llama_4_scaling_beta of the rope parameters is honoured */
	const char *default_rope; /* JSON, of a config without rope_parameters or rope_scaling */
	bool partial_rotary;      /* partial_rotary_factor is honoured */
	double default_partial;   /* 0: 1 */
	bool original_positions;  /* original_max_position_embeddings is a key of the config itself */
	bool no_rope_layers;      /* the key is honoured */
	bool window_rotates;      /* where layers have a window, the others do not rotate */
	double default_theta;     /* 0: 10000 */
	bool two_ropes;           /* layers with a window have parameters of their own */
	double window_theta;      /* default of these, 0: as the others */
	const char *window_theta_key;
	int64_t default_positions;

	/* Attention. */
	bool window; /* sliding_window applies to every layer */
	/* With use_sliding_window it applies to the layers from max_window_layers on. */
	bool window_switch;
	int default_window_from; /* max_window_layers, 0: 28 */
	/* It applies to the layers that layer_types names, by default to all but each window_every-th; 0: to
	 * those without rotation of a family that has such, else to all. */
	bool window_types;
	int window_every;
	const char *window_every_key;
	int64_t default_window; /* -1: none */
	/* Linear attention in the layers that layer_types names, by default in all but each
	 * full_attention_interval-th, 4; and a gate behind the attention of the others. */
	bool linear_types;
	bool gated_attention;
	int head_dim;                 /* default, 0: hidden / heads */
	int default_kv_heads;         /* 0: as many as heads */
	double default_query_scalar;  /* query_pre_attn_scalar is honoured; 0: it is not */
	double default_attention_cap; /* attn_logit_softcapping is honoured; 0: it is not */
	bool logits_cap;              /* final_logit_softcapping is honoured */
	double default_logits_cap;    /* 0: none */

	/* Scales. */
	bool multipliers; /* embedding_, attention_, residual_multiplier and logits_scaling are honoured */
	bool embedding_scale; /* embeddings are multiplied by the root of the hidden size */
	bool tied;            /* tie_word_embeddings where the key is absent */

	const struct family_switch *switches; /* ends with a key of NULL */
};

/* NULL: not supported. */
const struct family *family_find(const char *model_type);
/* "llama, mistral and qwen2", into text. */
const char *family_names(char *text, size_t size);
