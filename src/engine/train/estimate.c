/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a run in each way in which it could be run, and chooses the fastest that fits. */
#include "engine/train/estimate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/checkpoint/save_plan.h"
#include "engine/train/plan.h"

/* Beyond that a run is not refused for less, but for its model. */
#define RANKS_MOST 65536

const char *estimate_strategy_name(enum shard_strategy strategy)
{
	return shard_strategy_name(strategy);
}

const char *estimate_class_name(enum buffer_class c)
{
	return buffer_class_name(c);
}

/* The part of the memory that "auto" leaves free: what libraries take as a run goes on is estimated, and a
 * device cannot swap. */
#define SPARE_PART 50

/* Reading a row maps up to 64 KiB around it (fault_around_bytes of the kernel), until the next micro-step;
 * rows that lie near each other share them. */
#define MAPPED_BY_ROW (32 << 10)

static size_t outside(const struct estimate_input *in, const struct plan *plan,
                      const struct device_shapes *shapes, int models)
{
	size_t packing = 0;
	const struct hardware *h = &in->where->device;
	bool alone = in->where->nodes * in->where->per_node == 1;
	int lanes = shard_lanes(plan->shard) + (train_sequence_degree(in->options) > 1);
	bool bf16 =
	    shapes->type == DTYPE_BF16 && (h->sizing.engine != DEVICE_ENGINE_CPU || h->sizing.native_bf16);

	for (int i = 0; i < models; i++)
		packing = MAX(packing,
		              device_sizing_packing(&h->sizing, &shapes[i], in->options->accumulation > 1));
	return (size_t)(h->outside + (bf16 ? h->outside_bf16 : 0) +
	                (bf16 && plan->layout->adapts ? h->outside_adapters : 0) +
	                (alone ? 0 : h->outside_comm + lanes * h->outside_lane)) +
	       packing +
	       (h->sizing.engine == DEVICE_ENGINE_CPU ? (size_t)in->options->micro_batch * MAPPED_BY_ROW : 0);
}

/* Bytes that a checkpoint has of an element. */
static size_t copied_bytes(const struct train_options *o, const struct plan *plan,
                           const struct model_parameter *p)
{
	bool master = o->precision != DTYPE_F32 && !o->without_master;
	size_t bytes = dtype_size(o->precision) + (master ? sizeof(float) : 0);

	for (int moment = 1; moment <= 2; moment++)
		if (optimizer_keeps(plan->optimizer, moment, p) ||
		    (moment == 2 && optimizer_has_factors(plan->optimizer)))
			bytes += sizeof(float);
	return bytes;
}

/* Elements of a parameter that a rank copies: those that hold the same divide it between them, unless it is
 * small (checkpoint/save_plan.c). */
static int64_t copied_elements(const struct plan *plan, int parameter, int64_t rank, int64_t ranks)
{
	const struct shard *s = plan->shard;
	const struct model_parameter *p = &plan->layout->parameter[parameter];
	int64_t own = s->unit[p->unit].own, first = rank % s->degree * own, n = p->count;
	int64_t writers = ranks / s->degree, index = rank / s->degree;

	if (s->degree > 1)
		n = MAX(MIN(first + own, p->offset + p->count) - MAX(first, p->offset), 0);
	if (n < SAVE_PLAN_WORTH_DIVIDING * writers)
		return parameter % writers == index ? n : 0;
	return n / writers + (index + 1 == writers ? n % writers : 0);
}

/* Beyond that many ranks, small parameters do not matter. */
#define UNEVEN_RANKS 64

/* The ranks divide what a checkpoint has between them, not quite evenly: the middle between the one that
 * copies the most and the one that copies the least. */
static size_t copies(const struct estimate_input *in, const struct train_options *o, const struct plan *plan)
{
	int64_t ranks = (int64_t)in->where->nodes * in->where->per_node;
	int64_t asked = ranks > UNEVEN_RANKS ? 1 : ranks;
	size_t most = 0, least = SIZE_MAX;

	for (int64_t rank = 0; rank < asked; rank++) {
		size_t bytes = 0;

		for (int i = 0; i < plan->layout->parameters && o->copies_state; i++) {
			const struct model_parameter *p = &plan->layout->parameter[i];
			int64_t n = asked == ranks ? copied_elements(plan, i, rank, ranks)
			                           : (p->count + ranks - 1) / ranks;

			bytes += p->frozen ? 0 : (size_t)n * copied_bytes(o, plan, p);
		}
		most = MAX(most, bytes);
		least = MIN(least, bytes);
	}
	return least + (most - least) / 2;
}

/* A CPU's own memory is the host's. */
static size_t shared_host(const struct estimate_input *in, const struct estimate *e)
{
	return in->where->device.sizing.engine == DEVICE_ENGINE_CPU ? e->host : 0;
}

int estimate_run(const struct estimate_input *in, struct estimate *out, struct error *err)
{
	const struct hardware *h = &in->where->device;
	_cleanup_(plan_freep) struct plan *plan = NULL;
	struct train_options o = *in->options;
	struct device_shapes shapes[PLAN_MODELS];
	size_t scratch = 0;
	int models, r;

	if (o.fp8 && h->sizing.engine == DEVICE_ENGINE_CUDA && h->fp8 <= 0)
		return error_set(err, -EOPNOTSUPP,
		                 "train.precision = \"fp8\": %s has no fp8 arithmetic, which GPUs of compute "
		                 "capability 8.9 (Ada, Hopper) and newer have; bf16 works",
		                 h->name);
	o.logits_bytes = device_sizing_logits(h->sizing.engine);
	o.widens = h->sizing.engine == DEVICE_ENGINE_CPU &&
	           (o.precision == DTYPE_F16 || (o.precision == DTYPE_BF16 && !h->sizing.native_bf16));
	r = plan_create(NULL, NULL, 0, in->where->nodes * in->where->per_node, in->model, &o, in->max_row,
	                &plan, err);
	if (r < 0)
		return r;
	models = plan_shapes(plan, shapes);
	shapes[0].orthogonalizes = o.optimizer == OPTIMIZER_MUON;
	for (int i = 0; i < models; i++)
		scratch = MAX(scratch, device_sizing_scratch(&h->sizing, &shapes[i]));
	arena_note(&plan->arena, BUFFER_SCRATCH, scratch, "device");
	if (plan->arena.failed)
		return error_oom(err);
	*out = (struct estimate){.strategy = o.strategy,
	                         .recompute = o.recompute,
	                         .kept = o.kept_blocks,
	                         .outputs = model_kept_outputs(plan->model),
	                         .plan = arena_total(&plan->arena),
	                         .copies = copies(in, &o, plan),
	                         .outside = outside(in, plan, shapes, models),
	                         .host = arena_total(&plan->host),
	                         .disk = (size_t)shard_disk_bytes(plan->shard),
	                         .available = (size_t)h->memory};
	out->outside += h->slots > 0 ? out->copies : 0;
	for (size_t i = 0; i < plan->arena.n; i++)
		out->bytes[plan->arena.buffers[i].class_] += plan->arena.buffers[i].bytes;
	out->total = out->plan + out->outside + shared_host(in, out);
	out->fits = out->total <= out->available;
	out->spare = out->total <= out->available - out->available / SPARE_PART;
	cost_of_step(plan, in->model, &o, in->max_row, in->where, &out->cost);
	return 0;
}

/* Of two that fit: the one with spare memory; then the faster, by more than rounding; of two as fast, the one
 * of less memory. */
static bool is_better(const struct estimate *a, const struct estimate *b)
{
	if (a->spare != b->spare)
		return a->spare;
	if (a->cost.step < b->cost.step * 0.999)
		return true;
	return a->cost.step <= b->cost.step * 1.001 && a->total < b->total;
}

/* Some say the same as others: with one rank all do, and on one node hybrid as zero3. */
static bool is_apart(const struct estimate_input *in, enum shard_strategy strategy)
{
	int ranks = in->where->nodes * in->where->per_node;

	return strategy == in->options->strategy || strategy == SHARD_DDP ||
	       (ranks > 1 && (strategy != SHARD_HYBRID || in->options->shard_degree < ranks));
}

static const enum model_recompute ways[] = {MODEL_KEEP_ALL, MODEL_RECOMPUTE_SELECTIVE, MODEL_RECOMPUTE_BLOCK};

static const char *way_name(enum model_recompute way)
{
	return way == MODEL_KEEP_ALL ? "none" : way == MODEL_RECOMPUTE_BLOCK ? "full" : "selective";
}

const char *estimate_recompute_text(char *buf, size_t size, const struct estimate *e)
{
	if (e->kept > 0)
		snprintf(buf, size, "%s, %d kept", way_name(e->recompute), e->kept);
	else if (e->outputs > 0)
		snprintf(buf, size, "%s, outputs of %d kept", way_name(e->recompute), e->outputs);
	else
		snprintf(buf, size, "%s", way_name(e->recompute));
	return buf;
}

const char *estimate_fits_text(const struct estimate *e)
{
	return e->spare ? "yes" : e->fits ? "tight" : "no";
}

const char *estimate_recompute_key(const struct estimate *e)
{
	return e->kept > 0 || e->outputs > 0 ? "auto" : way_name(e->recompute);
}

static void add(struct estimate_list *list, const struct estimate *e)
{
	list->all[list->count] = *e;
	if (e->fits && (list->choice < 0 || is_better(e, &list->all[list->choice])))
		list->choice = (int)list->count;
	list->count++;
}

/* Between keeping everything, which leaves too little, and `least`, which does not: as many whole blocks as
 * leave spare memory. Memory grows by the same for each of them. */
static int add_kept(const struct estimate_input *in, const struct estimate *least, size_t whole,
                    struct estimate_list *list, struct error *err)
{
	struct train_options o = *in->options;
	struct estimate_input one = *in;
	int layers = in->model->layers, r;
	double each = (double)(whole - least->total) / MAX(layers - 1, 1);
	double room = (double)(least->available - least->total) / MAX(each, 1) + 1;
	struct estimate e;

	one.options = &o;
	o.recompute = least->recompute;
	for (o.kept_blocks = (int)MIN(room, layers - 2.0); o.kept_blocks > 0; o.kept_blocks--) {
		if ((r = estimate_run(&one, &e, err)) < 0)
			return r;
		if (e.spare) {
			add(list, &e);
			break;
		}
	}
	return 0;
}

/* In addition to keeping everything: the outputs of norms and of the activation of as many blocks as leave
 * spare memory. */
static int add_outputs(const struct estimate_input *in, const struct estimate *whole,
                       struct estimate_list *list, struct error *err)
{
	struct train_options o = *in->options;
	struct estimate_input one = *in;
	int layers = in->model->layers, r;
	struct estimate e;
	double each;

	one.options = &o;
	o.recompute = MODEL_KEEP_ALL;
	o.kept_outputs = layers;
	while (o.kept_outputs > 0) {
		if ((r = estimate_run(&one, &e, err)) < 0)
			return r;
		if (e.outputs > 0 && e.spare)
			add(list, &e);
		if (e.outputs == 0 || e.spare)
			break;
		each = ((double)e.total - (double)whole->total) / e.outputs;
		o.kept_outputs =
		    (int)MIN((double)(whole->available - whole->total) / MAX(each, 1) + 1, e.outputs - 1.0);
	}
	return 0;
}

/* All ways of the strategy that in->options has. */
static int add_strategy(const struct estimate_input *in, struct estimate_list *list, struct error *err)
{
	struct estimate way[ARRAY_SIZE(ways)];
	struct train_options o = *in->options;
	struct estimate_input one = *in;
	int r;

	one.options = &o;
	o.kept_blocks = o.kept_outputs = 0;
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		o.recompute = ways[i];
		if ((r = estimate_run(&one, &way[i], err)) < 0)
			return r;
	}
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		if (i > 0 && way[i].spare && !way[0].spare &&
		    (r = add_kept(&one, &way[i], way[0].total, list, err)) < 0)
			return r;
		if (i == 0 && way[0].spare && (r = add_outputs(&one, &way[0], list, err)) < 0)
			return r;
		if (way[i].recompute == in->options->recompute)
			list->run = (int)list->count;
		add(list, &way[i]);
	}
	return 0;
}

int estimate_list(const struct estimate_input *in, struct estimate_list *out, struct error *err)
{
	struct train_options o = *in->options;
	struct estimate_input one = *in;

	*out = (struct estimate_list){.run = -1, .choice = -1};
	one.options = &o;
	for (int strategy = SHARD_DDP; strategy <= SHARD_HYBRID; strategy++) {
		int run = out->run, r;

		if (!is_apart(in, (enum shard_strategy)strategy))
			continue;
		o.strategy = (enum shard_strategy)strategy;
		r = add_strategy(&one, out, err);
		if (o.strategy != in->options->strategy) {
			out->run = run;
			/* What these ranks, or this model, cannot be divided by is no choice. */
			r = r == -EINVAL ? 0 : r;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

const struct estimate *estimate_best(const struct estimate_list *list, int strategy, int recompute)
{
	const struct estimate *best = NULL;

	for (size_t i = 0; i < list->count; i++) {
		const struct estimate *e = &list->all[i];

		if ((strategy >= 0 && (int)e->strategy != strategy) ||
		    (recompute >= 0 && ((int)e->recompute != recompute || e->kept > 0 || e->outputs > 0)))
			continue;
		if (!best || (e->fits && !best->fits) ||
		    (e->fits == best->fits && (e->fits ? is_better(e, best) : e->total < best->total)))
			best = e;
	}
	return best;
}

/* What fits: on these devices, else there with parallel.prefetch = 0, else on twice as many, and so on; else
 * the least of the last, which does not. prefetch: that of it. */
static int find_fitting(const struct estimate_input *in, struct estimate *out, int *ranks, int *prefetch,
                        struct error *err)
{
	/* The same recomputation first: the less that has to be changed, the nearer. */
	static const struct {
		bool lean, either;
	} changes[] = {{false, false}, {false, true}, {true, false}, {true, true}};
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	struct train_options o = *in->options;
	struct hardware_set where = *in->where;
	struct estimate_input more = *in;
	int r;

	if (!list)
		return error_oom(err);
	more.where = &where;
	more.options = &o;
	for (; where.nodes <= RANKS_MOST / where.per_node; where.nodes *= 2) {
		*ranks = where.nodes * where.per_node;
		if (o.offload == SHARD_OFFLOAD_ALL && *ranks > 1)
			o.strategy = MAX(o.strategy, SHARD_ZERO3);
		for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
			if (changes[i].lean && in->options->prefetch == 0)
				continue;
			o.prefetch = changes[i].lean ? 0 : in->options->prefetch;
			if ((r = estimate_list(&more, list, err)) < 0)
				return r;
			*out = *estimate_best(list, -1, changes[i].either ? -1 : (int)in->options->recompute);
			*prefetch = out->strategy >= SHARD_ZERO3 ? o.prefetch : in->options->prefetch;
			if (out->fits)
				return 0;
		}
	}
	return 0;
}

int estimate_check(const struct estimate_input *in, struct error *err)
{
	char needs[24], has[24], takes[24], devices[48] = "", again[48] = "";
	int ranks = in->where->nodes * in->where->per_node, prefetch = in->options->prefetch, r;
	struct estimate e, other;

	if ((r = estimate_run(in, &e, err)) < 0)
		return r;
	if (e.plan + shared_host(in, &e) <= e.available)
		return 0;
	other = e;
	if ((r = find_fitting(in, &other, &ranks, &prefetch, err)) < 0)
		return r;
	if (ranks != in->where->nodes * in->where->per_node)
		snprintf(devices, sizeof(devices), " on %d devices", ranks);
	if (other.recompute != in->options->recompute)
		snprintf(again, sizeof(again), " with train.recompute = \"%s\"",
		         estimate_recompute_key(&other));
	return error_set(
	    err, -ENOMEM,
	    "a rank would take %s, and its device has %s; %sparallel.strategy = \"%s\"%s%s%s would "
	    "take %s%s",
	    str_bytes(needs, sizeof(needs), e.plan + shared_host(in, &e)),
	    str_bytes(has, sizeof(has), e.available), other.fits ? "" : "even ",
	    shard_strategy_name(other.strategy),
	    prefetch != in->options->prefetch ? " and parallel.prefetch = 0" : "", again, devices,
	    str_bytes(takes, sizeof(takes), other.total),
	    other.fits ? ""
	    : in->model->kv_heads > train_sequence_degree(in->options) && !in->options->policy.generations
	        ? ": shorten data.max_length, lower train.micro_batch or raise parallel.sequence_degree"
	        : ": shorten data.max_length or lower train.micro_batch");
}

static json_t *memory_json(const struct estimate *e)
{
	json_t *o = json_object();

	for (int i = 0; i < BUFFER_CLASSES; i++)
		json_object_set_new(o, buffer_class_name(i), json_integer((json_int_t)e->bytes[i]));
	json_object_set_new(o, "plan", json_integer((json_int_t)e->plan));
	json_object_set_new(o, "copies", json_integer((json_int_t)e->copies));
	json_object_set_new(o, "outside", json_integer((json_int_t)e->outside));
	json_object_set_new(o, "host", json_integer((json_int_t)e->host));
	json_object_set_new(o, "disk", json_integer((json_int_t)e->disk));
	json_object_set_new(o, "peak", json_integer((json_int_t)e->total));
	json_object_set_new(o, "available", json_integer((json_int_t)e->available));
	return o;
}

json_t *estimate_plan_json(const struct estimate *e)
{
	const struct cost *c = &e->cost;

	return json_pack("{s:s,s:s,s:i,s:i,s:b,s:o,s:{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f},s:f,s:f}",
	                 "strategy", shard_strategy_name(e->strategy), "recompute", way_name(e->recompute),
	                 "kept", e->kept, "outputs", e->outputs, "fits", e->fits, "memory", memory_json(e),
	                 "seconds", "step", c->step, "generation", c->generation, "forward", c->forward,
	                 "backward", c->backward, "recompute", c->recompute, "head", c->head, "optimizer",
	                 c->optimizer, "communication", c->communication, "exposed", c->exposed,
	                 "tokens_per_second", c->tokens_per_second, "mfu", c->mfu);
}

static json_t *model_json(const struct model_config *c)
{
	return json_pack("{s:s,s:i,s:I,s:I}", "family", c->family, "layers", c->layers, "parameters",
	                 (json_int_t)model_config_parameters(c), "active_parameters",
	                 (json_int_t)model_config_active_parameters(c));
}

int estimate_to_json(const struct estimate_input *in, const struct estimate_list *list, json_t **out,
                     struct error *err)
{
	const struct hardware_set *w = in->where;
	json_t *plans = json_array(), *all;

	for (size_t i = 0; i < list->count; i++)
		json_array_append_new(plans, estimate_plan_json(&list->all[i]));
	all = json_pack(
	    "{s:o,s:o*,s:{s:s,s:s,s:i,s:i,s:I},s:{s:s,s:I,s:I,s:i,s:I,s:I},s:o}", "model",
	    model_json(in->model), "teacher",
	    in->options->distillation.teacher ? model_json(in->options->distillation.teacher) : NULL,
	    "devices", "name", w->device.name, "rates", w->device.rates ? "measured" : "table", "nodes",
	    w->nodes, "per_node", w->per_node, "memory", (json_int_t)w->device.memory, "step", "precision",
	    in->options->fp8 ? "float8" : dtype_name(in->options->precision), "micro_batch",
	    (json_int_t)in->options->micro_batch, "accumulation", (json_int_t)in->options->accumulation,
	    "sequence_degree", train_sequence_degree(in->options), "max_row", (json_int_t)in->max_row,
	    "tokens", (json_int_t)list->all[0].cost.tokens, "plans", plans);
	if (!all || json_array_size(plans) != list->count) {
		json_decref(all);
		return error_oom(err);
	}
	json_object_set_new(all, "run", list->run < 0 ? json_null() : json_integer(list->run));
	json_object_set_new(all, "choice", list->choice < 0 ? json_null() : json_integer(list->choice));
	*out = all;
	return 0;
}
