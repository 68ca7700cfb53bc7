/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attempts that are not here and must not be started here any more: one that was stopped before its start
 * has arrived, and one that has ended and was forgotten, whose start may arrive a second time. Each is
 * remembered for longer than any start can be under way, however many others there are.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stopped_attempt;

struct stopped {
	struct stopped_attempt *list; /* oldest first */
	size_t count;
};

/* cluster: "" where it is not named. It also holds for starts of earlier epochs of the cluster. */
int stopped_add(struct stopped *stopped, const char *cluster, int64_t epoch, int64_t run, int64_t attempt,
                struct error *err);
bool stopped_has(const struct stopped *stopped, const char *cluster, int64_t epoch, int64_t run,
                 int64_t attempt);
void stopped_release(struct stopped *stopped);
