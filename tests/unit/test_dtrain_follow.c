/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain submit --follow and generate: why a run waits, its output, and its end, each printed once. */
#include "dtrain_fixture.h"

#include <string.h>

#include "base/str.h"

#define RUN "\"id\":17,\"name\":\"a\""
#define POSTED                                                                                               \
	{                                                                                                    \
		"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"                                         \
	}
#define CHANGE(v)  "GET /v1/runs/17?wait=change&version=" #v " "
#define LOG(n)     "GET /v1/runs/17/logs?rank=0&follow=1&attempt=" #n "&positions=1 "
#define ONE_RANK   "\"ranks\":[{\"rank\":0,\"node\":\"n1\",\"slot\":0,\"state\":\"running\"}]"
#define CALL(list) fixture_exchange(cmd_submit, "submit --follow -- true", list, ARRAY_SIZE(list))

START_TEST(why_a_run_waits_is_told_when_it_changes)
{
	static const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"queued\",\"version\":1,\"reason\":null}"},
	    {CHANGE(1), "{" RUN ",\"state\":\"queued\",\"version\":2,\"reason\":\"0 of 1 slots are free\"}"},
	    {CHANGE(2), "{" RUN ",\"state\":\"queued\",\"version\":3,\"reason\":\"0 of 1 slots are free\"}"},
	    {CHANGE(3), "{" RUN ",\"state\":\"queued\",\"version\":4,\"reason\":\"it waits behind run 16\"}"},
	    {CHANGE(4), "{" RUN ",\"state\":\"starting\",\"version\":5,\"attempt\":1," ONE_RANK "}"},
	    {CHANGE(5), "{" RUN ",\"state\":\"running\",\"version\":6,\"attempt\":1," ONE_RANK "}"},
	    {LOG(1), "one\ntwo\n"},
	    {CHANGE(6), "{" RUN ",\"state\":\"succeeded\",\"version\":7,\"attempt\":1," ONE_RANK "}"},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, "one\ntwo\n");
	ck_assert_str_eq(call.errors, "run 17 is submitted\n"
	                              "dtrain: run 17 is queued: 0 of 1 slots are free\n"
	                              "dtrain: run 17 is queued: it waits behind run 16\n");
}
END_TEST

/* A rank without a log, for instance because its directory is missing on the node. */
START_TEST(the_cause_is_named_where_there_is_no_log)
{
	_cleanup_free_ char *no_log = fixture_refusal(404, "no-such-log", "no log of run 17, rank 0");
	const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"failed\",\"version\":7,\"attempt\":1,\"exit_status\":126,"
	                "\"reason\":\"node n1: /data: no such directory\"," ONE_RANK "}"},
	    {LOG(1), no_log},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_int_eq(call.status, 126);
	ck_assert_str_eq(call.errors, "run 17 is submitted\n"
	                              "dtrain: run 17 failed: node n1: /data: no such directory\n");
}
END_TEST

/* Reason and detail of a refused start both begin with the node. */
/* The run is removed while it is followed: that is neither its success nor a reason to ask again. */
START_TEST(a_run_that_is_gone_is_a_failure)
{
	_cleanup_free_ char *posted = fixture_answer("{\"id\":17,\"state\":\"queued\"}"),
	                    *gone = fixture_refusal(404, "no-such-run", "there is no run 17");
	const struct fake_step steps[] = {{"POST /v1/runs ", NULL, posted, 0},
	                                  {"GET /v1/runs/17?wait=change&version=0 ", NULL, gone, 0}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, ARRAY_SIZE(steps));
	_cleanup_(call_release) struct call call = fixture_call(cmd_submit, "submit --follow -- true");

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_str_eq(call.errors, "run 17 is submitted\ndtrain: there is no run 17\n");
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_node_is_named_once)
{
	const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"failed\",\"version\":7,\"attempt\":1,"
	                "\"reason\":\"node n1: the start has failed\","
	                "\"detail\":\"node n1: cannot execute /x: No such file or directory\"}"},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_str_eq(call.errors, "run 17 is submitted\n"
	                              "dtrain: run 17 failed: node n1: the start has failed: cannot execute "
	                              "/x: No such file or directory\n");
}
END_TEST

/* On a terminal the cause of the failure would otherwise be on the log's last line. */
START_TEST(a_log_without_a_newline_is_completed)
{
	_cleanup_free_ char *posted = fixture_answer("{\"id\":17,\"state\":\"queued\"}");
	_cleanup_free_ char *failed =
	    fixture_answer("{" RUN ",\"state\":\"failed\",\"version\":7,\"attempt\":1,\"exit_status\":7,"
	                   "\"reason\":\"rank 0 on n1: exit status 7\"," ONE_RANK "}");
	_cleanup_free_ char *log = fixture_answer("one\ntwo");
	const struct fake_step steps[] = {
	    {"POST /v1/runs ", NULL, posted, 0}, {CHANGE(0), NULL, failed, 0}, {LOG(1), NULL, log, 0}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, ARRAY_SIZE(steps));
	_cleanup_(call_release) struct call call =
	    fixture_terminal(cmd_submit, "submit --follow -- true", 80);

	fake_service_stop(fake);
	ck_assert_int_eq(call.status, 7);
	ck_assert_msg(str_ends(call.output, "one\r\ntwo\r\ndtrain: run 17 failed: rank 0 on n1: exit status "
	                                    "7\r\n"),
	              "%s", call.output);
}
END_TEST

START_TEST(a_cancelled_run_ends_with_130)
{
	_cleanup_free_ char *no_log =
	    fixture_refusal(404, "no-such-log", "run 17 has not started on any node");
	const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"running\",\"version\":3,\"attempt\":1," ONE_RANK "}"},
	    {LOG(1), no_log},
	    {CHANGE(3), "{" RUN ",\"state\":\"cancelled\",\"version\":5,\"attempt\":1," ONE_RANK "}"},
	};
	static const struct exchange queued[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"cancelled\",\"version\":2,\"attempt\":0,\"ranks\":[]}"},
	};
	_cleanup_(call_release) struct call call = CALL(list), second = CALL(queued);

	ck_assert_int_eq(call.status, STATUS_CANCELLED);
	ck_assert_str_eq(call.errors, "run 17 is submitted\ndtrain: run 17 was cancelled\n");
	ck_assert_int_eq(second.status, STATUS_CANCELLED);
	ck_assert_str_eq(second.errors, "run 17 is submitted\ndtrain: run 17 was cancelled\n");
}
END_TEST

#define FAILED(rank)                                                                                         \
	"{" RUN ",\"state\":\"failed\",\"version\":7,\"attempt\":1,\"exit_status\":3,\"reason\":"            \
	"\"rank " #rank                                                                                      \
	" on n1: exit status 3\",\"detail\":\"last lines of the log:\\nout of luck\"," ONE_RANK "}"

START_TEST(the_last_lines_are_shown_once)
{
	static const struct exchange followed[] = {POSTED, {CHANGE(0), FAILED(0)}, {LOG(1), "out of luck\n"}};
	static const struct exchange other[] = {POSTED, {CHANGE(0), FAILED(1)}, {LOG(1), "fine here\n"}};
	static const struct exchange waited[] = {POSTED, {"GET /v1/runs/17?wait=1 ", FAILED(0)}};
	_cleanup_(call_release) struct call first = CALL(followed), second = CALL(other);
	_cleanup_(call_release) struct call third =
	    fixture_exchange(cmd_submit, "submit --wait -- true", waited, ARRAY_SIZE(waited));

	ck_assert_int_eq(first.status, 3);
	ck_assert_str_eq(first.output, "out of luck\n");
	ck_assert_str_eq(first.errors, "run 17 is submitted\n"
	                               "dtrain: run 17 failed: rank 0 on n1: exit status 3\n");
	ck_assert_str_eq(
	    second.errors,
	    "run 17 is submitted\n"
	    "dtrain: run 17 failed: rank 1 on n1: exit status 3\nlast lines of the log:\nout of luck\n");
	ck_assert_str_eq(
	    third.errors,
	    "run 17 is submitted\n"
	    "dtrain: run 17 failed: rank 0 on n1: exit status 3\nlast lines of the log:\nout of luck\n");
}
END_TEST

/* When the slots of an attempt are leased already, the run is queued again: the log of the next attempt is
 * read, too. */
START_TEST(each_attempt_is_followed)
{
	static const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"running\",\"version\":2,\"attempt\":1," ONE_RANK "}"},
	    {LOG(1), "first\n"},
	    {CHANGE(2), "{" RUN ",\"state\":\"queued\",\"version\":3,\"attempt\":1,\"ranks\":[]}"},
	    {CHANGE(3), "{" RUN ",\"state\":\"running\",\"version\":4,\"attempt\":2," ONE_RANK "}"},
	    {LOG(2), "second\n"},
	    {CHANGE(4), "{" RUN ",\"state\":\"succeeded\",\"version\":5,\"attempt\":2," ONE_RANK "}"},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, "first\nsecond\n");
}
END_TEST

/* Of a run that may be started again: while it is queued, its ranks are those of the last attempt. */
START_TEST(an_attempt_that_was_not_seen_running_is_read)
{
	static const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0),
	     "{" RUN ",\"state\":\"queued\",\"version\":4,\"attempt\":1,\"reason\":\"attempt 1 has "
	     "failed\"," ONE_RANK "}"},
	    {LOG(1), "first\n"},
	    {CHANGE(4),
	     "{" RUN ",\"state\":\"queued\",\"version\":5,\"attempt\":1,\"reason\":\"attempt 1 has "
	     "failed\"," ONE_RANK "}"},
	    {CHANGE(5), "{" RUN ",\"state\":\"succeeded\",\"version\":9,\"attempt\":2," ONE_RANK "}"},
	    {LOG(2), "second\n"},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, "first\nsecond\n");
	ck_assert_str_eq(call.errors,
	                 "run 17 is submitted\ndtrain: run 17 is queued: attempt 1 has failed\n");
}
END_TEST

START_TEST(a_lost_log_of_a_good_run_is_said)
{
	_cleanup_free_ char *no_log = fixture_refusal(404, "no-such-log", "no log of run 17, rank 0");
	const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"succeeded\",\"version\":7,\"attempt\":1," ONE_RANK "}"},
	    {LOG(1), no_log},
	};
	_cleanup_(call_release) struct call call = CALL(list);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.errors,
	                 "run 17 is submitted\n"
	                 "dtrain: the log could not be read to its end: no log of run 17, rank 0\n");
}
END_TEST

/* As JSON there is the run once it has ended, and nothing of its submission. */
START_TEST(the_end_of_a_run_that_is_followed_is_json)
{
	static const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"succeeded\",\"version\":7,\"attempt\":1," ONE_RANK "}"},
	    {LOG(1), "one\n"},
	};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_submit, "submit --json --follow -- true", list, ARRAY_SIZE(list));

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.errors, "");
	ck_assert_msg(str_starts(call.output, "one\n{"), "%s", call.output);
	ck_assert_ptr_nonnull(strstr(call.output, "succeeded"));
	ck_assert_ptr_null(strstr(call.output, "queued"));
}
END_TEST

START_TEST(generate_names_the_cause)
{
	_cleanup_free_ char *no_log = fixture_refusal(404, "no-such-log", "no log of run 17, rank 0");
	const struct exchange list[] = {
	    POSTED,
	    {CHANGE(0), "{" RUN ",\"state\":\"starting\",\"version\":2,\"attempt\":1}"},
	    {CHANGE(2),
	     "{" RUN ",\"state\":\"failed\",\"version\":7,\"attempt\":1,\"exit_status\":1,"
	     "\"reason\":\"rank 0 on n1: exit status 1\",\"detail\":\"/m: no config.json\"," ONE_RANK "}"},
	    {LOG(1), no_log},
	};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_generate, "generate /m hello", list, ARRAY_SIZE(list));

	ck_assert_int_eq(call.status, 1);
	ck_assert_str_eq(call.errors,
	                 "dtrain: run 17 failed: rank 0 on n1: exit status 1: /m: no config.json\n");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_follow");
	TCase *tc = tcase_create("follow");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, why_a_run_waits_is_told_when_it_changes);
	tcase_add_test(tc, the_cause_is_named_where_there_is_no_log);
	tcase_add_test(tc, a_run_that_is_gone_is_a_failure);
	tcase_add_test(tc, a_node_is_named_once);
	tcase_add_test(tc, a_log_without_a_newline_is_completed);
	tcase_add_test(tc, a_cancelled_run_ends_with_130);
	tcase_add_test(tc, the_last_lines_are_shown_once);
	tcase_add_test(tc, each_attempt_is_followed);
	tcase_add_test(tc, an_attempt_that_was_not_seen_running_is_read);
	tcase_add_test(tc, a_lost_log_of_a_good_run_is_said);
	tcase_add_test(tc, the_end_of_a_run_that_is_followed_is_json);
	tcase_add_test(tc, generate_names_the_cause);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
