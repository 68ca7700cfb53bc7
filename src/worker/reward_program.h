/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program that gives the completions of a run their rewards (the key reward of their group). Each rank
 * has one of its own, from its start to its end. It reads a line of JSON for each completion, and writes a
 * line with a number, or with several that have names, for each, in the same order. Each line says how many
 * there are at once, so that it may read all of them first, or answer one by one.
 */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/train/policy.h"

struct reward_program;

/* Starts it: argv with its name, which is looked for in PATH. Its standard error is this process's own, and
 * it is in a process group of its own, so that what stops this process leaves it until the step is done. */
int reward_program_start(char *const *argv, struct reward_program **out, struct error *err);
/* Gives it n lines, `text` in all, and reads as many rewards, with their parts (reward_lines.h). Errors: it
 * has ended, a line is wrong, or nothing has moved for `timeout` seconds. 1: this process is to stop
 * (stop.h). */
int reward_program_ask(struct reward_program *p, const char *text, size_t len, int64_t n, double *rewards,
                       struct policy_parts *parts, double timeout, struct error *err);
/* Closes its input, and waits a moment for its end before it is killed. */
void reward_program_end(struct reward_program *p);
DEFINE_CLEANUP(struct reward_program *, reward_program_end)
