/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a configuration: how many parameters it has, what its layers see and how they rotate, and
 * whether two of them are the same model. */
#include "engine/model/model_config.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

static uint64_t digest_rope(const struct model_rope *rope, uint64_t h)
{
	const double real[] = {rope->type,      rope->theta,     rope->factor,    rope->length,
	                       rope->beta_fast, rope->beta_slow, rope->exact_ramp};

	h = hash_bytes(real, sizeof(real), h);
	h = hash_bytes(rope->short_factor, sizeof(rope->short_factor), h);
	return hash_bytes(rope->long_factor, sizeof(rope->long_factor), h);
}

/* What the first families do not have counts only where a model has it, so that their digests stay those that
 * their checkpoints contain. The family itself implies the rest. */
static uint64_t digest_more(const struct model_config *c, uint64_t h)
{
	const double scales[] = {c->attention_scale, c->attention_cap, c->logits_cap, c->embedding_scale,
	                         c->residual_scale,  c->logits_scale,  c->rotary_dim};
	const double none[] = {0, 0, 0, 1, 1, 1, c->head_dim};

	if (memcmp(scales, none, sizeof(none)) != 0)
		h = hash_bytes(scales, sizeof(scales), h);
	for (int l = 0; l < c->layers; l++)
		if (model_layers_has(&c->full, l) || model_layers_has(&c->unrotated, l))
			h = hash_bytes(
			    (int[]){l, model_layers_has(&c->full, l), model_layers_has(&c->unrotated, l)},
			    3 * sizeof(int), h);
	if (c->rope.type > ROPE_LLAMA3)
		h = digest_rope(&c->rope, h);
	if (c->experts)
		h = hash_bytes((int[]){c->experts, c->chosen_experts, c->normalized_experts}, 3 * sizeof(int),
		               h);
	if (c->delta_value_heads)
		h = hash_bytes((int[]){c->delta_key_heads, c->delta_value_heads, c->delta_key_dim,
		                       c->delta_value_dim, c->conv_width},
		               5 * sizeof(int), hash_bytes(&c->linear, sizeof(c->linear), h));
	if (c->multimodal)
		h = hash_bytes(c->whole, strlen(c->whole), h);
	if (c->query_beta > 0)
		h = hash_bytes(&c->query_beta, sizeof(c->query_beta),
		               hash_bytes(&c->query_span, sizeof(c->query_span), h));
	if (c->scores)
		h = hash_bytes("scores", strlen("scores"), h);
	return c->two_ropes ? digest_rope(&c->window_rope, h) : h;
}

uint64_t model_config_digest(const struct model_config *c)
{
	const int64_t whole[] = {c->hidden,
	                         c->intermediate,
	                         c->layers,
	                         c->heads,
	                         c->kv_heads,
	                         c->head_dim,
	                         c->vocab,
	                         c->max_positions,
	                         c->tied,
	                         c->qkv_bias,
	                         c->o_bias,
	                         c->mlp_bias,
	                         c->qk_norm,
	                         c->window,
	                         c->window_from,
	                         c->rope.type,
	                         c->rope.original_positions};
	const double real[] = {c->norm_eps,
	                       c->init_std,
	                       c->rope.theta,
	                       c->rope.factor,
	                       c->rope.low_freq_factor,
	                       c->rope.high_freq_factor};
	uint64_t h = hash_bytes(c->family, strlen(c->family), 0);

	h = hash_bytes(whole, sizeof(whole), h);
	h = hash_bytes(real, sizeof(real), h);
	return digest_more(c, h);
}

static int64_t norm_parameters(const struct model_config *c)
{
	return (c->layer_norm ? 2 : 1) * (int64_t)c->hidden;
}

/* Of attention, or what is in its place. */
static int64_t mixer_parameters(const struct model_config *c, int layer)
{
	int64_t h = c->hidden, q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
	int64_t projected = (c->gated_attention ? 2 : 1) * q + 2 * kv;
	int64_t n = h * projected + h * q;

	if (model_config_is_linear(c, layer))
		return h * (model_config_delta_row(c) + model_config_delta_value(c)) +
		       model_config_channels(c) * c->conv_width + 2 * (int64_t)c->delta_value_heads +
		       c->delta_value_dim;
	n += c->qkv_bias ? projected : 0;
	n += c->o_bias ? h : 0;
	n += c->qk_norm == MODEL_QK_NORM_HEADS        ? 2 * c->head_dim
	     : c->qk_norm == MODEL_QK_NORM_PROJECTION ? q + kv
	                                              : 0;
	return n;
}

/* experts: so many of them. */
static int64_t blocks_parameters(const struct model_config *c, int experts)
{
	int64_t h = c->hidden, wide = (c->gated ? 2 : 1) * (int64_t)c->intermediate;
	int64_t mlp = h * (wide + c->intermediate), n;

	n = (c->experts ? experts * mlp + c->experts * h : mlp) + (c->mlp_bias ? wide + h : 0) +
	    (c->norm_place == MODEL_NORM_AROUND ? 4 : 2) * norm_parameters(c);
	n *= c->layers;
	for (int l = 0; l < c->layers; l++)
		n += mixer_parameters(c, l);
	return n;
}

int64_t model_config_outputs(const struct model_config *c)
{
	return c->scores ? 1 : c->vocab;
}

static int64_t parameters_with(const struct model_config *c, int experts)
{
	int64_t head = c->tied ? 0 : model_config_outputs(c);

	return (c->vocab + head) * c->hidden + blocks_parameters(c, experts) + norm_parameters(c) +
	       (c->learned_positions ? c->max_positions * c->hidden : 0);
}

int64_t model_config_parameters(const struct model_config *c)
{
	return parameters_with(c, c->experts);
}

int64_t model_config_active_parameters(const struct model_config *c)
{
	return parameters_with(c, c->chosen_experts);
}

double model_config_flops(const struct model_config *c, double length)
{
	double n = (double)model_config_outputs(c) * c->hidden +
	           (double)blocks_parameters(c, c->chosen_experts) + (double)norm_parameters(c);
	int full = 0;

	for (int l = 0; l < c->layers; l++)
		full += !model_config_is_linear(c, l);

	/* Linear attention reads and changes its state, which is as much whatever the length. */
	return 6 * n + 6.0 * full * c->heads * c->head_dim * length +
	       24.0 * (c->layers - full) * c->delta_value_heads * c->delta_key_dim * c->delta_value_dim;
}

int model_config_window(const struct model_config *c, int layer)
{
	return layer >= c->window_from && !model_layers_has(&c->full, layer) ? c->window : 0;
}

int model_config_rotary_tables(const struct model_config *c)
{
	return c->learned_positions ? 0 : c->two_ropes ? 2 : 1;
}

int model_config_rotary_table(const struct model_config *c, int layer)
{
	if (c->learned_positions || model_layers_has(&c->unrotated, layer))
		return -1;
	return c->two_ropes && model_config_window(c, layer) > 0;
}

void model_config_rope(const struct model_config *c, int table, int64_t longest, float *inv_freq,
                       float *length)
{
	const struct model_rope *rope = table ? &c->window_rope : &c->rope;

	rope_frequencies(rope, c->rotary_dim, longest, inv_freq);
	*length = (float)rope->length;
}

float model_config_attention_scale(const struct model_config *c)
{
	return c->attention_scale > 0 ? (float)c->attention_scale : 1.0f / sqrtf((float)c->head_dim);
}
