/* SPDX-License-Identifier: Apache-2.0 */
/* What the program that gives rewards writes: a line for each completion, with a number, or with several,
 * which have names and of which the reward is the sum: NAME=NUMBER NAME=NUMBER … The names are the same in
 * each line. It comes in pieces of any size. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/train/policy.h"

/* Bytes of a line at most. */
#define REWARD_LINE_MOST 4096

struct reward_lines {
	char line[REWARD_LINE_MOST];
	size_t len; /* of the line that has begun */
};

/* Adds a piece. Of the n rewards that are awaited, *done are there; it adds those that the piece completes,
 * with what they are sums of; the first line of a run says in `parts` what that is. Errors, which name the
 * program: a line is not a finite number, or one of named ones; has other names; is too long; or is not
 * awaited. */
int reward_lines_add(struct reward_lines *l, const char *program, const char *bytes, size_t len, int64_t n,
                     int64_t *done, double *rewards, struct policy_parts *parts, struct error *err);
