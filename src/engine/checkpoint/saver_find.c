/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the output directory of a run, and finds the checkpoint to resume from.
 *
 * Opening, on rank 0:
 *
 *     claim_take     locks the directory; refused where another process writes there, or a newer attempt did
 *     choose         resume, start anew, remove what is there (overwrite), or refuse; changes nothing
 *     claim_mark     from here on the directory is this attempt's
 *     remove, clean  an overwritten run, and what an interrupted save has left
 *
 * Finding (saver_find), on all ranks: which of them share a directory (places.c); one of each other directory
 * opens that, too; then the newest checkpoint, in whichever directory, whose files are what was saved.
 */
#include "engine/checkpoint/saver_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

void saver_notify(const struct saver *s, const char *fmt, ...)
{
	char message[4400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	s->o.notify(s->o.context, message);
}

/* A checkpoint that err describes cannot be used: says so where there is an older one. */
static int skip_checkpoint(const struct saver *s, int64_t step, struct error *err)
{
	_cleanup_free_ char *older = NULL;
	struct error why = *err;
	int64_t older_step;
	int r = checkpoint_find(saver_directory(s), step, &older, &older_step, err);

	if (r < 0)
		return r;
	if (!older)
		return error_set(err, why.code,
		                 "%.600s; %s has no older checkpoint (output.resume = \"never\" with "
		                 "output.overwrite = true starts again)",
		                 why.message, saver_directory(s));
	saver_notify(s, "warning: %s; resuming from the checkpoint before it", why.message);
	return 0;
}

void saver_forget_checkpoint(struct saver *s)
{
	json_decref(s->resumed.log_history);
	json_decref(s->resumed_owner);
	free(s->resume_path);
	s->resumed = (struct checkpoint_state){0};
	s->resumed_owner = NULL;
	s->resume_path = NULL;
}

/* Takes the newest checkpoint of a step below `before` whose state can be read. */
static int take_newest(struct saver *s, int64_t before, struct error *err)
{
	int64_t step;
	int r;

	while ((r = checkpoint_find(saver_directory(s), before, &s->resume_path, &step, err)) == 0 &&
	       s->resume_path) {
		r = checkpoint_state_load(s->resume_path, &s->resumed, &s->resumed_owner, err);
		if (r == 0)
			return 0;
		saver_forget_checkpoint(s);
		if ((r = skip_checkpoint(s, step, err)) < 0)
			return r;
		before = step;
	}
	return r;
}

/* That there is no checkpoint. An attempt on other nodes, of which none has the files, must not begin at step
 * 0 as if nothing had been done. */
static int check_none(const struct saver *s, struct error *err)
{
	if (s->o.known_step > 0)
		return error_set(
		    err, -ENOENT,
		    "an earlier attempt of this run has saved step %" PRId64
		    " in output.dir %s%s%s, which has no checkpoint on the nodes of this attempt: "
		    "let it run there (resources.hosts), or copy the directory to these nodes",
		    s->o.known_step, saver_directory(s), s->o.known_node ? " on node " : "",
		    s->o.known_node ? s->o.known_node : "");
	return s->again || s->o.resume != SAVER_RESUME_MUST
	           ? 0
	           : checkpoint_output_lacks(saver_directory(s), err);
}

/* Decides by resume, overwrite and the attempt what to do with the files in the directory. A later attempt
 * that finds the files of its own run (ours) resumes from them, whatever resume and overwrite say, which are
 * meant for the first attempt. *remove: the files have to be removed. */
static int choose(struct saver *s, bool ours, bool *remove, struct error *err)
{
	const char *dir = saver_directory(s);
	bool used = false;
	int r;

	*remove = false;
	s->again = s->o.claim.attempt > 1 && ours;
	/* What is there is another run's. With several ranks, another one may find ours. */
	if (s->o.known_step > 0 && !ours && s->o.world_size == 1)
		return check_none(s, err);
	s->looks = s->again || s->o.resume != SAVER_RESUME_NEVER;
	if (s->looks) {
		r = take_newest(s, INT64_MAX, err);
		if (r < 0 || s->resume_path)
			return r;
		/* Other nodes may have one. */
		if (s->o.world_size == 1 && (r = check_none(s, err)) < 0)
			return r;
	}
	r = checkpoint_output_in_use(dir, &used, err);
	if (r < 0 || !used || s->again)
		return r;
	if (!s->o.overwrite)
		return checkpoint_output_refuse(dir, s->o.resume != SAVER_RESUME_NEVER, err);
	*remove = true;
	return 0;
}

int saver_open_directory(struct saver *s, struct error *err)
{
	const char *dir = saver_directory(s);
	bool ours = false, remove = false;
	int r;

	if ((r = file_mkdirs(dir, 0777, err)) < 0)
		return error_prefix(err, "output.dir");
	if (access(dir, W_OK | X_OK) < 0)
		return error_errno(err, -errno, "output.dir %s cannot be written", dir);
	if ((r = claim_take(&s->o.claim, &s->claimed, &ours, err)) < 0 ||
	    (r = choose(s, ours, &remove, err)) < 0 || (r = claim_mark(&s->o.claim, s->claimed, err)) < 0)
		return r;
	if (remove && (r = checkpoint_remove_all(dir, err)) < 0)
		return r;
	return checkpoint_clean(dir, err);
}

/* ---- resuming ---- */

/* A directory of a node that does not find that of rank 0. Rank 0 decides whether there is a run to resume;
 * this is refused only where a checkpoint would be replaced that was not meant to be. */
static int open_other_directory(struct saver *s, struct error *err)
{
	const char *dir = saver_directory(s);
	_cleanup_free_ char *there = NULL;
	bool ours = false;
	int64_t step;
	int r;

	if ((r = claim_take(&s->o.claim, &s->claimed, &ours, err)) < 0 ||
	    (r = checkpoint_find(dir, INT64_MAX, &there, &step, err)) < 0)
		return r;
	s->looks = s->o.resume != SAVER_RESUME_NEVER || (s->o.claim.attempt > 1 && ours);
	if (there && !s->looks && !s->o.overwrite)
		return error_set(
		    err, -ENOTEMPTY,
		    "output.dir %s has checkpoints; choose another or set output.overwrite = true", dir);
	if ((r = claim_mark(&s->o.claim, s->claimed, err)) < 0 ||
	    (there && !s->looks && (r = checkpoint_remove_all(dir, err)) < 0))
		return r;
	return checkpoint_clean(dir, err);
}

int saver_open_places(struct saver *s, const struct ranks *ranks, struct error *err)
{
	int rank = ranks_rank(ranks), r;
	bool broken;

	if (s->places.writer)
		return 0;
	r = places_find(ranks, saver_directory(s), !s->o.gather, &s->places, err);
	if (r < 0 || s->places.single)
		return r;
	/* One that has no directory to write to may find files of an earlier run nevertheless. */
	s->looks = s->looks || s->places.writer[rank] < 0;
	if (rank != 0 && s->places.writer[rank] == rank) {
		s->publishes = true;
		r = open_other_directory(s, err);
	}
	return ranks_agree(ranks, r, &broken, err);
}

/* The newest checkpoint below `before` in the directory of this rank, of which rank 0 reads the state. */
static int look(struct saver *s, int64_t before, struct error *err)
{
	_cleanup_free_ char *path = NULL;
	int r;

	s->found = -1;
	if (!s->looks)
		return 0;
	if (s->writer) {
		r = take_newest(s, before, err);
		s->found = r == 0 && s->resume_path ? s->resumed.step : -1;
		return r;
	}
	r = checkpoint_find(saver_directory(s), before, &path, &s->found, err);
	s->found = r == 0 && path ? s->found : -1;
	return r;
}

static char *checkpoint_path(const struct saver *s, int64_t step)
{
	return str_printf("%s/checkpoint-%" PRId64, saver_directory(s), step);
}

/* The newest step that any rank has found, and the first of those that have what rank 0 wrote of it; else the
 * first of those that have found it. *step -1: there is none. */
static int find_newest(struct saver *s, const struct ranks *ranks, int64_t *step, int *root,
                       struct error *err)
{
	struct found {
		int64_t step, whole;
	};
	int n = ranks_size(ranks), r;
	_cleanup_free_ struct found *all = calloc((size_t)n, sizeof(*all));
	_cleanup_free_ char *path = checkpoint_path(s, s->found);
	_cleanup_free_ char *file = path ? str_path_join(path, "trainer_state.json") : NULL;

	if (!all || !file)
		return error_oom(err);
	all[ranks_rank(ranks)] = (struct found){s->found, s->found >= 0 && file_exists(file)};
	r = ranks_gather(ranks, NULL, all, sizeof(*all), err);
	*root = 0;
	for (int i = 1; i < n; i++)
		if (all[i].step > all[*root].step ||
		    (all[i].step == all[*root].step && all[i].whole > all[*root].whole))
			*root = i;
	*step = all[*root].step;
	return r;
}

/* Rank 0 learns the state of a checkpoint that another rank has found. */
static int receive_state(struct saver *s, const struct ranks *ranks, int64_t step, int root, bool *broken,
                         struct error *err)
{
	_cleanup_free_ char *path = checkpoint_path(s, step), *state = NULL, *trainer = NULL;
	_cleanup_json_ json_t *j = NULL, *t = NULL;
	int r = path ? 0 : error_oom(err);

	if (r == 0 && ranks_rank(ranks) == root) {
		r = checkpoint_state_read(path, &j, &t, err);
		state = r == 0 ? json_to_string(j) : NULL;
		trainer = r == 0 && t ? json_to_string(t) : NULL;
	}
	if ((r = ranks_agree(ranks, r, broken, err)) < 0)
		return r;
	*broken = true;
	if ((r = ranks_broadcast_text(ranks, &state, root, err)) < 0 ||
	    (r = ranks_broadcast_text(ranks, &trainer, root, err)) < 0)
		return r;
	if (s->writer) {
		saver_forget_checkpoint(s);
		if (ranks_rank(ranks) != root)
			r = state ? json_parse(state, strlen(state), path, &j, err) : error_oom(err);
		if (r == 0 && trainer)
			r = json_parse(trainer, strlen(trainer), path, &t, err);
		if (r == 0)
			r = checkpoint_state_parse(path, j, t, &s->resumed, &s->resumed_owner, err);
		s->resume_path = steal_pointer(path);
	}
	return ranks_agree(ranks, r, broken, err);
}

/* All ranks learn which checkpoint there is: its step, or -1. */
static int share_found(struct saver *s, const struct ranks *ranks, int *root, bool *unusable,
                       struct error *err)
{
	struct {
		int64_t step, tokens, examples;
		struct loss_scaler loss_scaler;
	} found = {0};
	bool broken;
	int r;

	*unusable = false;
	if ((r = find_newest(s, ranks, &found.step, root, err)) < 0)
		return r;
	s->resumes = found.step >= 0;
	s->resumed.step = MAX(found.step, 0);
	if (s->resumes && *root != 0 && (r = receive_state(s, ranks, found.step, *root, &broken, err)) < 0) {
		*unusable = !broken;
		s->resumed.step = found.step;
		return r;
	}
	found.tokens = s->resumed.tokens;
	found.examples = s->resumed.examples;
	found.loss_scaler = s->resumed.loss_scaler;
	if ((r = ranks_broadcast(ranks, NULL, &found, sizeof(found), 0, err)) < 0)
		return r;
	s->resumed.step = MAX(found.step, 0);
	s->resumed.tokens = found.tokens;
	s->resumed.examples = found.examples;
	s->resumed.loss_scaler = found.loss_scaler;
	return 0;
}

static int open_found(struct saver *s, const struct ranks *ranks, int root, bool *unusable, struct error *err)
{
	_cleanup_free_ char *path = checkpoint_path(s, s->resumed.step);

	*unusable = false;
	return path ? resume_open(ranks, root, path, &s->resume, unusable, err) : error_oom(err);
}

static int no_checkpoint(const struct saver *s, const struct error *damage, struct error *err)
{
	if (damage->code < 0)
		return error_set(err, damage->code,
		                 "%.600s; %s has no older checkpoint (output.resume = \"never\" with "
		                 "output.overwrite = true starts again)",
		                 damage->message, saver_directory(s));
	return s->writer ? check_none(s, err) : 0;
}

int saver_find(struct saver *s, struct device *dev, struct comm *comm, struct error *err)
{
	struct ranks ranks = {dev, comm, s->o.node};
	struct error damage = ERROR_INIT;
	bool unusable, broken;
	int64_t step;
	int r, root = 0;

	if ((r = saver_open_places(s, &ranks, err)) < 0)
		return r;
	/* Rank 0 has looked before the ranks connected. */
	r = s->writer ? 0 : look(s, INT64_MAX, err);
	while ((r = ranks_agree(&ranks, r, &broken, err)) == 0) {
		r = share_found(s, &ranks, &root, &unusable, err);
		if (r == 0 && !s->resumes)
			return ranks_agree(&ranks, no_checkpoint(s, &damage, err), &broken, err);
		if (r == 0 && damage.code < 0 && s->writer)
			saver_notify(s, "warning: %s; resuming from the checkpoint before it",
			             damage.message);
		if (r == 0)
			r = open_found(s, &ranks, root, &unusable, err);
		if (r == 0 || !unusable)
			return r;
		if (r != -ESTALE)
			damage = *err;
		else if (s->writer)
			saver_notify(s, "%s, since the save was interrupted: it is not used", err->message);
		step = s->resumed.step;
		if (s->writer)
			saver_forget_checkpoint(s);
		r = look(s, step, err);
	}
	return r;
}

bool saver_resumes(const struct saver *s)
{
	return s->resumes;
}

int saver_resume(struct saver *s, const struct weights_place *place, struct error *err)
{
	int r = resume_read(s->resume, place, err);

	resume_close(s->resume);
	s->resume = NULL;
	return r;
}

const char *saver_resume_path(const struct saver *s)
{
	return s->resume_path;
}

const struct checkpoint_state *saver_resume_state(const struct saver *s)
{
	return &s->resumed;
}
