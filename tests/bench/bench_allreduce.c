/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between processes of this machine.
 *
 *	bench_allreduce [--collective all_reduce|all_gather|reduce_scatter] [--ranks 2] [--bytes 16777216]
 *	                [--rounds 200] [--type fp32|bf16]
 *
 * Prints the algorithmic bandwidth: bytes of the whole vector that is reduced, gathered, or reduced and
 * scattered, over the median time from queueing the collective to its end, on the slowest rank. (Between two
 * ranks each sends and receives as many bytes in an all-reduce, and half of them in the others.)
 */
#include <getopt.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../unit/kv_store.h"
#include "base/file.h"
#include "engine/comm/comm.h"

enum what { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };

static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter"};

struct bench {
	enum what what;
	int ranks, rounds;
	int64_t bytes;
	enum dtype type;
	char directory[64];
	char carrier[96];
	double median[64], best[64]; /* seconds, by rank */
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* own: a shard, apart from buffer. */
static comm_ticket start(const struct bench *b, struct comm *comm, void *buffer, void *own)
{
	int64_t count = b->bytes / (int64_t)dtype_size(b->type);

	switch (b->what) {
	case ALL_REDUCE:
		return comm_all_reduce(comm, buffer, count, b->type, COMM_SUM);
	case ALL_GATHER:
		return comm_all_gather_into(comm, buffer, own, count / b->ranks, b->type);
	case REDUCE_SCATTER:
		return comm_reduce_scatter_into(comm, own, buffer, count / b->ranks, b->type, COMM_SUM);
	}
	return 0;
}

static int run_rank(struct bench *b, int rank)
{
	struct kv_store store = kv_store_in(b->directory);
	struct comm_options options = {
	    .rank = rank, .world_size = b->ranks, .timeout_s = 30, .store = &store, .group = "bench"};
	_cleanup_free_ double *times = calloc(b->rounds, sizeof(double));
	struct error err = ERROR_INIT;
	struct comm *comm;
	struct device *dev;
	void *buffer, *own;
	int r;

	/* On one GPU: NCCL refuses two ranks of one machine there, and takes these for two machines. */
	setenv("NCCL_HOSTID", rank ? "b" : "a", 1);
	if ((r = device_create(&(struct device_options){.threads = 1}, &dev, &err)) >= 0 &&
	    (r = device_alloc(dev, b->bytes, &buffer, &err)) >= 0 &&
	    (r = device_alloc(dev, b->bytes / b->ranks + 64, &own, &err)) >= 0)
		r = comm_create(dev, &options, &comm, &err);
	if (r >= 0) {
		snprintf(b->carrier, sizeof(b->carrier), "%s", comm_describe(comm));
		for (int i = -b->rounds / 4; r >= 0 && i < b->rounds; i++) {
			double begun;

			r = comm_wait(comm, comm_barrier(comm), &err);
			if (r >= 0)
				r = comm_flush(comm, &err);
			begun = clock_monotonic();
			if (r >= 0)
				r = comm_wait(comm, start(b, comm, buffer, own), &err);
			if (r >= 0)
				r = comm_flush(comm, &err);
			if (i >= 0)
				times[i] = clock_monotonic() - begun;
		}
		comm_destroy(comm);
		device_free(dev, buffer);
		device_free(dev, own);
		device_destroy(dev);
	}
	if (r < 0) {
		fprintf(stderr, "error: rank %d: %s\n", rank, err.message);
		return 1;
	}
	qsort(times, b->rounds, sizeof(double), compare);
	b->median[rank] = times[b->rounds / 2];
	b->best[rank] = times[0];
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"collective", required_argument, NULL, 'c'}, {"ranks", required_argument, NULL, 'r'},
	    {"bytes", required_argument, NULL, 'b'},      {"rounds", required_argument, NULL, 'n'},
	    {"type", required_argument, NULL, 't'},       {0}};
	struct bench *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct error err = ERROR_INIT;
	double median = 0, best = 0;
	int failed = 0, c, status;

	*b = (struct bench){
	    .ranks = 2, .rounds = 200, .bytes = 16 << 20, .directory = "/tmp/dtrain-bench-XXXXXX"};
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'r')
			b->ranks = atoi(optarg);
		else if (c == 'b')
			b->bytes = atoll(optarg);
		else if (c == 'n')
			b->rounds = atoi(optarg);
		else if (c == 'c')
			for (size_t i = 0; i < ARRAY_SIZE(names); i++)
				b->what = strcmp(optarg, names[i]) ? b->what : (enum what)i;
		else if (c == 't')
			b->type = strcmp(optarg, "bf16") ? DTYPE_F32 : DTYPE_BF16;
		else
			return 2;
	}
	if (b->ranks < 1 || b->ranks > 64 || b->rounds < 1 || b->bytes < 8 || !mkdtemp(b->directory)) {
		fprintf(stderr, "error: 1 to 64 ranks, at least one round, at least 8 bytes\n");
		return 2;
	}
	for (int r = 0; r < b->ranks; r++)
		if (!fork())
			_exit(run_rank(b, r));
	for (int r = 0; r < b->ranks; r++) {
		wait(&status);
		failed |= status;
	}
	file_remove_tree(b->directory, &err);
	if (failed)
		return 1;
	for (int r = 0; r < b->ranks; r++) {
		median = MAX(median, b->median[r]);
		best = MAX(best, b->best[r]);
	}
	printf("%s, %d ranks, %lld bytes, %s, %s: median %.1f us, %.2f GB/s; best %.1f us, %.2f GB/s\n",
	       names[b->what], b->ranks, (long long)b->bytes, b->type == DTYPE_F32 ? "fp32" : "bf16",
	       b->carrier, median * 1e6, b->bytes / median * 1e-9, best * 1e6, b->bytes / best * 1e-9);
	return 0;
}
