/* SPDX-License-Identifier: Apache-2.0 */
/* Memory runs out while an attempt is started, or found by a later service: it is not there then, and
 * otherwise its report is whole. */
#include "attempt_fixture.h"
#include "failing_memory.h"

#include <string.h>

#include "base/json.h"

static char filling[4096];

/* How an attempt comes about: what is there before, what may lack memory, and the attempt that comes of it.
 */
struct way {
	void (*prepare)(void);
	int (*work)(struct error *err);
	void (*check)(void);
};

/* The set-up and the trace are not what runs out of memory. */
static int go(void *context, struct error *err)
{
	const struct way *way = context;
	long left = memory_left;
	int r;

	memory_left = 0;
	fixture_setup();
	strbuf_add(&fixture.trace, filling, sizeof(filling));
	fixture_clear_trace();
	way->prepare();
	memory_left = left;
	r = way->work(err);
	left = memory_left;
	memory_left = 0;
	ck_assert_int_eq(fixture.attempt != NULL, r == 0);
	ck_assert_int_eq(r < 0, err->message[0] != '\0');
	if (r == 0)
		way->check();
	fixture_teardown();
	memory_left = left;
	return r;
}

static void check_report(enum attempt_state state, enum rank_state ranks)
{
	const struct report *report = fixture_report();

	ck_assert_int_eq(report->state, state);
	ck_assert_int_eq(report->run, 7);
	ck_assert_int_eq(report->epoch, 3);
	ck_assert_str_eq(report->node, "n1");
	ck_assert_str_eq(report->cluster, "c1");
	ck_assert_str_eq(report->user, "root");
	ck_assert_str_eq(report->name, "n");
	ck_assert_uint_eq(report->rank_count, 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(report->ranks[i].rank, i);
		ck_assert_int_eq(report->ranks[i].state, ranks);
	}
}

static void prepare_nothing(void)
{
}

static void check_started(void)
{
	check_report(ATTEMPT_STARTING, RANK_STARTING);
	ck_assert_str_eq(fake_unit.program, "/w/dtrain-launch");
	ck_assert_str_eq(fixture.trace.data, "new listen start ");
}

/* As long as the launcher has not been started the request is the caller's; then the attempt is there. */
static int start(struct error *err)
{
	int r = fixture_try_start(err);

	if (r < 0) {
		ck_assert_int_eq(fixture.request->run, 7);
		ck_assert(!strstr(fixture.trace.data, "start"));
	}
	return r;
}

START_TEST(an_attempt_is_started)
{
	memory_fails_in_turn(go, &(struct way){prepare_nothing, start, check_started}, true);
}
END_TEST

/* ---- a later service ---- */

static int adopt(struct error *err)
{
	fake_launcher = (struct launcher){0};
	return attempt_adopt(&fixture.owner, fixture.path, &fixture.attempt, err);
}

static void prepare_running(void)
{
	fixture_start();
	attempt_free(steal_pointer(fixture.attempt));
}

static void check_running(void)
{
	check_report(ATTEMPT_RUNNING, RANK_RUNNING);
	ck_assert_str_eq(fixture.trace.data, "find connect ");
}

START_TEST(an_attempt_is_found_again)
{
	memory_fails_in_turn(go, &(struct way){prepare_running, adopt, check_running}, true);
}
END_TEST

static void prepare_ended(void)
{
	fixture_start();
	fixture_say_state(ATTEMPT_ENDED);
	attempt_free(steal_pointer(fixture.attempt));
	fixture_clear_trace();
}

static void check_ended(void)
{
	check_report(ATTEMPT_ENDED, RANK_EXITED);
	ck_assert(attempt_has_ended(fixture.attempt));
	ck_assert_str_eq(fixture.trace.data, "find connect acknowledge ");
}

START_TEST(an_end_is_found_again)
{
	memory_fails_in_turn(go, &(struct way){prepare_ended, adopt, check_ended}, true);
}
END_TEST

static int lose(struct error *err)
{
	int r = attempt_lost(&fixture.owner, fixture.path, fixture.request, &fixture.attempt, err);

	ck_assert_int_eq(fixture.request->run, 7);
	ck_assert_int_eq(strstr(fixture.trace.data, "kill") != NULL, r == 0);
	if (r == 0)
		fixture.request = NULL;
	return r;
}

static void check_lost(void)
{
	const struct report *report = fixture_report();

	ck_assert_int_eq(report->state, ATTEMPT_STOPPING);
	ck_assert_str_eq(report->user, "root");
	ck_assert_uint_eq(report->rank_count, 0);
}

START_TEST(a_lost_attempt_is_sought)
{
	memory_fails_in_turn(go, &(struct way){prepare_nothing, lose, check_lost}, true);
}
END_TEST

static int add_error(struct error *err)
{
	attempt_add_error(fixture.attempt, "Xid 79");
	return 0;
}

static void check_errors(void)
{
	char *const *list = fixture_report()->device_errors;

	ck_assert(!list || !list[0] || str_eq(list[0], "Xid 79"));
	ck_assert(memory_refused || (list && list[0] && !list[1]));
}

START_TEST(an_error_of_a_device_is_listed)
{
	memory_fails_in_turn(go, &(struct way){fixture_start, add_error, check_errors}, true);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attempt_memory");
	TCase *tc = tcase_create("memory");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, an_attempt_is_started);
	tcase_add_test(tc, an_attempt_is_found_again);
	tcase_add_test(tc, an_end_is_found_again);
	tcase_add_test(tc, a_lost_attempt_is_sought);
	tcase_add_test(tc, an_error_of_a_device_is_listed);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
