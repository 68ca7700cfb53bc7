/* SPDX-License-Identifier: Apache-2.0 */
/* What the program that gives rewards writes: a line with a number for each completion. It comes in parts of
 * any size. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Bytes of a line, which is one number, at most. */
#define REWARD_LINE_MOST 4096

struct reward_lines {
	char line[REWARD_LINE_MOST];
	size_t len; /* of the line that has begun */
};

/* Adds a part. Of the n rewards that are awaited, *done are there; it adds those that the part completes.
 * Errors, which name the program: a line is not a finite number or too long, or is not awaited. */
int reward_lines_add(struct reward_lines *l, const char *program, const char *bytes, size_t len, int64_t n,
                     int64_t *done, double *rewards, struct error *err);
