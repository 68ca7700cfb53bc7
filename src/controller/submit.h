/* SPDX-License-Identifier: Apache-2.0 */
/* Submissions: runs that are accepted once the store has them on disk. */
#pragma once

#include <stdint.h>

#include "cluster/run.h"

struct controller;
struct submission;

/* err NULL: the run has this id and state, and is on disk. Otherwise it was not accepted. */
typedef void (*submitted_fn)(void *context, int64_t id, enum run_state state, const struct error *err);

/* -ENODEV: this cluster could never run it, were it empty, or its user may not have so many slots. */
int controller_check(struct controller *c, const struct run *r, struct error *err);
/* Takes r in any case. config: the run_config as JSON text. 0: `done` is called once, later; *out is valid
 * until then. -EDQUOT: its user has as many runs as it may have; -E2BIG: the store
 * cannot hold the configuration. While the controller does not know yet which
 * run numbers are free, the submission waits.
 *
 * With a key (r->key) that a submission of the same user has which is not answered yet, this one takes its
 * place: there is one run, the submitter of the first one gets -EALREADY, and *out is that of the first. */
int controller_submit(struct controller *c, struct run *r, const char *config, submitted_fn done,
                      void *context, struct submission **out, struct error *err);
/* The submitter has gone: `done` is not called. A run that has its number stays; one that has none yet is
 * dropped. */
void submission_abandon(struct submission *s);
