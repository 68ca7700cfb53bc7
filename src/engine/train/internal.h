/* SPDX-License-Identifier: Apache-2.0 */
/* What trainer.c, step.c and loop.c share. */
#pragma once

#include "engine/dataset/sampler.h"
#include "engine/train/plan.h"
#include "engine/train/ppo.h"
#include "engine/train/trainer.h"

/* A step from when its operations are queued until the host has read its sums. */
struct train_work {
	int64_t step; /* as in the log */
	double begun, data_seconds;
	double rate;
	int64_t targets, tokens;
	double *sums; /* host memory of the device: those that the rank puts in, and then those of the plan */
	struct device_event *read; /* sums are there */
};

/* Completions from `first` to before `end`. */
struct policy_part {
	int64_t first, end;
};

struct trainer {
	struct device *dev;
	struct comm *comm;
	struct model_config c;
	struct train_options o;
	const struct dataset *train, *eval;
	int rank, world_size;
	/* Ranks that share their rows are a group, which is one of so many; each may have one rank alone. */
	int group, groups;
	struct comm *sequence; /* of the ranks of a group; NULL: it is one rank */
	struct plan *plan;
	void *memory; /* the arena, on the device */
	void *host;   /* with offload, that of the host */
	struct sampler sampler;
	struct schedule schedule;
	int64_t steps_per_epoch, total_steps;
	int64_t schedule_lead;     /* what is added to a step for its place in the schedule */
	int64_t step;              /* batches seen: optimizer steps done, or under fp16 skipped */
	int64_t begun;             /* the same with those that are queued, one at most or two */
	struct loss_scaler scaler; /* of fp16 */
	int64_t tokens;            /* seen by all ranks since this process began */
	const struct train_callbacks *callbacks; /* of trainer_run; NULL: a step by itself */
	bool asks;                               /* this rank asks to stop */
	bool stop;                               /* in the steps done, any rank has asked */

	double waited;   /* comm_waited_seconds when the last step ended */
	double ended_at; /* when that was */
	double busy;     /* seconds of the last step in which this rank did not wait for others */

	struct train_work work[2]; /* of the steps of even and of odd numbers before them */
	double *sums;              /* of the last step that has ended */
	double *all_sums;          /* the memory of both */
	/* On the host: the rows of a step, of this rank and of all; then the tokens of a micro-batch. */
	int64_t *rows, *all_rows;
	int64_t max_row;
	int32_t *ids, *targets, *starts, *row_ends;
	/* Where the rows of gradients travel by themselves (shard_gathers_rows): of all ranks' last
	 * micro-steps. */
	int64_t *rank_tokens;
	int32_t *rank_ids; /* [world_size, micro_batch · max_row] */

	/* Of a preference task. */
	struct preference_work {
		const struct dataset *data; /* of the rows of the micro-batch */
		const double *known;        /* reference of its rows, [rows][2]; NULL: none */
		const int64_t *rows;
		int64_t count;
		int64_t pairs, nll_tokens; /* of all ranks' batch, by which the loss is divided */
		double sums[PREFERENCE_SUMS];
		float *losses;             /* of tokens, for evaluation */
		double (*reference[2])[2]; /* of training and evaluation rows */
	} preference;

	/* Of a policy: the completions of this rank, at most train_completions. */
	struct policy_work {
		int64_t number;  /* of the set of them, from 0; -1: none, or those of held-out prompts */
		int generations; /* completions of each prompt, of this set */
		bool fresh;      /* made for this step */
		bool abandoned;  /* the run is to stop: completions and rewards are not awaited any more */
		int64_t count;   /* of the completions that there are */
		struct policy_part part; /* the mini-batch of the step */
		int64_t first, end;      /* of the micro-batch: from first to before end */
		int64_t tokens;          /* of the micro-batch */
		struct rollout *rollouts;
		int32_t *ids;                     /* [.., max_row] */
		float *then, *reference;          /* [.., max_tokens] */
		float *now;                       /* [max_tokens] of one, and as many derivatives */
		float *losses;                    /* [micro_batch, max_row], with values twice */
		double *rewards;                  /* and then the advantages */
		struct policy_parts reward_parts; /* of these */
		char part_names[POLICY_PARTS_MOST][POLICY_PART_METRIC];
		/* What an evaluation has in place of those, which the next step may need once more. */
		struct {
			struct rollout *rollouts;
			int32_t *ids;
			double *rewards, *reward_parts;
		} held_out;
		struct model_part *parts; /* of a pass, and their tokens */
		int32_t *next;
		double *uniform; /* of a pass: the random numbers by which the next ids are chosen */
		int32_t *chosen; /* of a pass: these ids */
		struct policy_totals set, all; /* of the set, and of the step */
		double sums[POLICY_SUMS];
		double seconds[2]; /* for completions and rewards */
	} policy;
	/* Of PPO: of each token of the completions, [.., max_tokens]. */
	struct ppo_work {
		float *values; /* when it was generated */
		float *advantages, *returns;
		float *derivatives; /* [max_tokens] of one, by its values */
	} ppo;
	/* Of one with a reward model: a micro-batch that it reads. */
	struct scores_work {
		int32_t *ids, *targets, *starts;
		float *scores;
	} scores;
};

/* Copies the tokens of n rows (-1: no row) into one micro-batch; batch->tokens is 0 where there
 * was no row. Where ranks share it, tokens that do not count follow, up to a multiple of them. */
void trainer_gather(struct trainer *t, const struct dataset *data, const int64_t *rows, int64_t n,
                    struct model_batch *batch);
bool trainer_prefers(const struct trainer *t); /* the task is one of preferences */
/* Whether all ranks have to run the same passes, because of sums in the midst of them. */
bool trainer_prefers_together(const struct trainer *t);
int preference_allocate(struct trainer *t, struct error *err);
void preference_free(struct trainer *t);
/* Before the micro-steps of a step: what its loss is divided by. t->all_rows are known. */
void preference_begin(struct trainer *t);
/* Rewrites the targets of a micro-batch as the task has them, and sets its weigh. */
void preference_set_batch(struct trainer *t, const struct dataset *data, const int64_t *rows, int64_t n,
                          struct model_batch *batch);
/* Adds an evaluated micro-batch to the sums; losses of its tokens are in t->preference.losses. */
int preference_add(struct trainer *t, struct error *err);
int preference_evaluate(struct trainer *t, double *loss, struct preference_metric *metrics,
                        struct error *err);

/* What comes behind a step (from 1). */
static inline bool trainer_due(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

/* Also where the run stops: one that goes on from this step does not come back to it. */
static inline bool trainer_has_evaluation(const struct trainer *t, int64_t step)
{
	return t->eval && (step == t->total_steps ||
	                   trainer_due(step, t->o.eval_steps ? t->o.eval_steps : t->o.save_steps));
}

/* Whether on_log is called. */
static inline bool trainer_has_log(const struct trainer *t, int64_t step)
{
	return step == 1 || step == t->total_steps || trainer_has_evaluation(t, step) ||
	       trainer_due(step, t->o.log_steps);
}

/* The task is to learn from rewards. */
static inline bool trainer_has_policy(const struct trainer *t)
{
	return t->o.policy.generations > 0;
}
/* The task is ppo: the model has a value head. */
static inline bool trainer_has_values(const struct trainer *t)
{
	return trainer_has_policy(t) && t->o.policy.loss == POLICY_PPO;
}
int rollouts_allocate(struct trainer *t, struct error *err);
void rollouts_free(struct trainer *t);
/* Whether this rank is asked to stop while completions are made: what they were for will not be done. */
static inline bool policy_abandons(struct trainer *t)
{
	const struct train_callbacks *cb = t->callbacks;

	if (cb && cb->should_stop && cb->should_stop(cb->context))
		t->policy.abandoned = true;
	return t->policy.abandoned;
}
/* The completions of set `number`. Every rank calls it. */
int rollouts_make(struct trainer *t, int64_t number, struct error *err);
/* One of each of the held-out prompts from `first` on, of which each rank has up to n. */
int rollouts_hold_out(struct trainer *t, int64_t first, int64_t n, struct error *err);
/* The measurements of an evaluation, at the places of those of a step; what an evaluation does not have is no
 * number. 1: it was abandoned, since a rank is asked to stop; on all ranks. */
int policy_evaluate(struct trainer *t, struct preference_metric *metrics, struct error *err);
int scores_allocate(struct trainer *t, struct error *err);
void scores_free(struct trainer *t);
/* Adds the scores of completions to their rewards. */
int scores_add(struct trainer *t, const struct rollout *rollouts, int64_t n, double *rewards,
               struct error *err);
/* Before the micro-steps of a step: completions, their rewards and advantages. Fills targets and tokens of w.
 * 1, on all ranks: a rank was asked to stop meanwhile, and there is no step. */
int policy_begin(struct trainer *t, struct train_work *w, struct error *err);
/* Whether a completion counts in the loss. */
static inline bool policy_counts(const struct trainer *t, const struct rollout *one)
{
	return one->finished || !t->o.policy.mask_unfinished;
}
/* Log-probabilities of a completion whose tokens begin at `losses`. */
static inline void policy_read_completion(const struct rollout *one, const float *losses, float *out)
{
	for (int64_t i = 0; i < one->length; i++)
		out[i] = -losses[one->prompt - 1 + i];
}
int ppo_allocate(struct trainer *t, struct error *err);
void ppo_free(struct trainer *t);
/* Of a new set of completions that has been observed, with their rewards: advantages and returns. Every rank
 * calls it. */
int ppo_begin(struct trainer *t, struct error *err);
/* Adds to the sums what completions have before a pass. */
void ppo_count(struct trainer *t);
/* As model_batch.weigh. */
int ppo_weigh(struct trainer *t, const float *losses, float *factors);
/* The mini-batch of the step that begins, of a rank that has `count` completions of the set. */
struct policy_part policy_part(const struct trainer *t, int64_t count);
/* The last micro-step that has completions of the set, or of the mini-batch of the step: of this rank, or of
 * any. */
int64_t policy_last(struct trainer *t, bool set, bool all);
/* A micro-batch of these completions; its tokens are 0 where there is none. */
int policy_gather(struct trainer *t, const struct policy_part *part, int64_t micro_step,
                  struct model_batch *batch, struct error *err);
/* What the weights as they are make of all completions of the set: log-probabilities, values, and those of
 * the reference. Every rank calls it. */
int policy_observe(struct trainer *t, struct error *err);
/* A micro-batch of the step, with its weigh. */
int policy_micro_batch(struct trainer *t, int64_t micro_step, struct model_batch *batch, struct error *err);
/* The names of the parts of rewards are the trainer's. */
static inline int trainer_policy_metrics(struct trainer *t, const double sums[POLICY_SUMS],
                                         const double seconds[2],
                                         struct preference_metric out[PREFERENCE_METRICS_MAX])
{
	int n = trainer_has_values(t) ? ppo_metrics(&t->o.policy, sums, seconds, out)
	                              : policy_metrics(&t->o.policy, sums, seconds, out);

	return policy_parts_metrics(&t->policy.reward_parts, sums, t->policy.part_names, out, n);
}

/* Of either task: the loss is that of whole answers, whose sums are on the host until the passes have ended.
 */
static inline bool trainer_weighs(const struct trainer *t)
{
	return trainer_prefers(t) || trainer_has_policy(t);
}
static inline int trainer_more_sums(const struct trainer *t)
{
	return trainer_prefers(t) ? PREFERENCE_SUMS : trainer_has_policy(t) ? POLICY_SUMS : 0;
}
static inline double *trainer_host_sums(struct trainer *t)
{
	return trainer_prefers(t) ? t->preference.sums : t->policy.sums;
}
/* Where they come to; PLAN_KL or PLAN_TOTALS are behind them. */
double *trainer_device_sums(const struct trainer *t);
/* [PLAN_TOTALS] */
static inline double *policy_device_totals(const struct trainer *t)
{
	return trainer_device_sums(t) + POLICY_SUMS;
}
/* Steps on the same rows of the data. */
static inline int64_t trainer_iterations(const struct trainer *t)
{
	return trainer_has_policy(t) ? train_set_steps(&t->o) : 1;
}
/* Queues a step, and ends the oldest that is queued: waits for its sums, and fills log. Steps end in the
 * order in which they have begun. Of trainer_begin_step 1: no step has begun, since the run is to stop. */
int trainer_begin_step(struct trainer *t, struct error *err);
int trainer_end_step(struct trainer *t, struct train_log *log, struct error *err);
/* Whether a step may begin before the one before it has ended: where the host learns nothing of that one
 * which decides what it does next. The same on all ranks. */
bool trainer_runs_ahead(const struct trainer *t);
/* Weights have been written from the host: makes the compute copies, on all ranks. */
int trainer_publish(struct trainer *t, struct error *err);
/* Seconds for which the computation has waited for other ranks. */
double trainer_waited(const struct trainer *t);
/* Whether this rank is the first of its group, which alone adds to sums over all ranks what each rank of the
 * group has computed. */
static inline bool trainer_leads_group(const struct trainer *t)
{
	return t->rank % train_sequence_degree(&t->o) == 0;
}
/* Connects the model with the units that the plan's shard brings. */
void trainer_set_hooks(struct trainer *t);
/* After the host has read from the device: 0 where the collectives that produced what it read have ended in
 * order. */
static inline int trainer_check_comm(struct trainer *t, struct error *err)
{
	return t->comm ? comm_check(t->comm, err) : 0;
}
/* Sums n numbers of the host over the ranks; device: memory for as many. */
static inline int trainer_sum(struct trainer *t, double *device, double *numbers, int64_t n,
                              struct error *err)
{
	size_t bytes = (size_t)n * sizeof(*numbers);
	int r;

	if (t->world_size == 1)
		return 0;
	if ((r = device_write(t->dev, device, numbers, bytes, err)) < 0 ||
	    (r = comm_wait(t->comm, comm_all_reduce_f64(t->comm, device, n, COMM_SUM), err)) < 0 ||
	    (r = device_read(t->dev, numbers, device, bytes, err)) < 0)
		return r;
	return trainer_check_comm(t, err);
}
