/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks write their parts of a save at the same time, and agree on the result:
 *
 *     each rank                                            rank 0
 *     WRITING    copies its part; a thread writes it
 *     WRITTEN    its files are synced                      when all ranks are, and those of other nodes that
 *                                                          publish a directory there are PUBLISHED:
 *                                                          comm_check, claim_check,
 *                                                          writes the index, syncs, renames
 *                                                          PUBLISHED
 *
 * A rank of another node publishes in the same way as soon as all ranks are WRITTEN.
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
	struct save_writer *writer;
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
	if (s->job.copy || !s->job.ranks.comm || clock_monotonic() - s->gathered_at < s->job.interval_s)
		return 0;
	return saving_poll(s, &ended, err);
}

static int create_writer(struct saving *s, struct error *err)
{
	const struct saving_job *job = &s->job;
	bool first = ranks_rank(&job->ranks) == 0;
	struct save_write w = {.directory = job->directory,
	                       .plan = job->plan,
	                       .access = job->access,
	                       .listed = first ? job->listed : NULL,
	                       .n_listed = first ? job->n_listed : 0,
	                       .piece = before_piece,
	                       .context = s};

	return save_writer_create(&w, &s->writer, err);
}

static int write_own(void *context, struct error *err)
{
	struct saving *s = context;
	const struct saving_job *job = &s->job;
	int r = job->files ? job->files(job->context, err) : 0;

	return r < 0 ? r : save_writer_own(s->writer, job->copy, &s->own.list_bytes, &s->own.list_hash, err);
}

/* What is gathered is written by the thread that trains, with the collectives as the sign of life. The ranks
 * agree on the result, so that none of them writes its own part of a save that has failed. */
static int write_gathered(struct saving *s, struct error *err)
{
	bool broken;
	int r;

	if (s->job.plan->gathered == 0)
		return 0;
	r = ranks_agree(&s->job.ranks, save_writer_gathered(s->writer, err), &broken, err);
	s->agreed = r < 0;
	s->gathered_at = clock_monotonic();
	return r;
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

static bool others_have_published(const struct saving *s)
{
	for (int i = 1; i < ranks_size(&s->job.ranks); i++)
		if (s->all[i].publishes && s->all[i].state != PUBLISHED)
			return false;
	return true;
}

int saving_poll(struct saving *s, bool *ended, struct error *err)
{
	bool all_written, first = ranks_rank(&s->job.ranks) == 0;
	int r = look_at_thread(s, err);

	*ended = false;
	if ((r = gather(s, r, &all_written, err)) < 0)
		return r;
	*ended = s->all[0].state == PUBLISHED;
	if (*ended || !all_written || s->publishing || !s->job.publish ||
	    (first && !others_have_published(s)))
		return 0;
	r = start_publishing(s, err);
	*ended = r == 0 && first && s->own.state == PUBLISHED;
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
	s->own.publishes = job->publish != NULL;
	snprintf(s->own.node, sizeof(s->own.node), "%s", job->ranks.node ? job->ranks.node : "");
	s->moved_at = s->gathered_at = clock_monotonic();
	if ((r = create_writer(s, err)) < 0 || (r = write_gathered(s, err)) < 0)
		return r;
	if (job->copy) {
		r = save_stage(job->plan, job->access, job->copy, err);
		if (r == 0)
			r = background_start(&s->work, write_own, s, err);
	} else {
		r = write_own(s, err);
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
	save_writer_free(s->writer);
	free(s->index.ranks);
	free(s->all);
	free(s);
}
