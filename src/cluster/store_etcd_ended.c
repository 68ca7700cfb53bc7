/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/store_etcd_ended.h"

static size_t place(const struct ended_runs *e, size_t i)
{
	return (e->oldest + i) % STORE_ETCD_ENDED_MAX;
}

const struct ended_run *ended_runs_find(const struct ended_runs *e, int64_t id)
{
	for (size_t i = 0; i < e->count; i++)
		if (e->list[place(e, i)].id == id)
			return &e->list[place(e, i)];
	return NULL;
}

bool ended_runs_update(struct ended_runs *e, const struct ended_run *run)
{
	for (size_t i = 0; i < e->count; i++) {
		struct ended_run *known = &e->list[place(e, i)];

		if (known->id != run->id)
			continue;
		e->bytes += run->bytes - known->bytes;
		known->bytes = run->bytes;
		known->pieces = known->pieces || run->pieces;
		return true;
	}
	return false;
}

static struct ended_run drop_oldest(struct ended_runs *e)
{
	struct ended_run oldest = e->list[e->oldest];

	e->oldest = place(e, 1);
	e->count--;
	e->bytes -= oldest.bytes;
	return oldest;
}

bool ended_runs_make_room(struct ended_runs *e, size_t bytes, struct ended_run *oldest)
{
	if (e->count == 0 || (e->count < STORE_ETCD_ENDED_MAX && e->bytes + bytes <= STORE_ETCD_ENDED_BYTES))
		return false;
	*oldest = drop_oldest(e);
	return true;
}

void ended_runs_add(struct ended_runs *e, const struct ended_run *run)
{
	if (e->count == STORE_ETCD_ENDED_MAX)
		drop_oldest(e);
	e->list[place(e, e->count++)] = *run;
	e->bytes += run->bytes;
}
