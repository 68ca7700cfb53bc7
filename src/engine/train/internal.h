/* SPDX-License-Identifier: Apache-2.0 */
/* What trainer.c, step.c and loop.c share. */
#pragma once

#include "engine/dataset/sampler.h"
#include "engine/train/plan.h"
#include "engine/train/trainer.h"

struct trainer {
	struct device *dev;
	struct comm *comm;
	struct model_config c;
	struct train_options o;
	const struct dataset *train, *eval;
	int rank, world_size;
	struct plan *plan;
	void *memory; /* the arena, on the device */
	void *host;   /* with offload, that of the host */
	struct sampler sampler;
	struct schedule schedule;
	int64_t steps_per_epoch, total_steps;
	int64_t schedule_lead;     /* what is added to a step for its place in the schedule */
	int64_t step;              /* batches seen: optimizer steps done, or under fp16 skipped */
	struct loss_scaler scaler; /* of fp16 */
	int64_t tokens;            /* seen by all ranks since this process began */
	bool stop;                 /* this rank asks to stop; after a step: any rank has asked */

	double waited;       /* comm_waited_seconds when the last step ended */
	double data_seconds; /* of the last step, for counting and copying the rows */
	double busy;         /* seconds of the last step in which this rank did not wait for others */

	double *sums; /* host copy of the plan's sums */
	/* On the host: the rows of a step, of this rank and of all; then the tokens of a micro-batch. */
	int64_t *rows, *all_rows;
	int64_t max_row;
	int32_t *ids, *targets, *starts;
};

/* Copies the tokens of n rows (-1: no row) into one micro-batch; batch->tokens is 0 where there
 * was no row. */
void trainer_gather(struct trainer *t, const struct dataset *data, const int64_t *rows, int64_t n,
                    struct model_batch *batch);
/* Weights have been written from the host: makes the compute copies, on all ranks. */
int trainer_publish(struct trainer *t, struct error *err);
/* Connects the model with the units that the plan's shard brings. */
void trainer_set_hooks(struct trainer *t);
/* After the host has read from the device: 0 where the collectives that produced what it read have ended in
 * order. */
int trainer_check_comm(struct trainer *t, struct error *err);
