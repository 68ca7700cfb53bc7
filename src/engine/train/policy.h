/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The losses of a policy that learns from the rewards of its own completions, as functions of the
 * log-probabilities of their tokens, with their derivatives, and the measurements that are reported. No
 * device and no data here.
 *
 * Sources: GRPO (Shao et al. 2024), DAPO (Yu et al. 2025: the mean over all tokens, a higher bound of its
 * own), Dr. GRPO (Liu et al. 2025: a constant number of tokens), CISPO (MiniMax 2025), ratios of whole
 * sequences (GSPO, Zheng et al. 2025), the clipped ratio (PPO, Schulman et al. 2017), the estimate of the KL
 * divergence (Schulman 2020, k3). Definitions and names of measurements are those of TRL.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/train/preference.h"

/* How the losses of the tokens are put together: the mean over completions of the mean over a completion's
 * tokens; the mean over the tokens of all completions; their sum over completions times the most tokens that
 * one may have; as the second, with another loss of a token; and as the second, with advantages of each token
 * by itself, from a value head (ppo.h). */
enum policy_loss { POLICY_GRPO, POLICY_DAPO, POLICY_DR_GRPO, POLICY_CISPO, POLICY_PPO };

/* By which standard deviation differences from a group's mean reward are divided. */
enum policy_scale { POLICY_SCALE_GROUP, POLICY_SCALE_BATCH, POLICY_SCALE_NONE };

/* A completion of a prompt. */
struct rollout {
	int64_t row;           /* of the data, where its prompt is */
	bool held_out;         /* of the rows that are held out */
	const int32_t *ids;    /* prompt, then completion */
	int64_t prompt;        /* of them are the prompt's */
	int64_t length;        /* of the completion, at least 1 */
	bool finished;         /* it ended by itself; else it has as many tokens as it may have */
	const int32_t *answer; /* that the data has for the prompt; [answers], which may be 0 */
	int64_t answers;
};

enum { POLICY_CLOSING_MOST = 8, POLICY_PARTS_MOST = 8, POLICY_PART_NAME = 40 };

/* What rewards are sums of, where that is known: the same for each. */
struct policy_parts {
	bool known; /* whether there are any, and how many */
	int count;
	char name[POLICY_PARTS_MOST][POLICY_PART_NAME];
	double *values; /* [completions][POLICY_PARTS_MOST] */
};

struct policy_options {
	int generations; /* completions of each prompt, at least 2, or of PPO 1; 0: the run is none of these
	                  */
	int64_t max_tokens;  /* of a completion */
	int sequences;       /* that are generated at once on a rank; 0: all of a set */
	double temperature;  /* above 0; counts in the losses, too */
	double top_p, min_p; /* sampling.h, as top_k */
	int64_t top_k;
	double beta; /* weight of the divergence from the reference; 0: there is none. Of PPO in rewards */
	double epsilon[2]; /* how far a ratio counts below and above 1; of CISPO the highest ratio */
	/* Steps on the same completions: each of `mini_batches` parts of a set of them has a step, all of
	 * them so many times. */
	int iterations, mini_batches;
	enum policy_loss loss;
	enum policy_scale scale;
	bool of_sequences; /* the ratio is that of the whole completion, the geometric mean of its tokens' */
	bool mask_unfinished; /* completions that have not ended by themselves do not count in the loss */
	double truncation_penalty; /* by which the reward of a completion is lowered that has not ended by
	                              itself */
	/* Of PPO: the discount factor γ of rewards and the λ of the generalized advantage estimate, the
	 * weight of the value head's part of the loss, and the bound of how far a value may move (0: none).
	 */
	double gamma, lambda, value_weight, value_epsilon;
	const int32_t *stops;    /* ids that end a completion; [stop_count], borrowed */
	int64_t stop_count, ids; /* only ids below are chosen; 0: all */
	/* A model of scores, of which each completion's is added to its reward, borrowed; NULL: none. It
	 * reads prompt and completion, and then `closing`, what the template writes behind an answer, as it
	 * was trained; that begins with the token that ends one, which a finished completion has already. */
	const struct model_config *reward_model;
	int32_t closing[POLICY_CLOSING_MOST];
	int closing_count;
	/* NULL with a reward model: it alone gives rewards. The rewards of n completions, on each rank of its
	 * own ones, and their parts. Called between steps. Returns 1 where it has ended early, because the
	 * run is to stop. */
	int (*reward)(void *context, const struct rollout *rollouts, int64_t n, double *rewards,
	              struct policy_parts *parts, struct error *err);
	void *reward_context;
	/* NULL, or called on each rank with its completions and their rewards: before step `step` (from 1),
	 * where on_log will be called behind it, or behind another step on the same completions; and in the
	 * evaluation behind that step with those that a rank has generated first. */
	int (*on_rewards)(void *context, int64_t step, const struct rollout *rollouts, int64_t n,
	                  const double *rewards, const struct policy_parts *parts, struct error *err);
	void *on_rewards_context;
};
void policy_options_default(struct policy_options *o); /* no policy */

/* What is summed over all completions of a step. */
enum policy_sum {
	POLICY_SUM_LOSS, /* the loss itself */
	POLICY_SUM_COMPLETIONS,
	POLICY_SUM_LENGTH, /* tokens of completions */
	POLICY_SUM_FINISHED,
	POLICY_SUM_REWARD,
	POLICY_SUM_GROUPS,
	POLICY_SUM_DEVIATION, /* of the rewards of each group */
	POLICY_SUM_EQUAL,     /* groups whose rewards are all the same */
	POLICY_SUM_COUNTED,   /* tokens that count in the loss */
	POLICY_SUM_KL,        /* over these */
	POLICY_SUM_CLIPPED,   /* of these, tokens whose ratio does not count */
	/* Of PPO, over the tokens that count but for the first three: */
	POLICY_SUM_REWARD_SQUARES, /* over completions */
	POLICY_SUM_MEASURED,       /* completions that count in the loss; the next sum and that of the KL
	                              divergence are over these */
	POLICY_SUM_ENTROPY,        /* less the log-probabilities of their tokens */
	POLICY_SUM_POLICY_LOSS,
	POLICY_SUM_VALUE_LOSS,
	POLICY_SUM_VALUE_CLIPPED,
	POLICY_SUM_MOVED, /* half the squares of the logarithms of ratios */
	POLICY_SUM_RETURNS,
	POLICY_SUM_RETURN_SQUARES,
	POLICY_SUM_ERRORS, /* values less returns */
	POLICY_SUM_ERROR_SQUARES,
	POLICY_SUM_PARTS, /* of each part of the rewards, over completions */
	POLICY_SUMS = POLICY_SUM_PARTS + POLICY_PARTS_MOST
};

/* Of all ranks' completions of a step, or of a set of them, before its first pass. */
struct policy_totals {
	double completions, counted; /* counted: tokens that count in the loss */
	double reward, squares;      /* sums of rewards and of their squares */
	double tokens;               /* of prompts and completions */
	double names;                /* policy_parts_digest of each completion's rank */
	double abandoned;            /* ranks that have been asked to stop meanwhile */
};

/* The advantages of the completions of one group, with the sums that it adds to. all: of the set. */
void policy_advantages(const struct policy_options *o, const struct policy_totals *all, const double *rewards,
                       double *advantages, double sums[POLICY_SUMS]);

/* A completion under the model: [length] log-probabilities of its tokens now, when it was generated, and of
 * the reference (NULL without one). Adds its loss and measurements to sums, and sets the derivatives of the
 * loss by the first ones. */
struct policy_tokens {
	const float *now, *then, *reference;
	int64_t length;
	double advantage;
};
void policy_completion(const struct policy_options *o, const struct policy_totals *all,
                       const struct policy_tokens *tokens, float *derivatives, double sums[POLICY_SUMS]);

/* The loss of a token by the logarithm of its ratio, with the derivative by that, and whether the bound is
 * what counts. */
double policy_clipped_loss(const struct policy_options *o, double log_ratio, double advantage, double now,
                           double *derivative, bool *clipped);
/* The standard deviation of n numbers by their sum and that of their squares, with n - 1 in the denominator,
 * as PyTorch has it. */
double policy_deviation(double n, double sum, double squares);

/* A number of the names of the parts, a whole one, of which a million add up without rounding. */
double policy_parts_digest(const struct policy_parts *parts);

/* The measurements of such a step, of which `seconds` are those of this rank for completions and for rewards;
 * returns their number. */
int policy_metrics(const struct policy_options *o, const double sums[POLICY_SUMS], const double seconds[2],
                   struct preference_metric out[PREFERENCE_METRICS_MAX]);

/* The means of the parts of rewards, rewards/NAME/mean, behind `count` measurements: how many there are then.
 * `names`: memory for theirs. */
enum { POLICY_PART_METRIC = POLICY_PART_NAME + 16 };
int policy_parts_metrics(const struct policy_parts *parts, const double sums[POLICY_SUMS],
                         char names[POLICY_PARTS_MOST][POLICY_PART_METRIC],
                         struct preference_metric out[PREFERENCE_METRICS_MAX], int count);

/* Sums over the completions of held-out prompts. Their measurements replace those of a step, of which there
 * are `count`: what only a step has is no number. */
struct policy_evaluation {
	double completions, length, finished, reward, squares;
	double abandoned; /* as of policy_totals */
};
void policy_evaluation_metrics(const struct policy_evaluation *all, struct preference_metric *metrics,
                               int count);
