/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proximal policy optimization (Schulman et al. 2017) of completions, as TRL's PPOTrainer has it: a value
 * head predicts the rewards that are still to come at each token, and the loss has a part for what it
 * predicts. No device and no data here.
 */
#pragma once

#include "engine/train/policy.h"

/* A completion as it was generated: [length] log-probabilities of its tokens, those of the reference (NULL
 * without one), and values of what is in front of each token. */
struct ppo_rollout {
	const float *then, *reference, *values;
	int64_t length;
	double reward; /* which its last token gets; each gets -beta · (then - reference), too */
};

/* Sums of advantages over the tokens of all completions that count. */
struct ppo_sums {
	double count, sum, squares;
};

/* Generalized advantage estimation (Schulman et al. 2016, equations 11 to 16): fills advantages and returns,
 * [length], and adds the advantages to the sums. What follows a completion has the value 0. */
void ppo_advantages(const struct policy_options *o, const struct ppo_rollout *rollout, float *advantages,
                    float *returns, struct ppo_sums *sums);
/* Makes the mean of all advantages 0 and their standard deviation 1. */
void ppo_whiten(const struct ppo_sums *all, float *advantages, int64_t n);

/* The measurements that a completion has before the first step on it, reward and lengths left out. */
void ppo_measure(const struct policy_options *o, const struct ppo_rollout *rollout, double sums[POLICY_SUMS]);

/* Adds the loss of a completion and its measurements to the sums, and sets the derivatives of the loss by
 * `now`, the log-probabilities of its tokens now, and by `values_now`, [length]. */
struct ppo_tokens {
	const struct ppo_rollout *rollout;
	const float *now, *values_now, *advantages, *returns;
};
void ppo_completion(const struct policy_options *o, const struct policy_totals *all,
                    const struct ppo_tokens *tokens, float *derivatives, float *value_derivatives,
                    double sums[POLICY_SUMS]);

/* As policy_metrics. */
int ppo_metrics(const struct policy_options *o, const double sums[POLICY_SUMS], const double seconds[2],
                struct preference_metric out[PREFERENCE_METRICS_MAX]);
