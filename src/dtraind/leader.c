/* SPDX-License-Identifier: Apache-2.0 */
/* The controller that is elected: how nodes find it, and what this node does when it becomes it. */
#include "dtraind/leader.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "cluster/election.h"
#include "cluster/members.h"
#include "cluster/store_etcd.h"

enum { LEASE_SECONDS = 4 }; /* of the controller in etcd */

/*
 * How long it takes at most, in milliseconds, until a node is down that was the controller and had etcd's
 * leader, when both become silent at once; with the default settings of dtraind and etcd (3.4 and newer).
 */
enum {
	/* Where etcd's leader can still send, and only does not receive any more, its followers miss nothing.
	 * It steps down when it finds, as it looks each election time-out (1 s), that none of them has
	 * answered since it looked last. */
	ETCD_STEPPING_DOWN = 2000,
	/* etcd's followers wait for one to two election time-outs (1 s) before they elect another leader. */
	ETCD_ELECTION = 2000,
	/* That gives each lease an election time-out and its whole length anew, since it does not know when
	 * it was renewed last. */
	ETCD_EXTENSION = 1000 + 1000 * LEASE_SECONDS,
	/* So often it looks for leases that have run out. */
	ETCD_EXPIRY = 500,
	/* Then the key is gone, which a candidate finds when it asks next. */
	ASKING = ELECTION_ASK_MSEC,
	/* It asks for a lease and the key, and reads the store: about six calls and two writes of etcd. No
	 * call goes to the dead member first, which would take 1.5 s: the candidate has asked others since.
	 */
	TAKING_OVER = 1000,
	NODE_TIMEOUT = 5000,
	/* The new controller gives nodes the whole node_timeout to report, or it would take nodes for lost
	 * that are only looking for it. But the node of the controller before has not answered it for longer
	 * than that by then (SILENCE), and has a part of that time, in which a service that systemd starts
	 * again (RestartSec=1) finds it. */
	FIRST_TIMEOUT = NODE_TIMEOUT * SILENT_PERCENT / 100,
	TAKEN_OVER = ETCD_ELECTION + ETCD_EXTENSION + ETCD_EXPIRY + ASKING + TAKING_OVER,
	ALL = ETCD_STEPPING_DOWN + TAKEN_OVER + FIRST_TIMEOUT,
	/* The first heartbeat that is not answered is sent after the longest interval for which a controller
	 * asks (members_interval), and is given up after half of node_timeout. */
	SILENCE = NODE_TIMEOUT / 3 + NODE_TIMEOUT / 2,
};

_Static_assert(ALL <= 15000, "a node that is lost with etcd's leader is noticed within 15 seconds");
_Static_assert(ETCD_STEPPING_DOWN + 1000 * LEASE_SECONDS / 2 < NODE_TIMEOUT,
               "a controller that is cut off is not sure any more when it has missed all nodes for so long");
_Static_assert(SILENCE <= TAKEN_OVER, "the next controller knows by then that it does not answer");
_Static_assert(NODE_TIMEOUT / 3 + NODE_TIMEOUT <= TAKEN_OVER + FIRST_TIMEOUT, "and for how long");

struct leader {
	struct daemon *daemon;
	struct leader_callbacks callbacks;
	char *name;                /* the controller, or the candidate that is asked next */
	bool known;                /* it is the controller */
	double *silent_since;      /* of each candidate: leader_silent_since */
	struct election *election; /* NULL: this node is no candidate */
	sd_event_source *changed, *opened;
	bool asked; /* etcd has answered when it was asked last; for the log */
	bool lost;
	struct error why;

	/* What the controllers before have left is read in a thread of its own: it may be much. */
	pthread_t thread;
	bool has_thread;
	int event_fd;
	struct store *store; /* the thread's until event_fd is readable */
	struct error error;
};

static struct etcd_place place_of(const struct daemon_config *config)
{
	return (struct etcd_place){.urls = config->etcd_urls,
	                           .certificate = config->etcd_certificate,
	                           .key = config->etcd_key,
	                           .ca = config->etcd_ca};
}

struct peer leader_peer(const struct daemon *d)
{
	const struct settings *s = d->settings;
	const struct host *h = d->leader ? hosts_find(s->hosts, d->leader->name) : NULL;

	if (!h)
		return (struct peer){s->controller, s->controller_address, s->controller_port};
	return (struct peer){h->name, h->address ? h->address : h->name,
	                     h->port ? h->port : (int)s->config->port};
}

const char *leader_known(const struct daemon *d)
{
	if (!d->leader)
		return d->settings->controller;
	return d->leader->known ? d->leader->name : NULL;
}

bool leader_holds(const struct daemon *d)
{
	return !d->leader || (d->leader->election && election_holds(d->leader->election));
}

bool leader_is_sure(const struct daemon *d)
{
	return !d->leader || (d->leader->election && election_is_sure(d->leader->election));
}

bool leader_is_lost(const struct daemon *d)
{
	struct election_view view;

	if (!d->leader || !d->leader->election || d->leader->lost)
		return d->leader && d->leader->lost;
	if (!d->controller)
		return false;
	election_peek(d->leader->election, &view);
	return view.state == ELECTION_LOST;
}

int leader_error(const struct daemon *d, struct error *err)
{
	return error_set(err, -ESTALE,
	                 "this node is not the controller any more: %s; the service begins anew",
	                 d->leader->why.message);
}

bool leader_is_candidate(const struct daemon *d, const char *name)
{
	const struct settings *s = d->settings;

	if (!d->leader)
		return str_eq_host(name, s->controller);
	for (char **candidate = s->config->controllers; *candidate; candidate++)
		if (str_eq_host(name, *candidate))
			return true;
	return false;
}

void leader_learn(struct daemon *d, const char *name)
{
	const struct host *h = hosts_find(d->settings->hosts, name);
	struct leader *l = d->leader;

	if (!l || d->controller || !h || !leader_is_candidate(d, name) ||
	    str_eq_host(h->name, d->settings->name))
		return;
	if (l->known && str_eq_host(l->name, h->name))
		return;
	if (str_replace(&l->name, h->name) < 0)
		return;
	l->known = true;
	l->callbacks.changed(d);
}

/* Another one may have been learned meanwhile. */
void leader_away(struct daemon *d, const char *name)
{
	char **candidates = d->settings->config->controllers;
	const struct host *h;
	size_t next = 0;

	if (!d->leader || d->controller || !str_eq_host(d->leader->name, name))
		return;
	d->leader->known = false;
	for (size_t i = 0; candidates[i]; i++)
		if (str_eq_host(candidates[i], name) && candidates[i + 1])
			next = i + 1;
	/* A candidate that is not the controller can ask only the other candidates who is. */
	if (str_eq_host(candidates[next], d->settings->name))
		next = candidates[next + 1] ? next + 1 : 0;
	h = hosts_find(d->settings->hosts, candidates[next]);
	if (h) /* a reload may have removed it */
		str_replace(&d->leader->name, h->name);
}

static double *silence_of(const struct daemon *d, const char *name)
{
	char **candidates = d->settings->config->controllers;

	for (size_t i = 0; d->leader && candidates[i]; i++)
		if (str_eq_host(candidates[i], name))
			return &d->leader->silent_since[i];
	return NULL;
}

void leader_answered(struct daemon *d, const char *name, bool leads)
{
	char **candidates = d->settings->config->controllers;
	double *since = silence_of(d, name);
	struct leader *l = d->leader;

	if (since)
		*since = 0;
	if (!l || !leads)
		return;
	/* From now on this one is called, and no other: what these would answer is not known any more. */
	for (size_t i = 0; candidates[i]; i++)
		l->silent_since[i] = 0;
	if (l->known || d->controller || !str_eq_host(l->name, name))
		return;
	l->known = true;
	l->callbacks.found(d);
}

void leader_unanswered(struct daemon *d, const char *name, double sent)
{
	double *since = silence_of(d, name);

	if (since && *since == 0)
		*since = sent;
}

double leader_silent_since(const struct daemon *d, const char *name)
{
	const double *since = silence_of(d, name);

	return since ? *since : 0;
}

static void lose(struct leader *l, const struct error *why)
{
	if (l->lost)
		return;
	l->lost = true;
	l->why = *why;
	sd_event_exit(l->daemon->event, -ESTALE);
}

/* In a thread, since etcd may take seconds to answer: the store, with an epoch of the controller's own. */
static void *open_store(void *context)
{
	struct leader *l = context;
	const struct daemon_config *config = l->daemon->settings->config;
	const struct etcd_place place = place_of(config);
	uint64_t one = 1;

	if (store_etcd_open(&place, l->election, config->state_dir, &l->store, &l->error) == 0 &&
	    store_commit_epoch(l->store, &l->error) < 0) {
		store_close(l->store);
		l->store = NULL;
	}
	if (write(l->event_fd, &one, sizeof(one)) < 0)
		log_err("cannot wake the event loop: %m");
	return NULL;
}

static void begin(struct leader *l)
{
	struct error err = ERROR_INIT;
	int r;

	if (l->has_thread)
		return;
	r = thread_start(&l->thread, open_store, l);
	l->has_thread = r == 0;
	if (r < 0) {
		error_errno(&err, r, "cannot start a thread");
		lose(l, &err);
	}
}

static int on_opened(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct leader *l = userdata;
	struct daemon *d = l->daemon;
	uint64_t count;

	if (read(fd, &count, sizeof(count)) < 0)
		return 0;
	if (!l->store || l->callbacks.lead(d, steal_pointer(l->store), &l->error) < 0) {
		lose(l, &l->error);
		return 0;
	}
	str_replace(&l->name, d->settings->name);
	l->known = true;
	log_info("this node is the controller, epoch %lld", (long long)election_revision(l->election));
	l->callbacks.changed(d);
	return 0;
}

static int on_changed(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct leader *l = userdata;
	struct election_view view;

	election_read(l->election, &view);
	if (view.state == ELECTION_LOST)
		lose(l, &view.error);
	else if (view.state == ELECTION_LEADING)
		begin(l);
	else {
		if (view.error.code < 0 && l->asked)
			log_warn("%s", view.error.message);
		l->asked = view.error.code == 0;
		if (view.leader[0])
			leader_learn(l->daemon, view.leader);
		else
			l->known = false;
	}
	return 0;
}

static int watch(struct leader *l, struct error *err)
{
	struct daemon *d = l->daemon;
	int r;

	l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = l->event_fd < 0 ? -errno : 0;
	if (r == 0)
		r = sd_event_add_io(d->event, &l->opened, l->event_fd, EPOLLIN, on_opened, l);
	if (r >= 0)
		r = sd_event_add_io(d->event, &l->changed, election_fd(l->election), EPOLLIN, on_changed, l);
	return r < 0 ? error_errno(err, r, "cannot set up the election") : 0;
}

int leader_create(struct daemon *d, const struct leader_callbacks *callbacks, struct leader **out,
                  struct error *err)
{
	const struct settings *s = d->settings;
	const struct etcd_place place = place_of(s->config);
	struct leader *l;
	size_t count = 0;
	int r = 0;

	if (!s->config->etcd_urls)
		return 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return error_oom(err);
	*l = (struct leader){.daemon = d,
	                     .callbacks = *callbacks,
	                     .name = strdup(s->controller),
	                     .asked = true,
	                     .event_fd = -1};
	while (s->config->controllers[count])
		count++;
	l->silent_since = calloc(count + 1, sizeof(*l->silent_since));
	if (!l->name || !l->silent_since)
		r = error_oom(err);
	if (r == 0 && s->candidate)
		r = election_open(&place, s->name, LEASE_SECONDS, &l->election, err);
	if (r == 0 && l->election)
		r = watch(l, err);
	if (r < 0) {
		leader_destroy(l);
		return r;
	}
	*out = l;
	return 0;
}

void leader_destroy(struct leader *l)
{
	if (!l)
		return;
	if (l->has_thread)
		pthread_join(l->thread, NULL);
	store_close(l->store);
	sd_event_source_disable_unref(l->opened);
	sd_event_source_disable_unref(l->changed);
	election_close(l->election);
	closep(&l->event_fd);
	free(l->silent_since);
	free(l->name);
	free(l);
}
