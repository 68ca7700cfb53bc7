/* SPDX-License-Identifier: Apache-2.0 */
/* What two models differ in, for a run that goes on with the weights of another. */
#include <math.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/str.h"
#include "engine/model/model_config.h"

struct value {
	const char *key; /* of config.json in most families */
	double is;
	bool shown; /* as a number: config.json has it so */
};

enum { VALUES = 37 };

/* A number for the layers with linear attention, exact as a double. */
static double layer_kinds(const struct model_config *c)
{
	return (double)(hash_bytes(&c->linear, sizeof(c->linear), 0) >> 12);
}

/* What decides the shapes of the weights, and what is computed with them. The longest position counts only
 * where the rotation is derived from it: a run may go on with longer documents. A model of scores has a head
 * of its own, and neither ties nor caps it. */
static void list_values(const struct model_config *c, struct value out[VALUES])
{
	const struct value all[VALUES] = {
	    {"hidden_size", c->hidden, true},
	    {"intermediate_size", c->intermediate, true},
	    {"num_hidden_layers", c->layers, true},
	    {"num_attention_heads", c->heads, true},
	    {"num_key_value_heads", c->kv_heads, true},
	    {"head_dim", c->head_dim, true},
	    {"vocab_size", (double)c->vocab, true},
	    {"tie_word_embeddings", c->tied && !c->scores, true},
	    {"epsilon of its norms", c->norm_eps, true},
	    {"rope_theta", c->rope.theta, true},
	    {"rope_type", c->rope.type, false},
	    {"factor of its rope_scaling", c->rope.factor, true},
	    {"low_freq_factor", c->rope.low_freq_factor, true},
	    {"high_freq_factor", c->rope.high_freq_factor, true},
	    {"rotated part of a head", c->rotary_dim, true},
	    {"sliding_window", c->window, true},
	    {"first layer with a window", c->window_from, true},
	    {"scale of its attention", c->attention_scale, true},
	    {"attn_logit_softcapping", c->attention_cap, true},
	    {"final_logit_softcapping", c->scores ? 0 : c->logits_cap, true},
	    {"scale of its embedding", c->embedding_scale, true},
	    {"residual_multiplier", c->residual_scale, true},
	    {"scale of its logits", c->scores ? 1 : c->logits_scale, true},
	    {"choice of biases", c->qkv_bias + 2 * c->o_bias + 4 * c->mlp_bias, false},
	    {"kind of norms of q and k", c->qk_norm, false},
	    {"hidden_act", c->activation, false},
	    {"number of experts", c->experts, true},
	    {"num_experts_per_tok", c->chosen_experts, true},
	    {"norm_topk_prob", c->normalized_experts, true},
	    {"llama_4_scaling_beta", c->query_beta, true},
	    {"positions for which its queries are not scaled", c->query_beta > 0 ? c->query_span : 0, true},
	    {"layer_types", layer_kinds(c), false},
	    {"linear_num_key_heads", c->delta_key_heads, true},
	    {"linear_num_value_heads", c->delta_value_heads, true},
	    {"linear_key_head_dim", c->delta_key_dim, true},
	    {"linear_value_head_dim", c->delta_value_dim, true},
	    {"linear_conv_kernel_dim", c->conv_width, true}};

	for (int i = 0; i < VALUES; i++)
		out[i] = all[i];
}

const char *model_config_difference(const struct model_config *a, const struct model_config *b, double out[2])
{
	struct value of_a[VALUES], of_b[VALUES];

	list_values(a, of_a);
	list_values(b, of_b);
	out[0] = out[1] = NAN;
	if (!str_eq(a->family, b->family) || !str_eq(a->whole, b->whole))
		return "model_type";
	for (int i = 0; i < VALUES; i++)
		if (of_a[i].is < of_b[i].is || of_a[i].is > of_b[i].is) {
			out[0] = of_a[i].shown ? of_a[i].is : NAN;
			out[1] = of_a[i].shown ? of_b[i].is : NAN;
			return of_a[i].key;
		}
	return NULL;
}
