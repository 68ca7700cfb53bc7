/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a run say and ask: progress, first causes, and the rendezvous. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/rendezvous.h"
#include "controller/controller.h"
#include "controller/runs.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "wire/worker_event.h"

/* The longest report: the last one stays in memory. */
enum { REPORT_MAX = METRICS_REPORT_MAX };
/* What a run may have us keep. A million steps take less; beyond it only the last report is known. */
enum { METRICS_MAX = 256 << 20 };

/* Owned by the caller. */
static char *run_directory(struct daemon *d, int64_t id)
{
	return str_printf("%s/runs/%lld", d->settings->config->state_dir, (long long)id);
}

char *metrics_path(struct daemon *d, int64_t run)
{
	_cleanup_free_ char *dir = run_directory(d, run);

	return dir ? str_printf("%s/metrics.jsonl", dir) : NULL;
}

/* What a run may keep in our memory as keys: NCCL's ids and UCX's addresses take a few KiB of each rank. */
enum { RENDEZVOUS_BYTES = 2 << 20, RENDEZVOUS_RANK_BYTES = 64 << 10, RENDEZVOUS_MOST = 64 << 20 };

static int append_metrics(struct daemon *d, int64_t run, const char *text, size_t len, struct error *err)
{
	_cleanup_free_ char *dir = run_directory(d, run), *path = metrics_path(d, run);
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	if (!dir || !path)
		return error_oom(err);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0) {
		r = file_mkdirs(dir, 0755, err);
		if (r < 0)
			return r;
		fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	}
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (fstat(fd, &st) == 0 && st.st_size > METRICS_MAX)
		return 0;
	return file_write_all(fd, text, len, err);
}

/* What a POST of metrics holds: the lines in one piece with all line ends, the last of them, and the step of
 * the newest checkpoint that they name, 0 where they name none. */
struct lines {
	struct strbuf text;
	json_t *last;
	int64_t checkpoint;
};

static void lines_release(struct lines *lines)
{
	strbuf_free(&lines->text);
	json_decref(lines->last);
}

/* One line. What says that there is a checkpoint, and nothing else, is no progress. */
static int take_line(struct lines *lines, const char *text, size_t len, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	int64_t checkpoint;

	if (json_parse(text, len, "metrics", &json, err) < 0)
		return -EINVAL;
	if (!json_is_object(json))
		return error_set(err, -EINVAL, "metrics: a JSON object per line is needed");
	checkpoint = json_get_int(json, "checkpoint", 0);
	lines->checkpoint = MAX(lines->checkpoint, checkpoint);
	if (checkpoint > 0 && json_object_size(json) == 1)
		return 0;
	json_decref(lines->last);
	lines->last = json_incref(json);
	strbuf_add(&lines->text, text, len);
	strbuf_addc(&lines->text, '\n');
	return 0;
}

static int check_lines(const char *text, size_t len, struct lines *lines, struct error *err)
{
	while (len > 0) {
		const char *nl = memchr(text, '\n', len);
		size_t n = nl ? (size_t)(nl - text) : len;

		if (n > REPORT_MAX)
			return error_set(err, -EINVAL,
			                 "metrics: a line of %zu bytes: at most %d are possible", n,
			                 REPORT_MAX);
		if (n > 0 && take_line(lines, text, n, err) < 0)
			return -EINVAL;
		text += nl ? n + 1 : n;
		len -= nl ? n + 1 : n;
	}
	return lines->text.failed ? error_oom(err) : 0;
}

/* A run that is under way, and belongs to the caller: what workers may speak about. */
static const struct run *find_live(struct daemon *d, struct http_request *r)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *run = route_find_run(d->controller, r, true, &owned);

	if (!owned)
		return run;
	http_reply_error(r, 409, "ended", "run %lld has ended", (long long)run->id);
	return NULL;
}

/* What an attempt before this one still says does not count. */
static int check_attempt(struct http_request *r, const struct run *run, int64_t *attempt)
{
	if (http_request_query_int(r, "attempt", 1, INT64_MAX, run->attempt, attempt) < 0)
		return -EINVAL;
	if (*attempt == run->attempt && run->state != RUN_QUEUED)
		return 0;
	http_reply_error(r, 410, "stale-attempt", "run %lld: attempt %lld is not under way",
	                 (long long)run->id, (long long)*attempt);
	return -ESTALE;
}

void route_metrics_post(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(lines_release) struct lines lines = {0};
	struct error err = ERROR_INIT;
	int64_t attempt;
	const struct run *run;
	const char *text;
	size_t len;

	run = find_live(d, r);
	if (!run || check_attempt(r, run, &attempt) < 0)
		return;
	text = http_request_body(r, &len);
	if (check_lines(text, len, &lines, &err) < 0) {
		reply_not_taken(r, "bad-json", &err);
		return;
	}
	if (lines.last) {
		if (append_metrics(d, run->id, lines.text.data, lines.text.len, &err) < 0)
			log_warn("run %lld: %s", (long long)run->id, err.message);
		controller_set_progress(d->controller, run->id, lines.last, lines.text.data, lines.text.len);
	}
	if (lines.checkpoint > 0)
		controller_set_checkpoint(d->controller, run->id, lines.checkpoint);
	http_reply_json(r, 200, json_object());
}

void route_worker_event(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_(worker_event_release) struct worker_event event = {0};
	_cleanup_json_ json_t *body = NULL;
	struct error err = ERROR_INIT;
	int64_t attempt;
	char fields[64];
	bool lost_peer;
	const struct run *run;

	run = find_live(d, r);
	body = run && check_attempt(r, run, &attempt) == 0 ? http_request_json(r) : NULL;
	if (!body)
		return;
	if (worker_event_decode(body, &event, &err) < 0) {
		reply_not_taken(r, "bad-json", &err);
		return;
	}
	lost_peer = str_eq(event.kind, WORKER_PEER_LOST);
	if (lost_peer || str_eq(event.kind, WORKER_ERROR)) {
		snprintf(fields, sizeof(fields), "RUN_ID=%lld\nRANK=%lld", (long long)run->id,
		         (long long)event.rank);
		/* Its words are for the owner: not for the journal. */
		log_write(LOG_WARNING, fields, "run %lld: rank %lld reports %s", (long long)run->id,
		          (long long)event.rank, lost_peer ? "that it has lost a peer" : "an error");
		controller_worker_error(d->controller, run->id, event.rank,
		                        event.message ? event.message : "", lost_peer);
	}
	http_reply_json(r, 200, json_object());
}

void route_rendezvous_put(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct error err = ERROR_INIT;
	int64_t attempt, max;
	const struct run *run;
	const void *body;
	size_t len;
	int code;

	run = find_live(d, r);
	if (!run || check_attempt(r, run, &attempt) < 0)
		return;
	body = http_request_body(r, &len);
	max = MIN(RENDEZVOUS_BYTES + run->nodes * run->per_node * RENDEZVOUS_RANK_BYTES, RENDEZVOUS_MOST);
	code = rendezvous_put(controller_rendezvous(d->controller), run->id, attempt, max,
	                      http_request_capture(r, 1), body, len, &err);
	if (code == -ENOSPC)
		http_reply_error(r, 413, "rendezvous", "%s", err.message);
	else if (code < 0)
		reply_not_taken(r, "rendezvous", &err);
	else
		http_reply_json(r, 200, json_object());
}

/* A get that waits for its key: ended by the key, the time, the end of the attempt, or the caller. */
struct key_wait {
	struct http_request *request;
	struct rendezvous_waiter *waiter;
	sd_event_source *timer;
};

static void key_wait_free(struct key_wait *w)
{
	if (w->waiter)
		rendezvous_unwait(w->waiter);
	sd_event_source_disable_unref(w->timer);
	free(w);
}

static void on_key(void *context, const void *value, size_t len)
{
	struct key_wait *w = context;

	w->waiter = NULL;
	http_request_on_close(w->request, NULL, NULL);
	if (value)
		http_reply_bytes(w->request, 200, "application/octet-stream", value, len);
	else
		http_reply_error(w->request, 410, "stale-attempt", "the attempt has ended");
	key_wait_free(w);
}

static int on_key_timeout(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct key_wait *w = userdata;

	http_request_on_close(w->request, NULL, NULL);
	http_reply_error(w->request, 404, "no-such-key", "no rank has put this key within the time");
	key_wait_free(w);
	return 0;
}

static void on_key_closed(void *context)
{
	key_wait_free(context);
}

static void wait_for_key(struct daemon *d, struct http_request *r, const struct run *run, int64_t attempt,
                         double seconds)
{
	struct key_wait *w = calloc(1, sizeof(*w));
	struct error err = ERROR_INIT;
	uint64_t now;

	sd_event_now(d->event, CLOCK_MONOTONIC, &now);
	if (w)
		w->request = r;
	else
		error_oom(&err);
	if (!w ||
	    sd_event_add_time(d->event, &w->timer, CLOCK_MONOTONIC, now + (uint64_t)(seconds * 1e6), 1000,
	                      on_key_timeout, w) < 0 ||
	    rendezvous_wait(controller_rendezvous(d->controller), run->id, attempt,
	                    http_request_capture(r, 1), on_key, w, &w->waiter, &err) < 0) {
		if (w)
			key_wait_free(w);
		http_reply_error(r, 500, "rendezvous", "%s", err.message);
		return;
	}
	http_request_on_close(r, on_key_closed, w);
}

void route_rendezvous_get(void *context, struct http_request *r)
{
	struct daemon *d = context;
	const char *wait = http_request_query(r, "wait");
	struct error err = ERROR_INIT;
	double seconds = 0;
	int64_t attempt;
	const struct run *run;
	const void *value;
	size_t len;
	int code;

	run = find_live(d, r);
	if (!run || check_attempt(r, run, &attempt) < 0)
		return;
	if (wait && (str_to_double(wait, &seconds) < 0 || seconds < 0 || seconds > 86400)) {
		http_reply_error(r, 400, "bad-query", "wait=%s: seconds from 0 to 86400 are needed", wait);
		return;
	}
	code = rendezvous_get(controller_rendezvous(d->controller), run->id, attempt,
	                      http_request_capture(r, 1), &value, &len, &err);
	if (code == 0)
		http_reply_bytes(r, 200, "application/octet-stream", value, len);
	else if (code == -ENOENT && seconds > 0)
		wait_for_key(d, r, run, attempt, seconds);
	else
		http_reply_error(r, code == -ENOENT ? 404 : 400,
		                 code == -ENOENT ? "no-such-key" : "rendezvous", "%s", err.message);
}
