/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain logs and watch over connections that break: each line once, and a message where that cannot be
 * known. */
#include "dtrain_fixture.h"

#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "wire/frame.h"

enum { STEPS = 3 };

/* An answer; each is to the request of a client that has read those before it. */
struct part {
	const char *query; /* behind the path of the run */
	const char *body;
	enum {
		WHOLE,
		BREAKS,     /* the connection breaks after the body */
		OLD,        /* of a service that knows no positions: text alone */
		OLD_BREAKS, /* both */
	} kind;
};

struct history {
	const char *line;
	struct part parts[STEPS]; /* up to the first without a query */
	const char *output;
	bool doubt; /* a line says that something may be missing */
};

#define DOUBT "may be missing here, or repeated"

static bool breaks(const struct part *part)
{
	return part->kind == BREAKS || part->kind == OLD_BREAKS;
}

static char *make_answer(const struct part *part)
{
	return str_printf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s",
	                  part->kind >= OLD ? "text/plain; charset=utf-8" : FRAME_TYPE,
	                  strlen(part->body) + breaks(part), part->body);
}

static size_t add_parts(const struct history *h, struct fake_step *steps, char **owned)
{
	size_t n = 0;

	for (; n < STEPS && h->parts[n].query; n++) {
		owned[2 * n] = str_printf("GET /v1/runs/17/%s ", h->parts[n].query);
		owned[2 * n + 1] = make_answer(&h->parts[n]);
		steps[n] = (struct fake_step){owned[2 * n], NULL, owned[2 * n + 1], breaks(&h->parts[n])};
	}
	return n;
}

static size_t count_doubts(const char *errors)
{
	size_t n = 0;

	while ((errors = strstr(errors, DOUBT))) {
		n++;
		errors++;
	}
	return n;
}

/* begin, end: what else a command asks for. */
static struct call live(const struct history *h, command_fn command, const struct fake_step *begin,
                        const struct fake_step *end)
{
	struct fake_step steps[STEPS + 2];
	char *owned[2 * STEPS] = {NULL};
	struct fake_service *fake;
	struct call call;
	size_t n = 0;

	if (begin)
		steps[n++] = *begin;
	n += add_parts(h, steps + n, owned);
	if (end)
		steps[n++] = *end;
	fake = fake_service_start(fixture_socket(), steps, n);
	call = fixture_call(command, h->line);
	fake_service_stop(fake);
	unlink(fixture_socket());
	for (size_t i = 0; i < ARRAY_SIZE(owned); i++)
		free(owned[i]);
	ck_assert_str_eq(call.output, h->output);
	ck_assert_msg(count_doubts(call.errors) == (size_t)h->doubt, "%s", call.errors);
	return call;
}

#define FIRST "logs?rank=1&follow=1&positions=1"
#define AGAIN "logs?rank=1&follow=1&attempt=2&positions=1"
#define ALL   "logs?rank=all&follow=1&attempt=2&positions=1"

static const struct history logs[] = {
    /* The service is restarted while the last three lines, and then others, are shown. */
    {"logs -f -n 3 -r 1 17",
     {{"logs?rank=1&follow=1&tail=3&positions=1", "2 1 100 0\n2 1 112 12\n101\n102\n103\n2 1 118 6\n10",
       BREAKS},
      {AGAIN "&offset=114", "2 1 114 0\n2 1 118 4\n4\n10", BREAKS},
      {AGAIN "&offset=118", "2 1 118 0\n2 1 120 2\n5\n", WHOLE}},
     .output = "101\n102\n103\n104\n105\n"},
    /* Nothing had come by then; what came meanwhile is not left out. */
    {"logs -f -n 0 -r 1 17",
     {{"logs?rank=1&follow=1&tail=0&positions=1", "2 1 100 0\n", BREAKS},
      {AGAIN "&offset=100", "2 1 100 0\n2 1 104 4\n101\n", WHOLE}},
     .output = "101\n"},
    /* The attempt is named again, not the newest one. */
    {"logs -f --attempt 2 -r 1 17",
     {{AGAIN, "2 1 0 0\n2 1 4 4\none\n", BREAKS}, {AGAIN "&offset=4", "2 1 4 0\n2 1 8 4\ntwo\n", WHOLE}},
     .output = "one\ntwo\n"},
    /* log_quota has removed what was next: the beginning is a hole. */
    {"logs -f -r 1 17",
     {{FIRST, "2 1 0 0\n2 1 6 6\none\ntw", BREAKS},
      {AGAIN "&offset=6", "2 1 6 0\n2 1 4104 8\nfar\naway", WHOLE}},
     .output = "one\ntw\nfar\naway",
     .doubt = true},
    /* Its owner has cut it short. */
    {"logs -f -r 1 17",
     {{FIRST, "2 1 0 0\n2 1 8 8\none\ntwo\n", BREAKS},
      {AGAIN "&offset=8", "2 1 0 0\n2 1 4 4\nnew\n2 1 8 4\nest\n", WHOLE}},
     .output = "one\ntwo\nnew\nest\n",
     .doubt = true},
    /* The same over one connection. */
    {"logs -f -r 1 17",
     {{FIRST, "2 1 0 0\n2 1 8 8\none\ntwo\n2 1 4 4\nnew\n", WHOLE}},
     .output = "one\ntwo\nnew\n"},
    /* Over one connection, too, lines may be gone before they are read. */
    {"logs -f -r 1 17",
     {{FIRST, "2 1 0 0\n2 1 4 4\none\n2 1 4100 4\ntwo\n", WHOLE}},
     .output = "one\ntwo\n",
     .doubt = true},
    /* But a log that begins with a hole says so in its first line. */
    {"logs -f -r 1 17", {{FIRST, "2 1 0 0\n2 1 4100 4\ntwo\n", WHOLE}}, .output = "two\n"},
    /* Ranks in another order; a line of which a part had come; and one that is divided otherwise. */
    {"logs -f -r all 17",
     {{"logs?rank=all&follow=1&positions=1",
       "2 0 0 0\n2 1 0 0\n2 0 4 4\na 1\n2 1 4 4\nb 1\n2 0 8 4\na 2\n2 1 7 3\nb 22 1 9 2\n\n", BREAKS},
      {ALL, "2 1 0 0\n2 0 0 0\n2 1 4 4\nb 1\n2 1 10 6\nb 2 3\n2 0 4 4\na 1\n2 0 8 4\na 2\n2 0 12 4\na",
       BREAKS},
      {ALL, "2 0 4 4\na 1\n2 0 8 4\na 2\n2 0 12 4\na 3\n2 1 4 4\nb 1\n2 1 10 6\nb 2 3\n2 1 13 3\nend",
       WHOLE}},
     .output = "[0] a 1\n[1] b 1\n[0] a 2\n[1] b 2\n[1]  3\n[0] a 3\n[1] end\n"},
    {"logs -f -n 1 -r all 17",
     {{"logs?rank=all&follow=1&tail=1&positions=1", "2 0 4 0\n2 1 4 0\n2 0 8 4\na 2\n", BREAKS},
      {ALL, "2 0 0 0\n2 1 0 0\n2 0 4 4\na 1\n2 0 8 4\na 2\n2 1 4 4\nb 1\n2 1 8 4\nb 2\n", WHOLE}},
     .output = "[0] a 2\n[1] b 2\n"},
    /* The node of a rank is away at the second time. */
    {"logs -f -r all 17",
     {{"logs?rank=all&follow=1&positions=1", "2 0 4 4\na 1\n2 1 4 4\nb 1\n", BREAKS},
      {ALL, "2 0 4 4\na 1\n2 1 -1 5\naway\n", WHOLE}},
     .output = "[0] a 1\n[1] b 1\n[1] away\n",
     .doubt = true},
    /* A node of an older version sends a tail without positions. */
    {"logs -f -n 1 -r all 17",
     {{"logs?rank=all&follow=1&tail=1&positions=1", "2 0 4 0\n2 1 -1 4\nb 2\n", BREAKS},
      {ALL, "2 0 4 4\na 1\n2 1 4 4\nb 1\n", WHOLE}},
     .output = "[1] b 2\n[1] b 1\n",
     .doubt = true},
    /* A service of an older version: all of one log is its own position. */
    {"logs -f -r 1 17",
     {{FIRST, "one\ntw", OLD_BREAKS},
      {FIRST "&offset=6", "one\ntwo\n", OLD_BREAKS},
      {FIRST "&offset=8", "one\ntwo\nthree\n", OLD}},
     .output = "one\ntwo\nthree\n"},
    /* It is upgraded, */
    {"logs -f -r 1 17",
     {{FIRST, "one\ntw", OLD_BREAKS}, {FIRST "&offset=6", "2 1 6 0\n2 1 8 2\no\n", WHOLE}},
     .output = "one\ntwo\n"},
    /* and the other way. */
    {"logs -f -n 1 -r 1 17",
     {{"logs?rank=1&follow=1&tail=1&positions=1", "2 1 4 0\n2 1 6 2\ntw", BREAKS},
      {AGAIN "&offset=6", "one\ntwo\n", OLD}},
     .output = "two\n"},
    /* Nothing of these is taken for what was there before. */
    {"logs -f -n 2 -r 1 17",
     {{"logs?rank=1&follow=1&tail=2&positions=1", "one\ntw", OLD_BREAKS},
      {"logs?rank=1&follow=1&tail=2&positions=1", "eight\nnine\n", OLD}},
     .output = "one\ntw\neight\nnine\n",
     .doubt = true},
    {"logs -f -n 2 -r 1 17",
     {{"logs?rank=1&follow=1&tail=2&positions=1", "one\n", OLD_BREAKS},
      {"logs?rank=1&follow=1&tail=2&positions=1", "2 1 90 0\n2 1 101 11\neight\nnine\n", WHOLE}},
     .output = "one\neight\nnine\n",
     .doubt = true},
    {"logs -f -r all 17",
     {{"logs?rank=all&follow=1&positions=1", "[0] a\n[1] b\n", OLD_BREAKS},
      {"logs?rank=all&follow=1&positions=1", "[1] b\n[1] c\n[0] a\n", OLD}},
     .output = "[0] a\n[1] b\n[1] b\n[1] c\n[0] a\n",
     .doubt = true},
};

START_TEST(lines_of_logs_come_once)
{
	_cleanup_(call_release) struct call call = live(&logs[_i], cmd_logs, NULL, NULL);

	ck_assert_int_eq(call.status, 0);
}
END_TEST

/* On a terminal the warning is a line of its own, between the two lines. */
START_TEST(a_warning_is_not_appended_to_a_line)
{
	_cleanup_free_ char *answer =
	    make_answer(&(struct part){NULL, "2 1 0 0\n2 1 6 6\none\ntw2 1 4104 4\nfar\n", WHOLE});
	const struct fake_step steps[] = {{"GET /v1/runs/17/" FIRST " ", NULL, answer, 0}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, ARRAY_SIZE(steps));
	_cleanup_(call_release) struct call call = fixture_terminal(cmd_logs, "logs -f -r 1 17", 80);

	fake_service_stop(fake);
	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, "one\r\ntw\r\ndtrain: lines " DOUBT "\r\nfar\r\n");
}
END_TEST

/* After the break another attempt runs elsewhere, and the node has no log of the one that was read. */
START_TEST(a_log_that_is_gone_is_an_error)
{
	_cleanup_free_ char *first = make_answer(&(struct part){NULL, "2 1 0 0\n2 1 4 4\none\n", BREAKS}),
	                    *gone = fixture_refusal(404, "no-such-log", "no log of run 17");
	const struct fake_step steps[] = {{"GET /v1/runs/17/" FIRST " ", NULL, first, 1},
	                                  {"GET /v1/runs/17/" AGAIN "&offset=4 ", NULL, gone, 0}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, ARRAY_SIZE(steps));
	_cleanup_(call_release) struct call call = fixture_call(cmd_logs, "logs -f -r 1 17");

	fake_service_stop(fake);
	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_str_eq(call.output, "one\n");
	ck_assert_msg(str_ends(call.errors, "dtrain: no log of run 17\n"), "%s", call.errors);
}
END_TEST

START_TEST(what_is_no_frame_is_an_error)
{
	static const char *const wrong[] = {"one\n",
	                                    "1 1 4\none\n",
	                                    "1 1 4 4 4\none\n",
	                                    "1 1 3 4\none\n",
	                                    "1 -1 4 4\none\n",
	                                    "1 1 -2 4\none\n",
	                                    "1 1 4 -4\none\n",
	                                    "1 1048576 4 4\n",
	                                    "-1 1 4 4\none\n",
	                                    "1 1 4 4x\none\n",
	                                    "\n",
	                                    "1  4 4\none\n"};
	_cleanup_free_ char *answer = make_answer(&(struct part){NULL, wrong[_i], WHOLE});
	const struct exchange list[] = {{"GET /v1/runs/17/" FIRST " ", answer}};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_logs, "logs -f -r 1 17", list, ARRAY_SIZE(list));

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_str_eq(call.output, "");
	ck_assert_str_eq(call.errors,
	                 "dtrain: dtraind has sent an invalid stream of frames; run the command again\n");
}
END_TEST

/* ---- reports ---- */

#define METRICS "metrics?follow=1&positions=1"
#define R(N)    "{\"step\":" #N "}\n"

static const struct history watches[] = {
    /* The service is restarted; a report had come in part. */
    {"watch --json 17",
     {{METRICS, "5 0 0 0\n5 0 22 22\n" R(1) R(2) "5 0 33 11\n{\"step", BREAKS},
      {METRICS "&file=5&offset=28&since=2", "5 0 28 0\n5 0 33 5\n\":3}\n", BREAKS},
      {METRICS "&file=5&offset=33&since=3", "5 0 33 0\n5 0 44 11\n" R(2), WHOLE}},
     .output = R(1) R(2) R(3) R(2)},
    /* Another controller, which has its own file. */
    {"watch --json 17",
     {{METRICS, "5 0 0 0\n5 0 33 33\n" R(1) R(2) R(3), BREAKS},
      {METRICS "&file=5&offset=33&since=3", "6 0 0 0\n6 0 11 11\n" R(4), BREAKS},
      {METRICS "&file=6&offset=11&since=4", "6 0 11 0\n6 0 22 11\n" R(5), WHOLE}},
     .output = R(1) R(2) R(3) R(4) R(5),
     .doubt = true},
    /* It breaks within a report, which is a line of its own then. */
    {"watch --json 17",
     {{METRICS, "5 0 0 0\n5 0 22 22\n" R(1) "{\"st", BREAKS},
      {METRICS "&file=5&offset=15&since=1", "6 0 0 0\n6 0 11 11\n" R(4), WHOLE}},
     .output = R(1) "{\"st\n" R(4),
     .doubt = true},
    {"watch 17",
     {{METRICS, "5 0 0 0\n5 0 22 22\n" R(1) "{\"st", BREAKS},
      {METRICS "&file=5&offset=15&since=1", "6 0 0 0\n6 0 11 11\n" R(4), WHOLE}},
     .output = "run 17 (a): running\nstep 1/0\nstep 4/0\nrun 17 (a): succeeded\n",
     .doubt = true},
    /* A report that is not in the file, as where the disk was full. */
    {"watch --json 17",
     {{METRICS, "5 0 0 0\n5 0 11 11\n" R(1) "5 0 -1 11\n" R(2), BREAKS},
      {METRICS "&file=5&offset=11&since=2", "5 0 11 0\n5 0 22 11\n" R(3), WHOLE}},
     .output = R(1) R(2) R(3),
     .doubt = true},
    /* A service of an older version. */
    {"watch --json 17",
     {{METRICS, R(1) R(2), OLD_BREAKS}, {METRICS "&since=2", R(3), OLD}},
     .output = R(1) R(2) R(3),
     .doubt = true},
    /* Nothing had come, and what was to come may be on the other controller. */
    {"watch --json 17",
     {{METRICS, "5 0 0 0\n", BREAKS}, {METRICS "&file=5&offset=0", "6 0 0 0\n6 0 11 11\n" R(1), WHOLE}},
     .output = R(1),
     .doubt = true},
};

START_TEST(reports_come_once)
{
	_cleanup_free_ char *running = fixture_answer("{\"id\":17,\"name\":\"a\",\"state\":\"running\","
	                                              "\"version\":2}"),
	                    *ended = fixture_answer("{\"id\":17,\"name\":\"a\",\"state\":\"succeeded\","
	                                            "\"version\":3}");
	const struct fake_step begin = {"GET /v1/runs/17 ", NULL, running, 0},
	                       end = {"GET /v1/runs/17?wait=change&version=2 ", NULL, ended, 0};
	_cleanup_(call_release) struct call call = live(&watches[_i], cmd_watch, &begin, &end);

	ck_assert_int_eq(call.status, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_stream");
	TCase *tc = tcase_create("stream");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, lines_of_logs_come_once, 0, ARRAY_SIZE(logs));
	tcase_add_test(tc, a_warning_is_not_appended_to_a_line);
	tcase_add_test(tc, a_log_that_is_gone_is_an_error);
	tcase_add_loop_test(tc, what_is_no_frame_is_an_error, 0, 12);
	tcase_add_loop_test(tc, reports_come_once, 0, ARRAY_SIZE(watches));
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
