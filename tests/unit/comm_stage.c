/* SPDX-License-Identifier: Apache-2.0 */
/* Forks the ranks of a test as processes, which find each other through a directory: comm_stage.h. */
#include "comm_stage.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#ifdef __SANITIZE_ADDRESS__
/* UCX keeps some memory until the process ends. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libucs\nleak:libucp\nleak:libuct\nleak:libucm\n";
}
#endif

/* The process moves into a network of its own with one pair of interfaces, where that is possible. In the
 * network of the machine, a bridge of the nodes that another test boots would be the fastest interface,
 * through which the ranks connect, and that test removes it. */
static void use_network_of_its_own(void)
{
	static bool done;
	int machine = done ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	done = true;
	if (machine < 0)
		return;
	if (unshare(CLONE_NEWNET) == 0 &&
	    system("ip link set lo up && ip link add apart type veth peer name other && "
	           "ip address add 10.0.0.1/24 dev apart && ip link set apart up && ip link set other up"))
		ck_assert_int_eq(setns(machine, CLONE_NEWNET), 0);
	close(machine);
}

struct stage *stage_open(int size, int timeout_s)
{
	struct stage *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_cleanup_free_ char *directory = NULL;

	ck_assert(s != MAP_FAILED);
	use_network_of_its_own();
	s->size = size;
	s->timeout_s = timeout_s;
	directory = unit_tmpdir();
	snprintf(s->directory, sizeof(s->directory), "%s", directory);
	s->group = "a";
	ck_assert_int_eq(pipe(s->gate) | pipe(s->told), 0);
	return s;
}

void stage_close(struct stage *s)
{
	struct error err = ERROR_INIT;

	ck_ok(file_remove_tree(s->directory, &err), &err);
	close(s->gate[0]);
	close(s->told[0]);
	close(s->told[1]);
	munmap(s, sizeof(*s));
}

pid_t spawn(struct stage *s, int rank, rank_fn fn)
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

void spawn_all(struct stage *s, rank_fn fn, pid_t *pids)
{
	for (int r = 0; r < s->size; r++)
		pids[r] = spawn(s, r, fn);
}

void expect_all(struct stage *s, const pid_t *pids, int except)
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

void run_ranks(int size, int timeout_s, rank_fn fn)
{
	struct stage *s = stage_open(size, timeout_s);
	pid_t pids[RANKS_MAX];

	spawn_all(s, fn, pids);
	expect_all(s, pids, -1);
	close(s->gate[1]);
	stage_close(s);
}

struct comm *join_group(struct stage *s, int rank, const char *group)
{
	struct kv_store store = kv_store_in(s->directory);
	struct comm_options options = {
	    .rank = rank,
	    .world_size = s->size,
	    .timeout_s = s->timeout_s,
	    .store = &store,
	    .group = group,
	    .node = rank % 2 ? "odd" : "even",
	};
	struct error err = ERROR_INIT;
	struct comm *comm;

	rank_ok(comm_create(NULL, &options, &comm, &err));
	return comm;
}

struct comm *join_stage(struct stage *s, int rank)
{
	return join_group(s, rank, s->group);
}

void wait_at_gate(struct stage *s)
{
	char byte;

	(void)!read(s->gate[0], &byte, 1);
}

void let_others_come(struct stage *s, int rank, int harmful)
{
	char byte = 0;

	if (rank != harmful)
		rank_assert(write(s->told[1], &byte, 1) == 1, "pipe");
	for (int i = 1; rank == harmful && i < s->size; i++)
		rank_assert(read(s->told[0], &byte, 1) == 1, "pipe");
}

static const char *const transports[] = {NULL, "tcp,self", "posix,self"};

void use_transport(int i)
{
	unsetenv("UCX_TLS");
	if (transports[i])
		setenv("UCX_TLS", transports[i], 1);
}

/* ---- results ---- */

/* Small integers: every order of summing gives the same result, in bf16, too. */
double value(int rank, int64_t i)
{
	return (double)((i * 7 + rank * 13) % 31 - 15);
}

double expected(int size, int64_t i, enum comm_op op)
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

void check_all_reduce(struct comm *comm, int64_t count, enum dtype type, enum comm_op op)
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

/* own apart from all, and in its place in it. */
static void check_into(struct comm *comm, int64_t shard, enum dtype type, bool apart)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	size_t bytes = shard * dtype_size(type);
	_cleanup_free_ char *all = malloc(bytes * size + 16), *other = malloc(bytes + 16);
	char *own = apart ? other : all + rank * bytes;
	struct error err = ERROR_INIT;

	memset(all, 0xff, bytes * size);
	other[bytes] = all[bytes * size] = 0x5a;
	for (int64_t i = 0; i < shard; i++)
		store(own, type, i, value(rank, rank * shard + i));
	rank_ok(comm_wait(comm, comm_all_gather_into(comm, all, own, shard, type), &err));
	for (int64_t i = 0; i < shard * size; i++)
		rank_assert(load(all, type, i) == value((int)(i / shard), i), "shard %ld element %ld",
		            (long)shard, (long)i);
	for (int64_t i = 0; i < shard * size; i++)
		store(all, type, i, value(rank, i));
	rank_ok(comm_wait(comm, comm_reduce_scatter_into(comm, own, all, shard, type, COMM_SUM), &err));
	for (int64_t i = 0; i < shard; i++)
		rank_assert(load(own, type, i) == expected(size, rank * shard + i, COMM_SUM),
		            "shard %ld element %ld", (long)shard, (long)i);
	for (int64_t i = 0; i < shard * size; i++)
		rank_assert((!apart && i / shard == rank) || load(all, type, i) == value(rank, i),
		            "the input has changed: shard %ld element %ld", (long)shard, (long)i);
	rank_assert(other[bytes] == 0x5a && all[bytes * size] == 0x5a, "wrote beyond the end");
}

/* What goes from one rank to another is known by both of them. */
static void check_all_to_all(struct comm *comm, int64_t shard, enum dtype type)
{
	int rank = comm_rank(comm), size = comm_size(comm);
	size_t bytes = shard * dtype_size(type);
	_cleanup_free_ char *in = malloc(bytes * size + 1), *out = malloc(bytes * size + 1);
	struct error err = ERROR_INIT;

	memset(out, 0xff, bytes * size);
	in[bytes * size] = out[bytes * size] = 0x5a;
	for (int64_t i = 0; i < shard * size; i++)
		store(in, type, i, value(rank, i));
	rank_ok(comm_wait(comm, comm_all_to_all(comm, out, in, shard, type), &err));
	for (int64_t i = 0; i < shard * size; i++) {
		int from = (int)(i / shard);

		rank_assert(load(out, type, i) == value(from, rank * shard + i % shard),
		            "shard %ld element %ld", (long)shard, (long)i);
		rank_assert(load(in, type, i) == value(rank, i), "the input has changed");
	}
	rank_assert(in[bytes * size] == 0x5a && out[bytes * size] == 0x5a, "wrote beyond the end");
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

void rank_collectives(struct stage *s, int rank)
{
	static const int64_t counts[] = {0, 1, 2, 3, 5, 63, 65, 1000, 4097, 8193, 70001, 400009, 1048579};
	struct comm *comm = join_stage(s, rank);
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
		/* The largest, which takes longer than all others, of few ranks alone: their pieces are
		 * larger, too.
		 */
		if (i == ARRAY_SIZE(counts) - 1 && s->size > 3)
			break;
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
		check_into(comm, counts[i] / 2, DTYPE_F32, true);
		check_into(comm, counts[i] / 2, DTYPE_F32, false);
		check_into(comm, counts[i] / 2, DTYPE_BF16, true);
		check_into(comm, counts[i] / 2, DTYPE_BF16, false);
		check_all_to_all(comm, counts[i] / 2, DTYPE_F32);
		check_all_to_all(comm, counts[i] / 2, DTYPE_BF16);
		for (int root = 0; root < s->size; root++)
			check_broadcast(comm, counts[i], root);
		rank_ok(comm_wait(comm, comm_barrier(comm), &err));
	}
	comm_destroy(comm);
}
