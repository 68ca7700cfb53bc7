/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor time of the scheduler over a long queue, for tests/bench/scale: nodes of 8 slots each, and
 * runs that ask for 1 to 8 of them on 1 to 4 nodes (16 ways to ask), first with all slots taken, then with
 * half of the nodes free, of which as many runs are placed as a pass of the controller places. Then the same
 * with runs that name nodes, each of them others, or that avoid one. "first": the pass that finds the nodes
 * which are named; later ones know them.
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

enum { SLOTS = 8, REPEATS = 21, AT_ONCE = 64, NAMED_MAX = 500 };

/* What the runs of a queue have in common. */
struct kind_of_queue {
	const char *name;
	bool half_free; /* every other node */
	size_t named;   /* so many nodes each; 0: any */
	bool avoids;    /* one node */
};

static const struct kind_of_queue kinds[] = {
    {"all slots taken", false, 0, false},
    {"half of the nodes free", true, 0, false},
    {"one node named, all slots taken", false, 1, false},
    {"20 nodes named, all slots taken", false, 20, false},
    {"500 nodes named, all slots taken", false, NAMED_MAX, false},
    {"20 nodes named, half of the nodes free", true, 20, false},
    {"one node avoided, all slots taken", false, 0, true},
    {"one node avoided, half of the nodes free", true, 0, true},
};

/* The names in a run are its own. The first pass finds the nodes of each, and all later ones have them. */
static void name_nodes(struct sched_run *r, size_t q, const struct sched_node *nodes, size_t node_count,
                       size_t count)
{
	char **list = calloc(count + 1, sizeof(*list));

	for (size_t i = 0; i < count; i++)
		list[i] = strdup(nodes[(q * 7 + i * 3) % node_count].name);
	r->hosts = list;
	r->found = calloc(1, sizeof(*r->found));
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void free_run(struct sched_run *r)
{
	str_list_free((char **)r->hosts);
	str_list_free((char **)r->avoid);
	if (r->found)
		sched_hosts_clear(r->found);
	free(r->found);
}

static void measure(const struct kind_of_queue *kind, size_t node_count, size_t runs)
{
	struct sched_node *nodes = calloc(node_count, sizeof(*nodes));
	struct sched_run *queue = calloc(runs, sizeof(*queue));
	struct error err = ERROR_INIT;
	double times[REPEATS], first = 0;
	size_t done = 0, placed = 0;

	for (size_t i = 0; i < node_count; i++)
		nodes[i] = (struct sched_node){.name = str_printf("g%05zu", i),
		                               .up = true,
		                               .slots = SLOTS,
		                               .taken = calloc(SLOTS, sizeof(bool)),
		                               .kind = SLOT_GPU};
	for (size_t q = 0; q < runs; q++) {
		struct sched_run *r = &queue[q];

		*r = (struct sched_run){.id = (int64_t)q + 1, .kind = SLOT_ANY};
		if (kind->named > 0)
			name_nodes(r, q, nodes, node_count, MIN(kind->named, node_count));
		if (kind->avoids) {
			char **avoid = calloc(2, sizeof(*avoid));

			avoid[0] = strdup(nodes[q % node_count].name);
			r->avoid = avoid;
		}
	}
	for (int k = -1; k < REPEATS; k++) {
		double began, took;

		for (size_t i = 0; i < node_count; i++)
			memset(nodes[i].taken, !kind->half_free || i % 2, SLOTS);
		for (size_t q = 0; q < runs; q++) {
			int64_t most = kind->named == 1 ? 1 : 4;

			queue[q].nodes = queue[q].working = 1 + (int64_t)(q / 4) % most;
			queue[q].per_node = 1 << q % 4;
		}
		began = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
		if (schedule_some(nodes, node_count, queue, runs, AT_ONCE, &done, &err) < 0)
			exit(1);
		took = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - began;
		if (k < 0)
			first = took;
		else
			times[k] = took;
		placed = 0;
		for (size_t q = 0; q < done; q++) {
			placed += queue[q].placed;
			free(queue[q].chosen);
			free(queue[q].slots);
			queue[q].chosen = NULL;
			queue[q].slots = NULL;
		}
	}
	qsort(times, REPEATS, sizeof(*times), ascending);
	printf(
	    "{\"queue\": \"%s\", \"milliseconds\": %.3f, \"most\": %.3f, \"first\": %.3f, \"placed\": %zu}\n",
	    kind->name, times[REPEATS / 2] * 1e3, times[REPEATS - 1] * 1e3, first * 1e3, placed);
	for (size_t i = 0; i < node_count; i++) {
		free(nodes[i].taken);
		free((char *)nodes[i].name);
	}
	for (size_t q = 0; q < runs; q++)
		free_run(&queue[q]);
	free(nodes);
	free(queue);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		measure(&kinds[i], strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10));
	return 0;
}
