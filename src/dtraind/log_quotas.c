/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the logs of all ranks in a thread, for a file system may hang: one pass at a time. */
#include "dtraind/log_quotas.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/background.h"
#include "base/log.h"
#include "node/attempt_files.h"
#include "node/log_quota.h"

/* Seconds: between two passes; until one is no longer waited for, which is when it is said. */
static const double EACH = 1, LONGEST = 60;

struct log_quotas {
	struct daemon *daemon;
	sd_event_source *timer;
	struct background *work; /* NULL: none is under way */
	bool failed;             /* the last pass has, and this was logged */
};

/* What the thread has: copies. */
struct pass {
	char *logs;
	int64_t quota;
	struct pass_rank {
		int64_t run, attempt;
		int rank;
	} * ranks;
	size_t count, capacity;
	struct error error; /* the first one */
};

static void work(void *data)
{
	struct pass *pass = data;

	for (size_t i = 0; i < pass->count; i++) {
		const struct pass_rank *r = &pass->ranks[i];
		_cleanup_free_ char *path = NULL;
		struct error err = ERROR_INIT;
		int64_t removed = 0;

		/* One that is not there any more has nothing to remove. */
		if (attempt_files_log(pass->logs, r->run, r->attempt, r->rank, &path, NULL) < 0)
			continue;
		if (log_quota_apply(path, pass->quota, &removed, &err) < 0 && err.code != -ENOENT &&
		    pass->error.code == 0)
			pass->error = err;
		if (removed > 0)
			log_debug("%s: %lld bytes at its beginning were removed", path, (long long)removed);
	}
}

static void release(void *data)
{
	struct pass *pass = data;

	free(pass->logs);
	free(pass->ranks);
	free(pass);
}

static void on_done(void *context, void *data)
{
	struct log_quotas *q = context;
	const struct pass *pass = data;

	if (!pass) {
		log_warn("log_quota: looking at the logs of this node takes longer than %g s", LONGEST);
		return; /* it goes on */
	}
	q->work = NULL;
	if (pass->error.code < 0 && !q->failed)
		log_warn("a log is larger than log_quota: %s", pass->error.message);
	q->failed = pass->error.code < 0;
}

static int add(struct pass *pass, const struct report *report)
{
	for (size_t i = 0; i < report->rank_count; i++) {
		if (pass->count == pass->capacity) {
			size_t capacity = 2 * pass->capacity + 8;
			struct pass_rank *grown = reallocarray(pass->ranks, capacity, sizeof(*grown));

			if (!grown)
				return -ENOMEM;
			pass->ranks = grown;
			pass->capacity = capacity;
		}
		pass->ranks[pass->count++] =
		    (struct pass_rank){report->run, report->attempt, (int)report->ranks[i].rank};
	}
	return 0;
}

/* The attempts that have ended are looked at, too, as long as the node knows them: the last lines may have
 * been too many. */
static int start(struct log_quotas *q, struct error *err)
{
	const struct daemon_config *config = q->daemon->settings->config;
	struct pass *pass = calloc(1, sizeof(*pass));
	const struct background_task task = {.deadline = LONGEST,
	                                     .work = work,
	                                     .done = on_done,
	                                     .context = q,
	                                     .release = release,
	                                     .data = pass};
	const struct report *report;
	int r = 0;

	if (!pass)
		return error_oom(err);
	pass->logs = strdup(config->log_dir);
	pass->quota = config->log_quota << 20;
	for (size_t i = 0; r == 0 && (report = node_attempt(q->daemon->node, i)); i++)
		r = add(pass, report);
	if (r == 0 && pass->logs && pass->count > 0)
		return background_start(q->daemon->event, &task, &q->work, err);
	r = r == 0 && pass->logs ? 0 : error_oom(err);
	release(pass);
	return r;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *context)
{
	struct log_quotas *q = context;
	struct error err = ERROR_INIT;

	if (!q->work && q->daemon->settings->config->log_quota > 0 && start(q, &err) < 0)
		log_warn("the logs of this node are not looked at: %s", err.message);
	sd_event_source_set_time_relative(source, (uint64_t)(EACH * 1e6));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int log_quotas_create(struct daemon *d, struct log_quotas **out, struct error *err)
{
	struct log_quotas *q = calloc(1, sizeof(*q));
	int r;

	if (!q)
		return error_oom(err);
	q->daemon = d;
	r = sd_event_add_time_relative(d->event, &q->timer, CLOCK_MONOTONIC, (uint64_t)(EACH * 1e6), 250000,
	                               on_timer, q);
	if (r < 0) {
		free(q);
		return error_errno(err, r, "cannot set up the quota of logs");
	}
	*out = q;
	return 0;
}

void log_quotas_destroy(struct log_quotas *q)
{
	if (!q)
		return;
	background_cancel(q->work);
	sd_event_source_disable_unref(q->timer);
	free(q);
}
