/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of a run in its output directory: metrics.jsonl, one object per line, and TensorBoard
 * event files in runs/. Only rank 0 writes them. A line is a report, or, with the key "event", a mark: the
 * run started, resumed from a checkpoint, saved a checkpoint, or ended. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct metrics;

struct metrics_record {
	int64_t step, steps;
	double epoch, loss, learning_rate, grad_norm;
	int64_t tokens;
	double tokens_per_second, eta_seconds;
	double eval_loss; /* NaN: not evaluated at this step */
	double time;      /* Unix seconds */
	/* Of a step, the mean since the report before; NaN: not measured, and the key is left out. */
	double step_seconds, compute_seconds, communication_seconds, data_seconds;
	int64_t memory_bytes,
	    device_memory_bytes;  /* of rank 0: the most it had; what the plan takes; 0: unknown */
	int slowest_rank;         /* -1: none */
	const char *slowest_node; /* NULL: unknown */
	double slowest_seconds;   /* of a step of that rank, waiting apart */
};

/* Writes a record as a line of JSON, without a newline, to buf (at least METRICS_LINE bytes), and returns
 * buf. metrics.jsonl has these lines, and rank 0 posts them to the service. */
#define METRICS_LINE 1024
const char *metrics_line(char *buf, size_t size, const struct metrics_record *m);

/* Opens metrics.jsonl to append to it. Lines of steps after resumed_step are removed, so that the file is
 * that of a run that was not interrupted. resumed_step 0 is a run from the start: a file that has
 * measurements is renamed to metrics.jsonl.1, or to the next number that is free. */
int metrics_open(const char *directory, int64_t resumed_step, bool tensorboard, struct metrics **out,
                 struct error *err);
/* Writes a mark after `step`: {"event":EVENT,"step":…,"time":…} with the members of details (borrowed, may be
 * NULL). TensorBoard gets it as a text in Markdown. */
int metrics_event(struct metrics *m, int64_t step, double time, const char *event, const json_t *details,
                  const char *text, struct error *err);
/* Writes a text about the whole run, for TensorBoard only. */
int metrics_text(struct metrics *m, int64_t step, double time, const char *tag, const char *text,
                 struct error *err);
int metrics_write(struct metrics *m, const struct metrics_record *record, struct error *err);
void metrics_close(struct metrics *m);
DEFINE_CLEANUP(struct metrics *, metrics_close)
