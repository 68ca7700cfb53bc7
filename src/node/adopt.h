/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier dtraind has started here, and what may be running still, is found again when the service
 * starts: no slot of it may be leased to another run.
 */
#pragma once

#include "base/error.h"
#include "node/attempt.h"
#include "node/attempts.h"

/* Adds an attempt for each directory in attempts_dir, by run and attempt, and a lost one (attempt_lost) for
 * each record of a start in state_dir (started.h) that has no directory. A directory without a whole request
 * is removed: dtraind was killed while it made it. Fails where something may be running of which nothing can
 * be read now (-EHOSTUNREACH, -EIO, …); what was found until then is in `attempts`. */
int adopt_attempts(const struct attempt_owner *owner, const char *attempts_dir, const char *state_dir,
                   struct attempts *attempts, struct error *err);
