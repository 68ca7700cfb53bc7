/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of a run in its output directory: metrics.jsonl, one object per line, and TensorBoard
 * event files in runs/. Written by rank 0 alone. */
#pragma once

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
};

/* The JSON line of a record without its newline: of metrics.jsonl, and of what rank 0 posts to the service.
 * Into buf (at least METRICS_LINE bytes), returned. */
#define METRICS_LINE 512
const char *metrics_line(char *buf, size_t size, const struct metrics_record *m);

/* Appends to what is there. Lines after resumed_step are cut off (0: a new run, nothing stays), so that the
 * file reads as if the run had not been interrupted. */
int metrics_open(const char *directory, int64_t resumed_step, bool tensorboard, struct metrics **out,
                 struct error *err);
int metrics_write(struct metrics *m, const struct metrics_record *record, struct error *err);
void metrics_close(struct metrics *m);
DEFINE_CLEANUP(struct metrics *, metrics_close)
