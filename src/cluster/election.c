/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a candidate. It asks for the key every ELECTION_ASK_MSEC, so that a controller that has died
 * is followed by another one within its lease and that time. By our own clock (which counts the time that
 * this machine sleeps) the lease ends no later than etcd ends it: it is counted from before it was asked for.
 */
#include "cluster/election.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "wire/etcd.h"

static const char KEY[] = ETCD_PREFIX "controller";
static const double ASK_SECONDS = ELECTION_ASK_MSEC / 1000.0, CALL_SECONDS = 2.0, AGAIN_SECONDS = 0.3;

/* How often a lease is renewed within its length. A renewal that began just before etcd's leader died may
 * wait for CALL_SECONDS in vain, and is repeated after AGAIN_SECONDS: with a lease of 4 s, that is 0.7 s
 * before the controller gives up, and etcd has another leader after 2 s. */
enum { RENEWALS = 4 };

struct election {
	struct etcd *etcd; /* the thread's */
	char *name;
	int64_t seconds;
	int event_fd;
	pthread_t thread;
	bool has_thread;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	struct election_view view;
	int64_t revision, lease;
	const char *member; /* of etcd, which has made the key */
	double until;       /* of the lease */
	bool closing;
};

static double lease_now(void)
{
	return clock_seconds(CLOCK_BOOTTIME);
}

/* With the lock. */
static void notify(struct election *e)
{
	uint64_t one = 1;

	if (write(e->event_fd, &one, sizeof(one)) < 0)
		log_err("election: cannot wake the event loop: %m");
}

static void set_following(struct election *e, const char *leader, const struct error *err)
{
	pthread_mutex_lock(&e->lock);
	if (strcmp(e->view.leader, leader) != 0 || e->view.error.code != err->code) {
		snprintf(e->view.leader, sizeof(e->view.leader), "%s", leader);
		e->view.error = *err;
		notify(e);
	}
	pthread_mutex_unlock(&e->lock);
}

void election_lose(struct election *e, const char *why)
{
	pthread_mutex_lock(&e->lock);
	if (e->view.state == ELECTION_LEADING) {
		e->view.state = ELECTION_LOST;
		error_set(&e->view.error, -ESTALE, "%s", why);
		notify(e);
		pthread_cond_broadcast(&e->changed);
	}
	pthread_mutex_unlock(&e->lock);
}

/* Waits; false: this is being closed, or nothing is led any more. */
static bool pause_for(struct election *e, double seconds)
{
	struct timespec until;
	bool goes_on;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
	until.tv_sec += (time_t)seconds + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&e->lock);
	while (!e->closing && e->view.state != ELECTION_LOST &&
	       pthread_cond_timedwait(&e->changed, &e->lock, &until) == 0)
		;
	goes_on = !e->closing && e->view.state != ELECTION_LOST;
	pthread_mutex_unlock(&e->lock);
	return goes_on;
}

static void give_back(struct election *e, int64_t lease)
{
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;

	if (lease != 0)
		etcd_call(e->etcd, "/v3/lease/revoke", etcd_lease_request(lease, 0), CALL_SECONDS, &answer,
		          &err);
}

/* 0: there is a controller, *out; -ENOENT: there is none. */
static int find_leader(struct election *e, struct etcd_pair *out, struct error *err)
{
	_cleanup_(etcd_pairs_clear) struct etcd_pairs found = {0};
	_cleanup_json_ json_t *answer = NULL;
	int r =
	    etcd_call(e->etcd, "/v3/kv/range", etcd_range_request(KEY, NULL, 0), CALL_SECONDS, &answer, err);

	if (r == 0)
		r = etcd_range_read(answer, &found, err);
	if (r < 0)
		return r;
	if (found.count == 0)
		return -ENOENT;
	*out = found.list[0];
	found.list[0] = (struct etcd_pair){0};
	return 0;
}

/* One transaction on our condition: *done says whether it held. */
static int call_txn(struct election *e, json_t *txn, bool *done, int64_t *revision, struct error *err)
{
	_cleanup_json_ json_t *answer = NULL;
	int r = etcd_call(e->etcd, "/v3/kv/txn", txn, CALL_SECONDS, &answer, err);

	return r < 0 ? r : etcd_txn_read(answer, done, revision, err);
}

/* The key of an earlier process with our name: that has ended, since it had the lock on state_dir, and what
 * it may still have under way fails once its key is gone. */
static int remove_own(struct election *e, int64_t create_revision, struct error *err)
{
	_cleanup_json_ json_t *txn = etcd_txn_request(KEY, create_revision);
	int64_t revision;
	bool done;

	if (!txn || etcd_txn_delete(txn, KEY, NULL) < 0)
		return error_oom(err);
	return call_txn(e, steal_pointer(txn), &done, &revision, err);
}

static int grant(struct election *e, int64_t *lease, struct error *err)
{
	_cleanup_json_ json_t *answer = NULL;
	int64_t seconds;
	int r = etcd_call(e->etcd, "/v3/lease/grant", etcd_lease_request(0, e->seconds), CALL_SECONDS,
	                  &answer, err);

	return r < 0 ? r : etcd_lease_read(answer, lease, &seconds, err);
}

/* Makes the key. 1: it is ours. 0: another was faster. *unused: a lease to give back, or 0. */
static int campaign(struct election *e, int64_t *unused, struct error *err)
{
	double asked = lease_now();
	_cleanup_json_ json_t *txn = NULL;
	int64_t lease = 0, revision = 0;
	bool done = false;
	int r = grant(e, &lease, err);

	if (r < 0)
		return r;
	txn = etcd_txn_request(KEY, 0);
	if (!txn || etcd_txn_put(txn, KEY, e->name, lease) < 0)
		r = error_oom(err);
	else
		r = call_txn(e, steal_pointer(txn), &done, &revision, err);
	if (r < 0 || !done) {
		*unused = lease;
		return r;
	}
	pthread_mutex_lock(&e->lock);
	e->revision = revision;
	e->lease = lease;
	e->member = etcd_member(e->etcd);
	e->until = asked + (double)e->seconds;
	e->view.state = ELECTION_LEADING;
	e->view.leader[0] = '\0';
	e->view.error = (struct error)ERROR_INIT;
	notify(e);
	pthread_mutex_unlock(&e->lock);
	return 1;
}

static void pair_clear(struct etcd_pair *pair)
{
	free(pair->key);
	free(pair->value);
}

/* True: LEADING. */
static bool follow(struct election *e)
{
	_cleanup_(pair_clear) struct etcd_pair pair = {0}, winner = {0};
	struct error err = ERROR_INIT;
	int64_t unused = 0;
	int r = find_leader(e, &pair, &err);
	const char *leader = pair.value;

	if (r == 0 && str_eq_host(leader, e->name)) {
		r = remove_own(e, pair.create_revision, &err);
		if (r == 0)
			r = -ENOENT;
		leader = NULL;
	}
	if (r == -ENOENT) {
		r = campaign(e, &unused, &err);
		if (r > 0)
			return true;
		/* This node reports to the other one before it gives its own lease back. */
		if (r == 0 && find_leader(e, &winner, &err) == 0)
			leader = winner.value;
	}
	set_following(e, leader ? leader : "", &err);
	give_back(e, unused);
	return false;
}

/* 0: the lease is as long again as from `asked`; -ESTALE: it is gone. */
static int renew(struct election *e, struct error *err)
{
	_cleanup_json_ json_t *answer = NULL;
	double asked = lease_now();
	int64_t id, seconds;
	int r = etcd_call(e->etcd, "/v3/lease/keepalive", etcd_lease_request(e->lease, 0), CALL_SECONDS,
	                  &answer, err);

	if (r == 0)
		r = etcd_lease_read(answer, &id, &seconds, err);
	if (r < 0)
		return r;
	if (seconds <= 0)
		return error_set(err, -ESTALE, "its lease in etcd has run out");
	pthread_mutex_lock(&e->lock);
	e->until = asked + (double)e->seconds;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

static void lead(struct election *e)
{
	const double renewed = (double)e->seconds / RENEWALS;
	double pause = renewed;
	struct error err = ERROR_INIT;

	while (pause_for(e, pause)) {
		int r = renew(e, &err);

		pause = r == 0 ? renewed : AGAIN_SECONDS;
		if (r == -ESTALE || !election_holds(e)) {
			election_lose(e, err.message[0] ? err.message : "its lease in etcd has run out");
			return;
		}
	}
}

static void *thread_main(void *context)
{
	struct election *e = context;

	while (!follow(e))
		if (!pause_for(e, ASK_SECONDS))
			return NULL;
	lead(e);
	return NULL;
}

static int start_thread(struct election *e, struct error *err)
{
	int r = thread_start(&e->thread, thread_main, e);

	e->has_thread = r == 0;
	return r < 0 ? error_errno(err, r, "cannot start the thread of the election") : 0;
}

int election_open(const struct etcd_place *place, const char *name, int64_t seconds, struct election **out,
                  struct error *err)
{
	_cleanup_(election_closep) struct election *e = calloc(1, sizeof(*e));
	pthread_condattr_t attributes;
	int r;

	if (!e)
		return error_oom(err);
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&e->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	e->seconds = seconds;
	e->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	e->name = strdup(name);
	if (e->event_fd < 0)
		return error_errno(err, -errno, "cannot set up the election");
	if (!e->name)
		return error_oom(err);
	if ((r = etcd_open(place, &e->etcd, err)) < 0 || (r = start_thread(e, err)) < 0)
		return r;
	*out = steal_pointer(e);
	return 0;
}

void election_close(struct election *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->closing = true;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	if (e->has_thread)
		pthread_join(e->thread, NULL);
	if (e->view.state == ELECTION_LEADING)
		give_back(e, e->lease);
	etcd_close(e->etcd);
	closep(&e->event_fd);
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
	free(e->name);
	free(e);
}

int election_fd(const struct election *e)
{
	return e->event_fd;
}

void election_peek(struct election *e, struct election_view *out)
{
	pthread_mutex_lock(&e->lock);
	*out = e->view;
	pthread_mutex_unlock(&e->lock);
}

void election_read(struct election *e, struct election_view *out)
{
	uint64_t count;

	while (read(e->event_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	election_peek(e, out);
}

bool election_holds(struct election *e)
{
	bool holds;

	pthread_mutex_lock(&e->lock);
	holds = e->view.state == ELECTION_LEADING && lease_now() < e->until;
	pthread_mutex_unlock(&e->lock);
	return holds;
}

bool election_is_sure(struct election *e)
{
	bool sure;

	pthread_mutex_lock(&e->lock);
	sure = e->view.state == ELECTION_LEADING && lease_now() < e->until - (double)e->seconds / 2;
	pthread_mutex_unlock(&e->lock);
	return sure;
}

int64_t election_revision(const struct election *e)
{
	return e->revision;
}

const char *election_member(const struct election *e)
{
	return e->member;
}

const char *election_key(const struct election *e)
{
	return KEY;
}
