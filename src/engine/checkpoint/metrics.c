/* SPDX-License-Identifier: Apache-2.0 */
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

const char *metrics_line(char *buf, size_t size, const struct metrics_record *m)
{
	char epoch[40], loss[40], rate[40], norm[40], speed[40], eta[40], eval[40], time[40];
	int n;

	n = snprintf(buf, size,
	             "{\"step\":%" PRId64 ",\"steps\":%" PRId64
	             ",\"epoch\":%s,\"loss\":%s,\"learning_rate\":%s,\"grad_norm\":%s,\"tokens\":%" PRId64
	             ",\"tokens_per_second\":%s,\"eta_seconds\":%s,\"time\":%s",
	             m->step, m->steps, json_real_text(epoch, sizeof(epoch), m->epoch),
	             json_real_text(loss, sizeof(loss), m->loss),
	             json_real_text(rate, sizeof(rate), m->learning_rate),
	             json_real_text(norm, sizeof(norm), m->grad_norm), m->tokens,
	             json_real_text(speed, sizeof(speed), round(m->tokens_per_second * 10) / 10),
	             json_real_text(eta, sizeof(eta), round(m->eta_seconds * 10) / 10),
	             json_real_text(time, sizeof(time), round(m->time * 1000) / 1000));
	if (!isnan(m->eval_loss))
		n += snprintf(buf + n, size - n, ",\"eval_loss\":%s",
		              json_real_text(eval, sizeof(eval), m->eval_loss));
	snprintf(buf + n, size - n, "}");
	return buf;
}

/* Bytes of the leading lines that belong to steps up to `step`. */
static size_t kept_bytes(const char *text, size_t len, int64_t step)
{
	size_t kept = 0;

	while (kept < len) {
		const char *line = text + kept, *end = memchr(line, '\n', len - kept);
		_cleanup_json_ json_t *j = NULL;

		/* A line without its end was being written when the run died. */
		if (!end || json_parse(line, end - line, "", &j, NULL) < 0 ||
		    json_get_int(j, "step", INT64_MAX) > step)
			break;
		kept = end + 1 - text;
	}
	return kept;
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
	}
	m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (m->fd < 0 || ftruncate(m->fd, len) < 0)
		return error_errno(err, -errno, "cannot write %s", m->path);
	if (tensorboard)
		r = tfevents_open(runs, resumed_step + 1, &m->events, err);
	if (r == 0)
		*out = steal_pointer(m);
	return r;
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
	    {"eval/loss", record->eval_loss},
	};
	char line[METRICS_LINE + 1];
	int r = 0;

	metrics_line(line, METRICS_LINE, record);
	strcat(line, "\n");
	/* One write a line: a reader never sees half of one but at a crash. */
	if (file_write_all(m->fd, line, strlen(line), err) < 0)
		return error_prefix(err, "%s", m->path);
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
