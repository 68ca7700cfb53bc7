/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold between the keys of a run, after each has passed the checks of its row. */
#pragma once

#include "config/run.h"

/* 0, or -EINVAL with "where: key: what; expected …" of the first that does not hold. */
int run_check(const struct run_config *c, const char *where, struct error *err);
/* The same for keys that the user has written (seen: of each of `keys`) and that have no effect. Only for
 * what a user has written: JSON has all keys. */
int run_check_unused(const struct run_config *c, const struct keys *keys, const bool *seen, const char *where,
                     struct error *err);
/* Of a run that trains: the batch of the largest number of nodes is that of each; and, of one that learns
 * from rewards, a rank then has whole groups of completions. */
int run_check_batch(const struct run_config *c, const char *where, struct error *err);
int run_check_groups(const struct run_config *c, const char *where, struct error *err);
/* Nothing to check where the task does not learn from rewards. */
int run_check_rewards(const struct run_config *c, const char *where, struct error *err);
/* One "NAME=VALUE" of the environment: its form, and that dtrain does not set it itself. */
int run_check_variable(const char *entry, const char *where, struct error *err);
