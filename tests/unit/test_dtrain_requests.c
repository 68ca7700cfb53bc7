/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of commands: what the words on a command line become. The service refuses them all. */
#include "dtrain_fixture.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#define REFUSAL                                                                                              \
	"HTTP/1.1 400 Bad Request\r\nContent-Length: 37\r\n\r\n"                                             \
	"{\"error\":{\"code\":\"x\",\"message\":\"no\"}}"

static const struct {
	command_fn command;
	const char *line, *request, *body; /* body: in it */
} sent[] = {
    {cmd_generate, "generate m hello", "POST /v1/runs ", "\"task\":\"generate\""},
    {cmd_generate, "generate m hello", "POST /v1/runs ", "\"name\":\"generate\""},
    {cmd_generate, "generate m hello", "POST /v1/runs ", "\"path\":\"m\""},
    {cmd_generate, "generate m hello", "POST /v1/runs ", "\"prompt\":\"hello\""},
    {cmd_generate, "generate m -", "POST /v1/runs ", "\"prompt\":\"of the input\\n\""},
    {cmd_generate, "generate --prompts p.txt m", "POST /v1/runs ", "\"prompts\":\"p.txt\""},
    {cmd_generate, "generate --prompts p.txt -b 3 m", "POST /v1/runs ", "\"batch\":3"},
    {cmd_generate, "generate --chat m hello", "POST /v1/runs ", "\"chat\":true"},
    {cmd_generate, "generate -n 5 m hello", "POST /v1/runs ", "\"max_new_tokens\":5"},
    {cmd_generate, "generate -t 0.5 m hello", "POST /v1/runs ", "\"temperature\":0.5"},
    {cmd_generate, "generate --top-k 7 m hello", "POST /v1/runs ", "\"top_k\":7"},
    {cmd_generate, "generate --top-p 0.25 m hello", "POST /v1/runs ", "\"top_p\":0.25"},
    {cmd_generate, "generate --min-p 0.125 m hello", "POST /v1/runs ", "\"min_p\":0.125"},
    {cmd_generate, "generate --repetition-penalty 1.5 m hello", "POST /v1/runs ",
     "\"repetition_penalty\":1.5"},
    {cmd_generate, "generate --stop a --stop b,\"c\" m hello", "POST /v1/runs ",
     "\"stop\":[\"a\",\"b,\\\"c\\\"\"]"},
    {cmd_generate, "generate -a lora m hello", "POST /v1/runs ", "\"adapter\":\"lora\""},
    {cmd_generate, "generate --seed 9 m hello", "POST /v1/runs ", "\"seed\":9"},
    {cmd_generate, "generate --tokenizer t m hello", "POST /v1/runs ", "\"tokenizer\":\"t\""},
    {cmd_generate, "generate --precision bf16 m hello", "POST /v1/runs ", "\"precision\":\"bf16\""},
    {cmd_generate, "generate -s name=x m hello", "POST /v1/runs ", "\"name\":\"x\""},
    {cmd_submit, "submit -- true", "POST /v1/runs ", "\"command\":[\"true\"]"},
    {cmd_submit, "submit -- /bin/true -x a,b", "POST /v1/runs ",
     "\"command\":[\"/bin/true\",\"-x\",\"a,b\"]"},
    {cmd_submit, "submit -- /bin/true", "POST /v1/runs ", "\"name\":\"true\""},
    {cmd_submit, "submit -- /bin/", "POST /v1/runs ", "\"name\":\"/bin/\""},
    {cmd_submit, "submit -N 2..3 -- true", "POST /v1/runs ", "\"nodes\":\"2..3\""},
    {cmd_submit, "submit -n 4 -- true", "POST /v1/runs ", "\"devices_per_node\":4"},
    {cmd_submit, "submit --kind gpu -- true", "POST /v1/runs ", "\"kind\":\"gpu\""},
    {cmd_submit, "submit --name x -- true", "POST /v1/runs ", "\"name\":\"x\""},
    {cmd_submit, "submit -s resources.max_restarts=7 -- true", "POST /v1/runs ", "\"max_restarts\":7"},
    {cmd_submit, "submit --no-env --env A=b -- true", "POST /v1/runs ", "\"environment\":[\"A=b\"]"},
    {cmd_submit, "submit -n 1 run.conf", "POST /v1/runs ", "\"command\":[\"from\",\"file\"]"},
    {cmd_logs, "logs 17", "GET /v1/runs/17/logs?rank=0&positions=1 ", NULL},
    {cmd_logs, "logs -r all 17", "GET /v1/runs/17/logs?rank=all&positions=1 ", NULL},
    {cmd_logs, "logs -r 3 -n 0 17", "GET /v1/runs/17/logs?rank=3&tail=0&positions=1 ", NULL},
    {cmd_logs, "logs -f -n 5 --attempt 2 17",
     "GET /v1/runs/17/logs?rank=0&follow=1&tail=5&attempt=2&positions=1 ", NULL},
    {cmd_cancel, "cancel 17", "DELETE /v1/runs/17 ", NULL},
    {cmd_cancel, "cancel --foreign n:0", "POST /v1/nodes/n%3A0/cancel-foreign ", NULL},
    {cmd_cancel, "cancel --foreign n:1", "POST /v1/nodes/n/cancel-foreign?run=1 ", NULL},
    {cmd_drain, "drain n1", "POST /v1/nodes/n1/drain ", NULL},
    {cmd_drain, "drain -r fan n1", "POST /v1/nodes/n1/drain ", "{\"reason\":\"fan\"}"},
    {cmd_drain, "drain --keep-runs n1", "POST /v1/nodes/n1/drain ", "\"keep_runs\":true"},
    {cmd_drain, "drain -r fan n1:0", "POST /v1/nodes/n1/devices/0/drain ", "{\"reason\":\"fan\"}"},
    {cmd_drain, "drain n1:x", "POST /v1/nodes/n1%3Ax/drain ", NULL},
    {cmd_drain, "drain fe80::1", "POST /v1/nodes/fe80%3A%3A1/drain ", NULL},
    {cmd_resume, "resume n1:1", "POST /v1/nodes/n1/devices/1/resume ", NULL},
    {cmd_resume, "resume n1", "POST /v1/nodes/n1/resume ", NULL},
    {cmd_show, "show 17", "GET /v1/runs/17 ", NULL},
    {cmd_runs, "runs --local", "GET /v1/local/runs ", NULL},
    {cmd_kill, "kill --local 5", "DELETE /v1/local/runs/5 ", NULL},
};

START_TEST(what_is_typed_is_asked_for)
{
	const struct fake_step step = {sent[_i].request, sent[_i].body, REFUSAL, 0};
	struct error err = ERROR_INIT;
	static const char run[] = "command = [\"from\", \"file\"];", input[] = "of the input\n";
	struct fake_service *fake;
	struct call call;
	int saved = dup(STDIN_FILENO), fd;

	ck_assert_int_eq(chdir(fixture_dir()), 0);
	ck_ok(file_write_atomic("run.conf", run, strlen(run), 0644, &err), &err);
	ck_ok(file_write_atomic("input", input, strlen(input), 0644, &err), &err);
	fd = open("input", O_RDONLY | O_CLOEXEC);
	dup2(fd, STDIN_FILENO);
	close(fd);
	fake = fake_service_start(fixture_socket(), &step, 1);
	call = fixture_call(sent[_i].command, sent[_i].line);
	fake_service_stop(fake);
	dup2(saved, STDIN_FILENO);
	close(saved);
	ck_assert_msg(call.status == EXIT_FAILURE, "%s: %d: %s", sent[_i].line, call.status, call.errors);
	ck_assert_str_eq(call.output, "");
	ck_assert_msg(strstr(call.errors, "no") != NULL, "%s", call.errors);
	call_release(&call);
}
END_TEST

/* What is wrong on the command line is said without a request. */
static const struct {
	command_fn command;
	const char *line, *errors;
} wrong[] = {
    {cmd_generate, "generate m", "dtrain: generate: PROMPT or --prompts is needed\n"},
    {cmd_generate, "generate --prompts p m hello",
     "dtrain: generate: leave out one of PROMPT and --prompts\n"},
    {cmd_generate, "generate --top-k x m hello", "dtrain: "},
    {cmd_submit, "submit run.conf true",
     "dtrain: \"true\" is too much after a run file; a command goes after --\n"},
    {cmd_submit, "submit none.conf", "dtrain: cannot read none.conf"},
    {cmd_submit, "submit -N x -- true", "dtrain: "},
    {cmd_cancel, "cancel --foreign --wait n1", "dtrain: --wait is not possible with --foreign\n"},
    {cmd_cancel, "cancel 17 x", "dtrain: "},
    {cmd_cancel, "cancel 0", "dtrain: "},
    {cmd_logs, "logs x", "dtrain: \"x\" is not the number of a run; \"dtrain runs\" lists them\n"},
    {cmd_show, "show x", "dtrain: \"x\" is not the number of a run; \"dtrain runs\" lists them\n"},
    {cmd_watch, "watch 0", "dtrain: \"0\" is not the number of a run; \"dtrain runs\" lists them\n"},
    {cmd_kill, "kill --local x", "dtrain: \"x\" is not the number of a run; \"dtrain runs\" lists them\n"},
    {cmd_kill, "kill 5", "dtrain: --local is needed: "},
    {cmd_export, "export m", "dtrain: export: MODEL DIR is missing\n"},
    {cmd_estimate, "estimate", "dtrain: estimate: RUN_FILE is missing\n"},
    {cmd_runs, "runs --local --active",
     "dtrain: --local goes with --json alone: what has ended is not listed\n"},
    {cmd_runs, "runs --local --state failed",
     "dtrain: --local goes with --json alone: what has ended is not listed\n"},
    {cmd_logs, "logs --rank x 17", "dtrain: --rank: \"x\" is neither a number nor \"all\"\n"},
    {cmd_logs, "logs --rank -1 17", "dtrain: --rank: \"-1\" is neither a number nor \"all\"\n"},
    {cmd_logs, "logs --tail x 17", "dtrain: --tail: \"x\" is not a whole number from 0\n"},
    {cmd_logs, "logs 17 18", "dtrain: logs: \"18\" is too much\n"},
    {cmd_nodes, "nodes --timeout -1", "dtrain: --timeout: \"-1\" is not a number from 0\n"},
    {cmd_nodes, "nodes --timeout x", "dtrain: --timeout: \"x\" is not a number from 0\n"},
    {cmd_runs, "runs --local --all", "dtrain: "},
    {cmd_keygen, "keygen --node n1", "dtrain: --node and --days need --ca DIRECTORY\n"},
    {cmd_keygen, "keygen --days 3", "dtrain: --node and --days need --ca DIRECTORY\n"},
    {cmd_keygen, "keygen --ca d -o x",
     "dtrain: --output is not possible with --ca, which names the directory\n"},
    {cmd_keygen, "keygen --ca d --days 36501", "dtrain: --days: at most 36500 are possible\n"},
    {cmd_drain, "drain", "dtrain: drain: NODE[:SLOT]… is missing\n"},
    {cmd_resume, "resume", "dtrain: resume: NODE[:SLOT]… is missing\n"},
};

START_TEST(what_is_wrong_is_said_without_a_request)
{
	_cleanup_(call_release) struct call call = fixture_call(wrong[_i].command, wrong[_i].line);

	ck_assert_msg(call.status == STATUS_USAGE, "%s: %d: %s", wrong[_i].line, call.status, call.errors);
	ck_assert_msg(str_starts(call.errors, wrong[_i].errors), "%s: %s", wrong[_i].line, call.errors);
	ck_assert_str_eq(call.output, "");
}
END_TEST

/* Whole, as all texts of --help are made by one function. */
START_TEST(help_is_complete)
{
	_cleanup_(call_release) struct call plain = fixture_call(cmd_resume, "resume --help"),
	                                    options = fixture_call(cmd_cancel, "cancel -h");

	ck_assert_int_eq(plain.status, 0);
	ck_assert_str_eq(plain.output, "Usage: dtrain resume [OPTION…] NODE[:SLOT]…\n"
	                               "Lets runs onto drained nodes or devices again.\n\nOptions:\n"
	                               "      --socket PATH             the service's socket; default: "
	                               "$DTRAIN_SOCKET, else " RUNSTATEDIR "/dtrain/dtraind.sock\n"
	                               "  -h, --help                    show this help\n");
	ck_assert_msg(
	    str_starts(options.output,
	               "Usage: dtrain cancel [OPTION…] RUN…\n"
	               "Ends runs: TERM to their programs, KILL after the grace of each run.\n\n"
	               "With --foreign, NODE or NODE:RUN is expected instead of RUN: see BACKUP AND "
	               "RESTORE in dtraind(8).\n\nOptions:\n"
	               "  -w, --wait                    return once the runs have ended\n"
	               "      --foreign                 end what nodes have"),
	    "%s", options.output);
}
END_TEST

/* The socket that is named on the command line is the one that is used. */
START_TEST(another_socket_is_asked)
{
	_cleanup_(call_release) struct call call = fixture_call(cmd_show, "show --socket /nowhere/socket 17");

	ck_assert_int_eq(call.status, STATUS_UNREACHABLE);
	ck_assert_msg(str_starts(call.errors, "dtrain: dtraind does not answer at /nowhere/socket: "), "%s",
	              call.errors);
}
END_TEST

#define SUBMITTED                                                                                            \
	{                                                                                                    \
		"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"                                         \
	}

/* What submit prints, and how it ends. */
static const struct {
	const char *line;
	const char *run; /* of the answer to the wait; NULL: it does not wait */
	int status;
	const char *output, *errors;
} submissions[] = {
    {"submit -- true", NULL, 0, "run 17 is submitted\n", ""},
    {"submit -q -- true", NULL, 0, "17\n", ""},
    {"submit --json -- true", NULL, 0, "{\n  \"id\": 17,\n  \"state\": \"queued\"\n}\n", ""},
    {"submit --wait -- true", "{\"id\":17,\"state\":\"succeeded\"}", 0, "", "run 17 is submitted\n"},
    {"submit --wait --json -- true", "{\"id\":17,\"state\":\"succeeded\"}", 0,
     "{\n  \"id\": 17,\n  \"state\": \"succeeded\"\n}\n", ""},
    {"submit --wait -q -- true", "{\"id\":17,\"state\":\"failed\",\"exit_status\":3,\"reason\":\"r\"}", 3,
     "17\n", "dtrain: run 17 failed: r\n"},
    {"submit --wait -- true", "{\"id\":17}", 1, "", "run 17 is submitted\ndtrain: "},
};

START_TEST(a_submission_is_told)
{
	char wait[256];
	const struct exchange list[] = {SUBMITTED, {"GET /v1/runs/17?wait=1 ", wait}};
	_cleanup_(call_release) struct call call = {0};

	snprintf(wait, sizeof(wait), "%s", submissions[_i].run ? submissions[_i].run : "");
	call = fixture_exchange(cmd_submit, submissions[_i].line, list, submissions[_i].run ? 2 : 1);
	ck_assert_msg(call.status == submissions[_i].status, "%d: %s", call.status, call.errors);
	ck_assert_str_eq(call.output, submissions[_i].output);
	ck_assert_msg(str_starts(call.errors, submissions[_i].errors) &&
	                  (*submissions[_i].errors || !*call.errors),
	              "%s", call.errors);
}
END_TEST

/* Answers that are none of dtraind's, or not what was asked for. */
static const struct {
	command_fn command;
	const char *line, *request, *answer; /* a body, or a whole answer */
	int status;
	const char *errors;
} odd[] = {
    {cmd_show, "show 17", "GET /v1/runs/17 ", "[]", EXIT_FAILURE, "dtrain: "},
    {cmd_show, "show 17", "GET /v1/runs/17 ", "{\"id\":\"x\"}", EXIT_FAILURE, "dtrain: "},
    {cmd_runs, "runs", "GET /v1/runs?", "{\"runs\":[{\"id\":\"x\"}]}", EXIT_FAILURE, "dtrain: "},
    {cmd_nodes, "nodes", "GET /v1/nodes ", "{\"nodes\":1}", EXIT_FAILURE, "dtrain: "},
    {cmd_devices, "devices", "GET /v1/devices ", "{\"devices\":1}", EXIT_FAILURE, "dtrain: "},
    {cmd_fence, "fence n1", "POST /v1/nodes/n1/fence ", "{\"name\":1}", EXIT_FAILURE, "dtrain: "},
    {cmd_runs, "runs --local", "GET /v1/local/runs ", "{\"runs\":1}", EXIT_FAILURE, "dtrain: "},
    {cmd_show, "show", "GET /v1/runs?state=all&limit=100&before=0 ", "{\"runs\":1}", EXIT_FAILURE,
     "dtrain: "},
    {cmd_prune, "prune", "POST /v1/prune ", "{\"runs\":7}", EXIT_FAILURE, "dtrain: "},
    {cmd_watch, "watch 17", "GET /v1/runs/17 ", "{\"id\":\"x\"}", EXIT_FAILURE, "dtrain: "},
    {cmd_submit, "submit -- true", "POST /v1/runs ", "{\"id\":\"x\"}", EXIT_FAILURE, "dtrain: "},
    {cmd_show, "show 17", "GET /v1/runs/17 ", "HTTP/1.1 nonsense\r\n\r\n", STATUS_UNREACHABLE, "dtrain: "},
    {cmd_show, "show 17", "GET /v1/runs/17 ",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a length\r\n", STATUS_UNREACHABLE, "dtrain: "},
    {cmd_show, "show 17", "GET /v1/runs/17 ", "HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nxyz", EXIT_FAILURE,
     "dtrain: "},
};

START_TEST(an_odd_answer_is_an_error)
{
	const struct exchange list = {odd[_i].request, odd[_i].answer};
	_cleanup_(call_release) struct call call = fixture_exchange(odd[_i].command, odd[_i].line, &list, 1);

	ck_assert_msg(call.status == odd[_i].status, "%s: %d: %s", odd[_i].line, call.status, call.errors);
	ck_assert_msg(str_starts(call.errors, odd[_i].errors), "%s", call.errors);
	ck_assert_str_eq(call.output, "");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_requests");
	TCase *tc = tcase_create("requests");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_loop_test(tc, what_is_typed_is_asked_for, 0, ARRAY_SIZE(sent));
	tcase_add_loop_test(tc, what_is_wrong_is_said_without_a_request, 0, ARRAY_SIZE(wrong));
	tcase_add_test(tc, help_is_complete);
	tcase_add_test(tc, another_socket_is_asked);
	tcase_add_loop_test(tc, a_submission_is_told, 0, ARRAY_SIZE(submissions));
	tcase_add_loop_test(tc, an_odd_answer_is_an_error, 0, ARRAY_SIZE(odd));
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
