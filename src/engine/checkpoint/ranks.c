/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers and broadcasts small values between ranks, and lets all fail with the words of the first that
 * failed. */
#include "engine/checkpoint/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

int ranks_rank(const struct ranks *r)
{
	return r->comm ? comm_rank(r->comm) : 0;
}

int ranks_size(const struct ranks *r)
{
	return r->comm ? comm_size(r->comm) : 1;
}

/* Runs a collective over `bytes` at `staging`, whose content comes from `host` and goes back there. */
static int carry(const struct ranks *r, void *staging, void *host, size_t bytes, int root, size_t each,
                 struct error *err)
{
	bool own = !staging;
	comm_ticket ticket;
	int s = own ? device_alloc(r->dev, bytes, &staging, err) : 0;

	if (s < 0)
		return s;
	if (root < 0 || ranks_rank(r) == root)
		s = device_write(r->dev, staging, host, bytes, err);
	if (s == 0) {
		/* The values are copied, so only the size of the type matters. */
		ticket = root < 0
		             ? comm_all_gather(r->comm, staging, (int64_t)(each / sizeof(float)), DTYPE_F32)
		             : comm_broadcast(r->comm, staging, bytes, root);
		s = comm_wait(r->comm, ticket, err);
	}
	if (s == 0)
		s = comm_flush(r->comm, err);
	if (s == 0)
		s = device_read(r->dev, host, staging, bytes, err);
	if (own)
		device_free(r->dev, staging);
	return s;
}

int ranks_gather(const struct ranks *r, void *staging, void *all, size_t each, struct error *err)
{
	return r->comm ? carry(r, staging, all, (size_t)ranks_size(r) * each, -1, each, err) : 0;
}

int ranks_broadcast(const struct ranks *r, void *staging, void *host, size_t bytes, int root,
                    struct error *err)
{
	return r->comm && bytes > 0 ? carry(r, staging, host, bytes, root, 0, err) : 0;
}

int ranks_broadcast_text(const struct ranks *r, char **text, int root, struct error *err)
{
	bool own = ranks_rank(r) == root;
	int64_t len = own && *text ? (int64_t)strlen(*text) : -1;
	int s = ranks_broadcast(r, NULL, &len, sizeof(len), root, err);

	if (s < 0 || len < 0)
		return s;
	if (!own && !(*text = calloc((size_t)len + 1, 1)))
		return error_oom(err);
	return ranks_broadcast(r, NULL, *text, (size_t)len, root, err);
}

struct failure {
	int32_t code;
	char message[sizeof(((struct error *)NULL)->message)];
};

int ranks_agree(const struct ranks *r, int own, bool *broken, struct error *err)
{
	int n = ranks_size(r), first = 0, s;
	_cleanup_free_ int32_t *codes = calloc((size_t)n, sizeof(*codes));
	struct failure f = {.code = own};

	*broken = false;
	if (n == 1)
		return own;
	if (!codes)
		return error_oom(err);
	codes[ranks_rank(r)] = own;
	s = ranks_gather(r, NULL, codes, sizeof(*codes), err);
	while (s == 0 && first < n && codes[first] == 0)
		first++;
	if (s == 0 && first == n)
		return 0;
	if (s == 0 && ranks_rank(r) == first && first > 0)
		snprintf(f.message, sizeof(f.message), "rank %d on node %s: %.600s", first, r->node,
		         err->message);
	else if (s == 0 && ranks_rank(r) == first)
		snprintf(f.message, sizeof(f.message), "%s", err->message);
	if (s == 0)
		s = ranks_broadcast(r, NULL, &f, sizeof(f), first, err);
	*broken = s < 0;
	return s < 0 ? s : error_set(err, f.code, "%s", f.message);
}
