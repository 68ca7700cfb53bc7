/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl.c over stand-ins for NCCL and the CUDA runtime: ranks are threads here. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>

#include "base/clock.h"
#include "base/str.h"
#include "engine/comm/nccl/internal.h"
#include "kv_store.h"
#include "unit.h"

enum { RANKS = 3, SHARD = 5, COUNT = RANKS * SHARD };

/* What the rendezvous does once the ranks have met. */
enum later { WORKS, UNREACHABLE, DEAF /* to rank 2 */ };

struct rank {
	int rank;
	const char *directory;
	bool met;
	enum later later;
	const char
	    *awaited; /* what other ranks report in the end, such as "running 2 "; NULL: whatever they have */
	bool stop;
	struct kv_store store;
	struct device *dev;
	struct comm *comm;
	void (*body)(struct rank *r);
	pthread_barrier_t *together; /* all ranks have their device; time is measured from here on */
	sem_t *noticed;              /* posted by each rank that has its error */
	pthread_t thread;
};

static int put(void *context, const char *key, const void *data, size_t len, struct error *err)
{
	struct rank *r = context;

	if (r->met && r->later == UNREACHABLE)
		return error_set(err, -ECONNREFUSED, "nobody listens");
	if (r->met && r->later == DEAF && r->rank == 2)
		return 0;
	return kv_store_put((void *)r->directory, key, data, len, err);
}

/* The place of a rank is what this rank awaits: on a loaded machine the other rank, which reports where it is
 * after half of the time-out, may do so later than this one asks. */
static int get(void *context, const char *key, int timeout_ms, void **data, size_t *len, struct error *err)
{
	struct rank *r = context;

	if (r->met && r->later == UNREACHABLE)
		return error_set(err, -ECONNREFUSED, "nobody listens");
	for (;;) {
		int code = kv_store_get((void *)r->directory, key, timeout_ms, data, len, err);

		if (code < 0 || !r->awaited || !str_starts(key, "test/at/") ||
		    (r->later == DEAF && str_eq(key, "test/at/2")) ||
		    (*len >= strlen(r->awaited) && !memcmp(*data, r->awaited, strlen(r->awaited))))
			return code;
		free(*data);
		usleep(1000);
	}
}

static bool stopping(void *context)
{
	return ((struct rank *)context)->stop;
}

static struct comm *join(struct rank *r, int size, int timeout_s, int want, const char *words)
{
	const struct kv_store store = {r, put, get};
	struct comm_options o = {.rank = r->rank,
	                         .world_size = size,
	                         .timeout_s = timeout_s,
	                         .store = &store,
	                         .group = "test",
	                         .stopping = stopping,
	                         .stopping_context = r};
	struct error err = ERROR_INIT;
	struct comm *c = NULL;

	ck_ok(device_create(NULL, &r->dev, &err), &err);
	pthread_barrier_wait(r->together);
	ck_assert_msg(comm_create(r->dev, &o, &c, &err) == want, "%s", err.message);
	r->met = true;
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

static void with_ranks_later(int n, enum later later, void (*body)(struct rank *r))
{
	_cleanup_free_ char *directory = unit_tmpdir();
	pthread_barrier_t together;
	struct rank rank[RANKS];
	sem_t noticed;

	ck_assert(!pthread_barrier_init(&together, NULL, (unsigned)n));
	ck_assert(!sem_init(&noticed, 0, 0));
	for (int i = 0; i < n; i++) {
		rank[i] = (struct rank){.rank = i,
		                        .directory = directory,
		                        .later = later,
		                        .body = body,
		                        .together = &together,
		                        .noticed = &noticed};
		ck_assert(!pthread_create(&rank[i].thread, NULL, run, &rank[i]));
	}
	for (int i = 0; i < n; i++)
		pthread_join(rank[i].thread, NULL);
	pthread_barrier_destroy(&together);
	sem_destroy(&noticed);
	ck_assert(!file_remove_tree(directory, NULL));
}

static void with_ranks(int n, void (*body)(struct rank *r))
{
	with_ranks_later(n, WORKS, body);
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
	int least, greatest, priority;
	float host[COUNT];
	double sum;
	void *b, *other;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_assert(strstr(comm_describe(r->comm), "NCCL 2.28.3") != NULL);
	ck_assert(comm_rank(r->comm) == r->rank && comm_size(r->comm) == RANKS);
	/* Behind products that fill the GPU a collective would begin when these have ended. */
	ck_assert(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess &&
	          cudaStreamGetPriority(r->comm->stream, &priority) == cudaSuccess);
	ck_assert(greatest < least && priority == greatest);
	ck_ok(comm_alloc(r->comm, sizeof(host), &b, &err), &err);
	ck_ok(comm_alloc(r->comm, sizeof(host), &other, &err), &err);
	ck_assert_int_eq(comm_register(r->comm, &(struct comm_buffer){b, sizeof(host)}, 1, &err), 1);
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
		for (int i = 0; i < COUNT; i++)
			host[i] = (float)(100 * r->rank + i);
		ck_ok(device_write(r->dev, b, host, sizeof(host), &err), &err);
		finish(r, comm_all_to_all(r->comm, other, b, SHARD, DTYPE_F32), host, other, sizeof(host));
		for (int i = 0; i < COUNT; i++)
			ck_assert_float_eq(host[i], 100 * (i / SHARD) + r->rank * SHARD + i % SHARD);
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
	for (int i = 0; i < 5; i++) {
		if (r->rank) /* the first rank has to wait */
			nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
		comm_barrier(r->comm);
		ck_ok(comm_flush(r->comm, &err), &err);
		if (r->rank) /* the emulator runs kernels in one thread only */
			continue;
		/* "Not ready" of an earlier call is no error of this kernel. */
		device_scale(r->dev, b, DTYPE_F32, 1, COUNT);
		ck_ok(device_synchronize(r->dev, &err), &err);
	}
}

START_TEST(every_collective)
{
	with_ranks(RANKS, collectives);
	ck_assert_int_eq(simt_nccl_allocated(), 0);
}
END_TEST

/* Rank 1 can register two of three buffers: no rank keeps a registration, and collectives work without. The
 * stand-in ends the program where buffers are registered on some ranks only. */
static void one_cannot_register(struct rank *r)
{
	struct comm_buffer buffers[3];
	struct error err = ERROR_INIT;

	r->comm = join(r, RANKS, 20, 0, NULL);
	for (int i = 0; i < 3; i++) {
		buffers[i].bytes = 64;
		ck_ok(comm_alloc(r->comm, 64, &buffers[i].data, &err), &err);
	}
	for (int round = 0; round < 2; round++) {
		/* In the second round rank 1 can register all. */
		ck_assert_int_eq(comm_register(r->comm, buffers, 3, &err), round);
		ck_assert_int_eq(simt_nccl_registered(r->comm->nccl), 3 * round);
		for (int i = 0; i < 3; i++)
			ck_ok(comm_wait(r->comm,
			                comm_all_reduce(r->comm, buffers[i].data, 4, DTYPE_F32, COMM_SUM),
			                &err),
			      &err);
		ck_ok(comm_flush(r->comm, &err), &err);
		simt_nccl_refuse(-1, 0);
	}
}

START_TEST(registered_everywhere_or_nowhere)
{
	simt_nccl_refuse(1, 2);
	with_ranks(RANKS, one_cannot_register);
	ck_assert_int_eq(simt_nccl_allocated(), 0);
}
END_TEST

/* Buffers within one piece of memory, of which a communicator and a lane make a window each. `apart`: those
 * of rank 1 are elsewhere in it. */
static void register_windows(struct rank *r, bool apart, int windows)
{
	struct error err = ERROR_INIT;
	struct comm_buffer buffers[2];
	struct comm *lane;
	char *memory;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_ok(comm_split(r->comm, 0, 0, &lane, &err), &err);
	ck_ok(comm_alloc(r->comm, 1024, (void **)&memory, &err), &err);
	memory += apart && r->rank == 1 ? 256 : 0;
	buffers[0] = (struct comm_buffer){memory, 64};
	buffers[1] = (struct comm_buffer){memory + 128, 64};
	ck_assert_int_eq(comm_register(r->comm, buffers, 2, &err), 1);
	ck_assert_int_eq(comm_register(lane, buffers + 1, 1, &err), 1);
	ck_assert_int_eq(simt_nccl_window_count(r->comm->nccl), windows);
	ck_assert_int_eq(simt_nccl_window_count(lane->nccl), windows);
	ck_assert_int_eq(simt_nccl_registered(r->comm->nccl), windows ? 0 : 2);
	for (int i = 0; i < 2; i++) {
		struct comm *c = i ? lane : r->comm;
		float got, want = (float)r->rank;

		ck_ok(device_write(r->dev, buffers[i].data, &want, sizeof(want), &err), &err);
		ck_ok(comm_wait(c, comm_all_reduce(c, buffers[i].data, 1, DTYPE_F32, COMM_SUM), &err), &err);
		ck_ok(device_read(r->dev, &got, buffers[i].data, sizeof(got), &err), &err);
		ck_assert_float_eq(got, 3);
	}
	comm_destroy(lane);
}

static void at_one_place(struct rank *r)
{
	register_windows(r, false, 1);
}

static void at_two_places(struct rank *r)
{
	register_windows(r, true, 0);
}

static void not_of_all(struct rank *r)
{
	register_windows(r, false, 0);
}

/* Memory that NCCL has not allocated can be no window. */
static void elsewhere(struct rank *r)
{
	struct error err = ERROR_INIT;
	void *b;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_ok(device_alloc(r->dev, 64, &b, &err), &err);
	ck_assert_int_eq(comm_register(r->comm, &(struct comm_buffer){b, 64}, 1, &err), 1);
	ck_assert_int_eq(simt_nccl_window_count(r->comm->nccl), 0);
	ck_ok(comm_wait(r->comm, comm_barrier(r->comm), &err), &err);
	ck_ok(comm_flush(r->comm, &err), &err);
	comm_destroy(r->comm);
	r->comm = NULL;
	device_free(r->dev, b);
}

START_TEST(symmetric_windows)
{
	simt_nccl_windows(1, -1);
	with_ranks(RANKS, at_one_place);
	with_ranks(RANKS, at_two_places);
	with_ranks(RANKS, elsewhere);
	simt_nccl_windows(1, 2);
	with_ranks(RANKS, not_of_all);
	simt_nccl_windows(0, -1);
	with_ranks(RANKS, not_of_all);
}
END_TEST

/* The message names the window and the way to do without. */
static void fails_with_windows(struct rank *r)
{
	struct error err = ERROR_INIT;
	struct comm *lane;
	char words[64];
	void *b;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_ok(comm_split(r->comm, 0, 0, &lane, &err), &err);
	ck_ok(comm_alloc(r->comm, 64, &b, &err), &err);
	ck_assert_int_eq(comm_register(lane, &(struct comm_buffer){b, 64}, 1, &err), -EIO);
	snprintf(words, sizeof(words), "rank %d: making a window of the memory for collectives ", r->rank);
	ck_assert_msg(str_starts(err.message, words), "%s", err.message);
	ck_assert_msg(strstr(err.message, "environment = [\"NCCL_WIN_ENABLE=0\"]") != NULL, "%s",
	              err.message);
	ck_assert_msg(strstr(err.message, ": NCCL: an error") != NULL, "%s", err.message);
	ck_assert_int_eq(comm_check(r->comm, &err), -EIO);
	comm_destroy(lane);
}

START_TEST(a_window_that_is_refused)
{
	simt_nccl_windows(1, -1);
	simt_nccl_fail_windows(1);
	with_ranks(RANKS, fails_with_windows);
	simt_nccl_fail_windows(0);
	simt_nccl_windows(0, -1);
}
END_TEST

/* A communicator that is destroyed during a collective keeps its buffers registered until the collective is
 * aborted; otherwise the stand-in ends the program. */
static void ends_in_the_midst(struct rank *r)
{
	struct error err = ERROR_INIT;
	void *b;

	r->comm = join(r, 2, 20, 0, NULL);
	ck_ok(comm_alloc(r->comm, 64, &b, &err), &err);
	ck_assert_int_eq(comm_register(r->comm, &(struct comm_buffer){b, 64}, 1, &err), 1);
	if (r->rank == 0)
		comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM);
}

START_TEST(buffers_of_a_collective_under_way)
{
	with_ranks(2, ends_in_the_midst);
}
END_TEST

static void alone(struct rank *r)
{
	double start = clock_monotonic();

	r->comm =
	    join(r, RANKS, 1, -ETIMEDOUT,
	         r->rank ? "rank 0 has not published its NCCL id within 1 s"
	                 : "the 3 ranks did not all connect within 1 s: rank 1 has not begun to connect, "
	                   "rank 2 has not begun to connect");
	ck_assert(clock_monotonic() - start < 5);
}

static void without_the_first(struct rank *r)
{
	r->rank = 1;
	alone(r);
}

START_TEST(a_missing_rank_is_an_error)
{
	with_ranks(1, alone);
	with_ranks(1, without_the_first);
}
END_TEST

/* The time-out holds from here on: what comes before is not to fail on a loaded machine. */
static void set_timeout(struct rank *r, int timeout_s)
{
	pthread_mutex_lock(&r->comm->lock);
	r->comm->timeout_s = timeout_s;
	r->comm->longest_wait = 0;
	r->comm->last_progress_at = clock_monotonic();
	pthread_mutex_unlock(&r->comm->lock);
}

/* A first all-reduce of all ranks. */
static void begin(struct rank *r, int size, int timeout_s, void **b)
{
	struct error err = ERROR_INIT;

	r->comm = join(r, size, 60, 0, NULL);
	ck_ok(device_alloc(r->dev, 64, b, &err), &err);
	ck_ok(comm_wait(r->comm, comm_all_reduce(r->comm, *b, 4, DTYPE_F32, COMM_SUM), &err), &err);
	ck_ok(comm_flush(r->comm, &err), &err);
	set_timeout(r, timeout_s);
}

static void stands_still(struct rank *r, comm_ticket ticket, int code, const char *words, const char *more)
{
	struct error err = ERROR_INIT;

	(void)comm_wait(r->comm, ticket, &err);
	ck_ok(device_synchronize(r->dev, &err), &err);
	ck_assert_int_eq(comm_flush(r->comm, &err), code);
	ck_assert_msg(strstr(err.message, words) != NULL && strstr(err.message, more) != NULL, "%s",
	              err.message);
	ck_assert_int_eq(comm_wait(r->comm, comm_barrier(r->comm), &err), code);
	sem_post(r->noticed);
}

/* A rank that hangs does so until `ranks` others have noticed. */
static void hang_until_noticed(struct rank *r, int ranks)
{
	for (int i = 0; i < ranks; i++)
		while (sem_wait(r->noticed) < 0)
			ck_assert_int_eq(errno, EINTR);
	for (int i = 0; i < ranks; i++)
		sem_post(r->noticed); /* for others that hang */
}

/* Rank 1 does not take part in the last collective: the wait of the other rank for its device ends, too. */
static void stalls(struct rank *r)
{
	void *b;

	begin(r, 2, 2, &b);
	r->awaited = "completed 1 ";
	if (r->rank == 0)
		stands_still(r, comm_all_gather(r->comm, b, 2, DTYPE_F32), -ETIMEDOUT,
		             "rank 0: all-gather (collective 2) has made no progress for 2 s: rank 1 on ",
		             " is past all-reduce (collective 1) and has not begun it");
	else
		hang_until_noticed(r, 1);
	device_free(r->dev, b);
}

START_TEST(a_stall_is_an_error)
{
	with_ranks(2, stalls);
}
END_TEST

/* The same in the first collective, which NCCL does not queue. */
static void stalls_at_once(struct rank *r)
{
	void *b;

	r->comm = join(r, 2, 60, 0, NULL);
	set_timeout(r, 2);
	r->awaited = "completed 0 ";
	ck_assert(device_alloc(r->dev, 64, &b, NULL) == 0);
	if (r->rank == 0)
		stands_still(r, comm_all_gather(r->comm, b, 2, DTYPE_F32), -ETIMEDOUT,
		             "rank 0: all-gather (collective 1) has made no progress for 2 s: rank 1 on ",
		             " has not begun it");
	else
		hang_until_noticed(r, 1);
	device_free(r->dev, b);
}

START_TEST(a_stall_at_the_first)
{
	with_ranks(2, stalls_at_once);
}
END_TEST

/* Rank 1 is late; rank 2 cannot be reached. */
static void two_are_missing(struct rank *r)
{
	void *b;

	begin(r, 3, 2, &b);
	r->awaited = "completed 1 ";
	if (r->rank == 0)
		stands_still(r, comm_barrier(r->comm), -ETIMEDOUT,
		             "rank 0: barrier (collective 2) has made no progress for 2 s: rank 1 on ",
		             " is past all-reduce (collective 1) and has not begun it, rank 2 on ");
	else
		hang_until_noticed(r, 1);
	device_free(r->dev, b);
}

static void says_nothing(struct rank *r)
{
	void *b;

	begin(r, 3, 2, &b);
	r->awaited = "running 2 ";
	if (r->rank == 2)
		hang_until_noticed(r, 2);
	else
		stands_still(r, comm_barrier(r->comm), -ETIMEDOUT, "for 2 s: rank 2 on ",
		             " has not reported: it hangs or has ended");
	device_free(r->dev, b);
}

START_TEST(a_stall_names_who_is_missing)
{
	with_ranks(3, two_are_missing);
	with_ranks_later(3, DEAF, two_are_missing);
	with_ranks_later(3, DEAF, says_nothing);
}
END_TEST

static void nobody_to_ask(struct rank *r)
{
	void *b;

	begin(r, 2, 2, &b);
	if (r->rank == 0)
		stands_still(r, comm_barrier(r->comm), -ETIMEDOUT,
		             "rank 0: barrier (collective 2) has made no progress for 2 s: ",
		             "where the other ranks are is not known: nobody listens");
	else
		hang_until_noticed(r, 1);
	device_free(r->dev, b);
}

START_TEST(a_stall_without_a_rendezvous)
{
	with_ranks_later(2, UNREACHABLE, nobody_to_ask);
}
END_TEST

static void differs(struct rank *r)
{
	void *b;

	begin(r, 2, 2, &b);
	r->awaited = "running 2 ";
	if (r->rank == 0)
		stands_still(r, comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM), -ETIMEDOUT,
		             "all-reduce (collective 2) has made no progress for 2 s: rank 1 on ",
		             " runs broadcast in its place: the ranks' calls differ");
	else
		stands_still(r, comm_broadcast(r->comm, b, 4, 0), -ETIMEDOUT, "broadcast (collective 2)",
		             " runs all-reduce in its place: the ranks' calls differ");
	device_free(r->dev, b);
}

START_TEST(calls_that_differ)
{
	with_ranks(2, differs);
}
END_TEST

/* Rank 1 has queued the collective, but its GPU has not completed earlier work, until both ranks have
 * noticed: rank 1 may have queued it later than rank 0. */
static void hangs(struct rank *r)
{
	void *b;

	begin(r, 2, 2, &b);
	r->awaited = "queued 2 ";
	if (r->rank == 0) {
		stands_still(r, comm_barrier(r->comm), -ETIMEDOUT,
		             "barrier (collective 2) has made no progress for 2 s: the GPU of rank 1 on ",
		             " has not reached barrier (collective 2)");
	} else {
		simt_stream_begin(r->dev->stream);
		comm_barrier(r->comm);
		hang_until_noticed(r, 1);
		ck_assert_int_eq(comm_flush(r->comm, NULL), -ETIMEDOUT);
		simt_stream_end(r->dev->stream);
		stands_still(r, 0, -ETIMEDOUT, "rank 1: barrier (collective 2)",
		             "this rank's GPU has not reached it: the computation before it hangs");
	}
	device_free(r->dev, b);
}

START_TEST(a_gpu_that_hangs)
{
	with_ranks(2, hangs);
}
END_TEST

/* A rank that continues after a while has not stalled, and reports this before the next check. */
static void goes_on(struct rank *r)
{
	struct error err = ERROR_INIT;
	void *b;

	begin(r, 2, 4, &b);
	for (int i = 0; i < 3; i++) {
		if (r->rank == 1)
			usleep(1500 * 1000);
		ck_ok(comm_wait(r->comm, comm_barrier(r->comm), &err), &err);
		ck_ok(comm_flush(r->comm, &err), &err);
	}
	/* Rank 0 has stood still for rank 1, and not the reverse; on a loaded machine rank 0 may be late,
	 * too. */
	if (r->rank == 0)
		ck_assert_double_ge(comm_waited_seconds(r->comm), 3.0);
	else
		ck_assert_double_lt(comm_waited_seconds(r->comm), 2.0);
	device_free(r->dev, b);
}

START_TEST(slow_is_no_stall)
{
	with_ranks(2, goes_on);
}
END_TEST

/* Waits that cannot be measured are waits nevertheless, and no error of the kernel that follows. */
static void unmeasured(struct rank *r)
{
	struct error err = ERROR_INIT;
	void *b;

	begin(r, 2, 20, &b);
	if (r->rank == 0) { /* the emulator runs kernels in one thread only */
		device_scale(r->dev, b, DTYPE_F32, 1, 4);
		ck_ok(device_synchronize(r->dev, &err), &err);
	}
	ck_assert_double_eq(comm_waited_seconds(r->comm), 0);
	device_free(r->dev, b);
}

START_TEST(without_events_waits_are_not_measured)
{
	simt_refuse_timing(1);
	with_ranks(2, unmeasured);
}
END_TEST

static int put_nothing(void *context, const char *key, const void *data, size_t len, struct error *err)
{
	return 0;
}

/* The values that other ranks have written, by rank; NULL: none. */
static int get_place(void *context, const char *key, int timeout_ms, void **data, size_t *len,
                     struct error *err)
{
	const char *value = ((const char *const *)context)[atoi(strrchr(key, '/') + 1)];

	ck_assert(str_starts(key, "group/at/") && timeout_ms == 0);
	if (!value)
		return error_set(err, -ETIMEDOUT, "timed out");
	*data = strdup(value);
	*len = strlen(value);
	return 0;
}

START_TEST(many_that_are_missing)
{
	const char *places[] = {NULL,
	                        "running 7 barrier a",
	                        "completed 3 broadcast b",
	                        NULL,
	                        "progressing 0 - c",
	                        "queued 7 barrier d",
	                        "running 6 all-gather e",
	                        "completed 0 - f",
	                        "running 8 barrier g"};
	const struct kv_store store = {places, put_nothing, get_place};
	struct comm_options o = {.world_size = 9, .store = &store, .group = "group"};
	struct stall s;
	char words[480], few[24];

	stall_init(&s, &o, NULL);
	stall_ask(&s, 7, "barrier", words, sizeof(words));
	ck_assert_str_eq(
	    words, "rank 2 on b is past broadcast (collective 3) and has not begun it, rank 3 has not "
	           "reported: it hangs or has ended, rank 4 on c has not reported: it hangs or has ended, "
	           "the GPU of rank 5 on d has not reached barrier (collective 7) and 2 more");
	stall_ask(&s, 7, "barrier", few, sizeof(few));
	ck_assert_str_eq(few, "rank 2 on b is past bro");
	stall_ask(&s, 0, "", words, sizeof(words));
	ck_assert_str_eq(words, "rank 3 has not begun to connect");
	for (int i = 1; i < 9; i++)
		places[i] = "running 7 barrier x";
	stall_ask(&s, 7, "barrier", words, sizeof(words));
	ck_assert_str_eq(words, "every rank is there: check the network (NCCL_DEBUG=INFO says more)");
	places[3] = "something else";
	stall_ask(&s, 7, "barrier", words, sizeof(words));
	ck_assert_str_eq(
	    words,
	    "where the other ranks are is not known: group/at/3 is not what this version writes there");
}
END_TEST

/* When all ranks are told to stop because one has died, the others wait for a quarter of the time-out, and
 * not for all of it, which were another error. */
static void told_to_stop(struct rank *r)
{
	double start;
	void *b;

	begin(r, 2, 12, &b);
	r->stop = true;
	start = clock_monotonic();
	if (r->rank == 0) {
		stands_still(r, comm_barrier(r->comm), -ECANCELED,
		             "rank 0: told to stop; barrier (collective 2) has waited for other ranks for ",
		             " s");
		ck_assert_double_ge(clock_monotonic() - start, 3);
	} else {
		hang_until_noticed(r, 1);
	}
	device_free(r->dev, b);
}

START_TEST(a_stopped_rank_does_not_wait)
{
	with_ranks(2, told_to_stop);
}
END_TEST

static void *abort_soon(void *context)
{
	usleep(100 * 1000);
	comm_abort(context);
	return NULL;
}

/* In a collective that NCCL has queued, and in a first one that it has not queued. */
static void aborted(struct rank *r, bool first)
{
	struct error err = ERROR_INIT;
	pthread_t thread;
	void *b;

	if (first) {
		r->comm = join(r, 2, 60, 0, NULL);
		ck_ok(device_alloc(r->dev, 64, &b, &err), &err);
	} else {
		begin(r, 2, 60, &b);
	}
	if (r->rank == 0) {
		ck_assert(!pthread_create(&thread, NULL, abort_soon, r->comm));
		comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM);
		ck_assert_int_eq(comm_flush(r->comm, &err), -ECANCELED);
		ck_assert_int_eq(comm_wait(r->comm, 1, &err), -ECANCELED);
		pthread_join(thread, NULL);
		sem_post(r->noticed);
	} else {
		hang_until_noticed(r, 1);
	}
	device_free(r->dev, b);
}

static void aborted_later(struct rank *r)
{
	aborted(r, false);
}

static void aborted_at_once(struct rank *r)
{
	aborted(r, true);
}

START_TEST(abort_from_another_thread)
{
	with_ranks(2, aborted_later);
	with_ranks(2, aborted_at_once);
}
END_TEST

/* A second communicator of some of the ranks, in addition to that of all. */
static void beside(struct rank *r)
{
	struct comm_options o = {.rank = r->rank / 2,
	                         .world_size = 2,
	                         .timeout_s = 20,
	                         .store = &(struct kv_store){r, put, get},
	                         .group = "even"};
	struct error err = ERROR_INIT;
	struct comm *even = NULL;
	float x = (float)r->rank;
	void *b;

	begin(r, RANKS, 20, &b);
	if (r->rank != 1) {
		ck_ok(comm_create(r->dev, &o, &even, &err), &err);
		ck_ok(device_write(r->dev, b, &x, sizeof(x), &err), &err);
		ck_ok(comm_wait(even, comm_all_reduce(even, b, 1, DTYPE_F32, COMM_SUM), &err), &err);
		ck_ok(device_read(r->dev, &x, b, sizeof(x), &err), &err);
		ck_assert_float_eq(x, 2);
	}
	ck_ok(comm_wait(r->comm, comm_barrier(r->comm), &err), &err);
	ck_ok(comm_flush(r->comm, &err), &err);
	comm_destroy(even);
	device_free(r->dev, b);
}

START_TEST(two_communicators)
{
	with_ranks(RANKS, beside);
}
END_TEST

/* Two lanes of all ranks and one of ranks 2 and 0, in this order. A collective of one lane is queued on rank
 * 0 before those of the others, and on the other ranks after them. */
static void splits(struct rank *r)
{
	struct error err = ERROR_INIT;
	struct comm *lane, *even;
	uint16_t half[COUNT], sum[SHARD];
	float host[COUNT] = {0};
	comm_ticket ticket = 0;
	void *b, *own, *held;

	begin(r, RANKS, 20, &b);
	ck_ok(comm_split(r->comm, 0, 0, &lane, &err), &err);
	ck_ok(comm_split(r->comm, r->rank == 1 ? -1 : 0, -r->rank, &even, &err), &err);
	ck_assert(comm_size(lane) == RANKS && comm_rank(lane) == r->rank);
	ck_assert((even == NULL) == (r->rank == 1));
	ck_ok(device_alloc(r->dev, sizeof(host), &held, &err), &err);
	ck_ok(device_alloc(r->dev, 64, &own, &err), &err);
	if (r->rank == 0)
		ticket = comm_all_reduce(r->comm, held, COUNT, DTYPE_F32, COMM_SUM);
	if (even) {
		ck_assert(comm_size(even) == 2 && comm_rank(even) == 1 - r->rank / 2);
		host[0] = (float)r->rank + 1;
		ck_ok(device_write(r->dev, own, host, sizeof(*host), &err), &err);
		ck_ok(comm_wait(even, comm_all_gather_into(even, b, own, 1, DTYPE_F32), &err), &err);
		ck_ok(device_read(r->dev, host, b, 2 * sizeof(*host), &err), &err);
		ck_assert(host[0] == 3 && host[1] == 1);
	}
	for (int i = 0; i < COUNT; i++)
		half[i] = bf16_from_float((float)(i * (r->rank + 1)));
	ck_ok(device_write(r->dev, b, half, sizeof(half), &err), &err);
	ck_ok(comm_wait(lane, comm_reduce_scatter_into(lane, own, b, SHARD, DTYPE_BF16, COMM_SUM), &err),
	      &err);
	ck_ok(device_read(r->dev, sum, own, sizeof(sum), &err), &err);
	for (int i = 0; i < SHARD; i++)
		ck_assert_float_eq(bf16_to_float(sum[i]), 6 * (r->rank * SHARD + i));
	ck_ok(device_read(r->dev, sum, b, sizeof(sum), &err), &err);
	ck_assert(!memcmp(sum, half, sizeof(sum)));
	if (r->rank)
		ticket = comm_all_reduce(r->comm, held, COUNT, DTYPE_F32, COMM_SUM);
	ck_ok(comm_wait(r->comm, ticket, &err), &err);
	ck_ok(comm_flush(r->comm, &err), &err);
	comm_destroy(even);
	comm_destroy(lane);
	device_free(r->dev, b);
	device_free(r->dev, own);
	device_free(r->dev, held);
}

START_TEST(lanes)
{
	with_ranks(RANKS, splits);
}
END_TEST

/* An abort of one communicator, and the death of a rank of another, end the collectives of all. */
static void fails_together(struct rank *r, bool dies)
{
	struct error err = ERROR_INIT, first = ERROR_INIT;
	struct comm *lane, *alone, *more;
	void *b;

	begin(r, 2, 60, &b);
	ck_ok(comm_split(r->comm, 0, 0, &lane, &err), &err);
	ck_ok(comm_split(lane, r->rank, 0, &alone, &err), &err);
	ck_ok(comm_wait(lane, comm_barrier(lane), &err), &err);
	ck_ok(comm_flush(lane, &err), &err);
	pthread_barrier_wait(r->together); /* the other rank may still be in its barrier */
	if (r->rank == 0) {
		comm_all_reduce(r->comm, b, 4, DTYPE_F32, COMM_SUM);
		comm_all_reduce(lane, b, 4, DTYPE_F32, COMM_SUM);
		if (dies)
			simt_nccl_die(lane->nccl);
		else
			comm_abort(alone);
		ck_assert_int_eq(comm_flush(r->comm, &first), dies ? -ECONNRESET : -ECANCELED);
		ck_ok(device_synchronize(r->dev, &err), &err);
		ck_assert_int_eq(comm_check(lane, &err), first.code);
		ck_assert_str_eq(err.message, first.message);
		ck_assert_int_eq(comm_wait(alone, comm_barrier(alone), &err), first.code);
		ck_assert_str_eq(err.message, first.message);
		ck_assert_int_eq(comm_split(alone, 0, 0, &more, &err), first.code);
		sem_post(r->noticed);
	} else {
		hang_until_noticed(r, 1);
	}
	comm_destroy(alone);
	comm_destroy(lane);
	device_free(r->dev, b);
}

static void one_aborts(struct rank *r)
{
	fails_together(r, false);
}

static void one_dies(struct rank *r)
{
	fails_together(r, true);
}

START_TEST(a_family_fails_together)
{
	with_ranks(2, one_aborts);
	with_ranks(2, one_dies);
}
END_TEST

/* A small sum beside a larger one, and a gather: nothing is queued before the end, and then all of it is. */
static void grouped(struct rank *r)
{
	enum { MANY = GROUP_MAX + 3 };
	float host[COUNT], all[COUNT], one = (float)(r->rank + 1), *buffer;
	struct error err = ERROR_INIT;
	comm_ticket ticket[MANY];
	double sum = r->rank + 1, *sums;
	uint64_t queued;
	void *memory;

	r->comm = join(r, RANKS, 20, 0, NULL);
	ck_ok(device_alloc(r->dev, sizeof(host), &memory, &err), &err);
	buffer = memory;
	ck_ok(device_alloc(r->dev, sizeof(all), &memory, &err), &err);
	ck_ok(device_alloc(r->dev, MANY * sizeof(sum), (void **)&sums, &err), &err);
	for (int i = 0; i < COUNT; i++)
		host[i] = (float)(r->rank * COUNT + i);
	ck_ok(device_write(r->dev, buffer, host, sizeof(host), &err), &err);
	for (int i = 0; i < SHARD; i++)
		ck_ok(device_write(r->dev, (float *)memory + r->rank * SHARD + i, &one, sizeof(one), &err),
		      &err);
	ck_ok(device_write(r->dev, sums, &sum, sizeof(sum), &err), &err);
	queued = r->comm->queued;
	comm_group_begin(r->comm);
	ticket[0] = comm_all_reduce(r->comm, buffer, COUNT, DTYPE_F32, COMM_SUM);
	comm_group_begin(r->comm);
	ticket[1] = comm_all_reduce_f64(r->comm, sums, 1, COMM_SUM);
	ticket[2] = comm_all_gather(r->comm, memory, SHARD, DTYPE_F32);
	ck_assert_uint_eq(r->comm->queued, queued);
	ck_assert_uint_eq(ticket[2], queued + 3);
	comm_group_end(r->comm);
	comm_group_end(r->comm);
	ck_assert_uint_eq(r->comm->queued, queued + 3);
	finish(r, ticket[0], host, buffer, sizeof(host));
	finish(r, ticket[2], all, memory, sizeof(all));
	ck_ok(device_read(r->dev, &sum, sums, sizeof(sum), &err), &err);
	ck_assert_double_eq(sum, 6);
	for (int i = 0; i < COUNT; i++) {
		ck_assert_float_eq(host[i], (float)(3 * COUNT + 3 * i));
		ck_assert_float_eq(all[i], (float)(i / SHARD + 1));
	}
	/* More than a group holds; what is waited for is not held back. */
	for (int i = 0; i < MANY; i++) {
		sum = r->rank + i;
		ck_ok(device_write(r->dev, sums + i, &sum, sizeof(sum), &err), &err);
	}
	comm_group_begin(r->comm);
	for (int i = 0; i < MANY; i++)
		ticket[i] = comm_all_reduce_f64(r->comm, sums + i, 1, COMM_SUM);
	ck_ok(comm_wait(r->comm, ticket[MANY - 1], &err), &err);
	for (int i = 0; i < MANY; i++) {
		ck_ok(device_read(r->dev, &sum, sums + i, sizeof(sum), &err), &err);
		ck_assert_double_eq(sum, 3 + 3 * i);
	}
	/* One alone is no group. */
	comm_group_begin(r->comm);
	ck_ok(comm_wait(r->comm, comm_barrier(r->comm), &err), &err);
	comm_group_begin(r->comm);
	comm_barrier(r->comm);
	ck_ok(comm_flush(r->comm, &err), &err);
	ck_ok(comm_check(r->comm, &err), &err);
	device_free(r->dev, buffer);
	device_free(r->dev, memory);
	device_free(r->dev, sums);
}

START_TEST(collectives_that_start_together)
{
	int before = simt_nccl_grouped();

	with_ranks(RANKS, grouped);
	ck_assert_int_eq(simt_nccl_grouped() - before, RANKS * (3 + GROUP_MAX + 3));
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
	tcase_add_test(tc, registered_everywhere_or_nowhere);
	tcase_add_test(tc, symmetric_windows);
	tcase_add_test(tc, a_window_that_is_refused);
	tcase_add_test(tc, buffers_of_a_collective_under_way);
	tcase_add_test(tc, a_missing_rank_is_an_error);
	tcase_add_test(tc, a_stall_is_an_error);
	tcase_add_test(tc, a_stall_at_the_first);
	tcase_add_test(tc, a_stall_names_who_is_missing);
	tcase_add_test(tc, a_stall_without_a_rendezvous);
	tcase_add_test(tc, calls_that_differ);
	tcase_add_test(tc, a_gpu_that_hangs);
	tcase_add_test(tc, slow_is_no_stall);
	tcase_add_test(tc, without_events_waits_are_not_measured);
	tcase_add_test(tc, many_that_are_missing);
	tcase_add_test(tc, a_stopped_rank_does_not_wait);
	tcase_add_test(tc, abort_from_another_thread);
	tcase_add_test(tc, two_communicators);
	tcase_add_test(tc, lanes);
	tcase_add_test(tc, a_family_fails_together);
	tcase_add_test(tc, collectives_that_start_together);
	tcase_add_test(tc, a_single_rank);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
