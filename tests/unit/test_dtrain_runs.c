/* SPDX-License-Identifier: Apache-2.0 */
/* The table of runs, the newest run of a user, and the progress of a run, with and without a terminal. */
#include "dtrain_fixture.h"

#include <dirent.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"

#define LIST "GET /v1/runs?state=all&limit=50 "

static const char many[] = "{\"runs\":["
                           "{\"id\":1204,\"name\":\"a-name-that-is-longer-than-most\",\"user\":"
                           "\"administrator\",\"task\":\"sft\",\"state\":"
                           "\"failed\",\"world_size\":1024,\"nodes\":[\"n1\",\"n2\"],\"submitted\":"
                           "1700000000,\"started\":1700000000,\"ended\":"
                           "1700003600,\"reason\":\"rank 12 on n2: exit status 1: the reason is a long "
                           "sentence that does not fit here\"},"
                           "{\"id\":17,\"name\":\"g\",\"user\":\"u\",\"task\":\"generate\",\"state\":"
                           "\"succeeded\",\"world_size\":1},"
                           "{\"id\":9,\"name\":\"größe\",\"user\":\"u\",\"task\":\"pretrain\",\"state\":"
                           "\"running\",\"world_size\":2,"
                           "\"progress\":{\"step\":12,\"steps\":100,\"loss\":2.5}}]}";

/* In characters. */
static size_t width(const char *line, size_t bytes)
{
	size_t n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += (line[i] & 0xc0) != 0x80;
	return n;
}

START_TEST(the_table_fits_80_columns)
{
	static const struct exchange list[] = {{LIST, many}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_runs, "runs", list, 1);

	ck_assert_str_eq(call.output,
	                 "RUN   NAME                USER        STATE    SIZE  TIME   PROGRESS\n"
	                 "1204  a-name-that-is-lo…  administr…  failed   1024  1h00m  rank 12 on n2: exit…\n"
	                 "9     größe               u           running  2     -      12/100, loss 2.5000\n");
	for (const char *line = call.output; *line; line += strcspn(line, "\n") + 1)
		ck_assert_uint_le(width(line, strcspn(line, "\n")), 80);
}
END_TEST

START_TEST(all_are_listed_with_all)
{
	static const struct exchange list[] = {{"GET /v1/runs?state=all&limit=1000 ", many}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_runs, "runs --all", list, 1);

	ck_assert_ptr_nonnull(strstr(call.output, "\n17    g "));
}
END_TEST

/* {"runs":[...]}: that many runs of generate, the newest with number `id`; `more` follows them. */
static char *generated(int64_t id, size_t count, const char *more)
{
	struct strbuf b = {0};

	strbuf_adds(&b, "{\"runs\":[");
	for (size_t i = 0; i < count; i++)
		strbuf_addf(&b, "%s{\"id\":%lld,\"uid\":%d,\"task\":\"generate\",\"state\":\"succeeded\"}",
		            i ? "," : "", (long long)(id - (int64_t)i), (int)geteuid());
	strbuf_addf(&b, "%s]}", more);
	return strbuf_steal(&b);
}

/* As many runs as requested, even with many runs of generate between them, and with few requests. */
START_TEST(the_limit_counts_what_is_shown)
{
	_cleanup_free_ char *first =
	    generated(1204, 1, ",{\"id\":1105,\"task\":\"sft\",\"state\":\"running\"}");
	_cleanup_free_ char *second = generated(1104, 100, "");
	_cleanup_free_ char *third = generated(1004, 898,
	                                       ",{\"id\":106,\"task\":\"sft\",\"state\":\"running\"},"
	                                       "{\"id\":105,\"task\":\"sft\",\"state\":\"running\"}");
	const struct exchange list[] = {
	    {"GET /v1/runs?state=all&limit=2 ", first},
	    {"GET /v1/runs?state=all&limit=100&before=1105 ", second},
	    {"GET /v1/runs?state=all&limit=1000&before=1005 ", third},
	};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_runs, "runs -n 2", list, 3);

	ck_assert_ptr_nonnull(strstr(call.output, "\n1105 "));
	ck_assert_ptr_nonnull(strstr(call.output, "\n106 "));
	ck_assert_ptr_null(strstr(call.output, "\n105 "));
	ck_assert_ptr_null(strstr(call.output, "\n1104 "));
}
END_TEST

/* The service finds the runs of one user; an older one, which lists those of others too, shows none of them.
 */
START_TEST(the_runs_of_one_user_are_listed)
{
	static const struct exchange bobs[] = {
	    {"GET /v1/runs?state=active&limit=2&user=b%2Bob ",
	     "{\"runs\":[{\"id\":7,\"user\":\"b+ob\",\"task\":\"sft\",\"state\":\"running\"},"
	     "{\"id\":6,\"user\":\"eve\",\"task\":\"sft\",\"state\":\"running\"}]}"},
	    {"GET /v1/runs?state=active&limit=100&before=6&user=b%2Bob ",
	     "{\"runs\":[{\"id\":5,\"task\":\"sft\",\"state\":\"running\"},"
	     "{\"id\":4,\"user\":\"b+ob\",\"task\":\"sft\",\"state\":\"queued\"}]}"},
	};
	const struct passwd *me = getpwuid(geteuid());
	_cleanup_free_ char *request = str_printf("GET /v1/runs?state=all&limit=50&user=%s ", me->pw_name),
	                    *mine = str_printf("{\"runs\":[{\"id\":3,\"user\":\"%s\",\"state\":\"failed\"}]}",
	                                       me->pw_name);
	_cleanup_(call_release) struct call user =
	    fixture_exchange(cmd_runs, "runs -n 2 --active --user b+ob", bobs, 2);
	_cleanup_(call_release) struct call json =
	    fixture_exchange(cmd_runs, "runs --json --me", (const struct exchange[]){{request, mine}}, 1);
	_cleanup_(call_release) struct call both = fixture_call(cmd_runs, "runs --me -u bob");
	_cleanup_(call_release) struct call local = fixture_call(cmd_runs, "runs --local --me");

	ck_assert_str_eq(user.output, "RUN  NAME  USER  STATE    SIZE  TIME  PROGRESS\n"
	                              "7    -     b+ob  running  1     -     -\n"
	                              "4    -     b+ob  queued   1     -     -\n");
	ck_assert_ptr_nonnull(strstr(json.output, "\"id\": 3"));
	ck_assert_int_eq(both.status, STATUS_USAGE);
	ck_assert_str_eq(both.errors, "dtrain: --me and --user exclude each other\n");
	ck_assert_int_eq(local.status, STATUS_USAGE);
}
END_TEST

/* A short page is the last; one request is enough. */
START_TEST(a_limit_is_kept_within_a_page)
{
	static const struct exchange list[] = {{"GET /v1/runs?state=all&limit=1 ",
	                                        "{\"runs\":[{\"id\":5,\"task\":\"sft\",\"state\":\"running\"}"
	                                        ",{\"id\":4,\"task\":\"sft\",\"state\":\"running\"}]}"}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_runs, "runs -n 1", list, 1);

	ck_assert_ptr_nonnull(strstr(call.output, "\n5 "));
	ck_assert_ptr_null(strstr(call.output, "\n4 "));
}
END_TEST

START_TEST(the_newest_is_looked_for_in_large_pages)
{
	_cleanup_free_ char *first = generated(1200, 100, "");
	_cleanup_free_ char *mine =
	    str_printf(",{\"id\":101,\"uid\":%d,\"task\":\"sft\",\"state\":\"running\"}", (int)geteuid());
	_cleanup_free_ char *second = generated(1100, 999, mine);
	const struct exchange list[] = {
	    {"GET /v1/runs?state=all&limit=100&before=0 ", first},
	    {"GET /v1/runs?state=all&limit=1000&before=1101 ", second},
	    {"GET /v1/runs/101 ", "{\"id\":101,\"state\":\"queued\"}"},
	};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_show, "show", list, 3);

	ck_assert_int_eq(call.status, 0);
}
END_TEST

static struct call list_on_terminal(int columns)
{
	_cleanup_free_ char *answer = fixture_answer(many);
	const struct fake_step steps[] = {{LIST, NULL, answer, 0}};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, 1);
	struct call call = fixture_terminal(cmd_runs, "runs", columns);

	fake_service_stop(fake);
	unlink(fixture_socket());
	return call;
}

START_TEST(states_have_colours_on_a_terminal)
{
	_cleanup_(call_release) struct call colored = {0}, plain = {0}, wide = {0};

	setenv("TERM", "xterm", 1);
	unsetenv("NO_COLOR");
	colored = list_on_terminal(80);
	ck_assert_ptr_nonnull(strstr(colored.output, "\033[31mfailed\033[0m"));
	ck_assert_ptr_nonnull(strstr(colored.output, "\033[32mrunning\033[0m"));
	setenv("NO_COLOR", "1", 1);
	plain = list_on_terminal(80);
	ck_assert_ptr_null(strchr(plain.output, '\033'));
	wide = list_on_terminal(200);
	ck_assert_ptr_nonnull(strstr(wide.output, "SUBMITTED"));
	ck_assert_ptr_nonnull(strstr(wide.output, "a long sentence that does not fit here\r\n"));
}
END_TEST

START_TEST(without_a_number_it_is_the_newest_of_mine)
{
	_cleanup_free_ char *runs = str_printf(
	    "{\"runs\":[{\"id\":30,\"uid\":%d,\"task\":\"sft\",\"state\":\"running\"},{\"id\":29,\"uid\":%d,"
	    "\"task\":\"generate\",\"state\":\"succeeded\"},{\"id\":17,\"uid\":%d,\"task\":\"command\","
	    "\"state\":\"running\"}]}",
	    (int)geteuid() + 1, (int)geteuid(), (int)geteuid());
	const struct exchange show[] = {{"GET /v1/runs?state=all&limit=100&before=0 ", runs},
	                                {"GET /v1/runs/17 ", "{\"id\":17,\"state\":\"queued\"}"}};
	const struct exchange logs[] = {show[0],
	                                {"GET /v1/runs/17/logs?rank=0&tail=3&positions=1 ", "one\n"}};
	const struct exchange watch[] = {show[0],
	                                 {"GET /v1/runs/17 ", "{\"id\":17,\"state\":\"succeeded\"}"}};
	static const struct exchange none[] = {
	    {"GET /v1/runs?state=all&limit=100&before=0 ", "{\"runs\":[]}"}};
	_cleanup_(call_release) struct call shown = fixture_exchange(cmd_show, "show", show, 2);
	_cleanup_(call_release) struct call logged = fixture_exchange(cmd_logs, "logs --tail 3", logs, 2);
	_cleanup_(call_release) struct call watched = fixture_exchange(cmd_watch, "watch", watch, 2);
	_cleanup_(call_release) struct call failed = fixture_exchange(cmd_show, "show", none, 1);

	ck_assert_ptr_nonnull(strstr(shown.output, "17\n"));
	ck_assert_str_eq(logged.output, "one\n");
	ck_assert_str_eq(logged.errors, "dtrain: run 17, the newest of yours\n");
	ck_assert_str_eq(watched.output, "run 17 (?): succeeded\n");
	ck_assert_int_eq(failed.status, STATUS_USAGE);
	ck_assert_str_eq(failed.errors,
	                 "dtrain: no run of yours: name one by its number; \"dtrain runs\" lists them\n");
}
END_TEST

#define RUNNING                                                                                              \
	"{\"id\":17,\"name\":\"a\",\"task\":\"sft\",\"state\":\"running\",\"version\":2,\"attempt\":1}"
#define ENDED(state, more)                                                                                   \
	"{\"id\":17,\"name\":\"a\",\"task\":\"sft\",\"state\":\"" state "\",\"version\":3,\"started\":1000," \
	"\"ended\":1190,\"directory\":\"/home/u\",\"output\":\"saves/a\"" more "}"

START_TEST(a_watch_ends_with_what_came_out)
{
	static const struct exchange good[] = {
	    {"GET /v1/runs/17 ", RUNNING},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ",
	     "{\"step\":1,\"steps\":2,\"loss\":2.5}\n{\"step\":2,\"steps\":2,\"loss\":"
	     "1.25}\n"},
	    {"GET /v1/runs/17?wait=change&version=2 ", ENDED("succeeded", "")},
	};
	static const struct exchange bad[] = {
	    {"GET /v1/runs/17 ", ENDED("failed", ",\"exit_status\":7,\"reason\":\"rank 0 "
	                                         "on n1: exit status 7\"")}};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_watch, "watch 17", good, ARRAY_SIZE(good));
	_cleanup_(call_release) struct call failed = fixture_exchange(cmd_watch, "watch 17", bad, 1);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output,
	                 "run 17 (a): running\nstep 1/2  loss 2.5000\nstep 2/2  loss 1.2500\n"
	                 "run 17 (a): succeeded after 3m10s, loss 1.2500, the model is in /home/u/saves/a\n");
	ck_assert_int_eq(failed.status, 7);
	ck_assert_str_eq(failed.output,
	                 "run 17 (a): failed after 3m10s, checkpoints, if any, are in /home/u/saves/a\n");
	ck_assert_str_eq(failed.errors, "dtrain: run 17 failed: rank 0 on n1: exit status 7\n");
}
END_TEST

/* A newer service has other states, also of a run that has ended. */
START_TEST(a_watch_ends_in_a_state_that_it_does_not_know)
{
	static const struct exchange list[] = {
	    {"GET /v1/runs/17 ", "{\"id\":17,\"name\":\"a\",\"state\":\"parked\",\"version\":2}"},
	    {"GET /v1/runs/17?wait=change&version=2 ", ENDED("evicted", ",\"reason\":\"r\"")},
	};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_watch, "watch 17", list, ARRAY_SIZE(list));

	ck_assert_int_eq(call.status, 1);
	ck_assert_str_eq(call.output,
	                 "run 17 (a): unknown\n"
	                 "run 17 (a): unknown after 3m10s, checkpoints, if any, are in /home/u/saves/a\n");
	ck_assert_str_eq(call.errors,
	                 "dtrain: run 17 has ended in a state that this version does not know: r\n");
}
END_TEST

/* The service is restarted meanwhile: the message is on a line of its own, and the bar continues below it. */
static void check_bar(int columns, size_t bar_cells, const char *wanted)
{
	static const char first[] = "{\"step\":1,\"steps\":1000,\"loss\":2.5}\n",
	                  both[] = "{\"step\":1,\"steps\":1000,\"loss\":2.5}\n"
	                           "{\"step\":999,\"steps\":1000,\"loss\":0.25,\"tokens_per_second\":1234567,"
	                           "\"eta_seconds\":100000}\n";
	_cleanup_free_ char *run = fixture_answer(RUNNING), *end = fixture_answer(ENDED("succeeded", ""));
	_cleanup_free_ char *broken = str_printf("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n%s", first);
	_cleanup_free_ char *whole = fixture_answer(both);
	const struct fake_step steps[] = {
	    {"GET /v1/runs/17 ", NULL, run, 0},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ", NULL, broken, 1},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1&since=1 ", NULL, whole, 0},
	    {"GET /v1/runs/17?wait=change&version=2 ", NULL, end, 0},
	};
	struct fake_service *fake = fake_service_start(fixture_socket(), steps, ARRAY_SIZE(steps));
	_cleanup_(call_release) struct call call = fixture_terminal(cmd_watch, "watch 17", columns);
	_cleanup_free_ char *message = str_printf("\r\033[Kdtrain: dtraind at %s", fixture_socket());
	const char *bar;
	int bars = 0;

	fake_service_stop(fake);
	unlink(fixture_socket());
	ck_assert_int_eq(call.status, 0);
	for (bar = call.output; (bar = strstr(bar, "run 17  ")); bar++, bars++) {
		const char *from = bar + strlen("run 17  ");
		size_t cells = 0, line = strcspn(bar, "\r\n");

		for (; str_starts(from, "█") || str_starts(from, "░"); from += 3)
			cells++;
		ck_assert_uint_eq(cells, bar_cells);
		ck_assert_uint_lt(width(bar, line), (size_t)columns);
	}
	ck_assert_int_ge(bars, 2);
	ck_assert_ptr_nonnull(strstr(call.output, "     1/1000   0%  loss 2.5000"));
	ck_assert_msg(strstr(call.output, wanted), "%s", call.output);
	ck_assert_msg(strstr(call.output, message), "%s", call.output);
	ck_assert_msg(str_ends(call.output,
	                       "\r\033[Krun 17 (a): succeeded after 3m10s, loss 0.2500, the model is in "
	                       "/home/u/saves/a\r\n"),
	              "%s", call.output);
}

START_TEST(the_bar_keeps_its_width)
{
	check_bar(120, 20, "   999/1000 100%  loss 0.2500  1235k tokens/s  1d03h left\r");
	check_bar(80, 10, "   999/1000 100%  loss 0.2500  1235k tokens/s  1d03h left\r");
	/* A part that has no room is left out whole: "12" would not be the speed. */
	check_bar(60, 10, "   999/1000 100%  loss 0.2500  1d03h left\r");
	check_bar(40, 0, "   999/1000 100%  loss 0.2500\r");
}
END_TEST

/* Of a run that was started ten days ago. */
START_TEST(a_line_of_progress_has_what_is_known)
{
	static const char reports[] =
	    "{\"step\":1,\"steps\":9,\"loss\":2.5,\"eval_loss\":1.5,\"tokens_per_second\":100000,"
	    "\"eta_seconds\":90}\n"
	    "{\"step\":2,\"steps\":9,\"tokens_per_second\":99999}\n"
	    "{\"step\":3,\"steps\":9,\"tokens_per_second\":10000}\n"
	    "{\"step\":4,\"steps\":9,\"tokens_per_second\":9999.4}\n"
	    "not JSON\n{\"loss\":0.5}\n"
	    "{\"step\":5,\"steps\":9,\"tokens_per_second\":0.4,\"message\":\"saved\"}\n"
	    "{\"step\":6,\"steps\":9,\"tokens_per_second\":0}\n{\"step\":7,";
	_cleanup_free_ char *run =
	    str_printf("{\"id\":17,\"name\":\"a\",\"task\":\"sft\",\"state\":\"running\",\"version\":2,"
	               "\"attempt\":1,\"started\":%lld}",
	               (long long)time(NULL) - 10 * 86400 - 60);
	const struct exchange list[] = {
	    {"GET /v1/runs/17 ", run},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ", reports},
	    {"GET /v1/runs/17?wait=change&version=2 ", ENDED("succeeded", "")},
	};
	_cleanup_(call_release) struct call plain = fixture_exchange(cmd_watch, "watch 17", list, 3);
	_cleanup_(call_release) struct call json = fixture_exchange(cmd_watch, "watch --json 17", list, 3);

	ck_assert_int_eq(plain.status, 0);
	ck_assert_str_eq(
	    plain.output,
	    "run 17 (a): running\n"
	    "step 1/9  loss 2.5000  eval loss 1.5000  100k tokens/s  10d00h, 1m30s left\n"
	    "step 2/9  100.0k tokens/s  10d00h\nstep 3/9  10.0k tokens/s  10d00h\n"
	    "step 4/9  9999 tokens/s  10d00h\nsaved\nstep 5/9  0 tokens/s  10d00h\nstep 6/9  10d00h\n"
	    "run 17 (a): succeeded after 3m10s, loss 0.5000, the model is in /home/u/saves/a\n");
	ck_assert_int_eq(json.status, 0);
	ck_assert_str_eq(json.output, reports);
	ck_assert_str_eq(json.errors, "");
}
END_TEST

/* Of a run that learns from rewards, these say what its loss does not. */
START_TEST(rewards_in_place_of_a_loss)
{
	static const char reports[] =
	    "{\"step\":1,\"steps\":9,\"loss\":1e-9,\"reward\":0.5,\"tokens_per_second\":99}\n"
	    "{\"step\":2,\"steps\":9,\"loss\":-1e-9,\"reward\":-0.75,\"eval_reward\":0.25}\n";
	static const char run[] =
	    "{\"id\":17,\"name\":\"a\",\"task\":\"grpo\",\"state\":\"running\",\"version\":2,"
	    "\"attempt\":1}";
	const struct exchange list[] = {
	    {"GET /v1/runs/17 ", run},
	    {"GET /v1/runs/17/metrics?follow=1&positions=1 ", reports},
	    {"GET /v1/runs/17?wait=change&version=2 ", ENDED("succeeded", "")},
	};
	_cleanup_(call_release) struct call c = fixture_exchange(cmd_watch, "watch 17", list, 3);

	ck_assert_int_eq(c.status, 0);
	ck_assert_str_eq(
	    c.output, "run 17 (a): running\n"
	              "step 1/9  reward 0.5000  99 tokens/s\n"
	              "step 2/9  reward -0.7500  eval reward 0.2500\n"
	              "run 17 (a): succeeded after 3m10s, reward -0.7500, the model is in /home/u/saves/a\n");
}
END_TEST

/* What it generates is for this terminal alone. */
START_TEST(an_interrupt_cancels_a_generation)
{
	_cleanup_free_ char *refused = fixture_refusal(503, "away", "no controller now");
	const struct {
		const char *answer, *output;
	} cases[] = {{"{}", "\r\n"}, {refused, "\r\ndtrain: run 17 may go on: no controller now\r\n"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct exchange list[] = {{"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"},
		                                {"GET /v1/runs/17?wait=change&version=0 ", ""},
		                                {"DELETE /v1/runs/17 ", cases[i].answer}};
		_cleanup_(call_release) struct call call =
		    fixture_interrupt(cmd_generate, "generate /m hello", list, ARRAY_SIZE(list));

		unlink(fixture_socket());
		ck_assert_int_eq(call.status, STATUS_CANCELLED);
		ck_assert_str_eq(call.output, cases[i].output);
	}
}
END_TEST

START_TEST(an_interrupt_ends_the_watching_alone)
{
	static const struct exchange watch[] = {{"GET /v1/runs/17 ", RUNNING},
	                                        {"GET /v1/runs/17/metrics?follow=1&positions=1 ", ""}};
	static const struct exchange logs[] = {{"GET /v1/runs/17/logs?rank=0&follow=1&positions=1 ", ""}};
	static const struct exchange submit[] = {{"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"},
	                                         {"GET /v1/runs/17?wait=change&version=0 ", ""}};
	static const char words[] = "\r\ndtrain: run 17 goes on; \"dtrain cancel 17\" ends it\r\n";
	const struct {
		command_fn command;
		const char *line;
		const struct exchange *list;
		size_t count;
	} calls[] = {{cmd_watch, "watch 17", watch, 2},
	             {cmd_logs, "logs -f 17", logs, 1},
	             {cmd_submit, "submit --follow -- true", submit, 2}};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		_cleanup_(call_release) struct call call =
		    fixture_interrupt(calls[i].command, calls[i].line, calls[i].list, calls[i].count);

		unlink(fixture_socket());
		ck_assert_int_eq(call.status, STATUS_CANCELLED);
		ck_assert_msg(str_ends(call.output, words), "%s", call.output);
	}
}
END_TEST

/* All that a command prints of one answer. */
static const struct {
	command_fn command;
	const char *line, *request, *answer, *output;
} printed[] = {
    {cmd_nodes, "nodes", "GET /v1/nodes ",
     "{\"nodes\":[{\"name\":\"n1\",\"address\":\"10.0.0.1\",\"port\":29600,\"state\":\"up\",\"controller\":"
     "true,"
     "\"slots\":8,\"free\":3,\"version\":\"0.2.0\",\"launch\":\"systemd\",\"labels\":[\"big\",\"nvlink\"],"
     "\"unreachable\":\"n1 port 29600 does not answer\",\"failing\":\"no room\"},"
     "{\"name\":\"n2\",\"address\":\"10.0.0.2\",\"port\":1,\"state\":\"down\",\"controller\":true,\"slots\":"
     "2,"
     "\"free\":0,\"error\":\"gone\",\"hosts_differ\":true,\"reason\":\"a new fan\",\"drained\":[{\"index\":1,"
     "\"reason\":\"worn out\"}],\"spare_of\":[7,9],\"foreign\":[{\"run\":5,\"attempt\":1,\"user\":\"ada\","
     "\"state\":\"running\"},{\"run\":6,\"attempt\":1,\"state\":\"running\"}]}]}",
     "NODE  STATE  SLOTS  FREE  ADDRESS         VERSION  LAUNCH   LABELS      REMARK\n"
     "n1    up     8      3     10.0.0.1:29600  0.2.0    systemd  big,nvlink  controller; its reports come, "
     "but "
     "the controller cannot reach it: n1 port 29600 does not answer; it could not start its last run: no "
     "room\n"
     "n2    down   2      0     10.0.0.2:1      -        -        -           gone; its hosts file differs "
     "from the controller's; drained: a new fan; slot 1 drained: worn out; kept for run 7; kept for run 9; "
     "foreign run 5 of ada; foreign run 6 of ?\n"},
    {cmd_show, "show 17", "GET /v1/runs/17 ",
     "{\"id\":17,\"name\":\"a\",\"user\":\"ada\",\"task\":\"sft\",\"state\":\"failed\",\"reason\":\"r\","
     "\"detail\":\"d\",\"exit_status\":7,\"attempt\":3,\"max_restarts\":5,\"restarts\":1,\"max_node_"
     "failures\":4,"
     "\"node_failures\":2,\"time_limit\":3600,\"time_used\":90,\"last_failure\":\"f\",\"last_detail\":\"e\","
     "\"checkpoint\":500,\"submitted\":1700000000,\"started\":1700000060,\"ended\":1700003660,"
     "\"nodes\":[\"n1\",\"n2\"],\"spares\":[\"n3\",\"n4\"],\"directory\":\"/w\",\"output\":\"out\","
     "\"progress\":{\"step\":5,\"steps\":10,\"loss\":2.5,\"tokens_per_second\":123,\"eta_seconds\":90},"
     "\"ranks\":[{\"rank\":0,\"node\":\"n1\",\"slot\":0,\"slots\":[0,2],\"state\":\"exited\",\"pid\":99,"
     "\"exit_status\":7},{\"rank\":1,\"node\":\"n2\",\"slot\":4,\"state\":\"exited\",\"exit_status\":0,"
     "\"signal\":\"SIGKILL\"},{\"rank\":2,\"node\":\"n2\",\"slot\":5,\"state\":\"running\"}]}",
     "run          17\nname         a\nuser         ada\ntask         sft\nstate        failed\n"
     "reason       r\ndetail       d\nexit status  7\nattempt      3\nrestarts     1 of 5\n"
     "node faults  2 of 4\ntime limit   1h00m, of which 1m30s in earlier attempts\nlast failure f\n"
     "last detail  e\ncheckpoint   step 500\nsubmitted    2023-11-14 22:13:20\n"
     "started      2023-11-14 22:14:20\nended        2023-11-14 23:14:20\nnodes        n1 n2\n"
     "spares       n3 n4\ndirectory    /w\noutput       out\n"
     "progress     step 5 of 10, loss 2.5000, 123 tokens/s, 1m30s left\n\n"
     "RANK  NODE  SLOT  PID  STATE    EXIT\n"
     "0     n1    0,2   99   exited   7\n"
     "1     n2    4     -    exited   SIGKILL\n"
     "2     n2    5     -    running  -\n"},
    {cmd_show, "show 18", "GET /v1/runs/18 ",
     "{\"id\":18,\"state\":\"queued\",\"detail\":\"d\",\"last_detail\":\"d\",\"exit_status\":0,\"spares\":[],"
     "\"progress\":{\"step\":1,\"steps\":2}}",
     "run          18\nstate        queued\ndetail       d\nexit status  0\nattempt      0\n"
     "progress     step 1 of 2, loss 0.0000, 0 tokens/s\n"},
    {cmd_runs, "runs --local", "GET /v1/local/runs ",
     "{\"runs\":[{\"run\":5,\"attempt\":2,\"name\":\"a\",\"user\":\"ada\",\"state\":\"running\","
     "\"slots\":[0,3]},{\"run\":16,\"attempt\":1,\"state\":\"starting\",\"slots\":[]}]}",
     "RUN  ATTEMPT  NAME  USER  STATE     SLOTS\n"
     "5    2        a     ada   running   0,3\n"
     "16   1        -     -     starting  -\n"},
    /* Of a newer service, whose states are others. */
    {cmd_nodes, "nodes", "GET /v1/nodes ",
     "{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\"},{\"name\":\"n2\",\"state\":\"asleep\"}]}",
     "NODE  STATE    SLOTS  FREE  ADDRESS  VERSION  LAUNCH  LABELS  REMARK\n"
     "n1    up       0      0     :0       -        -       -       -\n"
     "n2    unknown  0      0     :0       -        -       -       -\n"},
    {cmd_show, "show 18", "GET /v1/runs/18 ",
     "{\"id\":18,\"state\":\"parked\",\"ranks\":[{\"rank\":0,\"node\":\"n1\",\"slot\":4,\"state\":\"hung\"}]"
     "}",
     "run          18\nstate        unknown\nattempt      0\n\n"
     "RANK  NODE  SLOT  PID  STATE    EXIT\n"
     "0     n1    4     -    unknown  -\n"},
    {cmd_devices, "devices", "GET /v1/devices ",
     "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"npu\",\"name\":\"N\",\"memory\":1073741824,"
     "\"threads\":8,\"state\":\"hot\"}]}",
     "NODE  SLOT  KIND     NAME  MEMORY   THREADS  STATE    RUN\n"
     "n1    0     unknown  N     1.0 GiB  8        unknown  -\n"},
    {cmd_runs, "runs --local", "GET /v1/local/runs ",
     "{\"runs\":[{\"run\":5,\"attempt\":2,\"state\":\"parked\",\"slots\":[0]}]}",
     "RUN  ATTEMPT  NAME  USER  STATE    SLOTS\n"
     "5    2        -     -     unknown  0\n"},
    {cmd_kill, "kill --local 5", "DELETE /v1/local/runs/5 ", "{\"run\":5}", ""},
    {cmd_fence, "fence n1", "POST /v1/nodes/n1/fence ", "{\"name\":\"n1\",\"parts\":2}",
     "n1: 2 lost parts of runs count as ended\n"},
    {cmd_fence, "fence n1", "POST /v1/nodes/n1/fence ", "{\"name\":\"n1\",\"parts\":1}",
     "n1: 1 lost part of runs counts as ended\n"},
    {cmd_cancel, "cancel --foreign n1", "POST /v1/nodes/n1/cancel-foreign ",
     "{\"name\":\"n1\",\"stopping\":1}", ""},
    {cmd_cancel, "cancel --foreign n1:5", "POST /v1/nodes/n1/cancel-foreign?run=5 ",
     "{\"name\":\"n1\",\"stopping\":1}", ""},
    {cmd_cancel, "cancel --foreign fe80::1", "POST /v1/nodes/fe80%3A%3A1/cancel-foreign ",
     "{\"name\":\"n1\",\"stopping\":1}", ""},
};

START_TEST(what_a_command_prints)
{
	const struct exchange list = {printed[_i].request, printed[_i].answer};
	_cleanup_(call_release) struct call call = {0};

	setenv("TZ", "UTC", 1);
	tzset();
	call = fixture_exchange(printed[_i].command, printed[_i].line, &list, 1);
	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, printed[_i].output);
}
END_TEST

/* The worst status counts, and the others are done. */
START_TEST(several_are_ended)
{
	_cleanup_free_ char *refused = fixture_refusal(403, "not-allowed", "it is not yours");
	const struct exchange kills[] = {{"DELETE /v1/local/runs/5 ", refused},
	                                 {"DELETE /v1/local/runs/6 ", "{\"run\":6}"}},
	                      foreign[] = {{"POST /v1/nodes/n1/cancel-foreign ", refused},
	                                   {"POST /v1/nodes/n2/cancel-foreign ", "{}"}},
	                      waits[] = {{"DELETE /v1/runs/5 ", "{}"},
	                                 {"GET /v1/runs/5?wait=1 ", "{\"id\":5,\"state\":\"cancelled\"}"}},
	                      runs[] = {{"DELETE /v1/runs/5 ", refused}, {"DELETE /v1/runs/6 ", "{}"}};
	_cleanup_(call_release) struct call killed = fixture_exchange(cmd_kill, "kill --local 5 6", kills, 2);
	_cleanup_(call_release) struct call ended =
	    fixture_exchange(cmd_cancel, "cancel --foreign n1 n2", foreign, 2);
	_cleanup_(call_release) struct call waited =
	    fixture_exchange(cmd_cancel, "cancel --wait 5", waits, 2);
	_cleanup_(call_release) struct call cancelled = fixture_exchange(cmd_cancel, "cancel 5 6", runs, 2);
	_cleanup_(call_release) struct call all = fixture_call(cmd_kill, "kill 5");
	_cleanup_(call_release) struct call both = fixture_call(cmd_cancel, "cancel --foreign --wait n1");
	_cleanup_(call_release) struct call word = fixture_call(cmd_kill, "kill --local x");

	ck_assert_int_eq(killed.status, EXIT_FAILURE);
	ck_assert_str_eq(killed.errors, "dtrain: it is not yours\n");
	ck_assert_int_eq(ended.status, EXIT_FAILURE);
	ck_assert_str_eq(ended.errors, "dtrain: it is not yours\n");
	ck_assert_int_eq(waited.status, 0);
	ck_assert_int_eq(cancelled.status, EXIT_FAILURE);
	ck_assert_str_eq(cancelled.errors, "dtrain: it is not yours\n");
	ck_assert_int_eq(all.status, STATUS_USAGE);
	ck_assert_ptr_nonnull(strstr(all.errors, "--local is needed"));
	ck_assert_int_eq(both.status, STATUS_USAGE);
	ck_assert_ptr_nonnull(strstr(both.errors, "--wait is not possible with --foreign"));
	ck_assert_int_eq(word.status, STATUS_USAGE);
}
END_TEST

START_TEST(one_that_is_not_cancelled_is_not_awaited)
{
	_cleanup_free_ char *refused = fixture_refusal(403, "not-allowed", "it is not yours");
	const struct exchange runs[] = {{"DELETE /v1/runs/5 ", "{}"}, {"DELETE /v1/runs/6 ", refused}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_cancel, "cancel --wait 5 6", runs, 2);

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_str_eq(call.errors, "dtrain: it is not yours\n");
}
END_TEST

/* The copy takes the place of a file once it is whole; what is no file stays. */
START_TEST(a_backup_is_whole_or_none)
{
	_cleanup_free_ char *path = str_printf("%s/copy.db", fixture_dir()), *text = NULL,
	                    *line = str_printf("backup %s", path), *again = NULL,
	                    *onto = str_printf("backup %s", fixture_dir()),
	                    *refused = fixture_refusal(500, "store", "no space");
	const struct exchange good[] = {{"GET /v1/backup ", "the store"}},
	                      bad[] = {{"GET /v1/backup ", refused}};
	_cleanup_(call_release) struct call call = fixture_exchange(cmd_backup, line, good, 1);
	_cleanup_(call_release) struct call failed = fixture_exchange(cmd_backup, line, bad, 1);
	_cleanup_(call_release) struct call directory = fixture_call(cmd_backup, onto);
	_cleanup_(call_release) struct call away = fixture_call(cmd_backup, line);
	struct error err = ERROR_INIT;
	struct stat st;
	struct dirent *entry;
	DIR *dir = opendir(fixture_dir());

	ck_assert_int_eq(call.status, 0);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "the store");
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(failed.status, EXIT_FAILURE);
	ck_assert_str_eq(failed.errors, "dtrain: no space\n");
	ck_ok(file_read(path, 0, &again, NULL, &err), &err);
	ck_assert_str_eq(again, "the store");
	ck_assert_int_eq(directory.status, EXIT_FAILURE);
	ck_assert_ptr_nonnull(strstr(directory.errors, ": not a regular file"));
	ck_assert_int_eq(away.status, STATUS_UNREACHABLE);
	/* No part of a copy is left. */
	while ((entry = readdir(dir)))
		ck_assert_msg(!str_starts(entry->d_name, "copy.db."), "%s", entry->d_name);
	closedir(dir);
}
END_TEST

/* The copy of before stays. */
START_TEST(a_backup_that_cannot_be_written_is_none)
{
	const struct rlimit most = {4096, 4096};
	_cleanup_free_ char *path = str_printf("%s/copy.db", fixture_dir()), *text = NULL,
	                    *line = str_printf("backup %s", path);
	char large[6000];
	const struct exchange list[] = {{"GET /v1/backup ", large}};
	_cleanup_(call_release) struct call call = {0};
	struct error err = ERROR_INIT;

	memset(large, 'x', sizeof(large) - 1);
	large[sizeof(large) - 1] = '\0';
	ck_ok(file_write_atomic(path, "before", 6, 0600, &err), &err);
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
	call = fixture_exchange(cmd_backup, line, list, 1);
	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_msg(strstr(call.errors, "File too large") != NULL, "%s", call.errors);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "before");
}
END_TEST

#define PRUNED                                                                                               \
	"{\"runs\":[{\"run\":3,\"bytes\":1048576,\"changed\":1700000000},{\"run\":5,\"bytes\":1024,"         \
	"\"changed\":"                                                                                       \
	"1700000000}],\"kept\":7"

START_TEST(what_is_pruned_is_listed)
{
	static const struct {
		const char *line, *answer, *output, *errors;
		int status;
	} cases[] = {
	    {"prune --keep-days 2.5 --keep-runs 9", PRUNED "}",
	     "run 3: 1.0 MiB, last changed 2023-11-14\nrun 5: 1.0 KiB, last changed 2023-11-14\n"
	     "removed the files of 2 runs, 1.0 MiB; those of 7 are kept\n",
	     "", 0},
	    {"prune -n", "{\"runs\":[{\"run\":3,\"bytes\":9,\"changed\":1700000000}],\"kept\":0}",
	     "run 3: 9 B, last changed 2023-11-14\nwould remove the files of 1 run, 9 B; those of 0 are "
	     "kept\n",
	     "", 0},
	    {"prune", "{\"runs\":[],\"kept\":1,\"error\":\"the disk is broken\"}",
	     "removed the files of 0 runs, 0 B; those of 1 are kept\n", "dtrain: the disk is broken\n", 1},
	};

	setenv("TZ", "UTC", 1);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct exchange list[] = {{"POST /v1/prune ", cases[i].answer}};
		_cleanup_(call_release) struct call call =
		    fixture_exchange(cmd_prune, cases[i].line, list, 1);

		ck_assert_str_eq(call.output, cases[i].output);
		ck_assert_str_eq(call.errors, cases[i].errors);
		ck_assert_int_eq(call.status, cases[i].status);
	}
}
END_TEST

/* --json prints what the service answers, and nothing else. */
/* Where no time is left to ask again, the service still has some to answer. */
START_TEST(an_answer_may_come_after_the_wait)
{
	_cleanup_free_ char *answer = fixture_answer("{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\"}]}");
	const struct fake_step late = {"GET /v1/nodes ", NULL, answer, FAKE_LATE};
	struct fake_service *fake = fake_service_start(fixture_socket(), &late, 1);
	_cleanup_(call_release) struct call call =
	    fixture_call(cmd_nodes, "nodes --wait 1 --timeout 0 --json");

	ck_assert_msg(call.status == 0, "%d: %s", call.status, call.errors);
	ck_assert_ptr_nonnull(strstr(call.output, "\"n1\""));
	fake_service_stop(fake);
}
END_TEST

START_TEST(answers_are_printed_as_json)
{
	static const struct {
		command_fn command;
		const char *line, *request, *answer;
		const char *part; /* of the answer; NULL: all of it */
		int status;
	} cases[] = {
	    {cmd_prune, "prune --json", "POST /v1/prune ", PRUNED "}", NULL, 0},
	    {cmd_prune, "prune --json", "POST /v1/prune ", PRUNED ",\"error\":\"no\"}", NULL, 1},
	    {cmd_devices, "devices --json", "GET /v1/devices ", "{\"devices\":[]}", "devices", 0},
	    {cmd_devices, "devices --local --json", "GET /v1/devices?local=1 ", "{\"devices\":[]}", "devices",
	     0},
	    {cmd_nodes, "nodes --json", "GET /v1/nodes ", "{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\"}]}",
	     "nodes", 0},
	    {cmd_nodes, "nodes --wait 2 --timeout 0 --json", "GET /v1/nodes ",
	     "{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\"}]}", "nodes", 1},
	    {cmd_runs, "runs --local --json", "GET /v1/local/runs ", "{\"runs\":[]}", "runs", 0},
	    {cmd_runs, "runs --json --limit 3", "GET /v1/runs?state=all&limit=", "{\"runs\":[]}", "runs", 0},
	    {cmd_show, "show --json 17", "GET /v1/runs/17 ",
	     "{\"id\":17,\"state\":\"queued\",\"config\":{\"task\":\"sft\"}}", NULL, 0},
	    {cmd_show, "show --config 17", "GET /v1/runs/17 ",
	     "{\"id\":17,\"state\":\"queued\",\"config\":{\"task\":\"sft\"}}", "config", 0},
	    {cmd_submit, "submit --json -- true", "POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}", NULL,
	     0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct exchange list[] = {{cases[i].request, cases[i].answer}};
		_cleanup_(call_release) struct call call =
		    fixture_exchange(cases[i].command, cases[i].line, list, 1);
		_cleanup_json_ json_t *output = json_loads(call.output, 0, NULL),
		                      *answer = json_loads(cases[i].answer, 0, NULL);

		ck_assert_msg(
		    json_equal(output, cases[i].part ? json_object_get(answer, cases[i].part) : answer),
		    "%s: %s", cases[i].line, call.output);
		ck_assert_msg(call.status == cases[i].status, "%s: %d", cases[i].line, call.status);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_runs");
	TCase *tc = tcase_create("runs");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, the_table_fits_80_columns);
	tcase_add_test(tc, all_are_listed_with_all);
	tcase_add_test(tc, the_limit_counts_what_is_shown);
	tcase_add_test(tc, a_limit_is_kept_within_a_page);
	tcase_add_test(tc, the_runs_of_one_user_are_listed);
	tcase_add_test(tc, the_newest_is_looked_for_in_large_pages);
	tcase_add_test(tc, states_have_colours_on_a_terminal);
	tcase_add_test(tc, without_a_number_it_is_the_newest_of_mine);
	tcase_add_test(tc, a_watch_ends_with_what_came_out);
	tcase_add_test(tc, a_watch_ends_in_a_state_that_it_does_not_know);
	tcase_add_test(tc, the_bar_keeps_its_width);
	tcase_add_test(tc, a_line_of_progress_has_what_is_known);
	tcase_add_test(tc, rewards_in_place_of_a_loss);
	tcase_add_loop_test(tc, what_a_command_prints, 0, ARRAY_SIZE(printed));
	tcase_add_test(tc, several_are_ended);
	tcase_add_test(tc, one_that_is_not_cancelled_is_not_awaited);
	tcase_add_test(tc, a_backup_is_whole_or_none);
	tcase_add_test(tc, a_backup_that_cannot_be_written_is_none);
	tcase_add_test(tc, an_interrupt_ends_the_watching_alone);
	tcase_add_test(tc, an_interrupt_cancels_a_generation);
	tcase_add_test(tc, what_is_pruned_is_listed);
	tcase_add_test(tc, an_answer_may_come_after_the_wait);
	tcase_add_test(tc, answers_are_printed_as_json);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
