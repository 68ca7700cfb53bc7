/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a run. The parts of an attempt, one for each node, start, run and end together:
 *
 *     queued    -> starting    run_place
 *     starting  -> running     all parts run
 *     starting, running -> stopping
 *                              a part has failed, was refused or lost, or a user has cancelled the run
 *
 * and from each of these three, once all parts have ended:
 *
 *               -> cancelled   a user has cancelled it (one that is queued, at once)
 *               -> failed      a part has failed; the first cause is decided now (cause.h)
 *               -> queued      a node had no room for its part, and nothing else has failed
 *               -> succeeded   all ranks have ended with 0
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/str.h"
#include "cluster/cause.h"
#include "cluster/run.h"

enum { CAUSE_MAX = 4096 }; /* of what a worker says */

/* The reason until it is decided. */
static const char UNDECIDED[] = "a part of it has failed, the rest is being stopped";

static int parts_add(struct run *r, const char *node, struct error *err)
{
	struct run_part *p = reallocarray(r->parts, r->part_count + 1, sizeof(*p));

	if (!p)
		return error_oom(err);
	r->parts = p;
	p += r->part_count;
	*p = (struct run_part){.node = strdup(node)};
	if (!p->node)
		return error_oom(err);
	r->part_count++;
	return 0;
}

static int add_parts_of_ranks(struct run *r, struct error *err)
{
	for (size_t i = 0; i < r->rank_count; i++) {
		const char *node = r->ranks[i].node;

		if (!run_part_find(r, node) && parts_add(r, node, err) < 0)
			return -ENOMEM;
	}
	if (r->part_count == 0)
		return error_set(err, -EINVAL, "run %lld is %s without a node", (long long)r->id,
		                 run_state_name(r->state));
	return 0;
}

int run_recover(struct run *r, double now, struct error *err)
{
	r->recovered = now;
	return add_parts_of_ranks(r, err);
}

json_t *run_under_way(const struct run *r)
{
	_cleanup_free_ struct part_record *parts = calloc(r->part_count + 1, sizeof(*parts));
	/* All of it is borrowed. */
	struct run_record record = {.parts = parts,
	                            .rank_errors = r->rank_errors,
	                            .rank_error_count = r->rank_error_count,
	                            .device_error = r->device_error};

	if (!parts || r->part_count == 0)
		return NULL;
	for (size_t i = 0; i < r->part_count; i++) {
		const struct run_part *p = &r->parts[i];

		if (p->ended || p->trouble)
			parts[record.part_count++] = (struct part_record){.node = p->node,
			                                                  .ended = p->ended,
			                                                  .trouble = p->trouble,
			                                                  .trouble_at = p->trouble_at,
			                                                  .clock_error = p->clock_error};
	}
	if (record.part_count == 0 && r->rank_error_count == 0 && !r->device_error)
		return NULL;
	return run_record_encode(&record);
}

int run_set_under_way(struct run *r, const json_t *under_way, struct error *err)
{
	_cleanup_(run_record_release) struct run_record record = {0};
	int code = under_way ? run_record_decode(under_way, &record, err) : 0;

	for (size_t i = 0; code == 0 && i < record.part_count; i++) {
		struct part_record *saved = &record.parts[i];
		struct run_part *p;

		code = parts_add(r, saved->node, err);
		if (code < 0)
			break;
		p = &r->parts[r->part_count - 1];
		p->ended = saved->ended;
		p->trouble = steal_pointer(saved->trouble);
		p->trouble_at = saved->trouble_at;
		p->clock_error = saved->clock_error;
	}
	if (code < 0) {
		run_clear_parts(r);
		return code;
	}
	r->rank_errors = steal_pointer(record.rank_errors);
	r->rank_error_count = record.rank_error_count;
	record.rank_error_count = 0;
	r->device_error = steal_pointer(record.device_error);
	return 0;
}

/* The ranks of a placement, as run_place has it. */
static int make_ranks(const struct run *r, char *const *nodes, const int *slots, struct run_rank *ranks,
                      int64_t count)
{
	int64_t each = r->one_per_node ? r->per_node : 1;

	for (int64_t i = 0; i < count; i++) {
		const int *own = slots + i * each;
		struct run_rank *rank = &ranks[i];

		*rank = (struct run_rank){.rank = i,
		                          .node = strdup(nodes[i * each / r->per_node]),
		                          .slot = own[0],
		                          .state = RANK_STARTING,
		                          .exit_status = -1};
		if (each > 1)
			rank->slots = calloc((size_t)each, sizeof(*rank->slots));
		if (!rank->node || (each > 1 && !rank->slots))
			return -ENOMEM;
		for (int64_t k = 0; k < each && each > 1; k++)
			rank->slots[rank->slot_count++] = own[k];
	}
	return 0;
}

static void free_ranks(struct run *r)
{
	message_free_list(&run_rank_message, r->ranks, r->rank_count);
	r->ranks = NULL;
	r->rank_count = 0;
}

int run_place(struct run *r, char *const *nodes, const int *slots, double now, struct error *err)
{
	int64_t each = r->one_per_node ? r->per_node : 1, count = r->nodes * r->per_node / each;
	struct run_rank *ranks = calloc((size_t)count + 1, sizeof(*ranks));

	if (!ranks || make_ranks(r, nodes, slots, ranks, count) < 0) {
		message_free_list(&run_rank_message, ranks, (size_t)count);
		return error_oom(err);
	}
	free_ranks(r);
	r->ranks = ranks;
	r->rank_count = (size_t)count;
	run_clear_parts(r);
	if (add_parts_of_ranks(r, err) < 0)
		return -ENOMEM;
	r->recovered = 0;
	r->state = RUN_STARTING;
	r->attempt++;
	r->started = now;
	r->ended = 0;
	r->failed = r->requeue = false;
	free(steal_pointer(r->reason));
	free(steal_pointer(r->detail));
	free(steal_pointer(r->device_error));
	message_free_list(&rank_error_message, steal_pointer(r->rank_errors), r->rank_error_count);
	r->rank_error_count = 0;
	r->exit_status = -1;
	r->to_start = true;
	run_touch(r);
	return 0;
}

static int signal_number(const char *name)
{
	if (str_starts(name, "SIG"))
		name += 3;
	for (int i = 1; i < NSIG; i++) {
		const char *s = sigabbrev_np(i);

		if (s && strcmp(s, name) == 0)
			return i;
	}
	return 0;
}

/* The attempt cannot be what it should be any more: all of it comes down. */
static unsigned bring_down(struct run *r)
{
	r->state = RUN_STOPPING;
	run_touch(r);
	return RUN_STOP;
}

/* Of a rank that was never started, or whose node is gone, no exit comes: it is not to look as if it ran. */
static void close_ranks(struct run *r)
{
	for (size_t i = 0; i < r->rank_count; i++) {
		struct run_rank *rank = &r->ranks[i];

		if (rank->state != RANK_EXITED && rank->state != RANK_LOST)
			rank->state = rank->pid > 0 ? RANK_LOST : RANK_NOT_STARTED;
	}
}

/* A device that failed is the first cause, whatever was seen of it first. */
static void add_device_error(struct run *r)
{
	_cleanup_free_ char *rest = NULL;

	if (!r->failed || !r->device_error || (r->reason && str_starts(r->reason, r->device_error)))
		return;
	rest = r->reason ? strdup(r->reason) : NULL;
	run_set_reason(r, "%s%s%s", r->device_error, rest ? "; " : "", rest ? rest : "");
}

/* Returns whether it is news. */
static bool take_device_error(struct run *r, const struct report *report)
{
	const char *text = report->device_errors ? report->device_errors[0] : NULL;

	if (!text || r->device_error)
		return false;
	r->device_error = strdup(text);
	return true;
}

/* NULL: nothing is known of a failure of that rank. */
static struct rank_error *find_rank_error(const struct run *r, int64_t rank)
{
	for (size_t i = 0; i < r->rank_error_count; i++)
		if (r->rank_errors[i].rank == rank)
			return &r->rank_errors[i];
	return NULL;
}

/* The same; made where there is none. NULL: out of memory. */
static struct rank_error *need_rank_error(struct run *r, int64_t rank)
{
	struct rank_error *own = find_rank_error(r, rank), *grown;

	if (own)
		return own;
	grown = reallocarray(r->rank_errors, r->rank_error_count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	r->rank_errors = grown;
	own = &grown[r->rank_error_count++];
	*own = (struct rank_error){.rank = rank};
	return own;
}

static bool rank_failed(const struct run_rank *rank)
{
	return rank->state == RANK_EXITED && (rank->exit_status > 0 || rank->signal);
}

/* Names the rank as the cause of the failure: rank, node and exit status for all users; the last lines of its
 * log, or the error of its worker, for the owner. */
static void blame_rank(struct run *r, const struct run_rank *rank)
{
	const struct rank_error *known = find_rank_error(r, rank->rank);
	const char *detail = known ? (known->worker ? known->worker : known->log) : NULL;
	int64_t status = MAX(rank->exit_status, 0);

	if (rank->signal)
		run_set_reason(r, "rank %lld on %s: killed by %s%s%s", (long long)rank->rank, rank->node,
		               rank->signal, rank->oom ? " (the kernel ran out of memory: OOM killer)" : "",
		               rank->core_dumped ? ", core dumped" : "");
	else
		run_set_reason(r, "rank %lld on %s: exit status %lld", (long long)rank->rank, rank->node,
		               (long long)status);
	r->exit_status = rank->signal ? 128 + signal_number(rank->signal) : (int)status;
	free(r->detail);
	r->detail = detail && *detail ? strdup(detail) : NULL;
}

/* Only now, with all ends known: reports come in any order, and what dies of another's death may be seen
 * first. */
static void decide_cause(struct run *r)
{
	size_t max = r->part_count + r->rank_count, n = 0, i;
	_cleanup_free_ struct cause *list = calloc(max + 1, sizeof(*list));
	_cleanup_free_ const void **whose = calloc(max + 1, sizeof(*whose));
	int first;

	for (i = 0; list && whose && i < r->part_count; i++)
		if (r->parts[i].trouble) {
			whose[n] = r->parts[i].trouble;
			list[n++] =
			    (struct cause){CAUSE_NODE, r->parts[i].trouble_at, r->parts[i].clock_error};
		}
	max = n;
	for (i = 0; list && whose && i < r->rank_count; i++) {
		const struct run_rank *rank = &r->ranks[i];
		const struct run_part *part = run_part_find(r, rank->node);
		const struct rank_error *known = find_rank_error(r, (int64_t)i);

		if (!rank_failed(rank))
			continue;
		whose[n] = rank;
		list[n++] = (struct cause){cause_of_rank((int)MAX(rank->exit_status, 0),
		                                         rank->signal ? signal_number(rank->signal) : 0,
		                                         rank->stopped, known && known->lost_peer),
		                           rank->ended, part ? part->clock_error : 0};
	}
	first = cause_choose(list, n);
	if (first >= 0 && first < (int)max) {
		run_set_reason(r, "%s", (const char *)whose[first]);
	} else if (first >= 0) {
		free(steal_pointer(r->detail));
		blame_rank(r, whose[first]);
	} else if (str_eq(r->reason, UNDECIDED))
		run_set_reason(r, "a part of it has failed; which one and why is not known any more");
	add_device_error(r);
}

static unsigned finish_if_all_ended(struct run *r, double now)
{
	for (size_t i = 0; i < r->part_count; i++)
		if (!r->parts[i].ended)
			return 0;
	r->ended = now;
	if (r->cancelled) {
		r->state = RUN_CANCELLED;
		if (str_eq(r->reason, UNDECIDED))
			free(steal_pointer(r->reason));
	} else if (r->failed) {
		r->state = RUN_FAILED;
		decide_cause(r);
	} else if (r->requeue)
		r->state = RUN_QUEUED;
	else {
		r->state = RUN_SUCCEEDED;
		r->exit_status = 0;
	}
	if (r->state == RUN_QUEUED) {
		r->ended = r->started = 0;
		free_ranks(r);
	} else
		close_ranks(r);
	run_clear_parts(r);
	run_touch(r);
	return RUN_ENDED;
}

static unsigned after(struct run *r, bool stop, double now)
{
	unsigned flags = stop ? bring_down(r) : 0;

	flags |= finish_if_all_ended(r, now);
	return flags & RUN_ENDED ? RUN_ENDED : flags;
}

/* One rank of ours as its node reports it. What the report does not say stays as it was known. */
static bool merge_rank(struct run_rank *ours, const struct rank_report *theirs)
{
	struct run_rank old = *ours;
	bool killed = theirs->signal && !str_eq(theirs->signal, ours->signal);
	char *signal = killed ? strdup(theirs->signal) : NULL;

	ours->state = theirs->state;
	if (theirs->pid > 0)
		ours->pid = theirs->pid;
	if (theirs->exit_status >= 0)
		ours->exit_status = theirs->exit_status;
	if (signal) {
		free(ours->signal);
		ours->signal = signal;
	}
	if (theirs->state == RANK_EXITED)
		ours->stopped = theirs->stopped;
	ours->oom = ours->oom || theirs->oom;
	ours->core_dumped = ours->core_dumped || theirs->core_dumped;
	return killed || old.state != ours->state || old.pid != ours->pid ||
	       old.exit_status != ours->exit_status || old.stopped != ours->stopped || old.oom != ours->oom ||
	       old.core_dumped != ours->core_dumped;
}

/* The last lines of the log of a rank. Returns whether they are news. */
static bool take_log(struct run *r, int64_t rank, const char *text)
{
	struct rank_error *known = need_rank_error(r, rank);

	return known && !str_eq(known->log, text) && str_replace(&known->log, text) == 0;
}

/* Takes over what the node says of its ranks. Returns whether it is news: heartbeats say the same again and
 * again. */
static bool merge_ranks(struct run *r, const struct run_part *part, const struct report *report)
{
	bool changed = false;

	for (size_t i = 0; i < report->rank_count; i++) {
		const struct rank_report *theirs = &report->ranks[i];
		struct run_rank *ours =
		    theirs->rank < (int64_t)r->rank_count ? &r->ranks[theirs->rank] : NULL;

		if (!ours || !str_eq(ours->node, part->node))
			continue;
		changed = merge_rank(ours, theirs) || changed;
		/* By our clock, as well as it was known then. */
		if (theirs->ended > 0 && ours->ended <= 0)
			ours->ended = theirs->ended + report->clock_offset;
		if (theirs->error && take_log(r, theirs->rank, theirs->error))
			r->dirty = true;
	}
	return changed;
}

/* Nothing is left of the attempt on this node but the record of its start. */
static void mark_lost(struct run *r, const char *node)
{
	for (size_t i = 0; i < r->rank_count; i++)
		if (str_eq(r->ranks[i].node, node))
			r->ranks[i].state = RANK_LOST;
}

static bool any_rank_failed(const struct run *r)
{
	for (size_t i = 0; i < r->rank_count; i++)
		if (rank_failed(&r->ranks[i]))
			return true;
	return false;
}

/* The part fails as a whole. The first word of it counts. */
static void set_trouble(struct run *r, struct run_part *part, const char *text, double at)
{
	if (part->trouble)
		return;
	r->dirty = true;
	part->trouble = strdup(text);
	if (part->trouble)
		str_make_utf8(part->trouble);
	part->trouble_at = at;
}

/* The attempt has failed; of what is decided once all its parts have ended. */
static bool fail(struct run *r)
{
	if (r->state == RUN_STOPPING)
		return false;
	r->failed = true;
	run_set_reason(r, "%s", UNDECIDED);
	return true;
}

unsigned run_report(struct run *r, const struct report *report, double now)
{
	struct run_part *part = run_part_find(r, report->node);
	bool stop = false, all_running = true, changed = false;

	if (!part || part->ended || report->attempt != r->attempt)
		return 0;
	part->acknowledged = true;
	part->clock_error = report->clock_error;
	changed = take_device_error(r, report);
	changed = merge_ranks(r, part, report) || changed;
	if (report->state == ATTEMPT_RUNNING)
		part->running = true;
	part->ended = report->state == ATTEMPT_ENDED;
	if (part->ended)
		r->dirty = true;
	if (report->lost)
		mark_lost(r, report->node);
	if (report->shutdown)
		set_trouble(r, part, report->shutdown, now);
	if (report->reason && part->ended) {
		_cleanup_free_ char *text = str_printf("node %s: %s", report->node, report->reason);

		set_trouble(r, part, text ? text : report->reason, now);
	}
	if (part->trouble || any_rank_failed(r))
		stop = fail(r);
	/* What was started somewhere is not queued again because another node never had it. */
	if (report->lost && part->ended && r->requeue)
		r->failed = true;
	for (size_t i = 0; i < r->part_count; i++)
		all_running = all_running && r->parts[i].running;
	if (all_running && r->state == RUN_STARTING) {
		r->state = RUN_RUNNING;
		changed = true;
	}
	if (changed)
		run_touch(r);
	return after(r, stop, now);
}

unsigned run_superseded(struct run *r, const char *node, int64_t attempt, double now)
{
	if (r->state != RUN_QUEUED || attempt <= r->attempt)
		return 0;
	/* r->attempt stays: what is above it is not ours, now and after the end. */
	run_set_reason(
	    r,
	    "attempt %lld was started on node %s after this copy of the controller's store was made; "
	    "its result is not known here",
	    (long long)attempt, node);
	r->failed = true;
	return after(r, false, now);
}

unsigned run_refused(struct run *r, struct run_part *part, bool busy, const char *message, double now)
{
	bool stop = r->state != RUN_STOPPING;

	part->ended = r->dirty = true;
	if (stop && busy) {
		run_set_reason(r, "node %s: %s", part->node, message);
		r->requeue = true;
	} else if (stop) {
		_cleanup_free_ char *text = str_printf("node %s: the start has failed", part->node);

		/* The message names directories and programs of the user. */
		set_trouble(r, part, text ? text : part->node, now);
		free(r->detail);
		r->detail = str_printf("node %s: %s", part->node, message);
		fail(r);
	}
	return after(r, stop, now);
}

unsigned run_part_lost(struct run *r, struct run_part *part, const char *message, double since, double now)
{
	bool stop;

	if (part->ended)
		return 0;
	part->ended = r->dirty = true;
	/* Who was not heard by this controller may have gone at any time. It is not taken for the cause of
	 * what had failed before. */
	if (since <= 0)
		since = r->failed || r->recovered <= 0 ? now : r->recovered;
	set_trouble(r, part, message, since);
	stop = fail(r);
	/* Whether a node had started what an earlier controller wrote down, it alone knows. */
	if (r->requeue && part->acknowledged && !part->instance[0])
		r->failed = true;
	return after(r, stop, now);
}

unsigned run_cancel(struct run *r, double now)
{
	if (run_state_final(r->state) || r->cancelled)
		return 0;
	r->cancelled = true;
	if (r->state == RUN_QUEUED)
		free(steal_pointer(r->reason));
	return after(r, r->state != RUN_QUEUED, now);
}

void run_worker_error(struct run *r, int64_t rank, const char *message, bool lost_peer)
{
	struct rank_error *known;

	if (rank < 0 || rank >= (int64_t)r->rank_count)
		return;
	known = need_rank_error(r, rank);
	if (!known || known->worker)
		return;
	known->worker = strndup(message, CAUSE_MAX);
	if (!known->worker)
		return;
	str_make_utf8(known->worker); /* the cut may be within a character */
	known->lost_peer = lost_peer;
	r->dirty = true;
}
