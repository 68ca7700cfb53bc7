/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the buffers of a step, and places them in the memory that is allocated for them. */
#include "engine/train/plan.h"

#include <errno.h>
#include <stdlib.h>

/* The shard's buffers follow the model's, some of whose memory they use again. */
static void place_all(struct plan *p)
{
	model_place_buffers(p->model, &p->arena);
	for (int u = 0; u < p->layout->units; u++)
		p->shard->unit[u].reuse = model_reuse(p->model, p->layout->unit[u].base);
	p->shard->reusable_bytes = model_scratch(p->model, &p->shard->reusable);
	shard_place_buffers(p->shard, &p->arena, &p->host);
	optimizer_place_buffers(p->optimizer, &p->arena);
	if (p->frozen.model)
		whole_model_place(&p->frozen, &p->arena,
		                  p->sequences ? "reference's unit" : "teacher's unit");
	if (p->reward_model.model)
		whole_model_place(&p->reward_model, &p->arena, "reward model's unit");
	for (int u = 0; u < p->layout->units; u++)
		model_set_unit(p->model, u, p->shard->unit[u].weights, p->shard->unit[u].gradients);
	for (int i = 0; i < 2; i++)
		p->sums_of[i] = arena_take(&p->arena, BUFFER_SCRATCH, plan_sums(p) * sizeof(double),
		                           "sums of %s steps", i ? "odd" : "even");
	plan_choose_sums(p, 0);
}

size_t plan_sums(const struct plan *p)
{
	return (size_t)(PLAN_SUM_RANKS + p->shard->o.world_size + p->more_sums) + 1;
}

void plan_choose_sums(struct plan *p, int which)
{
	p->sums = p->sums_of[which];
	p->clip = p->sums ? (float *)(p->sums + plan_sums(p) - 1) : NULL;
}

/* Of a model that has experts. */
static double router_loss(const struct train_options *o, const struct model_config *c)
{
	if (!c->experts || o->preference.kind != PREFERENCE_NONE || o->policy.generations)
		return 0;
	return o->router_loss >= 0 ? o->router_loss : c->router_loss;
}

/* Whether the gradients of units come to the place of their weights (shard.h): where one unit's weights are
 * whole at a time. A slot into which blocks in 4 bits are dequantized, or weights come from the host, is
 * none. */
static bool replaces_weights(const struct train_options *o, int world_size)
{
	return world_size > 1 && o->strategy >= SHARD_ZERO3 && o->prefetch == 0 &&
	       o->offload != SHARD_OFFLOAD_ALL && o->quantize == SHARD_QUANTIZE_NONE;
}

/* Its logits come in the chunks of the model's. c: the model's own config, which a reference has, too. */
static int create_frozen(struct plan *p, struct device *dev, const struct model_config *c,
                         const struct train_options *options, const struct model_options *of,
                         struct error *err)
{
	const struct model_config *teacher = options->distillation.teacher;
	struct model_config own = *c;
	struct model_options o = {.type = of->type,
	                          .portable_attention = true,
	                          .max_tokens = of->max_tokens,
	                          .max_sequence = of->max_sequence,
	                          .sequence_degree = of->sequence_degree,
	                          .sequence_rank = of->sequence_rank,
	                          .logits_bytes = of->logits_bytes};
	struct device_shapes shapes;
	int r;

	if (!teacher && !train_has_reference(options))
		return 0;
	model_shapes(p->model, &shapes);
	o.logits_rows = shapes.logits_rows;
	own.values = false;
	r = whole_model_create(dev, teacher ? teacher : &own, &o, &p->frozen, err);
	if (r == 0 && teacher)
		model_set_teacher(p->model, p->frozen.model);
	return r < 0 ? error_prefix(err, teacher ? "the teacher" : "the reference") : 0;
}

/* It reads the completions of a micro-batch at once. */
static int create_reward_model(struct plan *p, struct device *dev, const struct train_options *options,
                               int64_t max_row, const struct model_options *of, struct error *err)
{
	const struct model_config *c = options->policy.reward_model;
	struct model_options o = {.type = of->type,
	                          .portable_attention = true,
	                          .max_sequence = max_row + POLICY_CLOSING_MOST,
	                          .logits_bytes = of->logits_bytes};
	int r;

	if (!options->policy.generations || !c)
		return 0;
	o.max_tokens = options->micro_batch * o.max_sequence;
	r = whole_model_create(dev, c, &o, &p->reward_model, err);
	return r < 0 ? error_prefix(err, "the reward model") : 0;
}

/* The logits of a policy are divided by the temperature with which it chooses, in the losses, too, as TRL has
 * it. */
static struct model_config config_of(const struct model_config *c, const struct train_options *options)
{
	struct model_config out = *c;

	if (options->policy.generations) {
		out.logits_scale /= options->policy.temperature;
		/* cap · tanh(x / cap) / T is a smaller cap on x / T. */
		out.logits_cap /= options->policy.temperature;
		out.values = options->policy.loss == POLICY_PPO;
	}
	return out;
}

static void plan_sequences(struct plan *p, const struct train_options *options, int64_t max_row,
                           struct model_options *o)
{
	if (!options->policy.generations)
		return;
	p->sequences = train_sequences(options);
	p->more_sums = POLICY_SUMS + PLAN_TOTALS;
	o->weighed = true;
	o->cache_sequences = p->sequences;
	o->cache_tokens = max_row;
	o->max_tokens = MAX(o->max_tokens, p->sequences);
}

/* What ranks that share a sequence divide. */
static int check_heads(int degree, const struct model_config *c, const char *whose, struct error *err)
{
	int fits = degree;

	if (degree > 1 && c->delta_value_heads)
		return error_set(
		    err, -EINVAL,
		    "parallel.sequence_degree = %d: the %s has layers with linear attention, of which "
		    "ranks cannot share a sequence; leave it out",
		    degree, whose);
	while (fits > 1 && (c->heads % fits || c->kv_heads % fits))
		fits--;
	return fits == degree
	           ? 0
	           : error_set(
	                 err, -EINVAL,
	                 "parallel.sequence_degree = %d: the %s has %d heads, and %d of keys and values; "
	                 "expected a divisor of both, such as %d",
	                 degree, whose, c->heads, c->kv_heads, fits);
}

static int check_sequence(const struct train_options *o, int world_size, const struct model_config *c,
                          struct error *err)
{
	int degree = train_sequence_degree(o), r;

	if (world_size % degree)
		return error_set(err, -EINVAL,
		                 "parallel.sequence_degree = %d: it has to divide the number of ranks, %d",
		                 degree, world_size);
	if ((r = check_heads(degree, c, "model", err)) < 0)
		return r;
	return o->distillation.teacher ? check_heads(degree, o->distillation.teacher, "teacher", err) : 0;
}

int plan_create(struct device *dev, struct comm *comm, int rank, int world_size,
                const struct model_config *config, const struct train_options *options, int64_t max_row,
                struct plan **out, struct error *err)
{
	_cleanup_(plan_freep) struct plan *p = calloc(1, sizeof(*p));
	const struct model_config own = config_of(config, options), *c = &own;
	struct model_options o = {.type = options->precision,
	                          .gradient_type = options->gradient_type,
	                          .fp8 = options->fp8,
	                          .fp8_shared = options->strategy >= SHARD_ZERO3 ||
	                                        options->offload == SHARD_OFFLOAD_ALL,
	                          .max_tokens = train_tokens(options, max_row),
	                          .max_sequence = max_row,
	                          .logits_bytes = options->logits_bytes,
	                          .training = true,
	                          .sequence_degree = train_sequence_degree(options),
	                          .sequence_rank = rank % train_sequence_degree(options),
	                          .weighed = options->preference.kind != PREFERENCE_NONE,
	                          .neftune_alpha = options->neftune_alpha,
	                          .label_smoothing = options->label_smoothing,
	                          .dft = options->dft,
	                          .router_loss = router_loss(options, c),
	                          .distillation_weight = options->distillation.weight,
	                          .distillation_temperature = options->distillation.temperature,
	                          .recompute = options->recompute,
	                          .kept = options->kept_blocks,
	                          .kept_outputs = options->kept_outputs,
	                          .tuning = &options->tuning,
	                          .quantized = options->quantize != SHARD_QUANTIZE_NONE,
	                          .seed = options->seed,
	                          .in_place = replaces_weights(options, world_size)};
	struct shard_options parts = {
	    .rank = rank,
	    .world_size = world_size,
	    .strategy = options->strategy,
	    .degree = options->shard_degree,
	    .type = options->precision,
	    .without_master = options->without_master,
	    .accumulates = options->accumulation > 1,
	    .prefetch = options->prefetch,
	    .persist_below = options->persist_below,
	    .wire = options->reduce_type,
	    .gradient_type = options->gradient_type,
	    .offload = options->offload,
	    .offload_dir = options->offload_dir,
	    .state_piece = options->state_piece,
	    .quantize = options->quantize,
	    /* Rows of data are known to all ranks, completions are not. Where ranks share
	     * rows, their gradients are summed with the others. */
	    .max_tokens = options->policy.generations || o.sequence_degree > 1 ? 0 : o.max_tokens};
	int r;

	if (!p)
		return error_oom(err);
	if (options->preference.kind != PREFERENCE_NONE)
		p->more_sums = PREFERENCE_SUMS + PLAN_KL;
	plan_sequences(p, options, max_row, &o);
	if (options->router_loss > 0 && !c->experts)
		return error_set(err, -EINVAL, "train.router_loss: the model has no experts; leave it out");
	if ((r = check_sequence(options, world_size, c, err)) < 0)
		return r;
	if (options->micro_batch * max_row > INT32_MAX / 2 / MAX(c->chosen_experts, 1))
		return error_set(err, -EINVAL,
		                 "micro_batch %lld times rows of %lld tokens is more than a step can hold",
		                 (long long)options->micro_batch, (long long)max_row);
	if ((r = model_layout_create_tuned(c, &options->tuning, &p->layout, err)) < 0 ||
	    (r = shard_create(dev, comm, &parts, p->layout, &p->shard, err)) < 0 ||
	    (r = optimizer_create(options->optimizer, options->momentum > 0,
	                          options->widens ? DTYPE_F32 : options->precision, p->layout, p->shard,
	                          &p->optimizer, err)) < 0 ||
	    (r = model_create(dev, c, p->layout, &o, &p->model, err)) < 0 ||
	    (r = create_frozen(p, dev, c, options, &o, err)) < 0 ||
	    (r = create_reward_model(p, dev, options, max_row, &o, err)) < 0)
		return r;
	place_all(p);
	if (p->arena.failed || p->host.failed)
		return error_oom(err);
	*out = steal_pointer(p);
	return 0;
}

int plan_shapes(const struct plan *p, struct device_shapes shapes[PLAN_MODELS])
{
	const struct whole_model *others[] = {&p->frozen, &p->reward_model};
	int n = 1;

	model_shapes(p->model, &shapes[0]);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (others[i]->model)
			model_shapes(others[i]->model, &shapes[n++]);
	return n;
}

void plan_free(struct plan *p)
{
	if (!p)
		return;
	model_free(p->model);
	whole_model_clear(&p->frozen);
	whole_model_clear(&p->reward_model);
	optimizer_free(p->optimizer);
	shard_free(p->shard);
	model_layout_free(p->layout);
	arena_free(&p->arena);
	arena_free(&p->host);
	free(p);
}

void plan_bind(struct plan *p, void *memory, void *host)
{
	arena_bind(&p->arena, memory);
	arena_bind(&p->host, host);
	place_all(p);
}
