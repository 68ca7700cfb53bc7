/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/topology.h"

/* A host that is not in the hosts file any more: what it was told. */
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
	double watched_since; /* nobody's silence counts from before */
	double check_due;     /* when members_expire asked to be called again; 0: it did not */
};

/* How closely ages are looked at, in parts of the time-out, and how late a look may be: one later than that
 * means that this process stood still, and what it did not read says nothing about who sent it. */
enum { CHECKS_PER_TIMEOUT = 8, LATE_PARTS = 4 };

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
	free(m->error);
	free(m->drain_reason);
	json_decref(m->devices);
	json_decref(m->foreign);
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

static char **copy_list(char *const *list)
{
	size_t n = 0;
	char **out;

	while (list && list[n])
		n++;
	out = calloc(n + 1, sizeof(*out));
	for (size_t i = 0; out && i < n; i++)
		out[i] = strdup(list[i]);
	return out;
}

/* What the hosts file says, into a new or an existing member. */
static int describe(struct member *m, const struct host *h, int default_port)
{
	char *address = strdup(h->address ? h->address : h->name), **labels = copy_list(h->labels);

	if (!address || !labels) {
		free(address);
		free(labels);
		return -1;
	}
	for (char **l = m->labels; l && *l; l++)
		free(*l);
	free(m->labels);
	free(m->address);
	m->address = address;
	m->labels = labels;
	m->port = h->port ? h->port : default_port;
	m->removed = false;
	return 0;
}

static struct departed *find_departed(const struct members *m, const char *name)
{
	for (size_t i = 0; i < m->departed_count; i++)
		if (strcasecmp(m->departed[i].name, name) == 0)
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
	size_t n = 0;

	if (!list)
		return error_oom(err);
	for (size_t i = 0; i < hosts->count; i++) {
		struct member *old = members_find(m, hosts->list[i].name), *new = old;

		if (!old) {
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
			free(list);
			return error_oom(err);
		}
		list[n++] = new;
	}
	for (size_t i = 0; i < m->count; i++) {
		struct member *old = m->list[i];

		if (hosts_find(hosts, old->name))
			continue;
		if (keep && keep(context, old->name) && name_index_add(&index, old->name, n) == 0) {
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
	hosts_hash(hosts, m->hosts_hash);
	m->watched_since = now;
	m->check_due = 0;
	return 0;
}

void member_set_devices(struct member *m, json_t *devices)
{
	json_decref(m->devices);
	m->devices = devices;
	m->slots = json_array_size(devices);
}

void member_release(struct member *m, int64_t run)
{
	json_t *d;
	size_t i;

	json_array_foreach(m->devices, i, d)
	{
		const char *state = json_get_string(d, "state", "");

		if (json_get_int(d, "run", -1) != run ||
		    (!str_eq(state, "leased") && !str_eq(state, "draining")))
			continue;
		json_object_set_new(d, "state", json_string(str_eq(state, "leased") ? "free" : "drained"));
		json_object_set_new(d, "run", json_null());
	}
}

bool member_slots_differ(const struct member *m, const json_t *devices)
{
	static const char *const keys[] = {"state", "run", "kind", "uuid", "reason"};
	size_t i;
	json_t *d;

	if (json_array_size(m->devices) != json_array_size(devices))
		return true;
	json_array_foreach(devices, i, d)
	{
		const json_t *old = json_array_get(m->devices, i);

		for (size_t k = 0; k < ARRAY_SIZE(keys); k++)
			if (!json_equal(json_object_get(old, keys[k]), json_object_get(d, keys[k])) &&
			    (json_object_get(old, keys[k]) || json_object_get(d, keys[k])))
				return true;
	}
	return false;
}

unsigned char *member_links(const struct member *m)
{
	unsigned char *links;
	bool some = false;
	size_t i;
	json_t *d;

	json_array_foreach(m->devices, i, d) some =
	    some || json_array_size(json_object_get(d, "links")) == m->slots;
	links = some ? calloc(m->slots, m->slots) : NULL;
	for (i = 0; links && i < m->slots; i++) {
		const json_t *row = json_object_get(json_array_get(m->devices, i), "links");

		for (size_t k = 0; k < m->slots; k++)
			links[i * m->slots + k] = topology_weight(json_string_value(json_array_get(row, k)));
	}
	return links;
}

void member_set_drained(struct member *m, bool drained, const char *reason)
{
	free(m->drain_reason);
	m->drained = drained;
	m->drain_reason = drained && reason && *reason ? strdup(reason) : NULL;
}

enum slot_kind member_kind(const struct member *m)
{
	const json_t *first = json_array_get(m->devices, 0);

	if (!first)
		return SLOT_ANY;
	return str_eq(json_get_string(first, "kind", NULL), "gpu") ? SLOT_GPU : SLOT_CPU;
}

bool member_awaited(const struct member *m)
{
	return !m->up && m->heard == 0 && !m->error && !m->removed;
}

static bool is_drained(const json_t *device)
{
	const char *state = json_get_string(device, "state", "");

	return str_eq(state, "drained") || str_eq(state, "draining");
}

size_t member_drained_slots(const struct member *m)
{
	size_t i, n = 0;
	json_t *d;

	json_array_foreach(m->devices, i, d) n += is_drained(d);
	return n;
}

bool member_heartbeat(struct member *m, const json_t *heartbeat, double now, double now_realtime)
{
	const char *version = json_get_string(heartbeat, "version", NULL);
	json_t *devices = json_object_get(heartbeat, "devices"), *port;
	bool was_down = !m->up || m->shutting_down;
	size_t i;

	m->up = true;
	m->shutting_down = json_get_bool(heartbeat, "shutting_down", false);
	m->heard = now;
	m->last_seen = now_realtime;
	m->sequence = json_get_int(heartbeat, "sequence", 0);
	snprintf(m->instance, sizeof(m->instance), "%s", json_get_string(heartbeat, "instance", ""));
	if (json_is_array(devices))
		member_set_devices(m, json_incref(devices));
	if (version && !str_eq(version, m->version)) {
		free(m->version);
		m->version = strdup(version);
	}
	was_down = was_down && !m->shutting_down;
	snprintf(m->hosts_hash, sizeof(m->hosts_hash), "%s", json_get_string(heartbeat, "hosts", ""));
	m->port_low = (int)json_integer_value(json_array_get(json_object_get(heartbeat, "port_range"), 0));
	m->port_high = (int)json_integer_value(json_array_get(json_object_get(heartbeat, "port_range"), 1));
	m->port_count = 0;
	json_array_foreach(json_object_get(heartbeat, "ports"), i, port)
	{
		if (json_is_integer(port) && m->port_count < ARRAY_SIZE(m->ports))
			m->ports[m->port_count++] = json_integer_value(port);
	}
	free(steal_pointer(m->error));
	return was_down;
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

double members_expire(struct members *m, const char *self, double now, double timeout,
                      void (*down)(void *context, struct member *), void *context)
{
	double next = 0;

	if (m->check_due > 0 && now - m->check_due > timeout / LATE_PARTS)
		m->watched_since = now;
	for (size_t i = 0; i < m->count; i++) {
		struct member *x = m->list[i];
		double due = MAX(x->heard, m->watched_since) + timeout;

		/* One that was never heard of is due once: its error tells that it was. */
		if (strcasecmp(x->name, self) == 0 || (!x->up && (x->heard > 0 || x->error)))
			continue;
		if (due > now) {
			next = next == 0 || due < next ? due : next;
			continue;
		}
		if (x->heard > 0)
			member_set_down(x, "no heartbeat for %.0f s", timeout);
		else
			member_set_down(x, "not heard from since the controller started");
		down(context, x);
	}
	if (next > 0)
		next = MIN(next, now + timeout / CHECKS_PER_TIMEOUT);
	m->check_due = next;
	return next;
}

const char *member_state(const struct member *m)
{
	return !m->up ? "down" : m->drained ? "drained" : "up";
}

size_t member_free_slots(const struct member *m)
{
	json_t *d;
	size_t i, n = 0;

	json_array_foreach(m->devices, i, d) n += strcmp(json_get_string(d, "state", ""), "free") == 0;
	return n;
}

/* [{"index","reason"}] */
static json_t *drained_list(const struct member *m)
{
	json_t *list = json_array(), *d;
	size_t i;

	json_array_foreach(m->devices, i, d)
	{
		if (is_drained(d))
			json_array_append_new(list, json_pack("{s:I,s:s}", "index", (json_int_t)i, "reason",
			                                      json_get_string(d, "reason", "")));
	}
	return list;
}

bool member_hosts_differ(const struct members *m, const struct member *x)
{
	return x->up && x->hosts_hash[0] && !str_eq(x->hosts_hash, m->hosts_hash);
}

json_t *members_to_json(const struct members *m, const char *controller)
{
	json_t *list = json_array();

	for (size_t i = 0; i < m->count; i++) {
		const struct member *x = m->list[i];
		json_t *labels = json_array(), *o;

		for (char **l = x->labels; l && *l; l++)
			json_array_append_new(labels, json_string(*l));
		o = json_pack("{s:s,s:s,s:i,s:s,s:b,s:I,s:I,s:s?,s:o,s:s?}", "name", x->name, "address",
		              x->address, "port", x->port, "state", member_state(x), "controller",
		              strcasecmp(x->name, controller) == 0, "slots", (json_int_t)x->slots, "free",
		              (json_int_t)(x->up && !x->drained ? member_free_slots(x) : 0), "version",
		              x->version, "labels", labels, "error",
		              x->removed ? "removed from the hosts file"
		              : x->up    ? NULL
		              : x->error ? x->error
		                         : "not heard from yet");
		json_object_set_new(o, "drained", drained_list(x));
		json_object_set_new(o, "hosts_differ", json_boolean(member_hosts_differ(m, x)));
		json_object_set_new(o, "foreign", x->foreign ? json_incref(x->foreign) : json_array());
		json_object_set_new(o, "reason",
		                    x->drain_reason ? json_string(x->drain_reason) : json_null());
		json_object_set_new(o, "last_seen", x->last_seen > 0 ? json_real(x->last_seen) : json_null());
		json_array_append_new(list, o);
	}
	return list;
}

json_t *members_devices(const struct members *m)
{
	json_t *list = json_array(), *d;
	size_t k;

	for (size_t i = 0; i < m->count; i++)
		json_array_foreach(m->list[i]->devices, k, d)
		{
			json_t *copy;

			if (!m->list[i]->drained || strcmp(json_get_string(d, "state", ""), "free") != 0) {
				json_array_append(list, d);
				continue;
			}
			copy = json_copy(d);
			json_object_set_new(copy, "state", json_string("drained"));
			if (m->list[i]->drain_reason)
				json_object_set_new(copy, "reason", json_string(m->list[i]->drain_reason));
			json_array_append_new(list, copy);
		}
	return list;
}
