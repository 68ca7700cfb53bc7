/* SPDX-License-Identifier: Apache-2.0 */
/* What a node last reported, and what the controller has noted of it since. */
#include "cluster/member.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cluster/topology.h"

void member_free(struct member *m)
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
	free(m->unreachable);
	free(m->failing);
	free(m->error);
	free(m->drain_reason);
	message_free_list(&device_info_message, m->devices, m->slots);
	free(m->links);
	message_free_list(&foreign_attempt_message, m->foreign, m->foreign_count);
	heartbeat_release(&m->whole);
	free(m);
}

/* What the hosts file says, into a new or an existing member, its spelling of the name included: the index
 * still finds it, and has the name itself. */
int member_set_host(struct member *m, const struct host *h, int default_port)
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

bool member_slot_drained(const struct member *m, size_t slot)
{
	return m->devices[slot].state == SLOT_DRAINED || m->devices[slot].state == SLOT_DRAINING;
}

size_t member_drained_slots(const struct member *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->slots; i++)
		n += member_slot_drained(m, i);
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
	bool restarted = !str_eq(m->instance, heartbeat->instance);

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
	if (was_down || restarted) {
		member_set_unreachable(m, NULL);
		member_set_failing(m, NULL, now);
	}
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

void member_set_unreachable(struct member *m, const char *why)
{
	free(m->unreachable);
	m->unreachable = why ? strdup(why) : NULL;
}

/* As long as an administrator may take to make room on a disk, and no longer than he would look at it. */
#define FIRST_FAILING_SECONDS 30.0
#define MOST_FAILING_SECONDS  1800.0

void member_set_failing(struct member *m, const char *why, double now)
{
	double seconds = FIRST_FAILING_SECONDS;

	if (!why && m->failures)
		m->backoff_until = now; /* the owner ends it, and looks at the queue */
	free(m->failing);
	m->failing = why ? strdup(why) : NULL;
	m->failures = why ? m->failures + 1 : 0;
	if (!why)
		return;
	for (int i = 1; i < m->failures && seconds < MOST_FAILING_SECONDS; i++)
		seconds *= 2;
	m->backoff_until = now + MIN(seconds, MOST_FAILING_SECONDS);
}

void member_set_silent(struct member *m, double since)
{
	m->silent_since = since;
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
