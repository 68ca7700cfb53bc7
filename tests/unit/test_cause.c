/* SPDX-License-Identifier: Apache-2.0 */
/* The first cause of a failure, in whatever order the reports of all ends arrive. */
#include <signal.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/cause.h"
#include "cluster_fixture.h"

START_TEST(what_an_end_means)
{
	ck_assert_int_eq(cause_of_rank(137, SIGKILL, false, false), CAUSE_SIGNAL);
	ck_assert_int_eq(cause_of_rank(137, SIGKILL, false, true), CAUSE_SIGNAL);
	ck_assert_int_eq(cause_of_rank(139, SIGSEGV, false, false), CAUSE_SIGNAL);
	ck_assert_int_eq(cause_of_rank(137, 0, false, false), CAUSE_SIGNAL); /* as a shell passes it on */
	ck_assert_int_eq(cause_of_rank(134, SIGABRT, false, false), CAUSE_EXIT);
	ck_assert_int_eq(cause_of_rank(1, 0, false, false), CAUSE_EXIT);
	ck_assert_int_eq(cause_of_rank(255, 0, false, false), CAUSE_EXIT);
	ck_assert_int_eq(cause_of_rank(1, 0, false, true), CAUSE_PEER);
	ck_assert_int_eq(cause_of_rank(141, SIGPIPE, false, false), CAUSE_PEER);
	ck_assert_int_eq(cause_of_rank(143, SIGTERM, true, true), CAUSE_STOPPED);
}
END_TEST

static const struct {
	struct cause list[4];
	size_t count;
	int want;
} choices[] = {
    {{{CAUSE_EXIT, 0, 0}}, 0, -1},
    {{{CAUSE_EXIT, 10, 0}}, 1, 0},
    /* Among equals the earliest. */
    {{{CAUSE_EXIT, 10.2, 0}, {CAUSE_EXIT, 10.1, 0}, {CAUSE_EXIT, 10.3, 0}}, 3, 1},
    /* Its peers ended before the killed one was reaped. */
    {{{CAUSE_EXIT, 10.0, 0}, {CAUSE_PEER, 10.1, 0}, {CAUSE_SIGNAL, 11.5, 0}}, 3, 2},
    {{{CAUSE_PEER, 10.0, 0}, {CAUSE_EXIT, 10.4, 0}}, 2, 1},
    {{{CAUSE_PEER, 10.0, 0}, {CAUSE_SIGNAL, 10.2, 0}, {CAUSE_NODE, 10.4, 0}}, 3, 2},
    /* What came long after is a consequence; how long depends on the clocks. */
    {{{CAUSE_EXIT, 10, 0}, {CAUSE_SIGNAL, 15, 0}}, 2, 1},
    {{{CAUSE_EXIT, 10, 0}, {CAUSE_SIGNAL, 15.125, 0}}, 2, 0},
    {{{CAUSE_EXIT, 10, 0}, {CAUSE_SIGNAL, 16, 0}}, 2, 0},
    {{{CAUSE_EXIT, 10, 0.5}, {CAUSE_SIGNAL, 16, 0.6}}, 2, 1},
    /* But a consequence itself is never the first cause where there is another. */
    {{{CAUSE_PEER, 10, 0}, {CAUSE_STOPPED, 11, 0}, {CAUSE_EXIT, 24, 0}, {CAUSE_NODE, 23, 0}}, 4, 3},
    {{{CAUSE_PEER, 10, 0}, {CAUSE_EXIT, 11, 0}, {CAUSE_NODE, 23, 0}}, 3, 1},
};

START_TEST(the_first_cause)
{
	ck_assert_int_eq(cause_choose(choices[_i].list, choices[_i].count), choices[_i].want);
}
END_TEST

static struct run *two_nodes(void)
{
	struct run *r = fixture_run(2, 2);

	fixture_place(r);
	return r;
}

static unsigned report(struct run *r, const char *node, const char *state, const char *more,
                       const char *ranks)
{
	return fixture_report_with(r, node, state, ranks, more);
}

#define EXITED(rank, status, ended, more)                                                                    \
	"{\"rank\":" #rank ",\"state\":\"exited\",\"exit_status\":" #status ",\"ended\":" #ended more "}"
#define KILLED(rank, ended)                                                                                  \
	"{\"rank\":" #rank                                                                                   \
	",\"state\":\"exited\",\"exit_status\":137,\"signal\":\"SIGKILL\",\"ended\":" #ended                 \
	",\"stopped\":false,\"error\":\"private\"}"
#define STOPPED ",\"stopped\":true"

/* The survivors on the controller's own node are heard first. */
START_TEST(the_killed_rank_is_named_whoever_is_heard_first)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "running", "", "");
	report(r, "n2", "running", "", "");
	ck_assert_uint_eq(report(r, "n1", "running", "", EXITED(0, 1, 50.01, "")), RUN_STOP);
	ck_assert_ptr_null(strstr(r->reason, "rank"));
	ck_assert_uint_eq(report(r, "n1", "ended", "", EXITED(0, 1, 50.01, "") "," EXITED(1, 1, 50.02, "")),
	                  0);
	/* Its clock is 1000 s ahead. */
	ck_assert_uint_eq(report(r, "n2", "ended", "\"clock_offset\":-1000,\"clock_error\":0.001,",
	                         EXITED(2, 143, 1050.5, STOPPED) "," KILLED(3, 1050.0)),
	                  RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "rank 3 on n2: killed by SIGKILL");
	ck_assert_str_eq(r->detail, "private");
	ck_assert_int_eq(r->exit_status, 137);
}
END_TEST

START_TEST(who_lost_a_peer_is_not_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	run_worker_error(r, 0, "rank 2 is gone", true);
	run_worker_error(r, 2, "no such column: text", false);
	report(r, "n1", "ended", "", EXITED(0, 1, 50.0, "") "," EXITED(1, 143, 50.2, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 1, 50.1, "") "," EXITED(3, 143, 50.2, STOPPED));
	ck_assert_str_eq(r->reason, "rank 2 on n2: exit status 1");
	ck_assert_str_eq(r->detail, "no such column: text");
}
END_TEST

/* The events of the workers were lost, as while no node was the controller. */
START_TEST(who_lost_a_peer_says_so_in_its_report)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "ended", "",
	       EXITED(0, 1, 50.0, ",\"lost_peer\":true,\"error\":\"rank 2 is gone\"") "," EXITED(1, 143, 50.2,
	                                                                                         STOPPED));
	report(r, "n2", "ended", "",
	       EXITED(2, 1, 50.1, ",\"error\":\"no such column: text\"") "," EXITED(3, 143, 50.2, STOPPED));
	ck_assert_str_eq(r->reason, "rank 2 on n2: exit status 1");
	ck_assert_str_eq(r->detail, "no such column: text");
}
END_TEST

/* The disk was full; the rest of its work was still to be ended when the others had noticed. */
START_TEST(who_reports_an_error_and_is_stopped_with_it_is_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	run_worker_error(r, 2, "No space left on device", false);
	run_worker_error(r, 0, "rank 2 has stopped", true);
	report(r, "n1", "ended", "", EXITED(0, 1, 50.0, "") "," EXITED(1, 143, 50.2, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 1, 50.9, STOPPED) "," EXITED(3, 143, 50.2, STOPPED));
	ck_assert_str_eq(r->reason, "rank 2 on n2: exit status 1");
	ck_assert_str_eq(r->detail, "No space left on device");
}
END_TEST

START_TEST(a_node_that_shuts_down_is_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	ck_assert_uint_eq(report(r, "n1", "running", "", EXITED(0, 1, 199.0, "")), RUN_STOP);
	report(r, "n2", "stopping", "\"shutdown\":\"node n2 was shut down\",", "");
	report(r, "n1", "ended", "", EXITED(0, 1, 199.0, "") "," EXITED(1, 1, 199.1, ""));
	ck_assert_uint_eq(report(r, "n2", "ended", "\"shutdown\":\"node n2 was shut down\",",
	                         EXITED(2, 143, 199.0, STOPPED) "," EXITED(3, 143, 199.0, STOPPED)),
	                  RUN_ENDED);
	ck_assert_str_eq(r->reason, "node n2 was shut down");
}
END_TEST

/* Its peers noticed before the controller gave it up. */
START_TEST(a_node_that_is_gone_is_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "ended", "", EXITED(0, 1, 100.5, "") "," EXITED(1, 1, 100.6, ""));
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 100, 105), RUN_ENDED);
	ck_assert_str_eq(r->reason, "node n2 is down");
}
END_TEST

/* The node was the controller: the next one has waited for it, and the ranks of the others ended long before.
 */
START_TEST(a_node_whose_loss_is_noticed_late_is_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "ended", "",
	       EXITED(0, 1, 100.5, ",\"lost_peer\":true") "," EXITED(1, 1, 100.6, ",\"lost_peer\":true"));
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 0, 113), RUN_ENDED);
	ck_assert_str_eq(r->reason, "node n2 is down");

	run_free(r);
	r = two_nodes();
	report(r, "n1", "ended", "", EXITED(0, 1, 100.5, ",\"lost_peer\":true") "," EXITED(1, 3, 100.6, ""));
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 0, 113), RUN_ENDED);
	ck_assert_str_eq(r->reason, "rank 1 on n1: exit status 3");
}
END_TEST

/* The controller was cut off with its node, and both were back before the next controller had missed the
 * node. A rank that had ended well before that is no matter of the network, nor are ranks of one node. */
START_TEST(ranks_that_lost_each_other_blame_the_network)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "ended", "",
	       EXITED(0, 1, 100.5, ",\"lost_peer\":true,\"error\":\"rank 2 died\"") "," EXITED(1, 143, 100.6,
	                                                                                       STOPPED));
	ck_assert_uint_eq(
	    report(r, "n2", "ended", "",
	           EXITED(2, 1, 100.7, ",\"lost_peer\":true") "," EXITED(3, 143, 100.8, STOPPED)),
	    RUN_ENDED);
	ck_assert_str_eq(r->reason, "the network between the nodes was interrupted, and ranks lost each "
	                            "other: rank 0 on n1: exit status 1");
	ck_assert_str_eq(r->detail, "rank 2 died");
	ck_assert_int_eq(r->exit_status, 1);
	ck_assert_int_eq(r->state, RUN_FAILED);

	run_free(r);
	r = two_nodes();
	r->retries.max_node_failures = 1;
	report(r, "n1", "ended", "",
	       EXITED(0, 1, 100.5, ",\"lost_peer\":true") "," EXITED(1, 143, 100.6, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 143, 100.7, STOPPED) "," EXITED(3, 143, 100.8, STOPPED));
	ck_assert_int_eq(r->state, RUN_QUEUED);

	run_free(r);
	r = two_nodes();
	report(r, "n1", "ended", "",
	       EXITED(0, 1, 100.5, ",\"lost_peer\":true") "," EXITED(1, 143, 100.6, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 0, 100.4, "") "," EXITED(3, 143, 100.8, STOPPED));
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 1");

	run_free(r);
	r = fixture_run(1, 2);
	fixture_place(r);
	report(r, "n1", "ended", "",
	       EXITED(0, 1, 100.5, ",\"lost_peer\":true") "," EXITED(1, 143, 100.6, STOPPED));
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 1");
}
END_TEST

START_TEST(what_failed_long_before_stays_the_cause)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "ended", "", EXITED(0, 3, 50, "") "," EXITED(1, 143, 51, STOPPED));
	run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 100, 105);
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 3");
	ck_assert_int_eq(r->exit_status, 3);
}
END_TEST

/* Of several things that are said of one part, rank or device, the first stands. */
START_TEST(the_first_word_of_each_counts)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "running", "\"shutdown\":\"node n1 was shut down\",", "");
	report(r, "n1", "ended", "\"reason\":\"the launcher was killed\",", "");
	report(r, "n2", "ended", "", "");
	ck_assert_str_eq(r->reason, "node n1 was shut down");

	run_free(r);
	r = two_nodes();
	run_worker_error(r, 2, "no such column: text", false);
	run_worker_error(r, 2, "rank 0 is gone", true);
	run_worker_error(r, 0, "rank 2 is gone", true);
	report(r, "n1", "ended", "", EXITED(0, 1, 50.0, "") "," EXITED(1, 143, 50.2, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 1, 50.1, "") "," EXITED(3, 143, 50.2, STOPPED));
	ck_assert_str_eq(r->reason, "rank 2 on n2: exit status 1");
	ck_assert_str_eq(r->detail, "no such column: text");

	run_free(r);
	r = two_nodes();
	report(r, "n2", "running", "\"device_errors\":[\"GPU 3 of n2: Xid 79: fell off the bus\"],", "");
	report(r, "n2", "ended", "\"device_errors\":[\"GPU 2 of n2: Xid 45: stopped\"],",
	       EXITED(2, 1, 50.1, "") "," EXITED(3, 143, 50.2, STOPPED));
	report(r, "n1", "ended", "", "");
	ck_assert_str_eq(r->reason, "GPU 3 of n2: Xid 79: fell off the bus; rank 2 on n2: exit status 1");
}
END_TEST

/* A node reports its ends again with each heartbeat, and its clock is known otherwise by then. */
/* The store writes a run that is marked. */
START_TEST(what_ranks_say_is_stored)
{
	_cleanup_(run_freep) struct run *r = two_nodes();
	struct rank_report said = {.rank = 1, .error = (char *)"no such column: text"};
	struct rank_report lost = {.rank = 1, .lost_peer = true};

	for (int i = 0; i < 4; i++) {
		bool news = i != 1;

		if (i == 2)
			said.error = (char *)"no such file";
		r->dirty = false;
		run_rank_error(r, i == 3 ? &lost : &said);
		ck_assert_int_eq(r->dirty, news);
	}
	r->dirty = false;
	run_rank_error(r, &lost);
	ck_assert(!r->dirty);
	run_worker_error(r, 1, "no such column: text", false);
	ck_assert(r->dirty);
	r->dirty = false;
	run_worker_error(r, 1, "another", false);
	run_worker_error(r, 4, "of no rank", false);
	ck_assert(!r->dirty);
}
END_TEST

START_TEST(an_end_keeps_the_time_of_its_first_report)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "running", "", EXITED(0, 3, 50.0, ""));
	report(r, "n2", "running", "", EXITED(2, 4, 50.5, ""));
	report(r, "n1", "ended", "\"clock_offset\":1.0,", EXITED(0, 3, 50.0, "") "," EXITED(1, 1, 50.3, ""));
	report(r, "n2", "ended", "", EXITED(2, 4, 50.5, "") "," EXITED(3, 1, 50.6, ""));
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 3");
}
END_TEST

/* A stop by another controller, or by SIGTERM to dtrain-launch: no rank fails by itself, but the run has not
 * succeeded. */
START_TEST(a_stop_by_another_is_a_failure)
{
	_cleanup_(run_freep) struct run *r = two_nodes();

	report(r, "n1", "running", "", "");
	report(r, "n2", "running", "", "");
	ck_assert_uint_eq(report(r, "n1", "stopping", "", EXITED(1, 143, 50, STOPPED)), RUN_STOP);
	report(r, "n1", "ended", "", EXITED(0, 143, 51, STOPPED) "," EXITED(1, 143, 50, STOPPED));
	report(r, "n2", "ended", "", EXITED(2, 143, 52, STOPPED) "," EXITED(3, 143, 53, STOPPED));
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "rank 1 on n1: exit status 143");
}
END_TEST

/* The lines of a log and what a worker says are for the owner. */
START_TEST(words_are_private)
{
	_cleanup_(run_freep) struct run *r = two_nodes();
	_cleanup_json_ json_t *open = NULL, *own = NULL;
	_cleanup_free_ char *text = NULL;

	report(r, "n1", "ended", "", KILLED(0, 50) "," EXITED(1, 143, 51, STOPPED));
	run_refused(r, run_part_find(r, "n2"), REFUSED_FINAL, "private: no such directory", 50);
	open = run_to_json(r, false);
	own = run_to_json(r, true);
	text = json_to_string(open);
	ck_assert_ptr_null(strstr(text, "private"));
	ck_assert_str_eq(json_get_string(own, "detail", ""), "private");
}
END_TEST

enum { MANY = 400, TEXT = 1000, TEXTS_MAX = 128 * 1024 };

/* So many ranks on one node. */
static struct run *many_ranks(void)
{
	static char *const names[] = {(char *)"n1"};
	struct run *r = fixture_run(1, MANY);
	struct error err = ERROR_INIT;
	int slots[MANY];

	for (int i = 0; i < MANY; i++)
		slots[i] = i;
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	return r;
}

static size_t texts_of(const struct run *r)
{
	size_t bytes = 0;

	for (size_t i = 0; i < r->rank_error_count; i++)
		bytes += (r->rank_errors[i].worker ? strlen(r->rank_errors[i].worker) : 0) +
		         (r->rank_errors[i].log ? strlen(r->rank_errors[i].log) : 0);
	return bytes;
}

/* The last lines of its log, which begin with its number. */
static void one_fails(struct run *r, int rank, double ended, const char *state)
{
	_cleanup_free_ char *text = str_printf("rank %03d %0*d", rank, TEXT - 9, 0), *json = NULL;

	json =
	    str_printf("{\"rank\":%d,\"state\":\"exited\",\"exit_status\":1,\"ended\":%.3f,\"error\":\"%s\"}",
	               rank, ended, text);
	fixture_report(r, "n1", state, json);
}

/* Whatever the order is in which they come, those are kept that failed first. */
START_TEST(what_many_ranks_say_is_bounded)
{
	_cleanup_(run_freep) struct run *r = many_ranks(), *again = many_ranks();
	_cleanup_json_ json_t *record = NULL;
	struct error err = ERROR_INIT;
	double step = _i ? -0.001 : 0.001;
	int first = _i ? MANY - 1 : 0, last = MANY - 1 - first;

	for (int i = 0; i < MANY; i++)
		one_fails(r, i, 10 + i * step, "running");
	ck_assert_uint_eq(r->rank_error_count, MANY);
	ck_assert_uint_le(texts_of(r), TEXTS_MAX);
	ck_assert_uint_gt(texts_of(r), TEXTS_MAX - TEXT);
	ck_assert(str_starts(run_find_rank_error(r, first)->log, "rank "));
	ck_assert_str_eq(run_find_rank_error(r, last)->log, "");
	/* What was dropped is said again and again, and is no news. */
	r->dirty = false;
	for (int i = 0; i < MANY; i++)
		one_fails(r, i, 10 + i * step, "running");
	ck_assert(!r->dirty);
	/* The next controller goes on with the same. */
	ck_assert_int_eq(run_under_way(r, &record), 0);
	run_clear_parts(again);
	ck_ok(run_set_under_way(again, record, &err), &err);
	run_worker_error(again, last, "no such column: text", false);
	ck_assert_uint_le(texts_of(again), TEXTS_MAX);
	one_fails(r, last, 10 + last * step, "ended");
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(atoi(r->reason + strlen("rank ")), first);
	ck_assert_int_eq(atoi(r->detail + strlen("rank ")), first);
}
END_TEST

/* What says that another rank has gone goes before what may be the cause. */
START_TEST(who_lost_a_peer_says_less)
{
	_cleanup_(run_freep) struct run *r = many_ranks();
	_cleanup_free_ char *text = str_printf("%0*d", 4000, 0);
	_cleanup_json_ json_t *record = NULL;
	struct error err = ERROR_INIT;

	for (int i = 0; i < MANY; i++) {
		run_worker_error(r, i, i == 200 ? "no such column: text" : text, i != 200);
		ck_assert_uint_le(texts_of(r), TEXTS_MAX);
	}
	ck_assert_str_eq(run_find_rank_error(r, 200)->worker, "no such column: text");
	ck_assert_str_eq(run_find_rank_error(r, 0)->worker, text);
	ck_assert_str_eq(run_find_rank_error(r, 399)->worker, "");
	ck_assert(run_find_rank_error(r, 399)->lost_peer);
	/* Before both goes what is of ranks that the run does not have, as an older store may have it: the
	 * first one at first. */
	ck_assert_int_eq(run_under_way(r, &record), 0);
	r->rank_count = 31;
	run_clear_parts(r);
	ck_ok(run_set_under_way(r, record, &err), &err);
	run_rank_error(r, &(struct rank_report){.rank = 0, .error = text});
	ck_assert_str_eq(run_find_rank_error(r, 31)->worker, "");
	ck_assert_str_eq(run_find_rank_error(r, 200)->worker, "no such column: text");
	run_rank_error(r, &(struct rank_report){.rank = 1, .error = text});
	ck_assert_str_eq(run_find_rank_error(r, 200)->worker, "");
	r->rank_count = MANY;
}
END_TEST

START_TEST(the_log_is_the_detail_where_the_error_was_dropped)
{
	_cleanup_(run_freep) struct run *r = many_ranks();
	_cleanup_free_ char *text = str_printf("%0*d", 4000, 0);
	int last = MANY - 1;

	for (int i = 0; i < MANY; i++)
		run_worker_error(r, i, text, true);
	ck_assert_str_eq(run_find_rank_error(r, last)->worker, "");
	one_fails(r, last, 10, "ended");
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_ptr_nonnull(r->detail);
	ck_assert(str_starts(r->detail, "rank 399 "));
}
END_TEST

/* What is known of each rank, kept in the plainest way: what is to be dropped is searched for among all. */
struct plain {
	char *worker[MANY], *log[MANY]; /* NULL: not said */
	bool lost_peer[MANY];
	int64_t said[MANY]; /* the ranks of which there is a text, in the order in which they came */
	size_t count, bytes;
};

static const struct {
	const char *name;
	int number;
} signals[] = {{NULL, 0}, {NULL, 0}, {"SIGKILL", SIGKILL}, {"ABRT", SIGABRT}, {"SIGPIPE", SIGPIPE}};

static size_t length(const char *text)
{
	return text ? strlen(text) : 0;
}

static size_t plain_bytes(const struct plain *p, int64_t rank)
{
	return length(p->worker[rank]) + length(p->log[rank]);
}

static enum cause_class plain_class(const struct plain *p, const struct run_rank *rank)
{
	bool failed = !rank->signal && p->worker[rank->rank] && !p->lost_peer[rank->rank];
	int number = 0;

	for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
		if (rank->signal && str_eq(rank->signal, signals[i].name))
			number = signals[i].number;
	return cause_of_rank(rank->exit_status > 0 ? (int)rank->exit_status : 0, number,
	                     rank->stopped && !failed, p->lost_peer[rank->rank]);
}

static void plain_limit(struct plain *p, const struct run *r, int64_t rank, size_t before)
{
	p->bytes += plain_bytes(p, rank) - before;
	if (before == 0 && plain_bytes(p, rank) > 0)
		p->said[p->count++] = rank;
	while (p->bytes > TEXTS_MAX && p->count > 0) {
		size_t last = 0;
		int64_t dropped;

		for (size_t i = 1; i < p->count; i++) {
			const struct run_rank *a = &r->ranks[p->said[i]], *b = &r->ranks[p->said[last]];
			enum cause_class own = plain_class(p, a), other = plain_class(p, b);

			if (own > other || (own == other && a->ended >= b->ended))
				last = i;
		}
		dropped = p->said[last];
		p->bytes -= plain_bytes(p, dropped);
		if (p->worker[dropped])
			p->worker[dropped][0] = '\0';
		if (p->log[dropped])
			p->log[dropped][0] = '\0';
		p->count--;
		memmove(p->said + last, p->said + last + 1, (p->count - last) * sizeof(*p->said));
	}
}

static void plain_worker_error(struct plain *p, const struct run *r, int64_t rank, const char *text,
                               bool lost)
{
	size_t before = plain_bytes(p, rank);

	if (p->worker[rank])
		return;
	p->worker[rank] = strdup(text);
	p->lost_peer[rank] = lost;
	plain_limit(p, r, rank, before);
}

static void plain_report(struct plain *p, const struct run *r, const struct rank_report *report)
{
	int64_t rank = report->rank;
	size_t before = plain_bytes(p, rank);

	p->lost_peer[rank] = p->lost_peer[rank] || report->lost_peer;
	if (!report->error || str_eq(p->log[rank], report->error) || str_eq(p->log[rank], ""))
		return;
	ck_assert_int_eq(str_replace(&p->log[rank], report->error), 0);
	plain_limit(p, r, rank, before);
}

/* The next controller has the texts in the order of the ranks of which something is known. */
static void plain_reload(struct plain *p, const struct run *r)
{
	p->count = 0;
	for (size_t i = 0; i < r->rank_error_count; i++)
		if (plain_bytes(p, r->rank_errors[i].rank) > 0)
			p->said[p->count++] = r->rank_errors[i].rank;
}

static void check_texts(const struct plain *p, const struct run *r)
{
	for (int64_t rank = 0; rank < MANY; rank++) {
		const struct rank_error *known = run_find_rank_error(r, rank);

		ck_assert_pstr_eq(known ? known->worker : NULL, p->worker[rank]);
		ck_assert_pstr_eq(known ? known->log : NULL, p->log[rank]);
		ck_assert_int_eq(known && known->lost_peer, p->lost_peer[rank]);
	}
}

static void report_one(struct run *r, struct rank_report *rank)
{
	const struct report report = {.run = 1,
	                              .attempt = 1,
	                              .node = (char *)"n1",
	                              .state = ATTEMPT_RUNNING,
	                              .ranks = rank,
	                              .rank_count = 1};

	run_report(r, &report, 200);
}

static void reload(struct run *r)
{
	_cleanup_json_ json_t *record = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(run_under_way(r, &record), 0);
	run_clear_parts(r);
	run_clear_lost(r);
	ck_ok(run_set_under_way(r, record, &err), &err);
	ck_ok(run_recover(r, 200, &err), &err);
}

/* Whatever ranks say and however they end, in any order, the same texts are kept as by the plainest way. */
START_TEST(the_same_texts_are_kept_as_by_the_plainest_way)
{
	_cleanup_(run_freep) struct run *r = many_ranks();
	struct plain *p = calloc(1, sizeof(*p));
	unsigned seed = (unsigned)_i;
	size_t dropped = 0;

	for (int step = 0; step < 3000; step++) {
		int64_t rank = rand_r(&seed) % MANY;
		_cleanup_free_ char *text = str_printf("%0*d", 1 + rand_r(&seed) % 2000, step);
		bool lost = rand_r(&seed) % 3 == 0;
		size_t signal = rand_r(&seed) % ARRAY_SIZE(signals);
		struct rank_report report = {.rank = rank,
		                             .state = RANK_EXITED,
		                             .exit_status = rand_r(&seed) % 3,
		                             .signal = (char *)signals[signal].name,
		                             .ended = rand_r(&seed) % 4 ? 100 + rand_r(&seed) % 20 : 0,
		                             .stopped = rand_r(&seed) % 3 == 0,
		                             .lost_peer = lost,
		                             .error = rand_r(&seed) % 3 ? text : NULL};

		switch (rand_r(&seed) % 200 ? rand_r(&seed) % 3 : 3) {
		case 0:
			run_worker_error(r, rank, text, lost);
			plain_worker_error(p, r, rank, text, lost);
			break;
		case 3:
			reload(r);
			plain_reload(p, r);
			break;
		default:
			report_one(r, &report);
			plain_report(p, r, &report);
		}
		ck_assert_uint_eq(texts_of(r), p->bytes);
		check_texts(p, r);
	}
	for (int i = 0; i < MANY; i++) {
		dropped += str_eq(p->worker[i], "") || str_eq(p->log[i], "");
		free(p->worker[i]);
		free(p->log[i]);
	}
	ck_assert_uint_gt(dropped, MANY / 2);
	free(p);
}
END_TEST

#ifdef __SANITIZE_ADDRESS__
enum { MANY_NODES = 1024 };
#else
enum { MANY_NODES = 8192 };
#endif
/* Six times as much as is kept, where each of the ranks says so much. */
enum { RANKS_OF_NODE = 8, SHORT_TEXT = 6 * TEXTS_MAX / (MANY_NODES * RANKS_OF_NODE) };

/* All ranks of a run on so many nodes fail at the same time, or are killed with short last lines, of which
 * many are kept. If nodes, errors or texts were searched one after the other, this would take half a minute
 * or more, and the test would end with an error. */
START_TEST(all_ranks_of_thousands_of_nodes_fail)
{
	_cleanup_(run_freep) struct run *r = fixture_run(MANY_NODES, RANKS_OF_NODE),
	                                *again = fixture_run(MANY_NODES, RANKS_OF_NODE);
	_cleanup_free_ char *text = str_printf("%0*d", _i ? SHORT_TEXT : 199, 0);
	char **names = calloc(MANY_NODES + 1, sizeof(*names));
	_cleanup_free_ int *slots = calloc(MANY_NODES * RANKS_OF_NODE, sizeof(*slots));
	struct rank_report ranks[RANKS_OF_NODE] = {0};
	_cleanup_json_ json_t *record = NULL;
	int64_t last = MANY_NODES * RANKS_OF_NODE - 1;
	struct error err = ERROR_INIT;

	ck_assert(names && slots);
	for (int i = 0; i < MANY_NODES; i++)
		names[i] = str_printf("node%04d", i);
	for (int i = 0; i <= last; i++)
		slots[i] = i % RANKS_OF_NODE;
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	ck_ok(run_place(again, names, slots, 100, &err), &err);
	for (int i = MANY_NODES - 1; i >= 0; i--) {
		struct report report = {.run = 1,
		                        .attempt = 1,
		                        .node = names[i],
		                        .state = ATTEMPT_ENDED,
		                        .ranks = ranks,
		                        .rank_count = RANKS_OF_NODE};

		for (int k = 0; k < RANKS_OF_NODE; k++)
			ranks[k] = (struct rank_report){.rank = i * RANKS_OF_NODE + k,
			                                .state = RANK_EXITED,
			                                .exit_status = 3,
			                                .signal = (char *)(_i ? "SIGSYS" : NULL),
			                                .ended = 150 + i * 1e-4,
			                                .error = text};
		if (i == 0) {
			ck_assert_int_eq(run_under_way(r, &record), 0);
			run_clear_parts(again);
			ck_ok(run_set_under_way(again, record, &err), &err);
		}
		run_report(r, &report, 200);
	}
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason,
	                 _i ? "rank 0 on node0000: killed by SIGSYS" : "rank 0 on node0000: exit status 3");
	ck_assert_str_eq(r->detail, text);
	ck_assert_uint_eq(r->rank_error_count, (size_t)last + 1);
	for (int64_t i = 0; i <= last; i += 4095 / 8)
		ck_assert_int_eq(run_find_rank_error(r, i)->rank, i);
	/* The same are found after they were stored, and none after the next placement. */
	run_worker_error(again, 0, "no such column: text", false);
	ck_assert_int_eq(run_find_rank_error(again, last)->rank, last);
	ck_assert_str_eq(run_find_rank_error(again, last)->log, "");
	ck_assert_str_eq(run_find_rank_error(again, 8)->log, text);
	if (_i == 0) /* else there is hardly any room */
		ck_assert_str_eq(run_find_rank_error(again, 0)->worker, "no such column: text");
	ck_ok(run_place(again, names, slots, 300, &err), &err);
	ck_assert_ptr_null(run_find_rank_error(again, 0));
	ck_assert_uint_eq(again->part_count, MANY_NODES);
	str_list_free(names);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cause");
	TCase *tc = tcase_create("cause"), *large = tcase_create("thousands of nodes");

	tcase_add_test(tc, what_an_end_means);
	tcase_add_loop_test(tc, the_first_cause, 0, ARRAY_SIZE(choices));
	tcase_add_test(tc, the_killed_rank_is_named_whoever_is_heard_first);
	tcase_add_test(tc, who_lost_a_peer_is_not_the_cause);
	tcase_add_test(tc, who_lost_a_peer_says_so_in_its_report);
	tcase_add_test(tc, who_reports_an_error_and_is_stopped_with_it_is_the_cause);
	tcase_add_test(tc, a_node_that_shuts_down_is_the_cause);
	tcase_add_test(tc, a_node_that_is_gone_is_the_cause);
	tcase_add_test(tc, a_node_whose_loss_is_noticed_late_is_the_cause);
	tcase_add_test(tc, ranks_that_lost_each_other_blame_the_network);
	tcase_add_test(tc, what_failed_long_before_stays_the_cause);
	tcase_add_test(tc, the_first_word_of_each_counts);
	tcase_add_test(tc, what_ranks_say_is_stored);
	tcase_add_test(tc, an_end_keeps_the_time_of_its_first_report);
	tcase_add_test(tc, a_stop_by_another_is_a_failure);
	tcase_add_test(tc, words_are_private);
	tcase_add_loop_test(tc, what_many_ranks_say_is_bounded, 0, 2);
	tcase_add_test(tc, who_lost_a_peer_says_less);
	tcase_add_test(tc, the_log_is_the_detail_where_the_error_was_dropped);
	tcase_add_loop_test(tc, the_same_texts_are_kept_as_by_the_plainest_way, 0, 8);
	suite_add_tcase(suite, tc);
	tcase_set_timeout(large, 15);
	tcase_add_loop_test(large, all_ranks_of_thousands_of_nodes_fail, 0, 2);
	suite_add_tcase(suite, large);
	return unit_run(suite);
}
