/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapters as PEFT stores them (https://github.com/huggingface/peft, LoraConfig and
 * get_peft_model_state_dict of version 0.21): adapter_config.json says which modules have an adapter, and
 * adapter_model.safetensors has the matrices. A module with weight W [out, in] and an adapter A [rank, in],
 * B [out, rank] computes with W + scale·B·A; with DoRA each row of that is scaled to the length that the
 * magnitude vector [out] gives it. Names of modules are those of the base, "model.layers.0.self_attn.q_proj";
 * its weight is the module's name and ".weight".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/safetensors.h"

#define PEFT_CONFIG_FILE  "adapter_config.json"
#define PEFT_WEIGHTS_STEM "adapter_model"

enum peft_init {
	PEFT_INIT_DEFAULT,  /* A uniform (Kaiming, a = √5), B zero */
	PEFT_INIT_GAUSSIAN, /* A normal(0, 1 / rank), B zero */
	PEFT_INIT_RANDOM,   /* init_lora_weights false: B is random, too */
	PEFT_INIT_PISSA     /* A and B begin as the largest singular values; W is what they leave of it */
};

/* A value for the modules whose name, or the end of it behind a dot, the regular expression matches. */
struct peft_pattern {
	char *pattern;
	double value;
};

/* Lists of strings end with NULL; NULL is an empty list. A caller that only writes a config may fill it with
 * strings of its own; then it does not call peft_config_free. */
struct peft_config {
	int64_t rank;
	double alpha, dropout;
	bool rslora; /* scale is alpha / √rank, else alpha / rank */
	bool dora;
	bool fan_in_fan_out; /* the base stores W as [in, out] (GPT-2) */
	enum peft_init init;
	int64_t pissa_iterations; /* of the randomized decomposition (pissa_niter_N); 0: the exact one */
	/* Which modules have an adapter: those whose name is in the list, or ends with "." and a name of it;
	 * or those whose whole name the regular expression matches; "all-linear" is every linear one but the
	 * output layer. */
	char **targets, *target_pattern;
	char **excluded, *excluded_pattern; /* the same for those that have none all the same */
	int64_t *layers;                    /* with a list of targets: only these layers; NULL: all */
	size_t n_layers;
	char **layers_pattern;  /* what stands before the number of a layer; NULL: anything */
	char **modules_to_save; /* trained whole and saved whole */
	struct peft_pattern *rank_pattern, *alpha_pattern;
	size_t n_rank_pattern, n_alpha_pattern;
	char *base_model, *task_type; /* "CAUSAL_LM"; NULL: not said */
};

/* `where` names the text in errors. -EINVAL names the key and its value where it is wrong, and -ENOTSUP where
 * the adapter computes something that dtrain does not. */
int peft_config_parse(const char *text, size_t len, const char *where, struct peft_config *out,
                      struct error *err);
int peft_config_read(const char *directory, struct peft_config *out, struct error *err);
/* Writes `directory`/adapter_config.json. */
int peft_config_write(const char *directory, const struct peft_config *c, struct error *err);
void peft_config_free(struct peft_config *c); /* {0}, and after a failure, too */

/* 1: the module, which is linear or an embedding, has an adapter of *rank and *scale; 0: it has none.
 * -EINVAL: a regular expression is wrong, or takes too long. */
int peft_config_match(const struct peft_config *c, const char *module, int64_t *rank, double *scale,
                      struct error *err);
/* Whether the module, or one that contains it, is among modules_to_save. */
bool peft_config_saves(const struct peft_config *c, const char *module);

enum peft_role {
	PEFT_A,
	PEFT_B,
	PEFT_MAGNITUDE,
	PEFT_EMBEDDING_A, /* of an embedding: A [rank, vocab], B [hidden, rank]; W + scale·(B·A)ᵀ */
	PEFT_EMBEDDING_B,
	PEFT_WHOLE /* in place of a tensor of the base */
};

/* "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". name: the module's; for PEFT_WHOLE the
 * tensor's, "lm_head.weight". Owned by the caller; NULL: out of memory. */
char *peft_tensor_name(const char *name, enum peft_role role);
/* The inverse; *name is owned by the caller. -EINVAL: not a tensor of an adapter. */
int peft_tensor_parse(const char *tensor, char **name, enum peft_role *role, struct error *err);

struct peft_module {
	char *name;
	size_t base; /* its weight in the list of the base's tensors */
	int64_t rank;
	double scale;
	bool transposed;                        /* the base's weight is [in, out], or an embedding */
	const struct tensor *a, *b, *magnitude; /* [rank, in], [out, rank], [out]; magnitude only with DoRA */
};

struct peft_adapter {
	struct peft_config config;
	struct safetensors *tensors;
	struct peft_module *modules; /* in the order of the base's tensors, as wholes */
	size_t n_modules;
	struct peft_whole {
		size_t base;
		const struct tensor *tensor;
	} * wholes;
	size_t n_wholes;
};

/* Opens the adapter in `directory` and checks it against the base, whose tensors are given: every tensor of
 * the adapter belongs to one of the base, with the shapes that follow from the config; every module that the
 * config names has its tensors; types are floating-point. Without a base (NULL), for what only copies an
 * adapter, A and B have to fit each other; `base` and `transposed` mean nothing then. */
int peft_adapter_open(const char *directory, const struct hf_parameter *base, size_t n_base,
                      struct peft_adapter **out, struct error *err);
void peft_adapter_close(struct peft_adapter *a);
DEFINE_CLEANUP(struct peft_adapter *, peft_adapter_close)

/* Whether `directory` holds an adapter: it has an adapter_config.json. */
bool peft_is_adapter(const char *directory);
