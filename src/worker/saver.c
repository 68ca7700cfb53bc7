/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/claim.h"
#include "worker/options.h"
#include "worker/precision.h"
#include "worker/weights.h"

struct saver {
	const struct run_config *c;
	bool writer; /* rank 0 */
	struct claim claim;
	int claimed; /* output.dir, while it is open; -1: not the writer */
	int world_size;
	char *resume_path;
	struct checkpoint_state resumed; /* its history is `history` */
	json_t *resumed_owner, *history;

	struct device *dev;
	struct comm *comm;
	void *word;      /* device: what rank 0 says while it writes */
	double said;     /* when it last did */
	double interval; /* seconds between two words */
	struct trainer *trainer;
	const struct tokenizer *tok;
	enum dtype precision;
	char *fingerprint, *config, *tokenizer;
	int64_t tokens;     /* of earlier attempts */
	int64_t saved_step; /* of the newest checkpoint, -1: none */
};

/* What may be done with what is there, by output.resume, output.overwrite and the attempt: a later attempt
 * that finds its own run's files (ours) goes on, whatever they say about the first one. */
static int choose(struct saver *s, const struct environment *env, bool ours, struct error *err)
{
	const char *dir = s->c->output.dir, *resume = s->c->output.resume;
	bool again = env->attempt > 1 && ours, used = false;
	int64_t step;
	int r;

	if (again || strcmp(resume, "never") != 0) {
		r = checkpoint_find(dir, &s->resume_path, &step, err);
		if (r < 0 || s->resume_path)
			return r;
		if (!again && !strcmp(resume, "must"))
			return error_set(err, -ENOENT, "output.resume is \"must\", but %s has no checkpoint",
			                 dir);
	}
	r = checkpoint_output_in_use(dir, &used, err);
	if (r < 0 || !used || again)
		return r;
	if (!s->c->output.overwrite)
		return error_set(
		    err, -ENOTEMPTY,
		    "output.dir %s is not empty%s; choose another or set output.overwrite = true", dir,
		    strcmp(resume, "never") ? " and has no checkpoint to resume from" : "");
	return checkpoint_remove_all(dir, err);
}

int saver_open(const struct run_config *c, const struct environment *env, struct saver **out,
               struct error *err)
{
	_cleanup_(saver_freep) struct saver *s = calloc(1, sizeof(*s));
	bool ours = false;
	int r;

	if (!s)
		return error_oom(err);
	s->c = c;
	s->claim = (struct claim){c->output.dir, env->run_id, env->attempt, env->cluster, env->epoch};
	s->claimed = -1;
	s->writer = env->rank == 0;
	s->world_size = env->world_size;
	s->saved_step = -1;
	if (s->writer) {
		r = file_mkdirs(c->output.dir, 0777, err);
		if (r < 0)
			return error_prefix(err, "output.dir");
		if (access(c->output.dir, W_OK | X_OK) < 0)
			return error_errno(err, -errno, "output.dir %s cannot be written", c->output.dir);
		r = claim_take(&s->claim, &s->claimed, &ours, err);
		if (r == 0)
			r = choose(s, env, ours, err);
		if (r == 0)
			r = claim_mark(&s->claim, s->claimed, err);
		/* Only then: what is refused is left as it is. */
		if (r == 0)
			r = checkpoint_clean(c->output.dir, err);
		if (r == 0 && s->resume_path)
			r = checkpoint_state_load(s->resume_path, &s->resumed, &s->resumed_owner, err);
		if (r < 0)
			return r;
	}
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
	if (s->word)
		device_free(s->dev, s->word);
	json_decref(s->history);
	json_decref(s->resumed_owner);
	free(s->resume_path);
	free(s->fingerprint);
	free(s->config);
	free(s->tokenizer);
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

int saver_attach(struct saver *s, struct device *dev, struct comm *comm, struct trainer *t,
                 const struct tokenizer *tok, enum dtype precision, const char *fingerprint,
                 struct error *err)
{
	int r = comm ? device_alloc(dev, sizeof(int64_t), &s->word, err) : 0;

	if (r < 0)
		return r;
	s->dev = dev;
	s->comm = comm;
	s->interval = MIN(1, 0.2 * (double)s->c->parallel.timeout);
	s->trainer = t;
	s->tok = tok;
	s->precision = precision;
	s->fingerprint = strdup(fingerprint);
	s->config = options_config(s->c);
	s->tokenizer = options_tokenizer(s->c);
	return s->fingerprint && s->config && s->tokenizer ? 0 : error_oom(err);
}

void saver_resumed(struct saver *s, int64_t step)
{
	s->saved_step = step;
}

/* ---- rank 0 and those who wait for it ---- */

enum { WORD_WRITTEN, WORD_WRITING };

static int say(struct saver *s, int64_t word, struct error *err)
{
	s->said = clock_monotonic();
	return weights_broadcast(s->dev, s->comm, s->word, &word, sizeof(word), err);
}

static int say_writing(void *context, struct error *err)
{
	struct saver *s = context;

	return s->comm && clock_monotonic() - s->said >= s->interval ? say(s, WORD_WRITING, err) : 0;
}

static int wait_for_writer(struct saver *s, struct error *err)
{
	int64_t word = s->comm ? WORD_WRITING : WORD_WRITTEN;
	int r = 0;

	while (r == 0 && word == WORD_WRITING)
		r = weights_broadcast(s->dev, s->comm, s->word, &word, sizeof(word), err);
	return r;
}

/* ---- saving ---- */

int saver_log(struct saver *s, const struct train_log *log, struct error *err)
{
	if (!s->writer)
		return 0;
	return checkpoint_log_add(s->history,
	                          &(struct checkpoint_log){.step = log->step,
	                                                   .epoch = log->epoch,
	                                                   .loss = log->loss,
	                                                   .learning_rate = log->learning_rate,
	                                                   .grad_norm = log->grad_norm,
	                                                   .eval_loss = log->has_eval ? log->eval_loss : NAN},
	                          err);
}

static int save_model(struct saver *s, const char *directory, struct error *err)
{
	_cleanup_(weights_sources_free) struct weights_sources sources = {.piece = say_writing, .context = s};
	const struct run_config *c = s->c;
	struct hf_save_options o = {
	    .config = s->config,
	    .source = c->model.path,
	    .tokenizer = s->tokenizer,
	    .type = s->precision,
	    .bos = tokenizer_bos(s->tok),
	    .eos = tokenizer_eos(s->tok),
	    .pad = tokenizer_pad(s->tok),
	    .max_shard_bytes = (uint64_t)c->output.max_shard_mb * 1000000,
	};
	int r = weights_model_sources(s->trainer, o.type, &sources, err);

	return r < 0 ? r : hf_save(directory, &o, sources.list, sources.n, err);
}

static int save_state(struct saver *s, const char *directory, int64_t step, bool resume, struct error *err)
{
	_cleanup_(weights_sources_free) struct weights_sources sources = {.piece = say_writing, .context = s};
	_cleanup_free_ char *inner = str_path_join(directory, "dtrain");
	const struct run_config *c = s->c;
	int64_t per_epoch = trainer_steps_per_epoch(s->trainer);
	struct checkpoint_state state = {
	    .step = step,
	    .steps = trainer_total_steps(s->trainer),
	    .epoch = per_epoch > 0 ? (double)step / per_epoch : 0,
	    .epochs = c->train.epochs,
	    .tokens = s->tokens + trainer_tokens(s->trainer),
	    .world_size = s->world_size,
	    .micro_batch = c->train.micro_batch,
	    .log_steps = c->output.log_steps,
	    .eval_steps = c->train.eval_steps,
	    .save_steps = c->output.save_steps,
	    .seed = c->train.seed,
	    .fingerprint = s->fingerprint,
	    .precision = precision_name(s->precision),
	    .log_history = s->history,
	};
	int r;

	if (!inner)
		return error_oom(err);
	if (!resume)
		return checkpoint_state_save(directory, &state, false, err);
	if (mkdir(inner, 0777) < 0)
		return error_errno(err, -errno, "cannot make directory %s", inner);
	r = checkpoint_state_save(directory, &state, true, err);
	if (r == 0)
		r = weights_state_sources(
		    s->trainer, s->precision != DTYPE_F32 && !str_eq(c->train.master, "none"), &sources, err);
	return r < 0 ? r
	             : safetensors_write(inner, "optimizer", sources.list, sources.n,
	                                 (uint64_t)c->output.max_shard_mb * 1000000, err);
}

/* A rank that has failed, or a communicator that was aborted, may have let the device go on with partial
 * sums: what was saved in that time is not to be trusted. Nor may an older attempt replace what a newer one
 * wrote. */
static int may_publish(struct saver *s, struct error *err)
{
	int r = s->comm ? comm_check(s->comm, err) : 0;

	return r < 0 ? r : claim_check(&s->claim, err);
}

static int write_checkpoint(struct saver *s, int64_t step, struct error *err)
{
	const char *dir = s->c->output.dir;
	_cleanup_free_ char *name = str_printf("checkpoint-%" PRId64, step), *tmp = NULL;
	double start = clock_monotonic();
	int r;

	if (!name)
		return error_oom(err);
	r = checkpoint_begin(dir, name, &tmp, err);
	if (r == 0)
		r = save_model(s, tmp, err);
	if (r == 0)
		r = save_state(s, tmp, step, true, err);
	if (r == 0)
		r = may_publish(s, err);
	if (r == 0)
		r = checkpoint_publish(dir, name, tmp, err);
	if (r < 0) {
		/* A full disk has room again for the user to look around. */
		if (tmp)
			file_remove_tree(tmp, NULL);
		return r;
	}
	printf("saved %s/%s in %.1f s\n", dir, name, clock_monotonic() - start);
	return checkpoint_prune(dir, s->c->output.keep, err);
}

int64_t saver_saved_step(const struct saver *s)
{
	return s->saved_step;
}

int saver_checkpoint(struct saver *s, int64_t step, struct error *err)
{
	int r;

	if (step == s->saved_step)
		return 0;
	if (!s->writer) {
		r = wait_for_writer(s, err);
	} else {
		r = write_checkpoint(s, step, err);
		if (r == 0 && s->comm)
			r = say(s, WORD_WRITTEN, err);
	}
	if (r == 0)
		s->saved_step = step;
	return r;
}

static int write_final(struct saver *s, struct error *err)
{
	const char *dir = s->c->output.dir;
	_cleanup_free_ char *tmp = NULL;
	double start = clock_monotonic();
	int r;

	r = checkpoint_begin(dir, "model", &tmp, err);
	if (r == 0)
		r = save_model(s, tmp, err);
	if (r == 0)
		r = save_state(s, tmp, trainer_step(s->trainer), false, err);
	if (r == 0)
		r = may_publish(s, err);
	if (r == 0)
		r = checkpoint_publish_files(dir, tmp, err);
	if (r < 0) {
		if (tmp)
			file_remove_tree(tmp, NULL);
		return r;
	}
	printf("saved the model in %s in %.1f s\n", dir, clock_monotonic() - start);
	return 0;
}

int saver_final(struct saver *s, struct error *err)
{
	int r;

	if (!s->writer)
		return wait_for_writer(s, err);
	r = write_final(s, err);
	return r == 0 && s->comm ? say(s, WORD_WRITTEN, err) : r;
}
