/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs that have not ended, in an array in the order of their ids.
 *
 * An index by node answers which runs have something on it: each heartbeat asks for those of its node, and
 * with a run on each of 1,000 nodes, going through all of them took half of the controller's processor time.
 * It has ids rather than pointers, and no call removes them when a run leaves a node: whoever asks for the
 * node next drops those that are out of date.
 */
#include "cluster/queue.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

struct node_runs {
	char *name;
	int64_t *ids; /* in their order */
	size_t count, capacity;
};

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

/* NULL: out of memory. */
static struct node_runs *node_of(struct queue *q, const char *name)
{
	struct node_runs *list;
	size_t i;

	if (name_index_find(&q->node_index, name, &i))
		return &q->nodes[i];
	list = reallocarray(q->nodes, q->node_count + 1, sizeof(*list));
	if (!list)
		return NULL;
	q->nodes = list;
	list += q->node_count;
	*list = (struct node_runs){.name = strdup(name)};
	if (!list->name || name_index_add(&q->node_index, list->name, q->node_count) < 0) {
		free(list->name);
		return NULL;
	}
	q->node_count++;
	return list;
}

/* Of the first id that is not before `id`. */
static size_t id_position(const struct node_runs *n, int64_t id)
{
	size_t lo = 0, hi = n->count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (n->ids[mid] < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void add_id(struct queue *q, const char *node, int64_t id)
{
	struct node_runs *n = node_of(q, node);
	size_t i = n ? id_position(n, id) : 0;

	if (n && i < n->count && n->ids[i] == id)
		return;
	if (n && n->count == n->capacity) {
		size_t capacity = n->capacity ? 2 * n->capacity : 4;
		int64_t *ids = reallocarray(n->ids, capacity, sizeof(*ids));

		if (ids) {
			n->ids = ids;
			n->capacity = capacity;
		} else
			n = NULL;
	}
	if (!n) {
		q->incomplete = true;
		return;
	}
	memmove(n->ids + i + 1, n->ids + i, (n->count - i) * sizeof(*n->ids));
	n->ids[i] = id;
	n->count++;
}

static bool is_on(struct run *r, const char *node)
{
	if (run_part_find(r, node))
		return true;
	for (size_t i = 0; i < r->lost_count; i++)
		if (str_eq_host(r->lost[i].record.node, node))
			return true;
	return false;
}

/* Where the index is incomplete. */
static struct run *search_placed(struct queue *q, const char *node, int64_t after)
{
	for (size_t i = position(q->placed, q->placed_count, after + 1); i < q->placed_count; i++)
		if (is_on(q->placed[i], node))
			return q->placed[i];
	return NULL;
}

struct run *queue_next_on(struct queue *q, const char *node, int64_t after)
{
	struct node_runs *n;
	size_t i;

	if (q->incomplete)
		return search_placed(q, node, after);
	if (!name_index_find(&q->node_index, node, &i))
		return NULL;
	n = &q->nodes[i];
	i = id_position(n, after + 1);
	while (i < n->count) {
		struct run *r = queue_find(q, n->ids[i]);

		if (r && is_on(r, node))
			return r;
		memmove(n->ids + i, n->ids + i + 1, (n->count - i - 1) * sizeof(*n->ids));
		n->count--;
	}
	return NULL;
}

static void note(struct queue *q, struct run *r)
{
	size_t i = position(q->placed, q->placed_count, r->id);

	if (i < q->placed_count && q->placed[i] == r)
		return;
	memmove(q->placed + i + 1, q->placed + i, (q->placed_count - i) * sizeof(*q->placed));
	q->placed[i] = r;
	q->placed_count++;
}

void queue_note_placed(struct queue *q, struct run *r)
{
	note(q, r);
	for (size_t i = 0; i < r->part_count; i++)
		add_id(q, r->parts[i].node, r->id);
	for (size_t i = 0; i < r->lost_count; i++)
		add_id(q, r->lost[i].record.node, r->id);
}

void queue_note_placed_on(struct queue *q, struct run *r, const char *node)
{
	note(q, r);
	add_id(q, node, r->id);
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
	for (size_t i = 0; i < q->node_count; i++) {
		free(q->nodes[i].name);
		free(q->nodes[i].ids);
	}
	free(q->nodes);
	name_index_free(&q->node_index);
	*q = (struct queue){0};
}
