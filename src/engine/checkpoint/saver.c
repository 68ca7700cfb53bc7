/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves checkpoints and the final model in the output directory of a run. (How that directory is opened, and
 * a checkpoint in it found, is in saver_find.c.)
 *
 * Rank 0 makes output/NAME.ATTEMPT.tmp; all ranks write there (saving.c); rank 0 renames it. Where ranks do
 * not find that directory, one of each other does the same for those that find its own.
 */
#include "engine/checkpoint/saver_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

int saver_open(const struct saver_options *options, struct saver **out, struct error *err)
{
	_cleanup_(saver_freep) struct saver *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->o = *options;
	s->claimed = -1;
	s->writer = s->publishes = options->rank == 0;
	s->looks = options->rank == 0;
	s->found = -1;
	s->saved_step = -1;
	if (s->writer && (r = saver_open_directory(s, err)) < 0)
		return r;
	s->resumes = s->resume_path != NULL;
	s->found = s->resumes ? s->resumed.step : -1;
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
	if (s->publishes && s->tmp)
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
	saver_forget_checkpoint(s);
	safetensors_close(s->whole);
	free(s->copy);
	free(s->shares);
	places_free(&s->places);
	free(s->fingerprint);
	free(s);
}

/* ---- who writes what ---- */

static int list_shares(struct saver *s, struct error *err)
{
	s->shares = calloc((size_t)s->places.n, sizeof(*s->shares));
	if (!s->shares)
		return error_oom(err);
	for (int i = 0; i < s->places.n; i++)
		s->shares[i] = s->places.writer[i] == 0;
	return 0;
}

/* Each part of the state has to be held by a rank that finds the directory of rank 0; or all ranks write to
 * directories of their nodes; or rank 0 gathers what the others hold. */
static int check_shares(struct saver *s, struct error *err)
{
	int n = ranks_size(&s->ranks), degree = save_plan_degree(&s->from.parameters, n), homeless = -1;
	bool whole = true;

	for (int first = 0; first < degree; first++) {
		bool some = false;

		for (int i = first; i < n; i += degree)
			some = some || s->shares[i];
		whole = whole && some;
	}
	for (int i = 0; i < n && homeless < 0; i++)
		homeless = s->places.writer[i] < 0 ? i : -1;
	s->gathers = !whole && s->o.gather;
	s->local = !whole && !s->o.gather;
	if (!s->local || homeless < 0)
		return 0;
	return error_set(err, -EINVAL,
	                 "rank %d holds a part of the model, does not find what rank 0 writes to output.dir "
	                 "%s, and cannot write to a directory of that name itself; expected a directory that "
	                 "all nodes share, one on each node, or output.gather = true",
	                 homeless, saver_directory(s));
}

static struct save_plan_options plan_options(const struct saver *s, bool state)
{
	return (struct save_plan_options){.rank = s->o.rank,
	                                  .world_size = ranks_size(&s->ranks),
	                                  .shares = s->shares,
	                                  .gathers = s->gathers,
	                                  .gathers_model = s->local,
	                                  .type = s->from.precision,
	                                  .state = state,
	                                  .master = s->from.precision != DTYPE_F32 && s->from.master,
	                                  .max_shard_bytes = s->o.max_shard_bytes,
	                                  .whole = s->whole};
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
	     (r = saver_open_places(s, &s->ranks, err)) < 0 || (r = list_shares(s, err)) < 0 ||
	     (r = check_shares(s, err)) < 0))
		return r;
	if (s->writer && save_plan_needs_whole(&s->from.parameters) &&
	    (r = safetensors_open(s->o.source, &s->whole, err)) < 0)
		return r;
	return plan_checkpoints(s, err);
}

int saver_write_beside(struct saver *s, const char *name, const char *text, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(saver_directory(s), name);
	int r;

	if (!path)
		return error_oom(err);
	if (!s->publishes)
		return 0;
	r = claim_check(&s->o.claim, s->claimed, err);
	return r < 0 ? r : file_write_atomic(path, text, strlen(text), 0666, err);
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

/* What is there besides the parameters; on other nodes that by which a run that starts there finds the
 * checkpoint. */
static int save_files(void *context, struct error *err)
{
	struct saver *s = context;
	struct hf_save_options o = {
	    .config = s->o.config,
	    .source = s->o.source,
	    .tokenizer = s->o.tokenizer,
	    .chat_template = s->from.chat_template,
	    .adapter = s->from.adapter,
	    .scores = s->from.scores,
	    .type = s->from.precision,
	    .bos = s->from.bos,
	    .eos = s->from.eos,
	    .pad = s->from.pad,
	    .stops = s->from.stops,
	    .n_stops = s->from.n_stops,
	};
	int r;

	if (!s->writer)
		return checkpoint_resume_state_save(s->tmp, &s->state, err);
	r = hf_save_files(s->tmp, &o, err);
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
	const char *dir = saver_directory(s);
	int r;

	if ((index && (r = write_index(s, index, err)) < 0) ||
	    (r = claim_check(&s->o.claim, s->claimed, err)) < 0)
		return r;
	if (s->final)
		return checkpoint_publish_files(dir, s->tmp, err);
	r = checkpoint_publish(dir, s->name, s->tmp, err);
	/* Until rank 0 has published, too, the checkpoints before this one are the newest: see saver_poll. */
	return r < 0 || !s->writer ? r : checkpoint_prune(dir, s->o.keep, s->state.step, err);
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
	bool publishes = s->writer || (s->publishes && !s->final);
	struct saving_job job = {.ranks = s->ranks,
	                         .staging = s->records,
	                         .timeout_s = s->o.timeout_s,
	                         .interval_s = MIN(1, 0.2 * s->o.timeout_s),
	                         .plan = plan,
	                         .access = &s->from.parameters,
	                         .copy = s->final ? NULL : s->copy,
	                         .files = publishes ? save_files : NULL,
	                         .listed = s->listed,
	                         .publish = publishes ? publish : NULL,
	                         .context = s};
	bool broken;
	int r;

	s->started_at = clock_monotonic();
	s->name = s->final ? strdup("model") : str_printf("checkpoint-%" PRId64, at->step);
	s->tmp = s->name ? checkpoint_tmp(saver_directory(s), s->name, s->o.claim.attempt) : NULL;
	s->state = state_at(s, at);
	if (!s->tmp || !s->state.log_history)
		return error_oom(err);
	list_files(s, plan);
	job.n_listed = s->n_listed;
	job.directory = s->tmp;
	r = publishes ? make_directory(s, err) : 0;
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
	if (r == 0 && s->publishes && !s->writer && !s->final)
		checkpoint_prune(saver_directory(s), s->o.keep, s->state.step, NULL);
	if (r == 0 && s->writer)
		saver_notify(s, "saved %s%s%s in %.1f s", s->final ? "the model in " : saver_directory(s),
		             s->final ? "" : "/", s->final ? saver_directory(s) : s->name,
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
