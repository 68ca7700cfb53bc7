/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a trainer, allocates the plan, and moves the state of parameters in and out. */
#include "engine/train/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train/internal.h"

static void count_steps(struct trainer *t)
{
	const struct train_options *o = &t->o;
	double batch = (double)(o->micro_batch * o->accumulation * t->groups);
	double scale = o->scale_rate == TRAIN_SCALE_LINEAR ? batch
	               : o->scale_rate == TRAIN_SCALE_SQRT ? sqrt(batch)
	                                                   : 1;
	int64_t total, whole, last;

	t->steps_per_epoch = sampler_steps_per_epoch(&t->sampler) * trainer_iterations(t);
	/* Floating-point 0.1 · 30 may be slightly above 3, and ceil has to give 3. */
	total =
	    o->max_steps > 0 ? o->max_steps : (int64_t)ceil(o->epochs * (double)t->steps_per_epoch - 1e-9);
	/* Of a set of completions, each step is done. */
	if (o->max_steps <= 0)
		total = (total + trainer_iterations(t) - 1) / trainer_iterations(t) * trainer_iterations(t);
	total = t->total_steps = MAX(total, 1);
	if (o->max_steps <= 0 && t->sampler.start_rows > 0) {
		whole = total / t->steps_per_epoch;
		last = total % t->steps_per_epoch / trainer_iterations(t) * t->sampler.micro_batch *
		       t->sampler.accumulation * t->groups;
		t->total_steps =
		    sampler_steps_until(&t->sampler, whole * t->sampler.rows + last) * trainer_iterations(t);
	}
	t->schedule_lead = total - t->total_steps;
	t->schedule = (struct schedule){.kind = o->schedule,
	                                .peak = o->learning_rate * scale,
	                                .floor = o->min_learning_rate * scale,
	                                .steps = total,
	                                .warmup = o->warmup_steps > 0
	                                              ? o->warmup_steps
	                                              : (int64_t)ceil(o->warmup_ratio * (double)total - 1e-9),
	                                .decay = (int64_t)ceil(o->decay_ratio * (double)total - 1e-9)};
}

static int allocate_sums(struct trainer *t, struct error *err)
{
	size_t n = plan_sums(t->plan);
	int r = device_alloc_host(t->dev, 2 * n * sizeof(*t->sums), (void **)&t->all_sums, err);

	for (size_t i = 0; i < 2 && r == 0; i++) {
		t->work[i].sums = t->all_sums + i * n;
		r = device_event_create(t->dev, &t->work[i].read, err);
	}
	t->sums = t->all_sums;
	return r;
}

static int connect_group(struct trainer *t, struct error *err)
{
	return train_sequence_degree(&t->o) > 1 ? comm_split(t->comm, t->group, t->rank, &t->sequence, err)
	                                        : 0;
}

static int allocate(struct trainer *t, struct error *err)
{
	size_t batch = (size_t)t->o.micro_batch;
	size_t tokens = (size_t)(train_tokens(&t->o, t->max_row) * train_sequence_degree(&t->o));
	size_t rows = batch * (size_t)t->o.accumulation *
	              (size_t)(trainer_has_policy(t) ? t->o.policy.mini_batches : 1),
	       scratch = 0;
	struct device_shapes shapes[PLAN_MODELS];
	int models, r;

	t->rows = calloc(MAX(rows, batch), sizeof(*t->rows));
	t->all_rows = calloc(rows * (size_t)t->groups, sizeof(*t->all_rows));
	t->ids = malloc(tokens * sizeof(*t->ids));
	t->targets = malloc(tokens * sizeof(*t->targets));
	t->starts = malloc((tokens + 1) * sizeof(*t->starts));
	t->row_ends = malloc(batch * sizeof(*t->row_ends));
	if (!t->rows || !t->all_rows || !t->ids || !t->targets || !t->starts || !t->row_ends)
		return error_oom(err);
	if (shard_gathers_rows(t->plan->shard)) {
		t->rank_tokens = calloc((size_t)t->world_size, sizeof(*t->rank_tokens));
		t->rank_ids = calloc((size_t)t->world_size * tokens, sizeof(*t->rank_ids));
		if (!t->rank_tokens || !t->rank_ids)
			return error_oom(err);
	}
	if ((r = preference_allocate(t, err)) < 0 || (r = rollouts_allocate(t, err)) < 0 ||
	    (r = ppo_allocate(t, err)) < 0 || (r = scores_allocate(t, err)) < 0 ||
	    (r = allocate_sums(t, err)) < 0)
		return r;
	models = plan_shapes(t->plan, shapes);
	shapes[0].quantized = t->plan->shard->largest_packed;
	for (int i = 0; i < models; i++)
		scratch = MAX(scratch, device_scratch_bytes(t->dev, &shapes[i]));
	arena_note(&t->plan->arena, BUFFER_SCRATCH, scratch, "device");
	if ((r = device_reserve_scratch(t->dev, scratch, err)) < 0 ||
	    (r = t->comm ? comm_alloc(t->comm, t->plan->arena.used, &t->memory, err)
	                 : device_alloc(t->dev, t->plan->arena.used, &t->memory, err)) < 0 ||
	    (t->plan->host.used > 0 &&
	     (r = device_alloc_host(t->dev, t->plan->host.used, &t->host, err)) < 0))
		return r;
	plan_bind(t->plan, t->memory, t->host);
	trainer_set_hooks(t);
	if ((r = shard_connect(t->plan->shard, err)) < 0 || (r = connect_group(t, err)) < 0 ||
	    (r = model_prepare(t->plan->model, err)) < 0)
		return r;
	if (t->plan->frozen.model && (r = model_prepare(t->plan->frozen.model, err)) < 0)
		return r;
	return t->plan->reward_model.model ? model_prepare(t->plan->reward_model.model, err) : 0;
}

static bool has_targets(const struct dataset *data)
{
	for (int64_t i = 0; i < dataset_rows(data); i++)
		if (dataset_row_counted(data, i) > 0)
			return true;
	return false;
}

static int check_data(const struct train_options *o, const struct dataset *train, const struct dataset *eval,
                      struct error *err)
{
	if (dataset_rows(train) < 1 || dataset_max_row(train) < 1)
		return error_set(err, -EINVAL, "the data has no row to train on");
	/* Prompts may have no answer. */
	if (o->policy.generations)
		return 0;
	if (!has_targets(train) || (eval && !has_targets(eval)))
		return error_set(err, -EINVAL,
		                 "no row of the %s has a token to learn: are the answers cut off by "
		                 "data.max_length, or the columns wrong?",
		                 has_targets(train) ? "evaluation split" : "data");
	return 0;
}

int trainer_create(struct device *dev, struct comm *comm, const struct model_config *c,
                   const struct train_options *options, const struct dataset *train,
                   const struct dataset *eval, struct trainer **out, struct error *err)
{
	_cleanup_(trainer_freep) struct trainer *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return error_oom(err);
	if ((r = train_options_check(options, err)) < 0 || (r = check_data(options, train, eval, err)) < 0)
		return r;
	t->dev = dev;
	t->comm = comm;
	t->c = *c;
	t->o = *options;
	t->o.logits_bytes = device_logits_bytes();
	t->o.widens = !device_supports(dev, t->o.precision);
	loss_scaler_start(&t->scaler, &t->o.scaler);
	t->train = train;
	t->eval = eval;
	t->rank = comm ? comm_rank(comm) : 0;
	t->world_size = comm ? comm_size(comm) : 1;
	t->groups = t->world_size / train_sequence_degree(&t->o);
	t->group = t->rank / train_sequence_degree(&t->o);
	t->max_row = train_longest_row(options, c, train, eval);
	t->sampler = (struct sampler){.rows = dataset_rows(train),
	                              .world_size = t->groups,
	                              .rank = t->group,
	                              .micro_batch = (int)t->o.micro_batch,
	                              .accumulation = (int)t->o.accumulation,
	                              .seed = t->o.seed,
	                              .shuffle = t->o.shuffle};
	if (trainer_has_policy(t)) {
		t->sampler.micro_batch = (int)train_prompts(&t->o);
		t->sampler.accumulation = 1;
	}
	/* It refuses a number of ranks that cannot be divided into groups. */
	if ((r = plan_create(dev, comm, t->rank, t->world_size, c, &t->o, t->max_row, &t->plan, err)) < 0)
		return r;
	count_steps(t);
	if ((r = allocate(t, err)) < 0)
		return r;
	*out = steal_pointer(t);
	return 0;
}

void trainer_free(struct trainer *t)
{
	if (!t)
		return;
	if (t->plan)
		shard_disconnect(t->plan->shard);
	comm_destroy(t->sequence);
	plan_free(t->plan);
	if (t->host)
		device_free_host(t->dev, t->host);
	/* With a communicator the memory is the communicator's, which frees it. */
	if (t->memory && !t->comm)
		device_free(t->dev, t->memory);
	preference_free(t);
	rollouts_free(t);
	ppo_free(t);
	scores_free(t);
	if (t->all_sums)
		device_free_host(t->dev, t->all_sums);
	for (int i = 0; i < 2; i++)
		device_event_destroy(t->work[i].read);
	free(t->rows);
	free(t->all_rows);
	free(t->ids);
	free(t->targets);
	free(t->starts);
	free(t->row_ends);
	free(t->rank_tokens);
	free(t->rank_ids);
	free(t);
}

int64_t trainer_total_steps(const struct trainer *t)
{
	return t->total_steps;
}

int64_t trainer_steps_per_epoch(const struct trainer *t)
{
	return t->steps_per_epoch;
}

int64_t trainer_step(const struct trainer *t)
{
	return t->step;
}

int64_t trainer_examples(const struct trainer *t)
{
	return sampler_seen(&t->sampler, t->step / trainer_iterations(t));
}

double trainer_epochs(const struct trainer *t)
{
	return sampler_epochs(&t->sampler, t->step / trainer_iterations(t));
}

int64_t trainer_tokens(const struct trainer *t)
{
	return t->tokens;
}

const double *trainer_rank_seconds(const struct trainer *t)
{
	return t->sums + PLAN_SUM_RANKS;
}

const struct model_layout *trainer_layout(const struct trainer *t)
{
	return t->plan->layout;
}

struct whole_model *trainer_frozen_model(const struct trainer *t)
{
	return t->plan->frozen.model ? &t->plan->frozen : NULL;
}

struct whole_model *trainer_reward_model(const struct trainer *t)
{
	return t->plan->reward_model.model ? &t->plan->reward_model : NULL;
}

int64_t trainer_disk(const struct trainer *t, const char **how)
{
	*how = shard_disk_describe(t->plan->shard);
	return *how ? shard_disk_bytes(t->plan->shard) : 0;
}

int64_t trainer_plan_bytes(const struct trainer *t)
{
	return (int64_t)arena_total(&t->plan->arena);
}

int trainer_plan_json(const struct trainer *t, json_t **out, struct error *err)
{
	json_t *host = NULL;
	int r = arena_to_json(&t->plan->arena, out, err);

	if (r < 0 || t->plan->host.used == 0)
		return r;
	r = arena_to_json(&t->plan->host, &host, err);
	if (r == 0 && json_object_set_new(*out, "host", host) < 0)
		r = error_oom(err);
	if (r < 0)
		json_decref(*out);
	return r;
}

int trainer_set_step(struct trainer *t, int64_t step, struct error *err)
{
	int r;

	if (step < 0 || step > t->total_steps)
		return error_set(err, -EINVAL, "cannot go on from step %lld of a run of %lld steps",
		                 (long long)step, (long long)t->total_steps);
	t->step = t->begun = step;
	r = optimizer_loaded(t->plan->optimizer, err);
	return r < 0 ? r : trainer_publish(t, err);
}

const struct loss_scaler *trainer_loss_scaler(const struct trainer *t)
{
	return t->o.precision == DTYPE_F16 ? &t->scaler : NULL;
}

void trainer_set_loss_scaler(struct trainer *t, const struct loss_scaler *state)
{
	if (t->o.precision == DTYPE_F16)
		loss_scaler_resume(&t->scaler, state);
}

void trainer_set_origin(struct trainer *t, int64_t step, int64_t examples)
{
	sampler_start(&t->sampler, step / trainer_iterations(t), examples);
	count_steps(t);
}
