/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a step through, whose operations cost_parts.c has the times of: what of its communication the
 * computation hides. */
#include "engine/train/cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "engine/shard/packed.h"
#include "engine/train/cost_parts.h"

/* What a GPU's link to the memory of its host carries in a direction, which has not been measured. */
#define HOST_LINK 25e9
/* Of the memory of a host of GPUs, which has not been measured. */
#define HOST_MEMORY 200e9

/* Of a node's disk, which has not been measured: what it reads and writes in a second. */
#define DISK 3e9

/* Times of the collectives of a unit, over the ranks that share a copy of the model, and over its copies; 0:
 * it has none. */
struct unit_times {
	double gather, reduce, replicate, optimizer;
};

/* Of a tied embedding whose rows travel by themselves: their gather, and adding them. */
struct row_times {
	double gather, add;
};

struct player {
	const struct shard *shard;
	const struct train_options *o;
	const struct cost_parts *parts;
	struct unit_times *unit;
	struct row_times rows;
	double *ready;                   /* when a unit's weights are there; INFINITY: not asked for yet */
	double *reduced;                 /* when its gradients are summed */
	int units, recomputed;           /* recomputed: blocks, the first of all */
	int outputs;                     /* blocks that keep outputs, the last of all */
	int lowest;                      /* the backward pass ends with it */
	int ring[SHARD_SLOTS_MAX], next; /* the units that are in the slots of the blocks; -1: none */
	double now, gather_lane, reduce_lane; /* when the lane is free */
	double turn;                          /* how long a collective of a shard group waits for turns */
	double copies_turn;                   /* how long one over the copies of the model does */
	double sums;                          /* what a step of the optimizer waits for */
	double waited, communication;
};

static double queue(struct player *p, double *lane, double seconds, double turn)
{
	seconds += seconds > 0 ? turn : 0;
	*lane = MAX(*lane, p->now) + seconds;
	p->communication += seconds;
	return *lane;
}

static void wait_for(struct player *p, double when)
{
	if (when > p->now) {
		p->waited += when - p->now;
		p->now = when;
	}
}

/* What comes up from the host's memory; on a CPU it is copied between two operations. */
static double upload_seconds(const struct train_options *o, const struct hardware_set *where,
                             const struct shard_unit *u)
{
	const struct hardware *h = &where->device;
	double bytes = u->packed ? (double)u->packed->own : (double)u->own * (double)dtype_size(o->precision);

	if (o->offload != SHARD_OFFLOAD_ALL || u->whole_weights)
		return 0;
	return h->sizing.engine == DEVICE_ENGINE_CPU ? cost_stream(h, o->precision, RATE_COPY, 2 * bytes)
	                                             : bytes / HOST_LINK;
}

/* Gradients that go down in each micro-step, and come up to be added to. */
static double download_seconds(const struct train_options *o, const struct hardware_set *where,
                               const struct shard_unit *u)
{
	const struct hardware *h = &where->device;
	double bytes = (double)u->own * sizeof(float) * (o->accumulation > 1 ? 2 : 1);

	if (o->offload != SHARD_OFFLOAD_ALL)
		return 0;
	return h->sizing.engine == DEVICE_ENGINE_CPU ? cost_stream(h, DTYPE_F32, RATE_COPY, 2 * bytes)
	                                             : bytes / HOST_LINK;
}

/* user: the unit whose weights are in use, and keep their slot; -1: none. */
static void gather(struct player *p, int u, int user)
{
	int slots = 1 + p->o->prefetch;

	if (u < 0 || u >= p->units || p->ready[u] < INFINITY)
		return;
	if (!p->shard->unit[u].whole_weights && p->shard->unit[u].weights_ring == SHARD_RING_BLOCKS) {
		if (slots > 1 && p->ring[p->next] == user)
			p->next = (p->next + 1) % slots;
		if (p->ring[p->next] >= 0)
			p->ready[p->ring[p->next]] = INFINITY;
		p->ring[p->next] = u;
		p->next = (p->next + 1) % slots;
	} else if (!p->shard->unit[u].whole_weights) {
		p->ready[u == 0 ? p->units - 1 : 0] = INFINITY;
	}
	p->ready[u] = queue(p, &p->gather_lane, p->unit[u].gather, p->turn);
}

/* The weights of a unit, and those that are gathered ahead of it. */
static void need(struct player *p, int u, int direction)
{
	gather(p, u, -1);
	for (int i = 1; i <= p->o->prefetch; i++)
		gather(p, u + i * direction, u);
	wait_for(p, p->ready[u]);
}

/* A unit's gradients in the backward pass: with two slots, those of the unit before the last have to be
 * gone. */
static void reduce(struct player *p, int u, bool last)
{
	double *lane = &p->reduce_lane;

	p->reduced[u] = queue(p, lane, p->unit[u].reduce, p->turn);
	if (last && p->unit[u].replicate > 0)
		p->reduced[u] = queue(p, lane, p->unit[u].replicate, p->copies_turn);
}

/* Of AdamW's time, that of a step of an element: measured on a processor, where AdamW takes 28 bytes. */
static const double optimizer_share[OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = 1,     [OPTIMIZER_SGD] = 0.8,      [OPTIMIZER_LION] = 0.7,
    [OPTIMIZER_LAMB] = 1.5,    [OPTIMIZER_LARS] = 1.1,     [OPTIMIZER_MUON] = 0.8,
    [OPTIMIZER_ADAFACTOR] = 4, [OPTIMIZER_ADAMW_8BIT] = 9, [OPTIMIZER_LION_8BIT] = 4,
};

/* Sums over the ranks that its step waits for where they have shards, beside that of the gradients' norm. */
static const int optimizer_sums[OPTIMIZERS] = {
    [OPTIMIZER_LAMB] = 1, [OPTIMIZER_LARS] = 1, [OPTIMIZER_ADAFACTOR] = 3, [OPTIMIZER_MUON] = 1};

/* How long a rank waits in a collective for another one that shares its processor: about as long as Linux
 * lets a thread run before the next one has its turn. Measured with 3 and 4 ranks on 2 processors, in 100
 * models. */
#define TURN 1e-3

/* How long the ranks wait in a sum over them that nothing hides. */
#define SUM_WAIT 1e-3

/* What lies between the operations of a step, as a share of them: measured on processors, where the rates are
 * those of each operation alone, 6 % in the median of 40 models. */
#define BETWEEN 0.06

static double optimizer_bytes(const struct train_options *o, enum dtype gradient)
{
	/* Gradient for the norm, whose sum in fp64 takes as long as twice its bytes, and again; moments;
	 * weights. */
	double bytes = 3 * (double)dtype_size(gradient) + 16;

	bytes += o->precision == DTYPE_F32 ? 8 : o->without_master ? 4 : 8 + 2;
	return bytes * optimizer_share[o->optimizer];
}

/* Muon's five iterations on a matrix: each has products of the shorter side with the longer, of the shorter
 * with itself, and of both again. Before them the momentum is scaled and cast, and behind them cast again. */
static double orthogonal_seconds(const struct train_options *o, const struct hardware *h,
                                 const struct model_parameter *p)
{
	double side = (double)MIN(p->shape[0], p->shape[1]), length = (double)MAX(p->shape[0], p->shape[1]);
	enum dtype type = o->widens ? DTYPE_F32 : o->precision;
	double s = (double)dtype_size(type);

	return 5 * (cost_gemm(h, type, RATE_PRODUCT_FORWARD, side, side, length, s, false) +
	            cost_gemm(h, type, RATE_PRODUCT_INPUT, side, side, side, s, true) +
	            cost_gemm(h, type, RATE_PRODUCT_INPUT, side, length, side, s, true) +
	            cost_stream(h, type, RATE_COPY, 2 * s * side * (side + length))) +
	       cost_stream(h, type, RATE_COPY, (16 + 2 * s) * side * length);
}

/* Of the matrices of which elements [first, first + n) of the unit are a part: each rank that steps a part of
 * one computes all of it. */
static double muon_share(const struct train_options *o, const struct hardware *h,
                         const struct model_layout *l, int unit, int64_t first, int64_t n)
{
	double sum = 0;

	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		if (p->unit == unit && p->matrix && p->offset < first + n && p->offset + p->count > first)
			sum += orthogonal_seconds(o, h, p);
	}
	return sum;
}

/* The rank with most to do, which the others wait for, is one in whose part a matrix begins or ends. */
static double muon_seconds(const struct train_options *o, const struct hardware *h,
                           const struct model_layout *l, int unit, int64_t own)
{
	double most = 0;

	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];
		int64_t begin = p->offset / own * own, end = (p->offset + p->count - 1) / own * own;

		if (p->unit != unit || !p->matrix)
			continue;
		most = MAX(most, muon_share(o, h, l, unit, begin, own));
		most = MAX(most, muon_share(o, h, l, unit, end, own));
	}
	return most;
}

/* The gradients' way down is under the backward pass, and is not counted. */
static double host_seconds(const struct train_options *o, const struct hardware_set *where, double own,
                           enum dtype gradient)
{
	const struct hardware *h = &where->device;
	double copies = o->offload ? own * 2 * (double)(sizeof(float) + dtype_size(o->precision)) : 0;

	if (!o->offload || h->sizing.engine == DEVICE_ENGINE_CPU)
		return cost_stream(h, o->precision, RATE_OPTIMIZER,
		                   own * optimizer_bytes(o, gradient) + copies);
	return own * optimizer_bytes(o, gradient) * where->per_node / HOST_MEMORY +
	       (o->offload == SHARD_OFFLOAD_ALL ? 0 : own * (double)dtype_size(o->precision) / HOST_LINK);
}

/* The disk reads and writes while the host steps; bytes: of the unit's state on it. */
static double optimizer_seconds(const struct train_options *o, const struct hardware_set *where, double own,
                                enum dtype gradient, double bytes)
{
	return MAX(host_seconds(o, where, own, gradient), 2 * bytes * where->per_node / DISK);
}

static void empty_slots(struct player *p)
{
	for (int i = 0; i < SHARD_SLOTS_MAX; i++)
		p->ring[i] = -1;
	p->next = 0;
}

/* Where gradients have replaced a unit's weights, the next unit that is gathered waits for their sum. */
static void leave_place(struct player *p, int u)
{
	if (!p->shard->unit[u].in_place)
		return;
	wait_for(p, p->reduced[u]);
	p->ready[u] = INFINITY;
}

/* With ranks that share the tokens; no computation goes on meanwhile. */
static void exchange(struct player *p, double seconds)
{
	p->communication += seconds;
	wait_for(p, p->now + seconds);
}

static void play_step(struct player *p, double overlap)
{
	const struct cost_parts *t = p->parts;
	int last = p->units - 1;
	double before = p->communication, waited = p->waited;

	for (int64_t a = 0; a < p->o->accumulation; a++) {
		bool final = a == p->o->accumulation - 1;

		if (a > 0)
			leave_place(p, p->lowest);
		for (int u = 0; u < last; u++) {
			need(p, u, 1);
			p->now += u == 0 ? t->embedding_forward : t->block_forward;
			exchange(p, u == 0 ? 0 : t->exchange_forward);
		}
		for (int u = last; u >= p->lowest; u--) {
			bool again = u > 0 && u <= p->recomputed, kept = u >= last - p->outputs;

			if (u < last)
				leave_place(p, u + 1);
			need(p, u, -1);
			if (p->shard->unit[u].in_slot && u + 2 < last)
				wait_for(p, p->reduced[u + 2]);
			p->now += u == last ? t->head
			          : u == 0
			              ? t->embedding_backward
			              : t->block_backward + (again ? t->again : 0) - (kept ? t->saved : 0);
			if (u > 0 && u < last)
				exchange(p, t->exchange_backward);
			if (shard_gathers_rows(p->shard) && final && u == last)
				reduce(p, 0, final);
			if (shard_gathers_rows(p->shard) && final && u == 0)
				p->reduced[0] = queue(p, &p->reduce_lane, p->rows.gather, p->copies_turn);
			else if (final || shard_in_step(p->shard) || p->o->offload == SHARD_OFFLOAD_ALL)
				reduce(p, u, final);
		}
	}
	wait_for(p, p->reduced[p->lowest]);
	p->now += p->sums;
	if (shard_gathers_rows(p->shard))
		p->now += p->rows.add;
	for (int u = 0; u <= last; u++) {
		p->now += p->unit[u].optimizer;
		if (p->unit[u].gather > 0)
			p->ready[u] = INFINITY;
		if (p->shard->unit[u].whole_weights)
			gather(p, u, -1);
	}
	empty_slots(p);
	gather(p, 0, -1);
	/* What is hidden takes processors and bandwidth from the computation. */
	p->now += overlap * MAX(p->communication - before - (p->waited - waited), 0);
}

static bool is_measured_cpu(const struct hardware *h)
{
	return h->rates && h->sizing.engine == DEVICE_ENGINE_CPU;
}

/* More threads than processors take turns; and operations take longer in a step than by themselves. */
static void slow_down(struct player *p, struct cost_parts *t, double factor)
{
	double *const parts[] = {&t->block_forward, &t->block_backward,    &t->again,
	                         &t->saved,         &t->embedding_forward, &t->embedding_backward,
	                         &t->head,          &t->exchange_forward,  &t->exchange_backward};

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		*parts[i] *= factor;
	for (int u = 0; u < p->units; u++) {
		p->unit[u].gather *= factor;
		p->unit[u].reduce *= factor;
		p->unit[u].replicate *= factor;
		p->unit[u].optimizer *= factor;
	}
	p->rows.gather *= factor;
	p->rows.add *= factor;
}

/* What travels of a unit's weights: of one that is stored in 4 bits, these. */
static double weights_bytes(const struct train_options *o, const struct shard_unit *u)
{
	return u->packed ? (double)u->packed->bytes : (double)u->padded * (double)dtype_size(o->precision);
}

static void count_units(struct player *p, const struct model_layout *l, const struct model_config *c,
                        const struct hardware_set *where)
{
	const struct hardware *h = &where->device;
	const struct shard *s = p->shard;
	int inside = MIN(s->degree, where->per_node), across = (s->degree + inside - 1) / inside;
	int copies_inside = MAX(where->per_node / s->degree, 1);
	double all = 0, disk;
	int copies_across = (s->replicas + copies_inside - 1) / copies_inside;

	for (int u = 0; u < s->units; u++)
		all += s->unit[u].frozen ? 0 : (double)s->unit[u].own;
	disk = (double)shard_disk_bytes(s) / MAX(all, 1);
	for (int u = 0; u < p->units; u++) {
		struct unit_times *t = &p->unit[u];
		/* What is trained of a unit that is frozen is its companion. */
		int trained = l->unit[u].frozen ? l->unit[u].companion : u;
		const struct shard_unit *of = trained < 0 ? NULL : &s->unit[trained];
		double elements, own, wire = (double)dtype_size(p->o->reduce_type);

		if (!s->unit[u].whole_weights || !s->unit[u].frozen)
			t->gather = cost_gather(h, weights_bytes(p->o, &s->unit[u]), across, inside) +
			            upload_seconds(p->o, where, &s->unit[u]);
		else if (of)
			t->gather = cost_gather(h, weights_bytes(p->o, of), across, inside);
		if (!of)
			continue;
		elements = (double)of->padded, own = (double)of->own;
		t->optimizer = optimizer_seconds(p->o, where, own, of->gradient_type, disk * own);
		if (p->o->optimizer == OPTIMIZER_MUON && u > 0 && u < p->units - 1 && !l->adapts)
			t->optimizer += muon_seconds(p->o, h, l, trained, of->own) +
			                /* The whole momentum of a unit, which is waited for. */
			                cost_gather(h, elements * sizeof(float), across, inside);
		t->reduce =
		    cost_reduce(h, elements * wire, across, inside) + download_seconds(p->o, where, of);
		t->replicate = cost_reduce(h, own * wire, copies_across, copies_inside) +
		               cost_gather(h, own * wire, copies_across, copies_inside);
	}
}

static void count_rows(struct player *p, const struct model_config *c, const struct train_options *o,
                       const struct hardware_set *where)
{
	if (!shard_gathers_rows(p->shard))
		return;
	p->rows.gather =
	    cost_gather(&where->device, (double)p->shard->rows.bytes, where->nodes, where->per_node);
	/* Each row is read, and the row of the table that it is added to is read and written. */
	p->rows.add = cost_stream(&where->device, o->precision, RATE_COPY,
	                          (double)p->shard->rows.bytes +
	                              8 * (double)p->shard->rows.bytes / (double)dtype_size(o->precision)) -
	              p->parts->embedding_backward;
	p->rows.add = MAX(p->rows.add, 0);
}

/* How long ranks wait for each other where they share processors: the more of all others a group has, the
 * longer. */
static void count_waits(struct player *p, const struct model_layout *l, const struct hardware_set *where)
{
	const struct shard *s = p->shard;
	double turn = TURN * MAX(where->device.crowd - 1, 0) / (where->nodes * where->per_node - 1);

	p->turn = turn * (s->degree - 1);
	p->copies_turn = turn * (s->replicas - 1);
	if (s->degree == 1)
		return;
	p->sums = (SUM_WAIT + p->turn) * (1 + optimizer_sums[p->o->optimizer]);
	/* Muon gathers the momentum of each block; before and behind that, ranks have unequal work. */
	if (p->o->optimizer == OPTIMIZER_MUON && !l->adapts)
		p->sums += 2 * p->turn * (p->units - 2);
}

/* Of the units whose weights are gathered for each pass. */
static double gathers(const struct player *p)
{
	double seconds = 0;

	for (int u = 0; u < p->units; u++)
		if (!p->shard->unit[u].whole_weights)
			seconds += p->unit[u].gather;
	return seconds;
}

/* A reference has the model's own. */
static const struct model_config *config_of_frozen(const struct model_config *c,
                                                   const struct train_options *o)
{
	return o->distillation.teacher ? o->distillation.teacher : c;
}

static double frozen_seconds(const struct whole_model *frozen, const struct model_config *c,
                             const struct train_options *o, double row, const struct hardware_set *where,
                             double logits_rows)
{
	double there, back;

	cost_exchange(c, o, row, where, &there, &back);
	return cost_frozen(frozen, c, o, row, &where->device, logits_rows) + c->layers * there;
}

void cost_of_step(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                  int64_t max_row, const struct hardware_set *where, struct cost *out)
{
	const struct model_layout *l = plan->layout;
	int units = l->base_units, ranks = where->nodes * where->per_node;
	_cleanup_free_ struct unit_times *times = calloc((size_t)units, sizeof(*times));
	_cleanup_free_ double *ready = calloc((size_t)units, sizeof(*ready));
	_cleanup_free_ double *reduced = calloc((size_t)units, sizeof(*reduced));
	double a = (double)o->accumulation, peak = hardware_peak(&where->device, o->precision), own, first,
	       flops;
	struct player p = {.shard = plan->shard,
	                   .o = o,
	                   .unit = times,
	                   .ready = ready,
	                   .reduced = reduced,
	                   .units = units,
	                   .lowest = l->lowest};
	/* Of a policy, all but the model itself see a set of completions once. */
	double passes = o->policy.generations ? 1. / MAX(o->policy.iterations, 1) : 1;
	struct device_shapes shapes;
	struct cost_parts parts;

	*out = (struct cost){.tokens = o->micro_batch * o->accumulation * max_row * ranks /
	                               train_sequence_degree(o)};
	if (!times || !ready || !reduced || peak <= 0)
		return;
	model_shapes(plan->model, &shapes);
	cost_count_parts(l, c, o, (double)max_row, &where->device, (double)shapes.logits_rows,
	                 o->accumulation > 1, &parts);
	cost_exchange(c, o, (double)max_row, where, &parts.exchange_forward, &parts.exchange_backward);
	own = parts.embedding_forward;
	/* They come before the model's own forward pass. */
	if (plan->frozen.model)
		parts.embedding_forward +=
		    passes * frozen_seconds(&plan->frozen, config_of_frozen(c, o), o, (double)max_row, where,
		                            (double)shapes.logits_rows);
	if (plan->reward_model.model)
		parts.embedding_forward +=
		    passes * frozen_seconds(&plan->reward_model, o->policy.reward_model, o, (double)max_row,
		                            where, (double)shapes.logits_rows);
	if (train_observes(o))
		parts.embedding_forward += passes * (own + c->layers * parts.block_forward + parts.head / 3);
	p.parts = &parts;
	/* The last of those that recompute still has what it needs. */
	p.recomputed = o->recompute == MODEL_KEEP_ALL ? 0 : MAX(c->layers - o->kept_blocks - 1, 0);
	p.outputs = model_kept_outputs(plan->model);
	count_units(&p, l, c, where);
	count_rows(&p, c, o, where);
	slow_down(&p, &parts,
	          MAX(where->device.crowd, 1) * (is_measured_cpu(&where->device) ? 1 + BETWEEN : 1));
	if (is_measured_cpu(&where->device) && ranks > 1)
		count_waits(&p, l, where);
	empty_slots(&p);
	play_step(&p, where->device.overlap);
	first = p.now;
	p.waited = p.communication = 0;
	play_step(&p, where->device.overlap);
	out->generation = cost_generation(plan, c, o, (double)max_row, &where->device, gathers(&p)) /
	                  (double)train_set_steps(o);
	/* The pass of a set's own gathers the weights, too. */
	out->step = p.now - first + out->generation + (train_observes(o) ? a * passes * gathers(&p) : 0);
	out->communication = p.communication;
	out->forward = a * (parts.embedding_forward + c->layers * parts.block_forward);
	out->backward = a * (parts.embedding_backward + parts.trained_blocks * parts.block_backward -
	                     p.outputs * parts.saved);
	out->recompute = a * p.recomputed * parts.again;
	out->head = a * parts.head;
	for (int u = 0; u < units; u++)
		out->optimizer += times[u].optimizer;
	out->exposed = out->step - out->generation - out->forward - out->backward - out->recompute -
	               out->head - out->optimizer;
	out->tokens_per_second = (double)out->tokens / out->step;
	flops = model_config_flops(c, (double)max_row) * cost_computed_share(l, c);
	/* Of the three products of each matrix, a teacher or a reference has the one of the forward pass. */
	if (plan->frozen.model)
		flops += passes * model_config_flops(config_of_frozen(c, o), (double)max_row) / 3;
	if (train_observes(o))
		flops += passes * model_config_flops(c, (double)max_row) / 3;
	out->mfu = flops * out->tokens_per_second / ranks / peak;
}
