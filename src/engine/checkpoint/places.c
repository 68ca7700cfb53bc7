/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out which ranks share a directory. Rank 0 writes a file with a number that no earlier run has
 * written, and each rank looks for it. Those that do not find it write such a file each, named after the
 * rank, where they are, and each takes the lowest rank whose file it finds for the writer of its place. The
 * files are removed; where a process is killed in between, they look like the rest of an interrupted save,
 * which is removed later.
 */
#include "engine/checkpoint/places.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"

#define TMP ".tmp"

void places_free(struct places *p)
{
	free(p->writer);
	p->writer = NULL;
}

static char *probe_path(const char *directory, int rank)
{
	return str_printf("%s/" PLACES_PROBE "%d" TMP, directory, rank);
}

static int write_probe(const char *directory, int rank, uint64_t token, struct error *err)
{
	_cleanup_free_ char *path = probe_path(directory, rank);

	return path ? file_write_atomic(path, &token, sizeof(token), 0644, err) : error_oom(err);
}

static void remove_probe(const char *directory, int rank)
{
	_cleanup_free_ char *path = probe_path(directory, rank);

	if (path)
		unlink(path);
}

static bool finds_probe(const char *directory, int rank, uint64_t token)
{
	_cleanup_free_ char *path = probe_path(directory, rank), *text = NULL;
	size_t len;

	return path && file_read(path, sizeof(token), &text, &len, NULL) == 0 && len == sizeof(token) &&
	       memcmp(text, &token, sizeof(token)) == 0;
}

/* The lowest rank whose file lies in the directory; -1: none does. */
static int lowest_probe(const char *directory, int ranks, uint64_t token)
{
	_cleanup_closedir_ DIR *d = opendir(directory);
	int lowest = -1;
	struct dirent *e;

	while (d && (e = readdir(d))) {
		const char *number =
		    str_starts(e->d_name, PLACES_PROBE) ? e->d_name + strlen(PLACES_PROBE) : "";
		char *end;
		long rank = strtol(number, &end, 10);

		if (*number && str_eq(end, TMP) && rank >= 0 && rank < ranks &&
		    (lowest < 0 || rank < lowest) && finds_probe(directory, (int)rank, token))
			lowest = (int)rank;
	}
	return lowest;
}

static int find_others(const struct ranks *ranks, const char *directory, uint64_t token, int32_t *writer,
                       struct error *err)
{
	int rank = ranks_rank(ranks), r;
	bool writes = writer[rank] < 0 && file_mkdirs(directory, 0777, NULL) == 0 &&
	              access(directory, W_OK | X_OK) == 0 && write_probe(directory, rank, token, NULL) == 0;

	/* After this all files are there, and after the next all have been looked for. */
	r = ranks_gather(ranks, NULL, writer, sizeof(*writer), err);
	if (r == 0 && writes)
		writer[rank] = lowest_probe(directory, ranks_size(ranks), token);
	if (r == 0)
		r = ranks_gather(ranks, NULL, writer, sizeof(*writer), err);
	if (writes)
		remove_probe(directory, rank);
	return r;
}

int places_find(const struct ranks *ranks, const char *directory, bool others, struct places *out,
                struct error *err)
{
	double now = clock_realtime();
	uint64_t token = hash_bytes(&now, sizeof(now), (uint64_t)getpid());
	int n = ranks_size(ranks), rank = ranks_rank(ranks), r = 0;
	_cleanup_free_ int32_t *writer = calloc((size_t)n, sizeof(*writer));
	bool broken;

	*out = (struct places){.n = n, .writer = calloc((size_t)n, sizeof(*out->writer)), .single = true};
	if (!writer || !out->writer)
		return error_oom(err);
	if (n == 1)
		return 0;
	if (rank == 0)
		r = write_probe(directory, rank, token, err);
	if ((r = ranks_agree(ranks, r, &broken, err)) < 0 ||
	    (r = ranks_broadcast(ranks, NULL, &token, sizeof(token), 0, err)) < 0)
		return r;
	writer[rank] = rank == 0 || finds_probe(directory, 0, token) ? 0 : -1;
	r = ranks_gather(ranks, NULL, writer, sizeof(*writer), err);
	if (rank == 0)
		remove_probe(directory, rank);
	for (int i = 0; i < n; i++)
		out->single = out->single && writer[i] == 0;
	if (r == 0 && !out->single && others)
		r = find_others(ranks, directory, token, writer, err);
	for (int i = 0; i < n; i++)
		out->writer[i] = writer[i];
	return r;
}
