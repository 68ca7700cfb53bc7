/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer: the plan, the step and the loop.
 *
 * Arithmetic. An optimizer step consumes one sampler step: groups · micro_batch · accumulation rows
 * (fewer at the end of an epoch), where the ranks that share their rows (sequence_degree) are a group.
 * steps_per_epoch = ceil(rows / that). total = max_steps where above 0, else ceil(epochs · steps_per_epoch).
 * warm-up = warmup_steps where above 0, else ceil(warmup_ratio · total), as transformers. A step's loss is
 * the sum of its targets' losses over their count, over all ranks and micro-steps, and its gradients are
 * those of that mean. The count depends on the dataset and the sampler alone.
 *
 * A run that goes on with another global batch keeps its place in the epoch (trainer_set_origin). Its epochs
 * end where they would have ended; total counts the steps before at the batch that they had. The schedule
 * reaches its end at the last step and has, at each step, the rate that a run of this batch has with as many
 * steps to go.
 *
 * A policy (policy.h). The rows of a step are completions, which each rank generates itself, of prompts of
 * its own: the sampler gives it micro_batch · accumulation / generations prompts, for each `iterations`
 * steps. A run can be saved and stopped only where new ones are made.
 *
 * fp16. Gradients are those of the loss times a factor (scaler.h). A step whose gradients overflow changes
 * neither weights nor moments: it has seen its rows and is one of the total, but the optimizer and the
 * schedule do not count it.
 *
 * Resume. The state after step s is: master weights (without them the bf16 ones), both moments, s, and under
 * fp16 the loss scaler's. The
 * sampler, the schedule and the order of every sum are functions of the step, so a run continued from that
 * state at the same world size gives the same bits.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/parameters.h"
#include "engine/comm/comm.h"
#include "engine/dataset/dataset.h"
#include "engine/device/device.h"
#include "engine/model/layout.h"
#include "engine/model/model_config.h"
#include "engine/model/whole.h"
#include "engine/train/options.h"

struct trainer;

/* Tokens of the longest row that a step may have: of the data, or of a policy, of a prompt with its
 * completion. */
int64_t train_longest_row(const struct train_options *o, const struct model_config *c,
                          const struct dataset *train, const struct dataset *eval);

/* The step that was just done. Doubles hold all digits of the sums. */
struct train_log {
	int64_t step, steps; /* step: optimizer steps done, from 1 */
	double epoch;        /* epochs done, fractional */
	/* Of this very step, the mean over its counted targets on all ranks; NaN where fp16 overflowed. */
	double loss;
	double loss_mean;         /* mean of the steps' losses since the last log */
	double learning_rate;     /* that the step used */
	double grad_norm;         /* before clipping; NaN where the step was skipped */
	double loss_scale;        /* of fp16: that the step used; 0: none */
	int64_t skipped;          /* of fp16: all steps that were skipped so far */
	int64_t tokens;           /* seen so far in this process, all ranks together */
	int64_t step_tokens;      /* of this step, all ranks */
	double tokens_per_second; /* since the last log */
	double eta_seconds;
	double seconds; /* since trainer_run began */
	bool has_eval;
	double eval_loss; /* where has_eval; NaN where completions are evaluated */
	/* The parts of a step's time on this rank; of trainer_run, the mean since the last log. */
	double step_seconds, data_seconds;
	double communication_seconds; /* in which the computation waited for collectives */
	/* The rank that computed longest since the last log, and its mean of a step; -1: one rank, or not
	 * measured. Each rank's part of a step is known to the others one or two steps later. */
	int slowest_rank;
	double slowest_seconds;
	/* Of a preference task, or of one that learns from rewards: of this very step; and of the evaluation,
	 * where has_eval. */
	struct preference_metric metrics[PREFERENCE_METRICS_MAX], eval_metrics[PREFERENCE_METRICS_MAX];
	int metric_count;
};

/* Called on every rank, between steps; a negative return ends the run with that error. On a GPU the next step
 * is already in work when on_log and on_step are called, but for a step behind which on_save or an evaluation
 * comes: no checkpoint is saved of a step whose sums have not been read. */
struct train_callbacks {
	void *context;
	/* After step 1, each log_steps-th step, the last, and each evaluation: the same whether resumed or
	 * not (but for what is measured, and loss_mean, where the interval began before the resume). */
	int (*on_log)(void *context, const struct train_log *log, struct error *err);
	/* After each step, before on_save. May be NULL. */
	int (*on_step)(void *context, struct error *err);
	/* After each save_steps-th step, and where the run was stopped (stopped true, before its last step;
	 * perhaps once more for the same step). Not after the last step: the caller saves the final model
	 * itself. */
	int (*on_save)(void *context, int64_t step, bool stopped, struct error *err);
	/* Polled once a step, before it begins; the ranks agree, so that one rank's true stops all after the
	 * same step, which on a GPU may be the one behind it. Also polled while completions are made: all
	 * ranks then stop behind the step before. NULL: never. */
	bool (*should_stop)(void *context);
};

/* All arguments are borrowed and must outlive the trainer; with ddp, zero1 and zero2, and a
 * sequence_degree of 1, comm may be destroyed just before it. comm may be NULL for one rank, eval may be
 * NULL. Allocates the whole plan; with a communicator the memory is from comm_alloc. Every rank calls it at
 * the same time. */
int trainer_create(struct device *dev, struct comm *comm, const struct model_config *c,
                   const struct train_options *options, const struct dataset *train,
                   const struct dataset *eval, struct trainer **out, struct error *err);
void trainer_free(struct trainer *t);
DEFINE_CLEANUP(struct trainer *, trainer_free)

int64_t trainer_total_steps(const struct trainer *t);
int64_t trainer_steps_per_epoch(const struct trainer *t);
int64_t trainer_step(const struct trainer *t);     /* steps done */
int64_t trainer_examples(const struct trainer *t); /* rows seen in these steps, over all epochs */
double trainer_epochs(const struct trainer *t);    /* epochs done, fractional */
/* After a step: seconds that each rank computed in the last step that it had ended before that one,
 * [world_size].
 */
const double *trainer_rank_seconds(const struct trainer *t);
int64_t trainer_tokens(const struct trainer *t); /* seen so far in this process, all ranks together */
const struct model_layout *trainer_layout(const struct trainer *t);
/* The memory that the plan takes on the device. */
int64_t trainer_plan_bytes(const struct trainer *t);
/* The plan as JSON (arena.h says how); with offload "host" is the same of the host's memory. */
/* The size of the file of parallel.offload_dir on this rank, and how it is read and written ("by io_uring and
 * O_DIRECT"); 0: there is none. */
int64_t trainer_disk(const struct trainer *t, const char **how);
int trainer_plan_json(const struct trainer *t, json_t **out, struct error *err);

/* Loads the weights: fill is called for each parameter, in pieces; then the compute copies are made. Every
 * rank has to load the same weights. */
int trainer_load(struct trainer *t, model_fill_fn fill, void *context, struct error *err);

/* Copies elements [first, first + n) of a parameter's master weights or moments to the host, as fp32. This
 * rank has to hold all of them (-ENOTSUP). */
int trainer_read(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                 int64_t first, int64_t n, float *out, struct error *err);
/* Elements that this rank does not hold are left out. To resume, write all weights and moments, then give the
 * step after which they were saved: trainer_set_step makes the compute copies. */
int trainer_write(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                  int64_t first, int64_t n, const float *in, struct error *err);
/* The elements of a parameter that this rank holds: their number, which may be 0, and the first of them. */
int64_t trainer_held(const struct trainer *t, const struct model_parameter *p, int64_t *first);
/* As trainer_read, from the ranks that hold them; every rank calls it with the same elements. out may be NULL
 * on ranks that have no use for them. */
int trainer_gather_parameter(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                             int64_t first, int64_t n, float *out, struct error *err);
/* trainer_read, trainer_write and trainer_load for checkpoints; valid as long as the trainer. */
struct parameter_access trainer_access(struct trainer *t);
int trainer_set_step(struct trainer *t, int64_t step, struct error *err);
/* The loss scaler; NULL: not under fp16. To resume, it is set beside the step, which has no effect
 * otherwise. */
const struct loss_scaler *trainer_loss_scaler(const struct trainer *t);
void trainer_set_loss_scaler(struct trainer *t, const struct loss_scaler *state);
/* Before trainer_set_step: the steps until `step` saw `examples` rows, at whatever global batch. Changes
 * trainer_total_steps where they are not as many as at this one's. */
void trainer_set_origin(struct trainer *t, int64_t step, int64_t examples);

/* From the current step to the last; returns 0 at the end, 1 where it was stopped, or a negative errno. */
int trainer_run(struct trainer *t, const struct train_callbacks *callbacks, struct error *err);
/* One step by itself (tests, benchmarks): fills log. */
int trainer_run_step(struct trainer *t, struct train_log *log, struct error *err);
/* The same as trainer_run has it: where more steps follow, and the device runs behind the host, the next one
 * is queued before this one is waited for. The last call has more = false. */
int trainer_run_step_ahead(struct trainer *t, bool more, struct train_log *log, struct error *err);
/* Mean loss over the held-out rows, all ranks together; of a preference task their measurements, too (NULL:
 * not wanted). Of a task that learns from rewards the measurements alone, of a completion of each row; the
 * loss is NaN, and 1 says that it was abandoned, since the run is to stop. */
int trainer_evaluate(struct trainer *t, double *loss, struct preference_metric *metrics, struct error *err);

/* The teacher of o.distillation, or the reference of o.policy, whose weights are to be loaded before the
 * first step. NULL: none. */
struct whole_model *trainer_frozen_model(const struct trainer *t);
/* The same of the reward model of o.policy. */
struct whole_model *trainer_reward_model(const struct trainer *t);

/* The log-probabilities of the answers under the reference model, which tasks with a reference need before
 * the first step: of the rows of the training split, then of the held-out one, two each. */
int64_t trainer_reference_count(const struct trainer *t); /* 0: the task has no reference */
/* Computes them with the weights that are loaded. Every rank calls it. */
int trainer_compute_reference(struct trainer *t, struct error *err);
void trainer_get_reference(const struct trainer *t, double *out);
void trainer_set_reference(struct trainer *t, const double *in);
