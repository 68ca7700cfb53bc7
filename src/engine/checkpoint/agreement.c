/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares between the ranks what each has read. The ranks first gather one hash of all items each, which is
 * enough where all agree. Otherwise the first of the ranks with the most frequent hash sends the hashes of
 * its items. The first rank that differs finds the item and sends the message to all, so that whichever
 * rank's error is reported names the cause.
 */
#include "engine/checkpoint/agreement.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/str.h"

/* How many bytes of an item a message shows. An error has room for them, for the names of two nodes and for
 * the remedy. */
#define PATH_SHOWN 200
#define WHAT_SHOWN 200

struct group {
	struct device *dev;
	struct comm *comm;
	int rank, size;
};

struct reference {
	uint64_t items;
	char node[256];
};

/* ---- collectives over host memory, through `staging` on the device ---- */
static int broadcast_staged(const struct group *g, void *staging, void *host, size_t bytes, int root,
                            struct error *err)
{
	int r = g->rank == root ? device_write(g->dev, staging, host, bytes, err) : 0;

	if (r < 0 || (r = comm_wait(g->comm, comm_broadcast(g->comm, staging, bytes, root), err)) < 0 ||
	    (r = comm_flush(g->comm, err)) < 0)
		return r;
	return device_read(g->dev, host, staging, bytes, err);
}

static int broadcast(const struct group *g, void *host, size_t bytes, int root, struct error *err)
{
	void *staging;
	int r = device_alloc(g->dev, bytes, &staging, err);

	if (r < 0)
		return r;
	r = broadcast_staged(g, staging, host, bytes, root, err);
	device_free(g->dev, staging);
	return r;
}

static int gather_staged(const struct group *g, void *staging, uint64_t *all, size_t bytes, struct error *err)
{
	int r = device_write(g->dev, staging, all, bytes, err);

	/* A gather only copies: two fp32 elements have the size of one value. */
	if (r < 0 || (r = comm_wait(g->comm, comm_all_gather(g->comm, staging, 2, DTYPE_F32), err)) < 0 ||
	    (r = comm_flush(g->comm, err)) < 0)
		return r;
	return device_read(g->dev, all, staging, bytes, err);
}

/* all[rank] is this rank's value; afterwards `all` has the values of all ranks. */
static int gather(const struct group *g, uint64_t *all, struct error *err)
{
	size_t bytes = (size_t)g->size * sizeof(*all);
	void *staging;
	int r = device_alloc(g->dev, bytes, &staging, err);

	if (r < 0)
		return r;
	r = gather_staged(g, staging, all, bytes, err);
	device_free(g->dev, staging);
	return r;
}

static uint64_t digest_all(const struct agreement_item *items, size_t n)
{
	uint64_t h = hash_bytes(&n, sizeof(n), 0);

	for (size_t i = 0; i < n; i++)
		h = hash_bytes(&items[i].digest, sizeof(items[i].digest), h);
	return h;
}

/* The first of the ranks that have the most frequent value. */
static int most_frequent(const uint64_t *all, int n)
{
	int best = 0, best_count = 0;

	for (int i = 0; i < n; i++) {
		int count = 0;

		for (int k = 0; k < n; k++)
			count += all[k] == all[i];
		if (count > best_count) {
			best = i;
			best_count = count;
		}
	}
	return best;
}

/* The end of a path that is too long for a message; it begins with the name of a directory. */
static const char *path_end(const char *path)
{
	size_t len = strlen(path);
	const char *end = path + len - MIN(len, PATH_SHOWN), *slash = strchr(end, '/');

	return len > PATH_SHOWN && slash ? slash : end;
}

static void describe(char *out, size_t size, const struct agreement_item *items, size_t n,
                     const uint64_t *digests, const struct reference *ref, const char *where,
                     const char *there, const char *remedy)
{
	char what[WHAT_SHOWN];
	size_t i = 0;

	while (i < n && i < ref->items && items[i].digest == digests[i])
		i++;
	if (i < n) {
		const char *file = path_end(items[i].file);

		snprintf(what, sizeof(what), "%s", items[i].what);
		snprintf(out, size, "%s: %s%s: %s is not what %s has; %s", where,
		         file > items[i].file ? "..." : "", file, str_make_utf8(what), there, remedy);
	} else {
		snprintf(out, size, "%s has %zu parts of the model where %s has %llu; %s", where, n, there,
		         (unsigned long long)ref->items, remedy);
	}
}

static int explain(const struct group *g, const struct agreement_item *items, size_t n, const uint64_t *all,
                   const char *node, const char *remedy, struct error *err)
{
	int from = most_frequent(all, g->size), odd = 0, r;
	_cleanup_free_ uint64_t *digests = NULL;
	struct reference ref = {.items = n};
	char message[sizeof(err->message)] = "", where[100], there[100];

	while (all[odd] == all[from])
		odd++;
	snprintf(ref.node, sizeof(ref.node), "%s", node);
	if ((r = broadcast(g, &ref, sizeof(ref), from, err)) < 0)
		return r;
	digests = calloc(ref.items + 1, sizeof(*digests));
	if (!digests)
		return error_oom(err);
	for (size_t i = 0; g->rank == from && i < n; i++)
		digests[i] = items[i].digest;
	if ((r = broadcast(g, digests, (ref.items + 1) * sizeof(*digests), from, err)) < 0)
		return r;
	snprintf(where, sizeof(where), "node %.64s, rank %d", node, odd);
	snprintf(there, sizeof(there), "rank %d on node %.64s", from, ref.node);
	if (g->rank == odd)
		describe(message, sizeof(message), items, n, digests, &ref, where, there, remedy);
	if ((r = broadcast(g, message, sizeof(message), odd, err)) < 0)
		return r;
	return error_set(err, -EINVAL, "%s", message);
}

int agreement_check(const struct agreement_item *items, size_t n, struct device *dev, struct comm *comm,
                    const char *node, const char *remedy, struct error *err)
{
	struct group g = {dev, comm, comm ? comm_rank(comm) : 0, comm ? comm_size(comm) : 1};
	_cleanup_free_ uint64_t *all = NULL;
	int r;

	if (g.size == 1)
		return 0;
	all = calloc((size_t)g.size, sizeof(*all));
	if (!all)
		return error_oom(err);
	all[g.rank] = digest_all(items, n);
	if ((r = gather(&g, all, err)) < 0)
		return r;
	for (int i = 1; i < g.size; i++)
		if (all[i] != all[0])
			return explain(&g, items, n, all, node, remedy, err);
	return 0;
}
