/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of users: how many runs one may have, and how many slots these may have at once. */
#include <errno.h>

#include "controller/internal.h"

static bool has_limits(const struct run *r)
{
	return r->uid != 0;
}

int user_limits_check_runs(const struct controller *c, const struct run *r, size_t waiting, struct error *err)
{
	int64_t limit = c->options.user_limits.runs, count = (int64_t)waiting;

	if (limit == 0 || !has_limits(r))
		return 0;
	for (size_t i = 0; i < c->queue.count; i++)
		count += c->queue.list[i]->uid == r->uid && !run_state_final(c->queue.list[i]->state);
	if (count < limit)
		return 0;
	return error_set(err, -EDQUOT,
	                 "user %s has %lld %s that %s not ended, and may have %lld (user_runs of "
	                 "dtraind.conf): wait for the end of one, or cancel one",
	                 r->user, (long long)count, count == 1 ? "run" : "runs", count == 1 ? "has" : "have",
	                 (long long)limit);
}

bool user_limits_alone(const struct controller *c, const struct run *r, struct sched_user *out)
{
	*out = (struct sched_user){.uid = r->uid, .name = r->user, .limit = c->options.user_limits.slots};
	return out->limit > 0 && has_limits(r);
}

struct sched_user *user_limits_find(const struct controller *c, struct sched_user *users, const struct run *r)
{
	struct sched_user *u = users, unknown;

	if (!user_limits_alone(c, r, &unknown))
		return NULL;
	while (u->limit && u->uid != r->uid)
		u++;
	if (!u->limit)
		*u = unknown;
	return u;
}

int64_t user_limits_slots(const struct run *r)
{
	int64_t slots = run_spare_slots(r);

	for (size_t i = 0; r->part_count && i < r->rank_count; i++)
		slots += (int64_t)MAX(r->ranks[i].slot_count, (size_t)1);
	return slots;
}

struct sched_user *user_limits_list(const struct controller *c)
{
	/* Its end is an entry without a limit. */
	struct sched_user *users = calloc(c->queue.count + 1, sizeof(*users));

	for (size_t i = 0; users && i < c->queue.count; i++) {
		const struct run *r = c->queue.list[i];
		struct sched_user *u = user_limits_find(c, users, r);

		if (u)
			u->held += user_limits_slots(r);
	}
	return users;
}

void controller_set_user_limits(struct controller *c, struct user_limits limits)
{
	c->options.user_limits = limits;
	c->reschedule = true;
	controller_touch(c);
}
