/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt between its unit and its launcher, both of which this file stands in for: what is reported in
 * which order. */
#include "unit.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "config/daemon.h"
#include "node/attempt.h"
#include "node/launch/run_user.h"
#include "node/launcher.h"
#include "node/request.h"

static struct strbuf trace; /* what the attempt did, a word for each */

static void add(const char *word)
{
	strbuf_addf(&trace, "%s ", word);
}

static void check_trace(const char *want)
{
	ck_assert_str_eq(trace.data ? trace.data : "", want);
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
}

/* ---- the unit ---- */

struct unit {
	struct unit_owner owner;
	struct unit_identity identity;
	bool empty, watched, asks; /* asks: the reason of a stop can be known */
};

static struct unit unit;
static char found_cgroup[64], found_service[64]; /* the names by which it was sought */
static struct unit_start unit_started;
static char unit_program[256], unit_cpus[64];
static int code_of_unit, code_of_start, code_of_listen, code_of_connect;
static pid_t launcher_pid;

int unit_new(struct units *units, const struct unit_identity *identity, const struct unit_owner *owner,
             struct unit **out, struct error *err)
{
	add("new");
	unit.owner = *owner;
	unit.identity = *identity;
	unit.empty = true;
	*out = &unit;
	return code_of_unit < 0 ? error_set(err, code_of_unit, "no unit") : 0;
}

int unit_find(struct units *units, const struct unit_identity *identity, const struct unit_names *names,
              const struct unit_owner *owner, struct unit **out, struct error *err)
{
	add("find");
	snprintf(found_cgroup, sizeof(found_cgroup), "%s", names->cgroup ? names->cgroup : "");
	snprintf(found_service, sizeof(found_service), "%s", names->service ? names->service : "");
	unit.owner = *owner;
	unit.identity = *identity;
	unit.empty = false;
	if (code_of_unit < 0)
		return error_set(err, code_of_unit, "no unit");
	*out = &unit;
	return 0;
}

void unit_destroy(struct unit *u)
{
}

struct unit_names unit_names(const struct unit *u)
{
	return (struct unit_names){.cgroup = "/group/7.2"};
}

int unit_start(struct unit *u, const struct unit_start *start, struct error *err)
{
	add("start");
	unit_started = *start;
	snprintf(unit_program, sizeof(unit_program), "%s", start->program);
	snprintf(unit_cpus, sizeof(unit_cpus), "%s", start->limits->cpus ? start->limits->cpus : "");
	u->empty = code_of_start < 0;
	return code_of_start < 0 ? error_set(err, code_of_start, "no start") : 0;
}

bool unit_is_watched(const struct unit *u)
{
	return u->watched;
}

void unit_disconnected(struct unit *u, bool reconnected)
{
	add(reconnected ? "disconnected(again)" : "disconnected");
}

bool unit_ask_stop(struct unit *u)
{
	add("ask");
	return u->asks;
}

void unit_set_launcher(struct unit *u, pid_t pid)
{
	launcher_pid = pid;
}

void unit_kill(struct unit *u)
{
	add("kill");
}

bool unit_is_empty(const struct unit *u)
{
	return u->empty;
}

void unit_cancel(struct unit *u)
{
	add("cancel");
}

/* ---- the launcher ---- */

struct launcher {
	struct launcher_owner owner;
	bool connected;
	struct launch_report *waiting; /* comes with launcher_receive */
};

static struct launcher launcher;
static struct stop_times stopped_with;
static char ended_path[256];

int launcher_listen(const struct launcher_owner *owner, const char *dir, int *listen_fd,
                    struct launcher **out, struct error *err)
{
	add("listen");
	if (code_of_listen < 0)
		return error_set(err, code_of_listen, "no socket");
	launcher.owner = *owner;
	launcher.connected = true;
	*listen_fd = -1;
	*out = &launcher;
	return 0;
}

int launcher_connect(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                     struct error *err)
{
	add("connect");
	if (code_of_connect < 0)
		return error_set(err, code_of_connect, "no process listens");
	launcher.owner = *owner;
	launcher.connected = true;
	*out = &launcher;
	return 0;
}

int launcher_reconnect(struct launcher *l)
{
	add("reconnect");
	return code_of_connect;
}

void launcher_destroy(struct launcher *l)
{
}

void launcher_stop(struct launcher *l, struct stop_times times)
{
	add("stop");
	stopped_with = times;
}

/* The end has to be on disk by then. */
void launcher_acknowledge(struct launcher *l)
{
	struct stat st;

	add(stat(ended_path, &st) == 0 ? "acknowledge" : "acknowledge(too early)");
}

void launcher_confirm(struct launcher *l)
{
	add("confirm");
}

void launcher_receive(struct launcher *l)
{
	struct launch_report *report = l->waiting;

	add("receive");
	l->waiting = NULL;
	if (report)
		l->owner.reported(l->owner.context, report);
}

void launcher_disconnect(struct launcher *l)
{
	if (l) {
		add("disconnect");
		l->connected = false;
	}
}

bool launcher_is_connected(const struct launcher *l)
{
	return l && l->connected;
}

/* ---- the node ---- */

static char *dir, *attempt_path;
static sd_event *event;
static struct daemon_config *config;
static struct devices devices;
static struct node_device list[2];
static struct request *request;
static struct run_user *user;
static struct attempt *attempt;
static struct attempt_owner owner;

static void on_changed(void *context, struct attempt *a)
{
	static const char *const words[] = {"changed(starting)", "changed(running)", "changed(stopping)",
	                                    "changed(ended)"};

	add(words[attempt_report(a)->state]);
}

static void on_settled(void *context, struct attempt *a)
{
	ck_assert(attempt_is_settled(a));
	add("settled");
}

static void make_request(void)
{
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = str_printf(
	    "{\"run\":7,\"attempt\":2,\"user\":\"root\",\"uid\":0,\"gid\":0,\"cluster\":\"c1\",\"epoch\":3,"
	    "\"config\":{\"name\":\"n\",\"task\":\"command\",\"command\":[\"true\"],\"directory\":\"/\","
	    "\"resources\":{\"grace\":40,\"save_signal\":\"USR1\",\"save_seconds\":20}},\"world_"
	    "size\":2,"
	    "\"nodes\":[\"n1\"],\"node_rank\":0,\"local_world_size\":2,\"master_addr\":\"127.0.0.1\","
	    "\"ranks\":["
	    "{\"rank\":0,\"local_rank\":0,\"slot\":0},{\"rank\":1,\"local_rank\":1,\"slot\":1}]}");
	struct start_request start;
	struct error err = ERROR_INIT;

	ck_ok(json_parse(text, strlen(text), "request", &json, &err), &err);
	ck_ok(start_request_decode(json, &start, &err), &err);
	ck_ok(request_new(&start, &request, &err), &err);
}

static void setup(void)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	attempt_path = str_path_join(dir, "attempts/7.2");
	snprintf(ended_path, sizeof(ended_path), "%s/ended.json", attempt_path);
	ck_assert_int_ge(sd_event_new(&event), 0);
	text = str_printf(
	    "runtime_dir = \"%s\"; log_dir = \"%s/log\"; state_dir = \"%s/state\"; worker_dir = \"/w\"; "
	    "shutdown_grace = 30.0; slot_tasks = 100;",
	    dir, dir, dir);
	ck_ok(daemon_config_parse(text, "test", &config, &err), &err);
	memset(list, 0, sizeof(list));
	list[0].numa = list[1].numa = -1;
	devices = (struct devices){.list = list, .count = 2};
	make_request();
	user = calloc(1, sizeof(*user));
	*user = (struct run_user){.name = strdup("root"),
	                          .home = strdup("/"),
	                          .shell = strdup("/bin/sh"),
	                          .uid = geteuid(),
	                          .gid = getegid(),
	                          .groups = calloc(1, sizeof(*user->groups))};
	unit = (struct unit){.watched = true};
	launcher = (struct launcher){0};
	owner = (struct attempt_owner){event, "n1", NULL, NULL, on_changed, on_settled};
	attempt = NULL;
}

static void teardown(void)
{
	if (attempt)
		attempt_free(attempt);
	if (request)
		request_free(request);
	run_user_free(user);
	daemon_config_free(config);
	sd_event_unref(event);
	strbuf_free(&trace);
	file_remove_tree(dir, NULL);
	free(dir);
	free(attempt_path);
}

static int try_start(struct error *err)
{
	_cleanup_free_ char *logs = str_path_join(dir, "log/7/2");
	const struct request_place place = {
	    .config = config, .node = "n1", .dir = attempt_path, .logs = logs, .devices = &devices};
	int r = attempt_start(&owner, request, &place, user, &attempt, err);

	if (r == 0)
		request = NULL;
	return r;
}

static void start(void)
{
	struct error err = ERROR_INIT;

	ck_ok(try_start(&err), &err);
	check_trace("new listen start ");
}

static const struct report *report(void)
{
	return attempt_report(attempt);
}

/* dtrain-launch reports: both ranks in that state. */
static struct launch_report *make_report(enum attempt_state state, enum rank_state ranks)
{
	struct launch_report *said = calloc(1, sizeof(*said));

	said->state = state;
	said->launcher = 4711;
	said->rank_count = 2;
	said->ranks = calloc(2, sizeof(*said->ranks));
	for (int i = 0; i < 2; i++)
		said->ranks[i] = (struct rank_report){.rank = i,
		                                      .slot = i,
		                                      .state = ranks,
		                                      .pid = 50 + i,
		                                      .exit_status = ranks == RANK_EXITED ? 3 + i : -1};
	return said;
}

static void say(struct launch_report *said)
{
	launcher.owner.reported(launcher.owner.context, said);
	launch_report_release(said);
	free(said);
}

static void say_state(enum attempt_state state)
{
	say(make_report(state, state == ATTEMPT_ENDED ? RANK_EXITED : RANK_RUNNING));
}

static void close_connection(void)
{
	launcher.connected = false;
	launcher.owner.closed(launcher.owner.context);
}

static void empty_unit(void)
{
	unit.empty = true;
	unit.owner.empty(unit.owner.context);
}

/* The end as it is on disk. */
static struct report recorded(void)
{
	_cleanup_json_ json_t *json = NULL;
	struct report r = {0};
	struct error err = ERROR_INIT;

	ck_ok(json_read_file(ended_path, &json, &err), &err);
	ck_ok(report_decode(json, &r, &err), &err);
	return r;
}

START_TEST(a_start_is_handed_to_the_unit)
{
	struct stat st;
	_cleanup_free_ char *launch = str_path_join(attempt_path, "launch.json");

	start();
	ck_assert_str_eq(unit_program, "/w/dtrain-launch");
	ck_assert_double_eq(unit_started.stop_seconds,
	                    45); /* shutdown_grace is shorter than what the run has */
	ck_assert_uint_eq(unit_started.limits->tasks == 0, 0);
	ck_assert_str_eq(unit_cpus, "");
	ck_assert_int_eq(unit.identity.run, 7);
	ck_assert_int_eq(unit.identity.attempt, 2);
	ck_assert_str_eq(unit.identity.dir, attempt_path);
	ck_assert_int_eq(launcher.owner.run, 7);
	ck_assert_int_eq(stat(launch, &st), 0);
	ck_assert_str_eq(attempt_dir(attempt), attempt_path);
	ck_assert_int_eq(attempt_request(attempt)->run, 7);
	ck_assert(!attempt_has_ended(attempt));
	ck_assert(!attempt_is_settled(attempt));
	ck_assert_int_eq(report()->run, 7);
	ck_assert_int_eq(report()->attempt, 2);
	ck_assert_int_eq(report()->state, ATTEMPT_STARTING);
	ck_assert_int_eq(report()->epoch, 3);
	ck_assert_str_eq(report()->cluster, "c1");
	ck_assert_str_eq(report()->node, "n1");
	ck_assert_str_eq(report()->user, "root");
	ck_assert_str_eq(report()->name, "n");
	ck_assert_ptr_null(report()->reason);
	ck_assert_uint_eq(report()->rank_count, 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(report()->ranks[i].rank, i);
		ck_assert_int_eq(report()->ranks[i].slot, i);
		ck_assert_int_eq(report()->ranks[i].state, RANK_STARTING);
		ck_assert_int_eq(report()->ranks[i].exit_status, -1);
	}
}
END_TEST

/* The request stays the caller's, and no file of it. */
START_TEST(a_start_that_fails_leaves_nothing)
{
	static const char *const traces[] = {"new cancel ", "new listen cancel ", "new listen start cancel "};
	static const char *const words[] = {"no unit", "no socket", "no start"};
	int *const codes[] = {&code_of_unit, &code_of_listen, &code_of_start};
	struct error err = ERROR_INIT;
	struct stat st;

	*codes[_i] = -EBUSY;
	ck_assert_int_eq(try_start(&err), -EBUSY);
	ck_assert_str_eq(err.message, words[_i]);
	check_trace(traces[_i]);
	ck_assert_int_eq(request->run, 7);
	ck_assert_ptr_null(attempt);
	ck_assert_int_eq(stat(attempt_path, &st), -1);
}
END_TEST

START_TEST(the_cpus_of_all_ranks_are_those_of_the_unit)
{
	cpu_set_t allowed;
	int first = 0;
	char want[16];

	ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	while (!CPU_ISSET(first, &allowed))
		first++;
	CPU_SET(first, &list[0].cpus);
	list[1].cpus = list[0].cpus;
	list[0].gpu = true;
	list[1].gpu = _i == 0; /* the other case: one rank may run anywhere */
	snprintf(want, sizeof(want), "%d", first);
	start();
	ck_assert_str_eq(unit_cpus, _i == 0 ? want : "");
}
END_TEST

START_TEST(reports_are_taken_as_they_come)
{
	struct launch_report *said;

	start();
	said = make_report(ATTEMPT_RUNNING, RANK_RUNNING);
	said->reason = strdup("sh does not die");
	say(said);
	check_trace("changed(running) ");
	ck_assert_int_eq(launcher_pid, 4711);
	ck_assert_int_eq(report()->ranks[1].pid, 51);
	ck_assert_int_eq(report()->ranks[1].state, RANK_RUNNING);
	ck_assert_str_eq(report()->reason, "sh does not die");
	ck_assert_ptr_null(report()->shutdown);
	say_state(ATTEMPT_STOPPING);
	check_trace("changed(stopping) ");
	ck_assert_ptr_null(report()->reason);
}
END_TEST

/* It is on record before dtrain-launch may go, and after it nothing counts. */
START_TEST(an_end_is_recorded_and_acknowledged)
{
	struct report end;

	start();
	say_state(ATTEMPT_ENDED);
	check_trace("acknowledge changed(ended) ");
	ck_assert(attempt_has_ended(attempt));
	ck_assert(!attempt_is_settled(attempt));
	end = recorded();
	ck_assert_int_eq(end.state, ATTEMPT_ENDED);
	ck_assert_int_eq(end.ranks[1].exit_status, 4);
	report_release(&end);
	say_state(ATTEMPT_RUNNING);
	ck_assert_int_eq(report()->state, ATTEMPT_ENDED);
	unit.owner.exited(unit.owner.context, "it ended", true);
	check_trace("receive ");
	ck_assert_ptr_null(report()->reason);
	/* The order of its last signs of life does not matter. */
	if (_i == 0) {
		close_connection();
		check_trace("");
		empty_unit();
	} else {
		empty_unit();
		check_trace("");
		close_connection();
	}
	check_trace("settled ");
	ck_assert(attempt_is_settled(attempt));
	/* What is asked for after the end is not done. */
	attempt_stop(attempt, (struct stop_times){1, 2});
	attempt_confirm(attempt);
	attempt_end_lease(attempt, 10);
	attempt_shut_down(attempt, (struct stop_times){1, 2}, "x");
	attempt_add_error(attempt, "x");
	check_trace("");
	ck_assert_ptr_null(report()->shutdown);
	ck_assert_ptr_null(report()->device_errors);
}
END_TEST

START_TEST(an_end_of_the_lease_is_a_shutdown)
{
	struct launch_report *said = make_report(ATTEMPT_STOPPING, RANK_RUNNING);
	static const char words[] =
	    "node n1 has had no answer of its controller: the lease of the attempt has run out";

	start();
	said->lease_ended = true;
	if (_i == 1) { /* the first reason stays */
		attempt_shut_down(attempt, (struct stop_times){1, 2}, "node n1 was shut down");
		ck_assert_double_eq(stopped_with.save, 1);
		ck_assert_double_eq(stopped_with.grace, 2);
		check_trace("stop ");
	} else if (_i == 2) {
		attempt_end_lease(attempt, 10);
		ck_assert_double_eq_tol(stopped_with.save + stopped_with.grace, 8, 1e-9);
		check_trace("stop ");
		ck_assert_str_eq(report()->shutdown, words);
	}
	say(said);
	check_trace("changed(stopping) ");
	ck_assert_str_eq(report()->shutdown, _i == 1 ? "node n1 was shut down" : words);
	say_state(ATTEMPT_ENDED);
	check_trace("acknowledge changed(ended) ");
}
END_TEST

static void say_terminated(enum attempt_state state)
{
	struct launch_report *said = make_report(state, state == ATTEMPT_ENDED ? RANK_EXITED : RANK_RUNNING);

	said->terminated = true;
	say(said);
}

/* Whether the machine shuts down or an administrator has stopped the unit is asked, once, and an end that
 * comes before the answer waits for it. */
START_TEST(who_has_stopped_it_is_asked)
{
	static const char *const answers[] = {"", "x.service was stopped"};
	static const char *const words[] = {"node n1 was shut down", "x.service was stopped on node n1"};
	bool late = _i >= 2;

	unit.asks = true;
	start();
	say_terminated(ATTEMPT_STOPPING);
	check_trace("ask changed(stopping) ");
	if (late) {
		say_terminated(ATTEMPT_ENDED);
		check_trace("");
		ck_assert(!attempt_has_ended(attempt));
		ck_assert_int_eq(report()->state, ATTEMPT_STOPPING);
		/* It is not lost then. */
		unit.owner.exited(unit.owner.context, "it ended", true);
		check_trace("receive ");
		close_connection();
		empty_unit();
		check_trace("");
	}
	unit.owner.stopped(unit.owner.context, answers[_i % 2]);
	ck_assert_str_eq(report()->shutdown, words[_i % 2]);
	check_trace(late ? "acknowledge changed(ended) settled " : "");
	if (!late) {
		say_terminated(ATTEMPT_ENDED);
		check_trace("acknowledge changed(ended) ");
	}
	ck_assert_str_eq(report()->shutdown, words[_i % 2]);
	/* A second answer changes nothing. */
	unit.owner.stopped(unit.owner.context, "y");
	ck_assert_str_eq(report()->shutdown, words[_i % 2]);
	check_trace("");
}
END_TEST

START_TEST(a_stop_that_is_explained_is_not_asked_about)
{
	start();
	if (_i == 0) {
		attempt_shut_down(attempt, (struct stop_times){0, 0}, "node n1 was shut down");
		check_trace("stop ");
		unit.asks = true;
		say_terminated(ATTEMPT_STOPPING);
		check_trace("changed(stopping) ");
	} else { /* the unit cannot know */
		say_terminated(ATTEMPT_STOPPING);
		check_trace("ask changed(stopping) ");
		say_terminated(ATTEMPT_STOPPING);
		check_trace("changed(stopping) ");
	}
	say_terminated(ATTEMPT_ENDED);
	check_trace("acknowledge changed(ended) ");
	if (_i == 0)
		ck_assert_str_eq(report()->shutdown, "node n1 was shut down");
	else
		ck_assert_ptr_null(report()->shutdown);
}
END_TEST

START_TEST(a_closed_connection_is_taken_up_again)
{
	start();
	/* A unit that is watched notices the end by itself. */
	close_connection();
	check_trace("disconnected ");
	unit.watched = false;
	close_connection();
	check_trace("reconnect disconnected(again) ");
	code_of_connect = -ECONNREFUSED;
	close_connection();
	check_trace("reconnect disconnected ");
	code_of_connect = 0;
	launcher.connected = true;
	say_state(ATTEMPT_ENDED);
	check_trace("acknowledge changed(ended) ");
	close_connection();
	check_trace("disconnected ");
}
END_TEST

static void check_lost(const char *why, int status, const char *signal)
{
	struct report end = recorded();
	double now = clock_realtime();

	ck_assert_int_eq(end.state, ATTEMPT_ENDED);
	ck_assert(end.launcher_lost);
	ck_assert(!end.lost);
	ck_assert_str_eq(end.reason, why);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(end.ranks[i].state, RANK_EXITED);
		ck_assert_int_eq(end.ranks[i].exit_status, status);
		ck_assert(end.ranks[i].stopped);
		ck_assert_double_ge(end.ranks[i].ended, now - 100);
		if (signal)
			ck_assert_str_eq(end.ranks[i].signal, signal);
		else
			ck_assert_ptr_null(end.ranks[i].signal);
	}
	report_release(&end);
}

/* Its processes are killed, and only when none is left has the attempt ended. */
START_TEST(an_attempt_without_its_launcher_is_killed)
{
	bool started = _i == 0;

	start();
	if (started) {
		say_state(ATTEMPT_RUNNING);
		check_trace("changed(running) ");
	}
	unit.owner.exited(unit.owner.context, "dtrain-launch was killed", started);
	check_trace("receive disconnect kill changed(stopping) ");
	ck_assert(report()->launcher_lost);
	ck_assert_str_eq(report()->reason, "dtrain-launch was killed");
	ck_assert(!attempt_has_ended(attempt));
	attempt_stop(attempt, (struct stop_times){1, 2});
	attempt_confirm(attempt);
	unit.owner.remaining(unit.owner.context);
	say_state(ATTEMPT_ENDED); /* too late */
	check_trace("");
	unit.owner.exited(unit.owner.context, "again", true);
	check_trace("receive ");
	empty_unit();
	check_trace("changed(ended) settled ");
	check_lost("dtrain-launch was killed", started ? 137 : 126, started ? "SIGKILL" : NULL);
	ck_assert(attempt_is_settled(attempt));
	empty_unit();
	check_trace("settled ");
}
END_TEST

/* The rank that had ended before has its own status. */
START_TEST(what_was_reported_before_stays)
{
	struct launch_report *said = make_report(ATTEMPT_RUNNING, RANK_RUNNING);

	said->ranks[0].state = RANK_EXITED;
	said->ranks[0].exit_status = 9;
	start();
	say(said);
	unit.owner.exited(unit.owner.context, "dtrain-launch was killed", true);
	empty_unit();
	ck_assert_int_eq(report()->ranks[0].exit_status, 9);
	ck_assert(!report()->ranks[0].stopped);
	ck_assert_int_eq(report()->ranks[1].exit_status, 137);
}
END_TEST

/* The last report may come after the end of the process. */
START_TEST(the_last_report_may_be_on_the_way)
{
	start();
	launcher.waiting = make_report(ATTEMPT_ENDED, RANK_EXITED);
	{
		struct launch_report *said = launcher.waiting;

		unit.owner.exited(unit.owner.context, "dtrain-launch ended", true);
		launch_report_release(said);
		free(said);
	}
	check_trace("receive acknowledge changed(ended) ");
	ck_assert(!report()->launcher_lost);
	ck_assert_ptr_null(report()->reason);
	/* It has ended: its connection is no reason for more. */
	close_connection();
	check_trace("");
}
END_TEST

START_TEST(errors_of_devices_are_listed)
{
	start();
	attempt_add_error(attempt, "GPU 0: a");
	attempt_add_error(attempt, "GPU 1: b");
	attempt_add_error(attempt, "GPU 0: c");
	ck_assert_str_eq(report()->device_errors[0], "GPU 0: a");
	ck_assert_str_eq(report()->device_errors[1], "GPU 1: b");
	ck_assert_str_eq(report()->device_errors[2], "GPU 0: c");
	ck_assert_ptr_null(report()->device_errors[3]);
}
END_TEST

START_TEST(a_confirmation_is_passed_on)
{
	start();
	attempt_confirm(attempt);
	check_trace("confirm ");
}
END_TEST

/* ---- a later service ---- */

static int adopt(struct error *err)
{
	attempt_free(attempt);
	attempt = NULL;
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
	launcher = (struct launcher){0};
	return attempt_adopt(&owner, attempt_path, &attempt, err);
}

START_TEST(a_running_attempt_is_found_again)
{
	struct error err = ERROR_INIT;

	start();
	ck_ok(adopt(&err), &err);
	check_trace("find connect ");
	ck_assert_str_eq(found_cgroup, "/group/7.2");
	ck_assert_str_eq(found_service, "");
	ck_assert_int_eq(report()->state, ATTEMPT_RUNNING);
	ck_assert_int_eq(report()->ranks[1].state, RANK_RUNNING);
	ck_assert_str_eq(report()->cluster, "c1");
	say_state(ATTEMPT_STOPPING);
	check_trace("changed(stopping) ");
}
END_TEST

START_TEST(an_attempt_whose_launcher_is_gone_is_lost)
{
	struct error err = ERROR_INIT;

	start();
	code_of_connect = -ECONNREFUSED;
	ck_ok(adopt(&err), &err);
	check_trace("find connect kill ");
	ck_assert_int_eq(report()->state, ATTEMPT_STOPPING);
	ck_assert(report()->launcher_lost);
	empty_unit();
	check_trace("changed(ended) settled ");
	check_lost("dtrain-launch is gone: it was killed while dtraind did not run", 137, "SIGKILL");
}
END_TEST

/* Its end is announced from the event loop, and acknowledged once more. */
START_TEST(an_end_is_found_again)
{
	struct error err = ERROR_INIT;

	start();
	say_state(ATTEMPT_ENDED);
	code_of_connect = _i == 1 ? -ECONNREFUSED : 0;
	ck_ok(adopt(&err), &err);
	check_trace(_i == 1 ? "find connect disconnected " : "find connect acknowledge ");
	ck_assert(attempt_has_ended(attempt));
	ck_assert_int_eq(report()->ranks[1].exit_status, 4);
	ck_assert_str_eq(report()->user, "root");
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	check_trace("changed(ended) ");
	ck_assert_int_eq(sd_event_run(event, 0), 0);
	check_trace("");
}
END_TEST

/* Version 0.1.0 wrote no user and no name. */
START_TEST(an_old_end_is_completed)
{
	static const char text[] =
	    "{\"run\":7,\"attempt\":2,\"node\":\"n1\",\"state\":\"ended\",\"ranks\":[]}";
	struct error err = ERROR_INIT;

	start();
	ck_ok(file_write_atomic(ended_path, text, strlen(text), 0600, &err), &err);
	ck_ok(adopt(&err), &err);
	ck_assert_str_eq(report()->user, "root");
	ck_assert_str_eq(report()->name, "n");
}
END_TEST

START_TEST(what_cannot_be_read_is_not_adopted)
{
	static const char *const files[] = {"request.json", "ended.json", "request.json", "ended.json"};
	static const char *const texts[] = {"{", "{", "{}", "{}"};
	_cleanup_free_ char *path = str_path_join(attempt_path, files[_i]);
	struct error err = ERROR_INIT;

	start();
	ck_ok(file_write_atomic(path, texts[_i], strlen(texts[_i]), 0600, &err), &err);
	ck_assert_int_eq(adopt(&err), -EINVAL);
	ck_assert_ptr_null(attempt);
	ck_assert_uint_gt(strlen(err.message), 0);
}
END_TEST

START_TEST(a_unit_that_cannot_be_sought_is_an_error)
{
	struct error err = ERROR_INIT;

	start();
	code_of_unit = -EHOSTUNREACH;
	ck_assert_int_eq(adopt(&err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message, "no unit");
	ck_assert_ptr_null(attempt);
}
END_TEST

/* Of which nothing is left but the record of its start. */
START_TEST(a_lost_attempt_ends_when_nothing_is_left)
{
	struct error err = ERROR_INIT;
	struct stat st;

	free(request->cgroup);
	request->cgroup = strdup("/old/7.2");
	request->service = strdup("s.service");
	request->config = NULL; /* borrowed of request->start */
	ck_ok(attempt_lost(&owner, attempt_path, request, &attempt, &err), &err);
	request = NULL;
	check_trace("find kill ");
	ck_assert_str_eq(found_cgroup, "/old/7.2");
	ck_assert_str_eq(found_service, "s.service");
	ck_assert_int_eq(report()->state, ATTEMPT_STOPPING);
	ck_assert_uint_eq(report()->rank_count, 0);
	ck_assert_ptr_null(report()->name);
	ck_assert_str_eq(report()->reason, "attempt 2 was started and is lost: was the machine restarted?");
	ck_assert_double_eq(attempt_stop_times(attempt, RUN_STOP_CANCEL).grace, 0);
	attempt_stop(attempt, (struct stop_times){1, 2});
	check_trace("");
	if (_i == 1) {
		unit.owner.remaining(unit.owner.context);
		check_trace("");
	}
	empty_unit();
	check_trace("changed(ended) settled ");
	ck_assert(report()->lost);
	ck_assert(!report()->launcher_lost);
	ck_assert_str_eq(report()->reason,
	                 _i == 1 ? "attempt 2 was started and is lost: its directory was removed while it ran"
	                         : "attempt 2 was started and is lost: was the machine restarted?");
	ck_assert_int_eq(stat(ended_path, &st), -1);
}
END_TEST

START_TEST(a_lost_attempt_that_cannot_be_sought_stays_the_callers)
{
	struct error err = ERROR_INIT;

	code_of_unit = -EHOSTUNREACH;
	ck_assert_int_eq(attempt_lost(&owner, attempt_path, request, &attempt, &err), -EHOSTUNREACH);
	ck_assert_ptr_nonnull(strstr(err.message, "run 7"));
	ck_assert_int_eq(request->run, 7);
	ck_assert_ptr_null(attempt);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attempt");
	TCase *tc = tcase_create("attempt");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_start_is_handed_to_the_unit);
	tcase_add_loop_test(tc, a_start_that_fails_leaves_nothing, 0, 3);
	tcase_add_loop_test(tc, the_cpus_of_all_ranks_are_those_of_the_unit, 0, 2);
	tcase_add_test(tc, reports_are_taken_as_they_come);
	tcase_add_loop_test(tc, an_end_is_recorded_and_acknowledged, 0, 2);
	tcase_add_loop_test(tc, an_end_of_the_lease_is_a_shutdown, 0, 3);
	tcase_add_loop_test(tc, who_has_stopped_it_is_asked, 0, 4);
	tcase_add_loop_test(tc, a_stop_that_is_explained_is_not_asked_about, 0, 2);
	tcase_add_test(tc, a_closed_connection_is_taken_up_again);
	tcase_add_loop_test(tc, an_attempt_without_its_launcher_is_killed, 0, 2);
	tcase_add_test(tc, what_was_reported_before_stays);
	tcase_add_test(tc, the_last_report_may_be_on_the_way);
	tcase_add_test(tc, errors_of_devices_are_listed);
	tcase_add_test(tc, a_confirmation_is_passed_on);
	tcase_add_test(tc, a_running_attempt_is_found_again);
	tcase_add_test(tc, an_attempt_whose_launcher_is_gone_is_lost);
	tcase_add_loop_test(tc, an_end_is_found_again, 0, 2);
	tcase_add_test(tc, an_old_end_is_completed);
	tcase_add_loop_test(tc, what_cannot_be_read_is_not_adopted, 0, 4);
	tcase_add_test(tc, a_unit_that_cannot_be_sought_is_an_error);
	tcase_add_loop_test(tc, a_lost_attempt_ends_when_nothing_is_left, 0, 2);
	tcase_add_test(tc, a_lost_attempt_that_cannot_be_sought_stays_the_callers);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
