/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress thread: it runs the queued collectives one by one, works, spins or sleeps while they wait,
 * handles the control messages of the peers, and keeps and broadcasts the first failure.
 *
 *     idle ---- operation queued ----> running ---- complete ----> idle
 *      |                                  |
 *      | comm_destroy                     | comm_fail: by a control message, UCX, the time-out or comm_abort
 *      v                                  v
 *     departing: DEPARTURE to all      failed: FAIL to all, then the thread ends
 *      |   ends once all have read what this rank has sent, or after DEPARTURE_TIMEOUT
 *      v
 *     ended
 */
#include "engine/comm/ucx/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"

#define CONTROL_EVERY     1e-3 /* seconds between two looks at the lifelines while spinning */
#define DEPARTURE_TIMEOUT 1.0  /* seconds for peers that still read our last data */

/* ---- failures ---- */

/* "all_reduce (collective 17)", or the place between two collectives. */
static const char *where(const struct comm *c, char *buf, size_t size)
{
	if (c->running && c->running_kind == KIND_BOOTSTRAP)
		snprintf(buf, size, "%s%s", collective_name(KIND_BOOTSTRAP), c->lane);
	else if (c->running)
		snprintf(buf, size, "%s (collective %llu%s)", collective_name(c->running_kind),
		         (unsigned long long)c->running - 1, c->lane);
	else if (c->completed > 1)
		snprintf(buf, size, "after collective %llu%s", (unsigned long long)c->completed - 1, c->lane);
	else
		snprintf(buf, size, "before the first collective%s", c->lane);
	return buf;
}

/* `number` may be that of a rank outside of this communicator. */
static int fail_about_number(struct comm *c, int code, int number, const char *what)
{
	char at[128];

	return comm_fail(c, code, number, "%s: rank %d on %s %s", where(c, at, sizeof(at)), number,
	                 c->family->hosts[number], what);
}

static int fail_about(struct comm *c, int code, int rank, const char *what)
{
	return fail_about_number(c, code, c->numbers[rank], what);
}

/* A peer has failed: its reason is kept, unless this rank has one of its own. */
static void handle_failure(struct comm *c, int from, const struct message *m)
{
	int sender = c->numbers[from], own = c->numbers[c->rank];
	int failed_rank = m->rank >= 0 && m->rank < c->family->size ? m->rank : sender;
	char what[128], at[128];

	if (m->code == -ECANCELED) {
		fail_about(c, -ECONNRESET, from, "stopped in the middle of the run");
	} else if (m->code == -ETIMEDOUT && failed_rank == own) {
		comm_fail(c, -ETIMEDOUT, own, "%s: rank %d on %s waited %d s for this rank and gave up",
		          where(c, at, sizeof(at)), sender, c->peers[from].host, c->timeout_s);
	} else if (m->code == -ETIMEDOUT) {
		snprintf(what, sizeof(what), "does not go on: rank %d waited %d s for it", sender,
		         c->timeout_s);
		fail_about_number(c, -ETIMEDOUT, failed_rank, what);
	} else if (m->code == -ECONNRESET && failed_rank != sender) {
		snprintf(what, sizeof(what), "is gone, as rank %d saw", sender);
		fail_about_number(c, -ECONNRESET, failed_rank, what);
	} else {
		fail_about(c, m->code == -EPROTO ? -EPROTO : -ECONNRESET, from,
		           m->code == -EPROTO ? "found that the ranks disagree about it" : "failed");
	}
}

static void broadcast_failure(struct comm *c)
{
	struct message m = {.type = MESSAGE_FAIL, .code = c->failed, .rank = c->failed_rank};

	/* Ranks that have sent a failure get this one, too: this rank's connections to them end next, and
	 * they must not take that for the cause. */
	for (int r = 0; r < c->size; r++)
		peer_send(&c->peers[r], &m);
}

/* No message has made progress for timeout_s. Names the rank that does not answer at all, else one that has
 * not reached this collective, else one that runs another. */
static int fail_timeout(struct comm *c)
{
	char what[160], at[128];

	for (int r = 0; r < c->size; r++) {
		struct peer *p = &c->peers[r];

		if (r != c->rank && !p->answered && !p->departed) {
			snprintf(what, sizeof(what), "has not answered for %d s: it hangs or is stopped",
			         c->timeout_s);
			return fail_about(c, -ETIMEDOUT, r, what);
		}
	}
	for (int r = 0; r < c->size; r++) {
		struct peer *p = &c->peers[r];

		if (r == c->rank || p->departed || p->at_ticket >= c->running)
			continue;
		snprintf(what, sizeof(what), "has not begun it within %d s: it is %s %s (collective %llu)",
		         c->timeout_s, p->running ? "still in" : "past", collective_name(p->at_kind),
		         (unsigned long long)p->at_ticket - 1);
		return fail_about(c, -ETIMEDOUT, r, what);
	}
	for (int r = 0; r < c->size; r++) {
		struct peer *p = &c->peers[r];

		if (r == c->rank || p->departed || p->at_ticket > c->running || p->at_kind == c->running_kind)
			continue;
		snprintf(what, sizeof(what), "runs %s in its place: the ranks' calls differ",
		         collective_name(p->at_kind));
		return fail_about(c, -ETIMEDOUT, r, what);
	}
	return comm_fail(c, -ETIMEDOUT, c->numbers[c->rank],
	                 "%s: nothing has moved for %d s, though every rank answers: check the network",
	                 where(c, at, sizeof(at)), c->timeout_s);
}

/* ---- lifelines ---- */

static void handle_control_message(struct comm *c, int from, const struct message *m)
{
	struct peer *p = &c->peers[from];
	struct message answer = {0};

	switch (m->type) {
	case MESSAGE_PING:
		answer.type = MESSAGE_PONG;
		answer.ticket = c->begun;
		answer.kind = c->begun_kind;
		answer.code = c->running != 0;
		peer_send(p, &answer);
		break;
	case MESSAGE_PONG:
		p->answered = true;
		p->at_ticket = m->ticket;
		p->at_kind = m->kind;
		p->running = m->code;
		break;
	case MESSAGE_DEPARTURE:
		p->departed = true;
		p->departed_after = m->ticket;
		break;
	case MESSAGE_DEPARTURE_READ:
		p->has_read = true;
		break;
	case MESSAGE_FAIL:
		handle_failure(c, from, m);
		break;
	}
}

/* Answers departures, and fails a collective that waits for a rank that has departed. */
static void process_departures(struct comm *c)
{
	struct message m = {.type = MESSAGE_DEPARTURE_READ};

	for (int r = 0; r < c->size; r++) {
		struct peer *p = &c->peers[r];

		if (!p->departed)
			continue;
		if (!p->sent_read && c->completed >= p->departed_after) {
			p->sent_read = true;
			peer_send(p, &m);
		}
		if (c->running > p->departed_after)
			fail_about(c, -ECONNRESET, r,
			           "has already ended: it has failed, or the ranks' calls differ");
	}
}

static void read_control_messages(struct comm *c)
{
	struct epoll_event events[16];
	int n;

	c->control_at = clock_monotonic();
	n = epoll_wait(c->control_epoll, events, ARRAY_SIZE(events), 0);
	for (int i = 0; i < n; i++) {
		int from = (int)events[i].data.u32, r;
		struct message m;
		uint64_t count;

		if (from == c->rank) {
			(void)!read(c->wake_fd, &count, sizeof(count));
			continue;
		}
		while ((r = peer_read(&c->peers[from], &m)) > 0)
			handle_control_message(c, from, &m);
		if (r < 0) {
			lifeline_close(&c->peers[from]);
			c->peers[from].has_read = true;
			if (!c->peers[from].departed)
				fail_about(c, -ECONNRESET, from, "died");
		}
	}
	if (n > 0)
		process_departures(c);
}

/* ---- the thread's step ---- */

static int fail_message(struct comm *c)
{
	int rank = c->ucx_error_peer;
	char what[128];

	/* A peer may have sent the reason over its lifeline. */
	read_control_messages(c);
	if (c->ucx_error == UCS_ERR_MESSAGE_TRUNCATED)
		return fail_about(c, -EPROTO, rank, "sends another count than this rank: the calls differ");
	snprintf(what, sizeof(what), "cannot be reached any more: %s", ucs_status_string(c->ucx_error));
	return fail_about(c, -ECONNRESET, rank, what);
}

/* When nothing has made progress for half of the time allowed, and again at three quarters, pings all peers;
 * at the end, and once the peers have had time to answer, fails. */
static int watch_clock(struct comm *c)
{
	static const struct message ping = {.type = MESSAGE_PING};
	double now = c->control_at, allowed = c->timeout_s;

	if (!c->running || c->failed)
		return c->failed;
	if (c->stopping)
		return comm_fail(c, -ECANCELED, c->numbers[c->rank], "the communicator was destroyed");
	if (c->progress != c->progress_seen) {
		c->progress_seen = c->progress;
		c->progress_at = now;
		c->pings = 0;
	}
	if (c->pings < 2 && now - c->progress_at >= (c->pings + 2) * 0.25 * allowed) {
		c->pings++;
		c->pinged_at = now;
		for (int r = 0; r < c->size; r++) {
			c->peers[r].answered = false;
			peer_send(&c->peers[r], &ping);
		}
	} else if (now - c->progress_at >= allowed && now - c->pinged_at >= 0.2) {
		return fail_timeout(c);
	}
	return 0;
}

static bool has_work(struct comm *c)
{
	return c->failed || (c->stopping && !c->departing) || (!c->running && c->queued > c->completed);
}

static void sleep_until_event(struct comm *c)
{
	struct epoll_event events[4];

	streams_arm(c);
	atomic_store(&c->asleep, true);
	if (!has_work(c) && ucp_worker_arm(c->worker) == UCS_OK)
		(void)!epoll_wait(c->epoll, events, ARRAY_SIZE(events),
		                  c->running     ? MIN(100, c->timeout_s * 125)
		                  : c->departing ? 20
		                                 : -1);
	atomic_store(&c->asleep, false);
	read_control_messages(c);
}

int comm_step(struct comm *c)
{
	bool moved;
	double now;

	if (c->failed)
		return c->failed;
	/* Between two collectives the connection is not needed: its peer may have departed, which the
	 * lifeline tells, or died, which it tells, too. */
	if (c->ucx_error && c->running)
		return fail_message(c);
	moved = streams_progress(c);
	if (ucp_worker_progress(c->worker) || moved) {
		c->idle_since = 0;
		return 0;
	}
	now = clock_monotonic();
	if (!c->idle_since)
		c->idle_since = now;
	if (now - c->control_at > CONTROL_EVERY) {
		read_control_messages(c);
		return watch_clock(c);
	} else if (now - c->idle_since < (c->waiters ? SPIN_AWAITED : SPIN_BEHIND_COMPUTE)) {
		relax();
	} else {
		sleep_until_event(c);
		c->idle_since = 0;
		return watch_clock(c);
	}
	return c->failed;
}

/* ---- the thread ---- */

static bool everyone_acknowledged(const struct comm *c)
{
	for (int r = 0; r < c->size; r++) {
		const struct peer *p = &c->peers[r];

		if (r != c->rank && !p->has_read && !(p->departed && p->departed_after >= c->completed))
			return false;
	}
	return true;
}

/* Leaves in order. Peers may still be reading the last messages from this rank's memory, and answer once they
 * have read them. */
static void depart(struct comm *c)
{
	struct message departure = {.type = MESSAGE_DEPARTURE, .ticket = c->completed};
	double deadline = clock_monotonic() + DEPARTURE_TIMEOUT;

	c->departing = true;
	for (int r = 0; r < c->size; r++)
		peer_send(&c->peers[r], &departure);
	while (!everyone_acknowledged(c) && clock_monotonic() < deadline)
		if (comm_step(c) < 0)
			break;
}

static int run_next(struct comm *c)
{
	uint64_t ticket = c->completed + 1;
	struct operation *o = &c->queue[ticket % QUEUE_MAX];
	int r;

	c->running = c->begun = ticket;
	c->running_kind = c->begun_kind = o->kind;
	c->progress_at = clock_monotonic();
	c->progress_seen = c->progress;
	c->pings = 0;
	process_departures(c);
	r = c->failed ? c->failed : c->run(c, ticket, o);
	while (r >= 0 && !streams_settled(c))
		r = comm_step(c);
	if (r < 0)
		return r;
	if (o->kind == KIND_BOOTSTRAP)
		transport_describe(c);
	c->running = 0;
	atomic_store(&c->completed, ticket);
	if (c->waiters) {
		pthread_mutex_lock(&c->lock);
		pthread_cond_broadcast(&c->changed);
		pthread_mutex_unlock(&c->lock);
	}
	process_departures(c);
	return 0;
}

static void *progress_main(void *arg)
{
	struct comm *c = arg;
	int r = 0;

	while (r >= 0) {
		if (c->queued > c->completed)
			r = c->stopping ? comm_fail(c, -ECANCELED, c->numbers[c->rank],
			                            "the communicator was destroyed")
			                : run_next(c);
		else if (c->stopping)
			break;
		else
			r = comm_step(c);
	}
	if (r >= 0)
		depart(c);
	else
		broadcast_failure(c);
	return NULL;
}

int progress_start(struct comm *c, collective_run_fn *run, struct error *err)
{
	int r;

	c->run = run;
	r = thread_start(&c->thread, progress_main, c);
	if (r < 0)
		return error_errno(err, r, "cannot start the thread of the collectives");
	c->thread_started = true;
	return 0;
}
