/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt on this node: what its dtrain-launch reports, the end that is on record, and what a lost one
 * left. */
#include "node/attempt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/attempt_files.h"
#include "node/launch/cgroup.h"
#include "node/launch/processes.h"
#include "node/launcher.h"

/* Between two looks for what a killed launcher left behind. */
enum { ORPHANS_AGAIN_USEC = 20000 };

struct attempt {
	struct attempt_owner owner;
	struct request *request;
	char *dir;
	struct report report;
	bool ended;
	struct launcher *launcher; /* NULL: there is none to speak with */
	char *cgroup;              /* NULL: none */
	bool lost;                 /* dtrain-launch is gone, and its last report was not the end */
	bool no_dir; /* nothing but the record of its start is left: the record stays until it is forgotten */
	bool found;  /* and some of its processes were */
	char reason[128];
	sd_event_source *orphans, *announce;
};

const struct request *attempt_request(const struct attempt *attempt)
{
	return attempt->request;
}

const struct report *attempt_report(const struct attempt *attempt)
{
	return &attempt->report;
}

bool attempt_has_ended(const struct attempt *attempt)
{
	return attempt->ended;
}

bool attempt_is_settled(const struct attempt *attempt)
{
	return attempt->ended && launcher_is_gone(attempt->launcher);
}

pid_t attempt_launcher(const struct attempt *attempt)
{
	return attempt->lost ? 0 : launcher_pid(attempt->launcher);
}

double attempt_grace(const struct attempt *attempt)
{
	/* Of one that is lost nothing is left to wait for. */
	return attempt->request->config ? (double)attempt->request->config->resources.grace : 0;
}

const char *attempt_dir(const struct attempt *attempt)
{
	return attempt->dir;
}

void attempt_free(struct attempt *a)
{
	launcher_destroy(a->launcher);
	free(a->cgroup);
	sd_event_source_disable_unref(a->orphans);
	sd_event_source_disable_unref(a->announce);
	report_release(&a->report);
	if (a->request)
		request_free(a->request);
	free(a->dir);
	free(a);
}

DEFINE_CLEANUP(struct attempt *, attempt_free)

/* All ranks in that state, without a process. */
static int set_ranks(struct attempt *a, enum rank_state state)
{
	const struct request *q = a->request;
	struct rank_report *ranks = calloc(q->rank_count + 1, sizeof(*ranks));

	if (!ranks)
		return -ENOMEM;
	for (size_t i = 0; i < q->rank_count; i++)
		ranks[i] = (struct rank_report){
		    .rank = q->ranks[i].rank, .slot = q->ranks[i].slot, .state = state, .exit_status = -1};
	free(a->report.ranks);
	a->report.ranks = ranks;
	a->report.rank_count = q->rank_count;
	return 0;
}

/* In a report what is empty is absent. */
static int copy_unless_empty(char **to, const char *from)
{
	return str_replace(to, from && *from ? from : NULL);
}

/* The report of an attempt of which no report is known yet. */
static int first_report(struct attempt *a, enum attempt_state state)
{
	const struct request *q = a->request;
	struct report *report = &a->report;

	report->run = q->run;
	report->attempt = q->attempt;
	report->state = state;
	report->epoch = *q->cluster ? q->epoch : 0;
	if (copy_unless_empty(&report->node, a->owner.node) < 0 ||
	    copy_unless_empty(&report->cluster, q->cluster) < 0 ||
	    copy_unless_empty(&report->user, q->user) < 0 ||
	    copy_unless_empty(&report->name, q->config ? q->config->name : NULL) < 0)
		return -ENOMEM;
	return copy_unless_empty(&report->reason, a->reason);
}

/* Error files that stayed empty tell nothing. */
static void sweep_logs(struct attempt *a)
{
	_cleanup_(launch_description_release) struct launch_description launch = {0};

	if (attempt_files_read_launch(a->dir, &launch, NULL) < 0)
		return;
	for (size_t i = 0; i < launch.rank_count; i++) {
		const char *file = launch.ranks[i].error_file;
		struct stat st;

		if (file && lstat(file, &st) == 0 && st.st_size == 0)
			unlink(file);
	}
}

/* The end is on record before dtrain-launch may forget it. */
static void record_end(struct attempt *a)
{
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	a->ended = true;
	json = report_encode(&a->report);
	if (attempt_file_write(a->dir, "ended.json", json, geteuid(), 0600, &err) < 0)
		log_err("%s", err.message);
	sweep_logs(a);
}

/* What each of them has, the other has afterwards. */
static void swap_ranks(struct report *report, struct launch_report *said)
{
	struct rank_report *ranks = report->ranks;
	size_t count = report->rank_count;

	report->ranks = said->ranks;
	report->rank_count = said->rank_count;
	said->ranks = ranks;
	said->rank_count = count;
}

static void on_reported(void *context, struct launch_report *said)
{
	struct attempt *a = context;

	if (a->ended || a->lost)
		return;
	snprintf(a->reason, sizeof a->reason, "%s", said->reason ? said->reason : "");
	a->report.state = said->state;
	/* The old ranks are released with what was said. */
	swap_ranks(&a->report, said);
	copy_unless_empty(&a->report.reason, a->reason);
	if (said->state == ATTEMPT_ENDED) {
		record_end(a);
		launcher_acknowledge(a->launcher);
	}
	a->owner.changed(a->owner.context, a);
}

/* The last callback: dtrain-launch is gone, and its control group with it. */
static void settle(void *context)
{
	struct attempt *a = context;

	if (!attempt_is_settled(a))
		return;
	if (a->cgroup)
		cgroup_remove(a->cgroup);
	a->owner.settled(a->owner.context, a);
}

static void finish_lost(struct attempt *a)
{
	for (size_t i = 0; i < a->report.rank_count; i++) {
		struct rank_report *rank = &a->report.ranks[i];

		if (rank->state == RANK_EXITED)
			continue;
		rank->state = RANK_EXITED;
		rank->exit_status = 128 + SIGKILL;
		copy_unless_empty(&rank->signal, "SIGKILL");
		rank->ended = clock_realtime();
		rank->stopped = true;
	}
	a->report.state = ATTEMPT_ENDED;
	copy_unless_empty(&a->report.reason, a->reason);
	if (a->no_dir) {
		a->ended = true;
		a->report.lost = true;
	} else {
		record_end(a);
	}
	a->owner.changed(a->owner.context, a);
}

/* What a killed launcher left. The guard of dtrain-launch has ended it, unless it was killed, too. Then the
 * control group knows all of it; without one our own orphans are what became our children. Of a launcher that
 * an earlier dtraind started these became init's: those are known by their environment, if they left it as it
 * was. Where the attempt's directory was removed, guard and launcher may still live. */
static bool kill_orphans(struct attempt *a)
{
	_cleanup_free_ char *run = str_printf("DTRAIN_RUN_ID=%lld", (long long)a->request->run);
	_cleanup_free_ char *number = str_printf("DTRAIN_ATTEMPT=%lld", (long long)a->request->attempt);
	_cleanup_free_ char *where = str_printf("DTRAIN_SOCKET=%s", a->owner.socket);
	_cleanup_free_ char *cluster = str_printf("DTRAIN_CLUSTER=%s", a->request->cluster);
	const char *marks[] = {run, number, where, *a->request->cluster ? cluster : NULL, NULL};
	int left;

	if (!run || !number || !where || !cluster)
		return true;
	left = a->cgroup ? cgroup_kill(a->cgroup) : 0;
	if (a->no_dir)
		left += processes_signal_launcher(a->dir, SIGKILL);
	else
		left += processes_signal_orphans(a->owner.is_launcher, a->owner.context, SIGKILL);
	left += processes_signal_marked(a->request->uid, marks, SIGKILL);
	return left > 0;
}

static int on_orphans(sd_event_source *source, uint64_t usec, void *context)
{
	struct attempt *a = context;

	if (!kill_orphans(a)) {
		a->orphans = sd_event_source_disable_unref(a->orphans);
		finish_lost(a);
		settle(a);
		return 0;
	}
	if (a->no_dir && !a->found) {
		a->found = true;
		log_err("run %lld, attempt %lld: %s was removed while it ran; what is left of it is killed",
		        (long long)a->request->run, (long long)a->request->attempt, a->dir);
		snprintf(a->reason, sizeof a->reason,
		         "attempt %lld was started and is lost: its directory was removed while it ran",
		         (long long)a->request->attempt);
	}
	sd_event_source_set_time_relative(source, ORPHANS_AGAIN_USEC);
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static int look_for_orphans(struct attempt *a)
{
	return sd_event_add_time_relative(a->owner.event, &a->orphans, CLOCK_MONOTONIC, 0, 1000, on_orphans,
	                                  a);
}

static void mark_launcher_lost(void *context, const char *why)
{
	struct attempt *a = context;

	if (a->lost || a->ended)
		return;
	a->lost = true;
	launcher_disconnect(a->launcher);
	snprintf(a->reason, sizeof a->reason, "%s", why);
	log_err("run %lld, attempt %lld: %s", (long long)a->request->run, (long long)a->request->attempt,
	        why);
	if (look_for_orphans(a) < 0)
		log_err("cannot look for what is left of run %lld", (long long)a->request->run);
}

static struct launcher_owner launcher_owner(struct attempt *a)
{
	return (struct launcher_owner){.event = a->owner.event,
	                               .run = a->request->run,
	                               .context = a,
	                               .reported = on_reported,
	                               .lost = mark_launcher_lost,
	                               .closed = settle};
}

static int connect_launcher(struct attempt *a, struct error *err)
{
	const struct launcher_owner owner = launcher_owner(a);

	return launcher_connect(&owner, a->dir, &a->launcher, err);
}

static int start_launcher(struct attempt *a, const char *program, struct error *err)
{
	const struct launcher_owner owner = launcher_owner(a);

	return launcher_start(&owner, a->dir, program, &a->launcher, err);
}

/* Where none can be made, the subreapers are what there is. */
static void make_cgroup(struct attempt *a)
{
	const char *name = strrchr(a->dir, '/');

	if (a->owner.cgroups && name)
		a->cgroup = str_printf("%s%s", a->owner.cgroups, name);
	if (a->cgroup && cgroup_create(a->cgroup) < 0)
		free(steal_pointer(a->cgroup));
}

/* As launch.json has it: that of an earlier dtraind may be another. */
static void find_cgroup(struct attempt *a)
{
	_cleanup_(launch_description_release) struct launch_description launch = {0};

	if (attempt_files_read_launch(a->dir, &launch, NULL) == 0)
		a->cgroup = steal_pointer(launch.cgroup);
}

static struct attempt *attempt_new(const struct attempt_owner *owner, const char *dir)
{
	struct attempt *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->owner = *owner;
	a->dir = strdup(dir);
	if (!a->dir) {
		attempt_free(a);
		return NULL;
	}
	return a;
}

int attempt_start(const struct attempt_owner *owner, struct request *request,
                  const struct request_place *place, const struct run_user *user, struct attempt **out,
                  struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, place->dir);
	_cleanup_free_ char *program = str_printf("%s/dtrain-launch", place->config->worker_dir);
	int r;

	if (!a || !program)
		return error_oom(err);
	make_cgroup(a);
	a->request = request;
	if ((r = attempt_files_make(a->dir, request, place, user, a->cgroup, attempt_grace(a), err)) < 0 ||
	    (r = start_launcher(a, program, err)) < 0) {
		a->request = NULL; /* the caller's still */
		if (a->cgroup)
			cgroup_remove(a->cgroup);
		file_remove_tree(a->dir, NULL);
		return r;
	}
	if (first_report(a, ATTEMPT_STARTING) < 0 || set_ranks(a, RANK_STARTING) < 0)
		log_err("run %lld: out of memory", (long long)request->run);
	*out = steal_pointer(a);
	return 0;
}

static int on_announce(sd_event_source *source, void *context)
{
	struct attempt *a = context;

	a->announce = sd_event_source_disable_unref(a->announce);
	a->owner.changed(a->owner.context, a);
	return 0;
}

static int read_end(struct attempt *a, const char *path, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	int r = json_read_file(path, &json, err);

	if (r < 0 || (r = report_decode(json, &a->report, err)) < 0)
		return r;
	/* Version 0.1.0 wrote neither the user nor the name. */
	if (!a->report.user)
		copy_unless_empty(&a->report.user, a->request->user);
	if (!a->report.name)
		copy_unless_empty(&a->report.name, a->request->config->name);
	return 0;
}

int attempt_adopt(const struct attempt_owner *owner, const char *dir, struct attempt **out, struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, dir);
	_cleanup_free_ char *request = str_path_join(dir, "request.json");
	_cleanup_free_ char *ended = str_path_join(dir, "ended.json");
	_cleanup_json_ json_t *json = NULL;
	struct start_request start;
	int r;

	if (!a || !request || !ended)
		return error_oom(err);
	if ((r = json_read_file(request, &json, err)) < 0 ||
	    (r = start_request_decode(json, &start, err)) < 0 ||
	    (r = request_new(&start, &a->request, err)) < 0)
		return r;
	find_cgroup(a);
	if (file_exists(ended)) {
		r = read_end(a, ended, err);
		if (r == 0)
			r = sd_event_add_defer(owner->event, &a->announce, on_announce, a);
		a->ended = true;
		/* dtrain-launch may not have got the acknowledgement. */
		if (r >= 0 && connect_launcher(a, NULL) == 0)
			launcher_acknowledge(a->launcher);
		else if (r >= 0 && a->cgroup)
			cgroup_remove(a->cgroup);
	} else {
		r = first_report(a, ATTEMPT_RUNNING);
		if (r == 0)
			r = set_ranks(a, RANK_RUNNING);
		if (r == 0 && connect_launcher(a, err) < 0)
			mark_launcher_lost(a,
			                   "dtrain-launch is gone: it was killed while dtraind did not run");
	}
	if (r < 0)
		return r;
	*out = steal_pointer(a);
	return 0;
}

int attempt_lost(const struct attempt_owner *owner, const char *dir, struct request *request,
                 struct attempt **out, struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, dir);
	_cleanup_free_ char *name =
	    str_printf("/%lld.%lld", (long long)request->run, (long long)request->attempt);
	int r;

	if (!a || !name)
		return error_oom(err);
	a->lost = a->no_dir = true;
	a->request = request;
	if (request->cgroup)
		a->cgroup = strdup(request->cgroup);
	else if (owner->cgroups)
		a->cgroup = str_printf("%s%s", owner->cgroups, name);
	snprintf(a->reason, sizeof a->reason,
	         "attempt %lld was started and is lost: was the machine restarted?",
	         (long long)request->attempt);
	if ((r = first_report(a, ATTEMPT_STOPPING)) < 0 || (r = look_for_orphans(a)) < 0) {
		a->request = NULL; /* the caller's still */
		return error_errno(err, r, "run %lld", (long long)request->run);
	}
	*out = steal_pointer(a);
	return 0;
}

void attempt_add_error(struct attempt *a, const char *text)
{
	char **list;
	size_t n = 0;

	if (a->ended)
		return;
	while (a->report.device_errors && a->report.device_errors[n])
		n++;
	list = reallocarray(a->report.device_errors, n + 2, sizeof(*list));
	if (!list)
		return;
	a->report.device_errors = list;
	list[n] = strdup(text);
	list[n + 1] = NULL;
}

void attempt_stop(struct attempt *a, double grace)
{
	if (a->ended || a->lost)
		return;
	launcher_stop(a->launcher, grace);
}

void attempt_shut_down(struct attempt *a, double grace, const char *reason)
{
	if (a->ended)
		return;
	copy_unless_empty(&a->report.shutdown, reason);
	attempt_stop(a, grace);
}
