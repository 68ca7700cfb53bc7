/* SPDX-License-Identifier: Apache-2.0 */
/* Completions as JSON: for the program that gives rewards, and, for those who want to see what the model
 * generates, in completions.jsonl of the output directory (the key log_completions of their group). */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "config/run.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/policy.h"

/* Adds the members prompt, completion, answer, columns (with the key columns), finished, held_out and row. A
 * model may write any byte: what is no UTF-8 is replaced. */
int completion_describe(json_t *line, const struct run_config *config, const struct tokenizer *tok,
                        const struct rollout *one, struct error *err);

/* Zeros: nothing is written. */
struct completions {
	const struct run_config *config;
	const struct tokenizer *tok;
	char *path;
	int fd;
};

/* Fills c, of the first rank; config and tokenizer are borrowed. The lines of steps after resumed_step are
 * removed (step_lines.h). */
int completions_open(struct completions *c, const struct run_config *config, const struct tokenizer *tok,
                     int64_t resumed_step, struct error *err);
/* policy_options.on_rewards: writes the first of the completions. context: a struct completions. */
int completions_write(void *context, int64_t step, const struct rollout *rollouts, int64_t n,
                      const double *rewards, const struct policy_parts *parts, struct error *err);
void completions_close(struct completions *c);
