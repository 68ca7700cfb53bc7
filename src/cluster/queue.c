/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that have not ended, in an array in the order of their ids. */
#include "cluster/queue.h"

#include <errno.h>
#include <string.h>

/* There is room in both lists: to note a run cannot fail. */
static int grow(struct queue *q, struct error *err)
{
	size_t n = q->capacity ? q->capacity * 2 : 16;
	struct run **list = reallocarray(q->list, n, sizeof(*list)), **placed;

	if (!list)
		return error_oom(err);
	q->list = list;
	placed = reallocarray(q->placed, n, sizeof(*placed));
	if (!placed)
		return error_oom(err);
	q->placed = placed;
	q->capacity = n;
	return 0;
}

static bool is_placed(const struct run *r)
{
	return r->part_count > 0 || r->lost_count > 0;
}

int queue_push(struct queue *q, struct run *r, struct error *err)
{
	if (q->count == q->capacity && grow(q, err) < 0)
		return err->code;
	if (q->count > 0 && q->list[q->count - 1]->id >= r->id)
		return error_set(err, -EINVAL, "run %lld comes after a newer one", (long long)r->id);
	q->list[q->count++] = r;
	if (is_placed(r))
		queue_note_placed(q, r);
	return 0;
}

/* Of the first run in the list that is not before `id`. */
static size_t position(struct run *const *list, size_t count, int64_t id)
{
	size_t lo = 0, hi = count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (list[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct run *queue_find(const struct queue *q, int64_t id)
{
	size_t i = position(q->list, q->count, id);

	return i < q->count && q->list[i]->id == id ? q->list[i] : NULL;
}

void queue_note_placed(struct queue *q, struct run *r)
{
	size_t i = position(q->placed, q->placed_count, r->id);

	if (i < q->placed_count && q->placed[i] == r)
		return;
	memmove(q->placed + i + 1, q->placed + i, (q->placed_count - i) * sizeof(*q->placed));
	q->placed[i] = r;
	q->placed_count++;
}

void queue_drop_unplaced(struct queue *q)
{
	size_t n = 0;

	for (size_t i = 0; i < q->placed_count; i++)
		if (is_placed(q->placed[i]))
			q->placed[n++] = q->placed[i];
	q->placed_count = n;
}

static struct run *take(struct run **list, size_t *count, int64_t id)
{
	size_t i = position(list, *count, id);
	struct run *r;

	if (i == *count || list[i]->id != id)
		return NULL;
	r = list[i];
	memmove(list + i, list + i + 1, (*count - i - 1) * sizeof(*list));
	(*count)--;
	return r;
}

struct run *queue_take(struct queue *q, int64_t id)
{
	take(q->placed, &q->placed_count, id);
	return take(q->list, &q->count, id);
}

void queue_clear(struct queue *q)
{
	for (size_t i = 0; i < q->count; i++)
		run_free(q->list[i]);
	free(q->list);
	free(q->placed);
	*q = (struct queue){0};
}
