/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl.c over stand-ins for NCCL and the CUDA runtime: ranks are threads here. */
#include <errno.h>
#include <pthread.h>

#include "base/clock.h"
#include "engine/comm/comm.h"
#include "rendezvous.h"
#include "unit.h"

enum { RANKS = 3, SHARD = 5, COUNT = RANKS * SHARD };

struct rank {
	int rank;
	const char *directory;
	struct device *dev;
	struct comm *comm;
	void (*body)(struct rank *r);
	pthread_t thread;
};

static struct comm *join(struct rank *r, int size, int timeout_s, int want, const char *words)
{
	struct rendezvous rendezvous = rendezvous_in(r->directory);
	struct comm_options o = {.rank = r->rank,
	                         .world_size = size,
	                         .timeout_s = timeout_s,
	                         .rendezvous = &rendezvous,
	                         .group = "test"};
	struct error err = ERROR_INIT;
	struct comm *c = NULL;

	ck_ok(device_create(NULL, &r->dev, &err), &err);
	ck_assert_msg(comm_create(r->dev, &o, &c, &err) == want, "%s", err.message);
	if (want < 0)
		ck_assert_msg(strstr(err.message, words) != NULL, "%s", err.message);
	return c;
}

static void *run(void *context)
{
	struct rank *r = context;

	r->body(r);
	comm_destroy(r->comm);
	device_destroy(r->dev);
	return NULL;
}

static void with_ranks(int n, void (*body)(struct rank *r))
{
	_cleanup_free_ char *directory = unit_tmpdir();
	struct rank rank[RANKS];

	for (int i = 0; i < n; i++) {
		rank[i] = (struct rank){.rank = i, .directory = directory, .body = body};
		ck_assert(!pthread_create(&rank[i].thread, NULL, run, &rank[i]));
	}
	for (int i = 0; i < n; i++)
		pthread_join(rank[i].thread, NULL);
	ck_assert(!file_remove_tree(directory, NULL));
}

static void finish(struct rank *r, comm_ticket ticket, float *host, const void *buffer, size_t bytes)
{
	struct error err = ERROR_INIT;

	ck_assert(ticket != 0);
	ck_ok(comm_wait(r->comm, ticket, &err), &err);
	ck_ok(device_read(r->dev, host, buffer, bytes, &err), &err);
}

static void collectives(struct rank *r)
{
	struct error err = ERROR_INIT;
	float host[COUNT];
	double sum;
	void *b;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_assert(strstr(comm_describe(r->comm), "NCCL 2.28.3") != NULL);
	ck_assert(comm_rank(r->comm) == r->rank && comm_size(r->comm) == RANKS);
	ck_ok(device_alloc(r->dev, sizeof(host), &b, &err), &err);
	ck_ok(comm_register(r->comm, b, sizeof(host), &err), &err);
	for (int round = 0; round < 500; round++) {
		for (int i = 0; i < COUNT; i++)
			host[i] = (float)(i + 100 * r->rank + round);
		ck_ok(device_write(r->dev, b, host, sizeof(host), &err), &err);
		finish(r, comm_all_reduce(r->comm, b, COUNT, DTYPE_F32, round & 1 ? COMM_MAX : COMM_SUM),
		       host, b, sizeof(host));
		for (int i = 0; i < COUNT; i++)
			ck_assert_float_eq(host[i], (round & 1 ? i + 200 + round : 3 * (i + round) + 300));
		for (int i = 0; i < COUNT; i++)
			host[i] = (float)(i * (r->rank + 1));
		ck_ok(device_write(r->dev, b, host, sizeof(host), &err), &err);
		finish(r, comm_reduce_scatter(r->comm, b, SHARD, DTYPE_F32, COMM_SUM), host, b, sizeof(host));
		for (int i = r->rank * SHARD; i < (r->rank + 1) * SHARD; i++)
			ck_assert_float_eq(host[i], 6 * i);
		finish(r, comm_all_gather(r->comm, b, SHARD, DTYPE_F32), host, b, sizeof(host));
		for (int i = 0; i < COUNT; i++)
			ck_assert_float_eq(host[i], 6 * i);
		host[0] = (float)r->rank;
		ck_ok(device_write(r->dev, b, host, sizeof(host), &err), &err);
		finish(r, comm_broadcast(r->comm, b, 4, 2), host, b, sizeof(host));
		ck_assert_float_eq(host[0], 2);
		comm_barrier(r->comm);
	}
	sum = r->rank + 0.25;
	ck_ok(device_write(r->dev, b, &sum, sizeof(sum), &err), &err);
	finish(r, comm_all_reduce_f64(r->comm, b, 1, COMM_SUM), (float *)&sum, b, sizeof(sum));
	ck_assert_double_eq(sum, 3.75);
	ck_ok(comm_flush(r->comm, &err), &err);
	device_free(r->dev, b);
}

START_TEST(every_collective)
{
	with_ranks(RANKS, collectives);
}
END_TEST

static void alone(struct rank *r)
{
	double start = clock_monotonic();

	r->comm = join(r, RANKS, 1, -ETIMEDOUT, r->rank ? "not there" : "did not all meet within 1 s");
	ck_assert(clock_monotonic() - start < 5);
}

START_TEST(a_missing_rank_is_an_error)
{
	with_ranks(1, alone);
}
END_TEST

/* Rank 1 does not take part in the last collective: the other's wait for the device ends, too. */
static void stalls(struct rank *r)
{
	struct error err = ERROR_INIT;
	comm_ticket ticket;
	void *b;

	r->comm = join(r, 2, 1, 0, NULL);
	ck_ok(device_alloc(r->dev, 64, &b, &err), &err);
	ck_ok(comm_wait(r->comm, comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM), &err), &err);
	ck_ok(comm_flush(r->comm, &err), &err);
	if (r->rank == 0) {
		ticket = comm_all_gather(r->comm, b, 2, DTYPE_F32);
		ck_ok(comm_wait(r->comm, ticket, &err), &err);
		ck_ok(device_synchronize(r->dev, &err), &err);
		ck_assert_int_eq(comm_flush(r->comm, &err), -ETIMEDOUT);
		ck_assert_msg(
		    strstr(err.message, "rank 0: all-gather (collective 2) has made no progress for 1 s") !=
		        NULL,
		    "%s", err.message);
		ticket = comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM);
		ck_assert(ticket == 3);
		ck_assert_int_eq(comm_wait(r->comm, ticket, &err), -ETIMEDOUT);
	} else {
		usleep(2500 * 1000);
	}
	device_free(r->dev, b);
}

START_TEST(a_stall_is_an_error)
{
	with_ranks(2, stalls);
}
END_TEST

static void *abort_soon(void *context)
{
	usleep(100 * 1000);
	comm_abort(context);
	return NULL;
}

static void aborted(struct rank *r)
{
	struct error err = ERROR_INIT;
	pthread_t thread;
	void *b;

	r->comm = join(r, 2, 60, 0, NULL);
	ck_ok(device_alloc(r->dev, 64, &b, &err), &err);
	if (r->rank == 0) {
		comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM);
		ck_assert(!pthread_create(&thread, NULL, abort_soon, r->comm));
		ck_assert_int_eq(comm_flush(r->comm, &err), -ECANCELED);
		ck_assert_int_eq(comm_wait(r->comm, 1, &err), -ECANCELED);
		pthread_join(thread, NULL);
	}
	device_free(r->dev, b);
}

START_TEST(abort_from_another_thread)
{
	with_ranks(2, aborted);
}
END_TEST

START_TEST(a_single_rank)
{
	struct comm_options o = {.world_size = 1, .timeout_s = 1};
	struct error err = ERROR_INIT;
	struct device *dev;
	struct comm *c;
	float x = 2;

	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(comm_create(dev, &o, &c, &err), &err);
	ck_ok(comm_wait(c, comm_all_reduce(c, &x, 1, DTYPE_F32, COMM_SUM), &err), &err);
	ck_ok(comm_flush(c, &err), &err);
	ck_assert(x == 2);
	comm_abort(c);
	ck_assert_int_eq(comm_wait(c, comm_barrier(c), &err), -ECANCELED);
	comm_destroy(c);
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("nccl");
	TCase *tc = tcase_create("nccl");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, every_collective);
	tcase_add_test(tc, a_missing_rank_is_an_error);
	tcase_add_test(tc, a_stall_is_an_error);
	tcase_add_test(tc, abort_from_another_thread);
	tcase_add_test(tc, a_single_rank);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
