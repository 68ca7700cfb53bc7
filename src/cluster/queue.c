/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that have not ended, in an array in the order of their ids. */
#include "cluster/queue.h"

#include <errno.h>
#include <string.h>

int queue_push(struct queue *q, struct run *r, struct error *err)
{
	if (q->count == q->capacity) {
		size_t n = q->capacity ? q->capacity * 2 : 16;
		struct run **list = reallocarray(q->list, n, sizeof(*list));

		if (!list)
			return error_oom(err);
		q->list = list;
		q->capacity = n;
	}
	if (q->count > 0 && q->list[q->count - 1]->id >= r->id)
		return error_set(err, -EINVAL, "run %lld comes after a newer one", (long long)r->id);
	q->list[q->count++] = r;
	return 0;
}

static size_t position(const struct queue *q, int64_t id)
{
	size_t lo = 0, hi = q->count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (q->list[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct run *queue_find(const struct queue *q, int64_t id)
{
	size_t i = position(q, id);

	return i < q->count && q->list[i]->id == id ? q->list[i] : NULL;
}

struct run *queue_take(struct queue *q, int64_t id)
{
	size_t i = position(q, id);
	struct run *r;

	if (i == q->count || q->list[i]->id != id)
		return NULL;
	r = q->list[i];
	memmove(q->list + i, q->list + i + 1, (q->count - i - 1) * sizeof(*q->list));
	q->count--;
	return r;
}

void queue_clear(struct queue *q)
{
	for (size_t i = 0; i < q->count; i++)
		run_free(q->list[i]);
	free(q->list);
	*q = (struct queue){0};
}
