/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: every buffer of a step, computed from configuration and rank count before anything is allocated.
 * The trainer allocates exactly this. */
#pragma once

#include <jansson.h>

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/memory/arena.h"
#include "engine/model/model.h"
#include "engine/model/whole.h"
#include "engine/optim/optimizer.h"
#include "engine/shard/shard.h"
#include "engine/train/options.h"

struct plan {
	struct model_layout *layout;
	struct shard *shard;
	struct model *model;
	struct optimizer *optimizer;
	/* Not trained: the teacher of knowledge distillation, or the reference of a policy; zeros: none. */
	struct whole_model frozen;
	struct whole_model reward_model; /* of a policy, which gives rewards; zeros: none */
	struct arena arena;
	struct arena host; /* of the host's memory, with offload */
	int sequences;     /* of a policy: completions that are generated at once; else 0 */
	/* On the device, [PLAN_SUM_RANKS + world_size]; of a preference task PREFERENCE_SUMS more, and
	 * PLAN_KL for a sum within a micro-step; of a policy POLICY_SUMS, and PLAN_TOTALS for sums before the
	 * first one. Behind them, in the place of one more, is clip. */
	double *sums;
	int more_sums; /* how many are behind those of the ranks */
	float *clip;   /* on the device: scale, norm */
	/* Where both are of the steps of even and of odd numbers, of which one is read while the next is in
	 * work; plan_choose_sums. */
	double *sums_of[2];
};

/* The indices of plan->sums, which are summed over the ranks: the squares of the gradients by the optimizer,
 * the others in one collective. From PLAN_SUM_RANKS on each rank has an element of its own, for the seconds
 * that its previous step took without waiting for others. */
enum { PLAN_KL = 2, PLAN_TOTALS = sizeof(struct policy_totals) / sizeof(double) };
enum { PLAN_SUM_SQUARES, PLAN_SUM_LOSS, PLAN_SUM_STOP, PLAN_SUM_RANKS };

/* Elements of plan->sums, with that of clip. */
size_t plan_sums(const struct plan *plan);
/* What sums and clip are from now on: those of even (0) or odd (1) numbers. */
void plan_choose_sums(struct plan *plan, int which);

/* dev and comm may be NULL for an estimate: the scratch of the device is counted by the trainer, which has
 * one. max_row: tokens of the longest row of the data. */
int plan_create(struct device *dev, struct comm *comm, int rank, int world_size, const struct model_config *c,
                const struct train_options *options, int64_t max_row, struct plan **out, struct error *err);
/* Of the model and of those that are not trained: how many, for what the device has beside the plan, of which
 * all use the same. */
enum { PLAN_MODELS = 3 };
int plan_shapes(const struct plan *plan, struct device_shapes shapes[PLAN_MODELS]);
void plan_free(struct plan *plan);
DEFINE_CLEANUP(struct plan *, plan_free)
/* Places the buffers in `memory`, which has plan->arena.used bytes on the device, and in `host`, which has
 * plan->host.used bytes of device_alloc_host (NULL for none). */
void plan_bind(struct plan *plan, void *memory, void *host);
