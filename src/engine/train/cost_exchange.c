/* SPDX-License-Identifier: Apache-2.0 */
/* The time in which ranks that share sequences send each other q, k, v and o, and their gradients
 * (model/exchange.c). */
#include "base/cleanup.h"
#include "engine/train/cost_parts.h"

static int common_divisor(int a, int b)
{
	while (b) {
		int rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* An all-to-all in which a rank has so many bytes, of which each of `ranks` gets its part; `inside` of them
 * are on its node. Unlike a gather's, what goes to another node is sent by each rank for itself. */
static double all_to_all(const struct hardware *h, double bytes, int ranks, int inside)
{
	double rate = h->rates ? rates_gather(h->rates, bytes) : 0, part = bytes / ranks;
	double near = part * (inside - 1) / (rate > 0 ? rate : h->intra * h->link),
	       far = inside < ranks ? part * (ranks - inside) / (h->inter * h->link) : 0;

	return MAX(near, far) + h->latency;
}

void cost_exchange(const struct model_config *c, const struct train_options *o, double row,
                   const struct hardware_set *where, double *forward, double *backward)
{
	int ranks = train_sequence_degree(o), inside = common_divisor(ranks, where->per_node);
	double token = (double)o->micro_batch * row / ranks * (double)dtype_size(o->precision);
	double of_o = token * c->heads * c->head_dim, qkv = of_o + 2 * token * c->kv_heads * c->head_dim;

	*forward = *backward = 0;
	if (ranks == 1)
		return;
	/* Each is copied once on the way. */
	*forward = all_to_all(&where->device, qkv, ranks, inside) +
	           all_to_all(&where->device, of_o, ranks, inside) +
	           cost_stream(&where->device, o->precision, RATE_COPY, 2 * (qkv + of_o));
	/* The same once more, which a block that recomputes has done already, and the gradients. */
	*backward = 2 * *forward;
}
