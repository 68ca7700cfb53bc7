/* SPDX-License-Identifier: Apache-2.0 */
/* What of a model is trained: everything, some of its layers and modules, or adapters. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum model_tuning_kind {
	TUNE_ALL,
	TUNE_SOME, /* freeze training */
	TUNE_LORA, /* Hu et al. 2021 */
};

/* How the adapters begin. */
enum lora_init {
	LORA_INIT_DEFAULT, /* A uniform in ±1/sqrt(in), B zero, as PEFT's */
	LORA_INIT_PISSA,   /* Meng et al. 2024 */
};

/* Names are those of PEFT and LLaMA-Factory, NULL-terminated lists, borrowed. */
struct model_tuning {
	enum model_tuning_kind kind;
	/* TUNE_LORA */
	int64_t rank;
	double alpha, dropout;
	bool rslora, dora;
	enum lora_init init;
	int pissa_iterations; /* svd.h */
	char *const *target;  /* "q_proj" …, or "all" */
	char *const *saved;   /* modules that are trained whole: "embed_tokens", "lm_head", "norm" … */
	/* TUNE_SOME: modules of the last so many layers (below 0: of the first), and modules outside of the
	 * layers. */
	int64_t layers;
	char *const *modules; /* "all", or "self_attn", "mlp" …; NULL: all */
	char *const *extra;
};

/* The rank of the adapters as they are stored. With PiSSA it is twice the rank that is trained, since the
 * weights stay those of the base: an adapter is the difference between what PiSSA has trained and what it
 * began with. Rows [0, rank) of A and columns [0, rank) of B are trained; the other rows and columns are the
 * A and the -B that these began with, and are not trained. */
int64_t tuning_stored_rank(const struct model_tuning *tuning);
/* By what an adapter's output is multiplied: alpha / rank, or alpha / sqrt(rank). */
double tuning_scale(const struct model_tuning *tuning);
/* "default", "pissa"; -EINVAL: none of them. */
int lora_init_parse(const char *name, enum lora_init *out);
/* Whether a list names the module `module` ("model.layers.0.self_attn.q_proj"): by its last parts, or by
 * parts that contain it ("mlp" names model.layers.0.mlp.up_proj). */
bool tuning_names(const char *name, const char *module);
