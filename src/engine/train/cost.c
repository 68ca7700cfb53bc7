/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the time of a step from the shapes of its operations and the rates of the devices. */
#include "engine/train/cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* Time of one micro-step's parts on a rank. */
struct parts {
	double block_forward, block_backward, block_again; /* again: the block's forward pass, recomputed */
	double embedding_forward, embedding_backward, head;
};

double cost_gemm(const struct hardware *h, enum dtype type, double m, double n, double k, double c_bytes,
                 bool add)
{
	double bytes = (double)dtype_size(type) * (m * k + k * n) + c_bytes * m * n * (add ? 2 : 1);
	double products = 2 * m * n * k / (hardware_peak(h, type) * h->gemm);

	return MAX(products, bytes / (h->bandwidth * h->stream)) + h->start;
}

double cost_gather(const struct hardware *h, double bytes, int nodes, int per_node)
{
	double ranks = (double)nodes * per_node, inside, between, steps;

	if (ranks <= 1)
		return 0;
	inside = bytes * (ranks - 1) / ranks / (h->intra * h->link);
	between = bytes * (nodes - 1) / nodes / (h->inter * per_node * h->link);
	/* Across many nodes a tree, or what is as deep as one. */
	steps = per_node - 1 + MIN((double)nodes - 1, 2 * log2((double)nodes));
	return (per_node > 1 ? MAX(inside, between) : between) + steps * h->latency;
}

/* Elements that are read and written, over the bandwidth. */
static double stream(const struct hardware *h, double bytes)
{
	return bytes / (h->bandwidth * h->stream) + h->start;
}

static double attention(const struct hardware *h, const struct model_config *c, enum dtype type, double rows,
                        double row, bool backward)
{
	double sum = 0;

	/* Q·K and P·V; the backward pass has five such products. */
	for (int l = 0; l < c->layers; l++) {
		double window = model_config_window(c, l);
		double pairs =
		    window > 0 && window < row ? row * window - window * window / 2 : row * row / 2;
		double flops = 4.0 * rows * pairs * c->heads * c->head_dim * (backward ? 2.5 : 1);

		sum += flops / (hardware_peak(h, type) *
		                (backward ? h->attention_backward : h->attention_forward)) +
		       h->start;
	}
	return sum / c->layers;
}

static void count_parts(const struct model_config *c, const struct train_options *o, double row,
                        const struct hardware *h, bool add, struct parts *p)
{
	enum dtype type = o->precision;
	double rows = (double)o->micro_batch, t = rows * row, s = (double)dtype_size(type);
	double hidden = c->hidden, q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
	double qkv = q + 2 * kv, wide = c->intermediate, vocab = (double)c->vocab;
	const double shapes[][2] = {{qkv, hidden}, {hidden, q}, {2 * wide, hidden}, {hidden, wide}};
	double element = t * s, norm_qk = c->qk_norm ? 2 * (q + kv) * element : 0, mlp_down;

	*p = (struct parts){0};
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		double out = shapes[i][0], in = shapes[i][1];

		p->block_forward += cost_gemm(h, type, t, out, in, s, false);
		p->block_backward += cost_gemm(h, type, t, in, out, s, false) +
		                     cost_gemm(h, type, out, in, t, sizeof(float), add);
	}
	mlp_down = cost_gemm(h, type, t, hidden, wide, s, false);
	p->block_forward += attention(h, c, type, rows, row, false) + stream(h, 4 * hidden * element) * 2 +
	                    stream(h, 2 * (q + kv) * element + norm_qk) + stream(h, 3 * wide * element);
	/* Recomputed, the block ends with the products of gate and up. */
	p->block_again = p->block_forward - mlp_down - stream(h, 3 * wide * element);
	/* SwiGLU; the norms once more, and their gradients; rotation. */
	p->block_backward += attention(h, c, type, rows, row, true) + stream(h, 6 * wide * element) +
	                     2 * stream(h, 2 * hidden * element) + 2 * stream(h, 4 * hidden * element) +
	                     stream(h, 2 * (q + kv) * element + 2 * norm_qk);
	p->embedding_forward = stream(h, 2 * hidden * element);
	p->embedding_backward =
	    stream(h, hidden * (element + 8 * t) + (add || c->tied ? 0 : 4 * vocab * hidden));
	p->head = cost_gemm(h, type, t, vocab, hidden, s, false) +
	          cost_gemm(h, type, t, hidden, vocab, s, false) +
	          cost_gemm(h, type, vocab, hidden, t, sizeof(float), add) + stream(h, 4 * vocab * element) +
	          stream(h, 6 * hidden * element);
}

/* ---- the order of a step ---- */

/* Times of the collectives of a unit; 0: it has none. */
struct unit_times {
	double gather, reduce, reduce_across, optimizer;
};

struct player {
	const struct plan *plan;
	const struct train_options *o;
	const struct parts *parts;
	struct unit_times *unit;
	double *ready; /* when a unit's weights are there */
	int units;
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

static double optimizer_bytes(const struct train_options *o)
{
	/* Gradient for the norm and again; moments; weights. */
	double bytes = 4 + 4 + 16;

	if (o->precision == DTYPE_F32)
		return bytes + 8;
	return bytes + (o->without_master ? 4 : 8 + 2);
}

static void play_step(struct player *p, double overlap)
{
	const struct parts *t = p->parts;
	int last = p->units - 1;
	double reduced = 0, before = p->communication, waited = p->waited;

	for (int64_t a = 0; a < p->o->accumulation; a++) {
		bool reduces = a == p->o->accumulation - 1;

		for (int u = 0; u < last; u++) {
			wait_for(p, p->ready[u]);
			p->now += u == 0 ? t->embedding_forward : t->block_forward;
		}
		for (int u = last; u >= 0; u--) {
			bool again = p->o->recompute && u > 0 && u < last - 1;

			wait_for(p, p->ready[u]);
			p->now += u == last ? t->head
			          : u == 0  ? t->embedding_backward
			                    : t->block_backward + (again ? t->block_again : 0);
			if (reduces)
				reduced = queue(p, &p->reduce_lane, p->unit[u].reduce);
		}
	}
	wait_for(p, reduced);
	for (int u = 0; u <= last; u++) {
		p->now += p->unit[u].optimizer;
		if (p->unit[u].gather > 0)
			p->ready[u] = queue(p, &p->gather_lane, p->unit[u].gather);
	}
	/* What is hidden takes processors and bandwidth from the computation. */
	p->now += overlap * MAX(p->communication - before - (p->waited - waited), 0);
}

static void count_units(struct player *p, const struct hardware_set *where)
{
	const struct hardware *h = &where->device;
	const struct shard *s = p->plan->shard;

	for (int u = 0; u < p->units; u++) {
		struct unit_times *t = &p->unit[u];
		double elements = (double)s->unit[u].padded;
		double gradients = cost_gather(h, elements * sizeof(float), where->nodes, where->per_node);

		t->optimizer = stream(h, (double)s->unit[u].own * optimizer_bytes(p->o));
		t->reduce = p->o->strategy == SHARD_DDP ? 2 * gradients : gradients;
		if (p->o->strategy != SHARD_DDP)
			t->gather = cost_gather(h, elements * (double)dtype_size(p->o->precision),
			                        where->nodes, where->per_node);
	}
}

void cost_of_step(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                  int64_t max_row, const struct hardware_set *where, struct cost *out)
{
	int units = plan->layout->units, ranks = where->nodes * where->per_node;
	_cleanup_free_ struct unit_times *times = calloc((size_t)units, sizeof(*times));
	_cleanup_free_ double *ready = calloc((size_t)units, sizeof(*ready));
	double a = (double)o->accumulation, peak = hardware_peak(&where->device, o->precision), first;
	struct player p = {.plan = plan, .o = o, .unit = times, .ready = ready, .units = units};
	struct parts parts;

	*out = (struct cost){.tokens = o->micro_batch * o->accumulation * max_row * ranks};
	if (!times || !ready || peak <= 0)
		return;
	count_parts(c, o, (double)max_row, &where->device, o->accumulation > 1, &parts);
	p.parts = &parts;
	count_units(&p, where);
	play_step(&p, where->device.overlap);
	first = p.now;
	p.waited = p.communication = 0;
	play_step(&p, where->device.overlap);
	out->step = p.now - first;
	out->communication = p.communication;
	out->forward = a * (parts.embedding_forward + c->layers * parts.block_forward);
	out->backward = a * (parts.embedding_backward + c->layers * parts.block_backward);
	out->recompute = o->recompute ? a * (c->layers - 1) * parts.block_again : 0;
	out->head = a * parts.head;
	for (int u = 0; u < units; u++)
		out->optimizer += times[u].optimizer;
	out->exposed = out->step - out->forward - out->backward - out->recompute - out->head - out->optimizer;
	out->tokens_per_second = (double)out->tokens / out->step;
	out->mfu = model_config_flops(c, (double)max_row) * out->tokens_per_second / ranks / peak;
}
