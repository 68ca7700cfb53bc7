/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor time of the scheduler over a long queue, for tests/bench/scale: nodes of 8 slots each, and
 * runs that ask for 1 to 8 of them on 1 to 4 nodes (16 ways to ask), first with all slots taken, then with
 * half of the nodes free, of which as many runs are placed as a pass of the controller places.
 *
 *     bench_schedule NODES RUNS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/str.h"
#include "cluster/scheduler.h"

enum { SLOTS = 8, REPEATS = 21, AT_ONCE = 64 };

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(const char *what, size_t node_count, size_t runs, bool half)
{
	struct sched_node *nodes = calloc(node_count, sizeof(*nodes));
	struct sched_run *queue = calloc(runs, sizeof(*queue));
	struct error err = ERROR_INIT;
	double times[REPEATS];
	size_t done = 0, placed = 0;

	for (size_t i = 0; i < node_count; i++)
		nodes[i] = (struct sched_node){.name = str_printf("g%05zu", i),
		                               .up = true,
		                               .slots = SLOTS,
		                               .taken = calloc(SLOTS, sizeof(bool)),
		                               .kind = SLOT_GPU};
	for (int k = 0; k < REPEATS; k++) {
		for (size_t i = 0; i < node_count; i++)
			memset(nodes[i].taken, !half || i % 2, SLOTS);
		for (size_t q = 0; q < runs; q++)
			queue[q] = (struct sched_run){.id = (int64_t)q + 1,
			                              .nodes = 1 + (int64_t)(q / 4 % 4),
			                              .working = 1 + (int64_t)(q / 4 % 4),
			                              .per_node = 1 << q % 4,
			                              .kind = SLOT_ANY};
		times[k] = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
		if (schedule_some(nodes, node_count, queue, runs, AT_ONCE, &done, &err) < 0)
			exit(1);
		times[k] = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - times[k];
		placed = 0;
		for (size_t q = 0; q < done; q++) {
			placed += queue[q].placed;
			free(queue[q].chosen);
			free(queue[q].slots);
		}
	}
	qsort(times, REPEATS, sizeof(*times), ascending);
	printf("{\"queue\": \"%s\", \"milliseconds\": %.3f, \"most\": %.3f, \"placed\": %zu}\n", what,
	       times[REPEATS / 2] * 1e3, times[REPEATS - 1] * 1e3, placed);
	for (size_t i = 0; i < node_count; i++) {
		free(nodes[i].taken);
		free((char *)nodes[i].name);
	}
	free(nodes);
	free(queue);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	measure("all slots taken", strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), false);
	measure("half of the nodes free", strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), true);
	return 0;
}
