/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the progress of a training run: a line in the log, to the service, to metrics.jsonl and to
 * TensorBoard, with marks for what happens between the steps. Rank 0 reports; the others take part in
 * report_open alone. */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"
#include "config/run.h"
#include "engine/train/trainer.h"
#include "worker/environment.h"
#include "worker/service_client.h"

struct report;

/* Borrowed, and has to outlive the report. */
struct report_options {
	const struct run_config *config;
	const struct environment *env;
	struct service_client *service;
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	struct trainer *trainer;
	const char *precision;
	const char *resumed_from; /* NULL: from the start */
	int64_t resumed_step;     /* of that checkpoint; a run that was made shorter begins below it */
	int64_t tokens_before;    /* of the run's earlier attempts */
};

/* Called by all ranks, once it is known at which step the trainer begins: *out is NULL on all but rank 0. */
int report_open(const struct report_options *options, struct report **out, struct error *err);
int report_log(struct report *r, const struct train_log *log, struct error *err);
int report_checkpoint(struct report *r, int64_t step, struct error *err);
/* signal: what stopped it; NULL: the model is saved. */
int report_end(struct report *r, int64_t step, const char *signal, struct error *err);
void report_close(struct report *r);
DEFINE_CLEANUP(struct report *, report_close)
