/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks write their parts of a save at the same time, and agree on the result:
 *
 *     each rank                                            rank 0
 *     WRITING    copies its part; a thread writes it
 *     WRITTEN    its files are synced                      when all ranks are: comm_check, claim_check,
 *                                                          writes the index, syncs, renames
 *                                                          PUBLISHED
 *
 * Only the thread that trains uses the communicator: while a save is in progress, the ranks gather their
 * states each time that they call saving_poll, which all do after the same steps. A rank that has failed says
 * why in the next of these, and the save ends for all with its words. So a slow disk does not run into the
 * time-out of a collective; a thread that writes nothing for as long as that is a failure of its rank.
 *
 * Without a copy the thread that trains writes itself, and gathers the states between two pieces.
 */
#include "engine/checkpoint/saving.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/checkpoint/background.h"
#include "engine/checkpoint/save_write.h"

enum { WRITING, WRITTEN, PUBLISHED };

struct saving {
	struct saving_job job;
	struct saving_record own;
	struct saving_record *all;
	struct background work;
	struct manifest_index index;
	bool publishing;
	bool agreed; /* a failure is known to all ranks */
	atomic_bool cancelled;
	atomic_uint_fast64_t pieces; /* written so far */
	uint64_t seen;               /* of these when the ranks last gathered */
	double moved_at, gathered_at;
};

/* ---- the work of this rank ---- */

static int before_piece(void *context, struct error *err)
{
	struct saving *s = context;
	bool ended;

	atomic_fetch_add(&s->pieces, 1);
	if (atomic_load(&s->cancelled))
		return error_set(err, -ECANCELED, "saving was cancelled");
	/* Where values are gathered, that is the sign of life. */
	if (s->job.copy || s->job.plan->gathers || !s->job.ranks.comm ||
	    clock_monotonic() - s->gathered_at < s->job.interval_s)
		return 0;
	return saving_poll(s, &ended, err);
}

static int write_part(void *context, struct error *err)
{
	struct saving *s = context;
	const struct saving_job *job = &s->job;
	struct save_write w = {.directory = job->directory,
	                       .plan = job->plan,
	                       .access = job->access,
	                       .staged = job->copy,
	                       .piece = before_piece,
	                       .context = s};
	int r = 0;

	if (job->plan->gathers && ranks_rank(&job->ranks) != 0)
		return save_follow(job->plan, job->access, err);
	if (job->plan->rank == 0) {
		w.listed = job->listed;
		w.n_listed = job->n_listed;
		r = job->files(job->context, err);
	}
	if (r < 0 && job->plan->gathers)
		save_follow(job->plan, job->access, NULL);
	return r < 0 ? r : save_write(&w, &s->own.list_bytes, &s->own.list_hash, err);
}

static int publish(void *context, struct error *err)
{
	struct saving *s = context;

	return s->job.publish(s->job.context, s->job.plan->state ? &s->index : NULL, err);
}

/* ---- agreement ---- */

static int prepare_index(struct saving *s, struct error *err)
{
	s->index.world_size = ranks_size(&s->job.ranks);
	s->index.ranks = calloc((size_t)s->index.world_size, sizeof(*s->index.ranks));
	if (!s->index.ranks)
		return error_oom(err);
	for (int i = 0; i < s->index.world_size; i++) {
		s->all[i].node[sizeof(s->all[i].node) - 1] = '\0';
		s->index.ranks[i] =
		    (struct manifest_rank){s->all[i].node, s->all[i].list_bytes, s->all[i].list_hash};
	}
	return 0;
}

/* What has become of this rank's thread. */
static int look_at_thread(struct saving *s, struct error *err)
{
	double now = clock_monotonic();
	uint64_t pieces = atomic_load(&s->pieces);
	int r;

	if (!s->work.running)
		return 0;
	if (atomic_load(&s->work.done)) {
		r = background_join(&s->work, err);
		s->own.state = s->publishing ? PUBLISHED : WRITTEN;
		return r;
	}
	if (pieces != s->seen || s->publishing)
		s->moved_at = now;
	s->seen = pieces;
	return now - s->moved_at <= s->job.timeout_s
	           ? 0
	           : error_set(err, -ETIMEDOUT, "writing to %s has made no progress for %.0f s",
	                       s->job.directory, now - s->moved_at);
}

/* The words of the first rank that failed, to all. */
static int fail_together(struct saving *s, int rank, struct error *err)
{
	struct error why = ERROR_INIT;
	int r;

	s->agreed = true;
	if (ranks_rank(&s->job.ranks) == rank)
		why = *err;
	if (!s->job.ranks.comm)
		return (int)s->all[rank].state;
	if ((r = ranks_broadcast(&s->job.ranks, NULL, &why, sizeof(why), rank, err)) < 0)
		return r;
	why.message[sizeof(why.message) - 1] = '\0';
	return rank == 0 ? error_set(err, (int)s->all[rank].state, "%s", why.message)
	                 : error_set(err, (int)s->all[rank].state, "rank %d on node %.64s: %.600s", rank,
	                             s->all[rank].node, why.message);
}

/* Gathers the states of all ranks, this one's own state or failure among them. */
static int gather(struct saving *s, int failure, bool *all_written, struct error *err)
{
	int rank = ranks_rank(&s->job.ranks), r;

	s->all[rank] = s->own;
	if (failure < 0)
		s->all[rank].state = failure;
	r = ranks_gather(&s->job.ranks, s->job.staging, s->all, sizeof(*s->all), err);
	s->gathered_at = clock_monotonic();
	if (r < 0) {
		s->agreed = true; /* nothing can be agreed on any more */
		return r;
	}
	*all_written = true;
	for (int i = 0; i < ranks_size(&s->job.ranks); i++) {
		if (s->all[i].state < 0)
			return fail_together(s, i, err);
		*all_written = *all_written && s->all[i].state >= WRITTEN;
	}
	return 0;
}

/* All parts are written. A rank that has failed, or a communicator that was aborted, may have let the device
 * go on with partial sums: what was saved in that time is not to be trusted. */
static int start_publishing(struct saving *s, struct error *err)
{
	bool all_written;
	int r = s->job.ranks.comm ? comm_check(s->job.ranks.comm, err) : 0;

	if (r < 0 || (r = prepare_index(s, err)) < 0)
		return r;
	s->publishing = true;
	if (s->job.copy)
		return background_start(&s->work, publish, s, err);
	r = publish(s, err);
	s->own.state = PUBLISHED;
	return gather(s, r, &all_written, err);
}

int saving_poll(struct saving *s, bool *ended, struct error *err)
{
	bool all_written;
	int r = look_at_thread(s, err);

	*ended = false;
	if ((r = gather(s, r, &all_written, err)) < 0)
		return r;
	*ended = s->all[0].state == PUBLISHED;
	if (*ended || !all_written || s->publishing || ranks_rank(&s->job.ranks) != 0)
		return 0;
	r = start_publishing(s, err);
	*ended = r == 0 && s->own.state == PUBLISHED;
	return r;
}

int saving_start(const struct saving_job *job, struct saving **out, struct error *err)
{
	_cleanup_(saving_freep) struct saving *s = calloc(1, sizeof(*s));
	bool all_written;
	int r;

	if (!s || !(s->all = calloc((size_t)ranks_size(&job->ranks), sizeof(*s->all))))
		return error_oom(err);
	s->job = *job;
	snprintf(s->own.node, sizeof(s->own.node), "%s", job->ranks.node ? job->ranks.node : "");
	s->moved_at = s->gathered_at = clock_monotonic();
	if (job->copy) {
		r = save_stage(job->plan, job->access, job->copy, err);
		if (r == 0)
			r = background_start(&s->work, write_part, s, err);
	} else {
		r = write_part(s, err);
		s->own.state = WRITTEN;
	}
	/* Without a thread the others are in saving_poll, or will be next. */
	if (r < 0 && !job->copy && !s->agreed)
		r = gather(s, r, &all_written, err);
	if (r < 0)
		return r;
	*out = steal_pointer(s);
	return 0;
}

void saving_free(struct saving *s)
{
	if (!s)
		return;
	atomic_store(&s->cancelled, true);
	background_join(&s->work, NULL);
	free(s->index.ranks);
	free(s->all);
	free(s);
}
