/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the measurements of a run to metrics.jsonl and TensorBoard files. */
#include "worker/metrics.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/tfevents.h"
#include "worker/step_lines.h"

struct metrics {
	int fd;
	char *path;
	struct tfevents *events;
};

/* With 1 / scale as the last digit; what is too large for that, and what is not finite, as it is. */
static double round_to(double value, double scale)
{
	return fabs(value * scale) < 0x1p53 ? round(value * scale) / scale : value;
}

/* Of a loss of tokens, which that of a preference task is not. */
static double perplexity(const struct metrics_report *m, const struct metrics_extra *extra)
{
	double p = exp(m->eval_loss);

	return isfinite(p) && !(extra && extra->count) ? p : NAN;
}

/* As long as every name of ours, with its prefix. */
#define NAME_MAX_LENGTH 64

static void add_extra(json_t *line, const struct metrics_extra *extra)
{
	for (int i = 0; i < extra->count; i++) {
		char name[NAME_MAX_LENGTH];

		if (isfinite(extra->values[i].value))
			json_object_set_new(line, extra->values[i].name, json_real(extra->values[i].value));
		snprintf(name, sizeof(name), "eval_%s", extra->values[i].name);
		if (extra->eval_values && isfinite(extra->eval_values[i].value))
			json_object_set_new(line, name, json_real(extra->eval_values[i].value));
	}
}

char *metrics_line(const struct metrics_report *report, const struct metrics_extra *extra)
{
	struct metrics_report m = *report;
	_cleanup_json_ json_t *json = NULL;

	m.tokens_per_second = round_to(m.tokens_per_second, 10);
	m.eta_seconds = round_to(m.eta_seconds, 10);
	m.time = round_to(m.time, 1e3);
	m.step_seconds = round_to(m.step_seconds, 1e6);
	m.compute_seconds = round_to(m.compute_seconds, 1e6);
	m.communication_seconds = round_to(m.communication_seconds, 1e6);
	m.data_seconds = round_to(m.data_seconds, 1e6);
	m.slowest_seconds = m.slowest_rank >= 0 ? round_to(m.slowest_seconds, 1e6) : NAN;
	m.eval_perplexity = round_to(perplexity(&m, extra), 1e6);
	json = metrics_report_encode(&m);
	if (json && extra)
		add_extra(json, extra);
	return json_to_string(json);
}

int metrics_open(const char *directory, int64_t resumed_step, bool tensorboard, struct metrics **out,
                 struct error *err)
{
	_cleanup_(metrics_closep) struct metrics *m = calloc(1, sizeof(*m));
	_cleanup_free_ char *runs = str_path_join(directory, "runs");
	int r;

	if (!m)
		return error_oom(err);
	m->fd = -1;
	m->path = str_path_join(directory, "metrics.jsonl");
	if (!m->path || !runs)
		return error_oom(err);
	if ((r = step_lines_open(m->path, resumed_step, "\"loss\":", err)) < 0)
		return r;
	m->fd = r;
	if (tensorboard && (r = tfevents_open(runs, resumed_step + 1, &m->events, err)) < 0)
		return r;
	*out = steal_pointer(m);
	return 0;
}

static int write_line(struct metrics *m, const char *text, struct error *err)
{
	return step_lines_write(m->fd, m->path, text, err);
}

int metrics_text(struct metrics *m, int64_t step, double time, const char *tag, const char *text,
                 struct error *err)
{
	return m->events ? tfevents_text(m->events, time, step, tag, text, err) : 0;
}

int metrics_event(struct metrics *m, const struct metrics_mark *mark, const char *text, struct error *err)
{
	struct metrics_mark rounded = *mark;
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *line = NULL;
	int r;

	rounded.time = round_to(mark->time, 1e3);
	json = metrics_mark_encode(&rounded);
	line = json_to_string(json);
	r = write_line(m, line, err);
	return r < 0 ? r : metrics_text(m, mark->step, mark->time, "events", text, err);
}

static int write_extra(struct metrics *m, const struct metrics_report *report,
                       const struct metrics_extra *extra, struct error *err)
{
	int r = 0;

	for (int i = 0; r == 0 && i < 2 * extra->count; i++) {
		const struct preference_metric *v = i % 2 ? extra->eval_values : extra->values;
		char name[NAME_MAX_LENGTH];

		if (!v || !isfinite(v[i / 2].value))
			continue;
		snprintf(name, sizeof(name), "%s/%s", i % 2 ? "eval" : "train", v[i / 2].name);
		r = tfevents_scalar(m->events, report->time, report->step, name, v[i / 2].value, err);
	}
	return r;
}

int metrics_write(struct metrics *m, const struct metrics_report *report, const struct metrics_extra *extra,
                  struct error *err)
{
	const struct {
		const char *tag;
		double value;
	} scalars[] = {
	    {"train/loss", report->loss},
	    {"train/learning_rate", report->learning_rate},
	    {"train/grad_norm", report->grad_norm},
	    {"train/epoch", report->epoch},
	    {"train/loss_scale", report->loss_scale > 0 ? report->loss_scale : NAN},
	    {"train/skipped_steps", report->loss_scale > 0 ? (double)report->skipped_steps : NAN},
	    {"perf/tokens_per_second", report->tokens_per_second},
	    {"train/tokens", (double)report->tokens},
	    {"perf/step_seconds", report->step_seconds},
	    {"perf/compute_seconds", report->compute_seconds},
	    {"perf/communication_seconds", report->communication_seconds},
	    {"perf/data_seconds", report->data_seconds},
	    {"perf/memory_bytes", report->memory_bytes > 0 ? (double)report->memory_bytes : NAN},
	    {"perf/device_memory_bytes",
	     report->device_memory_bytes > 0 ? (double)report->device_memory_bytes : NAN},
	    {"perf/slowest_rank", report->slowest_rank >= 0 ? (double)report->slowest_rank : NAN},
	    {"perf/slowest_seconds", report->slowest_rank >= 0 ? report->slowest_seconds : NAN},
	    {"eval/loss", report->eval_loss},
	    {"eval/perplexity", perplexity(report, extra)},
	};
	_cleanup_free_ char *line = metrics_line(report, extra);
	int r = write_line(m, line, err);

	for (size_t i = 0; i < ARRAY_SIZE(scalars) && m->events && r == 0; i++)
		if (!isnan(scalars[i].value))
			r = tfevents_scalar(m->events, report->time, report->step, scalars[i].tag,
			                    scalars[i].value, err);
	if (r == 0 && extra && m->events)
		r = write_extra(m, report, extra, err);
	return r;
}

void metrics_close(struct metrics *m)
{
	if (!m)
		return;
	if (m->fd >= 0)
		close(m->fd);
	tfevents_close(m->events);
	free(m->path);
	free(m);
}
