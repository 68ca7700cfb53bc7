/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of a run in its output directory: metrics.jsonl, one object per line, and TensorBoard
 * event files in runs/. Only rank 0 writes them. A line is a report, or, with the key "event", a mark: the
 * run started, resumed from a checkpoint, saved a checkpoint, or ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/train/preference.h"
#include "wire/metrics.h"

struct metrics;

/* Measurements that only some tasks have, behind those of the report: "NAME", and "eval_NAME" of an
 * evaluation; eval_values NULL: there was none. A value that is not a number is left out. */
struct metrics_extra {
	int count;
	const struct preference_metric *values, *eval_values;
};

/* A report as a line of JSON, with its measurements rounded and the perplexity of eval_loss, without a
 * newline; owned by the caller. extra may be NULL. NULL: out of memory. metrics.jsonl has these lines, and
 * rank 0 posts them to the service. */
char *metrics_line(const struct metrics_report *report, const struct metrics_extra *extra);

/* Opens metrics.jsonl to append to it. Lines of steps after resumed_step are removed, so that the file is
 * that of a run that was not interrupted. resumed_step 0 is a run from the start: a file that has
 * measurements is renamed to metrics.jsonl.1, or to the next number that is free. */
int metrics_open(const char *directory, int64_t resumed_step, bool tensorboard, struct metrics **out,
                 struct error *err);
/* Writes a mark. TensorBoard gets it as a text in Markdown. */
int metrics_event(struct metrics *m, const struct metrics_mark *mark, const char *text, struct error *err);
/* Writes a text about the whole run, for TensorBoard only. */
int metrics_text(struct metrics *m, int64_t step, double time, const char *tag, const char *text,
                 struct error *err);
int metrics_write(struct metrics *m, const struct metrics_report *report, const struct metrics_extra *extra,
                  struct error *err);
void metrics_close(struct metrics *m);
DEFINE_CLEANUP(struct metrics *, metrics_close)
