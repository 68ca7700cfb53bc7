/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the time of a step from the shapes of its operations and the rates of the devices. */
#include "engine/train/cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* Time of one micro-step's parts on a rank. */
struct parts {
	double block_forward, block_backward;
	double again; /* of a block that recomputes */
	double embedding_forward, embedding_backward, head;
};

double cost_gemm(const struct hardware *h, enum dtype type, enum rate_product kind, double m, double n,
                 double k, double c_bytes, bool add)
{
	double rate = h->rates ? rates_product(h->rates, h->sizing.threads, type, kind, m, n, k) : 0;
	double bytes = (double)dtype_size(type) * (m * k + k * n) + c_bytes * m * n * (add ? 2 : 1);
	double products = 2 * m * n * k / (hardware_peak(h, type) * h->gemm);

	if (rate > 0)
		return 2 * m * n * k / rate;
	return MAX(products, bytes / (h->bandwidth * h->stream)) + h->start;
}

double cost_gather(const struct hardware *h, double bytes, int nodes, int per_node)
{
	double ranks = (double)nodes * per_node, inside, between, steps, rate;

	if (ranks <= 1)
		return 0;
	rate = h->rates ? rates_gather(h->rates, bytes) : 0;
	inside = bytes * (ranks - 1) / ranks / (rate > 0 ? rate : h->intra * h->link);
	between = bytes * (nodes - 1) / nodes / (h->inter * per_node * h->link);
	/* Across many nodes a tree, or what is as deep as one. */
	steps = per_node - 1 + MIN((double)nodes - 1, 2 * log2((double)nodes));
	return (per_node > 1 ? MAX(inside, between) : between) + steps * h->latency;
}

/* An operation that touches so many bytes. */
static double stream(const struct hardware *h, enum dtype type, enum rate_operation op, double bytes)
{
	double rate = h->rates ? rates_operation(h->rates, h->slots, h->sizing.threads, type, op, bytes) : 0;

	return rate > 0 ? bytes / rate : bytes / (h->bandwidth * h->stream) + h->start;
}

static double attention(const struct hardware *h, const struct model_config *c, enum dtype type, double rows,
                        double row, bool backward)
{
	double share = backward ? h->attention_backward : h->attention_forward, sum = 0;
	double rate =
	    h->rates ? rates_attention(h->rates, h->sizing.threads, type, backward, row, c->head_dim) : 0;

	if (rate <= 0)
		rate = hardware_peak(h, type) * share;
	/* Q·K and P·V; the backward pass has five such products. */
	for (int l = 0; l < c->layers; l++) {
		double window = model_config_window(c, l);
		double pairs =
		    window > 0 && window < row ? row * window - window * window / 2 : row * row / 2;
		double flops = 4.0 * rows * pairs * c->heads * c->head_dim * (backward ? 2.5 : 1);

		sum += flops / rate + (h->rates ? 0 : h->start);
	}
	return sum / c->layers;
}

/* Chunk by chunk, of which all but the first add to the gradient of the matrix. */
static double head_seconds(const struct hardware *h, enum dtype type, double t, double hidden, double vocab,
                           double chunk, bool add)
{
	double chunks = MAX(ceil(t / chunk), 1), rows = t / chunks, s = (double)dtype_size(type);
	double each = cost_gemm(h, type, RATE_PRODUCT_FORWARD, rows, vocab, hidden, s, false) +
	              cost_gemm(h, type, RATE_PRODUCT_INPUT, rows, hidden, vocab, s, false) +
	              stream(h, type, RATE_LOSS, 3 * vocab * rows * s);
	double first = cost_gemm(h, type, RATE_PRODUCT_WEIGHT, vocab, hidden, rows, sizeof(float), add);
	double more = cost_gemm(h, type, RATE_PRODUCT_WEIGHT, vocab, hidden, rows, sizeof(float), true);

	return chunks * each + first + (chunks - 1) * more;
}

static void count_parts(const struct model_config *c, const struct train_options *o, double row,
                        const struct hardware *h, double logits_rows, bool add, struct parts *p)
{
	enum dtype type = o->precision;
	double rows = (double)o->micro_batch, t = rows * row, s = (double)dtype_size(type);
	double hidden = c->hidden, q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
	double qkv = q + 2 * kv, wide = c->intermediate, vocab = (double)c->vocab;
	const double shapes[][2] = {{qkv, hidden}, {hidden, q}, {2 * wide, hidden}, {hidden, wide}};
	double element = t * s, norm_qk = c->qk_norm ? 2 * (q + kv) * element : 0;
	double swiglu, norm, rotation, gate_up, down;

	*p = (struct parts){0};
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		double out = shapes[i][0], in = shapes[i][1];

		p->block_forward += cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, out, in, s, false);
		p->block_backward += cost_gemm(h, type, RATE_PRODUCT_INPUT, t, in, out, s, false) +
		                     cost_gemm(h, type, RATE_PRODUCT_WEIGHT, out, in, t, sizeof(float), add);
	}
	swiglu = stream(h, type, RATE_SWIGLU, 3 * wide * element);
	norm = stream(h, type, RATE_NORM, 4 * hidden * element);
	rotation = stream(h, type, RATE_ROTATION, 2 * (q + kv) * element + norm_qk);
	p->block_forward += attention(h, c, type, rows, row, false) + 2 * norm + rotation + swiglu;
	gate_up = cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, 2 * wide, hidden, s, false);
	down = cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, hidden, wide, s, false);
	/* Recomputed, the block ends with the products of gate and up. */
	if (o->recompute == MODEL_RECOMPUTE_BLOCK)
		p->again = p->block_forward - swiglu - down;
	else if (o->recompute == MODEL_RECOMPUTE_SELECTIVE)
		p->again = norm + gate_up;
	/* The norms are computed once more, before their gradients. */
	p->block_backward += attention(h, c, type, rows, row, true) +
	                     stream(h, type, RATE_SWIGLU_BACKWARD, 6 * wide * element) + norm +
	                     2 * stream(h, type, RATE_NORM_BACKWARD, 4 * hidden * element) + rotation;
	p->embedding_forward = stream(h, type, RATE_COPY, 2 * hidden * element);
	p->embedding_backward = stream(
	    h, type, RATE_COPY, hidden * (element + 8 * t) + (add || c->tied ? 0 : 4 * vocab * hidden));
	p->head = head_seconds(h, type, t, hidden, vocab, logits_rows, add);
	p->head += norm + stream(h, type, RATE_NORM_BACKWARD, 4 * hidden * element);
}

/* ---- the order of a step ---- */

/* Of a host of GPUs, which has not been measured: its memory, and what a GPU's link carries in a direction.
 */
#define HOST_MEMORY 200e9
#define HOST_LINK   25e9

/* Of a node's disk, which has not been measured: what it reads and writes in a second. */
#define DISK 3e9

/* Times of the collectives of a unit, over the ranks that share a copy of the model, and over its copies; 0:
 * it has none. */
struct unit_times {
	double gather, reduce, replicate, optimizer;
};

struct player {
	const struct shard *shard;
	const struct train_options *o;
	const struct parts *parts;
	struct unit_times *unit;
	double *ready;         /* when a unit's weights are there; INFINITY: nobody has asked for them */
	double *reduced;       /* when its gradients are summed */
	int units, recomputed; /* recomputed: blocks, the first of all */
	int ring[SHARD_SLOTS_MAX], next;      /* the units that are in the slots of the blocks */
	double now, gather_lane, reduce_lane; /* when the lane is free */
	double waited, communication;
};

static double queue(struct player *p, double *lane, double seconds)
{
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
	double bytes = (double)u->own * (double)dtype_size(o->precision);

	if (o->offload != SHARD_OFFLOAD_ALL || u->whole_weights)
		return 0;
	return h->sizing.engine == DEVICE_ENGINE_CPU ? stream(h, o->precision, RATE_COPY, 2 * bytes)
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
	return h->sizing.engine == DEVICE_ENGINE_CPU ? stream(h, DTYPE_F32, RATE_COPY, 2 * bytes)
	                                             : bytes / HOST_LINK;
}

/* user: the unit whose weights are in use, and keep their slot; -1: none. */
static void gather(struct player *p, int u, int user)
{
	int slots = 1 + p->o->prefetch;

	if (u < 0 || u >= p->units || p->ready[u] < INFINITY)
		return;
	if (!p->shard->unit[u].whole_weights && p->shard->unit[u].ring == SHARD_RING_BLOCKS) {
		if (slots > 1 && p->ring[p->next] == user)
			p->next = (p->next + 1) % slots;
		if (p->ring[p->next] > 0)
			p->ready[p->ring[p->next]] = INFINITY;
		p->ring[p->next] = u;
		p->next = (p->next + 1) % slots;
	} else if (!p->shard->unit[u].whole_weights) {
		p->ready[u == 0 ? p->units - 1 : 0] = INFINITY;
	}
	p->ready[u] = queue(p, &p->gather_lane, p->unit[u].gather);
}

/* The weights of a unit, and those that are gathered ahead of it. */
static void need(struct player *p, int u, int direction)
{
	gather(p, u, -1);
	for (int i = 1; i <= p->o->prefetch; i++)
		gather(p, u + i * direction, u);
	wait_for(p, p->ready[u]);
}

/* A unit's gradients in the backward pass: with two slots, those of the unit before the last have to be gone.
 */
static void reduce(struct player *p, int u, bool last)
{
	double *lane = &p->reduce_lane;

	p->reduced[u] = queue(p, lane, p->unit[u].reduce);
	if (last && p->unit[u].replicate > 0)
		p->reduced[u] = queue(p, lane, p->unit[u].replicate);
}

/* Of AdamW's time, that of a step of an element: measured on a processor, where AdamW takes 28 bytes. */
static const double optimizer_share[OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = 1,       [OPTIMIZER_SGD] = 0.8,       [OPTIMIZER_LION] = 0.7,
    [OPTIMIZER_LAMB] = 1.5,      [OPTIMIZER_LARS] = 1.1,      [OPTIMIZER_MUON] = 0.8,
    [OPTIMIZER_ADAFACTOR] = 2.9, [OPTIMIZER_ADAMW_8BIT] = 45, [OPTIMIZER_LION_8BIT] = 22,
};

static double optimizer_bytes(const struct train_options *o)
{
	/* Gradient for the norm and again; moments; weights. */
	double bytes = 4 + 4 + 16;

	bytes += o->precision == DTYPE_F32 ? 8 : o->without_master ? 4 : 8 + 2;
	return bytes * optimizer_share[o->optimizer];
}

/* Muon's five iterations on the matrices of a block: each has products of the shorter side with the longer,
 * of the shorter with itself, and of both again. Those that are divided over ranks are whole for each that
 * steps a part of them, about one more than a rank's share. */
static double muon_seconds(const struct model_config *c, const struct train_options *o,
                           const struct hardware *h, double share)
{
	double hidden = c->hidden, q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
	double wide = c->intermediate, sum = 0, parts = 7;
	const double shapes[][2] = {{q, hidden},    {kv, hidden},   {kv, hidden},  {hidden, q},
	                            {wide, hidden}, {wide, hidden}, {hidden, wide}};
	enum dtype type = o->widens ? DTYPE_F32 : o->precision;

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		double side = MIN(shapes[i][0], shapes[i][1]), length = MAX(shapes[i][0], shapes[i][1]);
		double s = (double)dtype_size(type);

		sum += 5 * (cost_gemm(h, type, RATE_PRODUCT_FORWARD, side, side, length, s, false) +
		            cost_gemm(h, type, RATE_PRODUCT_INPUT, side, side, side, s, true) +
		            cost_gemm(h, type, RATE_PRODUCT_INPUT, side, length, side, s, true) +
		            stream(h, type, RATE_COPY, 2 * s * side * (side + length)));
	}
	return sum * MIN(share + (share < 1 ? 1 / parts : 0), 1);
}

/* The gradients' way down is under the backward pass, and is not counted. */
static double host_seconds(const struct train_options *o, const struct hardware_set *where, double own)
{
	const struct hardware *h = &where->device;
	double copies = o->offload ? own * 2 * (double)(sizeof(float) + dtype_size(o->precision)) : 0;

	if (!o->offload || h->sizing.engine == DEVICE_ENGINE_CPU)
		return stream(h, o->precision, RATE_OPTIMIZER, own * optimizer_bytes(o) + copies);
	return own * optimizer_bytes(o) * where->per_node / HOST_MEMORY +
	       (o->offload == SHARD_OFFLOAD_ALL ? 0 : own * (double)dtype_size(o->precision) / HOST_LINK);
}

/* The disk reads and writes while the host steps; bytes: of the unit's state on it. */
static double optimizer_seconds(const struct train_options *o, const struct hardware_set *where, double own,
                                double bytes)
{
	return MAX(host_seconds(o, where, own), 2 * bytes * where->per_node / DISK);
}

static void play_step(struct player *p, double overlap)
{
	const struct parts *t = p->parts;
	int last = p->units - 1;
	double before = p->communication, waited = p->waited;

	for (int64_t a = 0; a < p->o->accumulation; a++) {
		bool final = a == p->o->accumulation - 1;

		for (int u = 0; u < last; u++) {
			need(p, u, 1);
			p->now += u == 0 ? t->embedding_forward : t->block_forward;
		}
		for (int u = last; u >= 0; u--) {
			bool again = u > 0 && u <= p->recomputed;

			need(p, u, -1);
			if (p->shard->unit[u].in_slot && u + 2 < last)
				wait_for(p, p->reduced[u + 2]);
			p->now += u == last ? t->head
			          : u == 0  ? t->embedding_backward
			                    : t->block_backward + (again ? t->again : 0);
			if (final || shard_in_step(p->shard) || p->o->offload == SHARD_OFFLOAD_ALL)
				reduce(p, u, final);
		}
	}
	wait_for(p, p->reduced[0]);
	for (int u = 0; u <= last; u++) {
		p->now += p->unit[u].optimizer;
		if (p->unit[u].gather > 0)
			p->ready[u] = INFINITY;
		if (p->shard->unit[u].whole_weights)
			gather(p, u, -1);
	}
	for (int i = 0; i < SHARD_SLOTS_MAX; i++)
		p->ring[i] = 0;
	gather(p, 0, -1);
	/* What is hidden takes processors and bandwidth from the computation. */
	p->now += overlap * MAX(p->communication - before - (p->waited - waited), 0);
}

/* More threads than processors take turns. */
static void crowd(struct player *p, struct parts *t, double factor)
{
	double *const parts[] = {&t->block_forward,     &t->block_backward,     &t->again,
	                         &t->embedding_forward, &t->embedding_backward, &t->head};

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		*parts[i] *= factor;
	for (int u = 0; u < p->units; u++) {
		p->unit[u].gather *= factor;
		p->unit[u].reduce *= factor;
		p->unit[u].replicate *= factor;
		p->unit[u].optimizer *= factor;
	}
}

static void count_units(struct player *p, const struct model_config *c, const struct hardware_set *where)
{
	const struct hardware *h = &where->device;
	const struct shard *s = p->shard;
	int inside = MIN(s->degree, where->per_node), across = (s->degree + inside - 1) / inside;
	int copies_inside = MAX(where->per_node / s->degree, 1);
	double all = 0, disk;
	int copies_across = (s->replicas + copies_inside - 1) / copies_inside;

	for (int u = 0; u < p->units; u++)
		all += (double)s->unit[u].own;
	disk = (double)shard_disk_bytes(s) / MAX(all, 1);
	for (int u = 0; u < p->units; u++) {
		struct unit_times *t = &p->unit[u];
		double elements = (double)s->unit[u].padded, own = (double)s->unit[u].own;
		double wire = (double)dtype_size(p->o->reduce_type);

		t->optimizer = optimizer_seconds(p->o, where, own, disk * own);
		if (p->o->optimizer == OPTIMIZER_MUON && u > 0 && u < p->units - 1)
			t->optimizer += muon_seconds(c, p->o, h, own / elements);
		t->gather = cost_gather(h, elements * (double)dtype_size(p->o->precision), across, inside);
		t->gather += upload_seconds(p->o, where, &s->unit[u]);
		t->reduce = cost_gather(h, elements * wire, across, inside) +
		            download_seconds(p->o, where, &s->unit[u]);
		t->replicate = 2 * cost_gather(h, own * wire, copies_across, copies_inside);
	}
}

void cost_of_step(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                  int64_t max_row, const struct hardware_set *where, struct cost *out)
{
	int units = plan->layout->units, ranks = where->nodes * where->per_node;
	_cleanup_free_ struct unit_times *times = calloc((size_t)units, sizeof(*times));
	_cleanup_free_ double *ready = calloc((size_t)units, sizeof(*ready));
	_cleanup_free_ double *reduced = calloc((size_t)units, sizeof(*reduced));
	double a = (double)o->accumulation, peak = hardware_peak(&where->device, o->precision), first;
	struct player p = {
	    .shard = plan->shard, .o = o, .unit = times, .ready = ready, .reduced = reduced, .units = units};
	struct device_shapes shapes;
	struct parts parts;

	*out = (struct cost){.tokens = o->micro_batch * o->accumulation * max_row * ranks};
	if (!times || !ready || !reduced || peak <= 0)
		return;
	model_shapes(plan->model, &shapes);
	count_parts(c, o, (double)max_row, &where->device, (double)shapes.logits_rows, o->accumulation > 1,
	            &parts);
	p.parts = &parts;
	/* The last of those that recompute still has what it needs. */
	p.recomputed = o->recompute == MODEL_KEEP_ALL ? 0 : MAX(c->layers - o->kept_blocks - 1, 0);
	count_units(&p, c, where);
	crowd(&p, &parts, MAX(where->device.crowd, 1));
	play_step(&p, where->device.overlap);
	first = p.now;
	p.waited = p.communication = 0;
	play_step(&p, where->device.overlap);
	out->step = p.now - first;
	out->communication = p.communication;
	out->forward = a * (parts.embedding_forward + c->layers * parts.block_forward);
	out->backward = a * (parts.embedding_backward + c->layers * parts.block_backward);
	out->recompute = a * p.recomputed * parts.again;
	out->head = a * parts.head;
	for (int u = 0; u < units; u++)
		out->optimizer += times[u].optimizer;
	out->exposed = out->step - out->forward - out->backward - out->recompute - out->head - out->optimizer;
	out->tokens_per_second = (double)out->tokens / out->step;
	out->mfu = model_config_flops(c, (double)max_row) * out->tokens_per_second / ranks / peak;
}
