/* SPDX-License-Identifier: Apache-2.0 */
/* What two models differ in, for a run that goes on with the weights of another. */
#include <stddef.h>

#include "base/str.h"
#include "engine/model/model_config.h"

enum { VALUES = 15 };

/* What decides the shapes of the weights, and what is computed with them. The longest position is not of
 * these: a run may go on with longer documents. Neither is a tied head of a model of scores, which has none.
 */
static void values(const struct model_config *c, double out[VALUES])
{
	const double all[VALUES] = {c->hidden,   c->intermediate,    c->layers,        c->heads,
	                            c->kv_heads, c->head_dim,        (double)c->vocab, c->tied && !c->scores,
	                            c->norm_eps, c->rope.theta,      c->rope.factor,   c->rotary_dim,
	                            c->window,   c->attention_scale, c->attention_cap};

	for (int i = 0; i < VALUES; i++)
		out[i] = all[i];
}

static const char *const keys[VALUES] = {"hidden_size",
                                         "intermediate_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "vocab_size",
                                         "tie_word_embeddings",
                                         "rms_norm_eps",
                                         "rope_theta",
                                         "the factor of its rope_scaling",
                                         "partial_rotary_factor",
                                         "sliding_window",
                                         "the scale of its attention",
                                         "attn_logit_softcapping"};

const char *model_config_difference(const struct model_config *a, const struct model_config *b, double out[2])
{
	double of_a[VALUES], of_b[VALUES];

	values(a, of_a);
	values(b, of_b);
	if (!str_eq(a->family, b->family))
		return "model_type";
	for (int i = 0; i < VALUES; i++)
		if (of_a[i] < of_b[i] || of_a[i] > of_b[i]) {
			out[0] = of_a[i];
			out[1] = of_b[i];
			return keys[i];
		}
	return NULL;
}
