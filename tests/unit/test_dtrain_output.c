/* SPDX-License-Identifier: Apache-2.0 */
/* The output of the client: tables within a width, numbers at their limits, waiting for nodes, and what
 * cannot be written. */
#include "dtrain_fixture.h"

#include <fcntl.h>
#include <string.h>

#include "base/str.h"
#include "dtrain/table.h"

/* ---- tables ---- */

/* What a table of two columns prints. Owned by the caller. */
static char *print_rows(int width, size_t rows, const char *const cells[][2], const char *color)
{
	_cleanup_free_ char *file = str_path_join(fixture_dir(), "table");
	int saved = dup(STDOUT_FILENO), fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct table table;
	char *text = NULL;

	fflush(stdout);
	dup2(fd, STDOUT_FILENO);
	table_begin(&table, 2, cells[0]);
	table.width = width;
	for (size_t i = 1; i < rows; i++) {
		table_add_text(&table, cells[i][0]);
		table_color(&table, color);
		table_add_text(&table, cells[i][1]);
	}
	table_print(&table);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(fd);
	ck_assert_int_eq(file_read(file, 0, &text, NULL, NULL), 0);
	return text;
}

START_TEST(the_last_column_is_cut_to_the_width)
{
	static const char *const cells[][2] = {{"A", "B"}, {"long", "größer"}, {NULL, "x\t\177"}};
	static const struct {
		int width;
		const char *text;
	} cases[] = {
	    {0, "A     B\nlong  größer\n-     x??\n"}, {12, "A     B\nlong  größer\n-     x??\n"},
	    {11, "A     B\nlong  größ…\n-     x??\n"}, {9, "A     B\nlong  gr…\n-     x??\n"},
	    {8, "A     B\nlong  g…\n-     x…\n"},      {7, "A     B\nlong  …\n-     …\n"},
	    {3, "A     B\nlong  …\n-     …\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *text = print_rows(cases[i].width, 3, cells, NULL);

		ck_assert_str_eq(text, cases[i].text);
	}
}
END_TEST

/* The color is that of one cell. */
START_TEST(a_cell_may_have_a_color)
{
	static const char *const cells[][2] = {{"A", "B"}, {"x", "y"}};
	_cleanup_free_ char *text = print_rows(0, 2, cells, "31");

	ck_assert_str_eq(text, "A  B\n\033[31mx\033[0m  y\n");
}
END_TEST

/* More cells than there is room for at first. */
START_TEST(a_table_may_be_long)
{
	enum { ROWS = 400 };
	static const char *cells[ROWS][2];
	_cleanup_free_ char *text = NULL;
	size_t lines = 0;

	for (size_t i = 0; i < ROWS; i++)
		cells[i][0] = cells[i][1] = "x";
	text = print_rows(0, ROWS, cells, NULL);
	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	ck_assert_uint_eq(lines, ROWS);
	ck_assert_uint_eq(strlen(text), 5 * ROWS);
}
END_TEST

/* ---- numbers at their limits ---- */

static const struct {
	command_fn command;
	const char *line, *request, *answer, *output;
} printed[] = {
    {cmd_devices, "devices", "GET /v1/devices ",
     "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"gpu\",\"name\":\"G\",\"memory\":1024,\"memory_"
     "used\":0,"
     "\"utilization\":0,\"temperature\":0,\"power\":0,\"power_limit\":null,\"gpu\":0,\"ecc_errors\":0,"
     "\"threads\":1,"
     "\"state\":\"free\",\"reserved_for\":8},{\"node\":\"n1\",\"index\":1,\"kind\":\"gpu\",\"name\":\"G\","
     "\"memory\":1024,\"gpu\":1,\"threads\":1,\"state\":\"free\",\"reserved_for\":0,\"run\":1}]}",
     "NODE  SLOT  KIND  NAME  MEMORY   USED  BUSY  TEMP  POWER  ECC  XID  THREADS  STATE           RUN\n"
     "n1    0     gpu   G     1.0 KiB  0 B   0%    0C    0/?    0    -    1        reserved for 8  -\n"
     "n1    1     gpu   G     1.0 KiB  -     -     -     -      -    -    1        free            1\n"},
    {cmd_devices, "devices --local", "GET /v1/devices?local=1 ",
     "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"cpu\",\"name\":\"C\",\"memory\":1024,\"threads\":"
     "1,"
     "\"state\":\"drained\",\"reason\":\"hot\",\"reserved_for\":8}]}",
     "NODE  SLOT  KIND  NAME  MEMORY   THREADS  STATE    RUN  REASON\n"
     "n1    0     cpu   C     1.0 KiB  1        drained  -    hot\n"},
    {cmd_nodes, "nodes", "GET /v1/nodes ",
     "{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\",\"slots\":1,\"free\":1,\"controller\":true,\"hosts_"
     "differ\":true},"
     "{\"name\":\"n2\",\"state\":\"up\",\"slots\":1,\"free\":1,\"hosts_differ\":true},"
     "{\"name\":\"n3\",\"state\":\"up\",\"slots\":1,\"free\":1,\"reason\":\"r\"},"
     "{\"name\":\"n4\",\"state\":\"up\",\"slots\":1,\"free\":1,\"drained\":[{\"index\":3}]},"
     "{\"name\":\"n5\",\"state\":\"up\",\"slots\":1,\"free\":1,\"spare_of\":[4]},"
     "{\"name\":\"n6\",\"state\":\"up\",\"slots\":1,\"free\":1,\"foreign\":[{\"run\":5,\"attempt\":1,"
     "\"user\":\"u\","
     "\"state\":\"running\"}]}]}",
     "NODE  STATE  SLOTS  FREE  ADDRESS  VERSION  LAUNCH  LABELS  REMARK\n"
     "n1    up     1      1     :0       -        -       -       controller; its hosts file differs from "
     "the "
     "controller's\n"
     "n2    up     1      1     :0       -        -       -       its hosts file differs from the "
     "controller's\n"
     "n3    up     1      1     :0       -        -       -       drained: r\n"
     "n4    up     1      1     :0       -        -       -       slot 3 drained: \n"
     "n5    up     1      1     :0       -        -       -       kept for run 4\n"
     "n6    up     1      1     :0       -        -       -       foreign run 5 of u\n"},
    {cmd_show, "show 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"state\":\"running\",\"exit_status\":null,\"progress\":{\"step\":0,\"steps\":10},"
     "\"checkpoint\":0,"
     "\"max_restarts\":0,\"restarts\":0,\"max_node_failures\":0,\"time_limit\":0,\"submitted\":0,\"ranks\":[{"
     "\"rank\":0,"
     "\"node\":\"n1\",\"slot\":3,\"pid\":0,\"state\":\"running\"}]}",
     "run          17\nstate        running\nattempt      0\n\n"
     "RANK  NODE  SLOT  PID  STATE    EXIT\n0     n1    3     -    running  -\n"},
    {cmd_show, "show 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"state\":\"running\",\"progress\":{\"step\":1,\"steps\":10,\"loss\":1,\"tokens_per_"
     "second\":5,"
     "\"eta_seconds\":0},\"checkpoint\":1,\"max_restarts\":1,\"max_node_failures\":1,\"last_detail\":\"e\"}",
     "run          17\nstate        running\nattempt      0\nrestarts     0 of 1\nnode faults  0 of 1\n"
     "last detail  e\ncheckpoint   step 1\nprogress     step 1 of 10, loss 1.0000, 5 tokens/s\n"},
    {cmd_watch, "watch 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"name\":\"a\",\"task\":\"sft\",\"state\":\"succeeded\",\"version\":1,\"progress\":{"
     "\"step\":1,"
     "\"steps\":1,\"loss\":1.25},\"directory\":\"/w\",\"output\":\"/o\"}",
     "run 17 (a): succeeded, loss 1.2500, the model is in /o\n"},
    {cmd_watch, "watch 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"task\":\"command\",\"state\":\"succeeded\",\"version\":1,\"started\":100,\"ended\":99,"
     "\"directory\":\"/w\",\"output\":\"/o\"}",
     "run 17 (?): succeeded after 0s\n"},
    {cmd_runs, "runs --json", "GET /v1/runs?",
     "{\"runs\":[{\"id\":9,\"state\":\"failed\"},{\"id\":8,\"state\":\"failed\",\"task\":\"generate\"}]}",
     "[\n  {\n    \"id\": 9,\n    \"state\": \"failed\"\n  }\n]\n"},
    {cmd_watch, "watch --json 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"name\":\"a\",\"state\":\"succeeded\",\"version\":1}", ""},
};

START_TEST(what_is_printed_of_little)
{
	const struct exchange list[] = {{printed[_i].request, printed[_i].answer}};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(printed[_i].command, printed[_i].line, list, 1);

	ck_assert_str_eq(call.errors, "");
	ck_assert_str_eq(call.output, printed[_i].output);
	ck_assert_int_eq(call.status, 0);
}
END_TEST

/* Columns for which a wide terminal has room. */
START_TEST(a_wide_terminal_has_more_columns)
{
	_cleanup_free_ char *list =
	    fixture_answer("{\"runs\":[{\"id\":17,\"name\":\"a\",\"user\":\"u\",\"task\":\"sft\",\"state\":"
	                   "\"failed\",\"world_size\":0,"
	                   "\"nodes\":[\"n1\",\"n2\",\"n3\",\"n4\",\"n5\"],\"submitted\":1700000000,\"last_"
	                   "failure\":\"f\",\"attempt\":3},"
	                   "{\"id\":16,\"state\":\"running\",\"world_size\":2,\"nodes\":[\"n1\",\"n2\","
	                   "\"n3\"],\"started\":9,\"ended\":8}]}");
	const struct fake_step steps[] = {{"GET /v1/runs?", NULL, list, 1}, {"GET /v1/runs?", NULL, list, 1}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, 2);
	_cleanup_(call_release) struct call wide = {0}, narrow = {0};

	setenv("NO_COLOR", "1", 1);
	wide = fixture_terminal(cmd_runs, "runs", 120);
	narrow = fixture_terminal(cmd_runs, "runs", 119);
	fake_service_stop(fake);
	ck_assert_str_eq(
	    wide.output,
	    "RUN  NAME  USER  TASK  STATE    SIZE  NODES       SUBMITTED         TIME  PROGRESS\r\n"
	    "17   a     u     sft   failed   1     n1,n2,n3,…  2023-11-14 22:13  -     attempt 3\r\n"
	    "16   -     -     -     running  2     n1,n2,n3    -                 0s    -\r\n");
	ck_assert_str_eq(narrow.output, "RUN  NAME  USER  STATE    SIZE  TIME  PROGRESS\r\n"
	                                "17   a     u     failed   1     -     attempt 3\r\n"
	                                "16   -     -     running  2     0s    -\r\n");
}
END_TEST

START_TEST(a_copy_needs_its_directory)
{
	_cleanup_(call_release) struct call call = fixture_call(cmd_backup, "backup /nowhere/copy");

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_str_eq(call.errors, "dtrain: cannot write /nowhere/copy: No such file or directory\n");
}
END_TEST

/* For the owner of a run and administrators, whom the service sends it. */
START_TEST(the_run_file_may_be_hidden)
{
	static const struct exchange with[] = {
	    {"GET /v1/runs/17 ", "{\"id\":17,\"state\":\"queued\",\"config\":{\"name\":\"a\"}}"}};
	static const struct exchange without[] = {{"GET /v1/runs/17 ", "{\"id\":17,\"state\":\"queued\"}"}};
	_cleanup_(call_release) struct call shown = fixture_exchange(cmd_show, "show --config 17", with, 1);
	_cleanup_(call_release) struct call hidden =
	    fixture_exchange(cmd_show, "show --config 17", without, 1);

	ck_assert_int_eq(shown.status, 0);
	ck_assert_str_eq(shown.output, "{\n  \"name\": \"a\"\n}\n");
	ck_assert_int_eq(hidden.status, EXIT_FAILURE);
	ck_assert_str_eq(hidden.errors,
	                 "dtrain: the run file of run 17 is shown to its owner and administrators only\n");
	ck_assert_str_eq(hidden.output, "");
}
END_TEST

/* The exit status of each command that asks the service for something. */
START_TEST(a_refusal_is_a_failure)
{
	static const struct {
		command_fn command;
		const char *line, *request;
	} calls[] = {
	    {cmd_prune, "prune", "POST /v1/prune "},
	    {cmd_runs, "runs", "GET /v1/runs?"},
	    {cmd_runs, "runs --local", "GET /v1/local/runs "},
	    {cmd_devices, "devices", "GET /v1/devices "},
	    {cmd_fence, "fence n1", "POST /v1/nodes/n1/fence "},
	    {cmd_kill, "kill --local 5", "DELETE /v1/local/runs/5 "},
	    {cmd_backup, "backup copy", "GET /v1/backup "},
	    {cmd_watch, "watch 17", "GET /v1/runs/17 "},
	    {cmd_show, "show", "GET /v1/runs?state=all&limit=100&before=0 "},
	    {cmd_nodes, "nodes", "GET /v1/nodes "},
	};
	_cleanup_free_ char *refusal = fixture_refusal(403, "denied", "not for you");

	ck_assert_int_eq(chdir(fixture_dir()), 0);
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		const struct exchange list[] = {{calls[i].request, refusal}};
		_cleanup_(call_release) struct call call =
		    fixture_exchange(calls[i].command, calls[i].line, list, 1);

		ck_assert_msg(call.status == EXIT_FAILURE, "%s: %d", calls[i].line, call.status);
		ck_assert_msg(strstr(call.errors, "not for you") != NULL, "%s: %s", calls[i].line,
		              call.errors);
		ck_assert_str_eq(call.output, "");
	}
}
END_TEST

/* Each state of a run is a line once; so is each reason. */
START_TEST(a_watch_says_each_state_once)
{
#define RUN(state, version, reason)                                                                          \
	"{\"id\":17,\"name\":\"a\",\"state\":\"" state "\",\"version\":" version ",\"reason\":\"" reason "\"}"
	static const struct exchange list[] = {
	    {"GET /v1/runs/17 ", RUN("queued", "1", "2 of 4 slots")},
	    {"GET /v1/runs/17?wait=change&version=1 ", RUN("queued", "2", "2 of 4 slots")},
	    {"GET /v1/runs/17?wait=change&version=2 ", RUN("queued", "3", "3 of 4 slots")},
	    {"GET /v1/runs/17?wait=change&version=3 ", RUN("starting", "4", "")},
	    {"GET /v1/runs/17?wait=change&version=4 ", RUN("cancelled", "5", "")},
	};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_watch, "watch 17", list, ARRAY_SIZE(list));

	ck_assert_str_eq(call.output, "run 17 (a): queued, 2 of 4 slots\nrun 17 (a): queued, 3 of 4 slots\n"
	                              "run 17 (a): starting\nrun 17 (a): cancelled\n");
	ck_assert_str_eq(call.errors, "dtrain: run 17 was cancelled\n");
	ck_assert_int_eq(call.status, STATUS_CANCELLED);
}
END_TEST

/* Of a run that is waited for. */
START_TEST(an_odd_answer_ends_the_wait)
{
	static const struct exchange list[] = {{"DELETE /v1/runs/17 ", "{}"},
	                                       {"GET /v1/runs/17?wait=1 ", "{\"id\":\"x\"}"}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_cancel, "cancel -w 17", list, 2);

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_msg(str_starts(call.errors, "dtrain: "), "%s", call.errors);
}
END_TEST

/* The run that is meant is said where none was named, and only there. */
START_TEST(the_run_is_named_where_it_was_not)
{
	static const struct exchange named[] = {{"GET /v1/runs/17/logs?rank=0&positions=1 ", "hello\n"}};
	_cleanup_free_ char *mine =
	    str_printf("{\"runs\":[{\"id\":9,\"uid\":%u,\"name\":\"a\",\"state\":\"running\"}]}", getuid());
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_logs, "logs 17", named, 1);

	ck_assert_str_eq(call.output, "hello\n");
	ck_assert_str_eq(call.errors, "");
}
END_TEST

/* ---- nodes that are waited for ---- */

#define UP(list) "{\"nodes\":[" list "]}"
#define NODE(name, state)                                                                                    \
	"{\"name\":\"" name "\",\"state\":\"" state "\",\"address\":\"a\",\"port\":1,\"slots\":1,\"free\":"  \
	"1}"

START_TEST(nodes_are_waited_for)
{
	_cleanup_free_ char *away = fixture_refusal(503, "no-controller", "none"),
	                    *no = fixture_refusal(403, "denied", "no");
	const struct exchange come[] = {
	    {"GET /v1/nodes ", away},
	    {"GET /v1/nodes ", UP(NODE("n1", "up") "," NODE("n2", "down"))},
	    {"GET /v1/nodes ", UP(NODE("n1", "up") "," NODE("n2", "up"))},
	};
	const struct exchange missing[] = {{"GET /v1/nodes ", UP(NODE("n1", "up") "," NODE("n2", "down"))}};
	const struct exchange gone[] = {{"GET /v1/nodes ", away}}, denied[] = {{"GET /v1/nodes ", no}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_nodes, "nodes --wait 2", come, 3);
	_cleanup_(call_release) struct call json = fixture_exchange(cmd_nodes, "nodes --json -w 2", come, 3);
	_cleanup_(call_release) struct call late =
	    fixture_exchange(cmd_nodes, "nodes -w 2 --timeout 0", missing, 1);
	_cleanup_(call_release) struct call unreachable =
	    fixture_exchange(cmd_nodes, "nodes -w 2 --timeout 0", gone, 1);
	_cleanup_(call_release) struct call refused =
	    fixture_exchange(cmd_nodes, "nodes -w 2 --timeout 0", denied, 1);
	_cleanup_(call_release) struct call plain = fixture_exchange(cmd_nodes, "nodes", gone, 1);
	_cleanup_(call_release) struct call no_service = fixture_call(cmd_nodes, "nodes -w 1 --timeout 0");

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.errors, "");
	ck_assert_msg(str_starts(call.output, "NODE  STATE  ") && strstr(call.output, "\nn2    up "), "%s",
	              call.output);
	ck_assert_int_eq(json.status, 0);
	ck_assert_msg(str_starts(json.output, "["), "%s", json.output);
	ck_assert_int_eq(late.status, EXIT_FAILURE);
	ck_assert_str_eq(late.errors, "dtrain: 1 of 2 nodes are up after 0 s\n");
	ck_assert_msg(strstr(late.output, "\nn2    down ") != NULL, "%s", late.output);
	ck_assert_int_eq(unreachable.status, STATUS_UNREACHABLE);
	ck_assert_str_eq(unreachable.errors, "dtrain: dtraind answers with status 503\n");
	ck_assert_int_eq(refused.status, EXIT_FAILURE);
	ck_assert_int_eq(plain.status, STATUS_UNREACHABLE);
	ck_assert_int_eq(no_service.status, STATUS_UNREACHABLE);
}
END_TEST

/* ---- what cannot be written ---- */

#define RUNNING "{\"id\":17,\"name\":\"a\",\"state\":\"running\",\"version\":2}"

START_TEST(a_full_disk_is_an_error)
{
	static const struct exchange logs[] = {{"GET /v1/runs/17/logs?rank=0&positions=1 ", "hello\n"}};
	static const struct exchange watched[] = {
	    {"GET /v1/runs/17 ", RUNNING},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ", "{\"step\":1,\"steps\":2}\n"}};
	static const struct {
		command_fn command;
		const char *line;
		const struct exchange *list;
		size_t count;
	} calls[] = {{cmd_logs, "logs 17", logs, 1},
	             {cmd_watch, "watch 17", watched, 2},
	             {cmd_watch, "watch --json 17", watched, 2}};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		_cleanup_(call_release) struct call call =
		    fixture_exchange_full(calls[i].command, calls[i].line, calls[i].list, calls[i].count);

		ck_assert_int_eq(call.status, EXIT_FAILURE);
		ck_assert_msg(strstr(call.errors, "dtrain: cannot write the output: ") != NULL, "%s: %s",
		              calls[i].line, call.errors);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_output");
	TCase *tc = tcase_create("output");

	setenv("TZ", "UTC", 1);
	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_last_column_is_cut_to_the_width);
	tcase_add_test(tc, a_cell_may_have_a_color);
	tcase_add_test(tc, a_table_may_be_long);
	tcase_add_loop_test(tc, what_is_printed_of_little, 0, ARRAY_SIZE(printed));
	tcase_add_test(tc, a_wide_terminal_has_more_columns);
	tcase_add_test(tc, a_copy_needs_its_directory);
	tcase_add_test(tc, the_run_file_may_be_hidden);
	tcase_add_test(tc, a_refusal_is_a_failure);
	tcase_add_test(tc, a_watch_says_each_state_once);
	tcase_add_test(tc, an_odd_answer_ends_the_wait);
	tcase_add_test(tc, the_run_is_named_where_it_was_not);
	tcase_add_test(tc, nodes_are_waited_for);
	tcase_add_test(tc, a_full_disk_is_an_error);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
