/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the output directory of a run, and saves checkpoints and the final model in it.
 *
 * Opening, on rank 0:
 *
 *     claim_take     locks the directory; refused where another process writes there, or a newer attempt did
 *     choose         resume, start anew, remove what is there (overwrite), or refuse; changes nothing
 *     claim_mark     from here on the directory is this attempt's
 *     remove, clean  an overwritten run, and what an interrupted save has left
 *
 * Saving:
 *
 *     rank 0                                               the other ranks
 *     writes a piece of output/NAME.tmp  -- WRITING -->    wait for the next flag
 *       (a flag each `interval` seconds)
 *     syncs the files
 *     comm_check, claim_check
 *     syncs the directory, renames it
 *                                        -- WRITTEN -->    go on training
 *
 * A waiting rank that receives no flag for the communicator's time-out fails, as in any other collective. A
 * writer that fails sends no flag: its error ends the communicator, and so the waiting of the other ranks.
 */
#include "engine/checkpoint/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/weights.h"

struct saver {
	struct saver_options o;
	bool writer; /* rank 0 */
	int claimed; /* file descriptor of the claim on the directory, while it is held; -1: not the writer */
	char *resume_path;
	struct checkpoint_state resumed; /* its history is `history` */
	json_t *resumed_owner, *history;

	struct saver_contents from;
	char *fingerprint;
	void *flag;         /* device: what rank 0 broadcasts while it writes */
	double flagged_at;  /* when it last did */
	double interval;    /* seconds between two flags */
	int64_t tokens;     /* of earlier attempts */
	int64_t saved_step; /* of the newest checkpoint, -1: none */
};

static const char *directory_of(const struct saver *s)
{
	return s->o.claim.directory;
}

/* Decides by resume, overwrite and the attempt what to do with the files in the directory. A later attempt
 * that finds the files of its own run (ours) resumes from them, whatever resume and overwrite say, which are
 * meant for the first attempt. *remove: the files have to be removed. */
static int choose(struct saver *s, bool ours, bool *remove, struct error *err)
{
	const char *dir = directory_of(s);
	bool again = s->o.claim.attempt > 1 && ours, used = false;
	int64_t step;
	int r;

	*remove = false;
	if (again || s->o.resume != SAVER_RESUME_NEVER) {
		r = checkpoint_find(dir, &s->resume_path, &step, err);
		if (r < 0 || s->resume_path)
			return r;
		if (!again && s->o.resume == SAVER_RESUME_MUST)
			return error_set(err, -ENOENT, "output.resume is \"must\", but %s has no checkpoint",
			                 dir);
	}
	r = checkpoint_output_in_use(dir, &used, err);
	if (r < 0 || !used || again)
		return r;
	if (!s->o.overwrite)
		return error_set(
		    err, -ENOTEMPTY,
		    "output.dir %s is not empty%s; choose another or set output.overwrite = true", dir,
		    s->o.resume == SAVER_RESUME_NEVER ? "" : " and has no checkpoint to resume from");
	*remove = true;
	return 0;
}

static int open_directory(struct saver *s, struct error *err)
{
	const char *dir = directory_of(s);
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
	if ((r = checkpoint_clean(dir, err)) < 0)
		return r;
	return s->resume_path ? checkpoint_state_load(s->resume_path, &s->resumed, &s->resumed_owner, err)
	                      : 0;
}

int saver_open(const struct saver_options *options, struct saver **out, struct error *err)
{
	_cleanup_(saver_freep) struct saver *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->o = *options;
	s->claimed = -1;
	s->writer = options->rank == 0;
	s->saved_step = -1;
	if (s->writer && (r = open_directory(s, err)) < 0)
		return r;
	s->history = s->resume_path ? s->resumed.log_history : json_array();
	s->tokens = s->resumed.tokens;
	if (!s->history)
		return error_oom(err);
	*out = steal_pointer(s);
	return 0;
}

void saver_free(struct saver *s)
{
	if (!s)
		return;
	closep(&s->claimed);
	if (s->flag)
		device_free(s->from.dev, s->flag);
	json_decref(s->history);
	json_decref(s->resumed_owner);
	free(s->resume_path);
	free(s->fingerprint);
	free(s);
}

const char *saver_resume_path(const struct saver *s)
{
	return s->resume_path;
}

const struct checkpoint_state *saver_resume_state(const struct saver *s)
{
	return &s->resumed;
}

int saver_attach(struct saver *s, const struct saver_contents *contents, struct error *err)
{
	s->from = *contents;
	s->fingerprint = strdup(contents->fingerprint);
	if (!s->fingerprint)
		return error_oom(err);
	s->from.fingerprint = s->fingerprint;
	s->interval = MIN(1, 0.2 * s->o.timeout_s);
	return contents->comm ? device_alloc(contents->dev, sizeof(int64_t), &s->flag, err) : 0;
}

void saver_resumed(struct saver *s, int64_t step)
{
	s->saved_step = step;
}

/* ---- rank 0 and those who wait for it ---- */

enum { FLAG_WRITTEN, FLAG_WRITING };

static int send_flag(struct saver *s, int64_t flag, struct error *err)
{
	s->flagged_at = clock_monotonic();
	return weights_broadcast(s->from.dev, s->from.comm, s->flag, &flag, sizeof(flag), err);
}

/* Before each piece that is written. */
static int send_writing(void *context, struct error *err)
{
	struct saver *s = context;

	return s->from.comm && clock_monotonic() - s->flagged_at >= s->interval
	           ? send_flag(s, FLAG_WRITING, err)
	           : 0;
}

static int wait_for_writer(struct saver *s, struct error *err)
{
	int64_t flag = s->from.comm ? FLAG_WRITING : FLAG_WRITTEN;
	int r = 0;

	while (r == 0 && flag == FLAG_WRITING)
		r = weights_broadcast(s->from.dev, s->from.comm, s->flag, &flag, sizeof(flag), err);
	return r;
}

/* ---- saving ---- */

int saver_log(struct saver *s, const struct checkpoint_log *log, struct error *err)
{
	return s->writer ? checkpoint_log_add(s->history, log, err) : 0;
}

static int save_model(struct saver *s, const char *directory, struct error *err)
{
	_cleanup_(weights_sources_free) struct weights_sources sources = {.piece = send_writing,
	                                                                  .context = s};
	struct hf_save_options o = {
	    .config = s->o.config,
	    .source = s->o.source,
	    .tokenizer = s->o.tokenizer,
	    .type = s->from.precision,
	    .bos = s->from.bos,
	    .eos = s->from.eos,
	    .pad = s->from.pad,
	    .max_shard_bytes = s->o.max_shard_bytes,
	};
	int r = weights_model_sources(&s->from.parameters, o.type, &sources, err);

	return r < 0 ? r : hf_save(directory, &o, sources.list, sources.n, err);
}

static struct checkpoint_state state_at(const struct saver *s, const struct saver_progress *at)
{
	return (struct checkpoint_state){
	    .step = at->step,
	    .steps = at->steps,
	    .epoch = at->epoch,
	    .epochs = s->o.epochs,
	    .tokens = s->tokens + at->tokens,
	    .examples = at->examples,
	    .world_size = s->o.world_size,
	    .micro_batch = s->o.micro_batch,
	    .log_steps = s->o.log_steps,
	    .eval_steps = s->o.eval_steps,
	    .save_steps = s->o.save_steps,
	    .seed = s->o.seed,
	    .fingerprint = s->from.fingerprint,
	    .precision = s->from.precision_name,
	    .log_history = s->history,
	};
}

/* trainer_state.json, and what a resume needs beyond the weights. */
static int save_state(struct saver *s, const char *directory, const struct checkpoint_state *state,
                      struct error *err)
{
	_cleanup_(weights_sources_free) struct weights_sources sources = {.piece = send_writing,
	                                                                  .context = s};
	_cleanup_free_ char *inner = str_path_join(directory, "dtrain");
	int r;

	if (!inner)
		return error_oom(err);
	if (mkdir(inner, 0777) < 0)
		return error_errno(err, -errno, "cannot make directory %s", inner);
	if ((r = checkpoint_state_save(directory, state, true, err)) < 0 ||
	    (r = weights_state_sources(&s->from.parameters, s->from.precision != DTYPE_F32 && s->from.master,
	                               &sources, err)) < 0)
		return r;
	return safetensors_write(inner, "optimizer", sources.list, sources.n, s->o.max_shard_bytes, err);
}

/* Whether what was saved may be published. After a rank has failed or the communicator was aborted, the
 * device may have gone on with partial sums, and what was saved then may be wrong. An older attempt must not
 * replace what a newer one wrote, either. */
static int may_publish(struct saver *s, struct error *err)
{
	int r = s->from.comm ? comm_check(s->from.comm, err) : 0;

	return r < 0 ? r : claim_check(&s->o.claim, err);
}

static void notify(struct saver *s, double start, const char *what)
{
	char message[4400];

	snprintf(message, sizeof(message), "saved %s in %.1f s", what, clock_monotonic() - start);
	s->o.notify(s->o.context, message);
}

static int fill_checkpoint(struct saver *s, const char *tmp, const struct checkpoint_state *state,
                           struct error *err)
{
	int r;

	if ((r = save_model(s, tmp, err)) < 0 || (r = save_state(s, tmp, state, err)) < 0)
		return r;
	return may_publish(s, err);
}

static int write_checkpoint(struct saver *s, const struct saver_progress *at, struct error *err)
{
	const char *dir = directory_of(s);
	_cleanup_free_ char *name = str_printf("checkpoint-%" PRId64, at->step), *tmp = NULL, *path = NULL;
	struct checkpoint_state state = state_at(s, at);
	double start = clock_monotonic();
	int r;

	path = name ? str_path_join(dir, name) : NULL;
	if (!path)
		return error_oom(err);
	if ((r = checkpoint_begin(dir, name, &tmp, err)) < 0 ||
	    (r = fill_checkpoint(s, tmp, &state, err)) < 0 ||
	    (r = checkpoint_publish(dir, name, tmp, err)) < 0) {
		/* The partial save is removed, so that a full disk has room again. */
		if (tmp)
			file_remove_tree(tmp, NULL);
		return r;
	}
	notify(s, start, path);
	return checkpoint_prune(dir, s->o.keep, err);
}

int64_t saver_saved_step(const struct saver *s)
{
	return s->saved_step;
}

int saver_checkpoint(struct saver *s, const struct saver_progress *at, struct error *err)
{
	int r;

	if (at->step == s->saved_step)
		return 0;
	if (!s->writer) {
		r = wait_for_writer(s, err);
	} else {
		r = write_checkpoint(s, at, err);
		if (r == 0 && s->from.comm)
			r = send_flag(s, FLAG_WRITTEN, err);
	}
	if (r == 0)
		s->saved_step = at->step;
	return r;
}

static int write_final(struct saver *s, const struct saver_progress *at, struct error *err)
{
	const char *dir = directory_of(s);
	_cleanup_free_ char *tmp = NULL, *what = str_printf("the model in %s", dir);
	struct checkpoint_state state = state_at(s, at);
	double start = clock_monotonic();
	int r;

	if (!what)
		return error_oom(err);
	if ((r = checkpoint_begin(dir, "model", &tmp, err)) < 0 || (r = save_model(s, tmp, err)) < 0 ||
	    (r = checkpoint_state_save(tmp, &state, false, err)) < 0 || (r = may_publish(s, err)) < 0 ||
	    (r = checkpoint_publish_files(dir, tmp, err)) < 0) {
		if (tmp)
			file_remove_tree(tmp, NULL);
		return r;
	}
	notify(s, start, what);
	return 0;
}

int saver_final(struct saver *s, const struct saver_progress *at, struct error *err)
{
	int r;

	if (!s->writer)
		return wait_for_writer(s, err);
	r = write_final(s, at, err);
	return r == 0 && s->from.comm ? send_flag(s, FLAG_WRITTEN, err) : r;
}
