/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the nodes that runs name. */
#include "cluster/schedule_hosts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cluster/scheduler.h"

static int make_index(struct sched_names *n)
{
	size_t place;

	for (size_t i = 0; i < n->count; i++) {
		/* Of two nodes with one name the first one has it. */
		if (!name_index_find(&n->index, n->nodes[i].name, &place) &&
		    name_index_add(&n->index, n->nodes[i].name, i) < 0) {
			name_index_free(&n->index);
			return -ENOMEM;
		}
	}
	return 0;
}

static int ascending(const void *a, const void *b)
{
	size_t x = *(const size_t *)a, y = *(const size_t *)b;

	return (x > y) - (x < y);
}

bool sched_places_have(const size_t *places, size_t count, size_t place)
{
	return bsearch(&place, places, count, sizeof(place), ascending) != NULL;
}

static void sort_out(struct sched_hosts *h)
{
	size_t kept = 0;

	qsort(h->places, h->count, sizeof(*h->places), ascending);
	for (size_t i = 0; i < h->count; i++)
		if (kept == 0 || h->places[i] != h->places[kept - 1])
			h->places[kept++] = h->places[i];
	h->count = kept;
	h->digest = hash_bytes(h->places, kept * sizeof(*h->places), 0);
}

int sched_hosts_find(struct sched_names *n, char *const *names, struct sched_hosts *out)
{
	size_t count = 0, *places;

	while (names[count])
		count++;
	places = reallocarray(out->places, count + 1, sizeof(*places));
	if (!places)
		return -ENOMEM;
	out->places = places;
	out->count = 0;
	out->nodes = 0;
	out->unknown = NULL;
	if (n->index.count == 0 && make_index(n) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (name_index_find(&n->index, names[i], &places[out->count]))
			out->count++;
		else if (!out->unknown)
			out->unknown = names[i];
	sort_out(out);
	return 0;
}

static uint64_t digest_of(const struct sched_names *n)
{
	uint64_t digest = n->count;

	for (size_t i = 0; i < n->count; i++)
		digest = hash_bytes(n->nodes[i].name, strlen(n->nodes[i].name) + 1, digest);
	return digest ? digest : 1;
}

int sched_hosts_update(struct sched_names *n, char *const *names, struct sched_hosts *out)
{
	int r;

	if (n->digest == 0)
		n->digest = digest_of(n);
	if (out->nodes == n->digest)
		return 0;
	r = sched_hosts_find(n, names, out);
	if (r == 0)
		out->nodes = n->digest;
	return r;
}

void sched_hosts_clear(struct sched_hosts *h)
{
	free(h->places);
	*h = (struct sched_hosts){0};
}
