/* SPDX-License-Identifier: Apache-2.0 */
/* Training, from the config to the final model. Errors of files and settings come before the ranks meet. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/metrics.h"
#include "engine/train/parameters.h"
#include "worker/options.h"
#include "worker/saver.h"
#include "worker/stop.h"
#include "worker/tasks.h"
#include "worker/weights.h"

DEFINE_CLEANUP(struct device *, device_destroy)
DEFINE_CLEANUP(struct comm *, comm_destroy)

struct training {
	const struct run_config *c;
	const struct environment *env;
	struct link *link;

	struct train_options options;
	struct model_config model;
	struct device *dev;
	struct tokenizer *tok;
	struct dataset *data, *eval;
	struct comm *comm;
	struct trainer *trainer;
	struct saver *saver;
	struct metrics *metrics;
	int64_t tokens_before; /* of the run's earlier attempts */
	double told;           /* when the progress of the preparation was last printed */
};

static void training_free(struct training *t)
{
	metrics_closep(&t->metrics);
	/* Before the memory that it may still be writing to. */
	comm_destroyp(&t->comm);
	trainer_freep(&t->trainer);
	dataset_closep(&t->eval);
	dataset_closep(&t->data);
	tokenizer_freep(&t->tok);
	saver_freep(&t->saver);
	device_destroyp(&t->dev);
}

static bool first_rank(const struct training *t)
{
	return t->env->rank == 0;
}

/* ---- preparation ---- */

static void tell_progress(void *context, const char *what, int64_t done, int64_t total)
{
	struct training *t = context;
	double now = clock_monotonic();

	if (!first_rank(t) || now - t->told < 5)
		return;
	t->told = now;
	if (total > 0)
		printf("%s: %" PRId64 " of %" PRId64 "\n", what, done, total);
	else
		printf("%s\n", what);
}

static void tell_warning(void *context, const char *message)
{
	if (first_rank(context))
		printf("warning: %s\n", message);
}

static int open_device(struct training *t, struct error *err)
{
	struct device_options o = {.index = t->env->device,
	                           .threads = t->c->resources.threads,
	                           .attention = options_attention(t->c)};
	int r = device_create(&o, &t->dev, err);

	if (r < 0)
		return r;
	printf("rank %d of %d on %s\n", t->env->rank, t->env->world_size, device_describe(t->dev));
	if (!device_supports(t->dev, t->options.precision) && first_rank(t))
		printf("warning: %s is slow on this device\n", t->c->train.precision);
	return 0;
}

/* Nothing has to fail for a document that is longer than the model has seen: but its user should know. */
static void warn_of_length(const struct training *t)
{
	if (first_rank(t) && t->c->data.max_length > t->model.max_positions)
		printf("warning: data.max_length is %" PRId64
		       ", but the model's max_position_embeddings is %" PRId64 "\n",
		       t->c->data.max_length, t->model.max_positions);
}

static int open_data(struct training *t, struct error *err)
{
	_cleanup_free_ char *tokenizer = options_tokenizer(t->c), *cache = NULL;
	struct dataset_options o;
	int r;

	cache =
	    t->c->data.cache_dir ? strdup(t->c->data.cache_dir) : str_path_join(t->c->output.dir, "cache");
	if (!tokenizer || !cache)
		return error_oom(err);
	r = tokenizer_load(tokenizer, &t->tok, err);
	if (r < 0)
		return r;
	if (tokenizer_vocab_size(t->tok) > t->model.vocab)
		return error_set(
		    err, -EINVAL,
		    "the tokenizer in %s has ids up to %d, but the model's vocab_size is %" PRId64
		    "; a vocab_size of at least %d would be right",
		    tokenizer, tokenizer_vocab_size(t->tok) - 1, t->model.vocab,
		    tokenizer_vocab_size(t->tok));
	warn_of_length(t);
	options_dataset(t->c, cache, &o);
	o.progress = tell_progress;
	o.warn = tell_warning;
	o.progress_context = o.warn_context = t;
	r = dataset_open(&o, t->tok, &t->data, &t->eval, err);
	if (r == 0 && !t->eval && t->c->data.eval_fraction > 0 && first_rank(t))
		printf("warning: the part held back by data.eval_fraction makes no row: nothing is "
		       "evaluated\n");
	if (r == 0 && first_rank(t))
		printf("data: %" PRId64 " examples in %" PRId64 " rows, %" PRId64 " tokens%s\n",
		       dataset_examples(t->data), dataset_rows(t->data), dataset_tokens(t->data),
		       t->eval ? ", a part held back" : "");
	return r;
}

static int meet(struct training *t, struct error *err)
{
	struct comm_options o = {
	    .rank = t->env->rank,
	    .world_size = t->env->world_size,
	    .timeout_s = t->c->parallel.timeout,
	    .rendezvous = link_rendezvous(t->link),
	    .group = "world",
	    .stopping = stop_requested,
	};
	int r;

	if (o.world_size == 1)
		return 0;
	r = comm_create(t->dev, &o, &t->comm, err);
	if (r == 0 && first_rank(t))
		printf("%d ranks over %s\n", o.world_size, comm_describe(t->comm));
	return r;
}

/* Bytes of rank 0 to all. */
static int share(struct training *t, void *host, size_t bytes, struct error *err)
{
	void *staging;
	int r;

	if (!t->comm)
		return 0;
	r = device_alloc(t->dev, bytes, &staging, err);
	if (r < 0)
		return r;
	r = weights_broadcast(t->dev, t->comm, staging, host, bytes, err);
	device_free(t->dev, staging);
	return r;
}

static uint64_t digest_rows(uint64_t h, const struct dataset *data)
{
	for (int64_t i = 0; data && i < dataset_rows(data); i++)
		h = (h ^ (uint64_t)dataset_row_counted(data, i)) * 0x100000001b3u;
	return h;
}

/* Each rank reads the model's config and the data where it runs. Where they differ, every rank would count
 * other targets and take other rows, and nothing would show it. */
static int check_agreement(struct training *t, struct error *err)
{
	struct {
		int64_t vocab, hidden, layers, heads, parameters;
		int64_t rows, tokens, max_row, held_back;
		uint64_t digest;
	} own = {.vocab = t->model.vocab,
	         .hidden = t->model.hidden,
	         .layers = t->model.layers,
	         .heads = t->model.heads,
	         .parameters = model_config_parameters(&t->model),
	         .rows = dataset_rows(t->data),
	         .tokens = dataset_tokens(t->data),
	         .max_row = dataset_max_row(t->data),
	         .held_back = t->eval ? dataset_rows(t->eval) : 0,
	         .digest = digest_rows(digest_rows(0xcbf29ce484222325u, t->data), t->eval)},
	  first = own;
	int r = share(t, &first, sizeof(first), err);

	if (r < 0 || !memcmp(&own, &first, sizeof(own)))
		return r;
	if (memcmp(&own, &first, offsetof(typeof(own), rows)))
		return error_set(err, -EINVAL,
		                 "the model differs between the nodes: %" PRId64 " parameters on rank %d, "
		                 "%" PRId64 " on rank 0; the same config.json on all would be right",
		                 own.parameters, t->env->rank, first.parameters);
	return error_set(err, -EINVAL,
	                 "the data differ between the nodes: %" PRId64 " rows of %" PRId64
	                 " tokens on rank %d, %" PRId64 " of %" PRId64
	                 " on rank 0; the same files on all would be right",
	                 own.rows, own.tokens, t->env->rank, first.rows, first.tokens);
}

/* What decides which rows a step sees. */
static char *fingerprint(const struct training *t)
{
	return str_printf("rows=%" PRId64 " tokens=%" PRId64 " batch=%" PRId64 " seed=%" PRIu64 " shuffle=%d",
	                  dataset_rows(t->data), dataset_tokens(t->data),
	                  t->env->world_size * t->options.micro_batch * t->options.accumulation,
	                  t->options.seed, t->options.shuffle);
}

static int make_trainer(struct training *t, struct error *err)
{
	_cleanup_free_ char *print = fingerprint(t);
	_cleanup_json_ json_t *plan = NULL;
	char memory[32];
	int r;

	r = trainer_create(t->dev, t->comm, &t->model, &t->options, t->data, t->eval, &t->trainer, err);
	if (r == 0)
		r = print ? saver_attach(t->saver, t->dev, t->comm, t->trainer, t->tok, print, err)
		          : error_oom(err);
	if (r == 0)
		r = trainer_plan_json(t->trainer, &plan, err);
	if (r < 0)
		return r;
	if (first_rank(t))
		printf("model: %s, %" PRId64 " parameters; %" PRId64 " steps, %" PRId64
		       " an epoch; %s of memory\n",
		       t->model.family, trainer_layout(t->trainer)->elements, trainer_total_steps(t->trainer),
		       trainer_steps_per_epoch(t->trainer),
		       str_bytes(memory, sizeof(memory), json_integer_value(json_object_get(plan, "total"))));
	return 0;
}

/* ---- where the weights come from ---- */

static int load_model(struct training *t, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	const struct model_layout *layout = trainer_layout(t->trainer);
	int r;

	if (!t->c->model.path) {
		struct model_init init = {.seed = t->options.seed,
		                          .std = t->c->model.init_std > 0 ? t->c->model.init_std
		                                                          : t->model.init_std};

		return trainer_load(t->trainer, model_init_fill, &init, err);
	}
	r = safetensors_open(t->c->model.path, &st, err);
	if (r == 0)
		r = parameters_check(layout, st, t->c->model.path, err);
	return r < 0 ? r : trainer_load(t->trainer, parameters_fill, st, err);
}

static void warn_of_changes(const struct training *t)
{
	const struct checkpoint_state *s = saver_resume_state(t->saver);
	_cleanup_free_ char *now = fingerprint(t);

	if (now && strcmp(now, s->fingerprint))
		printf("warning: the checkpoint was made with %s, now it is %s: the data go on in another "
		       "order\n",
		       s->fingerprint, now);
	else if (s->world_size != t->env->world_size)
		printf("warning: the checkpoint was made by %d ranks, now there are %d: sums differ in the "
		       "last bits\n",
		       s->world_size, t->env->world_size);
}

/* Rank 0 knows whether there is a checkpoint, and which step it is of. */
static int start_weights(struct training *t, struct error *err)
{
	const char *path = saver_resume_path(t->saver);
	int64_t decision[3] = {path != NULL, saver_resume_state(t->saver)->step,
	                       saver_resume_state(t->saver)->tokens};
	int r = share(t, decision, sizeof(decision), err);

	if (r < 0)
		return r;
	if (!decision[0])
		return load_model(t, err);
	t->tokens_before = decision[2];
	if (first_rank(t)) {
		printf("resuming from %s\n", path);
		warn_of_changes(t);
	}
	r = weights_resume(t->trainer, t->dev, t->comm, path, err);
	/* A run made shorter than it has gone: there is nothing left to do but to save. */
	if (r == 0)
		r = trainer_set_step(t->trainer, MIN(decision[1], trainer_total_steps(t->trainer)), err);
	if (r == 0 && first_rank(t) && decision[1] > trainer_total_steps(t->trainer))
		printf("warning: the checkpoint is of step %" PRId64 ", the run has %" PRId64
		       ": nothing is left to train\n",
		       decision[1], trainer_total_steps(t->trainer));
	if (r == 0)
		saver_resumed(t->saver, trainer_step(t->trainer));
	return r < 0 && path ? error_prefix(err, "resuming from %s", path) : r;
}

/* ---- the loop ---- */

static void print_progress(const struct train_log *log)
{
	char eta[32], eval[48] = "";

	if (log->has_eval)
		snprintf(eval, sizeof(eval), " eval %.4f", log->eval_loss);
	printf("step %" PRId64 "/%" PRId64 " loss %.4f%s lr %.1e grad %.2f %.0f tok/s eta %s\n", log->step,
	       log->steps, log->loss, eval, log->learning_rate, log->grad_norm, log->tokens_per_second,
	       str_duration(eta, sizeof(eta), log->eta_seconds));
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct training *t = context;
	struct metrics_record m = {
	    .step = log->step,
	    .steps = log->steps,
	    .epoch = log->epoch,
	    .loss = log->loss,
	    .learning_rate = log->learning_rate,
	    .grad_norm = log->grad_norm,
	    .tokens = t->tokens_before + log->tokens,
	    .tokens_per_second = log->tokens_per_second,
	    .eta_seconds = log->eta_seconds,
	    .eval_loss = log->has_eval ? log->eval_loss : NAN,
	    .time = clock_realtime(),
	};
	char line[METRICS_LINE];
	int r;

	if (!first_rank(t))
		return 0;
	print_progress(log);
	link_report(t->link, metrics_line(line, sizeof(line), &m));
	r = metrics_write(t->metrics, &m, err);
	return r < 0 ? r : saver_log(t->saver, log, err);
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	struct training *t = context;

	/* Without save_steps nobody has asked for checkpoints, and nothing would resume from it. */
	return stopped && t->c->output.save_steps == 0 ? 0 : saver_checkpoint(t->saver, step, err);
}

static int run_loop(struct training *t, struct error *err)
{
	struct train_callbacks cb = {t, on_log, on_save, stop_requested};
	int r;

	if (first_rank(t)) {
		r = metrics_open(t->c->output.dir, trainer_step(t->trainer), t->c->output.tensorboard,
		                 &t->metrics, err);
		if (r < 0)
			return r;
	}
	link_event(t->link, "ready", "");
	stop_defer(true);
	r = trainer_run(t->trainer, &cb, err);
	if (r == 1 && first_rank(t))
		printf("stopped by %s after step %" PRId64 "\n",
		       strsignal(stop_signal() ? stop_signal() : 15), trainer_step(t->trainer));
	return r;
}

/* The last checkpoint, so that a longer run can go on from it, and the model itself. No rank leaves before
 * rank 0 is done: the first to leave would look like a failure to the others. */
static int finish(struct training *t, bool stopped, struct error *err)
{
	int r = 0;

	if (!stopped && t->c->output.save_steps > 0)
		r = saver_checkpoint(t->saver, trainer_step(t->trainer), err);
	if (r == 0 && !stopped)
		r = saver_final(t->saver, err);
	if (r == 0 && t->comm)
		r = comm_wait(t->comm, comm_barrier(t->comm), err);
	if (r == 0 && t->comm)
		r = comm_flush(t->comm, err);
	return r;
}

int train_task(const struct run_config *c, const struct environment *env, struct link *link,
               struct error *err)
{
	_cleanup_(training_free) struct training t = {.c = c, .env = env, .link = link};
	_cleanup_free_ char *config = options_config(c);
	double start = clock_monotonic();
	char took[32];
	int r, stopped;

	if (!config)
		return error_oom(err);
	if ((r = options_train(c, &t.options, err)) < 0 || (r = saver_open(c, env, &t.saver, err)) < 0 ||
	    (r = model_config_read(config, &t.model, err)) < 0 || (r = open_device(&t, err)) < 0 ||
	    (r = open_data(&t, err)) < 0 || (r = meet(&t, err)) < 0 || (r = check_agreement(&t, err)) < 0 ||
	    (r = make_trainer(&t, err)) < 0 || (r = start_weights(&t, err)) < 0)
		return r;
	if (first_rank(&t))
		printf("ready in %.2f s\n", clock_monotonic() - start);
	stopped = run_loop(&t, err);
	if (stopped < 0)
		return stopped;
	r = finish(&t, stopped, err);
	if (r == 0 && !stopped && first_rank(&t))
		printf("done in %s\n", str_duration(took, sizeof(took), clock_monotonic() - start));
	return r < 0 ? r : stopped;
}
