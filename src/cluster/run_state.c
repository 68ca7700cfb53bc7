/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a run. The parts of an attempt, one for each node, start, run and end together:
 *
 *     queued    -> starting    run_place
 *     starting  -> running     all parts run
 *     starting, running -> stopping
 *                              a part has failed, was refused or lost, a user has cancelled the run, its
 *                              time limit was reached, or it is to go on elsewhere
 *
 * and from each of these three, once all parts have ended:
 *
 *               -> cancelled   a user has cancelled it (one that is queued, at once)
 *               -> failed      a part has failed; the first cause is decided now (cause.h)
 *               -> queued      the same, and the run is to be started again (retry.c); or it is to go on
 *                              elsewhere; or a node had no room for its part, and nothing else has failed
 *               -> timed-out   its time limit was reached
 *               -> succeeded   all ranks have ended with 0
 */
#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "cluster/run.h"

static int parts_add(struct run *r, const char *node, struct error *err)
{
	struct run_part *p = reallocarray(r->parts, r->part_count + 1, sizeof(*p));

	if (!p)
		return error_oom(err);
	r->parts = p;
	p += r->part_count;
	*p = (struct run_part){.node = strdup(node)};
	if (!p->node || name_index_add(&r->part_index, p->node, r->part_count) < 0) {
		free(p->node);
		return error_oom(err);
	}
	r->part_count++;
	return 0;
}

static int add_parts_of_ranks(struct run *r, struct error *err)
{
	for (size_t i = 0; i < r->rank_count; i++) {
		const char *node = r->ranks[i].node;
		struct run_part *part = run_part_find(r, node);

		if (!part && parts_add(r, node, err) < 0)
			return -ENOMEM;
		if (!part)
			part = &r->parts[r->part_count - 1];
		if (part->end_rank == 0)
			part->first_rank = i;
		part->end_rank = i + 1;
	}
	if (r->part_count == 0)
		return error_set(err, -EINVAL, "run %lld is %s without a node", (long long)r->id,
		                 run_state_name(r->state));
	return 0;
}

int run_recover(struct run *r, double now, struct error *err)
{
	int code = add_parts_of_ranks(r, err);

	for (size_t i = 0; i < r->lost_count; i++) {
		struct run_part *part = run_part_find(r, r->lost[i].record.node);

		if (part && r->lost[i].record.attempt == r->attempt)
			part->lost = true;
	}
	r->recovered = now;
	if (code == 0)
		r->nodes = (int64_t)r->part_count;
	return code;
}

int run_under_way(const struct run *r, json_t **out)
{
	_cleanup_free_ struct lost_record *lost = calloc(r->lost_count + 1, sizeof(*lost));
	_cleanup_free_ struct part_record *parts = calloc(r->part_count + 1, sizeof(*parts));
	/* All of it is borrowed. */
	struct run_record record = {.parts = parts,
	                            .rank_errors = r->rank_errors,
	                            .rank_error_count = r->rank_error_count,
	                            .device_error = r->device_error,
	                            .device_node = r->device_node,
	                            .timed_out = r->timed_out,
	                            .evicted = r->evicted,
	                            .final_failure = r->final_failure,
	                            .retries = (struct retry_record *)&r->retries.record};

	*out = NULL;
	if (!parts || !lost)
		return -ENOMEM;
	record.lost = lost;
	for (; record.lost_count < r->lost_count; record.lost_count++)
		lost[record.lost_count] = r->lost[record.lost_count].record;
	for (size_t i = 0; i < r->part_count; i++) {
		const struct run_part *p = &r->parts[i];

		if (p->ended || p->trouble || p->boot || p->lease > 0)
			parts[record.part_count++] = (struct part_record){.node = p->node,
			                                                  .ended = p->ended,
			                                                  .trouble = p->trouble,
			                                                  .trouble_at = p->trouble_at,
			                                                  .clock_error = p->clock_error,
			                                                  .boot = p->boot,
			                                                  .lease = p->lease};
	}
	if (r->part_count == 0) {
		record.rank_error_count = 0;
		record.device_error = record.device_node = record.evicted = NULL;
		record.timed_out = false;
		record.final_failure = false;
	}
	record.spares = r->spares;
	record.spare_count = r->spare_count;
	if (!run_has_retries(r))
		record.retries = NULL;
	if (record.part_count == 0 && record.rank_error_count == 0 && !record.device_error &&
	    !record.retries && record.lost_count == 0 && !record.timed_out && !record.evicted &&
	    record.spare_count == 0)
		return 0;
	*out = run_record_encode(&record);
	return *out ? 0 : -ENOMEM;
}

static int take_lost(struct run *r, struct run_record *record, struct error *err)
{
	r->lost = calloc(record->lost_count + 1, sizeof(*r->lost));
	if (!r->lost)
		return error_oom(err);
	for (; r->lost_count < record->lost_count; r->lost_count++) {
		r->lost[r->lost_count].record = record->lost[r->lost_count];
		record->lost[r->lost_count] = (struct lost_record){0};
	}
	return 0;
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
		p->boot = steal_pointer(saved->boot);
		p->lease = saved->lease;
	}
	if (code == 0)
		code = take_lost(r, &record, err);
	if (code < 0) {
		run_clear_parts(r);
		return code;
	}
	run_clear_rank_errors(r);
	r->rank_errors = steal_pointer(record.rank_errors);
	r->rank_error_count = record.rank_error_count;
	record.rank_error_count = 0;
	run_count_rank_errors(r);
	r->device_error = steal_pointer(record.device_error);
	r->device_node = steal_pointer(record.device_node);
	r->timed_out = record.timed_out;
	r->evicted = steal_pointer(record.evicted);
	r->final_failure = record.final_failure;
	run_clear_spares(r);
	r->spares = steal_pointer(record.spares);
	r->spare_count = record.spare_count;
	record.spare_count = 0;
	if (record.retries) {
		r->retries.record = *record.retries;
		*record.retries = (struct retry_record){0};
	}
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
	free(steal_pointer(r->rank_error_places)); /* made anew, by rank */
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
	if (add_parts_of_ranks(r, err) < 0) {
		/* Ranks and parts would hold slots for a run that waits for some. */
		free_ranks(r);
		run_clear_parts(r);
		return -ENOMEM;
	}
	r->recovered = 0;
	r->state = RUN_STARTING;
	r->attempt++;
	r->started = now;
	r->failed = r->busy = r->requeue = r->final_failure = r->timed_out = false;
	free(steal_pointer(r->evicted));
	free(steal_pointer(r->reason));
	free(steal_pointer(r->detail));
	free(steal_pointer(r->device_error));
	free(steal_pointer(r->device_node));
	run_begin_attempt(r);
	run_clear_rank_errors(r);
	r->exit_status = -1;
	r->to_start = true;
	run_touch(r);
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

/* Returns whether it is news. */
static bool take_device_error(struct run *r, const struct run_part *part, const struct report *report)
{
	const char *text = report->device_errors ? report->device_errors[0] : NULL;

	if (!text || r->device_error)
		return false;
	r->device_error = strdup(text);
	free(r->device_node);
	r->device_node = strdup(part->node);
	return true;
}

/* No part is left: the run is final, or queued again; of an attempt that has begun the ranks then say where
 * its logs are, until the next one begins. */
static unsigned end_attempt(struct run *r, enum run_state state, double now)
{
	bool queued = state == RUN_QUEUED, begun = r->failed || r->evicted;

	r->state = state;
	r->failed = state == RUN_FAILED;
	r->requeue = false;
	free(steal_pointer(r->evicted));
	r->ended = queued ? 0 : now;
	if (queued) {
		r->started = 0;
		r->exit_status = -1;
		run_keep_nodes(r);
	} else {
		run_clear_lost(r);
		run_clear_spares(r);
	}
	if (queued && !begun)
		free_ranks(r);
	else
		close_ranks(r);
	run_clear_parts(r);
	run_touch(r);
	return RUN_ENDED;
}

/* Its program was through before it was stopped. What a command does when it is asked to save, or gets TERM,
 * may end with 0, too. */
static bool is_through(const struct run *r)
{
	for (size_t i = 0; i < r->rank_count; i++)
		if (r->ranks[i].state != RANK_EXITED || r->ranks[i].exit_status != 0)
			return false;
	return r->retries.saves && r->rank_count > 0;
}

static void set_time_reason(struct run *r)
{
	int64_t step = r->retries.record.checkpoint;
	char limit[32];

	str_duration(limit, sizeof(limit), r->time_limit);
	if (step > 0)
		run_set_reason(r,
		               "its time limit of %s was reached (resources.time_limit); its newest "
		               "checkpoint is that of step %lld",
		               limit, (long long)step);
	else
		run_set_reason(r, "its time limit of %s was reached (resources.time_limit)", limit);
}

static void set_evicted_reason(struct run *r)
{
	run_set_last_failure(r, r->evicted, NULL);
	run_set_reason(r, "%s", r->evicted);
}

static unsigned finish_if_all_ended(struct run *r, double now)
{
	while (r->ended_parts < r->part_count && r->parts[r->ended_parts].ended)
		r->ended_parts++;
	if (r->ended_parts < r->part_count)
		return 0;
	if (r->cancelled)
		return end_attempt(r, RUN_CANCELLED, now);
	if (r->failed)
		return end_attempt(r, run_retry(r, run_decide_cause(r), now) ? RUN_QUEUED : RUN_FAILED, now);
	if (r->timed_out && !is_through(r)) {
		set_time_reason(r);
		return end_attempt(r, RUN_TIMED_OUT, now);
	}
	if (r->evicted && !is_through(r)) {
		set_evicted_reason(r);
		return end_attempt(r, RUN_QUEUED, now);
	}
	if (r->requeue && !r->evicted)
		return end_attempt(r, run_retry_unstarted(r, now) ? RUN_QUEUED : RUN_FAILED, now);
	r->exit_status = 0;
	free(steal_pointer(r->reason));
	return end_attempt(r, RUN_SUCCEEDED, now);
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

/* Takes over what the node says of its ranks. Returns whether it is news: heartbeats say the same again and
 * again. */
static bool merge_ranks(struct run *r, const struct run_part *part, const struct report *report)
{
	bool changed = false;

	for (size_t i = 0; i < report->rank_count; i++) {
		const struct rank_report *theirs = &report->ranks[i];
		struct run_rank *ours =
		    theirs->rank < (int64_t)r->rank_count ? &r->ranks[theirs->rank] : NULL;

		if (!ours || !str_eq_host(ours->node, part->node))
			continue;
		changed = merge_rank(ours, theirs) || changed;
		/* By our clock, as well as it was known then. */
		if (theirs->ended > 0 && ours->ended <= 0)
			ours->ended = theirs->ended + report->clock_offset;
		run_rank_error(r, theirs);
	}
	return changed;
}

/* Nothing is left of the attempt on this node but the record of its start. */
static void mark_lost(struct run *r, const struct run_part *part)
{
	for (size_t i = part->first_rank; i < part->end_rank; i++)
		if (str_eq_host(r->ranks[i].node, part->node))
			r->ranks[i].state = RANK_LOST;
}

/* Those of other parts need not be looked at: the report that says that one has failed brings the attempt
 * down. */
static bool any_rank_failed(const struct run *r, const struct run_part *part)
{
	for (size_t i = part->first_rank; i < part->end_rank; i++)
		if (run_rank_failed(&r->ranks[i]))
			return true;
	return false;
}

static bool all_running(struct run *r)
{
	while (r->running_parts < r->part_count && r->parts[r->running_parts].running)
		r->running_parts++;
	return r->running_parts == r->part_count;
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
	run_set_reason(r, "%s", run_undecided);
	return true;
}

unsigned run_report(struct run *r, const struct report *report, double now)
{
	struct run_part *part = run_part_find(r, report->node);
	bool stop = false, changed = false;

	if (!part || part->ended || report->attempt != r->attempt)
		return 0;
	part->acknowledged = true;
	part->clock_error = report->clock_error;
	changed = take_device_error(r, part, report);
	changed = merge_ranks(r, part, report) || changed;
	if (report->state == ATTEMPT_RUNNING)
		part->running = true;
	part->ended = report->state == ATTEMPT_ENDED;
	if (part->ended)
		r->dirty = true;
	if (report->lost)
		mark_lost(r, part);
	if (report->shutdown)
		set_trouble(r, part, report->shutdown, now);
	if (report->reason && (part->ended || report->launcher_lost)) {
		_cleanup_free_ char *text = str_printf("node %s: %s", part->node, report->reason);

		set_trouble(r, part, text ? text : report->reason, now);
	}
	if (part->trouble || (changed && any_rank_failed(r, part)))
		stop = fail(r);
	/* What was started somewhere is not queued again because another node never had it. */
	if (report->lost && part->ended && r->requeue)
		r->failed = true;
	if (r->state == RUN_STARTING && all_running(r)) {
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
	/* What is known here is of attempts before that one: it is neither the cause, nor a reason to start
	 * the run again. */
	free(steal_pointer(r->detail));
	return end_attempt(r, RUN_FAILED, now);
}

unsigned run_refused(struct run *r, struct run_part *part, enum run_refusal why, const char *message,
                     double now)
{
	bool stop = r->state != RUN_STOPPING;

	part->ended = r->dirty = true;
	if (stop && (why == REFUSED_BUSY || why == REFUSED_UNSENT)) {
		if (why == REFUSED_BUSY)
			run_count_busy(r, part->node);
		run_set_reason(r, "node %s: %s", part->node, message);
		r->requeue = true;
	} else if (stop) {
		_cleanup_free_ char *text = str_printf("node %s: the start has failed", part->node);

		/* The message names directories and programs of the user. */
		set_trouble(r, part, text ? text : part->node, now);
		free(r->detail);
		r->detail = str_printf("node %s: %s", part->node, message);
		r->final_failure = why == REFUSED_FINAL;
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

unsigned run_cancel(struct run *r, const char *by, double now)
{
	if (run_state_final(r->state) || r->cancelled)
		return 0;
	r->cancelled = true;
	free(steal_pointer(r->reason));
	free(steal_pointer(r->detail));
	run_set_reason(r, "cancelled by %s", by);
	return after(r, r->state != RUN_QUEUED, now);
}

unsigned run_time_out(struct run *r, double now)
{
	if (run_state_final(r->state) || r->state == RUN_STOPPING)
		return 0;
	r->timed_out = true;
	if (r->state != RUN_QUEUED)
		run_set_reason(r, "its time limit was reached: it saves and stops");
	return after(r, r->state != RUN_QUEUED, now);
}

unsigned run_evict(struct run *r, const char *why, double now)
{
	if (r->state != RUN_STARTING && r->state != RUN_RUNNING)
		return 0;
	if (str_replace(&r->evicted, why) < 0)
		return 0;
	r->requeue = true;
	run_set_reason(r, "%s: it saves, stops and is queued again", why);
	return after(r, true, now);
}

enum run_stop run_stop_kind(const struct run *r)
{
	return r->cancelled                                 ? RUN_STOP_CANCEL
	       : !r->failed && (r->timed_out || r->evicted) ? RUN_STOP_SAVE
	                                                    : RUN_STOP_NOW;
}
