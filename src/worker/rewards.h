/* SPDX-License-Identifier: Apache-2.0 */
/* The rewards of completions, as policy_options.reward: by the program that the run names, which reads their
 * texts. */
#pragma once

#include "config/run.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/policy.h"
#include "worker/reward_program.h"

struct rewards {
	const struct run_config *config;
	const struct tokenizer *tok;
	struct reward_program *program;
};

/* Fills r; config and tokenizer are borrowed. */
int rewards_start(struct rewards *r, const struct run_config *config, const struct tokenizer *tok,
                  struct error *err);
/* context: a struct rewards. */
int rewards_give(void *context, const struct rollout *rollouts, int64_t n, double *rewards,
                 struct policy_parts *parts, struct error *err);
void rewards_end(struct rewards *r);
