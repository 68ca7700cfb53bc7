/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept for a run with resources.spares: idle nodes beside those of its attempt, and between two
 * attempts the nodes that the last one has left in order. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cluster/run.h"

static struct spare_record *add_spare(struct run *r, const char *node, size_t slots)
{
	struct spare_record *list = reallocarray(r->spares, r->spare_count + 1, sizeof(*list)), *s;

	if (!list)
		return NULL;
	r->spares = list;
	s = &list[r->spare_count];
	*s = (struct spare_record){.node = strdup(node), .slots = calloc(slots + 1, sizeof(*s->slots))};
	if (!s->node || !s->slots) {
		free(s->node);
		free(s->slots);
		return NULL;
	}
	r->spare_count++;
	return s;
}

bool run_add_spare(struct run *r, const char *node, const int *slots)
{
	struct spare_record *s = add_spare(r, node, (size_t)r->per_node);

	for (int64_t i = 0; s && i < r->per_node; i++)
		s->slots[s->slot_count++] = slots[i];
	return s;
}

void run_drop_spare(struct run *r, size_t i)
{
	free(r->spares[i].node);
	free(r->spares[i].slots);
	r->spare_count--;
	memmove(&r->spares[i], &r->spares[i + 1], (r->spare_count - i) * sizeof(*r->spares));
}

int64_t run_spare_slots(const struct run *r)
{
	int64_t n = 0;

	for (size_t i = 0; i < r->spare_count; i++)
		n += (int64_t)r->spares[i].slot_count;
	return n;
}

static bool is_in_order(const struct run *r, const struct run_part *part)
{
	return !part->trouble && !str_eq_host(part->node, r->device_node) && !part->lost;
}

bool run_has_replacements(const struct run *r)
{
	size_t n = r->spare_count;

	for (size_t i = 0; i < r->part_count; i++)
		n += is_in_order(r, &r->parts[i]);
	return r->spares_asked > 0 && (int64_t)n >= r->nodes_asked.low;
}

static void add_slots(struct run *r, struct spare_record *s, const struct run_rank *rank)
{
	size_t count = MAX(rank->slot_count, (size_t)1);

	for (size_t i = 0; i < count && (int64_t)s->slot_count < r->per_node; i++)
		s->slots[s->slot_count++] = rank->slot_count ? rank->slots[i] : rank->slot;
}

void run_keep_nodes(struct run *r)
{
	/* Of each part: 1 + the place of its node among the spares. */
	_cleanup_free_ size_t *place = calloc(r->part_count + 1, sizeof(*place));

	for (size_t i = 0; place && r->spares_asked > 0 && i < r->part_count; i++) {
		struct spare_record *s;

		if (!is_in_order(r, &r->parts[i]))
			continue;
		s = add_spare(r, r->parts[i].node, (size_t)r->per_node);
		if (!s) /* then the next attempt has to wait for it as others do */
			break;
		s->worked = true;
		place[i] = r->spare_count;
	}
	for (size_t k = 0; place && r->spares_asked > 0 && k < r->rank_count; k++) {
		const struct run_part *part = run_part_find(r, r->ranks[k].node);
		size_t own = part ? place[part - r->parts] : 0;

		if (own > 0)
			add_slots(r, &r->spares[own - 1], &r->ranks[k]);
	}
}
