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
#include "node/gpu/affinity.h"
#include "node/gpu/device_files.h"
#include "node/launch/launch.h"
#include "node/launch/unit.h"
#include "node/launcher.h"
#include "node/limits.h"

/* How long dtrain-launch has, after the grace of its ranks, until what it has killed is gone. */
static const double KILL_SECONDS = 15.0;

/* The exit status of a rank that was never executed, as the shell has it. */
enum { NOT_EXECUTED = 126 };

struct attempt {
	struct attempt_owner owner;
	struct request *request;
	char *dir;
	struct report report;
	bool ended;
	struct unit *unit;
	struct launcher *launcher;     /* NULL: there is none to speak with */
	bool exited;                   /* dtrain-launch is gone */
	bool lost;                     /* and its last report was not the end */
	bool never_started;            /* it was not even executed */
	bool stopped;                  /* by another than this service */
	bool waiting_for_system_state; /* which tells why it was stopped */
	bool end_waits;                /* for that: the end is not reported before */
	bool no_dir; /* nothing but the record of its start is left: the record stays until it is forgotten */
	char *reason; /* NULL: there is none */
	sd_event_source *announce;
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
	return attempt->ended && unit_is_empty(attempt->unit) && !launcher_is_connected(attempt->launcher);
}

struct stop_times attempt_stop_times(const struct attempt *attempt, enum run_stop how)
{
	const struct run_config *config = attempt->request->config;

	/* Of one that is lost nothing is left to wait for. */
	return config ? run_config_stop_times(config, how) : (struct stop_times){0};
}

const char *attempt_dir(const struct attempt *attempt)
{
	return attempt->dir;
}

void attempt_free(struct attempt *a)
{
	launcher_destroy(a->launcher);
	unit_destroy(a->unit);
	sd_event_source_disable_unref(a->announce);
	report_release(&a->report);
	if (a->request)
		request_free(a->request);
	free(a->dir);
	free(a->reason);
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

/* The same with all ranks in one state. */
static int begin_report(struct attempt *a, enum attempt_state state, enum rank_state ranks, struct error *err)
{
	return first_report(a, state) < 0 || set_ranks(a, ranks) < 0 ? error_oom(err) : 0;
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

static void settle(struct attempt *a)
{
	if (attempt_is_settled(a))
		a->owner.settled(a->owner.context, a);
}

static void take_end(struct attempt *a)
{
	record_end(a);
	launcher_acknowledge(a->launcher);
	a->owner.changed(a->owner.context, a);
}

static void set_lease_reason(struct attempt *a)
{
	_cleanup_free_ char *reason =
	    str_printf("node %s has had no answer of its controller: the lease of the attempt has run out",
	               a->owner.node);

	if (!a->report.shutdown)
		copy_unless_empty(&a->report.shutdown, reason);
}

static void on_reported(void *context, struct launch_report *said)
{
	struct attempt *a = context;

	unit_set_launcher(a->unit, (pid_t)said->launcher);
	if (a->ended || a->lost)
		return;
	copy_unless_empty(&a->reason, said->reason);
	a->report.state = said->state;
	/* The old ranks are released with what was said. */
	swap_ranks(&a->report, said);
	copy_unless_empty(&a->report.reason, a->reason);
	if (said->lease_ended)
		set_lease_reason(a);
	if (said->terminated && !a->stopped) {
		a->stopped = true;
		a->waiting_for_system_state = !a->report.shutdown && unit_ask_stop(a->unit);
	}
	if (said->state == ATTEMPT_ENDED && a->waiting_for_system_state) {
		a->report.state = ATTEMPT_STOPPING;
		a->end_waits = true;
	} else if (said->state == ATTEMPT_ENDED) {
		take_end(a);
	} else {
		a->owner.changed(a->owner.context, a);
	}
}

/* Systemd has stopped the unit: at a shutdown, or because an admin asked systemd to. */
static void on_stopped(void *context, const char *why)
{
	struct attempt *a = context;
	_cleanup_free_ char *reason = *why ? str_printf("%s on node %s", why, a->owner.node)
	                                   : str_printf("node %s was shut down", a->owner.node);

	a->waiting_for_system_state = false;
	if (a->ended)
		return;
	if (!a->report.shutdown)
		copy_unless_empty(&a->report.shutdown, reason);
	if (!a->end_waits)
		return;
	a->report.state = ATTEMPT_ENDED;
	take_end(a);
	settle(a);
}

/* The unit may not notice by itself that dtrain-launch is gone. */
static void on_closed(void *context)
{
	struct attempt *a = context;

	if (!a->exited)
		unit_disconnected(a->unit, !a->ended && !unit_is_watched(a->unit) &&
		                               launcher_reconnect(a->launcher) == 0);
	settle(a);
}

static void finish_lost(struct attempt *a)
{
	for (size_t i = 0; i < a->report.rank_count; i++) {
		struct rank_report *rank = &a->report.ranks[i];

		if (rank->state == RANK_EXITED)
			continue;
		rank->state = RANK_EXITED;
		rank->exit_status = a->never_started ? NOT_EXECUTED : 128 + SIGKILL;
		if (!a->never_started)
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

/* What dtrain-launch has left is killed. That may take long, and the attempt has not ended before. */
static void lose(struct attempt *a, const char *why, bool started)
{
	a->exited = a->lost = true;
	a->never_started = !started;
	launcher_disconnect(a->launcher);
	copy_unless_empty(&a->reason, why);
	log_err("run %lld, attempt %lld: %s", (long long)a->request->run, (long long)a->request->attempt,
	        why);
	a->report.state = ATTEMPT_STOPPING;
	a->report.launcher_lost = true;
	copy_unless_empty(&a->report.reason, a->reason);
	unit_kill(a->unit);
}

static void on_exited(void *context, const char *why, bool started)
{
	struct attempt *a = context;

	a->exited = true;
	/* Its last report may still be on the way. */
	launcher_receive(a->launcher);
	if (a->lost || a->ended || a->end_waits)
		return;
	lose(a, why, started);
	a->owner.changed(a->owner.context, a);
}

/* Of one whose directory was removed, guard and launcher may still live. */
static void on_remaining(void *context)
{
	struct attempt *a = context;

	if (!a->no_dir)
		return;
	log_err("run %lld, attempt %lld: %s was removed while it ran; what is left of it is killed",
	        (long long)a->request->run, (long long)a->request->attempt, a->dir);
	free(a->reason);
	a->reason = str_printf("attempt %lld was started and is lost: its directory was removed while it ran",
	                       (long long)a->request->attempt);
}

static void on_empty(void *context)
{
	struct attempt *a = context;

	if (a->lost && !a->ended)
		finish_lost(a);
	settle(a);
}

static struct unit_owner unit_owner(struct attempt *a)
{
	return (struct unit_owner){.context = a,
	                           .exited = on_exited,
	                           .stopped = on_stopped,
	                           .remaining = on_remaining,
	                           .empty = on_empty};
}

static struct unit_identity unit_identity(const struct attempt *a)
{
	const struct request *q = a->request;

	return (struct unit_identity){.run = q->run, .attempt = q->attempt, .dir = a->dir};
}

static struct launcher_owner launcher_owner(struct attempt *a)
{
	return (struct launcher_owner){.event = a->owner.event,
	                               .run = a->request->run,
	                               .context = a,
	                               .reported = on_reported,
	                               .closed = on_closed};
}

static int connect_launcher(struct attempt *a, struct error *err)
{
	const struct launcher_owner owner = launcher_owner(a);

	return launcher_connect(&owner, a->dir, &a->launcher, err);
}

static int make_unit(struct attempt *a, struct error *err)
{
	const struct unit_owner owner = unit_owner(a);
	const struct unit_identity identity = unit_identity(a);

	return unit_new(a->owner.units, &identity, &owner, &a->unit, err);
}

static int find_unit(struct attempt *a, const struct unit_names *names, struct error *err)
{
	const struct unit_owner owner = unit_owner(a);
	const struct unit_identity identity = unit_identity(a);

	return unit_find(a->owner.units, &identity, names, &owner, &a->unit, err);
}

/* The CPUs of all ranks together, owned by the caller; NULL: any. */
static char *all_cpus(const struct launch_description *launch)
{
	cpu_set_t all, cpus;

	CPU_ZERO(&all);
	for (size_t i = 0; i < launch->rank_count; i++) {
		if (!launch->ranks[i].cpus || affinity_parse(launch->ranks[i].cpus, &cpus) < 0)
			return NULL;
		CPU_OR(&all, &all, &cpus);
	}
	return affinity_format(&all);
}

static int start_launcher(struct attempt *a, const struct request_place *place,
                          const struct launch_description *launch, const char *program, struct error *err)
{
	const struct launcher_owner owner = launcher_owner(a);
	const struct request *q = a->request;
	char **devices;
	_cleanup_free_ char *cpus = NULL;
	_cleanup_close_ int listen_fd = -1;
	struct cgroup_limits limits = limits_of(place->config, q->slot_count);
	struct unit_start start = {.program = program, .user = q->user, .limits = &limits};
	int r = launcher_listen(&owner, a->dir, &listen_fd, &a->launcher, err);

	if (r < 0)
		return r;
	devices = device_files("", place->devices, q->slots, q->slot_count, place->config->allow_devices);
	if (!devices)
		return error_oom(err);
	cpus = all_cpus(launch);
	start.listen_fd = listen_fd;
	start.stop_seconds = launch->save + launch->grace + KILL_SECONDS;
	start.devices = (const char *const *)devices;
	limits.cpus = cpus;
	r = unit_start(a->unit, &start, err);
	str_list_free(devices);
	return r;
}

/* As launch.json has it: that of an earlier dtraind may be another. */
static int find_own_unit(struct attempt *a, struct error *err)
{
	_cleanup_(launch_description_release) struct launch_description launch = {0};

	attempt_files_read_launch(a->dir, &launch, NULL);
	return find_unit(a, &(struct unit_names){.cgroup = launch.cgroup, .service = launch.service}, err);
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
	_cleanup_(launch_description_release) struct launch_description launch = {0};
	int r;

	if (!a || !program)
		return error_oom(err);
	a->request = request;
	if ((r = make_unit(a, err)) < 0 ||
	    (r = attempt_files_make(
	         a->dir, request, place, user, unit_names(a->unit),
	         stop_times_within(attempt_stop_times(a, RUN_STOP_SAVE), place->config->shutdown_grace),
	         &launch, err)) < 0 ||
	    (r = begin_report(a, ATTEMPT_STARTING, RANK_STARTING, err)) < 0 ||
	    (r = start_launcher(a, place, &launch, program, err)) < 0) {
		a->request = NULL; /* the caller's still */
		unit_cancel(a->unit);
		file_remove_tree(a->dir, NULL);
		return r;
	}
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

/* No process has the socket, and none has made the first file: dtraind was killed before dtrain-launch was
 * executed. */
static bool has_never_begun(const struct attempt *a, int connected)
{
	_cleanup_free_ char *begun = str_path_join(a->dir, LAUNCH_BEGUN);

	return (connected == -ECONNREFUSED || connected == -ENOENT) && begun && !file_exists(begun);
}

/* Of an attempt whose end is not on record. */
static int adopt_running(struct attempt *a, struct error *err)
{
	int r = begin_report(a, ATTEMPT_RUNNING, RANK_RUNNING, err), connected;

	if (r < 0)
		return r;
	connected = connect_launcher(a, NULL);
	if (has_never_begun(a, connected)) {
		unit_cancel(a->unit);
		return error_set(err, -ECANCELED, "dtraind was killed before it had started dtrain-launch");
	}
	if (connected < 0)
		lose(a, "dtrain-launch is gone: it was killed while dtraind did not run", true);
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
	r = find_own_unit(a, err);
	if (r < 0)
		return r;
	if (file_exists(ended)) {
		r = read_end(a, ended, err);
		if (r == 0)
			r = sd_event_add_defer(owner->event, &a->announce, on_announce, a);
		a->ended = true;
		/* dtrain-launch may not have got the acknowledgement. */
		if (r >= 0 && connect_launcher(a, NULL) == 0)
			launcher_acknowledge(a->launcher);
		else if (r >= 0)
			unit_disconnected(a->unit, false);
	} else {
		r = adopt_running(a, err);
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
	int r;

	if (!a)
		return error_oom(err);
	a->lost = a->no_dir = true;
	a->request = request;
	a->reason = str_printf("attempt %lld was started and is lost: was the machine restarted?",
	                       (long long)request->attempt);
	if ((r = first_report(a, ATTEMPT_STOPPING)) < 0 ||
	    (r = find_unit(a, &(struct unit_names){.cgroup = request->cgroup, .service = request->service},
	                   err)) < 0) {
		a->request = NULL; /* the caller's still */
		return error_errno(err, r, "run %lld", (long long)request->run);
	}
	unit_kill(a->unit);
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

void attempt_stop(struct attempt *a, struct stop_times times)
{
	if (a->ended || a->lost)
		return;
	launcher_stop(a->launcher, times);
}

void attempt_end_lease(struct attempt *a, double seconds)
{
	if (a->ended)
		return;
	set_lease_reason(a);
	attempt_stop(a, stop_times_within(attempt_stop_times(a, RUN_STOP_SAVE), seconds * 0.8));
}

void attempt_confirm(struct attempt *a)
{
	if (!a->ended && !a->lost)
		launcher_confirm(a->launcher);
}

void attempt_shut_down(struct attempt *a, struct stop_times times, const char *reason)
{
	if (a->ended)
		return;
	copy_unless_empty(&a->report.shutdown, reason);
	attempt_stop(a, times);
}
