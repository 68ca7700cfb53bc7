/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for the unit and the launcher of an attempt, and what an attempt is started with. */
#include "attempt_fixture.h"

#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "config/daemon.h"
#include "node/launch/run_user.h"

struct attempt_fixture fixture;
struct unit fake_unit;
struct launcher fake_launcher;
struct fake_codes fake_codes;

static void add(const char *word)
{
	strbuf_addf(&fixture.trace, "%s ", word);
}

void fixture_clear_trace(void)
{
	strbuf_reset(&fixture.trace);
	strbuf_adds(&fixture.trace, "");
}

void fixture_check_trace(const char *want)
{
	ck_assert_str_eq(fixture.trace.data ? fixture.trace.data : "", want);
	fixture_clear_trace();
}

/* ---- the unit ---- */

int unit_new(struct units *units, const struct unit_identity *identity, const struct unit_owner *owner,
             struct unit **out, struct error *err)
{
	add("new");
	fake_unit.owner = *owner;
	fake_unit.identity = *identity;
	fake_unit.empty = true;
	*out = &fake_unit;
	return fake_codes.unit < 0 ? error_set(err, fake_codes.unit, "no unit") : 0;
}

int unit_find(struct units *units, const struct unit_identity *identity, const struct unit_names *names,
              const struct unit_owner *owner, struct unit **out, struct error *err)
{
	add("find");
	snprintf(fake_unit.found_cgroup, sizeof(fake_unit.found_cgroup), "%s",
	         names->cgroup ? names->cgroup : "");
	snprintf(fake_unit.found_service, sizeof(fake_unit.found_service), "%s",
	         names->service ? names->service : "");
	fake_unit.owner = *owner;
	fake_unit.identity = *identity;
	fake_unit.empty = false;
	if (fake_codes.unit < 0)
		return error_set(err, fake_codes.unit, "no unit");
	*out = &fake_unit;
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
	fake_unit.stop_seconds = start->stop_seconds;
	fake_unit.tasks = start->limits->tasks;
	snprintf(fake_unit.program, sizeof(fake_unit.program), "%s", start->program);
	snprintf(fake_unit.cpus, sizeof(fake_unit.cpus), "%s",
	         start->limits->cpus ? start->limits->cpus : "");
	for (const char *const *d = start->devices; d && *d; d++) {
		size_t len = strlen(fake_unit.devices);

		snprintf(fake_unit.devices + len, sizeof(fake_unit.devices) - len, "%s ", *d);
	}
	u->empty = fake_codes.start < 0;
	return fake_codes.start < 0 ? error_set(err, fake_codes.start, "no start") : 0;
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
	fake_unit.launcher = pid;
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

int launcher_listen(const struct launcher_owner *owner, const char *dir, int *listen_fd,
                    struct launcher **out, struct error *err)
{
	add("listen");
	if (fake_codes.listen < 0)
		return error_set(err, fake_codes.listen, "no socket");
	fake_launcher.owner = *owner;
	fake_launcher.connected = true;
	*listen_fd = -1;
	*out = &fake_launcher;
	return 0;
}

int launcher_connect(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                     struct error *err)
{
	add("connect");
	if (fake_codes.connect < 0)
		return error_set(err, fake_codes.connect, "no process listens");
	fake_launcher.owner = *owner;
	fake_launcher.connected = true;
	*out = &fake_launcher;
	return 0;
}

int launcher_reconnect(struct launcher *l)
{
	add("reconnect");
	return fake_codes.connect;
}

void launcher_destroy(struct launcher *l)
{
}

void launcher_stop(struct launcher *l, struct stop_times times)
{
	add("stop");
	fake_launcher.stopped_with = times;
}

/* The end has to be on disk by then. */
void launcher_acknowledge(struct launcher *l)
{
	struct stat st;

	add(stat(fixture.ended, &st) == 0 ? "acknowledge" : "acknowledge(too early)");
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
	ck_ok(request_new(&start, &fixture.request, &err), &err);
}

void fixture_setup(void)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	fixture.dir = unit_tmpdir();
	fixture.path = str_path_join(fixture.dir, "attempts/7.2");
	fixture.logs = str_path_join(fixture.dir, "log/7/2");
	fixture.ended = str_path_join(fixture.path, "ended.json");
	ck_assert_int_ge(sd_event_new(&fixture.event), 0);
	text = str_printf(
	    "runtime_dir = \"%s\"; log_dir = \"%s/log\"; state_dir = \"%s/state\"; worker_dir = \"/w\"; "
	    "shutdown_grace = 30.0; slot_tasks = 100;",
	    fixture.dir, fixture.dir, fixture.dir);
	ck_ok(daemon_config_parse(text, "test", &fixture.config, &err), &err);
	memset(fixture.list, 0, sizeof(fixture.list));
	fixture.list[0].numa = fixture.list[1].numa = -1;
	fixture.devices = (struct devices){.list = fixture.list, .count = 2};
	make_request();
	fixture.user = calloc(1, sizeof(*fixture.user));
	*fixture.user = (struct run_user){.name = strdup("root"),
	                                  .home = strdup("/"),
	                                  .shell = strdup("/bin/sh"),
	                                  .uid = geteuid(),
	                                  .gid = getegid(),
	                                  .groups = calloc(1, sizeof(*fixture.user->groups))};
	fake_unit = (struct unit){.watched = true};
	fake_launcher = (struct launcher){0};
	fake_codes = (struct fake_codes){0};
	fixture.owner = (struct attempt_owner){fixture.event, "n1", NULL, NULL, on_changed, on_settled};
	fixture.attempt = NULL;
}

void fixture_teardown(void)
{
	if (fixture.attempt)
		attempt_free(fixture.attempt);
	if (fixture.request)
		request_free(fixture.request);
	run_user_free(fixture.user);
	daemon_config_free(fixture.config);
	sd_event_unref(fixture.event);
	strbuf_free(&fixture.trace);
	file_remove_tree(fixture.dir, NULL);
	free(fixture.dir);
	free(fixture.path);
	free(fixture.logs);
	free(fixture.ended);
}

int fixture_try_start(struct error *err)
{
	const struct request_place place = {.config = fixture.config,
	                                    .node = "n1",
	                                    .dir = fixture.path,
	                                    .logs = fixture.logs,
	                                    .devices = &fixture.devices};
	int r = attempt_start(&fixture.owner, fixture.request, &place, fixture.user, &fixture.attempt, err);

	if (r == 0)
		fixture.request = NULL;
	return r;
}

void fixture_start(void)
{
	struct error err = ERROR_INIT;

	ck_ok(fixture_try_start(&err), &err);
	fixture_check_trace("new listen start ");
}

const struct report *fixture_report(void)
{
	return attempt_report(fixture.attempt);
}

struct launch_report *fixture_make_report(enum attempt_state state, enum rank_state ranks)
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

void fixture_say(struct launch_report *said)
{
	fake_launcher.owner.reported(fake_launcher.owner.context, said);
	launch_report_release(said);
	free(said);
}

void fixture_say_state(enum attempt_state state)
{
	fixture_say(fixture_make_report(state, state == ATTEMPT_ENDED ? RANK_EXITED : RANK_RUNNING));
}

void fixture_close_connection(void)
{
	fake_launcher.connected = false;
	fake_launcher.owner.closed(fake_launcher.owner.context);
}

void fixture_empty_unit(void)
{
	fake_unit.empty = true;
	fake_unit.owner.empty(fake_unit.owner.context);
}

struct report fixture_recorded(void)
{
	_cleanup_json_ json_t *json = NULL;
	struct report r = {0};
	struct error err = ERROR_INIT;

	ck_ok(json_read_file(fixture.ended, &json, &err), &err);
	ck_ok(report_decode(json, &r, &err), &err);
	return r;
}
