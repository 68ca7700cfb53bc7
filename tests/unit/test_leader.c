/* SPDX-License-Identifier: Apache-2.0 */
/* Which node is the controller where one is elected, over a stand-in for etcd: what a service knows of it,
 * whom it asks, and how it becomes the controller and ceases to be it. */
#include <string.h>

#include "base/str.h"
#include "cluster/election.h"
#include "cluster/store.h"
#include "controller/peers.h"
#include "dtraind/daemon.h"
#include "dtraind/leader.h"
#include "failing_memory.h"
#include "fake_etcd.h"
#include "http/identity.h"

#define KEY   "/dtrain/controller"
#define HOSTS "n1 addr=10.0.0.1 port=801\nn2 addr=10.0.0.2\nn3 port=803\nn4\n"

static char *dir;
static struct daemon service;
static struct store *store; /* of the controller */
static int leads, changes, finds, lead_code;
static const int controller_place = 0; /* its address stands for a controller */

static int on_lead(struct daemon *d, struct store *given, struct error *err)
{
	ck_assert_ptr_eq(d, &service);
	ck_assert_ptr_nonnull(given);
	leads++;
	if (lead_code < 0) {
		store_close(given);
		return error_set(err, lead_code, "the timers cannot be made");
	}
	store = given;
	d->controller = (struct controller *)&controller_place;
	return 0;
}

static void on_change(struct daemon *d)
{
	ck_assert_ptr_eq(d, &service);
	changes++;
}

static void on_found(struct daemon *d)
{
	ck_assert_ptr_eq(d, &service);
	finds++;
}

static const struct leader_callbacks callbacks = {on_lead, on_change, on_found};

static void setup(void)
{
	_cleanup_free_ char *key = NULL;
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	key = str_path_join(dir, "cluster.pem");
	ck_ok(identity_make(key, true, &err), &err);
	ck_assert_int_ge(sd_event_new(&service.event), 0);
	fake_etcd_begin();
}

static void end(void)
{
	store_close(steal_pointer(store));
	service.controller = NULL;
	leader_destroy(steal_pointer(service.leader));
}

static void teardown(void)
{
	end();
	settings_free(service.settings);
	sd_event_unref(service.event);
	file_remove_tree(dir, NULL);
	free(dir);
}

static struct settings *read_settings(const char *node, const char *hosts, const char *lines)
{
	_cleanup_free_ char *text =
	                        str_printf("node = \"%s\"; state_dir = \"%s\"; hosts_file = \"%s/hosts\"; "
	                                   "cluster_key = \"%s/cluster.pem\"; port = 700;\n%s",
	                                   node, dir, dir, dir, lines),
	                    *path = str_path_join(dir, "conf"), *hosts_path = str_path_join(dir, "hosts");
	struct error err = ERROR_INIT;
	struct settings *s = NULL;

	ck_ok(file_write_atomic(path, text, strlen(text), 0600, &err), &err);
	ck_ok(file_write_atomic(hosts_path, hosts, strlen(hosts), 0600, &err), &err);
	ck_ok(settings_read(path, &s, &err), &err);
	return s;
}

#define ELECTED "store = \"etcd:http://127.0.0.1:1\"; controllers = [\"n1\", \"n2\", \"n3\"];"

static void begin(const char *node)
{
	struct error err = ERROR_INIT;

	service.settings = read_settings(node, HOSTS, ELECTED);
	ck_ok(leader_create(&service, &callbacks, &service.leader, &err), &err);
	ck_assert_ptr_nonnull(service.leader);
}

/* A candidate, once it has decided for the first time. */
static void begin_candidate(const char *node)
{
	begin(node);
	fake_etcd_await_pause(1);
}

static void run_until(const int *count, int value)
{
	while (*count < value)
		ck_assert_int_ge(sd_event_run(service.event, UINT64_MAX), 0);
}

/* The events that are there. */
static void run_events(void)
{
	while (sd_event_run(service.event, 0) > 0)
		;
}

static void ck_peer(const char *name, const char *address, int port)
{
	struct peer p = leader_peer(&service);

	ck_assert_str_eq(p.name, name);
	ck_assert_str_eq(p.address, address);
	ck_assert_int_eq(p.port, port);
}

/* The controller is known; NULL: it is not. */
static void ck_known(const char *name)
{
	const char *known = leader_known(&service);

	if (!name)
		ck_assert_ptr_null(known);
	else
		ck_assert_str_eq(known, name);
}

START_TEST(without_an_election_the_settings_name_the_controller)
{
	struct error err = ERROR_INIT;

	service.settings = read_settings("n1", HOSTS, "controller = \"n2\";");
	ck_ok(leader_create(&service, &callbacks, &service.leader, &err), &err);
	ck_assert_ptr_null(service.leader);
	ck_peer("n2", "10.0.0.2", 700);
	ck_known("n2");
	ck_assert(leader_holds(&service));
	ck_assert(!leader_is_lost(&service));
	ck_assert(leader_is_candidate(&service, "N2"));
	ck_assert(!leader_is_candidate(&service, "n1"));
	leader_learn(&service, "n1");
	leader_away(&service, "n2");
	ck_known("n2");
	leader_answered(&service, "n2", true);
	leader_unanswered(&service, "n2", 100);
	ck_assert_double_eq(leader_silent_since(&service, "n2"), 0);
}
END_TEST

START_TEST(every_named_candidate_is_one)
{
	static const struct {
		const char *name;
		bool is;
	} names[] = {{"n1", true}, {"N2", true}, {"n3", true}, {"n4", false}, {"n", false}, {"", false}};

	begin("n4");
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ck_assert_int_eq(leader_is_candidate(&service, names[i].name), names[i].is);
}
END_TEST

/* A node that is no candidate asks them, one after the other. */
START_TEST(who_is_no_candidate_is_told_who_leads)
{
	begin("n4");
	ck_known(NULL);
	ck_peer("n1", "10.0.0.1", 801);
	ck_assert(!leader_holds(&service));
	ck_assert(!leader_is_lost(&service));
	/* No candidate, nor a host. */
	leader_learn(&service, "n4");
	leader_learn(&service, "n5");
	ck_known(NULL);
	ck_assert_int_eq(changes, 0);
	leader_learn(&service, "N3");
	ck_known("n3");
	ck_peer("n3", "n3", 803);
	ck_assert_int_eq(changes, 1);
	leader_learn(&service, "n3");
	ck_assert_int_eq(changes, 1);
	leader_learn(&service, "n2");
	ck_known("n2");
	ck_peer("n2", "10.0.0.2", 700);
	ck_assert_int_eq(changes, 2);
	/* Another one has been learned since that one was asked. */
	leader_away(&service, "n3");
	ck_known("n2");
	leader_away(&service, "N2");
	ck_known(NULL);
	ck_peer("n3", "n3", 803);
	leader_learn(&service, "n3");
	ck_known("n3");
	ck_assert_int_eq(changes, 3);
}
END_TEST

/* Also where no other node has named it. */
START_TEST(who_answers_as_the_controller_is_it)
{
	begin("n4");
	leader_answered(&service, "n1", false);
	ck_known(NULL);
	/* Another one is asked since then. */
	leader_answered(&service, "n2", true);
	ck_known(NULL);
	ck_assert_int_eq(finds, 0);
	leader_answered(&service, "N1", true);
	ck_known("n1");
	ck_peer("n1", "10.0.0.1", 801);
	ck_assert_int_eq(finds, 1);
	leader_answered(&service, "n1", true);
	ck_assert_int_eq(finds, 1);
	leader_away(&service, "n1");
	ck_known(NULL);
	leader_answered(&service, "n2", true);
	ck_known("n2");
	ck_assert_int_eq(finds, 2);
	ck_assert_int_eq(changes, 0);
}
END_TEST

static void ck_silent(double n1, double n2, double n3)
{
	ck_assert_double_eq(leader_silent_since(&service, "n1"), n1);
	ck_assert_double_eq(leader_silent_since(&service, "N2"), n2);
	ck_assert_double_eq(leader_silent_since(&service, "n3"), n3);
}

START_TEST(candidates_are_silent_until_one_leads)
{
	begin("n4");
	ck_silent(0, 0, 0);
	leader_unanswered(&service, "n1", 100);
	leader_unanswered(&service, "N3", 103);
	leader_unanswered(&service, "n1", 105);
	leader_unanswered(&service, "n4", 106); /* no candidate */
	ck_silent(100, 0, 103);
	ck_assert_double_eq(leader_silent_since(&service, "n4"), 0);
	leader_answered(&service, "N1", false);
	ck_silent(0, 0, 103);
	leader_unanswered(&service, "n1", 107);
	ck_silent(107, 0, 103);
	/* It is called from now on, and the others are not. */
	leader_answered(&service, "n2", true);
	ck_silent(0, 0, 0);
}
END_TEST

/* In the order of the settings, and never itself. */
static const struct {
	const char *node, *away, *next;
} turns[] = {
    {"n4", "n1", "n2"}, {"n4", "n2", "n3"}, {"n4", "n3", "n1"}, {"n1", "n2", "n3"}, {"n1", "n3", "n2"},
    {"n2", "n1", "n3"}, {"n2", "n3", "n1"}, {"n3", "n1", "n2"}, {"n3", "n2", "n1"},
};

START_TEST(the_candidates_are_asked_in_turn)
{
	fake_etcd_put(KEY, turns[_i].away);
	begin(turns[_i].node);
	leader_learn(&service, turns[_i].away);
	ck_known(turns[_i].away);
	leader_away(&service, turns[_i].away);
	ck_known(NULL);
	ck_assert_str_eq(leader_peer(&service).name, turns[_i].next);
}
END_TEST

/* By a reload of the hosts file. */
START_TEST(a_candidate_that_is_no_host_any_more_is_not_asked)
{
	_cleanup_(settings_freep) struct settings *less = NULL;
	struct hosts *hosts;

	begin("n4");
	leader_learn(&service, "n2");
	less = read_settings("n4", "n1 addr=10.0.0.1\nn4\n", "");
	hosts = service.settings->hosts;
	service.settings->hosts = less->hosts;
	ck_peer("n1", "10.0.0.1", 801);
	leader_away(&service, "n2");
	ck_known(NULL);
	ck_peer("n1", "10.0.0.1", 801);
	/* Nor is it believed to be the controller. */
	leader_learn(&service, "n2");
	ck_known(NULL);
	service.settings->hosts = hosts;
	ck_peer("n2", "10.0.0.2", 700);
}
END_TEST

START_TEST(a_candidate_follows_the_election)
{
	fake_etcd_put(KEY, "n3");
	begin_candidate("n2");
	ck_known(NULL);
	run_until(&changes, 1);
	ck_known("n3");
	ck_peer("n3", "n3", 803);
	ck_assert(!leader_holds(&service));
	ck_assert(!leader_is_lost(&service));
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_RANGE, .count = 1, .code = -EHOSTUNREACH});
	fake_etcd_step(1);
	run_events();
	ck_known(NULL);
	ck_peer("n3", "n3", 803);
	fake_etcd_step(1);
	run_events();
	ck_known("n3");
	ck_assert_int_eq(changes, 2);
	/* Its own name it has not from another node, nor that of one that cannot be it. */
	leader_learn(&service, "n2");
	leader_learn(&service, "n4");
	ck_known("n3");
	ck_assert_int_eq(leads, 0);
}
END_TEST

START_TEST(a_candidate_becomes_the_controller)
{
	begin_candidate("n2");
	ck_assert(leader_holds(&service));
	run_until(&changes, 1);
	ck_assert_int_eq(leads, 1);
	ck_known("n2");
	ck_peer("n2", "10.0.0.2", 700);
	ck_assert(!leader_is_lost(&service));
	ck_assert_int_ge(store_epoch(store), fake_etcd_made(KEY));
	/* What others say is of no interest to it. */
	leader_learn(&service, "n1");
	leader_away(&service, "n2");
	ck_known("n2");
	ck_assert_int_eq(changes, 1);
	fake_etcd_step(5.0 / 3);
	run_events();
	ck_assert_int_eq(leads, 1);
	ck_assert(leader_holds(&service));
	end();
	ck_assert_ptr_null(fake_etcd_value(KEY));
}
END_TEST

/* The service ends. */
START_TEST(a_controller_that_is_lost_says_why)
{
	struct error err = ERROR_INIT;

	begin_candidate("n2");
	run_until(&changes, 1);
	fake_etcd_fail(&(struct fake_failure){
	    .path = FAKE_KEEPALIVE, .count = 1, .answer = "{\"result\":{\"header\":{},\"ID\":\"7\"}}"});
	ck_assert(!leader_is_lost(&service));
	fake_etcd_pass(5.0 / 3);
	/* At once, whatever the event loop does before it notices. */
	while (!leader_is_lost(&service))
		fake_etcd_pass(0);
	ck_assert(!leader_holds(&service));
	ck_assert_int_eq(sd_event_loop(service.event), -ESTALE);
	ck_assert(leader_is_lost(&service));
	ck_assert_int_eq(leader_error(&service, &err), -ESTALE);
	ck_assert_str_eq(err.message,
	                 "this node is not the controller any more: its lease in etcd has run out; "
	                 "the service begins anew");
}
END_TEST

/* Reads: cluster, runs, origins, highest, drains, epochs; transactions: cluster, epoch. */
static const struct {
	struct fake_failure failure;
	int lead_code, leads;
	const char *why;
} failures[] = {
    {{.path = FAKE_RANGE, .skip = 1, .count = 1, .code = -EREMOTEIO}, 0, 1, NULL},
    {{.path = FAKE_RANGE, .count = 1, .code = -EHOSTUNREACH}, 0, 0, "cannot reach etcd"},
    {{.path = FAKE_TXN, .count = 1, .code = -EREMOTEIO}, 0, 0, "cannot reach etcd"},
    {{.path = FAKE_TXN, .skip = 1, .count = 1, .code = -EREMOTEIO}, 0, 0, "cannot reach etcd"},
    {{.path = FAKE_TXN}, -EIO, 1, "the timers cannot be made"},
};

START_TEST(who_cannot_begin_as_the_controller_ends)
{
	struct error err = ERROR_INIT;

	begin_candidate("n2");
	fake_etcd_fail(&failures[_i].failure);
	lead_code = failures[_i].lead_code;
	if (!failures[_i].why) {
		run_until(&changes, 1);
		return;
	}
	ck_assert_int_eq(sd_event_loop(service.event), -ESTALE);
	ck_assert_int_eq(leads, failures[_i].leads);
	ck_assert_int_eq(changes, 0);
	ck_assert(leader_is_lost(&service));
	ck_assert_int_eq(leader_error(&service, &err), -ESTALE);
	ck_assert_msg(strstr(err.message, failures[_i].why), "\"%s\" lacks \"%s\"", err.message,
	              failures[_i].why);
}
END_TEST

/* Before it is the controller: what it has opened is closed with it, and the key is given back. */
START_TEST(a_service_may_end_while_it_becomes_the_controller)
{
	begin_candidate("n2");
	ck_assert_int_gt(sd_event_run(service.event, UINT64_MAX), 0);
	end();
	ck_assert_int_eq(leads, 0);
	ck_assert_ptr_null(fake_etcd_value(KEY));
}
END_TEST

static int create_and_destroy(void *context, struct error *err)
{
	struct leader *l = NULL;
	int r = leader_create(&service, &callbacks, &l, err);

	ck_assert_int_eq(l != NULL, r == 0);
	leader_destroy(l);
	return r;
}

START_TEST(memory_may_run_out)
{
	service.settings = read_settings("n4", HOSTS, ELECTED);
	memory_runs_out(create_and_destroy, NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("leader");
	TCase *tc = tcase_create("leader");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, without_an_election_the_settings_name_the_controller);
	tcase_add_test(tc, every_named_candidate_is_one);
	tcase_add_test(tc, who_is_no_candidate_is_told_who_leads);
	tcase_add_test(tc, who_answers_as_the_controller_is_it);
	tcase_add_test(tc, candidates_are_silent_until_one_leads);
	tcase_add_loop_test(tc, the_candidates_are_asked_in_turn, 0, ARRAY_SIZE(turns));
	tcase_add_test(tc, a_candidate_that_is_no_host_any_more_is_not_asked);
	tcase_add_test(tc, a_candidate_follows_the_election);
	tcase_add_test(tc, a_candidate_becomes_the_controller);
	tcase_add_test(tc, a_controller_that_is_lost_says_why);
	tcase_add_loop_test(tc, who_cannot_begin_as_the_controller_ends, 0, ARRAY_SIZE(failures));
	tcase_add_test(tc, a_service_may_end_while_it_becomes_the_controller);
	tcase_add_test(tc, memory_may_run_out);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
