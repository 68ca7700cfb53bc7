/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the measurements of a run to metrics.jsonl and TensorBoard files. A run that starts again keeps the
 * lines up to the step that it resumes from, and a new run renames the file of an earlier one. */
#include "engine/checkpoint/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/tfevents.h"

struct metrics {
	int fd;
	char *path;
	struct tfevents *events;
};

/* Adds the name of a node as a JSON string. Characters that would need an escape are left out, as no node's
 * name has any. */
static void add_name(struct strbuf *b, const char *key, const char *name)
{
	strbuf_addf(b, ",\"%s\":\"", key);
	for (int i = 0; name[i] && i < 64; i++)
		if ((unsigned char)name[i] > ' ' && name[i] != '"' && name[i] != '\\' && name[i] != 0x7f)
			strbuf_addc(b, name[i]);
	strbuf_addc(b, '"');
}

static void add_number(struct strbuf *b, const char *key, double value)
{
	char text[40];

	strbuf_addf(b, ",\"%s\":%s", key, json_real_text(text, sizeof(text), value));
}

/* Adds a measurement, unless it is NaN: it was not measured. */
static void add_measure(struct strbuf *b, const char *key, double value, double scale)
{
	if (isfinite(value))
		add_number(b, key, fabs(value) < 1e9 ? round(value * scale) / scale : value);
}

static double perplexity(const struct metrics_record *m)
{
	double p = exp(m->eval_loss);

	return isfinite(p) ? p : NAN;
}

const char *metrics_line(char *buf, size_t size, const struct metrics_record *m)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	strbuf_addf(&b, "{\"step\":%" PRId64 ",\"steps\":%" PRId64, m->step, m->steps);
	add_number(&b, "epoch", m->epoch);
	add_number(&b, "loss", m->loss);
	add_number(&b, "learning_rate", m->learning_rate);
	add_number(&b, "grad_norm", m->grad_norm);
	strbuf_addf(&b, ",\"tokens\":%" PRId64, m->tokens);
	add_number(&b, "tokens_per_second", round(m->tokens_per_second * 10) / 10);
	add_number(&b, "eta_seconds", round(m->eta_seconds * 10) / 10);
	add_number(&b, "time", round(m->time * 1000) / 1000);
	add_measure(&b, "step_seconds", m->step_seconds, 1e6);
	add_measure(&b, "compute_seconds", m->compute_seconds, 1e6);
	add_measure(&b, "communication_seconds", m->communication_seconds, 1e6);
	add_measure(&b, "data_seconds", m->data_seconds, 1e6);
	if (m->memory_bytes > 0)
		strbuf_addf(&b, ",\"memory_bytes\":%" PRId64, m->memory_bytes);
	if (m->device_memory_bytes > 0)
		strbuf_addf(&b, ",\"device_memory_bytes\":%" PRId64, m->device_memory_bytes);
	if (m->slowest_rank >= 0) {
		strbuf_addf(&b, ",\"slowest_rank\":%d", m->slowest_rank);
		if (m->slowest_node)
			add_name(&b, "slowest_node", m->slowest_node);
		add_measure(&b, "slowest_seconds", m->slowest_seconds, 1e6);
	}
	if (!isnan(m->eval_loss)) {
		add_number(&b, "eval_loss", m->eval_loss);
		add_measure(&b, "eval_perplexity", perplexity(m), 1e6);
	}
	strbuf_addc(&b, '}');
	snprintf(buf, size, "%s", b.failed || b.len >= size ? "{}" : b.data);
	return buf;
}

/* Bytes of the leading lines that belong to steps up to `step`. */
static size_t kept_bytes(const char *text, size_t len, int64_t step)
{
	size_t kept = 0;

	while (kept < len) {
		const char *line = text + kept, *end = memchr(line, '\n', len - kept);
		_cleanup_json_ json_t *j = NULL;

		/* A line without its newline was being written when the run died. */
		if (!end || json_parse(line, end - line, "", &j, NULL) < 0 ||
		    json_get_int(j, "step", INT64_MAX) > step)
			break;
		kept = end + 1 - text;
	}
	return kept;
}

/* Renames the file of an earlier run to metrics.jsonl.N, with the first N that is free, so that a new run
 * does not remove its measurements. A file that has only marks is overwritten instead. */
static int set_aside(const char *path, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = file_read(path, 0, &text, &len, err);

	if (r < 0 || !strstr(text, "\"loss\":"))
		return r;
	for (int n = 1;; n++) {
		_cleanup_free_ char *free_name = str_printf("%s.%d", path, n);

		if (!free_name)
			return error_oom(err);
		if (file_exists(free_name))
			continue;
		return rename(path, free_name) < 0
		           ? error_errno(err, -errno, "cannot rename %s to %s", path, free_name)
		           : 0;
	}
}

int metrics_open(const char *directory, int64_t resumed_step, bool tensorboard, struct metrics **out,
                 struct error *err)
{
	_cleanup_(metrics_closep) struct metrics *m = calloc(1, sizeof(*m));
	_cleanup_free_ char *text = NULL, *runs = str_path_join(directory, "runs");
	size_t len = 0;
	int r = 0;

	if (!m || !runs)
		return error_oom(err);
	m->fd = -1;
	m->path = str_path_join(directory, "metrics.jsonl");
	if (!m->path)
		return error_oom(err);
	if (resumed_step > 0 && file_exists(m->path)) {
		r = file_read(m->path, 0, &text, &len, err);
		if (r < 0)
			return r;
		len = kept_bytes(text, len, resumed_step);
	} else if (file_exists(m->path) && (r = set_aside(m->path, err)) < 0) {
		return r;
	}
	m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (m->fd < 0 || ftruncate(m->fd, len) < 0)
		return error_errno(err, -errno, "cannot write %s", m->path);
	if (tensorboard && (r = tfevents_open(runs, resumed_step + 1, &m->events, err)) < 0)
		return r;
	*out = steal_pointer(m);
	return 0;
}

/* A line is written by one write(), so that only a crash leaves an incomplete one. */
static int write_line(struct metrics *m, const char *line, struct error *err)
{
	return file_write_all(m->fd, line, strlen(line), err) < 0 ? error_prefix(err, "%s", m->path) : 0;
}

int metrics_text(struct metrics *m, int64_t step, double time, const char *tag, const char *text,
                 struct error *err)
{
	return m->events ? tfevents_text(m->events, time, step, tag, text, err) : 0;
}

int metrics_event(struct metrics *m, int64_t step, double time, const char *event, const json_t *details,
                  const char *text, struct error *err)
{
	_cleanup_free_ char *more = details && json_object_size(details) ? json_to_string(details) : NULL;
	_cleanup_strbuf_ struct strbuf line = {0};
	int r;

	strbuf_addf(&line, "{\"event\":\"%s\",\"step\":%" PRId64, event, step);
	add_number(&line, "time", round(time * 1000) / 1000);
	strbuf_addf(&line, "%s%s\n", more ? "," : "", more ? more + 1 : "}");
	if (line.failed)
		return error_oom(err);
	r = write_line(m, line.data, err);
	return r < 0 ? r : metrics_text(m, step, time, "events", text, err);
}

int metrics_write(struct metrics *m, const struct metrics_record *record, struct error *err)
{
	const struct {
		const char *tag;
		double value;
	} scalars[] = {
	    {"train/loss", record->loss},
	    {"train/learning_rate", record->learning_rate},
	    {"train/grad_norm", record->grad_norm},
	    {"train/epoch", record->epoch},
	    {"perf/tokens_per_second", record->tokens_per_second},
	    {"train/tokens", (double)record->tokens},
	    {"perf/step_seconds", record->step_seconds},
	    {"perf/compute_seconds", record->compute_seconds},
	    {"perf/communication_seconds", record->communication_seconds},
	    {"perf/data_seconds", record->data_seconds},
	    {"perf/memory_bytes", record->memory_bytes > 0 ? (double)record->memory_bytes : NAN},
	    {"perf/device_memory_bytes",
	     record->device_memory_bytes > 0 ? (double)record->device_memory_bytes : NAN},
	    {"perf/slowest_rank", record->slowest_rank >= 0 ? record->slowest_rank : NAN},
	    {"perf/slowest_seconds", record->slowest_rank >= 0 ? record->slowest_seconds : NAN},
	    {"eval/loss", record->eval_loss},
	    {"eval/perplexity", perplexity(record)},
	};
	char line[METRICS_LINE + 1];
	int r;

	metrics_line(line, METRICS_LINE, record);
	strcat(line, "\n");
	r = write_line(m, line, err);
	for (size_t i = 0; i < ARRAY_SIZE(scalars) && m->events && r == 0; i++)
		if (!isnan(scalars[i].value))
			r = tfevents_scalar(m->events, record->time, record->step, scalars[i].tag,
			                    scalars[i].value, err);
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
