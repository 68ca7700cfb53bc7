/* SPDX-License-Identifier: Apache-2.0 */
/* Training, from the config to the final model. Errors of files and settings are found before the ranks
 * connect. */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "engine/checkpoint/algorithms.h"
#include "engine/checkpoint/elsewhere.h"
#include "engine/checkpoint/hf.h"
#include "engine/device/sizes.h"
#include "engine/train/products.h"
#include "options/options.h"
#include "options/precision_names.h"
#include "worker/attention_check.h"
#include "worker/saver_options.h"
#include "worker/stop.h"
#include "worker/strategy.h"
#include "worker/tasks.h"
#include "worker/training.h"

DEFINE_CLEANUP(struct device *, device_destroy)
DEFINE_CLEANUP(struct comm *, comm_destroy)

static void training_free(struct training *t)
{
	report_closep(&t->report);
	rewards_end(&t->rewards);
	completions_close(&t->completions);
	/* The trainer ends the communicators that it has made of this one, whose memory they write to. */
	trainer_freep(&t->trainer);
	comm_destroyp(&t->comm);
	dataset_closep(&t->eval);
	dataset_closep(&t->data);
	tokenizer_freep(&t->tok);
	saver_freep(&t->saver);
	strbuf_free(&t->chat_template);
	token_list_free(&t->stops);
	token_list_free(&t->ends);
	device_destroyp(&t->dev);
	str_list_free(t->targets);
	free(t->target_pattern);
	str_list_free(t->whole);
	free(t->config);
	free(t->tokenizer);
}

/* ---- preparation ---- */

static void print_line(void *none, const char *message)
{
	puts(message);
}

static int open_saver(struct training *t, struct error *err)
{
	struct saver_options o;

	options_saver(t->c, t->env, t->config, t->tokenizer, &o);
	o.notify = print_line;
	return saver_open(&o, &t->saver, err);
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
	return 0;
}

static int connect_ranks(struct training *t, struct error *err)
{
	struct comm_options o = {
	    .rank = t->env->rank,
	    .world_size = t->env->world_size,
	    .timeout_s = t->c->parallel.timeout,
	    .store = service_client_store(t->service),
	    .group = "world",
	    .node = t->env->node,
	    .stopping = stop_requested,
	};
	int r;

	if (o.world_size == 1)
		return 0;
	r = comm_create(t->dev, &o, &t->comm, err);
	if (r == 0 && training_first_rank(t))
		printf("%d ranks over %s\n", o.world_size, comm_describe(t->comm));
	return r;
}

static int check_inputs(struct training *t, struct error *err)
{
	return agreement_check(t->inputs, INPUTS, t->dev, t->comm, t->env->node,
	                       "the same files on every node are needed", err);
}

/* Once the ranks are connected, and rank 0 knows what it goes on from. */
static int choose_precision(struct training *t, struct error *err)
{
	const char *checkpoint = saver_resume_path(t->saver) ? saver_resume_state(t->saver)->precision : NULL;
	struct device_sizing sizing;
	int64_t memory;
	const char *warning;
	char text[256];
	int r = precision_choose(t->c->train.precision, checkpoint, t->dev, t->comm, &t->precision, err);

	if (r < 0)
		return r;
	if (t->precision.type != DTYPE_BF16 && t->options.without_master)
		return error_set(
		    err, -EINVAL,
		    "train.master = \"none\" is for bf16 weights, but train.precision = \"auto\" is "
		    "%s here; expected \"bf16\"",
		    precision_describe(text, sizeof(text), &t->precision));
	if (t->precision.type != DTYPE_BF16 && t->options.gradient_type != DTYPE_F32)
		return error_set(
		    err, -EINVAL,
		    "train.gradient_type = \"bf16\" is for bf16 weights, but train.precision = \"auto\" is "
		    "%s here; expected \"bf16\"",
		    precision_describe(text, sizeof(text), &t->precision));
	t->options.precision = t->precision.type;
	t->options.fp8 = t->precision.fp8;
	if (training_first_rank(t))
		printf("precision: %s\n", precision_describe(text, sizeof(text), &t->precision));
	if (training_first_rank(t) && !device_supports(t->dev, t->precision.type))
		printf("warning: %s is slow on this device\n", precision_name(t->precision.type));
	device_get_sizing(t->dev, &sizing, &memory);
	if (training_first_rank(t) && t->precision.fp8 && sizing.engine == DEVICE_ENGINE_CPU)
		printf("warning: fp8 is emulated on this device, slower than bf16\n");
	warning = precision_warn_of_attention(text, sizeof(text), &t->precision, &sizing, t->model.head_dim,
	                                      t->model.attention_cap > 0);
	if (training_first_rank(t) && warning)
		printf("warning: %s\n", warning);
	return 0;
}

static int attach_saver(struct training *t, const char *print, struct error *err)
{
	struct saver_contents contents = {.dev = t->dev,
	                                  .comm = t->comm,
	                                  .parameters = trainer_access(t->trainer),
	                                  .precision = t->precision.type,
	                                  .precision_name = precision_label(&t->precision),
	                                  .strategy = shard_strategy_name(t->options.strategy),
	                                  .optimizer = optimizer_name(t->options.optimizer),
	                                  .master = !t->options.without_master,
	                                  .scores = t->model.scores,
	                                  .adapter = trainer_layout(t->trainer)->adapts ? &t->adapter : NULL,
	                                  .bos = tokenizer_bos(t->tok),
	                                  .eos = tokenizer_eos(t->tok),
	                                  .pad = t->model.scores ? t->options.preference.pad
	                                                         : tokenizer_pad(t->tok),
	                                  .stops = t->stops.ids,
	                                  .n_stops = t->stops.len,
	                                  .chat_template = t->chat_template.data,
	                                  .fingerprint = print};

	return saver_attach(t->saver, &contents, err);
}

static struct strategy_run strategy_run(const struct training *t)
{
	const struct checkpoint_state *state =
	    saver_resume_path(t->saver) ? saver_resume_state(t->saver) : NULL;

	return (struct strategy_run){
	    .config = t->c,
	    .env = t->env,
	    .dev = t->dev,
	    .comm = t->comm,
	    .model = &t->model,
	    .train = t->data,
	    .eval = t->eval,
	    .done = state ? state->step : 0,
	    .examples = state ? state->examples : 0,
	    /* As many ranks go on as they began: with the same bits. */
	    .began = state && state->world_size == t->env->world_size ? state->strategy : NULL};
}

static int write_algorithms(void *context, const char *text, struct error *err)
{
	struct training *t = context;

	return saver_write_beside(t->saver, ALGORITHMS_FILE, text, err);
}

static int check_attention(void *context, const struct device_attention_shape *shape, double seconds[2],
                           struct error *err)
{
	const struct training *t = context;
	_cleanup_free_ char *mark = NULL;

	if (!device_is_exclusive(t->dev))
		return attention_check(t->env->device, shape, seconds, err);
	mark = str_printf("%s/" ATTENTION_FAILED "-%s", t->c->output.dir,
	                  shape->pass == DEVICE_ATTENTION_FORWARD ? "forward" : "backward");
	return mark ? attention_check_here(t->dev, shape, mark, seconds, err) : error_oom(err);
}

static int choose_products(struct training *t, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(t->c->output.dir, ALGORITHMS_FILE);
	struct products_file file = {.path = path,
	                             .resumes = saver_resumes(t->saver),
	                             .write = write_algorithms,
	                             .notify = print_line,
	                             .check_attention = check_attention,
	                             .context = t};
	int64_t row = train_longest_row(&t->options, &t->model, t->data, t->eval);

	return path ? products_choose(t->dev, t->comm, t->env->node, &t->model, &t->options, row, &file, err)
	            : error_oom(err);
}

/* What is tried has the products that the run will have. */
static int choose_strategy(struct training *t, struct error *err)
{
	const struct strategy_run run = strategy_run(t);
	_cleanup_free_ struct strategy_trials *trials = malloc(sizeof(*trials));
	enum shard_strategy before;
	int r;

	if (!trials)
		return error_oom(err);
	if ((r = strategy_choose(&run, &t->options, trials, err)) < 0 || (r = choose_products(t, err)) < 0 ||
	    trials->n == 0)
		return r;
	before = t->options.strategy;
	if ((r = strategy_try(&run, trials, &t->options, err)) < 0)
		return r;
	/* The optimizer may have others with another strategy. */
	return t->options.strategy == before ? 0 : choose_products(t, err);
}

static int make_trainer(struct training *t, struct error *err)
{
	_cleanup_free_ char *print = training_fingerprint(t);
	char memory[32], steps[48];
	const char *how;
	int64_t disk;
	char trained[32];
	int r;

	if ((r = trainer_create(t->dev, t->comm, &t->model, &t->options, t->data, t->eval, &t->trainer,
	                        err)) < 0 ||
	    (r = training_describe_adapter(t, err)) < 0 ||
	    (r = print ? attach_saver(t, print, err) : error_oom(err)) < 0)
		return r;
	/* An adapter that the run goes on from has the head with it. */
	if (training_first_rank(t) && t->model.new_head && t->c->model.path && !t->c->lora.from &&
	    !saver_resumes(t->saver))
		puts("score head: new, from train.seed");
	if (training_first_rank(t) && t->options.tuning.kind != TUNE_ALL)
		printf("trained: %" PRId64 " parameters, %s%% of the model's\n",
		       trainer_layout(t->trainer)->trained,
		       str_measure(trained, sizeof(trained),
		                   100.0 * (double)trainer_layout(t->trainer)->trained /
		                       (double)trainer_layout(t->trainer)->elements,
		                   3));
	if (training_first_rank(t))
		printf("model: %s, %" PRId64 " parameters; %s, %" PRId64 " an epoch; %s of memory\n",
		       t->model.family, trainer_layout(t->trainer)->elements,
		       str_count(steps, sizeof(steps), trainer_total_steps(t->trainer), "step"),
		       trainer_steps_per_epoch(t->trainer),
		       str_bytes(memory, sizeof(memory), (size_t)trainer_plan_bytes(t->trainer)));
	disk = trainer_disk(t->trainer, &how);
	if (training_first_rank(t) && disk > 0)
		printf("optimizer state: %s of each rank in %s, %s\n",
		       str_bytes(memory, sizeof(memory), (size_t)disk), t->options.offload_dir, how);
	return 0;
}

/* ---- the loop ---- */

static struct saver_progress progress(const struct training *t)
{
	return (struct saver_progress){.step = trainer_step(t->trainer),
	                               .steps = trainer_total_steps(t->trainer),
	                               .tokens = trainer_tokens(t->trainer),
	                               .examples = trainer_examples(t->trainer),
	                               .epoch = trainer_epochs(t->trainer),
	                               .loss_scaler = trainer_loss_scaler(t->trainer)};
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct training *t = context;
	int r;

	if (!training_first_rank(t))
		return 0;
	r = report_log(t->report, log, err);
	return r < 0 ? r
	             : saver_log(t->saver,
	                         &(struct checkpoint_log){.step = log->step,
	                                                  .epoch = log->epoch,
	                                                  .loss = log->loss,
	                                                  .learning_rate = log->learning_rate,
	                                                  .grad_norm = log->grad_norm,
	                                                  .eval_loss = log->has_eval ? log->eval_loss : NAN},
	                         err);
}

/* A checkpoint that was published meanwhile. */
static int report_saved(struct training *t, struct error *err)
{
	int64_t step = saver_saved_step(t->saver);

	if (step == t->reported_step)
		return 0;
	t->reported_step = step;
	return training_first_rank(t) ? report_checkpoint(t->report, step, err) : 0;
}

/* What the preparation and the making of the first products have freed goes back to the system. Until now
 * (worker_main) large blocks were mappings of their own, so that they left no holes between smaller ones.
 * From now on what each product allocates and frees again comes from the end of the heap, and stays
 * resident. */
static void settle_heap(void)
{
	malloc_trim(0);
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

static int on_step(void *context, struct error *err)
{
	struct training *t = context;
	int r = saver_poll(t->saver, err);

	if (!t->settled)
		settle_heap();
	t->settled = true;
	return r < 0 ? r : report_saved(t, err);
}

/* wait: until it is published. */
static int save_checkpoint(struct training *t, bool wait, struct error *err)
{
	struct saver_progress at = progress(t);
	int r;

	if ((r = saver_wait(t->saver, err)) < 0 || (r = report_saved(t, err)) < 0 ||
	    (r = saver_checkpoint(t->saver, &at, err)) < 0 || (wait && (r = saver_wait(t->saver, err)) < 0))
		return r;
	return report_saved(t, err);
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	/* One that is stopped saves without save_steps, too: whoever has stopped it may let it go on. */
	return save_checkpoint(context, stopped, err);
}

static int open_report(struct training *t, struct error *err)
{
	struct report_options o = {.config = t->c,
	                           .env = t->env,
	                           .service = t->service,
	                           .dev = t->dev,
	                           .comm = t->comm,
	                           .trainer = t->trainer,
	                           .precision = precision_label(&t->precision),
	                           .resumed_from = saver_resume_path(t->saver),
	                           .resumed_step = saver_resume_state(t->saver)->step,
	                           .tokens_before = t->tokens_before};

	if (run_config_policy(t->c)->log_completions > 0 && run_task_rewards(t->c->task) &&
	    training_first_rank(t)) {
		int r = completions_open(&t->completions, t->c, t->tok, o.resumed_step, err);

		if (r < 0)
			return r;
	}
	return report_open(&o, &t->report, err);
}

static int run_loop(struct training *t, struct error *err)
{
	struct train_callbacks cb = {.context = t,
	                             .on_log = on_log,
	                             .on_step = on_step,
	                             .on_save = on_save,
	                             .should_stop = stop_requested};
	int r;

	r = open_report(t, err);
	if (r < 0)
		return r;
	service_client_event(t->service, "ready", "");
	stop_defer(true);
	r = trainer_run(t->trainer, &cb, err);
	if (r == 1 && training_first_rank(t)) {
		const char *name = strsignal(stop_signal() ? stop_signal() : 15);
		int s = report_end(t->report, trainer_step(t->trainer), name, err);

		printf("stopped by %s after step %" PRId64 "\n", name, trainer_step(t->trainer));
		r = s < 0 ? s : r;
	}
	return r;
}

/* Saves the last checkpoint, from which a longer run can go on, and the model itself. No rank ends before
 * rank 0 is done: the first to end would look like a failure to the others. */
static int finish(struct training *t, bool stopped, struct error *err)
{
	struct saver_progress at = progress(t);
	int r = 0;

	if (!stopped && t->c->output.save_steps > 0)
		r = save_checkpoint(t, true, err);
	if (r == 0 && !stopped)
		r = saver_final(t->saver, &at, err);
	if (r == 0 && !stopped && training_first_rank(t))
		r = report_end(t->report, trainer_step(t->trainer), NULL, err);
	if (r == 0 && t->comm)
		r = comm_wait(t->comm, comm_barrier(t->comm), err);
	if (r == 0 && t->comm)
		r = comm_flush(t->comm, err);
	return r;
}

static int read_model_config(struct training *t, struct error *err)
{
	int r = model_config_read(t->config, &t->model, err);

	if (r < 0 && t->c->model.path)
		checkpoint_say_elsewhere(t->c->model.path, err);
	return r < 0 ? r : options_choose_head(t->c, &t->model, t->config, err);
}

static int read_other(struct training *t, struct error *err)
{
	const char *path = options_other_path(t->c);
	int r = options_other_model(t->c, &t->other, &t->options, err);

	if (r == 0 && path && training_first_rank(t))
		printf("%s: %s, %s\n", run_task_rewards(t->c->task) ? "reward model" : "teacher",
		       t->other.family, path);
	return r;
}

static int read_options(struct training *t, struct error *err)
{
	int r = options_train(t->c, &t->options, err);

	/* Fewer nodes than it may have make more micro-steps of the same batch (config/run_checks.c). */
	if (r == 0 && t->c->resources.nodes.low < t->c->resources.nodes.high)
		t->options.accumulation = t->c->train.accumulation * t->c->resources.nodes.high *
		                          t->c->resources.devices_per_node / t->env->world_size;
	/* How many devices of each node "all" are is known on the nodes alone; it is the same on each. */
	if (t->options.shard_degree == 0)
		t->options.shard_degree = MAX(t->env->local_world_size, 1);
	return r;
}

static int train(struct training *t, struct error *err)
{
	double start = clock_monotonic();
	char took[32];
	int r, stopped;

	if ((r = read_options(t, err)) < 0 || (r = open_saver(t, err)) < 0 ||
	    (r = read_model_config(t, err)) < 0 || (r = read_other(t, err)) < 0 ||
	    (r = open_device(t, err)) < 0 || (r = training_open_data(t, err)) < 0 ||
	    (r = connect_ranks(t, err)) < 0 || (r = check_inputs(t, err)) < 0 ||
	    (r = saver_find(t->saver, t->dev, t->comm, err)) < 0 || (r = choose_precision(t, err)) < 0 ||
	    (r = choose_strategy(t, err)) < 0 || (r = make_trainer(t, err)) < 0 ||
	    (r = training_start_weights(t, err)) < 0)
		return r;
	if (training_first_rank(t))
		printf("ready in %.2f s\n", clock_monotonic() - start);
	stopped = run_loop(t, err);
	if (stopped < 0)
		return stopped;
	r = finish(t, stopped, err);
	if (r == 0 && !stopped && training_first_rank(t))
		printf("done in %s\n", str_duration(took, sizeof(took), clock_monotonic() - start));
	return r < 0 ? r : stopped;
}

int train_task(const struct run_config *c, const struct environment *env, struct service_client *service,
               struct error *err)
{
	_cleanup_(training_free) struct training t = {.c = c, .env = env, .service = service};
	int r;

	t.config = options_config(c);
	t.tokenizer = options_tokenizer(c);
	if (!t.config || !t.tokenizer)
		return error_oom(err);
	r = train(&t, err);
	/* To end the training may take seconds, in which the others miss this rank, and report that. */
	if (r < 0)
		service_client_error(service, err);
	return r;
}
