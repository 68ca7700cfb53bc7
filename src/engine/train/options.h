/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a training run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/dtype.h"
#include "engine/model/model.h"
#include "engine/model/tuning.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/scaler.h"
#include "engine/optim/schedule.h"
#include "engine/shard/shard.h"
#include "engine/train/policy.h"
#include "engine/train/preference.h"

/* By what the learning rates are multiplied: the rows of a global batch, or their root. */
enum train_scale_rate { TRAIN_SCALE_NONE, TRAIN_SCALE_LINEAR, TRAIN_SCALE_SQRT };

struct train_options {
	double epochs; /* used where max_steps is 0 */
	int64_t max_steps;
	int64_t micro_batch, accumulation;
	double learning_rate, min_learning_rate;
	enum schedule_kind schedule;
	double warmup_ratio;
	int64_t warmup_steps;
	double decay_ratio; /* wsd: share of the steps that decays at the end */
	enum optimizer_kind optimizer;
	double weight_decay, beta1, beta2, epsilon;
	double momentum; /* of sgd, lars and muon */
	bool nesterov;
	double embedding_rate; /* of the embedding; 0: learning_rate */
	double value_rate;     /* of the value head; 0: learning_rate */
	enum train_scale_rate scale_rate;
	bool decay_all;
	struct model_tuning tuning; /* what is trained; its lists are borrowed */
	double plus_ratio;          /* LoRA+: the factor of learning_rate for the adapters' B; 0: 1 */
	double clip;                /* 0: none; the norm is reported either way */
	enum dtype precision;
	bool fp8;                          /* with bf16: the products of the blocks' matrices are in fp8 */
	struct loss_scaler_options scaler; /* of fp16 */
	bool without_master;               /* bf16 weights without a copy in fp32: rounded stochastically */
	enum model_recompute recompute;
	int kept_blocks;  /* model_options.kept */
	int kept_outputs; /* likewise */
	bool shuffle;
	uint64_t seed;
	int64_t log_steps;            /* at least 1 */
	int64_t save_steps;           /* 0: on_save is not called by the loop, except at a stop */
	bool copies_state;            /* what is saved is copied to host memory first */
	int64_t eval_steps;           /* 0: with each save and at the end */
	enum shard_strategy strategy; /* shard.h; prefetch and persist_below are of zero3 and hybrid */
	enum dtype reduce_type;       /* of gradients on the wire */
	enum dtype gradient_type;     /* of the blocks' gradients */
	enum shard_offload offload;
	const char *offload_dir;      /* borrowed: where the optimizer's state is in a file; NULL: nowhere */
	int64_t state_piece;          /* of offload_dir, elements at a time; 0: by default */
	enum shard_quantize quantize; /* of what is frozen */
	int shard_degree;             /* hybrid: ranks that share one copy of the model */
	int sequence_degree;          /* ranks that share their micro-batches (model_options); 0: as 1 */
	int prefetch;                 /* units whose weights are gathered ahead */
	int64_t persist_below;        /* elements; the weights of smaller units stay whole */
	size_t logits_bytes;          /* device_logits_bytes, which a trainer fills in itself */
	double neftune_alpha, label_smoothing; /* of model_options, and so is dft */
	bool dft;
	double router_loss; /* likewise; below 0: what the model's config says. Preferences have none. */
	struct preference_options preference;
	struct policy_options policy;
	/* Knowledge distillation, of model_options. */
	struct {
		const struct model_config *teacher; /* borrowed; NULL: none, and the others do not matter */
		double weight, temperature;
	} distillation;
	/* As logits_bytes: the device has no products of this precision, and computes them in fp32 with
	 * scratch */
	bool widens;
};
int train_sequence_degree(const struct train_options *o); /* at least 1 */
/* Tokens of the largest micro-batch, or of a rank's part of it, with rows of at most so many. */
int64_t train_tokens(const struct train_options *o, int64_t max_row);
/* Of a policy: whether it has a reference, and how many completions a rank generates at once. */
bool train_has_reference(const struct train_options *o);
int train_sequences(const struct train_options *o);
/* Prompts of which a rank has completions in a set. */
int64_t train_prompts(const struct train_options *o);
/* Completions of a set of them, on a rank, and the steps on it. */
int64_t train_completions(const struct train_options *o);
int64_t train_set_steps(const struct train_options *o);
/* Whether the model reads all completions of a set before the first step on it. */
bool train_observes(const struct train_options *o);
void train_options_default(struct train_options *o);
int train_options_check(const struct train_options *o, struct error *err);
