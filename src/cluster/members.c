/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the hosts file in its order, found by name through an index, with what each last reported. */
#include "cluster/members.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/topology.h"

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

static void member_free(struct member *m)
{
	if (!m)
		return;
	for (char **l = m->labels; l && *l; l++)
		free(*l);
	free(m->labels);
	free(m->name);
	free(m->address);
	free(m->version);
	free(m->launch);
	free(m->kept_runs);
	free(m->error);
	free(m->drain_reason);
	message_free_list(&device_info_message, m->devices, m->slots);
	free(m->links);
	message_free_list(&foreign_attempt_message, m->foreign, m->foreign_count);
	heartbeat_release(&m->whole);
	free(m);
}

DEFINE_CLEANUP(struct member *, member_free)

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

/* What the hosts file says, into a new or an existing member, its spelling of the name included: the index
 * still finds it, and has the name itself. */
static int describe(struct member *m, const struct host *h, int default_port)
{
	char *address = strdup(h->address ? h->address : h->name), **labels = str_list_copy(h->labels);

	if (!address || !labels) {
		free(address);
		str_list_free(labels);
		return -1;
	}
	str_list_free(m->labels);
	free(m->address);
	m->address = address;
	m->labels = labels;
	m->port = h->port ? h->port : default_port;
	m->removed = false;
	memcpy(m->name, h->name, strlen(h->name));
	return 0;
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

		if (old)
			old->silent_since = 0; /* another address of it may have been asked */
		else {
			const struct departed *before = find_departed(m, hosts->list[i].name);

			new = calloc(1, sizeof(*new));
			if (new) {
				new->name = strdup(hosts->list[i].name);
				new->epoch = before ? before->epoch : 0;
			}
		}
		if (!new || !new->name || describe(new, &hosts->list[i], default_port) < 0 ||
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
	if (!new || !(new->name = strdup(name)) || describe(new, &host, default_port) < 0 ||
	    name_index_add(&m->index, new->name, m->count) < 0)
		return error_oom(err);
	new->removed = true;
	list[m->count++] = steal_pointer(new);
	return 0;
}

void member_set_devices(struct member *m, struct device_info *devices, size_t count)
{
	message_free_list(&device_info_message, m->devices, m->slots);
	free(steal_pointer(m->links));
	m->links_known = false;
	m->devices = devices;
	m->slots = count;
}

void member_release(struct member *m, int64_t run)
{
	for (size_t i = 0; i < m->slots; i++) {
		struct device_info *d = &m->devices[i];

		if (d->run != run || (d->state != SLOT_LEASED && d->state != SLOT_DRAINING))
			continue;
		d->state = d->state == SLOT_LEASED ? SLOT_FREE : SLOT_DRAINED;
		d->run = 0;
		m->as_sent = false;
	}
}

bool member_slots_differ(const struct member *m, const struct device_info *devices, size_t count)
{
	if (m->slots != count)
		return true;
	for (size_t i = 0; i < count; i++) {
		const struct device_info *old = &m->devices[i], *d = &devices[i];

		if (old->state != d->state || old->run != d->run || old->kind != d->kind ||
		    !str_eq(old->uuid, d->uuid) || !str_eq(old->reason, d->reason))
			return true;
	}
	return false;
}

/* How many of the other slots the device says how it is linked with. */
static size_t link_count(const struct device_info *d)
{
	size_t n = 0;

	while (d->gpu_info && d->gpu_info->links && d->gpu_info->links[n])
		n++;
	return n;
}

static bool any_links(const struct member *m)
{
	for (size_t i = 0; i < m->slots; i++)
		if (link_count(&m->devices[i]) == m->slots)
			return true;
	return false;
}

const unsigned char *member_links(struct member *m)
{
	if (m->links_known)
		return m->links;
	m->links_known = true;
	if (m->slots == 0 || !any_links(m))
		return NULL;
	m->links = calloc(m->slots, m->slots);
	m->links_known = m->links;
	for (size_t i = 0; m->links && i < m->slots; i++) {
		size_t known = link_count(&m->devices[i]);

		for (size_t k = 0; k < m->slots; k++)
			m->links[i * m->slots + k] =
			    topology_weight(k < known ? m->devices[i].gpu_info->links[k] : NULL);
	}
	return m->links;
}

void member_set_drained(struct member *m, bool drained, char *reason)
{
	free(m->drain_reason);
	m->drained = drained;
	m->drain_reason = reason;
}

enum slot_kind member_kind(const struct member *m)
{
	if (m->slots == 0)
		return SLOT_ANY;
	return m->devices[0].kind == DEVICE_KIND_GPU ? SLOT_GPU : SLOT_CPU;
}

bool member_awaited(const struct member *m)
{
	return !m->up && m->heard == 0 && !m->error && !m->removed;
}

static bool is_drained(const struct device_info *device)
{
	return device->state == SLOT_DRAINED || device->state == SLOT_DRAINING;
}

size_t member_drained_slots(const struct member *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->slots; i++)
		n += is_drained(&m->devices[i]);
	return n;
}

static void set_ports(struct member *m, const int64_t *ports, size_t count)
{
	m->port_count = MIN(count, ARRAY_SIZE(m->ports));
	for (size_t i = 0; i < m->port_count; i++)
		m->ports[i] = (int)ports[i];
}

static void note_heard(struct member *m, int64_t sequence, double now, double now_realtime)
{
	m->heard = now;
	m->last_seen = now_realtime;
	m->sequence = sequence;
}

bool member_heartbeat(struct member *m, struct heartbeat *heartbeat, double now, double now_realtime)
{
	bool was_down = (!m->up || m->shutting_down) && !heartbeat->shutting_down;

	heartbeat_release(&m->whole);
	m->as_sent = true;
	note_heard(m, heartbeat->sequence, now, now_realtime);
	m->up = true;
	m->shutting_down = heartbeat->shutting_down;
	snprintf(m->instance, sizeof(m->instance), "%s", heartbeat->instance);
	snprintf(m->boot, sizeof(m->boot), "%s", heartbeat->boot ? heartbeat->boot : "");
	m->leases = heartbeat->leases;
	m->sent = heartbeat->leases ? heartbeat->sent : 0;
	member_set_devices(m, steal_pointer(heartbeat->devices), heartbeat->device_count);
	heartbeat->device_count = 0;
	if (!str_eq(heartbeat->version, m->version)) {
		free(m->version);
		m->version = strdup(heartbeat->version);
	}
	if (!str_eq(heartbeat->launch, m->launch))
		str_replace(&m->launch, heartbeat->launch);
	snprintf(m->hosts_hash, sizeof(m->hosts_hash), "%s", heartbeat->hosts ? heartbeat->hosts : "");
	m->port_low = heartbeat->port_range_count == 2 ? (int)heartbeat->port_range[0] : 0;
	m->port_high = heartbeat->port_range_count == 2 ? (int)heartbeat->port_range[1] : 0;
	set_ports(m, heartbeat->ports, heartbeat->port_count);
	free(steal_pointer(m->error));
	return was_down;
}

void member_keep(struct member *m, struct heartbeat *heartbeat)
{
	heartbeat_release(&m->whole);
	m->whole = *heartbeat;
	*heartbeat = (struct heartbeat){0};
}

int64_t member_kept(const struct member *m)
{
	return m->up && m->as_sent ? m->whole.sequence : 0;
}

void member_short_heartbeat(struct member *m, const struct short_heartbeat *heartbeat, double now,
                            double now_realtime)
{
	note_heard(m, heartbeat->sequence, now, now_realtime);
	m->sent = m->leases ? heartbeat->sent : 0;
	set_ports(m, heartbeat->ports, heartbeat->port_count);
	if (m->whole.known)
		m->whole.known->highest_run = heartbeat->highest_run;
}

int member_take_port(struct member *m, uint64_t salt)
{
	if (m->port_count > 0)
		return m->ports[--m->port_count];
	/* More runs than ports since its last heartbeat: within its range, or below that from which kernels
	 * give ports. */
	if (m->port_low > 0 && m->port_high >= m->port_low)
		return m->port_low +
		       (int)((salt * 2654435761u >> 7) % (unsigned)(m->port_high - m->port_low + 1));
	return 20000 + (salt * 2654435761u >> 7) % 12000;
}

void member_set_down(struct member *m, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	m->up = false;
	free(m->error);
	m->error = strdup(text);
}

void member_set_silent(struct member *m, double since)
{
	m->silent_since = since;
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
	double next = 0;

	if (m->check_due > 0 && now - m->check_due > timeout / LATE_PARTS)
		m->watched_since = now;
	for (size_t i = 0; i < m->count; i++) {
		struct member *x = m->list[i];
		double due = due_of(m, x, timeout);

		/* One that was never heard of is due once: its error tells that it was. */
		if (str_eq_host(x->name, self) || (!x->up && (x->heard > 0 || x->error)))
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

enum node_state member_state(const struct member *m)
{
	if (!m->up)
		return member_awaited(m) ? NODE_UNKNOWN : NODE_DOWN;
	return m->drained ? NODE_DRAINED : NODE_UP;
}

size_t member_free_slots(const struct member *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->slots; i++)
		n += m->devices[i].state == SLOT_FREE && m->devices[i].reserved_for == 0;
	return n;
}

size_t member_reserved_slots(const struct member *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->slots; i++)
		n += m->devices[i].state == SLOT_FREE && m->devices[i].reserved_for > 0;
	return n;
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
	    .hosts_differ = member_hosts_differ(m, x),
	    .foreign = x->foreign,
	    .foreign_count = x->foreign_count,
	    .reason = x->drain_reason,
	    .last_seen = x->last_seen,
	};

	for (size_t i = 0; view.drained && i < x->slots; i++)
		if (is_drained(&x->devices[i]))
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
