/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the hosts file in its order, found by name through an index. */
#include "cluster/members.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

/* What the controller has sent to a host that is no longer in the hosts file. */
struct departed {
	char *name;
	int64_t epoch;
};

struct members {
	struct member **list;
	size_t count;
	struct departed *departed;
	size_t departed_count;
	struct name_index index; /* of the list */
	char hosts_hash[HOSTS_HASH_SIZE];
	double watched_since; /* time without a heartbeat counts from then at the earliest */
	double check_due;     /* when members_expire asked to be called again; 0: it did not */
};

/* How closely ages are looked at, in parts of the time-out, and how late a look may be: one later than that
 * means that this process stood still, and what it did not read says nothing about who sent it. */
enum { CHECKS_PER_TIMEOUT = 8, LATE_PARTS = 4 };

/* How many heartbeats fit into the time-out and the lease at least, where the controller says how many there
 * are. */
enum { INTERVALS_PER_TIMEOUT = 3, INTERVALS_PER_LEASE = 4 };

#define SHORTEST_INTERVAL 0.05 /* that dtraind.conf allows: what is shorter need not be said */

int members_create(double now, struct members **out, struct error *err)
{
	struct members *m = calloc(1, sizeof(*m));

	if (!m)
		return error_oom(err);
	m->watched_since = now;
	*out = m;
	return 0;
}

void members_destroy(struct members *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->count; i++)
		member_free(m->list[i]);
	for (size_t i = 0; i < m->departed_count; i++)
		free(m->departed[i].name);
	free(m->departed);
	name_index_free(&m->index);
	free(m->list);
	free(m);
}

size_t members_count(const struct members *m)
{
	return m->count;
}

struct member *members_get(struct members *m, size_t i)
{
	return m->list[i];
}

struct member *members_find(struct members *m, const char *name)
{
	size_t i;

	return name_index_find(&m->index, name, &i) ? m->list[i] : NULL;
}

bool members_position(const struct members *m, const char *name, size_t *i)
{
	return name_index_find(&m->index, name, i);
}

static struct departed *find_departed(const struct members *m, const char *name)
{
	for (size_t i = 0; i < m->departed_count; i++)
		if (str_eq_host(m->departed[i].name, name))
			return &m->departed[i];
	return NULL;
}

/* Takes the member. Without memory to remember it, it is a new one when it comes back. */
static void depart(struct members *m, struct member *old)
{
	struct departed *d = find_departed(m, old->name);

	if (!d && old->epoch > 0) {
		d = reallocarray(m->departed, m->departed_count + 1, sizeof(*d));
		if (d) {
			m->departed = d;
			d += m->departed_count++;
			*d = (struct departed){.name = steal_pointer(old->name)};
		}
	}
	if (d)
		d->epoch = old->epoch;
	member_free(old);
}

int members_set_hosts(struct members *m, const struct hosts *hosts, int default_port, double now,
                      bool (*keep)(void *context, const char *name), void *context, struct error *err)
{
	struct member **list = calloc(hosts->count + m->count + 1, sizeof(*list));
	_cleanup_(name_index_free) struct name_index index = {0};
	char hash[HOSTS_HASH_SIZE];
	size_t n = 0;

	if (!list || hosts_hash(hosts, hash, err) < 0) {
		free(list);
		return error_oom(err);
	}
	for (size_t i = 0; i < hosts->count; i++) {
		struct member *old = members_find(m, hosts->list[i].name), *new = old;

		if (old) {
			old->silent_since = 0; /* another address of it may have been asked */
			member_set_unreachable(old, NULL);
		} else {
			const struct departed *before = find_departed(m, hosts->list[i].name);

			new = calloc(1, sizeof(*new));
			if (new) {
				new->name = strdup(hosts->list[i].name);
				new->epoch = before ? before->epoch : 0;
			}
		}
		if (!new || !new->name || member_set_host(new, &hosts->list[i], default_port) < 0 ||
		    name_index_add(&index, new->name, n) < 0) {
			if (!old)
				member_free(new);
			while (n-- > 0)
				if (!members_find(m, list[n]->name))
					member_free(list[n]);
			free(list);
			return error_oom(err);
		}
		list[n++] = new;
	}
	for (size_t i = 0; i < m->count; i++) {
		struct member *old = m->list[i];

		if (hosts_find(hosts, old->name))
			continue;
		if (keep(context, old->name) && name_index_add(&index, old->name, n) == 0) {
			old->removed = true;
			list[n++] = old;
		} else
			depart(m, old);
	}
	free(m->list);
	m->list = list;
	m->count = n;
	name_index_free(&m->index);
	m->index = index;
	index = (struct name_index){0};
	memcpy(m->hosts_hash, hash, sizeof(m->hosts_hash));
	m->watched_since = now;
	m->check_due = 0;
	return 0;
}

int members_add_removed(struct members *m, const char *name, int default_port, struct error *err)
{
	const struct host host = {.name = (char *)name};
	_cleanup_(member_freep) struct member *new = NULL;
	struct member **list;

	if (members_find(m, name))
		return 0;
	list = reallocarray(m->list, m->count + 1, sizeof(*list));
	if (!list)
		return error_oom(err);
	m->list = list;
	new = calloc(1, sizeof(*new));
	if (!new || !(new->name = strdup(name)) || member_set_host(new, &host, default_port) < 0 ||
	    name_index_add(&m->index, new->name, m->count) < 0)
		return error_oom(err);
	new->removed = true;
	list[m->count++] = steal_pointer(new);
	return 0;
}

static bool was_silent(const struct member *x)
{
	return x->heard == 0 && x->silent_since > 0;
}

static double due_of(const struct members *m, const struct member *x, double timeout)
{
	double due = MAX(x->heard, m->watched_since) + timeout;

	if (!was_silent(x))
		return due;
	return MIN(due, MAX(x->silent_since + timeout, m->watched_since + timeout * SILENT_PERCENT / 100));
}

double members_expire(struct members *m, const char *self, double now, double timeout,
                      void (*down)(void *context, struct member *), void *context)
{
	const struct member *own = members_find(m, self);
	double next = 0;

	if (m->check_due > 0 && now - m->check_due > timeout / LATE_PARTS)
		m->watched_since = now;
	for (size_t i = 0; i < m->count; i++) {
		struct member *x = m->list[i];
		double due = due_of(m, x, timeout);

		/* One that was never heard of is due once: its error tells that it was. */
		if (x == own || (!x->up && (x->heard > 0 || x->error)))
			continue;
		if (due > now) {
			next = next == 0 || due < next ? due : next;
			continue;
		}
		if (x->heard > 0)
			member_set_down(x, "no heartbeat for %.0f s", timeout);
		else if (was_silent(x))
			member_set_down(x, "no answer for %.0f s", now - x->silent_since);
		else
			member_set_down(x, "not heard from since the controller started");
		down(context, x);
	}
	if (next > 0)
		next = MIN(next, now + timeout / CHECKS_PER_TIMEOUT);
	m->check_due = next;
	return next;
}

double members_interval(const struct members *m, int most, double timeout, double lease)
{
	double interval = most > 0 ? (double)m->count / most : 0;

	interval = MIN(interval, timeout / INTERVALS_PER_TIMEOUT);
	if (lease > 0)
		interval = MIN(interval, lease / INTERVALS_PER_LEASE);
	return interval < SHORTEST_INTERVAL ? 0 : interval;
}

bool member_hosts_differ(const struct members *m, const struct member *x)
{
	return x->up && x->hosts_hash[0] && !str_eq(x->hosts_hash, m->hosts_hash);
}

/* Borrows all but the list of drained slots, which is the caller's to free. */
static struct node_view describe_member(const struct members *m, const struct member *x,
                                        const char *controller)
{
	struct node_view view = {
	    .name = x->name,
	    .address = x->address,
	    .port = x->port,
	    .state = member_state(x),
	    .controller = str_eq_host(x->name, controller),
	    .slots = (int64_t)x->slots,
	    .free = x->up && !x->drained ? (int64_t)member_free_slots(x) : 0,
	    .spare_of = x->kept_runs,
	    .spare_count = x->kept_run_count,
	    .version = x->version,
	    .launch = x->launch,
	    .labels = x->labels,
	    .error = x->removed ? (char *)"removed from the hosts file"
	             : x->up    ? NULL
	             : x->error ? x->error
	                        : (char *)"not heard from yet",
	    .drained = calloc(x->slots + 1, sizeof(*view.drained)),
	    .unreachable = x->up ? x->unreachable : NULL,
	    .failing = x->up ? x->failing : NULL,
	    .hosts_differ = member_hosts_differ(m, x),
	    .foreign = x->foreign,
	    .foreign_count = x->foreign_count,
	    .reason = x->drain_reason,
	    .last_seen = x->last_seen,
	};

	for (size_t i = 0; view.drained && i < x->slots; i++)
		if (member_slot_drained(x, i))
			view.drained[view.drained_count++] = (struct drained_slot){
			    (int64_t)i, x->devices[i].reason ? x->devices[i].reason : (char *)""};
	return view;
}

json_t *members_to_json(const struct members *m, const char *controller)
{
	struct node_list list = {.nodes = calloc(m->count + 1, sizeof(*list.nodes))};
	json_t *json;

	for (; list.nodes && list.count < m->count; list.count++)
		list.nodes[list.count] = describe_member(m, m->list[list.count], controller);
	json = list.nodes ? node_list_encode(&list) : NULL;
	for (size_t i = 0; i < list.count; i++)
		free(list.nodes[i].drained);
	free(list.nodes);
	return json;
}

json_t *members_devices(const struct members *m)
{
	struct device_list list = {0};
	size_t count = 0;
	json_t *json;

	for (size_t i = 0; i < m->count; i++)
		count += m->list[i]->slots;
	list.devices = calloc(count + 1, sizeof(*list.devices)); /* what they own is the members' */
	if (!list.devices)
		return NULL;
	for (size_t i = 0; i < m->count; i++)
		for (size_t k = 0; k < m->list[i]->slots; k++) {
			struct device_info *d = &list.devices[list.count++];

			*d = m->list[i]->devices[k];
			d->node = m->list[i]->name; /* which it may spell in another way */
			if (!m->list[i]->drained || d->state != SLOT_FREE)
				continue;
			d->state = SLOT_DRAINED;
			if (m->list[i]->drain_reason)
				d->reason = m->list[i]->drain_reason;
		}
	json = device_list_encode(&list);
	free(list.devices);
	return json;
}
