/* SPDX-License-Identifier: Apache-2.0 */
/* A node with two CPU slots in a directory of its own: node_fixture.h. */
#include "node_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

static const double DEADLINE = 100.0; /* seconds, for what never comes */

static void on_report(void *context, const struct report *report)
{
	struct fixture *f = context;
	char key[32];

	snprintf(key, sizeof key, "%lld", (long long)report->run);
	json_object_set_new(f->reports, key, report_encode(report));
	f->ends += report->state == ATTEMPT_ENDED;
}

static void on_devices_changed(void *context)
{
	struct fixture *f = context;

	f->changes++;
}

void fixture_create(struct fixture *f)
{
	const struct node_callbacks callbacks = {f, on_report, on_devices_changed};
	struct error err = ERROR_INIT;

	ck_ok(node_create(f->event, f->config, "n1", 0, &callbacks, &f->node, &err), &err);
}

/* One turn of at most 50 ms, since some changes cause no event of this loop. */
static void turn(struct fixture *f, double since, const char *what)
{
	ck_assert_msg(clock_monotonic() - since < DEADLINE, "waited in vain for %s", what);
	if (sd_event_run(f->event, 50000) < 0)
		ck_abort_msg("event loop");
}

void fixture_setup(struct fixture *f)
{
	fixture_setup_on(f, "");
}

void fixture_setup_on(struct fixture *f, const char *gpus)
{
	fixture_prepare(f, gpus);
	fixture_create(f);
}

void fixture_prepare(struct fixture *f, const char *gpus)
{
	_cleanup_free_ char *cwd = getcwd(NULL, 0), *text = NULL;
	struct error err = ERROR_INIT;

	unsetenv("FAKE_NVML");
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (gpus)
		setenv("CUDA_VISIBLE_DEVICES", gpus, 1);
	memset(f, 0, sizeof *f);
	f->events = -1;
	f->dir = unit_tmpdir();
	ck_assert_int_eq(chmod(f->dir, 0755), 0);
	f->reports = json_object();
	ck_assert_int_ge(sd_event_new(&f->event), 0);
	text = str_printf(
	    "runtime_dir = \"%s/run\"; log_dir = \"%s/log\"; state_dir = \"%s/state\"; worker_dir = "
	    "\"%s\"; socket = \"%s/dtraind.sock\"; group = \"\"; cpu_slots = 2; heartbeat = 0.05; "
	    "node_timeout = 0.5;",
	    f->dir, f->dir, f->dir, cwd, f->dir);
	ck_ok(daemon_config_parse(text, "test", &f->config, &err), &err);
}

void fixture_machine(struct fixture *f, const char *gpus)
{
	_cleanup_free_ char *path = fixture_path(f, "gpus"), *events = fixture_path(f, "events");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, gpus, strlen(gpus), 0644, &err), &err);
	if (f->events < 0) {
		ck_assert_int_eq(mkfifo(events, 0600), 0);
		f->events = open(events, O_RDWR | O_CLOEXEC);
		ck_assert_int_ge(f->events, 0);
	}
	setenv("FAKE_NVML", f->dir, 1);
}

void fixture_gpu_event(const struct fixture *f, const char *line)
{
	ck_assert_int_eq(write(f->events, line, strlen(line)), (ssize_t)strlen(line));
}

/* Ends the processes that a test has left. */
static void end_all(struct fixture *f)
{
	double since = clock_monotonic();

	for (bool running = true; running;) {
		const struct report *a;

		running = false;
		for (size_t i = 0; (a = node_attempt(f->node, i)); i++) {
			if (a->state == ATTEMPT_ENDED)
				continue;
			running = true;
			node_stop(f->node, a->run, a->attempt, 0, NULL);
		}
		if (running)
			turn(f, since, "everything to end");
	}
}

void fixture_teardown(struct fixture *f)
{
	if (f->node) {
		end_all(f);
		node_destroy(f->node);
	}
	if (f->events >= 0)
		close(f->events);
	sd_event_unref(f->event);
	daemon_config_free(f->config);
	json_decref(f->reports);
	file_remove_tree(f->dir, NULL);
	free(f->dir);
}

void fixture_restart(struct fixture *f, bool stop_only)
{
	if (f->node)
		node_destroy(f->node);
	f->node = NULL;
	if (stop_only)
		return;
	json_object_clear(f->reports);
	f->ends = 0;
	fixture_create(f);
}

json_t *fixture_request(int run, int attempt, int count, const char *const *argv)
{
	json_t *command = json_array(), *ranks = json_array();
	struct passwd *user = getpwuid(geteuid());

	for (; *argv; argv++)
		json_array_append_new(command, json_string(*argv));
	for (int i = 0; i < count; i++)
		json_array_append_new(ranks,
		                      json_pack("{s:i, s:i, s:i}", "rank", i, "local_rank", i, "slot", i));
	return json_pack(
	    "{s:i, s:i, s:s, s:i, s:i, s:{s:s, s:o, s:s, s:{s:i}}, s:i, s:[s], s:i, s:i, s:s, s:o}", "run",
	    run, "attempt", attempt, "user", user->pw_name, "uid", (int)user->pw_uid, "gid",
	    (int)user->pw_gid, "config", "task", "command", "command", command, "directory", "/", "resources",
	    "max_restarts", 3, "world_size", count, "nodes", "n1", "node_rank", 0, "local_world_size", count,
	    "master_addr", "127.0.0.1", "ranks", ranks);
}

json_t *fixture_shell(int run, int count, const char *script)
{
	return fixture_request(run, 1, count, (const char *const[]){"sh", "-c", script, NULL});
}

void fixture_launcher(struct fixture *f, const char *script)
{
	_cleanup_free_ char *cwd = getcwd(NULL, 0), *dir = fixture_path(f, "libexec"),
	                    *path = fixture_path(f, "libexec/dtrain-launch"), *text = NULL;
	struct error err = ERROR_INIT;

	text =
	    str_printf("#!/bin/sh\nif [ \"$1\" = --preflight ]; then %s; fi\nexec %s/dtrain-launch \"$@\"\n",
	               script ? script : ":", cwd);
	ck_ok(file_mkdirs(dir, 0755, &err), &err);
	ck_ok(file_write_atomic(path, text, strlen(text), 0755, &err), &err);
	free(f->config->worker_dir);
	f->config->worker_dir = strdup(dir);
}

struct start_result {
	struct error *err;
	int code;
	bool there;
};

static void on_started(void *context, int code, const char *message)
{
	struct start_result *r = context;

	r->there = true;
	r->code = code < 0 ? error_set(r->err, code, "%s", message) : 0;
}

int fixture_begin(struct fixture *f, const json_t *json, node_started_fn started, void *context,
                  struct error *err)
{
	struct start_request request;
	int r = start_request_decode(json, &request, err);

	return r < 0 ? r : node_start(f->node, &request, started, context, err);
}

int fixture_start(struct fixture *f, const json_t *request, struct error *err)
{
	struct start_result result = {err, 0, false};
	double since = clock_monotonic();
	int r = fixture_begin(f, request, on_started, &result, err);

	while (r == 0 && !result.there)
		turn(f, since, "a start");
	return r < 0 ? r : result.code;
}

void fixture_turn(struct fixture *f)
{
	turn(f, clock_monotonic(), "");
}

json_t *fixture_attempts(const struct fixture *f)
{
	const struct report *report;
	json_t *list = json_array();

	for (size_t i = 0; (report = node_attempt(f->node, i)); i++)
		json_array_append_new(list, report_encode(report));
	return list;
}

json_t *fixture_devices(const struct fixture *f)
{
	_cleanup_json_ json_t *json = NULL;
	struct device_list devices;
	struct error err = ERROR_INIT;

	ck_ok(node_devices(f->node, &devices, &err), &err);
	json = device_list_encode(&devices);
	device_list_release(&devices);
	return json_incref(json_object_get(json, "devices"));
}

json_t *fixture_device(const struct fixture *f, int slot)
{
	_cleanup_json_ json_t *devices = fixture_devices(f);

	return json_incref(json_array_get(devices, slot));
}

json_t *fixture_await_device(struct fixture *f, int slot, const char *state)
{
	double since = clock_monotonic();
	char what[64];

	snprintf(what, sizeof what, "slot %d to be %s", slot, state);
	for (;;) {
		json_t *device = fixture_device(f, slot);

		if (str_eq(json_get_string(device, "state", ""), state))
			return device;
		json_decref(device);
		turn(f, since, what);
	}
}

const json_t *fixture_await(struct fixture *f, int run, const char *state)
{
	double since = clock_monotonic();
	char key[32], what[64];

	snprintf(key, sizeof key, "%d", run);
	snprintf(what, sizeof what, "run %d to be %s", run, state);
	for (;;) {
		const json_t *report = json_object_get(f->reports, key);

		if (str_eq(json_get_string(report, "state", ""), state))
			return report;
		turn(f, since, what);
	}
}

char *fixture_path(const struct fixture *f, const char *name)
{
	return str_path_join(f->dir, name);
}

char *fixture_await_file(struct fixture *f, const char *name)
{
	_cleanup_free_ char *path = fixture_path(f, name);
	double since = clock_monotonic();
	char *text;
	size_t len;

	for (;;) {
		if (file_read(path, 0, &text, &len, NULL) == 0) {
			if (len > 0 && text[len - 1] == '\n')
				return text;
			free(text);
		}
		turn(f, since, name);
	}
}

const json_t *fixture_rank(const json_t *report, int index)
{
	return json_array_get(json_object_get(report, "ranks"), index);
}

/* A zombie that no process reaps (in a container without init) counts as gone, too. */
bool fixture_gone(pid_t pid)
{
	_cleanup_free_ char *path = str_printf("/proc/%d/stat", (int)pid), *text = NULL;

	return kill(pid, 0) < 0 || file_read(path, 0, &text, NULL, NULL) < 0 || strstr(text, ") Z ");
}

void fixture_await_gone(struct fixture *f, pid_t pid)
{
	double since = clock_monotonic();

	while (!fixture_gone(pid))
		turn(f, since, "a process to be gone");
}

char *fixture_log(struct fixture *f, int run, int rank)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char *path = NULL;
	char *text;

	ck_ok(node_log_path(f->node, run, 0, rank, &path, &err), &err);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return text;
}
