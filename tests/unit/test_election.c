/* SPDX-License-Identifier: Apache-2.0 */
/* Elections over a stand-in for etcd, in simulated time: who leads, for how long, and what it tells. */
#include <poll.h>
#include <string.h>

#include "cluster/election.h"
#include "fake_etcd.h"

#define KEY "/dtrain/controller"

enum { LEASE = 6 };

static const double SOON = 0.001;

static bool is_readable(const struct election *e)
{
	struct pollfd p = {election_fd(e), POLLIN, 0};

	return poll(&p, 1, 0) == 1;
}

static struct election_view peek(struct election *e)
{
	struct election_view view;

	election_peek(e, &view);
	return view;
}

/* As soon as it has decided for the first time. */
static struct election *open_election(const char *name)
{
	int before = fake_etcd_pauses();
	struct error err = ERROR_INIT;
	struct election *e;

	ck_ok(election_open(&fake_etcd_place, name, LEASE, &e, &err), &err);
	fake_etcd_await_pause(before + 1);
	return e;
}

static struct election *open_leader(const char *name)
{
	struct election *e = open_election(name);

	ck_assert_int_eq(peek(e).state, ELECTION_LEADING);
	return e;
}

static void await_lost(struct election *e, const char *words)
{
	struct election_view view = peek(e);

	while (view.state != ELECTION_LOST) {
		struct pollfd p = {election_fd(e), POLLIN, 0};

		ck_assert_int_eq(poll(&p, 1, -1), 1);
		election_read(e, &view);
	}
	ck_assert_int_eq(view.error.code, -ESTALE);
	ck_assert_msg(strstr(view.error.message, words), "\"%s\" lacks \"%s\"", view.error.message, words);
	ck_assert(!election_holds(e));
}

START_TEST(the_only_candidate_leads)
{
	struct election_view view;
	struct election *e;

	fake_etcd_begin();
	e = open_election("n1");
	ck_assert(is_readable(e));
	view = peek(e);
	ck_assert(is_readable(e));
	election_read(e, &view);
	ck_assert(!is_readable(e));
	ck_assert_int_eq(view.state, ELECTION_LEADING);
	ck_assert_str_eq(view.leader, "");
	ck_assert_int_eq(view.error.code, 0);
	ck_assert(election_holds(e));
	ck_assert_str_eq(election_key(e), KEY);
	ck_assert_str_eq(fake_etcd_value(KEY), "n1");
	ck_assert(fake_etcd_leased(KEY));
	ck_assert_int_eq(election_revision(e), fake_etcd_made(KEY));
	election_close(e);
	ck_assert_ptr_null(fake_etcd_value(KEY));
	ck_assert_int_eq(fake_etcd_leases(), 0);
}
END_TEST

/* It asks four times a second, so that it follows within a quarter of a second. */
START_TEST(another_candidate_follows_and_then_leads)
{
	struct election_view view;
	struct election *first, *second;

	fake_etcd_begin();
	first = open_leader("n1");
	second = open_election("n2");
	ck_assert(is_readable(second));
	election_read(second, &view);
	ck_assert_int_eq(view.state, ELECTION_FOLLOWING);
	ck_assert_str_eq(view.leader, "n1");
	ck_assert_int_eq(view.error.code, 0);
	ck_assert(!election_holds(second) && !election_is_sure(second));
	ck_assert(election_is_sure(first));
	election_close(first);
	fake_etcd_pass(0.25 - SOON);
	ck_assert_int_eq(fake_etcd_pauses(), 2);
	fake_etcd_step(2 * SOON);
	ck_assert(is_readable(second));
	ck_assert_int_eq(peek(second).state, ELECTION_LEADING);
	ck_assert_str_eq(peek(second).leader, "");
	ck_assert_int_eq(election_revision(second), fake_etcd_made(KEY));
	ck_assert_str_eq(fake_etcd_value(KEY), "n2");
	election_close(second);
	ck_assert_int_eq(fake_etcd_leases(), 0);
}
END_TEST

START_TEST(a_follower_reports_only_what_changes)
{
	struct election_view view;
	struct election *e;

	fake_etcd_begin();
	fake_etcd_put(KEY, "other");
	e = open_election("n2");
	election_read(e, &view);
	fake_etcd_step(1);
	fake_etcd_step(1);
	ck_assert(!is_readable(e));
	fake_etcd_put(KEY, "third");
	fake_etcd_step(1);
	ck_assert(is_readable(e));
	election_read(e, &view);
	ck_assert_str_eq(view.leader, "third");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_RANGE, .count = 2, .code = -EHOSTUNREACH});
	fake_etcd_step(1);
	ck_assert(is_readable(e));
	election_read(e, &view);
	ck_assert_str_eq(view.leader, "");
	ck_assert_int_eq(view.error.code, -EHOSTUNREACH);
	ck_assert_str_eq(view.error.message, "cannot reach etcd");
	fake_etcd_step(1);
	ck_assert(!is_readable(e));
	fake_etcd_step(1);
	ck_assert(is_readable(e));
	election_read(e, &view);
	ck_assert_int_eq(view.error.code, 0);
	ck_assert_str_eq(view.leader, "third");
	ck_assert_int_eq(view.state, ELECTION_FOLLOWING);
	ck_assert_int_eq(fake_etcd_leases(), 0);
	election_close(e);
	ck_assert_str_eq(fake_etcd_value(KEY), "third");
	ck_assert_int_eq(fake_etcd_calls(FAKE_REVOKE), 0);
}
END_TEST

/* A name that no view can hold is cut. */
START_TEST(a_long_name_is_cut)
{
	char name[400];
	struct election *e;

	memset(name, 'a', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	fake_etcd_begin();
	fake_etcd_put(KEY, name);
	e = open_election("n2");
	ck_assert_uint_eq(strlen(peek(e).leader), 255);
	election_close(e);
}
END_TEST

/* Its name in etcd is that of a process that has ended: it does not wait for the lease of that. */
START_TEST(the_key_of_an_earlier_process_is_replaced)
{
	struct election *e;
	int64_t made;

	fake_etcd_begin();
	/* Also where its hosts file spelt it in another way. */
	fake_etcd_put(KEY, _i ? "N1" : "n1");
	made = fake_etcd_made(KEY);
	e = open_leader("n1");
	ck_assert_int_gt(fake_etcd_made(KEY), made);
	ck_assert(fake_etcd_leased(KEY));
	ck_assert_int_eq(election_revision(e), fake_etcd_made(KEY));
	election_close(e);
}
END_TEST

static void take_key(void)
{
	fake_etcd_remove(KEY);
	fake_etcd_put(KEY, "n2");
}

static const struct {
	const char *there; /* the key before; NULL: none */
	struct fake_failure failure;
	int code;         /* of the first view */
	const char *then; /* the leader in both views; NULL: this one leads in the second */
} contests[] = {
    {NULL, {.path = FAKE_GRANT, .count = 1, .code = -EHOSTUNREACH}, -EHOSTUNREACH, NULL},
    {NULL, {.path = FAKE_TXN, .count = 1, .code = -EHOSTUNREACH}, -EHOSTUNREACH, NULL},
    {NULL, {.path = FAKE_TXN, .count = 1, .answer = "{}"}, -EINVAL, NULL},
    {NULL, {.path = FAKE_GRANT, .count = 1, .answer = "{}"}, -EINVAL, NULL},
    {NULL, {.path = FAKE_RANGE, .count = 1, .answer = "[]"}, -EINVAL, NULL},
    /* Its own name is no leader to be told of, also where the key cannot be removed. */
    {"n1", {.path = FAKE_TXN, .count = 1, .code = -EHOSTUNREACH}, -EHOSTUNREACH, NULL},
    {"n1", {.path = FAKE_TXN, .skip = 1, .count = 1, .code = -EHOSTUNREACH}, -EHOSTUNREACH, NULL},
    /* Another one is faster. */
    {NULL, {.path = FAKE_TXN, .count = 1, .before = take_key}, 0, "n2"},
    {"n1", {.path = FAKE_TXN, .count = 1, .before = take_key}, 0, "n2"},
    {"n1", {.path = FAKE_TXN, .skip = 1, .count = 1, .before = take_key}, 0, "n2"},
};

START_TEST(a_campaign_that_fails_leaves_no_lease_and_is_repeated)
{
	struct election *e;

	fake_etcd_begin();
	if (contests[_i].there)
		fake_etcd_put(KEY, contests[_i].there);
	fake_etcd_fail(&contests[_i].failure);
	e = open_election("n1");
	ck_assert_int_eq(peek(e).state, ELECTION_FOLLOWING);
	ck_assert_int_eq(peek(e).error.code, contests[_i].code);
	ck_assert_str_eq(peek(e).leader, contests[_i].then ? contests[_i].then : "");
	ck_assert(!election_holds(e));
	/* A grant whose answer cannot be read leaves one that no one can give back. */
	ck_assert_int_eq(fake_etcd_leases(), contests[_i].failure.path == (const char *)FAKE_GRANT &&
	                                         contests[_i].failure.answer);
	fake_etcd_step(1);
	ck_assert_int_eq(peek(e).state, contests[_i].then ? ELECTION_FOLLOWING : ELECTION_LEADING);
	ck_assert_int_eq(peek(e).error.code, 0);
	ck_assert_str_eq(peek(e).leader, contests[_i].then ? contests[_i].then : "");
	election_close(e);
}
END_TEST

/* It renews the lease after each quarter of it. */
START_TEST(a_leader_renews_its_lease)
{
	struct election *e;

	fake_etcd_begin();
	e = open_leader("n1");
	ck_assert_double_eq_tol(fake_etcd_await_pause(1), LEASE / 4.0, SOON);
	fake_etcd_calls(FAKE_KEEPALIVE);
	for (int i = 1; i <= 5; i++) {
		fake_etcd_step(LEASE / 4.0);
		ck_assert_double_eq_tol(fake_etcd_await_pause(1), LEASE / 4.0, SOON);
		ck_assert_int_eq(fake_etcd_calls(FAKE_KEEPALIVE), 1);
		ck_assert(election_holds(e));
		ck_assert_str_eq(fake_etcd_value(KEY), "n1");
	}
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 9, .code = -EHOSTUNREACH});
	fake_etcd_step(LEASE / 4.0);
	ck_assert_double_eq_tol(fake_etcd_await_pause(1), 0.3, SOON);
	fake_etcd_step(0.3);
	ck_assert_double_eq_tol(fake_etcd_await_pause(1), 0.3, SOON);
	ck_assert_int_eq(fake_etcd_calls(FAKE_KEEPALIVE), 2);
	ck_assert(election_holds(e));
	election_close(e);
}
END_TEST

/* Renewals that fail are repeated, and one that succeeds counts as the first. */
START_TEST(a_leader_outlasts_a_short_outage)
{
	struct election_view view;
	struct election *e;

	fake_etcd_begin();
	e = open_leader("n1");
	election_read(e, &view);
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 2, .code = -EHOSTUNREACH});
	fake_etcd_step(LEASE / 4.0);
	fake_etcd_step(0.3);
	fake_etcd_step(0.3);
	ck_assert_double_eq_tol(fake_etcd_await_pause(1), LEASE / 4.0, SOON);
	ck_assert(!is_readable(e));
	fake_etcd_step(LEASE / 4.0);
	fake_etcd_step(LEASE / 4.0);
	ck_assert(election_holds(e));
	ck_assert_int_eq(peek(e).state, ELECTION_LEADING);
	ck_assert_int_eq(fake_etcd_leases(), 1);
	election_close(e);
}
END_TEST

START_TEST(a_leader_without_etcd_is_lost_with_its_lease)
{
	struct election *e;
	double end;

	fake_etcd_begin();
	end = fake_etcd_time() + LEASE;
	e = open_leader("n1");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 99, .code = -EHOSTUNREACH});
	fake_etcd_step(LEASE / 4.0);
	while (fake_etcd_time() + 0.3 < end) {
		fake_etcd_step(0.3);
		ck_assert(election_holds(e));
		ck_assert_int_eq(election_is_sure(e), fake_etcd_time() < end - LEASE / 2.0);
		ck_assert_int_eq(peek(e).state, ELECTION_LEADING);
	}
	/* It holds nothing from this moment, also before its thread notices. */
	fake_etcd_pass(end - fake_etcd_time());
	ck_assert(!election_holds(e));
	fake_etcd_pass(0.3);
	await_lost(e, "cannot reach etcd");
	election_close(e);
}
END_TEST

START_TEST(a_lease_that_etcd_has_ended_is_lost_at_once)
{
	struct election *e;

	fake_etcd_begin();
	e = open_leader("n1");
	fake_etcd_fail(&(struct fake_failure){
	    .path = FAKE_KEEPALIVE, .count = 1, .answer = "{\"result\":{\"header\":{},\"ID\":\"7\"}}"});
	fake_etcd_pass(LEASE / 4.0);
	await_lost(e, "its lease in etcd has run out");
	/* What is lost is not given back. */
	fake_etcd_calls(FAKE_REVOKE);
	election_close(e);
	ck_assert_int_eq(fake_etcd_calls(FAKE_REVOKE), 0);
}
END_TEST

/* Also while its thread waits for an answer, for which the clock of the lease does not wait. */
static const struct {
	struct fake_failure failure;
	double pass;
	bool holds; /* after that */
} leases[] = {
    {{.path = FAKE_GRANT, .count = 1, .seconds = 1.5}, LEASE - 1.5 - 0.01, true},
    {{.path = FAKE_GRANT, .count = 1, .seconds = 1.5}, LEASE - 1.5, false},
    {{.path = FAKE_TXN, .count = 1, .seconds = 1.5}, LEASE - 1.5 - 0.01, true},
    {{.path = FAKE_TXN, .count = 1, .seconds = 1.5}, LEASE - 1.5, false},
};

START_TEST(a_lease_is_counted_from_before_it_was_asked_for)
{
	struct election *e;

	fake_etcd_begin();
	fake_etcd_fail(&leases[_i].failure);
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 99, .code = -EHOSTUNREACH});
	e = open_leader("n1");
	fake_etcd_pass(leases[_i].pass);
	ck_assert_int_eq(election_holds(e), leases[_i].holds);
	election_close(e);
}
END_TEST

START_TEST(a_renewal_counts_from_before_it_was_asked_for)
{
	double end;
	struct election *e;

	fake_etcd_begin();
	e = open_leader("n1");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 1, .seconds = 1.5});
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 99, .code = -EHOSTUNREACH});
	end = fake_etcd_time() + LEASE / 4.0 + LEASE;
	fake_etcd_step(LEASE / 4.0);
	fake_etcd_pass(end - fake_etcd_time() - 0.01);
	ck_assert(election_holds(e));
	fake_etcd_pass(0.01);
	ck_assert(!election_holds(e));
	election_close(e);
}
END_TEST

/* By whoever finds out, such as the store; once. */
START_TEST(a_leader_can_be_told_that_it_is_lost)
{
	struct election_view view;
	struct election *e;

	fake_etcd_begin();
	e = open_leader("n1");
	election_read(e, &view);
	election_lose(e, "the disk is full");
	ck_assert(is_readable(e));
	await_lost(e, "the disk is full");
	election_lose(e, "another reason");
	ck_assert_str_eq(peek(e).error.message, "the disk is full");
	election_close(e);
	ck_assert_str_eq(fake_etcd_value(KEY), "n1");

	fake_etcd_put(KEY, "other");
	e = open_election("n1");
	election_read(e, &view);
	election_lose(e, "the disk is full");
	ck_assert(!is_readable(e));
	ck_assert_int_eq(peek(e).state, ELECTION_FOLLOWING);
	election_close(e);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("election");
	TCase *tc = tcase_create("election");

	tcase_add_test(tc, the_only_candidate_leads);
	tcase_add_test(tc, another_candidate_follows_and_then_leads);
	tcase_add_test(tc, a_follower_reports_only_what_changes);
	tcase_add_test(tc, a_long_name_is_cut);
	tcase_add_loop_test(tc, the_key_of_an_earlier_process_is_replaced, 0, 2);
	tcase_add_loop_test(tc, a_campaign_that_fails_leaves_no_lease_and_is_repeated, 0,
	                    ARRAY_SIZE(contests));
	tcase_add_test(tc, a_leader_renews_its_lease);
	tcase_add_test(tc, a_leader_outlasts_a_short_outage);
	tcase_add_test(tc, a_leader_without_etcd_is_lost_with_its_lease);
	tcase_add_test(tc, a_lease_that_etcd_has_ended_is_lost_at_once);
	tcase_add_loop_test(tc, a_lease_is_counted_from_before_it_was_asked_for, 0, ARRAY_SIZE(leases));
	tcase_add_test(tc, a_renewal_counts_from_before_it_was_asked_for);
	tcase_add_test(tc, a_leader_can_be_told_that_it_is_lost);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
