/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the output directory of a run, finds the checkpoint to resume from, and saves checkpoints and the
 * final model in it.
 *
 * Opening, on rank 0:
 *
 *     claim_take     locks the directory; refused where another process writes there, or a newer attempt did
 *     choose         resume, start anew, remove what is there (overwrite), or refuse; changes nothing
 *     claim_mark     from here on the directory is this attempt's
 *     remove, clean  an overwritten run, and what an interrupted save has left
 *
 * Finding (saver_find), on all ranks: the newest checkpoint whose files are what was saved.
 *
 * Saving: rank 0 makes output/NAME.ATTEMPT.tmp; all ranks write there (saving.c); rank 0 renames it.
 */
#include "engine/checkpoint/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/saving.h"

#define PROBE "checkpoint-probe.tmp" /* removed as what an interrupted save has left */

struct saver {
	struct saver_options o;
	bool writer; /* rank 0 */
	int claimed; /* file descriptor of the claim on the directory, while it is held; -1: not the writer */
	char *resume_path;
	struct checkpoint_state resumed; /* its history is `history` */
	json_t *resumed_owner, *history;

	bool resumes;
	struct resume *resume;

	struct saver_contents from;
	char *fingerprint;
	struct ranks ranks;
	bool *shares;           /* of each rank: whether it finds the directory of rank 0 */
	bool gathers;           /* rank 0 writes everything */
	void *records;          /* device: what the ranks gather while they save */
	struct save_plan *plan; /* of a checkpoint */
	void *copy;             /* host: plan->bytes; NULL: not in the background */
	int64_t saved_step;     /* of the newest checkpoint, -1: none */

	/* The save that is in progress. */
	struct saving *saving; /* NULL: none */
	bool final;
	char *name, *tmp;
	double started_at;
	struct checkpoint_state state; /* its history is a copy */
	const char *listed[3];
	size_t n_listed;
};

static const char *directory_of(const struct saver *s)
{
	return s->o.claim.directory;
}

static void notify(const struct saver *s, const char *fmt, ...)
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
	int r = checkpoint_find(directory_of(s), step, &older, &older_step, err);

	if (r < 0)
		return r;
	if (!older)
		return error_set(err, why.code,
		                 "%.600s; %s has no older checkpoint (output.resume = \"never\" with "
		                 "output.overwrite = true starts again)",
		                 why.message, directory_of(s));
	notify(s, "warning: %s; resuming from the checkpoint before it", why.message);
	return 0;
}

static void forget_checkpoint(struct saver *s)
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

	while ((r = checkpoint_find(directory_of(s), before, &s->resume_path, &step, err)) == 0 &&
	       s->resume_path) {
		r = checkpoint_state_load(s->resume_path, &s->resumed, &s->resumed_owner, err);
		if (r == 0)
			return 0;
		forget_checkpoint(s);
		if ((r = skip_checkpoint(s, step, err)) < 0)
			return r;
		before = step;
	}
	return r;
}

/* Decides by resume, overwrite and the attempt what to do with the files in the directory. A later attempt
 * that finds the files of its own run (ours) resumes from them, whatever resume and overwrite say, which are
 * meant for the first attempt. *remove: the files have to be removed. */
static int choose(struct saver *s, bool ours, bool *remove, struct error *err)
{
	const char *dir = directory_of(s);
	bool again = s->o.claim.attempt > 1 && ours, used = false;
	int r;

	*remove = false;
	if (again || s->o.resume != SAVER_RESUME_NEVER) {
		r = take_newest(s, INT64_MAX, err);
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
	return checkpoint_clean(dir, err);
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
	s->resumes = s->resume_path != NULL;
	*out = steal_pointer(s);
	return 0;
}

static void end_saving(struct saver *s)
{
	saving_free(s->saving);
	s->saving = NULL;
	json_decref(s->state.log_history);
	s->state.log_history = NULL;
	/* The partial save is removed, so that a full disk has room again; what is published is not there. */
	if (s->writer && s->tmp)
		file_remove_tree(s->tmp, NULL);
	free(s->tmp);
	free(s->name);
	s->tmp = s->name = NULL;
}

void saver_free(struct saver *s)
{
	if (!s)
		return;
	end_saving(s);
	save_plan_free(s->plan);
	resume_close(s->resume);
	closep(&s->claimed);
	if (s->records)
		device_free(s->from.dev, s->records);
	json_decref(s->history);
	forget_checkpoint(s);
	free(s->copy);
	free(s->shares);
	free(s->fingerprint);
	free(s);
}

/* ---- resuming ---- */

/* Rank 0 tells the others which checkpoint it has found: its step, or -1. */
static int share_found(struct saver *s, const struct ranks *ranks, struct error *err)
{
	struct {
		int64_t step, tokens, examples;
		struct loss_scaler loss_scaler;
	} found = {s->resume_path ? s->resumed.step : -1, s->resumed.tokens, s->resumed.examples,
	           s->resumed.loss_scaler};
	int r = ranks_broadcast(ranks, NULL, &found, sizeof(found), 0, err);

	s->resumes = found.step >= 0;
	s->resumed.step = MAX(found.step, 0);
	s->resumed.tokens = found.tokens;
	s->resumed.examples = found.examples;
	s->resumed.loss_scaler = found.loss_scaler;
	return r;
}

int saver_find(struct saver *s, struct device *dev, struct comm *comm, struct error *err)
{
	struct ranks ranks = {dev, comm, s->o.node};
	bool unusable, broken;
	int r;

	while ((r = share_found(s, &ranks, err)) == 0 && s->resumes) {
		_cleanup_free_ char *path =
		    str_printf("%s/checkpoint-%" PRId64, directory_of(s), s->resumed.step);
		int64_t step = s->resumed.step;

		if (!path)
			return error_oom(err);
		r = resume_open(&ranks, path, &s->resume, &unusable, err);
		if (r == 0 || !unusable)
			break;
		r = 0;
		if (s->writer) {
			forget_checkpoint(s);
			if ((r = skip_checkpoint(s, step, err)) == 0)
				r = take_newest(s, step, err);
		}
		if ((r = ranks_agree(&ranks, r, &broken, err)) < 0)
			break;
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

/* ---- who writes what ---- */

/* Whether a rank finds what rank 0 has put into the directory. */
static bool finds_probe(const struct saver *s, uint64_t token)
{
	_cleanup_free_ char *path = str_path_join(directory_of(s), PROBE), *text = NULL;
	size_t len;
	uint64_t found = 0;

	if (!path || file_read(path, sizeof(found), &text, &len, NULL) < 0 || len != sizeof(found))
		return false;
	memcpy(&found, text, len);
	return found == token;
}

/* Which ranks find the directory of rank 0: all, or those on its node. */
static int find_shares(struct saver *s, struct error *err)
{
	double now = clock_realtime();
	uint64_t token = hash_bytes(&now, sizeof(now), (uint64_t)getpid());
	_cleanup_free_ char *path = str_path_join(directory_of(s), PROBE);
	int n = ranks_size(&s->ranks), r = 0;
	_cleanup_free_ int32_t *found = calloc((size_t)n, sizeof(*found));
	bool broken;

	s->shares = calloc((size_t)n, sizeof(*s->shares));
	if (!path || !found || !s->shares)
		return error_oom(err);
	if (s->writer)
		r = file_write_atomic(path, &token, sizeof(token), 0644, err);
	if ((r = ranks_agree(&s->ranks, r, &broken, err)) < 0 ||
	    (r = ranks_broadcast(&s->ranks, NULL, &token, sizeof(token), 0, err)) < 0)
		return r;
	found[s->o.rank] = s->writer || finds_probe(s, token);
	r = ranks_gather(&s->ranks, NULL, found, sizeof(*found), err);
	if (s->writer)
		unlink(path);
	for (int i = 0; i < n; i++)
		s->shares[i] = found[i] != 0;
	return r;
}

/* Each part of the state has to be held by a rank that finds the directory, or gathered. */
static int check_shares(struct saver *s, struct error *err)
{
	int n = ranks_size(&s->ranks), degree = save_plan_degree(&s->from.parameters, n);

	for (int first = 0; first < degree; first++) {
		bool some = false;

		for (int i = first; i < n; i += degree)
			some = some || s->shares[i];
		s->gathers = s->gathers || !some;
		if (!some && !s->o.gather)
			return error_set(err, -EINVAL,
			                 "rank %d does not find what rank 0 writes to output.dir %s, and "
			                 "holds a part of the model that no other rank holds; expected a "
			                 "directory that all nodes share, or output.gather = true",
			                 first, directory_of(s));
	}
	return 0;
}

static struct save_plan_options plan_options(const struct saver *s, bool state)
{
	return (struct save_plan_options){.rank = s->o.rank,
	                                  .world_size = ranks_size(&s->ranks),
	                                  .shares = s->shares,
	                                  .gathers = s->gathers,
	                                  .type = s->from.precision,
	                                  .state = state,
	                                  .master = s->from.precision != DTYPE_F32 && s->from.master,
	                                  .max_shard_bytes = s->o.max_shard_bytes};
}

static int plan_checkpoints(struct saver *s, struct error *err)
{
	struct save_plan_options o = plan_options(s, true);
	int r = save_plan_create(&s->from.parameters, &o, &s->plan, err);

	if (r < 0 || !s->o.background || s->gathers || s->o.save_steps == 0)
		return r;
	s->copy = malloc(s->plan->bytes + 1);
	if (!s->copy)
		return error_oom(err);
	/* The first checkpoint is not to wait for the kernel to find the pages. Zeros would be calloc's,
	 * which touches none. */
	memset(s->copy, 0xff, s->plan->bytes + 1);
	return 0;
}

int saver_attach(struct saver *s, const struct saver_contents *contents, struct error *err)
{
	int r;

	s->from = *contents;
	s->ranks = (struct ranks){contents->dev, contents->comm, s->o.node};
	s->fingerprint = strdup(contents->fingerprint);
	s->history =
	    json_is_array(s->resumed.log_history) ? json_incref(s->resumed.log_history) : json_array();
	if (!s->fingerprint || !s->history)
		return error_oom(err);
	s->from.fingerprint = s->fingerprint;
	if (contents->comm &&
	    ((r = device_alloc(contents->dev, (size_t)ranks_size(&s->ranks) * sizeof(struct saving_record),
	                       &s->records, err)) < 0 ||
	     (r = find_shares(s, err)) < 0 || (r = check_shares(s, err)) < 0))
		return r;
	return plan_checkpoints(s, err);
}

void saver_resumed(struct saver *s, int64_t step)
{
	s->saved_step = step;
}

/* ---- saving ---- */

int saver_log(struct saver *s, const struct checkpoint_log *log, struct error *err)
{
	return s->writer ? checkpoint_log_add(s->history, log, err) : 0;
}

static struct checkpoint_state state_at(const struct saver *s, const struct saver_progress *at)
{
	return (struct checkpoint_state){
	    .step = at->step,
	    .steps = at->steps,
	    .epoch = at->epoch,
	    .epochs = s->o.epochs,
	    .tokens = s->resumed.tokens + at->tokens,
	    .examples = at->examples,
	    .world_size = s->o.world_size,
	    .micro_batch = s->o.micro_batch,
	    .log_steps = s->o.log_steps,
	    .eval_steps = s->o.eval_steps,
	    .save_steps = s->o.save_steps,
	    .seed = s->o.seed,
	    .fingerprint = s->from.fingerprint,
	    .precision = s->from.precision_name,
	    .strategy = s->from.strategy,
	    .optimizer = s->from.optimizer,
	    .loss_scaler = at->loss_scaler ? *at->loss_scaler : (struct loss_scaler){.scale = 0},
	    .log_history = json_deep_copy(s->history),
	};
}

/* What is there besides the parameters. */
static int save_files(void *context, struct error *err)
{
	struct saver *s = context;
	struct hf_save_options o = {
	    .config = s->o.config,
	    .source = s->o.source,
	    .tokenizer = s->o.tokenizer,
	    .type = s->from.precision,
	    .bos = s->from.bos,
	    .eos = s->from.eos,
	    .pad = s->from.pad,
	};
	int r = hf_save_files(s->tmp, &o, err);

	return r < 0 ? r : checkpoint_state_save(s->tmp, &s->state, !s->final, err);
}

static int write_index(const struct saver *s, const struct manifest_index *index, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(s->tmp, MANIFEST_INDEX);
	_cleanup_free_ char *text = manifest_index_text(index);

	return path && text ? file_write_atomic(path, text, strlen(text), 0644, err) : error_oom(err);
}

/* An older attempt must not replace what a newer one wrote. */
static int publish(void *context, const struct manifest_index *index, struct error *err)
{
	struct saver *s = context;
	const char *dir = directory_of(s);
	int r;

	if ((index && (r = write_index(s, index, err)) < 0) || (r = claim_check(&s->o.claim, err)) < 0)
		return r;
	if (s->final)
		return checkpoint_publish_files(dir, s->tmp, err);
	r = checkpoint_publish(dir, s->name, s->tmp, err);
	return r < 0 ? r : checkpoint_prune(dir, s->o.keep, s->state.step, err);
}

/* Makes the directory, which the others find once this has returned on rank 0. */
static int make_directory(struct saver *s, struct error *err)
{
	_cleanup_free_ char *inner = str_path_join(s->tmp, "dtrain");
	int r = inner ? checkpoint_begin(s->tmp, err) : error_oom(err);

	if (r < 0 || s->final)
		return r;
	return mkdir(inner, 0777) < 0 ? error_errno(err, -errno, "cannot make directory %s", inner) : 0;
}

static void list_files(struct saver *s, const struct save_plan *plan)
{
	s->n_listed = 0;
	if (s->final)
		return;
	s->listed[s->n_listed++] = "trainer_state.json";
	s->listed[s->n_listed++] = "dtrain/state.json";
	if (plan->model.index)
		s->listed[s->n_listed++] = "model.safetensors.index.json";
}

static int start(struct saver *s, const struct save_plan *plan, const struct saver_progress *at,
                 struct error *err)
{
	struct saving_job job = {.ranks = s->ranks,
	                         .staging = s->records,
	                         .timeout_s = s->o.timeout_s,
	                         .interval_s = MIN(1, 0.2 * s->o.timeout_s),
	                         .plan = plan,
	                         .access = &s->from.parameters,
	                         .copy = s->final ? NULL : s->copy,
	                         .files = save_files,
	                         .listed = s->listed,
	                         .publish = publish,
	                         .context = s};
	bool broken;
	int r;

	s->started_at = clock_monotonic();
	s->name = s->final ? strdup("model") : str_printf("checkpoint-%" PRId64, at->step);
	s->tmp = s->name ? checkpoint_tmp(directory_of(s), s->name, s->o.claim.attempt) : NULL;
	s->state = state_at(s, at);
	if (!s->tmp || !s->state.log_history)
		return error_oom(err);
	list_files(s, plan);
	job.n_listed = s->n_listed;
	job.directory = s->tmp;
	r = s->writer ? make_directory(s, err) : 0;
	if ((r = ranks_agree(&s->ranks, r, &broken, err)) < 0)
		return r;
	return saving_start(&job, &s->saving, err);
}

int saver_poll(struct saver *s, struct error *err)
{
	bool ended;
	int r;

	if (!s->saving)
		return 0;
	r = saving_poll(s->saving, &ended, err);
	if (r == 0 && !ended)
		return 0;
	if (r == 0 && !s->final)
		s->saved_step = s->state.step;
	if (r == 0 && s->writer)
		notify(s, "saved %s%s%s in %.1f s", s->final ? "the model in " : directory_of(s),
		       s->final ? "" : "/", s->final ? directory_of(s) : s->name,
		       clock_monotonic() - s->started_at);
	end_saving(s);
	return r;
}

int saver_wait(struct saver *s, struct error *err)
{
	struct timespec pause = {.tv_nsec = 5000000};
	int r;

	while ((r = saver_poll(s, err)) == 0 && s->saving)
		nanosleep(&pause, NULL);
	return r;
}

int saver_checkpoint(struct saver *s, const struct saver_progress *at, struct error *err)
{
	int r;

	if (at->step == s->saved_step || (s->saving && at->step == s->state.step))
		return 0;
	if ((r = saver_wait(s, err)) < 0)
		return r;
	s->final = false;
	if ((r = start(s, s->plan, at, err)) < 0)
		end_saving(s);
	return r < 0 || s->copy ? r : saver_wait(s, err);
}

int saver_final(struct saver *s, const struct saver_progress *at, struct error *err)
{
	_cleanup_(save_plan_freep) struct save_plan *plan = NULL;
	struct save_plan_options o = plan_options(s, false);
	int r;

	if ((r = saver_wait(s, err)) < 0 || (r = save_plan_create(&s->from.parameters, &o, &plan, err)) < 0)
		return r;
	s->final = true;
	r = start(s, plan, at, err);
	if (r == 0)
		r = saver_wait(s, err);
	end_saving(s);
	return r;
}

int64_t saver_saved_step(const struct saver *s)
{
	return s->saved_step;
}
