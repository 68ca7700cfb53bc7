/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between real processes: every test forks its ranks, which meet in a directory. */
#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "engine/comm/comm.h"
#include "rendezvous.h"
#include "unit.h"

enum { RANKS_MAX = 8 };

#ifdef __SANITIZE_ADDRESS__
/* UCX keeps some of its own until the process ends. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libucs\nleak:libucp\nleak:libuct\nleak:libucm\n";
}
#endif

/* What the processes of one test share. */
struct stage {
	int size, timeout_s;
	char directory[256];
	const char *group;
	_Atomic double moment; /* when the thing happened that the test is about */
	int gate[2];           /* a pipe that the parent closes to let waiting ranks go on */
	int told[2];           /* a pipe in which ranks tell one another */
};

typedef void (*rank_fn)(struct stage *stage, int rank);

/* In a rank: the test fails, in words, with an exit status that the parent asserts on. */
#define rank_assert(expr, ...)                                                                               \
	do {                                                                                                 \
		if (!(expr)) {                                                                               \
			fprintf(stderr, "rank %d, line %d: %s: ", rank, __LINE__, #expr);                    \
			fprintf(stderr, __VA_ARGS__);                                                        \
			fputc('\n', stderr);                                                                 \
			exit(9);                                                                             \
		}                                                                                            \
	} while (0)

#define rank_ok(expr)                                                                                        \
	do {                                                                                                 \
		int r_ = (expr);                                                                             \
		rank_assert(r_ == 0, "%d %s", r_, err.message);                                              \
	} while (0)

static struct stage *stage_open(int size, int timeout_s)
{
	struct stage *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_cleanup_free_ char *directory = NULL;

	ck_assert(s != MAP_FAILED);
	s->size = size;
	s->timeout_s = timeout_s;
	directory = unit_tmpdir();
	snprintf(s->directory, sizeof(s->directory), "%s", directory);
	s->group = "a";
	ck_assert_int_eq(pipe(s->gate) | pipe(s->told), 0);
	return s;
}

static void stage_close(struct stage *s)
{
	struct error err = ERROR_INIT;

	ck_ok(file_remove_tree(s->directory, &err), &err);
	close(s->gate[0]);
	close(s->told[0]);
	close(s->told[1]);
	munmap(s, sizeof(*s));
}

static pid_t spawn(struct stage *s, int rank, rank_fn fn)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(s->gate[1]);
		fn(s, rank);
		exit(0);
	}
	return pid;
}

static void spawn_all(struct stage *s, rank_fn fn, pid_t *pids)
{
	for (int r = 0; r < s->size; r++)
		pids[r] = spawn(s, r, fn);
}

/* Waits for all but `except` (-1: all) and demands that they ended well. */
static void expect_all(struct stage *s, const pid_t *pids, int except)
{
	for (int r = 0; r < s->size; r++) {
		int status;

		if (r == except)
			continue;
		ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
		ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d ended with status %#x", r,
		              status);
	}
}

static void run_ranks(int size, int timeout_s, rank_fn fn)
{
	struct stage *s = stage_open(size, timeout_s);
	pid_t pids[RANKS_MAX];

	spawn_all(s, fn, pids);
	expect_all(s, pids, -1);
	close(s->gate[1]);
	stage_close(s);
}

static struct comm *join_group(struct stage *s, int rank, const char *group)
{
	struct rendezvous meeting = rendezvous_in(s->directory);
	struct comm_options options = {
	    .rank = rank,
	    .world_size = s->size,
	    .timeout_s = s->timeout_s,
	    .rendezvous = &meeting,
	    .group = group,
	};
	struct error err = ERROR_INIT;
	struct comm *comm;

	rank_ok(comm_create(NULL, &options, &comm, &err));
	return comm;
}

static struct comm *join_stage(struct stage *s, int rank)
{
	return join_group(s, rank, s->group);
}

static void wait_at_gate(struct stage *s)
{
	char byte;

	(void)!read(s->gate[0], &byte, 1);
}

/* The one who is about to do harm lets the others finish what is common first, by other means than comm. */
static void let_others_come(struct stage *s, int rank, int harmful)
{
	char byte = 0;

	if (rank != harmful)
		rank_assert(write(s->told[1], &byte, 1) == 1, "pipe");
	for (int i = 1; rank == harmful && i < s->size; i++)
		rank_assert(read(s->told[0], &byte, 1) == 1, "pipe");
}

/* ---- results ---- */

static const char *const transports[] = {NULL, "tcp,self", "posix,self"};

static void use_transport(int i)
{
	unsetenv("UCX_TLS");
	if (transports[i])
		setenv("UCX_TLS", transports[i], 1);
}

/* Small whole numbers: every order of summing gives the same, in bf16 too. */
static double value(int rank, int64_t i)
{
	return (double)((i * 7 + rank * 13) % 31 - 15);
}

static double expected(int size, int64_t i, enum comm_op op)
{
	double x = value(0, i);

	for (int r = 1; r < size; r++)
		x = op == COMM_SUM ? x + value(r, i) : fmax(x, value(r, i));
	return x;
}

static void store(void *buffer, enum dtype type, int64_t i, double x)
{
	if (type == DTYPE_F32)
		((float *)buffer)[i] = (float)x;
	else
		((uint16_t *)buffer)[i] = bf16_from_float((float)x);
}

static double load(const void *buffer, enum dtype type, int64_t i)
{
	return type == DTYPE_F32 ? ((const float *)buffer)[i] : bf16_to_float(((const uint16_t *)buffer)[i]);
}

static void check_all_reduce(struct comm *comm, int64_t count, enum dtype type, enum comm_op op)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	_cleanup_free_ void *buffer = malloc(count * 4 + 64);
	struct error err = ERROR_INIT;

	for (int64_t i = 0; i < count; i++)
		store(buffer, type, i, value(rank, i));
	rank_ok(comm_wait(comm, comm_all_reduce(comm, buffer, count, type, op), &err));
	for (int64_t i = 0; i < count; i++)
		rank_assert(load(buffer, type, i) == expected(size, i, op), "%s count %ld element %ld: %g",
		            dtype_name(type), (long)count, (long)i, load(buffer, type, i));
}

static void check_all_reduce_f64(struct comm *comm, int64_t count, enum comm_op op)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	_cleanup_free_ double *buffer = malloc(count * 8 + 64);
	struct error err = ERROR_INIT;

	for (int64_t i = 0; i < count; i++)
		buffer[i] = value(rank, i) + 1e-12;
	rank_ok(comm_wait(comm, comm_all_reduce_f64(comm, buffer, count, op), &err));
	for (int64_t i = 0; i < count; i++)
		rank_assert(fabs(buffer[i] - expected(size, i, op)) < 1e-10, "%g", buffer[i]);
}

static void check_reduce_scatter(struct comm *comm, int64_t shard, enum dtype type)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	_cleanup_free_ void *buffer = malloc(shard * size * 4 + 64);
	struct error err = ERROR_INIT;

	for (int64_t i = 0; i < shard * size; i++)
		store(buffer, type, i, value(rank, i));
	rank_ok(comm_wait(comm, comm_reduce_scatter(comm, buffer, shard, type, COMM_SUM), &err));
	for (int64_t i = rank * shard; i < (rank + 1) * shard; i++)
		rank_assert(load(buffer, type, i) == expected(size, i, COMM_SUM), "shard %ld element %ld",
		            (long)shard, (long)i);
}

static void check_all_gather(struct comm *comm, int64_t shard, enum dtype type)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	_cleanup_free_ void *buffer = calloc(shard * size + 16, 4);
	struct error err = ERROR_INIT;

	for (int64_t i = rank * shard; i < (rank + 1) * shard; i++)
		store(buffer, type, i, value(rank, i));
	rank_ok(comm_wait(comm, comm_all_gather(comm, buffer, shard, type), &err));
	for (int r = 0; r < size; r++)
		for (int64_t i = r * shard; i < (r + 1) * shard; i++)
			rank_assert(load(buffer, type, i) == value(r, i), "shard %ld element %ld",
			            (long)shard, (long)i);
}

static void check_broadcast(struct comm *comm, size_t bytes, int root)
{
	int rank = comm_rank(comm);
	_cleanup_free_ uint8_t *buffer = calloc(bytes + 1, 1);
	struct error err = ERROR_INIT;

	for (size_t i = 0; rank == root && i < bytes; i++)
		buffer[i] = (uint8_t)(i * 31 + root);
	rank_ok(comm_wait(comm, comm_broadcast(comm, buffer, bytes, root), &err));
	for (size_t i = 0; i < bytes; i++)
		rank_assert(buffer[i] == (uint8_t)(i * 31 + root), "%zu bytes from %d, byte %zu", bytes, root,
		            i);
	rank_assert(buffer[bytes] == 0, "wrote beyond the end");
}

static void rank_collectives(struct stage *s, int rank)
{
	static const int64_t counts[] = {0, 1, 2, 3, 5, 63, 65, 1000, 4097, 8193, 70001, 400009, 1048579};
	struct comm *comm = join_stage(s, rank);
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
		check_all_reduce(comm, counts[i], DTYPE_F32, COMM_SUM);
		check_all_reduce(comm, counts[i], DTYPE_F32, COMM_MAX);
		check_all_reduce(comm, counts[i], DTYPE_BF16, COMM_SUM);
		check_all_reduce(comm, counts[i], DTYPE_BF16, COMM_MAX);
		check_all_reduce_f64(comm, counts[i], COMM_SUM);
		check_all_reduce_f64(comm, counts[i], COMM_MAX);
		check_reduce_scatter(comm, counts[i] / 2, DTYPE_F32);
		check_reduce_scatter(comm, counts[i] / 2, DTYPE_BF16);
		check_all_gather(comm, counts[i] / 2, DTYPE_F32);
		check_all_gather(comm, counts[i] / 2, DTYPE_BF16);
		for (int root = 0; root < s->size; root++)
			check_broadcast(comm, counts[i], root);
		rank_ok(comm_wait(comm, comm_barrier(comm), &err));
	}
	comm_destroy(comm);
}

START_TEST(every_collective)
{
	use_transport(_i / 5);
	run_ranks(_i % 5 + 1, 60, rank_collectives);
}
END_TEST

/* Numbers whose sum depends on the order: all ranks have the same bits, twice the same; bf16 is rounded once.
 */
static void rank_same_bits(struct stage *s, int rank)
{
	enum { COUNT = 100003 };
	struct comm *comm = join_stage(s, rank);
	float *buffer = malloc(COUNT * 4), *first = malloc(COUNT * 4), *all = malloc(s->size * COUNT * 4);
	uint16_t *half = malloc(COUNT * 2);
	struct error err = ERROR_INIT;

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < COUNT; i++)
			buffer[i] = sinf((float)(i * 17 + rank * 101)) * expf((float)(i % 40 - 20));
		comm_all_reduce(comm, buffer, COUNT, DTYPE_F32, COMM_SUM);
		rank_ok(comm_flush(comm, &err));
		if (round)
			rank_assert(!memcmp(first, buffer, COUNT * 4), "another round, other bits");
		memcpy(first, buffer, COUNT * 4);
	}
	memcpy(all + rank * COUNT, buffer, COUNT * 4);
	comm_all_gather(comm, all, COUNT, DTYPE_F32);
	rank_ok(comm_flush(comm, &err));
	for (int r = 0; r < s->size; r++)
		rank_assert(!memcmp(all + r * COUNT, buffer, COUNT * 4), "rank %d has other bits", r);

	for (int i = 0; i < COUNT; i++)
		half[i] = bf16_from_float(sinf((float)(i + rank * 7)));
	comm_all_reduce(comm, half, COUNT, DTYPE_BF16, COMM_SUM);
	rank_ok(comm_flush(comm, &err));
	for (int i = 0; i < COUNT; i++) {
		float sum = bf16_to_float(bf16_from_float(sinf((float)i)));

		for (int r = 1; r < s->size; r++)
			sum += bf16_to_float(bf16_from_float(sinf((float)(i + r * 7))));
		rank_assert(half[i] == bf16_from_float(sum), "element %d is rounded more than once", i);
	}
	free(buffer);
	free(first);
	free(all);
	free(half);
	comm_destroy(comm);
}

START_TEST(same_bits)
{
	use_transport(0);
	run_ranks(_i, 60, rank_same_bits);
}
END_TEST

/* Far more tickets than the queue holds, waited for in any order: each is done once a later one is. */
static void rank_tickets(struct stage *s, int rank)
{
	enum { COUNT = 700 };
	struct comm *comm = join_stage(s, rank);
	float *x = malloc(COUNT * 1000 * 4);
	comm_ticket tickets[COUNT];
	struct error err = ERROR_INIT;

	rank_ok(comm_wait(comm, 0, &err));
	for (int i = 0; i < COUNT * 1000; i++)
		x[i] = (float)value(rank, i);
	for (int i = 0; i < COUNT; i++) {
		tickets[i] = comm_all_reduce(comm, x + i * 1000, i % 1000, DTYPE_F32, COMM_SUM);
		rank_assert(tickets[i] && (!i || tickets[i] > tickets[i - 1]), "tickets out of order");
		if (i == 500) {
			rank_ok(comm_wait(comm, tickets[250], &err));
			for (int k = 0; k <= 250; k++)
				for (int j = 0; j < k % 1000; j++)
					rank_assert(x[k * 1000 + j] ==
					                expected(s->size, k * 1000 + j, COMM_SUM),
					            "ticket %d is not done", k);
		}
	}
	rank_ok(comm_wait(comm, tickets[COUNT - 1], &err));
	for (int k = 0; k < COUNT; k++)
		rank_ok(comm_wait(comm, tickets[k], &err));
	rank_ok(comm_flush(comm, &err));
	for (int j = 0; j < 699; j++)
		rank_assert(x[699 * 1000 + j] == expected(s->size, 699 * 1000 + j, COMM_SUM), "the last");
	free(x);
	comm_destroy(comm);
}

START_TEST(tickets_in_order)
{
	use_transport(0);
	run_ranks(3, 60, rank_tickets);
}
END_TEST

/* Two communicators at once and a third after them, all through one rendezvous. */
static void rank_groups(struct stage *s, int rank)
{
	struct comm *a = join_group(s, rank, "first/1"), *b = join_group(s, rank, "second");
	struct error err = ERROR_INIT;
	float x[2] = {1, 10};

	comm_all_reduce(a, &x[0], 1, DTYPE_F32, COMM_SUM);
	comm_all_reduce(b, &x[1], 1, DTYPE_F32, COMM_SUM);
	rank_ok(comm_flush(b, &err));
	rank_ok(comm_flush(a, &err));
	rank_assert(x[0] == s->size && x[1] == 10 * s->size, "%g %g", x[0], x[1]);
	comm_destroy(a);
	comm_destroy(b);
	a = join_group(s, rank, "first/2");
	check_all_reduce(a, 100, DTYPE_F32, COMM_SUM);
	rank_assert(comm_rank(a) == rank && comm_size(a) == s->size, "who am I");
	rank_assert(strstr(comm_describe(a), "ucx"), "%s", comm_describe(a));
	comm_destroy(a);
}

START_TEST(groups)
{
	use_transport(0);
	run_ranks(2, 30, rank_groups);
}
END_TEST

START_TEST(a_single_rank)
{
	struct comm_options options = {.world_size = 1, .timeout_s = 5};
	struct error err = ERROR_INIT;
	struct comm *comm;
	float x = 3;

	ck_ok(comm_create(NULL, &options, &comm, &err), &err);
	ck_ok(comm_wait(comm, comm_all_reduce(comm, &x, 1, DTYPE_F32, COMM_SUM), &err), &err);
	ck_ok(comm_wait(comm, comm_barrier(comm), &err), &err);
	ck_ok(comm_flush(comm, &err), &err);
	ck_assert_float_eq(x, 3);
	comm_abort(comm);
	ck_assert_int_eq(comm_wait(comm, comm_barrier(comm), &err), -ECANCELED);
	comm_destroy(comm);
	comm_destroy(NULL);
	options.rank = 1;
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "rank 1 of 1");
}
END_TEST

/* ---- failures ---- */

enum { LARGE = 16 << 20 };

/* Waits for the failure that has to come, within `seconds` of the stage's moment. */
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
	expect_failure(s, rank, comm, ticket, -ECONNRESET, "rank 1 ", 1.0);
	free(x);
}

/* As the one above, but the ranks believe that they are on different hosts. */
static void rank_killed_afar(struct stage *s, int rank)
{
	if (unshare(CLONE_NEWIPC) < 0)
		exit(0); /* wants privileges */
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

/* Rank 1 lives but does not come: the error says where it is. */
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
		/* Rank 2 never comes, so that the wait can end in no other way. */
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
	struct rendezvous meeting = rendezvous_in(s->directory);
	struct comm_options options = {
	    .rank = 0, .world_size = 2, .timeout_s = 1, .rendezvous = &meeting, .group = "x"};
	struct error err = ERROR_INIT;
	struct comm *comm;

	use_transport(0);
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "rank 1 of 2 did not come");
	ck_assert_int_eq(err.code, -ETIMEDOUT);
	ck_ok(rendezvous_put(s->directory, "y/ucx/1", "garbage", 7, &err), &err);
	options.group = "y";
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "another version");
	setenv("UCX_TLS", "no-such-thing", 1);
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "UCX_TLS");
	stage_close(s);
}
END_TEST

/* Connects to every TCP port that a process listens on, says something strange there, and stays. */
static int pester(pid_t pid)
{
	static const char strange[] = "GET / HTTP/1.1\r\nHost: stray\r\nUser-Agent: a port scan\r\n\r\n";
	char path[64], line[512], link[64];
	int found = 0;

	for (int v6 = 0; v6 < 2; v6++) {
		_cleanup_fclose_ FILE *f = NULL;

		snprintf(path, sizeof(path), "/proc/%d/net/tcp%s", pid, v6 ? "6" : "");
		f = fopen(path, "re");
		while (f && fgets(line, sizeof(line), f)) {
			unsigned port, state;
			unsigned long inode;
			struct dirent *entry;
			_cleanup_closedir_ DIR *fds = NULL;

			if (sscanf(line, "%*d: %*x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", &port,
			           &state, &inode) != 3 ||
			    state != 0x0a)
				continue;
			snprintf(path, sizeof(path), "/proc/%d/fd", pid);
			snprintf(line, sizeof(line), "socket:[%lu]", inode);
			fds = opendir(path);
			while (fds && (entry = readdir(fds))) {
				ssize_t n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
				struct sockaddr_in to = {.sin_family = AF_INET,
				                         .sin_port = htons((uint16_t)port),
				                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

				if (n <= 0 || (link[n] = '\0', strcmp(link, line)))
					continue;
				for (int i = 0; i < 90; i++) {
					int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

					if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
						close(fd); /* full, or not on this address */
						break;
					}
					if (i % 3)
						(void)!send(fd, strange, i % 3 == 1 ? sizeof(strange) - 1 : 7,
						            MSG_NOSIGNAL);
					if (i % 9 == 0)
						close(fd);
				}
				found++;
			}
		}
	}
	return found;
}

START_TEST(stray_connections)
{
	struct stage *s = stage_open(2, 30);
	struct error err = ERROR_INIT;
	_cleanup_free_ void *card = NULL;
	pid_t pids[2];
	size_t len;

	use_transport(_i);
	pids[0] = spawn(s, 0, rank_same_bits);
	ck_ok(rendezvous_get(s->directory, "a/ucx/0", 20000, &card, &len, &err), &err);
	ck_assert_int_ge(pester(pids[0]), 1);
	pids[1] = spawn(s, 1, rank_same_bits);
	expect_all(s, pids, -1);
	stage_close(s);
}
END_TEST

/* Whatever a user's environment says, the ranks meet, and nothing is printed. */
static void rank_quiet(struct stage *s, int rank)
{
	_cleanup_free_ char *path = NULL;
	struct error err = ERROR_INIT;
	struct stat st;
	int saved = dup(2), fd;
	struct comm *comm;

	if (asprintf(&path, "%s/stderr-%d", s->directory, rank) < 0)
		exit(9);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	dup2(fd, 1);
	dup2(fd, 2);
	comm = join_stage(s, rank);
	rank_ok(comm_wait(comm, comm_barrier(comm), &err));
	comm_destroy(comm);
	fflush(NULL);
	dup2(saved, 2);
	fstat(fd, &st);
	rank_assert(!st.st_size, "%ld bytes in %s", (long)st.st_size, path);
}

START_TEST(quiet_with_odd_variables)
{
	use_transport(0);
	setenv("UCX_NO_SUCH_VARIABLE", "1", 1);
	setenv("UCX_NET_DEVICES", "lo", 1);
	run_ranks(2, 30, rank_quiet);
	unsetenv("UCX_NO_SUCH_VARIABLE");
	unsetenv("UCX_NET_DEVICES");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("comm");
	TCase *results = tcase_create("results"), *failures = tcase_create("failures");

	tcase_set_timeout(results, 120);
	tcase_add_loop_test(results, every_collective, 0, 15);
	tcase_add_loop_test(results, same_bits, 2, 6);
	tcase_add_test(results, tickets_in_order);
	tcase_add_test(results, groups);
	tcase_add_test(results, a_single_rank);
	suite_add_tcase(suite, results);
	tcase_set_timeout(failures, 60);
	tcase_add_loop_test(failures, death_is_an_error_at_once, 0, 12);
	tcase_add_test(failures, hosts_apart);
	tcase_add_loop_test(failures, death_between_collectives, 0, 2);
	tcase_add_loop_test(failures, a_stopped_rank_times_out, 0, 2);
	tcase_add_test(failures, a_late_rank_is_named);
	tcase_add_test(failures, calls_that_differ);
	tcase_add_test(failures, a_rank_that_left);
	tcase_add_loop_test(failures, abort_from_another_thread, 0, 2);
	tcase_add_test(failures, a_missing_rank_is_named);
	tcase_add_loop_test(failures, stray_connections, 0, 2);
	tcase_add_test(failures, quiet_with_odd_variables);
	suite_add_tcase(suite, failures);
	return unit_run(suite);
}
