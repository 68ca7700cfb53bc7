/* SPDX-License-Identifier: Apache-2.0 */
/* Which slots of a node are linked most closely, so that the ranks of a run get neighbours. */
#include "cluster/topology.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

enum { WEIGHT_NVLINK = 100, WEIGHT_SYS = 10, WEIGHT_SAME_GPU = 1 };
enum { EXHAUSTIVE_MAX = 16, RING_MAX = 8 };

unsigned char topology_weight(const char *link)
{
	static const struct {
		const char *name;
		unsigned char weight;
	} paths[] = {{"PIX", 50},  {"PXB", 40},         {"PHB", 30},
	             {"NODE", 20}, {"SYS", WEIGHT_SYS}, {"MIG", WEIGHT_SAME_GPU}};
	int64_t wires;

	if (link && str_starts(link, "NV") && str_to_int64(link + 2, 1, 100, &wires) == 0)
		return (unsigned char)(WEIGHT_NVLINK + wires);
	for (size_t i = 0; i < ARRAY_SIZE(paths) && link; i++)
		if (str_eq(link, paths[i].name))
			return paths[i].weight;
	return WEIGHT_SYS;
}

struct view {
	const unsigned char *links;
	size_t slots;
};

static unsigned weight(const struct view *v, int a, int b)
{
	return v->links[(size_t)a * v->slots + (size_t)b];
}

/* What a set of slots is worth. */
struct worth {
	unsigned narrowest; /* link that has to be used to reach all of them: of the best spanning tree */
	unsigned sum;       /* of all their links, */
	unsigned rest;      /* and of all links of the slots that are left */
};

static bool better(const struct worth *a, const struct worth *b)
{
	if (a->narrowest != b->narrowest)
		return a->narrowest > b->narrowest;
	if (a->sum != b->sum)
		return a->sum > b->sum;
	return a->rest > b->rest;
}

static unsigned links_sum(const struct view *v, const int *set, size_t n)
{
	unsigned sum = 0;

	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n; k++)
			sum += weight(v, set[i], set[k]);
	return sum;
}

/* The narrowest link of the widest spanning tree (Prim). */
static unsigned narrowest(const struct view *v, const int *set, size_t n)
{
	unsigned reach[EXHAUSTIVE_MAX], worst = 255;
	bool in[EXHAUSTIVE_MAX] = {true};

	for (size_t i = 1; i < n; i++)
		reach[i] = weight(v, set[0], set[i]);
	for (size_t added = 1; added < n; added++) {
		size_t next = 0;

		for (size_t i = 1; i < n; i++)
			if (!in[i] && (next == 0 || reach[i] > reach[next]))
				next = i;
		in[next] = true;
		worst = MIN(worst, reach[next]);
		for (size_t i = 1; i < n; i++)
			if (!in[i])
				reach[i] = MAX(reach[i], weight(v, set[next], set[i]));
	}
	return worst;
}

/* Combinations in their lexicographic order: the first of equals has the lowest slots. */
static void choose_exhaustively(const struct view *v, const int *free, size_t count, size_t want, int *chosen)
{
	size_t at[EXHAUSTIVE_MAX];
	struct worth best = {0};
	bool any = false;

	for (size_t i = 0; i < want; i++)
		at[i] = i;
	for (;;) {
		int set[EXHAUSTIVE_MAX], rest[EXHAUSTIVE_MAX];
		size_t n = 0, left = 0, i = want;
		struct worth worth;

		for (size_t k = 0; k < count; k++)
			if (n < want && at[n] == k)
				set[n++] = free[k];
			else
				rest[left++] = free[k];
		worth = (struct worth){narrowest(v, set, n), links_sum(v, set, n), links_sum(v, rest, left)};
		if (!any || better(&worth, &best)) {
			best = worth;
			any = true;
			memcpy(chosen, set, n * sizeof *set);
		}
		while (i > 0 && at[i - 1] == count - want + i - 1)
			i--;
		if (i == 0)
			return;
		at[i - 1]++;
		for (; i < want; i++)
			at[i] = at[i - 1] + 1;
	}
}

static int by_slot(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* From each slot on, the one that is linked best with those already there; the best of these sets. */
static void choose_greedily(const struct view *v, const int *free, size_t count, size_t want, int *chosen)
{
	_cleanup_free_ unsigned *gain = calloc(count, sizeof *gain);
	_cleanup_free_ bool *in = calloc(count, sizeof *in);
	_cleanup_free_ int *set = calloc(want, sizeof *set);
	unsigned best = 0;

	memcpy(chosen, free, want * sizeof *chosen);
	if (!gain || !in || !set)
		return;
	for (size_t seed = 0; seed < count; seed++) {
		unsigned sum = 0;
		size_t next = seed;

		memset(gain, 0, count * sizeof *gain);
		memset(in, 0, count * sizeof *in);
		for (size_t n = 0; n < want; n++) {
			set[n] = free[next];
			in[next] = true;
			sum += gain[next];
			for (size_t i = 0; i < count; i++)
				gain[i] += weight(v, free[next], free[i]);
			next = count;
			for (size_t i = 0; i < count; i++)
				if (!in[i] && (next == count || gain[i] > gain[next]))
					next = i;
		}
		if (seed == 0 || sum > best) {
			best = sum;
			memcpy(chosen, set, want * sizeof *set);
		}
	}
	qsort(chosen, want, sizeof *chosen, by_slot);
}

/* best[done][last]: the most that the way from `last` through all that are not yet `done` and back to the
 * first adds up to, over links no narrower than `limit`; -1: there is no such way. */
static bool ring(const struct view *v, const int *set, size_t n, unsigned limit, int *order)
{
	int best[1 << RING_MAX][RING_MAX];
	size_t all = ((size_t)1 << n) - 1, done = 1, last = 0;

	for (size_t m = all; m > 0; m--)
		for (size_t k = 0; k < n; k++) {
			best[m][k] = -1;
			if (m == all && weight(v, set[k], set[0]) >= limit)
				best[m][k] = (int)weight(v, set[k], set[0]);
			for (size_t i = 1; i < n && m != all; i++) {
				unsigned w = weight(v, set[k], set[i]);
				int rest = m >> i & 1 ? -1 : best[m | (size_t)1 << i][i];

				if (rest >= 0 && w >= limit)
					best[m][k] = MAX(best[m][k], rest + (int)w);
			}
		}
	if (best[1][0] < 0)
		return false;
	order[0] = set[0];
	for (size_t at = 1; at < n; at++) {
		size_t i = 1;

		while (done >> i & 1 || weight(v, set[last], set[i]) < limit ||
		       best[done | (size_t)1 << i][i] < 0 ||
		       best[done | (size_t)1 << i][i] + (int)weight(v, set[last], set[i]) != best[done][last])
			i++;
		order[at] = set[i];
		done |= (size_t)1 << i;
		last = i;
	}
	return true;
}

/* Always on to the best linked of those that are left. */
static void chain(const struct view *v, int *set, size_t n)
{
	for (size_t at = 1; at < n; at++) {
		size_t next = at;
		int slot;

		for (size_t i = at + 1; i < n; i++)
			if (weight(v, set[at - 1], set[i]) > weight(v, set[at - 1], set[next]))
				next = i;
		slot = set[next];
		memmove(&set[at + 1], &set[at], (next - at) * sizeof *set);
		set[at] = slot;
	}
}

static void put_in_order(const struct view *v, int *set, size_t n)
{
	int order[RING_MAX];

	if (n < 3)
		return;
	if (n > RING_MAX) {
		chain(v, set, n);
		return;
	}
	/* The widest ring that there is. */
	for (int limit = 255; limit >= 0; limit--) {
		bool some = false;

		for (size_t i = 0; i < n * n; i++)
			some = some || (int)weight(v, set[i / n], set[i % n]) == limit;
		if (some && ring(v, set, n, (unsigned)limit, order)) {
			memcpy(set, order, n * sizeof *set);
			return;
		}
	}
}

void topology_choose(const unsigned char *links, size_t slots, const bool *taken, size_t want, int *chosen)
{
	const struct view v = {links, slots};
	_cleanup_free_ int *free_slots = calloc(slots + 1, sizeof *free_slots);
	size_t count = 0;

	if (!free_slots) { /* any will do */
		for (size_t i = 0, n = 0; i < slots && n < want; i++)
			if (!taken[i])
				chosen[n++] = (int)i;
		return;
	}
	for (size_t i = 0; i < slots; i++)
		if (!taken[i])
			free_slots[count++] = (int)i;
	if (count <= want)
		memcpy(chosen, free_slots, count * sizeof *chosen);
	else if (count <= EXHAUSTIVE_MAX)
		choose_exhaustively(&v, free_slots, count, want, chosen);
	else
		choose_greedily(&v, free_slots, count, want, chosen);
	put_in_order(&v, chosen, want);
}
