/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives during which a rank dies, stops, is late, leaves, or calls another collective. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "comm_stage.h"

enum { LARGE = 16 << 20 };

/* Waits for the expected failure, at most `seconds` after the start time of the stage. */
static void expect_failure(struct stage *s, int rank, struct comm *comm, comm_ticket ticket, int code,
                           const char *words, double seconds)
{
	struct error err = ERROR_INIT;
	int r = comm_wait(comm, ticket, &err);
	double took = clock_monotonic() - s->moment;

	rank_assert(r == code, "%d (%s) in place of %d", r, err.message, code);
	rank_assert(strstr(err.message, words), "\"%s\" lacks \"%s\"", err.message, words);
	rank_assert(took < seconds, "after %.3f s", took);
	rank_assert(comm_flush(comm, &err) == code, "forgotten");
	rank_assert(comm_wait(comm, comm_barrier(comm), &err) == code, "forgotten");
	comm_destroy(comm);
}

static void rank_killed(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	float *x = calloc(LARGE, 4);
	comm_ticket ticket;

	check_all_reduce(comm, 1000003, DTYPE_F32, COMM_SUM);
	let_others_come(s, rank, 1);
	ticket = comm_all_reduce(comm, x, LARGE, DTYPE_F32, COMM_SUM);
	if (rank == 1) {
		s->moment = clock_monotonic();
		raise(SIGKILL);
	}
	expect_failure(s, rank, comm, ticket, -ECONNRESET, "rank 1 on odd", 1.0);
	free(x);
}

/* The same, but the ranks assume that they are on different hosts. */
static void rank_killed_afar(struct stage *s, int rank)
{
	if (unshare(CLONE_NEWIPC) < 0)
		exit(0); /* needs privileges */
	rank_killed(s, rank);
}

static void rank_far(struct stage *s, int rank)
{
	if (unshare(CLONE_NEWIPC) < 0)
		exit(0);
	rank_collectives(s, rank);
}

static void kill_one(int size, rank_fn fn)
{
	struct stage *s = stage_open(size, 30);
	pid_t pids[RANKS_MAX];

	spawn_all(s, fn, pids);
	expect_all(s, pids, 1);
	waitpid(pids[1], NULL, 0);
	close(s->gate[1]);
	stage_close(s);
}

START_TEST(death_is_an_error_at_once)
{
	use_transport(_i / 4);
	kill_one(_i % 4 + 2, rank_killed);
}
END_TEST

START_TEST(hosts_apart)
{
	use_transport(0);
	run_ranks(3, 30, rank_far);
	kill_one(3, rank_killed_afar);
}
END_TEST

static void rank_idle_death(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);

	check_all_reduce(comm, 100, DTYPE_F32, COMM_SUM);
	let_others_come(s, rank, 1);
	if (rank == 1) {
		s->moment = clock_monotonic();
		raise(SIGKILL);
	}
	expect_failure(s, rank, comm, comm_barrier(comm), -ECONNRESET, "rank 1 ", 1.0);
}

START_TEST(death_between_collectives)
{
	use_transport(_i);
	kill_one(3, rank_idle_death);
}
END_TEST

static void rank_stopped(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	float *x = calloc(LARGE, 4);
	comm_ticket ticket;

	check_all_reduce(comm, 1000003, DTYPE_F32, COMM_SUM);
	let_others_come(s, rank, 1);
	ticket = comm_all_reduce(comm, x, LARGE, DTYPE_F32, COMM_SUM);
	if (rank == 1) {
		s->moment = clock_monotonic();
		raise(SIGSTOP);
		exit(0);
	}
	expect_failure(s, rank, comm, ticket, -ETIMEDOUT, "rank 1 ", 3.0);
	rank_assert(clock_monotonic() - s->moment > 0.9, "too early");
	free(x);
}

START_TEST(a_stopped_rank_times_out)
{
	struct stage *s = stage_open(3, 1);
	pid_t pids[RANKS_MAX];

	use_transport(_i);
	spawn_all(s, rank_stopped, pids);
	expect_all(s, pids, 1);
	kill(pids[1], SIGKILL);
	waitpid(pids[1], NULL, 0);
	stage_close(s);
}
END_TEST

/* Rank 1 lives but does not call the collective: the error names its state. */
static void rank_late(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	struct error err = ERROR_INIT;

	check_all_reduce(comm, 100, DTYPE_F32, COMM_SUM);
	s->moment = clock_monotonic();
	if (rank == 1) {
		wait_at_gate(s);
		rank_assert(comm_wait(comm, comm_barrier(comm), &err) == -ETIMEDOUT, "%s", err.message);
		rank_assert(strstr(err.message, "waited 1 s for this rank"), "%s", err.message);
		comm_destroy(comm);
		return;
	}
	expect_failure(s, rank, comm, comm_barrier(comm), -ETIMEDOUT, "barrier (collective 2): rank 1 ", 3.0);
}

START_TEST(a_late_rank_is_named)
{
	struct stage *s = stage_open(3, 1);
	pid_t pids[RANKS_MAX];

	use_transport(0);
	spawn_all(s, rank_late, pids);
	expect_all(s, pids, 1);
	close(s->gate[1]);
	expect_all(&(struct stage){.size = 1}, &pids[1], -1);
	stage_close(s);
}
END_TEST

static void rank_counts_differ(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	struct error err = ERROR_INIT;
	float x[200] = {0};
	int r;

	let_others_come(s, rank, 0);
	r = comm_wait(comm, comm_all_reduce(comm, x, rank ? 100 : 200, DTYPE_F32, COMM_SUM), &err);

	rank_assert(r == -EPROTO, "%d %s", r, err.message);
	rank_assert(strstr(err.message, "disagree") || strstr(err.message, "differ"), "%s", err.message);
	comm_destroy(comm);
}

static void rank_calls_differ(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	struct error err = ERROR_INIT;
	float x[20000] = {0};
	comm_ticket t = rank ? comm_barrier(comm) : comm_all_reduce(comm, x, 20000, DTYPE_F32, COMM_SUM);
	int r = comm_wait(comm, t, &err);

	rank_assert(r == -ETIMEDOUT, "%d %s", r, err.message);
	comm_destroy(comm);
}

START_TEST(calls_that_differ)
{
	use_transport(0);
	run_ranks(3, 5, rank_counts_differ);
	run_ranks(2, 1, rank_calls_differ);
}
END_TEST

static void rank_leaves(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);

	check_all_reduce(comm, 100, DTYPE_F32, COMM_SUM);
	let_others_come(s, rank, 1);
	s->moment = clock_monotonic();
	if (rank == 1)
		comm_destroy(comm);
	else
		expect_failure(s, rank, comm, comm_barrier(comm), -ECONNRESET, "rank 1 ", 2.0);
}

START_TEST(a_rank_that_left)
{
	use_transport(0);
	run_ranks(3, 30, rank_leaves);
}
END_TEST

/* ---- a family ---- */

enum { FAMILY = 4 };

/* The communicator of all, a second lane of it, one of pairs, and one of this rank alone. */
static void join_family(struct stage *s, int rank, struct comm **family)
{
	struct error err = ERROR_INIT;

	family[0] = join_stage(s, rank);
	rank_ok(comm_split(family[0], 0, 0, &family[1], &err));
	rank_ok(comm_split(family[0], rank / 2, 0, &family[2], &err));
	rank_ok(comm_split(family[2], rank, 0, &family[3], &err));
}

/* All give the same error, those that are idle, too; the code is that of the first. */
static void expect_family_failure(struct stage *s, int rank, struct comm **family, int code,
                                  const char *words, double seconds)
{
	struct error first = ERROR_INIT, err = ERROR_INIT;
	int r = comm_wait(family[1], comm_barrier(family[1]), &first);

	rank_assert(r == code && strstr(first.message, words), "%d %s", r, first.message);
	rank_assert(clock_monotonic() - s->moment < seconds, "after %.3f s", clock_monotonic() - s->moment);
	for (int i = 0; i < FAMILY; i++) {
		rank_assert(comm_check(family[i], &err) == code, "communicator %d is usable", i);
		rank_assert(!strcmp(first.message, err.message), "\"%s\", but \"%s\"", first.message,
		            err.message);
	}
	rank_assert(comm_split(family[0], 0, 0, &family[0], &err) == code, "splits");
}

static void rank_dies_in_family(struct stage *s, int rank)
{
	struct comm *family[FAMILY], *first;
	float *x = calloc(LARGE, 4);
	struct error err = ERROR_INIT;

	join_family(s, rank, family);
	first = family[0];
	rank_ok(comm_wait(family[1], comm_barrier(family[1]), &err));
	rank_ok(comm_wait(family[2], comm_barrier(family[2]), &err));
	let_others_come(s, rank, 1);
	/* The pair of ranks 2 and 3 has lost nobody, and yet fails. */
	comm_all_reduce(family[2], x, LARGE, DTYPE_F32, COMM_SUM);
	if (rank == 1) {
		s->moment = clock_monotonic();
		raise(SIGKILL);
	}
	expect_family_failure(s, rank, family, -ECONNRESET, "rank 1 on odd ", 1.0);
	comm_destroy(first);
	for (int i = 1; i < FAMILY; i++)
		comm_destroy(family[i]);
	rank_assert(clock_monotonic() - s->moment < 2, "slow to end");
	free(x);
}

START_TEST(a_death_fails_the_family)
{
	use_transport(_i);
	kill_one(4, rank_dies_in_family);
}
END_TEST

static void rank_aborts_family(struct stage *s, int rank)
{
	struct comm *family[FAMILY], *first;

	join_family(s, rank, family);
	first = family[0];
	let_others_come(s, rank, 0);
	s->moment = clock_monotonic();
	if (!rank)
		comm_abort(family[3]);
	if (!rank)
		expect_family_failure(s, rank, family, -ECANCELED, "abort", 1.0);
	else
		expect_family_failure(s, rank, family, -ECONNRESET, "rank 0 on even ", 10);
	comm_destroy(first);
	for (int i = 1; i < FAMILY; i++)
		comm_destroy(family[i]);
}

START_TEST(an_abort_ends_the_family)
{
	use_transport(0);
	run_ranks(3, 60, rank_aborts_family);
}
END_TEST

/* One rank dies in place of a split, another has died in the middle of it. */
static void rank_dies_before_split(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank), *other;
	struct error err = ERROR_INIT;
	int r;

	let_others_come(s, rank, 1);
	if (rank == 1) {
		s->moment = clock_monotonic();
		raise(SIGKILL);
	}
	r = comm_split(comm, 0, 0, &other, &err);
	rank_assert(r == -ECONNRESET && !other && strstr(err.message, "rank 1 on odd"), "%d %s", r,
	            err.message);
	rank_assert(clock_monotonic() - s->moment < 1, "late");
	comm_destroy(comm);
}

static void rank_dies_in_split(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank), *other;
	struct error err = ERROR_INIT;
	int32_t choices[8] = {0};
	int r;

	if (rank == 1) { /* calls what comm_split begins with, and no more */
		rank_ok(comm_wait(comm, comm_all_gather(comm, choices, 2, DTYPE_F32), &err));
		s->moment = clock_monotonic();
		raise(SIGKILL);
	}
	r = comm_split(comm, 0, 0, &other, &err);
	rank_assert(r == -ECONNRESET && !other && strstr(err.message, "rank 1 on odd"), "%d %s", r,
	            err.message);
	rank_assert(clock_monotonic() - s->moment < 3, "late");
	comm_destroy(comm);
}

START_TEST(a_death_during_a_split)
{
	use_transport(0);
	kill_one(3, rank_dies_before_split);
	kill_one(3, rank_dies_in_split);
}
END_TEST

static void *abort_comm(void *comm)
{
	comm_abort(comm);
	return NULL;
}

static void rank_aborted(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank);
	float *x = calloc(LARGE, 4);
	comm_ticket ticket;
	pthread_t thread;

	check_all_reduce(comm, 100, DTYPE_F32, COMM_SUM);
	let_others_come(s, rank, 0);
	s->moment = clock_monotonic();
	if (!rank) {
		/* Rank 2 never calls it, so that the wait cannot end in another way. */
		ticket = comm_all_reduce(comm, x, LARGE, DTYPE_F32, COMM_SUM);
		pthread_create(&thread, NULL, abort_comm, comm);
		expect_failure(s, rank, comm, ticket, -ECANCELED, "abort", 1.0);
		pthread_join(thread, NULL);
	} else if (rank == 1) {
		ticket = comm_all_reduce(comm, x, LARGE, DTYPE_F32, COMM_SUM);
		expect_failure(s, rank, comm, ticket, -ECONNRESET, "rank 0 ", 1.0);
	} else {
		wait_at_gate(s);
		expect_failure(s, rank, comm, comm_barrier(comm), -ECONNRESET, "rank 0 ", 1e9);
	}
	free(x);
}

START_TEST(abort_from_another_thread)
{
	struct stage *s = stage_open(3, 60);
	pid_t pids[RANKS_MAX];

	use_transport(_i);
	spawn_all(s, rank_aborted, pids);
	expect_all(s, pids, 2);
	close(s->gate[1]);
	expect_all(&(struct stage){.size = 1}, &pids[2], -1);
	stage_close(s);
}
END_TEST

START_TEST(a_missing_rank_is_named)
{
	struct stage *s = stage_open(2, 1);
	struct kv_store store = kv_store_in(s->directory);
	struct comm_options options = {
	    .rank = 0, .world_size = 2, .timeout_s = 1, .store = &store, .group = "x"};
	struct error err = ERROR_INIT;
	struct comm *comm;

	use_transport(0);
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "rank 1 of 2 did not publish its address");
	ck_assert_int_eq(err.code, -ETIMEDOUT);
	ck_ok(kv_store_put(s->directory, "y/ucx/1", "garbage", 7, &err), &err);
	options.group = "y";
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "another version");
	setenv("UCX_TLS", "no-such-thing", 1);
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "UCX_TLS");
	stage_close(s);
}
END_TEST

static void rank_meets(struct stage *s, int rank)
{
	comm_destroy(join_stage(s, rank));
}

static double processor_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Its address is there, and refuses connections. */
START_TEST(a_rank_that_has_ended_is_tried_with_pauses)
{
	struct stage *s = stage_open(2, 2);
	struct kv_store store = kv_store_in(s->directory);
	struct comm_options options = {
	    .rank = 1, .world_size = 2, .timeout_s = 2, .store = &store, .group = s->group, .node = "odd"};
	struct error err = ERROR_INIT;
	pid_t pids[RANKS_MAX];
	struct comm *comm;
	double before;

	use_transport(0);
	spawn_all(s, rank_meets, pids);
	expect_all(s, pids, -1);
	before = processor_seconds();
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "no connection to rank 0");
	ck_assert_double_lt(processor_seconds() - before, 1);
	close(s->gate[1]);
	stage_close(s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("comm failures");
	TCase *failures = tcase_create("failures");

	tcase_set_timeout(failures, 180);
	tcase_add_loop_test(failures, death_is_an_error_at_once, 0, 12);
	tcase_add_test(failures, hosts_apart);
	tcase_add_loop_test(failures, death_between_collectives, 0, 2);
	tcase_add_loop_test(failures, a_stopped_rank_times_out, 0, 2);
	tcase_add_test(failures, a_late_rank_is_named);
	tcase_add_test(failures, calls_that_differ);
	tcase_add_test(failures, a_rank_that_left);
	tcase_add_loop_test(failures, abort_from_another_thread, 0, 2);
	tcase_add_test(failures, a_missing_rank_is_named);
	tcase_add_test(failures, a_rank_that_has_ended_is_tried_with_pauses);
	tcase_add_loop_test(failures, a_death_fails_the_family, 0, 3);
	tcase_add_test(failures, an_abort_ends_the_family);
	tcase_add_test(failures, a_death_during_a_split);
	suite_add_tcase(suite, failures);
	return unit_run(suite);
}
