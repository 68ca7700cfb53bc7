/* SPDX-License-Identifier: Apache-2.0 */
/* The first cause of the failure of a run's attempt, in words (cause.h says which of its ends it is). */
#include "cluster/cause.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cluster/run.h"

enum {
	CAUSE_MAX = 4096,       /* of what a worker says */
	TEXTS_MAX = 128 * 1024, /* of what is known of all ranks */
};

const char run_undecided[] = "a part of it has failed, the rest is being stopped";

struct rank_error *run_find_rank_error(const struct run *r, int64_t rank)
{
	if (r->rank_error_places && rank >= 0 && rank < (int64_t)r->rank_count)
		return r->rank_error_places[rank] ? &r->rank_errors[r->rank_error_places[rank] - 1] : NULL;
	for (size_t i = 0; i < r->rank_error_count; i++)
		if (r->rank_errors[i].rank == rank)
			return &r->rank_errors[i];
	return NULL;
}

static size_t text_bytes(const struct rank_error *known)
{
	return (known->worker ? strlen(known->worker) : 0) + (known->log ? strlen(known->log) : 0);
}

static void set_place(struct run *r, size_t i)
{
	int64_t rank = r->rank_errors[i].rank;

	if (rank < (int64_t)r->rank_count && r->rank_error_places[rank] == 0)
		r->rank_error_places[rank] = (uint32_t)i + 1;
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

/* Its worker has reported an error of its own, and has ended with it: that it was stopped meanwhile, since
 * the others ended without it, is a consequence. */
static bool has_failed(const struct run_rank *rank, const struct rank_error *known)
{
	return !rank->signal && known && known->worker && !known->lost_peer;
}

static enum cause_class class_of(const struct run_rank *rank, const struct rank_error *known)
{
	return cause_of_rank((int)MAX(rank->exit_status, 0), rank->signal ? signal_number(rank->signal) : 0,
	                     rank->stopped && !has_failed(rank, known), known && known->lost_peer);
}

/* What the text tells is the less likely the first cause the less it explains, and the later the rank ended.
 * One that has not ended yet came before its end. */
static void put_text(struct run *r, const struct rank_error *known)
{
	const struct run_rank *rank = known->rank < (int64_t)r->rank_count ? &r->ranks[known->rank] : NULL;
	size_t place = (size_t)(known - r->rank_errors);

	if (rank)
		rank_texts_put(&r->rank_texts, place, class_of(rank, known), rank->ended);
	else
		rank_texts_put_unknown(&r->rank_texts, place);
}

static int index_rank_errors(struct run *r)
{
	if (r->rank_error_places)
		return 0;
	rank_texts_clear(&r->rank_texts);
	if (rank_texts_reserve(&r->rank_texts, r->rank_error_count) == 0)
		r->rank_error_places = calloc(r->rank_count + 1, sizeof(*r->rank_error_places));
	if (!r->rank_error_places)
		return -ENOMEM;
	for (size_t i = 0; i < r->rank_error_count; i++) {
		set_place(r, i);
		if (text_bytes(&r->rank_errors[i]) > 0)
			put_text(r, &r->rank_errors[i]);
	}
	return 0;
}

/* That of the rank; made where there is none. NULL: out of memory. */
static struct rank_error *need_rank_error(struct run *r, int64_t rank)
{
	struct rank_error *own, *grown;

	if (index_rank_errors(r) < 0)
		return NULL;
	own = run_find_rank_error(r, rank);
	if (own)
		return own;
	if (rank_texts_reserve(&r->rank_texts, r->rank_error_count + 1) < 0)
		return NULL;
	grown = reallocarray(r->rank_errors, r->rank_error_count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	r->rank_errors = grown;
	own = &grown[r->rank_error_count++];
	*own = (struct rank_error){.rank = rank};
	set_place(r, r->rank_error_count - 1);
	return own;
}

static void drop_text(struct run *r, struct rank_error *dropped)
{
	r->rank_error_bytes -= text_bytes(dropped);
	if (dropped->worker)
		dropped->worker[0] = '\0';
	if (dropped->log)
		dropped->log[0] = '\0';
}

/* After what is known of a rank has grown. What thousands of ranks say when they fail together would be much
 * to store each time that one more ends. An empty text is left of one that is dropped, so that it is known,
 * and not taken again. */
static void limit_texts(struct run *r, const struct rank_error *grown, size_t before)
{
	ptrdiff_t i;

	r->rank_error_bytes += text_bytes(grown) - before;
	if (text_bytes(grown) > 0)
		put_text(r, grown);
	while (r->rank_error_bytes > TEXTS_MAX && (i = rank_texts_take(&r->rank_texts)) >= 0)
		drop_text(r, &r->rank_errors[i]);
}

void run_count_rank_errors(struct run *r)
{
	r->rank_error_bytes = 0;
	for (size_t i = 0; i < r->rank_error_count; i++)
		r->rank_error_bytes += text_bytes(&r->rank_errors[i]);
}

void run_worker_error(struct run *r, int64_t rank, const char *message, bool lost_peer)
{
	struct rank_error *known;
	size_t before;

	if (rank < 0 || rank >= (int64_t)r->rank_count)
		return;
	known = need_rank_error(r, rank);
	if (!known || known->worker)
		return;
	before = text_bytes(known);
	known->worker = strndup(message, CAUSE_MAX);
	if (!known->worker)
		return;
	str_make_utf8(known->worker); /* the cut may be within a character */
	known->lost_peer = lost_peer;
	r->dirty = true;
	limit_texts(r, known, before);
}

/* The end of the rank, and that it has lost a peer, say how likely its text is the cause. */
static void move_text(struct run *r, const struct rank_error *known)
{
	if (rank_texts_has(&r->rank_texts, (size_t)(known - r->rank_errors)))
		put_text(r, known);
}

void run_rank_error(struct run *r, const struct rank_report *report)
{
	bool says = report->error || report->lost_peer;
	struct rank_error *known = says                   ? need_rank_error(r, report->rank)
	                           : r->rank_error_places ? run_find_rank_error(r, report->rank)
	                                                  : NULL;
	size_t before = known ? text_bytes(known) : 0;

	if (!known)
		return;
	if (report->lost_peer && !known->lost_peer)
		known->lost_peer = r->dirty = true;
	move_text(r, known);
	/* One that was dropped is not taken again, and "" is none: an error with a text keeps one. */
	if (!report->error || !*report->error || str_eq(known->log, report->error) ||
	    str_eq(known->log, "") || str_replace(&known->log, report->error) < 0)
		return;
	r->dirty = true;
	limit_texts(r, known, before);
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

bool run_rank_failed(const struct run_rank *rank)
{
	return rank->state == RANK_EXITED && (rank->exit_status > 0 || rank->signal);
}

/* Names the rank as the cause of the failure: rank, node and exit status for all users; the last lines of its
 * log, or the error of its worker, for the owner. */
static void blame_rank(struct run *r, const struct run_rank *rank)
{
	const struct rank_error *known = run_find_rank_error(r, rank->rank);
	/* What the worker said may have been dropped. */
	const char *detail = known ? (known->worker && *known->worker ? known->worker : known->log) : NULL;
	const char *oom = rank->oom ? " (the kernel ran out of memory: OOM killer)" : "";
	int64_t status = MAX(rank->exit_status, 0);

	if (rank->signal)
		run_set_reason(r, "rank %lld on %s: killed by %s%s%s", (long long)rank->rank, rank->node,
		               rank->signal, oom, rank->core_dumped ? ", core dumped" : "");
	else
		run_set_reason(r, "rank %lld on %s: exit status %lld%s", (long long)rank->rank, rank->node,
		               (long long)status, oom);
	r->exit_status = rank->signal ? 128 + signal_number(rank->signal) : (int)status;
	free(r->detail);
	r->detail = detail && *detail ? strdup(detail) : NULL;
}

/* Of native ranks on several nodes that have lost each other, and of which none has failed by itself or has
 * ended before the others, the network was the cause: the node that was cut off may be back before the
 * controller has missed it, where that was cut off itself. */
static bool network_failed(const struct run *r, const struct run_rank *first)
{
	const struct rank_error *known = run_find_rank_error(r, first->rank);

	if (!known || !known->lost_peer || first->signal || r->part_count < 2)
		return false;
	for (size_t i = 0; i < r->rank_count; i++)
		if (r->ranks[i].state == RANK_EXITED && r->ranks[i].exit_status == 0)
			return false;
	return true;
}

static void blame_network(struct run *r)
{
	_cleanup_free_ char *rank = r->reason ? strdup(r->reason) : NULL;

	run_set_reason(r, "the network between the nodes was interrupted, and ranks lost each other: %s",
	               rank ? rank : "out of memory");
}

enum run_failure run_decide_cause(struct run *r)
{
	size_t max = r->part_count + r->rank_count, n = 0, i;
	_cleanup_free_ struct cause *list = calloc(max + 1, sizeof(*list));
	_cleanup_free_ const void **whose = calloc(max + 1, sizeof(*whose));
	bool network = false;
	int first;

	index_rank_errors(r); /* without memory for that, the errors are searched */
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
		const struct rank_error *known = run_find_rank_error(r, (int64_t)i);

		if (!run_rank_failed(rank))
			continue;
		whose[n] = rank;
		list[n++] = (struct cause){class_of(rank, known), rank->ended, part ? part->clock_error : 0};
	}
	first = cause_choose(list, n);
	if (first >= 0 && first < (int)max) {
		run_set_reason(r, "%s", (const char *)whose[first]);
	} else if (first >= 0) {
		free(steal_pointer(r->detail));
		blame_rank(r, whose[first]);
		network = list[first].class == CAUSE_PEER && network_failed(r, whose[first]);
		if (network)
			blame_network(r);
	} else if (str_eq(r->reason, run_undecided))
		run_set_reason(r, "a part of it has failed; which one and why is not known any more");
	add_device_error(r);
	if (r->final_failure || n == 0)
		return FAILURE_FINAL;
	return r->device_error || first < (int)max || network ? FAILURE_NODE : FAILURE_PROGRAM;
}
