/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the calls of the program that gives rewards, with small shell scripts as the program: answers in any
 * order of reading and writing, each way in which a program fails, and its end. */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "base/str.h"
#include "open_fds.h"
#include "unit.h"
#include "worker/reward_lines.h"
#include "worker/reward_program.h"

/* Seconds that a program which answers may take; TIMEOUT is for one that does not answer. */
#define GENEROUS 300.0
#define TIMEOUT  0.2

static char *dir;
static bool impatient; /* each look at the clock is an hour after the one before */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	static time_t ahead;
	int r = __real_clock_gettime(clock, now);

	ahead = impatient ? ahead + 3600 : 0;
	now->tv_sec += ahead;
	return r;
}

static void setup(void)
{
	dir = unit_tmpdir();
	impatient = false;
	/* Workers ignore it, too. */
	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(chdir(dir), 0);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

/* Starts a shell with this script. */
static struct reward_program *start(const char *script)
{
	char *argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};
	struct reward_program *p = NULL;
	struct error err = ERROR_INIT;

	ck_ok(reward_program_start(argv, &p, &err), &err);
	return p;
}

static int ask(struct reward_program *p, const char *text, int64_t n, double *rewards, double timeout,
               struct error *err)
{
	_cleanup_free_ double *values = calloc((size_t)n * POLICY_PARTS_MOST + 1, sizeof(*values));
	struct policy_parts parts = {.values = values};

	return reward_program_ask(p, text, strlen(text), n, rewards, &parts, timeout, err);
}

/* Waits until a process has opened the fifo for writing and closed it again. */
static void await(const char *fifo)
{
	char byte;
	int fd = open(fifo, O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	while (read(fd, &byte, 1) > 0)
		;
	close(fd);
}

/* n lines of `width` digits, which are the numbers from 0 on. */
static char *numbers(int n, int width)
{
	struct strbuf b = {0};

	for (int i = 0; i < n; i++)
		strbuf_addf(&b, "%0*d\n", width, i);
	return strbuf_steal(&b);
}

/* ---- programs that answer ---- */

START_TEST(each_line_has_its_answer)
{
	_cleanup_(reward_program_endp) struct reward_program *p =
	    start("while read -r x; do echo \"$x.5\"; done");
	struct error err = ERROR_INIT;
	double rewards[4] = {0};

	ck_ok(ask(p, "1\n-2\n3\n", 3, rewards, GENEROUS, &err), &err);
	ck_assert_double_eq(rewards[0], 1.5);
	ck_assert_double_eq(rewards[1], -2.5);
	ck_assert_double_eq(rewards[2], 3.5);
	ck_assert_double_eq(rewards[3], 0);
	/* It is the same program that goes on. */
	ck_ok(ask(p, "7\n", 1, rewards, GENEROUS, &err), &err);
	ck_assert_double_eq(rewards[0], 7.5);
	ck_assert_double_eq(rewards[1], -2.5);
}
END_TEST

/* Far more than pipes hold, of lines and of answers, by a program that reads all first and by one that does
 * not. */
START_TEST(more_than_a_pipe_holds)
{
	enum { LINES = 20000 };
	static const char *const scripts[] = {
	    "exec perl -e '$| = 1; while (<>) { push @a, $_; next if @a < 20000; printf \"%0100d\\n\", $_ "
	    "for "
	    "@a; @a = () }'",
	    "exec perl -e '$| = 1; printf \"%0100d\\n\", $_ while <>'",
	};
	_cleanup_(reward_program_endp) struct reward_program *p = start(scripts[_i]);
	_cleanup_free_ char *text = numbers(LINES, 100);
	_cleanup_free_ double *rewards = calloc(LINES, sizeof(*rewards));
	struct error err = ERROR_INIT;

	for (int round = 0; round < 2; round++) {
		memset(rewards, 0, LINES * sizeof(*rewards));
		ck_ok(ask(p, text, LINES, rewards, GENEROUS, &err), &err);
		for (int i = 0; i < LINES; i++)
			ck_assert_double_eq(rewards[i], i);
	}
}
END_TEST

/* The call writes all lines, even where all answers are there before. */
START_TEST(answers_may_come_before_all_is_read)
{
	struct reward_program *p = start("read -r x; printf '1\\n2\\n3\\n'; wc -c >count; :");
	_cleanup_free_ char *text = numbers(3, 200000), *count = NULL;
	struct error err = ERROR_INIT;
	double rewards[3];
	size_t len;

	ck_ok(ask(p, text, 3, rewards, GENEROUS, &err), &err);
	for (int i = 0; i < 3; i++)
		ck_assert_double_eq(rewards[i], i + 1);
	reward_program_end(p);
	ck_ok(file_read("count", 100, &count, &len, &err), &err);
	ck_assert_int_eq(atoi(count), 2 * 200001);
}
END_TEST

/* A stop that a terminal or a service sends to this process's group does not reach it; signals and
 * descriptors of this process are not its own. */
START_TEST(it_is_a_process_of_its_own)
{
	static const char script[] = "read -r x; set -- $(cat /proc/$$/stat); echo $1; echo $5; "
	                             "[ -e /proc/$$/fd/100 ] && echo 1 || echo 0; "
	                             "while read -r k v; do case $k in Sig[BI]*) echo $((0x$v & 0x1200));; "
	                             "esac; done </proc/$$/status; "
	                             "cat >/dev/null; :";
	struct reward_program *p;
	struct error err = ERROR_INIT;
	sigset_t set, was;
	double r[5];

	ck_assert_int_eq(dup2(STDERR_FILENO, 100), 100);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &was);
	p = start(script);
	sigprocmask(SIG_SETMASK, &was, NULL);
	ck_ok(ask(p, "x\n", 5, r, GENEROUS, &err), &err);
	ck_assert_double_gt(r[0], 0);
	ck_assert_double_eq(r[0], r[1]);
	ck_assert_double_ne(r[1], getpgrp());
	ck_assert_double_eq(r[2], 0);
	ck_assert_double_eq(r[3], 0);
	ck_assert_double_eq(r[4], 0);
	reward_program_end(p);
	close(100);
}
END_TEST

/* ---- programs that fail ---- */

static const struct {
	const char *script, *words;
} failing[] = {
    {"read -r x; echo good; cat", "sh has written \"good\"; expected a line with a finite number"},
    {"read -r x; echo nan; cat", "sh has written \"nan\"; expected"},
    {"read -r x; echo; cat", "sh has written \"\"; expected"},
    {"echo loading the model; cat", "sh has written \"loading the model\"; expected"},
    {"read -r x; printf '1\\n2\\n3\\n'; cat", "sh has written more lines than it was given"},
    {"read -r x; yes | tr -d '\\n'", "sh has written a line of more than 4095 bytes; expected a number"},
    {"exit 3", "sh has ended with status 3 before the run had"},
    {"read -r x; echo 1; exit 0", "sh has ended with status 0 before the run had"},
    {"read -r x; printf 1; exit 4", "sh has ended with status 4"},
    {"kill -9 $$", "sh was ended by Killed"},
    {"read -r x; kill -11 $$; cat", "sh was ended by Segmentation fault"},
};

START_TEST(a_program_that_fails)
{
	size_t before = open_fds_count();
	struct reward_program *p = start(failing[_i].script);
	struct error err = ERROR_INIT;
	double rewards[2];

	ck_fails(ask(p, "a\nb\n", 2, rewards, GENEROUS, &err), &err, failing[_i].words);
	reward_program_end(p);
	/* Nothing of it is left: neither a child nor a descriptor. */
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_uint_eq(open_fds_count(), before);
}
END_TEST

START_TEST(a_silent_program)
{
	struct reward_program *p = start("read -r x; echo 1; cat >/dev/null; :");
	struct error err = ERROR_INIT;
	double rewards[3];

	ck_assert_int_eq(ask(p, "a\nb\nc\n", 3, rewards, TIMEOUT, &err), -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(err.message, " of 3 rewards, and nothing for 0.2 s (parallel.timeout)"));
	reward_program_end(p);
}
END_TEST

START_TEST(a_program_that_is_not_there)
{
	size_t before = open_fds_count();
	char *argv[] = {(char *)"./none", NULL};
	struct reward_program *p = NULL;
	struct error err = ERROR_INIT;

	ck_fails(reward_program_start(argv, &p, &err), &err, "cannot start ./none: No such file");
	ck_assert_ptr_null(p);
	ck_assert_uint_eq(open_fds_count(), before);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	reward_program_end(NULL);
}
END_TEST

/* The program is found in PATH, and gets its arguments as they are. */
START_TEST(arguments_are_kept)
{
	char *argv[] = {(char *)"sh",
	                (char *)"-c",
	                (char *)"read -r x; echo $#; cat >/dev/null; :",
	                (char *)"name",
	                (char *)"a b",
	                (char *)"",
	                NULL};
	_cleanup_(reward_program_endp) struct reward_program *p = NULL;
	struct error err = ERROR_INIT;
	double reward;

	ck_ok(reward_program_start(argv, &p, &err), &err);
	ck_ok(ask(p, "a\n", 1, &reward, GENEROUS, &err), &err);
	ck_assert_double_eq(reward, 2);
}
END_TEST

/* What is written between two calls would be the answer to a line that is not read yet. */
START_TEST(surplus_lines_are_refused_by_the_next_call)
{
	_cleanup_(reward_program_endp) struct reward_program *p = NULL;
	struct error err = ERROR_INIT;
	double rewards[1];
	int fd;

	ck_assert_int_eq(mkfifo("go", 0600), 0);
	ck_assert_int_eq(mkfifo("done", 0600), 0);
	p = start("read -r x; echo 1; read -r y <go; echo 2; : >done; cat >/dev/null; :");
	ck_ok(ask(p, "a\n", 1, rewards, GENEROUS, &err), &err);
	fd = open("go", O_WRONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "\n", 1), 1);
	close(fd);
	await("done");
	ck_fails(ask(p, "b\n", 1, rewards, TIMEOUT, &err), &err,
	         "sh has written more lines than it was given");
}
END_TEST

/* ---- ends ---- */

/* A program may still work after the end of its input, and is not killed at once. */
START_TEST(the_end_is_awaited)
{
	struct reward_program *p =
	    start("while read -r x; do echo 1; done; echo all >at_end.new; mv at_end.new at_end");
	struct error err = ERROR_INIT;
	struct stat s;
	double reward;

	ck_ok(ask(p, "a\n", 1, &reward, GENEROUS, &err), &err);
	ck_assert_int_eq(stat("at_end", &s), -1);
	reward_program_end(p);
	ck_assert_int_eq(stat("at_end", &s), 0);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

/* A program that goes on after the end of its input is killed, with the processes that it has started. */
START_TEST(a_program_that_does_not_end_is_killed)
{
	struct reward_program *p;
	struct error err = ERROR_INIT;
	double pid;
	char byte;
	int fd;

	ck_assert_int_eq(mkfifo("alive", 0600), 0);
	fd = open("alive", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	/* Both processes have the fifo open before there is an answer. */
	p = start("trap '' TERM HUP; exec 3>alive; sleep 1000 & read -r x; echo $$; exec sleep 1000");
	ck_ok(ask(p, "a\n", 1, &pid, GENEROUS, &err), &err);
	ck_assert_int_eq(read(fd, &byte, 1), -1);
	ck_assert_int_eq(errno, EAGAIN);
	ck_assert_int_eq(kill((pid_t)pid, 0), 0);
	impatient = true;
	reward_program_end(p);
	impatient = false;
	ck_assert_int_eq(kill((pid_t)pid, 0), -1);
	ck_assert_int_eq(errno, ESRCH);
	ck_assert_int_eq(fcntl(fd, F_SETFL, 0), 0);
	ck_assert_int_eq(read(fd, &byte, 1), 0);
	close(fd);
}
END_TEST

/* A program closes its output or its input, and does not end. */
START_TEST(closed_ends_are_told)
{
	static const char *const scripts[] = {"exec >&-; exec sleep 1000",
	                                      "exec <&-; : >done; exec sleep 1000"};
	struct reward_program *p;
	struct error err = ERROR_INIT;
	double reward;

	ck_assert_int_eq(mkfifo("done", 0600), 0);
	p = start(scripts[_i]);
	if (_i)
		await("done");
	impatient = true;
	ck_fails(ask(p, "a\n", 1, &reward, GENEROUS, &err), &err,
	         "sh has closed its input or output before the run had ended");
	reward_program_end(p);
	impatient = false;
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

/* ---- lines ---- */

static const struct {
	const char *text;
	size_t len;
	double reward;
	const char *words; /* NULL: it is a number */
} lines[] = {
#define LINE(text, reward, words)                                                                            \
	{                                                                                                    \
		text, sizeof(text) - 1, reward, words                                                        \
	}
    LINE("1\n", 1, NULL),
    LINE("-2.5e-3\n", -2.5e-3, NULL),
    LINE("  3\n", 3, NULL),
    LINE("4 \t\r\n", 4, NULL),
    LINE("1e-400\n", 0, NULL),
    LINE("\n", 0, "has written \"\"; expected a line with a finite number for each completion"),
    LINE("   \n", 0, "has written \"   \""),
    LINE("\r\n", 0, "expected a line with a finite number"),
    LINE("nan\n", 0, "has written \"nan\""),
    LINE("inf\n", 0, "has written \"inf\""),
    LINE("-infinity\n", 0, "has written \"-infinity\""),
    LINE("1e999\n", 0, "has written \"1e999\""),
    LINE("1,5\n", 0, "has written \"1,5\""),
    LINE("1 2\n", 0, "has written \"1 2\""),
    LINE("a=1\n", 1, NULL),
    LINE(" right=1.5\tshort_A-2.b=-0.25 \r\n", 1.25, NULL),
    LINE("a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=8\n", 36, NULL),
    LINE("a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=8 i=9\n", 0, "with up to 8, each as NAME=NUMBER"),
    LINE("0123456789012345678901234567890123456789=1\n", 0, "each as NAME=NUMBER"),
    LINE("012345678901234567890123456789012345678=1\n", 1, NULL),
    LINE("a=1 2\n", 0, "each as NAME=NUMBER"),
    LINE("1 a=2\n", 0, "has written \"1 a=2\""),
    LINE("a=1 a=2\n", 0, "has written \"a=1 a=2\""),
    LINE("a=\n", 0, "has written \"a=\""),
    LINE("a= 1\n", 0, "has written \"a= 1\""),
    LINE("a =1\n", 0, "has written \"a =1\""),
    LINE("=1\n", 0, "has written \"=1\""),
    LINE("a=1b=2\n", 0, "has written \"a=1b=2\""),
    LINE("a=nan\n", 0, "has written \"a=nan\""),
    LINE("a=1e308 b=1e308\n", 0, "has written \"a=1e308 b=1e308\""),
    LINE("a/b=1\n", 0, "has written \"a/b=1\""),
    LINE("1\0002\n", 0, "has written \"1\""),
    LINE("1\000\n", 0, "has written \"1\""),
    LINE("\000\n", 0, "has written \"\""),
    LINE("\xff\xfe\n", 0, "has written \"??\""),
    LINE("0123456789012345678901234567890123456789012345678901234567890123456789x\n", 0,
         "has written \"012345678901234567890123456789012345678901234567890123456789\";"),
#undef LINE
};

/* A line may come in two parts, which are cut at any place. */
START_TEST(a_line_is_a_number)
{
	for (size_t cut = 0; cut <= lines[_i].len; cut++) {
		struct reward_lines l = {0};
		struct error err = ERROR_INIT;
		double rewards[2] = {77, 77}, values[2 * POLICY_PARTS_MOST];
		struct policy_parts parts = {.values = values};
		int64_t done = 0;
		int r = reward_lines_add(&l, "p", lines[_i].text, cut, 2, &done, rewards, &parts, &err);

		if (r == 0)
			r = reward_lines_add(&l, "p", lines[_i].text + cut, lines[_i].len - cut, 2, &done,
			                     rewards, &parts, &err);
		ck_assert_double_eq(rewards[1], 77);
		if (lines[_i].words) {
			ck_fails(r, &err, lines[_i].words);
			ck_assert_ptr_eq(strstr(err.message, "p has written"), err.message);
			ck_assert_int_eq(done, 0);
			ck_assert_double_eq(rewards[0], 77);
		} else {
			ck_ok(r, &err);
			ck_assert_int_eq(done, 1);
			ck_assert_double_eq(rewards[0], lines[_i].reward);
		}
	}
}
END_TEST

START_TEST(a_line_has_an_end)
{
	struct error err = ERROR_INIT;

	for (int more = 0; more < 2; more++) {
		size_t len = REWARD_LINE_MOST - 1 + (size_t)more;
		_cleanup_free_ char *text = numbers(1, (int)len);
		struct reward_lines l = {0};
		double reward = 77, values[POLICY_PARTS_MOST];
		struct policy_parts parts = {.values = values};
		int64_t done = 0;
		int r = reward_lines_add(&l, "p", text, len + 1, 1, &done, &reward, &parts, &err);

		if (more) {
			ck_fails(r, &err, "p has written a line of more than 4095 bytes; expected a number");
		} else {
			ck_ok(r, &err);
			ck_assert_double_eq(reward, 0);
		}
		ck_assert_int_eq(done, !more);
	}
}
END_TEST

START_TEST(lines_are_counted)
{
	struct reward_lines l = {0};
	struct error err = ERROR_INIT;
	double rewards[3] = {77, 77, 77}, values[3 * POLICY_PARTS_MOST];
	struct policy_parts parts = {.values = values};
	int64_t done = 0;

	/* Half of a line stays for the next part. */
	ck_ok(reward_lines_add(&l, "p", "1\n2", 3, 2, &done, rewards, &parts, &err), &err);
	ck_assert_int_eq(done, 1);
	ck_ok(reward_lines_add(&l, "p", "5\n", 2, 2, &done, rewards, &parts, &err), &err);
	ck_assert_int_eq(done, 2);
	ck_assert(rewards[0] == 1 && rewards[1] == 25);
	ck_ok(reward_lines_add(&l, "p", "6", 1, 2, &done, rewards, &parts, &err), &err);
	ck_fails(reward_lines_add(&l, "p", "\n", 1, 2, &done, rewards, &parts, &err), &err,
	         "p has written more lines than it was given");
	ck_assert_int_eq(done, 2);
	ck_assert_double_eq(rewards[2], 77);
}
END_TEST

/* The first line says what the others have. */
START_TEST(parts_of_rewards)
{
	struct reward_lines l = {0};
	struct error err = ERROR_INIT;
	double rewards[3], values[3 * POLICY_PARTS_MOST], alone[POLICY_PARTS_MOST];
	struct policy_parts parts = {.values = values}, none = {.values = alone};
	int64_t done = 0;

	ck_ok(reward_lines_add(&l, "p", "right=1 form=-0.5\nright=0 form=0.25\n", 36, 3, &done, rewards,
	                       &parts, &err),
	      &err);
	ck_assert_int_eq(done, 2);
	ck_assert(rewards[0] == 0.5 && rewards[1] == 0.25);
	ck_assert_int_eq(parts.count, 2);
	ck_assert_str_eq(parts.name[0], "right");
	ck_assert_str_eq(parts.name[1], "form");
	ck_assert(values[0] == 1 && values[1] == -0.5 && values[2] == 0);
	ck_assert(values[POLICY_PARTS_MOST] == 0 && values[POLICY_PARTS_MOST + 1] == 0.25);
	ck_fails(
	    reward_lines_add(&l, "p", "form=1 right=1\n", 15, 3, &done, rewards, &parts, &err), &err,
	    "p has written \"form=1 right=1\"; expected the names of its first line in each: right form");
	l.len = 0;
	ck_fails(reward_lines_add(&l, "p", "right=1\n", 8, 3, &done, rewards, &parts, &err), &err,
	         "expected the names of its first line in each: right form");
	l.len = 0;
	ck_fails(reward_lines_add(&l, "p", "1\n", 2, 3, &done, rewards, &parts, &err), &err,
	         "expected the names of its first line in each: right form");
	ck_assert_int_eq(done, 2);
	ck_assert(parts.count == 2 && parts.values == values);
	l.len = 0;
	done = 0;
	ck_ok(reward_lines_add(&l, "p", "7\n", 2, 1, &done, rewards, &none, &err), &err);
	ck_assert(none.known && none.count == 0);
	ck_fails(reward_lines_add(&l, "p", "a=1\n", 4, 2, &done, rewards, &none, &err), &err,
	         "p has written \"a=1\"; expected a number alone, as in its first line");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("reward program");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {parts_of_rewards,
	                              each_line_has_its_answer,
	                              answers_may_come_before_all_is_read,
	                              it_is_a_process_of_its_own,
	                              a_silent_program,
	                              a_program_that_is_not_there,
	                              arguments_are_kept,
	                              surplus_lines_are_refused_by_the_next_call,
	                              the_end_is_awaited,
	                              a_program_that_does_not_end_is_killed,
	                              a_line_has_an_end,
	                              lines_are_counted};

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, more_than_a_pipe_holds, 0, 2);
	tcase_add_loop_test(tc, a_program_that_fails, 0, ARRAY_SIZE(failing));
	tcase_add_loop_test(tc, closed_ends_are_told, 0, 2);
	tcase_add_loop_test(tc, a_line_is_a_number, 0, ARRAY_SIZE(lines));
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
