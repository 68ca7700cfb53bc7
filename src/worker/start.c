/* SPDX-License-Identifier: Apache-2.0 */
/* What a run starts with: the weights of files or random ones, the log-probabilities of a reference model, or
 * all of a checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "engine/checkpoint/adapter_start.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/ranks.h"
#include "engine/checkpoint/weights.h"
#include "engine/device/sizes.h"
#include "engine/model/nf4_weights.h"
#include "engine/model/pissa.h"
#include "worker/reference.h"
#include "worker/training.h"

char *training_fingerprint(const struct training *t)
{
	int64_t rows = t->options.policy.generations ? train_prompts(&t->options)
	                                             : t->options.micro_batch * t->options.accumulation;

	return str_printf("rows=%" PRId64 " tokens=%" PRId64 " batch=%" PRId64 " seed=%" PRIu64 " shuffle=%d",
	                  dataset_rows(t->data), dataset_tokens(t->data),
	                  t->env->world_size / train_sequence_degree(&t->options) * rows, t->options.seed,
	                  t->options.shuffle);
}

/* ---- files of weights ---- */

/* For what one rank alone has found. */
static void warn_anywhere(void *none, const char *message)
{
	printf("warning: %s\n", message);
}

static struct weights_place weights_place(const struct training *t)
{
	return (struct weights_place){
	    trainer_access(t->trainer), t->dev, t->comm, t->env->node, warn_anywhere, NULL};
}

/* The files that the weights come from; what they do not have is made. */
struct weights_source {
	const struct model_layout *layout;
	struct safetensors *model;    /* NULL: the model begins at random */
	struct peft_adapter *adapter; /* NULL: the adapter begins */
	struct pissa_start *pissa;    /* NULL: not with this */
	struct nf4_weights frozen;    /* whose rows give the magnitudes of DoRA */
	struct model_init init;
	double printed_at; /* when the progress of PiSSA was last printed */
};

static void weights_source_free(struct weights_source *s)
{
	safetensors_close(s->model);
	peft_adapter_close(s->adapter);
	pissa_start_free(s->pissa);
	nf4_weights_free(&s->frozen);
}

static int fill_model(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                      struct error *err)
{
	struct weights_source *s = context;

	return s->model && !(p->random_start && !hf_find(s->model, p->name))
	           ? parameters_fill(s->model, p, first, n, out, err)
	           : model_init_fill(&s->init, p, first, n, out, err);
}

/* Matrices are taken apart for minutes, where they are large. */
static void print_pissa(struct weights_source *s, const struct model_parameter *p)
{
	double now = clock_monotonic();

	if (now - s->printed_at < 5)
		return;
	s->printed_at = now;
	printf("singular values (PiSSA): %s\n", p->name);
}

static int source_fill(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                       struct error *err)
{
	struct weights_source *s = context;

	if (s->adapter && !p->frozen && !p->in_state)
		return parameters_fill_saved(s->adapter->tensors, p, first, n, out, err);
	if (p->part == PART_MAGNITUDE)
		return model_magnitude_fill(s->layout, nf4_weights_fill, &s->frozen, p, first, n, out, err);
	if (p->part != PART_WEIGHT && s->pissa) {
		print_pissa(s, p);
		return pissa_start_fill(s->pissa, p, first, n, out, err);
	}
	if (p->part != PART_WEIGHT)
		return model_adapter_fill(&s->init, p, first, n, out, err);
	return fill_model(s, p, first, n, out, err);
}

static int start_pissa(const struct training *t, struct weights_source *source, struct error *err)
{
	struct device_sizing sizing;
	int64_t memory;
	int r = 0;

	device_get_sizing(t->dev, &sizing, &memory);
	if (t->comm)
		r = pissa_check_time(source->layout, &t->options.tuning, MAX(sizing.threads, 1),
		                     (double)t->c->parallel.timeout, err);
	return r < 0 ? r
	             : pissa_start_create(source->layout, &t->options.tuning, t->options.seed, fill_model,
	                                  source, &source->pissa, err);
}

/* path: of the model, or NULL for random weights. */
static int load_model(struct training *t, const char *path, struct error *err)
{
	_cleanup_(weights_source_free) struct weights_source source = {
	    .layout = trainer_layout(t->trainer),
	    .init = model_init_of(&t->model, t->options.seed, t->c->model.init_std)};
	struct weights_place place = weights_place(t);
	/* A checkpoint has the adapters as they are by now. Rank 0 takes the matrices apart for all. */
	bool pissa = t->options.tuning.init == LORA_INIT_PISSA && !saver_resumes(t->saver);
	bool broadcast = pissa || str_eq(t->c->model.load, "broadcast");
	bool reads = !broadcast || training_first_rank(t), broken;
	int r = 0;

	source.frozen = (struct nf4_weights){.weights = fill_model,
	                                     .context = &source,
	                                     .quantized = t->options.quantize != SHARD_QUANTIZE_NONE,
	                                     .twice = t->options.quantize == SHARD_NF4_DOUBLE,
	                                     .type = t->options.precision};
	if (path && reads)
		r = safetensors_open(path, &source.model, err);
	if (r == 0 && source.model)
		r = parameters_check_start(trainer_layout(t->trainer), source.model, path, err);
	if (r == 0 && t->c->lora.from && reads)
		r = adapter_open(t->c->lora.from, &t->options.tuning, source.layout, &source.adapter, err);
	if (r == 0 && pissa && reads)
		r = start_pissa(t, &source, err);
	/* What rank 0 alone prepares, it alone finds wrong: the others end with its words. */
	if (broadcast)
		r = ranks_agree(&(struct ranks){t->dev, t->comm, t->env->node}, r, &broken, err);
	return r < 0 ? r : weights_load(&place, source_fill, &source, source.model, broadcast, err);
}

/* ---- models that are not trained: a teacher, the reference of a policy, a reward model ---- */

static int load_whole(void *whole, model_fill_fn fill, void *context, struct error *err)
{
	return whole_model_load(whole, fill, context, err);
}

static int open_weights(const struct whole_model *whole, const char *path, struct safetensors **out,
                        struct error *err)
{
	int r = safetensors_open(path, out, err);

	return r < 0 ? r : parameters_check(whole->layout, *out, path, err);
}

/* Weights of a file as the run has them: where it stores frozen blocks in 4 bits, rounded so. */
struct rounded_weights {
	const struct model_layout *trained; /* of the run */
	struct safetensors *st;
	struct nf4_weights nf4;
};

static bool is_quantized(const struct model_layout *l, const char *name)
{
	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		if (p->part == PART_WEIGHT && str_eq(p->name, name))
			return p->frozen && p->matrix && p->base > 0 && p->base < l->base_units - 1;
	}
	return false;
}

static int fill_plain(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                      struct error *err)
{
	struct rounded_weights *w = context;

	return parameters_fill(w->st, p, first, n, out, err);
}

static int fill_rounded(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                        struct error *err)
{
	struct rounded_weights *w = context;

	return w->nf4.quantized && is_quantized(w->trained, p->name)
	           ? nf4_weights_fill(&w->nf4, p, first, n, out, err)
	           : fill_plain(w, p, first, n, out, err);
}

/* rounds: as the run's own weights. */
static int load_frozen(struct training *t, struct whole_model *whole, const char *path, bool rounds,
                       const char *key, struct error *err)
{
	struct rounded_weights w = {.trained = trainer_layout(t->trainer)};
	struct weights_place place = weights_place(t);
	bool broadcast = str_eq(t->c->model.load, "broadcast"), broken;
	int r = 0;

	if (!whole)
		return 0;
	place.access =
	    (struct parameter_access){.layout = whole->layout, .context = whole, .load = load_whole};
	if (!broadcast || training_first_rank(t))
		r = open_weights(whole, path, &w.st, err);
	if (broadcast)
		r = ranks_agree(&(struct ranks){t->dev, t->comm, t->env->node}, r, &broken, err);
	w.nf4 = (struct nf4_weights){.weights = fill_plain,
	                             .context = &w,
	                             .quantized = rounds && t->options.quantize != SHARD_QUANTIZE_NONE,
	                             .twice = t->options.quantize == SHARD_NF4_DOUBLE,
	                             .type = t->options.precision};
	if (r == 0)
		r = weights_load(&place, fill_rounded, &w, w.st, broadcast, err);
	nf4_weights_free(&w.nf4);
	safetensors_close(w.st);
	return r < 0 ? error_prefix(err, "%s", key) : 0;
}

static int load_others(struct training *t, struct error *err)
{
	struct whole_model *first = trainer_frozen_model(t->trainer);
	const struct run_policy *p = run_config_policy(t->c);
	bool ppo = t->c->task == RUN_PPO;
	int r = run_task_rewards(t->c->task)
	            ? load_frozen(t, first, p->reference ? p->reference : t->c->model.path, true,
	                          ppo ? "ppo.reference" : "grpo.reference", err)
	            : load_frozen(t, first, t->c->distillation.teacher, false, "distillation.teacher", err);

	return r < 0 ? r
	             : load_frozen(t, trainer_reward_model(t->trainer), p->reward_model, false,
	                           ppo ? "ppo.reward_model" : "grpo.reward_model", err);
}

/* ---- what a preference task knows of its reference model ---- */

static char *reference_key(const struct training *t)
{
	return str_printf("%016" PRIx64 " %016" PRIx64 " %s", dataset_digest(t->data),
	                  t->eval ? dataset_digest(t->eval) : 0,
	                  t->c->preference.reference ? t->c->preference.reference
	                  : t->c->model.path         ? t->c->model.path
	                                             : t->c->model.init);
}

static struct reference_file reference_file(const struct training *t, const char *key)
{
	return (struct reference_file){t->c->output.dir, key, t->dev, t->comm, t->trainer};
}

/* With the weights of the reference, which the trainer has afterwards. */
static int compute_reference(struct training *t, struct error *err)
{
	const char *path = t->c->preference.reference ? t->c->preference.reference : t->c->model.path;
	_cleanup_free_ char *key = reference_key(t);
	struct reference_file file = reference_file(t, key);
	double start = clock_monotonic();
	char took[32];
	int r;

	if (!key)
		return error_oom(err);
	if ((r = load_model(t, path, err)) < 0 || (r = trainer_compute_reference(t->trainer, err)) < 0)
		return r;
	if (training_first_rank(t))
		printf("reference: log-probabilities of %" PRId64 " answers in %s\n",
		       trainer_reference_count(t->trainer),
		       str_duration(took, sizeof(took), clock_monotonic() - start));
	return reference_save(&file, err);
}

/* Of a run that resumes: those that it began with. */
static int find_reference(struct training *t, struct error *err)
{
	_cleanup_free_ char *key = reference_key(t);
	struct reference_file file = reference_file(t, key);
	bool found;
	int r;

	if (trainer_reference_count(t->trainer) == 0)
		return 0;
	r = key ? reference_load(&file, &found, err) : error_oom(err);
	if (r < 0 || found)
		return r;
	if (training_first_rank(t))
		printf("warning: %s has no log-probabilities of this reference model and data: they are "
		       "computed again\n",
		       t->c->output.dir);
	return compute_reference(t, err);
}

/* A run from the start. */
static int start_new(struct training *t, struct error *err)
{
	bool has = trainer_reference_count(t->trainer) > 0;
	int r = has ? compute_reference(t, err) : 0;

	if (r < 0 || (has && !t->c->preference.reference))
		return r;
	return load_model(t, t->c->model.path, err);
}

/* Whether two fingerprints differ in more than the batch, which does not change the order of the data. */
static bool other_order(const char *a, const char *b)
{
	const char *from = strstr(a, " batch="), *to = strstr(b, " batch=");
	const char *rest_a = from ? strstr(from + 1, " ") : NULL, *rest_b = to ? strstr(to + 1, " ") : NULL;

	if (!rest_a || !rest_b)
		return !str_eq(a, b);
	return from - a != to - b || memcmp(a, b, (size_t)(from - a)) != 0 || !str_eq(rest_a, rest_b);
}

static void warn_of_changes(const struct training *t)
{
	const struct checkpoint_state *s = saver_resume_state(t->saver);
	_cleanup_free_ char *now = training_fingerprint(t);
	int64_t rows = dataset_rows(t->data);

	if (now && (other_order(now, s->fingerprint) || (s->examples < 0 && !str_eq(now, s->fingerprint))))
		printf("warning: the checkpoint was made with %s, now it is %s: the data go on in another "
		       "order\n",
		       s->fingerprint, now);
	else if (now && !str_eq(now, s->fingerprint))
		printf("the checkpoint was made with %s, now it is %s: epoch %" PRId64
		       " goes on after row %" PRId64 " of %" PRId64 "; %" PRId64 " steps in all\n",
		       s->fingerprint, now, s->examples / rows + 1, s->examples % rows, rows,
		       trainer_total_steps(t->trainer));
	else if (s->world_size != t->env->world_size)
		printf("warning: the checkpoint was made by %d ranks, now there are %d: sums differ in the "
		       "last bits\n",
		       s->world_size, t->env->world_size);
}

/* The moments of one optimizer mean nothing to another. */
static int check_optimizer(const struct training *t, struct error *err)
{
	const char *saved = saver_resume_state(t->saver)->optimizer,
	           *now = optimizer_name(t->options.optimizer);

	if (!training_first_rank(t) || str_eq(saved, now))
		return 0;
	return error_set(
	    err, -EINVAL,
	    "%s was saved by the optimizer %s, and train.optimizer is %s; expected %s, or a new run "
	    "with this directory as model.path",
	    saver_resume_path(t->saver), saved, now, saved);
}

static void warn_of_warmup(const struct training *t)
{
	int64_t steps = trainer_total_steps(t->trainer);

	if (training_first_rank(t) && t->options.warmup_steps > steps)
		printf("warning: train.warmup_steps is %" PRId64 ", but the run has %" PRId64
		       " steps: the learning rate never reaches its highest value\n",
		       t->options.warmup_steps, steps);
}

int training_start_weights(struct training *t, struct error *err)
{
	const char *path = saver_resume_path(t->saver);
	const struct checkpoint_state *state = saver_resume_state(t->saver);
	struct weights_place place = weights_place(t);
	int r;

	t->reported_step = -1;
	warn_of_warmup(t);
	if ((r = load_others(t, err)) < 0)
		return r;
	if (!saver_resumes(t->saver))
		return start_new(t, err);
	t->tokens_before = state->tokens;
	if (t->options.policy.generations && state->step % train_set_steps(&t->options))
		return error_set(err, -EINVAL,
		                 "%s is of step %" PRId64
		                 ", between the steps on a set of completions, which are not saved; expected "
		                 "%s.iterations times mini_batches that divides it, not %" PRId64,
		                 path, state->step, run_task_name(t->c->task), train_set_steps(&t->options));
	if (state->examples >= 0)
		trainer_set_origin(t->trainer, state->step, state->examples);
	if (training_first_rank(t)) {
		printf("resuming from %s\n", path);
		warn_of_changes(t);
	}
	/* A checkpoint of an adapter does not have the model. */
	if ((r = check_optimizer(t, err)) < 0 || (r = training_check_model(t, err)) < 0 ||
	    (r = find_reference(t, err)) < 0 ||
	    (trainer_layout(t->trainer)->adapts && (r = load_model(t, t->c->model.path, err)) < 0))
		return r;
	r = saver_resume(t->saver, &place, err);
	/* A run that was made shorter than it has already run only saves. */
	if (state->loss_scaler.scale > 0)
		trainer_set_loss_scaler(t->trainer, &state->loss_scaler);
	if (r == 0)
		r = trainer_set_step(t->trainer, MIN(state->step, trainer_total_steps(t->trainer)), err);
	if (r == 0 && training_first_rank(t) && state->step > trainer_total_steps(t->trainer))
		printf("warning: the checkpoint is of step %" PRId64 ", the run has %" PRId64
		       ": nothing is left to train\n",
		       state->step, trainer_total_steps(t->trainer));
	if (r == 0)
		saver_resumed(t->saver, trainer_step(t->trainer));
	t->reported_step = saver_saved_step(t->saver);
	return r < 0 && path ? error_prefix(err, "resuming from %s", path) : r;
}
