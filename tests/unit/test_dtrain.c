/* SPDX-License-Identifier: Apache-2.0 */
/* The client: its requests, its output and its exit status, with a service that has scripted answers. */
#include "fake_service.h"
#include "unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "config/keys.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/run_request.h"
#include "dtrain/table.h"

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "socket");
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(path);
	free(dir);
}

typedef int (*command_fn)(struct client *client, int argc, char **argv);

/* Calls a subcommand with the words of `line`; *output gets its stdout unless output is NULL. */
static int call(command_fn command, const char *line, char **output)
{
	_cleanup_free_ char *copy = strdup(line), *file = str_path_join(dir, "output");
	struct client client = {.socket = path};
	char *argv[16], *rest = copy;
	int argc = 0, status, saved = dup(STDOUT_FILENO), fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);

	while ((argv[argc] = strsep(&rest, " ")))
		argc++;
	fflush(stdout);
	dup2(fd, STDOUT_FILENO);
	status = command(&client, argc, argv);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(fd);
	client_release(&client);
	if (output)
		ck_assert_int_eq(file_read(file, 0, output, NULL, NULL), 0);
	return status;
}

START_TEST(a_command_is_posted_as_it_was_typed)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)"echo \"a, b\" \\; \t\n'é'", NULL};
	const char *const overrides[] = {"resources.nodes=2", NULL};
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *here = getcwd(NULL, 0);
	struct error err = ERROR_INIT;
	const json_t *command;

	ck_ok(run_request_command(argv, overrides, NULL, &json, &err), &err);
	command = json_object_get(json, "command");
	ck_assert_uint_eq(json_array_size(command), 3);
	for (size_t i = 0; i < 3; i++)
		ck_assert_str_eq(json_string_value(json_array_get(command, i)), argv[i]);
	ck_assert_str_eq(json_get_string(json, "task", ""), "command");
	ck_assert_str_eq(json_get_string(json, "name", ""), "sh");
	ck_assert_str_eq(json_get_string(json, "directory", ""), here);
	ck_assert_int_eq(json_get_int(json_object_get(json, "resources"), "nodes", 0), 2);
}
END_TEST

START_TEST(directories_are_seen_from_here)
{
	char *argv[] = {(char *)"true", NULL};
	const char *const overrides[] = {"directory=sub/dir", NULL};
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *here = getcwd(NULL, 0), *want = str_printf("%s/sub/dir", here);
	struct error err = ERROR_INIT;

	ck_ok(run_request_command(argv, overrides, NULL, &json, &err), &err);
	ck_assert_str_eq(json_get_string(json, "directory", ""), want);
}
END_TEST

START_TEST(usage_is_told_for_each)
{
	static const struct {
		command_fn command;
		const char *name, *wrong;
	} calls[] = {
	    {cmd_cancel, "cancel", "cancel"},
	    {cmd_check, "check", "check a b"},
	    {cmd_devices, "devices", "devices x"},
	    {cmd_drain, "drain", "drain"},
	    {cmd_generate, "generate", "generate m"},
	    {cmd_keygen, "keygen", "keygen x"},
	    {cmd_logs, "logs", "logs --rank x 1"},
	    {cmd_nodes, "nodes", "nodes --wait x"},
	    {cmd_resume, "resume", "resume --no"},
	    {cmd_runs, "runs", "runs --limit -1"},
	    {cmd_show, "show", "show x"},
	    {cmd_submit, "submit", "submit a b"},
	    {cmd_watch, "watch", "watch 0"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		_cleanup_free_ char *line = str_printf("%s --help", calls[i].name), *text = NULL,
		                    *want = NULL;

		ck_assert_int_eq(call(calls[i].command, line, &text), 0);
		want = str_printf("Usage: dtrain %s ", calls[i].name);
		ck_assert_msg(str_starts(text, want), "%s", text);
		ck_assert_msg(call(calls[i].command, calls[i].wrong, NULL) == STATUS_USAGE, "%s",
		              calls[i].wrong);
	}
}
END_TEST

START_TEST(no_command_takes_an_option_that_it_has_not)
{
	for (size_t i = 0; i < command_count; i++) {
		_cleanup_free_ char *line = str_printf("%s --no-such-option", commands[i].name);

		ck_assert_msg(call(commands[i].run, line, NULL) == STATUS_USAGE, "%s", line);
	}
}
END_TEST

/* Words after "--" are a command, and no options. */
START_TEST(dashes_make_a_command)
{
	const char *name = NULL;
	const struct option_spec options[] = {{0, "name", OPTION_STRING, &name, "NAME", "a name"}};
	const struct usage usage = {"x", "RUN_FILE | -- COMMAND", "", NULL, options, 1, 1, -1};
	static const struct {
		const char *line, *first;
		bool dashes;
	} lines[] = {
	    {"x run.conf", "run.conf", false},          {"x run.conf --", "run.conf", false},
	    {"x run.conf --name y", "run.conf", false}, {"x -- run.conf", "run.conf", true},
	    {"x --name y -- sh -c --", "sh", true},     {"x --name -- run.conf", "run.conf", false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		_cleanup_free_ char *copy = strdup(lines[i].line);
		struct client client = {.socket = path};
		char *argv[16], *rest = copy;
		int argc = 0, first;
		bool dashes;

		while ((argv[argc] = strsep(&rest, " ")))
			argc++;
		ck_assert_int_eq(options_parse(&client, &usage, argc, argv, &first, &dashes), OPTIONS_DONE);
		ck_assert_str_eq(argv[first], lines[i].first);
		ck_assert_msg(dashes == lines[i].dashes, "%s", lines[i].line);
	}
	ck_assert_int_eq(call(cmd_submit, "submit run.conf -- true", NULL), STATUS_USAGE);
}
END_TEST

START_TEST(no_service_is_a_status_of_its_own)
{
	ck_assert_int_eq(call(cmd_runs, "runs", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_nodes, "nodes --wait 1 --timeout 0.2", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_submit, "submit -- true", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_logs, "logs 17", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_cancel, "cancel 17", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_watch, "watch 17", NULL), STATUS_UNREACHABLE);
}
END_TEST

#define SUBMITTED                                                                                            \
	{                                                                                                    \
		"POST /v1/runs ", "\"command\":[\"true\"]",                                                  \
		    "HTTP/1.1 201 Created\r\nContent-Length: "                                               \
		    "28\r\n\r\n{\"id\":17,\"state\":\"queued\"}\r\n",                                        \
		    0                                                                                        \
	}

START_TEST(a_wait_ends_as_the_run_ended)
{
	static const struct {
		const char *run;
		int status;
	} cases[] = {
	    {"{\"id\":17,\"state\":\"succeeded\",\"exit_status\":0}", 0},
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":7,\"reason\":\"n1: rank 0: exit status 7\"}",
	     7},
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":137,\"reason\":\"killed\"}", 137},
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":null,\"reason\":\"node n2 is down\"}", 1},
	    {"{\"id\":17,\"state\":\"cancelled\"}", 130},
	    {"{\"id\":17,\"state\":\"timed-out\",\"exit_status\":143,\"reason\":\"its time is up\"}", 124},
	    /* 256 is no exit status, and 0 would be that of a run that succeeded. */
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":255,\"reason\":\"x\"}", 255},
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":256,\"reason\":\"x\"}", 1},
	    {"{\"id\":17,\"state\":\"failed\",\"exit_status\":0,\"reason\":\"x\"}", 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *answer = str_printf("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s",
		                                         strlen(cases[i].run), cases[i].run);
		const struct fake_step steps[] = {SUBMITTED, {"GET /v1/runs/17?wait=1 ", NULL, answer, 0}};
		struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

		ck_assert_int_eq(call(cmd_submit, "submit --wait -- true", NULL), cases[i].status);
		fake_service_stop(fake);
		unlink(path);
	}
}
END_TEST

START_TEST(a_restart_of_the_service_is_waited_for)
{
	static const struct fake_step steps[] = {
	    SUBMITTED,
	    {"GET /v1/runs/17?wait=1 ", NULL, "", 1},
	    {"GET /v1/runs/17?wait=1 ", NULL, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
	     1},
	    {"GET /v1/runs/17?wait=1 ", NULL,
	     "HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{\"id\":17,\"state\":\"succeeded\"}", 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *text = NULL;

	ck_assert_int_eq(call(cmd_submit, "submit --wait --quiet -- true", &text), 0);
	ck_assert_str_eq(text, "17\n");
	fake_service_stop(fake);
}
END_TEST

#define NO_ANSWER                                                                                            \
	"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 53\r\n\r\n"                                             \
	"{\"error\":{\"code\":\"no-answer\",\"message\":\"n1 is away\"}}"

/* A change whose answer was lost, here or behind this service, is asked for again; what was not sent, or was
 * refused, is not. */
START_TEST(a_change_without_an_answer_is_repeated)
{
	static const struct fake_step steps[] = {
	    {"POST /v1/runs ", "Dtrain-Key: ", "", 1},
	    {"POST /v1/runs ", "Dtrain-Key: ", NO_ANSWER, 0},
	    {"POST /v1/runs ",
	     "Dtrain-Key: ", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 1},
	    SUBMITTED,
	    {"DELETE /v1/runs/17 ", NULL, NO_ANSWER, 0},
	    {"DELETE /v1/runs/17 ", NULL,
	     "HTTP/1.1 409 Conflict\r\nContent-Length: 40\r\n\r\n"
	     "{\"error\":{\"code\":\"ended\",\"message\":\"x\"}}",
	     0},
	    {"POST /v1/nodes/n2/drain ", NULL, "", 1},
	    {"POST /v1/nodes/n2/drain ", NULL, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 0},
	    {"POST /v1/runs ", NULL,
	     "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 46\r\n\r\n"
	     "{\"error\":{\"code\":\"unreachable\",\"message\":\"x\"}}",
	     0},
	    {"DELETE /v1/runs/17 ", NULL,
	     "HTTP/1.1 409 Conflict\r\nContent-Length: 40\r\n\r\n"
	     "{\"error\":{\"code\":\"ended\",\"message\":\"x\"}}",
	     0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *text = NULL;

	ck_assert_int_eq(call(cmd_submit, "submit --quiet -- true", &text), 0);
	ck_assert_str_eq(text, "17\n");
	ck_assert_int_eq(call(cmd_cancel, "cancel 17", NULL), 0);
	ck_assert_int_eq(call(cmd_drain, "drain n2", NULL), 0);
	ck_assert_int_eq(call(cmd_submit, "submit --quiet -- true", NULL), STATUS_UNREACHABLE);
	ck_assert_int_eq(call(cmd_cancel, "cancel 17", NULL), EXIT_FAILURE);
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_log_goes_on_where_it_broke_off)
{
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", NULL,
	     FAKE_HEAD("200 OK") "6\r\none\ntw\r\n", 1},
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1&offset=6 ", NULL,
	     FAKE_HEAD("200 OK") "5\r\none\nt\r\n9\r\nwo\nthree\n\r\n0\r\n\r\n", 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *text = NULL;

	ck_assert_int_eq(call(cmd_logs, "logs -f 17", &text), 0);
	ck_assert_str_eq(text, "one\ntwo\nthree\n");
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_log_waits_for_the_controller)
{
	static const char away[] = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 55\r\n\r\n"
	                           "{\"error\":{\"code\":\"unreachable\",\"message\":\"n1 is away\"}}";
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", NULL, FAKE_HEAD("200 OK"), 1},
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", NULL, away, 0},
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", NULL,
	     FAKE_HEAD("200 OK") "4\r\none\n\r\n0\r\n\r\n", 0},
	    {"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", NULL, away, 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *text = NULL;

	ck_assert_int_eq(call(cmd_logs, "logs -f 17", &text), 0);
	ck_assert_str_eq(text, "one\n");
	/* But not if it could not be reached at the beginning. */
	ck_assert_int_eq(call(cmd_logs, "logs -f 17", NULL), STATUS_UNREACHABLE);
	fake_service_stop(fake);
}
END_TEST

START_TEST(an_error_of_the_service_is_an_error)
{
	static const char missing[] =
	    "HTTP/1.1 404 Not Found\r\nContent-Length: 63\r\n\r\n"
	    "{\"error\":{\"code\":\"no-such-run\",\"message\":\"there is no run 99\"}}";
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/99 ", NULL, missing, 0},
	    {"GET /v1/runs/99/logs", NULL, missing, 0},
	    {"DELETE /v1/runs/99 ", NULL, missing, 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

	ck_assert_int_eq(call(cmd_show, "show 99", NULL), EXIT_FAILURE);
	ck_assert_int_eq(call(cmd_logs, "logs 99", NULL), EXIT_FAILURE);
	ck_assert_int_eq(call(cmd_cancel, "cancel 99", NULL), EXIT_FAILURE);
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_watch_prints_plain_lines_without_a_terminal)
{
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/17 ", NULL,
	     FAKE_HEAD("200 OK") "49\r\n{\"id\":17,\"name\":\"a\",\"state\":\"queued\",\"version\":1,"
	                         "\"reason\":\"2 of 4 slots\"}\r\n0\r\n\r\n",
	     0},
	    {"GET /v1/runs/17?wait=change&version=1 ", NULL,
	     FAKE_HEAD("200 OK") "32\r\n{\"id\":17,\"name\":\"a\",\"state\":\"running\",\"version\":2}"
	                         "\r\n0\r\n\r\n",
	     0},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ", NULL,
	     /* A piece ends within a line. */
	     FAKE_HEAD("200 OK") "5b\r\n{\"step\":1,\"steps\":10,\"loss\":2.5,\"tokens_per_second\":12345.6,"
	                         "\"eta_seconds\":90}\n{\"step\":2,\"st\r\n2a\r\neps\":10,\"loss\":1e308}\n{"
	                         "\"message\":\"saved\"}\n\r\n0\r\n\r\n",
	     0},
	    {"GET /v1/runs/17?wait=change&version=2 ", NULL,
	     FAKE_HEAD("200 OK") "34\r\n{\"id\":17,\"name\":\"a\",\"state\":\"succeeded\",\"version\":3}"
	                         "\r\n0\r\n\r\n",
	     0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *text = NULL;

	ck_assert_int_eq(call(cmd_watch, "watch 17", &text), 0);
	ck_assert_str_eq(text, "run 17 (a): queued, 2 of 4 slots\nrun 17 (a): running\n"
	                       "step 1/10  loss 2.5000  12.3k tokens/s  1m30s left\nstep 2/10  loss "
	                       "1.000e+308\nsaved\nrun 17 (a): succeeded, loss 1.000e+308\n");
	fake_service_stop(fake);
}
END_TEST

START_TEST(tables_line_up)
{
	static const char *const header[] = {"A", "B"};
	_cleanup_free_ char *file = str_path_join(dir, "output"), *text = NULL;
	int saved = dup(STDOUT_FILENO), fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct table table;

	fflush(stdout);
	dup2(fd, STDOUT_FILENO);
	table_begin(&table, 2, header);
	table_add(&table, "%s", "größe");
	table_add(&table, "%d", 1);
	table_add(&table, "%s", "");
	table_add(&table, "%s", "\033[2Jx\ny\xc2\x9b");
	table_print(&table);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(fd);
	ck_assert_int_eq(file_read(file, 0, &text, NULL, NULL), 0);
	ck_assert_str_eq(text, "A      B\ngröße  1\n-      ?[2Jx y??\n");
}
END_TEST

/* As an HTTP answer with that body; owned by the caller. */
static char *answer_of(const char *body)
{
	return str_printf("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
}

START_TEST(devices_show_what_there_is)
{
	static const char cpu[] =
	    "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"cpu\",\"name\":\"Xeon\","
	    "\"memory\":1073741824,\"threads\":8,\"state\":\"free\",\"run\":null,\"reason\":null}]}";
	static const char gpu[] =
	    "{\"devices\":[{\"node\":\"n1\",\"index\":3,\"kind\":\"gpu\",\"name\":\"H200\",\"memory\":"
	    "1073741824,"
	    "\"memory_used\":1048576,\"utilization\":97,\"temperature\":64,\"power\":512.3,\"power_limit\":"
	    "700,"
	    "\"gpu\":3,\"ecc_errors\":null,\"xid\":{\"code\":79,\"message\":\"fell off the "
	    "bus\",\"time\":1.5},\"threads\":8,\"state\":\"draining\",\"run\":17,"
	    "\"reason\":\"Xid 79: fell off the bus\"}]}";
	_cleanup_free_ char *first = answer_of(cpu), *second = answer_of(gpu), *text = NULL, *more = NULL;
	const struct fake_step steps[] = {{"GET /v1/devices ", NULL, first, 1},
	                                  {"GET /v1/devices ", NULL, second, 1}};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

	ck_assert_int_eq(call(cmd_devices, "devices", &text), 0);
	ck_assert_str_eq(text, "NODE  SLOT  KIND  NAME  MEMORY   THREADS  STATE  RUN\n"
	                       "n1    0     cpu   Xeon  1.0 GiB  8        free   -\n");
	ck_assert_int_eq(call(cmd_devices, "devices", &more), 0);
	ck_assert_str_eq(
	    more,
	    "NODE  SLOT  KIND  NAME  MEMORY   USED     BUSY  TEMP  POWER     ECC  XID  THREADS  STATE     "
	    "RUN  REASON\n"
	    "n1    3     gpu   H200  1.0 GiB  1.0 MiB  97%   64C   512/700W  -    79   8        draining  "
	    "17   Xid 79: fell off the bus\n");
	fake_service_stop(fake);
}
END_TEST

/* Where one of the nodes is not known, the others are fenced nevertheless, and listed. */
START_TEST(fenced_nodes_are_listed_in_any_case)
{
	_cleanup_free_ char *done = answer_of("{\"name\":\"n2\",\"parts\":1}"), *text = NULL;
	_cleanup_json_ json_t *list = NULL;
	const struct fake_step steps[] = {
	    {"POST /v1/nodes/n2/fence ", NULL, done, 0},
	    {"POST /v1/nodes/n9/fence ", NULL,
	     "HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\n"
	     "{\"error\":{\"code\":\"no-such-node\",\"message\":\"none\"}}",
	     1},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

	ck_assert_int_eq(call(cmd_fence, "fence --json n2 n9", &text), 1);
	list = json_loads(text, 0, NULL);
	ck_assert_uint_eq(json_array_size(list), 1);
	ck_assert_str_eq(json_get_string(json_array_get(list, 0), "name", ""), "n2");
	fake_service_stop(fake);
}
END_TEST

START_TEST(nothing_is_listed_where_no_node_was_fenced)
{
	_cleanup_free_ char *text = NULL;
	const struct fake_step steps[] = {
	    {"POST /v1/nodes/n9/fence ", NULL,
	     "HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\n"
	     "{\"error\":{\"code\":\"no-such-node\",\"message\":\"none\"}}",
	     1},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

	ck_assert_int_eq(call(cmd_fence, "fence --json n9", &text), 1);
	ck_assert_str_eq(text, "");
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_device_is_named_by_its_node_and_slot)
{
	_cleanup_free_ char *done = answer_of("{}");
	const struct fake_step steps[] = {
	    {"POST /v1/nodes/n1/drain ", NULL, done, 1},
	    {"POST /v1/nodes/n1/devices/3/drain ", "{\"reason\":\"loud\"}", done, 1},
	    {"POST /v1/nodes/n1/devices/3/resume ", NULL, done, 0},
	    {"POST /v1/nodes/fe80%3A%3A1/resume ", NULL, done, 0},
	    {"POST /v1/nodes/n1%3Ax/resume ", NULL, done, 1},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));

	ck_assert_int_eq(call(cmd_drain, "drain n1", NULL), 0);
	ck_assert_int_eq(call(cmd_drain, "drain --reason loud n1:3", NULL), 0);
	ck_assert_int_eq(call(cmd_resume, "resume n1:3 fe80::1 n1:x", NULL), 0);
	fake_service_stop(fake);
}
END_TEST

/* In a process of its own, which the command replaces. Returns the exit status; *printed gets both
 * outputs. */
static int keygen(const char *programs, const char *line, char **printed)
{
	_cleanup_free_ char *file = str_path_join(dir, "printed");
	int status, fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	pid_t child;

	fflush(stdout);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		dup2(fd, STDERR_FILENO);
		setenv("DTRAIN_WORKER_DIR", programs, 1);
		_exit(call(cmd_keygen, line, NULL));
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	close(fd);
	ck_assert(WIFEXITED(status));
	*printed = NULL;
	ck_assert_int_eq(file_read(file, 0, printed, NULL, NULL), 0);
	return WEXITSTATUS(status);
}

START_TEST(a_key_is_made_by_a_program_of_its_own)
{
	_cleanup_free_ char *pem = str_path_join(dir, "cluster.pem"), *output = str_path_join(dir, "output"),
	                    *make = str_printf("keygen -o %s", pem), *force = str_printf("%s --force", make),
	                    *want = str_printf("%s: made; copy it to every node of the cluster\n", pem);
	char *text, *first = NULL, *second = NULL, *third = NULL;
	struct stat st;

	ck_assert_int_eq(keygen(BUILDDIR, make, &text), 0);
	ck_assert_str_eq(text, "");
	free(text);
	ck_assert_int_eq(file_read(output, 0, &text, NULL, NULL), 0);
	ck_assert_str_eq(text, want);
	free(text);
	ck_assert_int_eq(stat(pem, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(file_read(pem, 0, &first, NULL, NULL), 0);

	ck_assert_int_eq(keygen(BUILDDIR, make, &text), EXIT_FAILURE);
	ck_assert_msg(str_starts(text, "dtrain: ") && strstr(text, "exists") && strstr(text, "--force"), "%s",
	              text);
	free(text);
	ck_assert_int_eq(file_read(pem, 0, &second, NULL, NULL), 0);
	ck_assert_str_eq(first, second);

	ck_assert_int_eq(keygen(BUILDDIR, force, &text), 0);
	free(text);
	ck_assert_int_eq(file_read(pem, 0, &third, NULL, NULL), 0);
	ck_assert_str_ne(first, third);

	ck_assert_int_eq(keygen("/nonexistent", make, &text), EXIT_FAILURE);
	ck_assert_msg(str_starts(text, "dtrain: cannot execute /nonexistent/dtrain-keygen: No such file"),
	              "%s", text);
	free(text);
	free(first);
	free(second);
	free(third);
}
END_TEST

/* An authority, and the certificate of a node, which it signs. */
START_TEST(certificates_are_made)
{
	static const struct {
		const char *options, *words;
		int status;
	} rows[] = {
	    {"--node n1", "--node and --days need --ca DIRECTORY", 2},
	    {"--days 3", "--node and --days need --ca DIRECTORY", 2},
	    {"--ca x -o y", "--output is not possible with --ca", 2},
	    {"--ca x --days 1000000", "--days: at most", 2},
	    {"--ca %s/ca --node n1", "ca.pem", 1},
	    {"--ca %s/ca", "", 0},
	    {"--ca %s/ca", "exists", 1},
	    {"--ca %s/ca --node n1 --days 3", "", 0},
	    {"--ca %s/ca --node n1", "exists", 1},
	    {"--ca %s/ca --node n1 --force", "", 0},
	    {"--ca %s/ca --node a/b", "not the name of a host", 1},
	};
	_cleanup_free_ char *crt = str_path_join(dir, "ca/nodes/n1.pem"),
	                    *key = str_path_join(dir, "ca/nodes/n1.key");
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		_cleanup_strbuf_ struct strbuf line = {0};
		const char *place = strstr(rows[i].options, "%s");
		char *text;
		int status;

		strbuf_addf(&line, "keygen %.*s", place ? (int)(place - rows[i].options) : 1000,
		            rows[i].options);
		if (place)
			strbuf_addf(&line, "%s%s", dir, place + 2);
		status = keygen(BUILDDIR, line.data, &text);
		ck_assert_msg(status == rows[i].status && (status == 0 || strstr(text, rows[i].words)),
		              "%s: %d: %s", line.data, status, text);
		free(text);
	}
	ck_assert_int_eq(stat(crt, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0644);
	ck_assert_int_eq(stat(key, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
}
END_TEST

/* To load it would take a third of the time of every command. */
START_TEST(the_client_does_not_load_gnutls)
{
	_cleanup_free_ char *maps = NULL;

	ck_assert_int_eq(file_read("/proc/self/maps", 0, &maps, NULL, NULL), 0);
	ck_assert_ptr_nonnull(strstr(maps, "jansson"));
	ck_assert_ptr_null(strstr(maps, "gnutls"));
}
END_TEST

/* The exit status of a program of the build, and what it prints. */
static int execute(const char *line, char text[4096])
{
	_cleanup_free_ char *command = str_printf("exec %s/%s", BUILDDIR, line);
	FILE *pipe = popen(command, "re");
	int status;

	ck_assert_ptr_nonnull(pipe);
	text[fread(text, 1, 4095, pipe)] = '\0';
	status = pclose(pipe);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* What dtrain-keygen prints of what it has made; days, and the name of a node. */
START_TEST(what_was_made_is_named)
{
	_cleanup_free_ char *authority =
	                        str_printf("%s/ca/ca.pem: made; copy it to every node of the cluster, and "
	                                   "keep %s/ca/ca.key secret\n",
	                                   dir, dir),
	                    *node = str_printf(
	                        "%s/ca/nodes/n1.pem and %s/ca/nodes/n1.key: made; copy both to n1\n", dir,
	                        dir);
	const struct {
		const char *arguments, *want;
		int status;
	} cases[] = {
	    {"30", authority, 0},
	    {"30 n1", node, 0},
	    {"30 n1 n2", "dtrain-keygen: \"dtrain keygen\" executes this program\n", 2},
	    {"x n1", "dtrain: x: not a number of days\n", EXIT_FAILURE},
	    {"30 n2 >/dev/full", "", EXIT_FAILURE},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line =
		    str_printf("dtrain-keygen make %s/ca %s 2>&1", dir, cases[i].arguments);
		char text[4096];
		int status = execute(line, text);

		ck_assert_str_eq(text, cases[i].want);
		ck_assert_int_eq(status, cases[i].status);
	}
}
END_TEST

/* The program itself: its exit status, and how what it prints begins. */
START_TEST(the_program_finds_its_command)
{
	static const struct {
		const char *arguments;
		int status;
		const char *begin;
	} cases[] = {
	    {"", STATUS_USAGE, "Usage: dtrain COMMAND "},
	    {"-h", 0, "Usage: dtrain COMMAND "},
	    {"--help nix", 0, "Usage: dtrain COMMAND "},
	    {"help", 0, "Usage: dtrain COMMAND "},
	    {"help runs", 0, "Usage: dtrain runs "},
	    {"runs --help", 0, "Usage: dtrain runs "},
	    {"runs --help=x", STATUS_USAGE, "dtrain: runs: --help takes no value\n"},
	    {"runs --state bogus", STATUS_USAGE,
	     "dtrain: --state: \"bogus\" is no state of a run; expected one of queued, starting, running, "
	     "stopping, succeeded, failed, cancelled, timed-out, active\n"},
	    {"help nix", STATUS_USAGE, "dtrain: no command \"nix\"; \"dtrain --help\" lists them\n"},
	    {"rnus", STATUS_USAGE, "dtrain: no command \"rnus\"; did you mean runs?\n"},
	    {"--version", 0, "dtrain " DTRAIN_VERSION "\n"},
	    {"--verison", STATUS_USAGE, "dtrain: unknown option --verison; did you mean --version?\n"},
	    {"--nix", STATUS_USAGE,
	     "dtrain: unknown option --nix; \"dtrain --help\" tells how it is called\n"},
	    {"--socket", STATUS_USAGE, "dtrain: --socket: the path of the socket is missing\n"},
	    {"--socket /x/y runs", STATUS_UNREACHABLE, "dtrain: dtraind does not answer at /x/y: "},
	    {"--socket=/x/z runs", STATUS_UNREACHABLE, "dtrain: dtraind does not answer at /x/z: "},
	    {"runs", STATUS_UNREACHABLE, "dtrain: dtraind does not answer at /x/w: "},
	    {"runs --help >/dev/full", EXIT_FAILURE, ""},
	    {"complete dtrain ver", 0, ""},
	};

	setenv("DTRAIN_SOCKET", "/x/w", 1);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("dtrain %s 2>&1", cases[i].arguments);
		char text[4096];
		int status = execute(line, text);

		ck_assert_msg(status == cases[i].status, "dtrain %s: status %d, expected %d: %s",
		              cases[i].arguments, status, cases[i].status, text);
		ck_assert_msg(str_starts(text, cases[i].begin), "dtrain %s: %s", cases[i].arguments, text);
	}
}
END_TEST

/* The program says so although it has tried to write the number before its end, and succeeded otherwise. */
START_TEST(a_number_that_cannot_be_written_is_an_error)
{
	static const struct fake_step steps[] = {
	    {"POST /v1/runs HTTP", "\"command\":[\"true\"]",
	     "HTTP/1.1 201 Created\r\nContent-Length: 29\r\n\r\n{\"id\":7,\"state\":\"queued\"}     ", 1},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_free_ char *line =
	    str_printf("dtrain --socket %s submit --quiet -- true 2>&1 >/dev/full", path);
	char text[4096];
	int status = execute(line, text);

	fake_service_stop(fake);
	ck_assert_str_eq(text, "dtrain: cannot write the output\n");
	ck_assert_int_eq(status, EXIT_FAILURE);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain");
	TCase *tc = tcase_create("client");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, a_command_is_posted_as_it_was_typed);
	tcase_add_test(tc, directories_are_seen_from_here);
	tcase_add_test(tc, usage_is_told_for_each);
	tcase_add_test(tc, no_command_takes_an_option_that_it_has_not);
	tcase_add_test(tc, a_key_is_made_by_a_program_of_its_own);
	tcase_add_test(tc, certificates_are_made);
	tcase_add_test(tc, the_client_does_not_load_gnutls);
	tcase_add_test(tc, dashes_make_a_command);
	tcase_add_test(tc, no_service_is_a_status_of_its_own);
	tcase_add_test(tc, a_wait_ends_as_the_run_ended);
	tcase_add_test(tc, a_restart_of_the_service_is_waited_for);
	tcase_add_test(tc, a_change_without_an_answer_is_repeated);
	tcase_add_test(tc, a_log_goes_on_where_it_broke_off);
	tcase_add_test(tc, a_log_waits_for_the_controller);
	tcase_add_test(tc, an_error_of_the_service_is_an_error);
	tcase_add_test(tc, a_watch_prints_plain_lines_without_a_terminal);
	tcase_add_test(tc, tables_line_up);
	tcase_add_test(tc, the_program_finds_its_command);
	tcase_add_test(tc, a_number_that_cannot_be_written_is_an_error);
	tcase_add_test(tc, what_was_made_is_named);
	tcase_add_test(tc, devices_show_what_there_is);
	tcase_add_test(tc, fenced_nodes_are_listed_in_any_case);
	tcase_add_test(tc, nothing_is_listed_where_no_node_was_fenced);
	tcase_add_test(tc, a_device_is_named_by_its_node_and_slot);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
