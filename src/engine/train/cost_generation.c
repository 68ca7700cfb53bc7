/* SPDX-License-Identifier: Apache-2.0 */
/* The time in which a policy generates the completions of a step, if all of them are as long as they may be.
 */
#include <math.h>

#include "base/cleanup.h"
#include "engine/train/cost_parts.h"

/* Of a block, beside its products: norms, rotation, what the cache gets, attention, the activation,
 * additions. They take no longer than it takes to start them. */
#define SMALL_OPERATIONS 8

/* The choice of an id reads its row of logits twice; a core takes so long for each of them, with two
 * exponentials. */
#define ID_READS   2
#define ID_SECONDS 5e-9

/* Each of so many sequences gets a token, behind `past` others. */
static double token_seconds(const struct model_config *c, const struct train_options *o,
                            const struct hardware *h, double sequences, double past)
{
	double hidden = c->hidden, q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim,
	       s = (double)dtype_size(o->precision), vocab = (double)c->vocab, seconds;
	/* The experts of so few tokens may all be others. */
	double copies = c->experts ? MIN((double)c->experts, sequences * c->chosen_experts) : 1,
	       wide = (double)c->intermediate;
	double linear = cost_linear_share(c), value = (double)model_config_delta_value(c),
	       delta_row = (double)model_config_delta_row(c);
	/* The last number: how many of them an average block has. */
	const double shapes[][3] = {{(c->gated_attention ? 2 : 1) * q + 2 * kv, hidden, 1 - linear},
	                            {hidden, q, 1 - linear},
	                            {(c->gated ? 2 : 1) * wide, hidden, copies},
	                            {hidden, wide, copies},
	                            {delta_row, hidden, linear},
	                            {hidden, value, linear}};

	seconds =
	    cost_gemm(h, o->precision, RATE_PRODUCT_FORWARD, sequences, vocab, hidden, sizeof(float), false);
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		bool mlp = i == 2 || i == 3;
		double rows =
		    mlp ? MAX(sequences * (c->experts ? c->chosen_experts : 1) / copies, 1) : sequences;

		if (shapes[i][2] == 0)
			continue;
		seconds += c->layers * shapes[i][2] *
		           cost_gemm(h, o->precision, RATE_PRODUCT_FORWARD, rows, shapes[i][0], shapes[i][1],
		                     s, false);
	}
	/* Keys and values are read, states read and written. */
	seconds +=
	    c->layers * (cost_stream(h, o->precision, RATE_COPY,
	                             (1 - linear) * sequences * past * 2 * kv * s +
	                                 linear * 2 * sequences * value * c->delta_key_dim * sizeof(float)) +
	                 SMALL_OPERATIONS * h->start);
	if (h->sizing.engine != DEVICE_ENGINE_CPU)
		return seconds +
		       cost_stream(h, o->precision, RATE_COPY, ID_READS * sequences * vocab * sizeof(float));
	return seconds + sequences * vocab * ID_SECONDS / MAX(h->sizing.threads, 1);
}

double cost_generation(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                       double row, const struct hardware *h, double gather)
{
	double sequences = plan->sequences, most = (double)o->policy.max_tokens, prompt = MAX(row - most, 1);
	double waves = ceil((double)train_completions(o) / MAX(sequences, 1));
	double prompts = ceil(sequences / MAX(o->policy.generations, 1)), one;
	struct train_options forward = {.precision = o->precision, .micro_batch = 1, .accumulation = 1};
	struct cost_parts p;

	if (plan->sequences == 0)
		return 0;
	cost_count_parts(plan->layout, c, &forward, prompt, h, 1, false, &p);
	one = p.embedding_forward + c->layers * p.block_forward + gather;
	return waves *
	       (prompts * one + most * (token_seconds(c, o, h, sequences, prompt + most / 2) + gather));
}
