/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between real processes: how the ranks connect, and the results. */
#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "comm_stage.h"

/* ---- results ---- */

START_TEST(every_collective)
{
	use_transport(_i / 5);
	run_ranks(_i % 5 + 1, 60, rank_collectives);
}
END_TEST

/* The sum depends on the order of these numbers: all ranks get the same bits, also the second time; bf16 is
 * rounded once. */
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

/* After comm_wait the buffers are the caller's, also those that only other ranks read. */
static void rank_overwrites(struct stage *s, int rank)
{
	enum { COUNT = 300007 };
	struct comm *comm = join_stage(s, rank);
	float *own = malloc(COUNT * 4), *all = malloc(s->size * COUNT * 4);
	struct error err = ERROR_INIT;

	for (int round = 0; round < 15; round++) {
		for (int i = 0; i < COUNT; i++)
			own[i] = (float)value(rank + round, i);
		rank_ok(comm_wait(comm, comm_all_gather_into(comm, all, own, COUNT, DTYPE_F32), &err));
		memset(own, 0xff, COUNT * 4);
		for (int i = 0; i < s->size * COUNT; i++)
			rank_assert(all[i] == value(i / COUNT + round, i % COUNT), "element %d in round %d",
			            i, round);
		rank_ok(comm_wait(comm, comm_reduce_scatter_into(comm, own, all, COUNT, DTYPE_F32, COMM_MAX),
		                  &err));
		memset(all, 0xff, s->size * COUNT * 4);
		for (int i = 0; i < COUNT; i++)
			rank_assert(own[i] == value(rank + round, i), "element %d in round %d", i, round);
	}
	free(own);
	free(all);
	comm_destroy(comm);
}

START_TEST(buffers_return_to_the_caller)
{
	use_transport(_i);
	run_ranks(3, 60, rank_overwrites);
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
	float x = 3, y = 0, z = 0;

	ck_ok(comm_create(NULL, &options, &comm, &err), &err);
	ck_ok(comm_wait(comm, comm_all_reduce(comm, &x, 1, DTYPE_F32, COMM_SUM), &err), &err);
	ck_ok(comm_wait(comm, comm_barrier(comm), &err), &err);
	ck_ok(comm_flush(comm, &err), &err);
	ck_assert_float_eq(x, 3);
	comm_all_gather_into(comm, &y, &x, 1, DTYPE_F32);
	comm_reduce_scatter_into(comm, &z, &y, 1, DTYPE_F32, COMM_SUM);
	ck_ok(comm_flush(comm, &err), &err);
	ck_assert_float_eq(z, 3);
	comm_abort(comm);
	ck_assert_int_eq(comm_wait(comm, comm_barrier(comm), &err), -ECANCELED);
	comm_destroy(comm);
	comm_destroy(NULL);
	options.rank = 1;
	ck_fails(comm_create(NULL, &options, &comm, &err), &err, "rank 1 of 1");
}
END_TEST

/* ---- splitting ---- */

/* Checks which ranks the communicator has, by the sum of their numbers' powers of two, and that it works. */
static void check_members(struct comm *comm, int rank, int position, int size, int numbers)
{
	struct error err = ERROR_INIT;
	float x = (float)(1 << rank);

	rank_assert(comm && comm_rank(comm) == position && comm_size(comm) == size, "rank %d of %d",
	            comm ? comm_rank(comm) : -1, comm ? comm_size(comm) : -1);
	rank_ok(comm_wait(comm, comm_all_reduce(comm, &x, 1, DTYPE_F32, COMM_SUM), &err));
	rank_assert(x == numbers, "the ranks are %g, not %d", x, numbers);
	check_all_reduce(comm, 70001, DTYPE_F32, COMM_SUM);
}

static void rank_splits(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank), *lane, *pair, *across, *alone, *some, *again;
	int n = s->size, first = rank / 2 * 2, members = MIN(2, n - first);
	struct error err = ERROR_INIT;

	rank_ok(comm_split(comm, 0, 0, &lane, &err));
	check_members(lane, rank, rank, n, (1 << n) - 1);
	/* Shards within pairs, replicas across them. */
	rank_ok(comm_split(comm, rank / 2, -rank, &pair, &err));
	check_members(pair, rank, members - 1 - rank % 2, members, ((1 << members) - 1) << first);
	rank_ok(comm_split(lane, rank % 2, 7, &across, &err));
	check_members(across, rank, rank / 2, (n + 1 - rank % 2) / 2, 5 << rank % 2 & ((1 << n) - 1));
	rank_ok(comm_split(pair, rank, 0, &alone, &err));
	check_members(alone, rank, 0, 1, 1 << rank);
	rank_ok(comm_split(comm, rank == n - 1 ? 3 : -1, 0, &some, &err));
	rank_assert((some != NULL) == (rank == n - 1), "a rank without color");
	rank_ok(comm_split(comm, 0, n - rank, &again, &err));
	check_members(again, rank, n - 1 - rank, n, (1 << n) - 1);
	/* The first one may go before the others. */
	comm_destroy(comm);
	comm_destroy(some);
	check_members(lane, rank, rank, n, (1 << n) - 1);
	check_members(pair, rank, members - 1 - rank % 2, members, ((1 << members) - 1) << first);
	comm_destroy(lane);
	comm_destroy(alone);
	comm_destroy(across);
	comm_destroy(pair);
	comm_destroy(again);
}

START_TEST(splits)
{
	use_transport(_i / 4);
	run_ranks(_i % 4 + 1, 30, rank_splits);
}
END_TEST

/* Rank 0 has queued a collective on one communicator that rank 1 calls only once another, queued later on the
 * other communicator, is done; in both directions. */
static void rank_lanes(struct stage *s, int rank)
{
	enum { COUNT = 1 << 20 };
	struct comm *lanes[2];
	float *x[2] = {calloc(COUNT, 4), calloc(COUNT, 4)};
	struct error err = ERROR_INIT;

	lanes[0] = join_stage(s, rank);
	rank_ok(comm_split(lanes[0], 0, 0, &lanes[1], &err));
	for (int i = 0; i < 4; i++) {
		struct comm *held = lanes[i % 2], *free_one = lanes[1 - i % 2];
		comm_ticket ticket = 0;

		if (rank == 0)
			ticket = comm_all_reduce(held, x[0], COUNT, DTYPE_F32, COMM_SUM);
		rank_ok(
		    comm_wait(free_one, comm_all_reduce(free_one, x[1], COUNT, DTYPE_F32, COMM_SUM), &err));
		check_all_reduce(free_one, 1000, DTYPE_F32, COMM_SUM);
		let_others_come(s, rank, 1);
		if (rank == 1)
			ticket = comm_all_reduce(held, x[0], COUNT, DTYPE_F32, COMM_SUM);
		rank_ok(comm_wait(held, ticket, &err));
	}
	comm_destroy(lanes[0]);
	comm_destroy(lanes[1]);
	free(x[0]);
	free(x[1]);
}

START_TEST(lanes_do_not_wait_for_each_other)
{
	use_transport(_i);
	run_ranks(2, 30, rank_lanes);
}
END_TEST

static double processor_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Idle communicators leave the processors to others. */
static void rank_idles(struct stage *s, int rank)
{
	struct comm *comm = join_stage(s, rank), *lanes[3];
	struct error err = ERROR_INIT;
	double before;

	for (int i = 0; i < 3; i++)
		rank_ok(comm_split(comm, 0, 0, &lanes[i], &err));
	rank_ok(comm_wait(comm, comm_barrier(comm), &err));
	let_others_come(s, rank, 0);
	before = processor_time();
	nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
	rank_assert(processor_time() - before < 0.05, "%.3f s of 0.3 s", processor_time() - before);
	comm_destroy(comm);
	for (int i = 0; i < 3; i++)
		comm_destroy(lanes[i]);
}

START_TEST(idle_lanes_sleep)
{
	use_transport(_i);
	run_ranks(2, 30, rank_idles);
}
END_TEST

/* ---- bootstrap ---- */

/* Connects to every TCP port on which a process listens, sends invalid data, and stays connected. */
static int pester(pid_t pid)
{
	static const char foreign[] = "GET / HTTP/1.1\r\nHost: stray\r\nUser-Agent: a port scan\r\n\r\n";
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
						(void)!send(fd, foreign, i % 3 == 1 ? sizeof(foreign) - 1 : 7,
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
	_cleanup_free_ void *address = NULL;
	pid_t pids[2];
	size_t len;

	use_transport(_i);
	pids[0] = spawn(s, 0, rank_same_bits);
	ck_ok(kv_store_get(s->directory, "a/ucx/0", 20000, &address, &len, &err), &err);
	ck_assert_int_ge(pester(pids[0]), 1);
	pids[1] = spawn(s, 1, rank_same_bits);
	expect_all(s, pids, -1);
	stage_close(s);
}
END_TEST

/* Whatever variables the user has set, the ranks connect, and nothing is printed. */
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
	TCase *results = tcase_create("results"), *bootstrap = tcase_create("bootstrap"),
	      *splitting = tcase_create("splitting");

	tcase_set_timeout(results, 300);
	tcase_add_loop_test(results, every_collective, 0, 15);
	tcase_add_loop_test(results, same_bits, 2, 6);
	tcase_add_test(results, tickets_in_order);
	tcase_add_loop_test(results, buffers_return_to_the_caller, 0, 3);
	tcase_add_test(results, groups);
	tcase_add_test(results, a_single_rank);
	suite_add_tcase(suite, results);
	tcase_set_timeout(splitting, 180);
	tcase_add_loop_test(splitting, splits, 0, 12);
	tcase_add_loop_test(splitting, lanes_do_not_wait_for_each_other, 0, 3);
	tcase_add_loop_test(splitting, idle_lanes_sleep, 0, 3);
	suite_add_tcase(suite, splitting);
	tcase_set_timeout(bootstrap, 180);
	tcase_add_loop_test(bootstrap, stray_connections, 0, 2);
	tcase_add_test(bootstrap, quiet_with_odd_variables);
	suite_add_tcase(suite, bootstrap);
	return unit_run(suite);
}
