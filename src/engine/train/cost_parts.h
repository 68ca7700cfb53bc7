/* SPDX-License-Identifier: Apache-2.0 */
/* The times of the parts of a micro-step, which cost.c plays through; of cost.c alone. */
#pragma once

#include "engine/train/cost.h"

/* Time of one micro-step's parts on a rank. */
struct cost_parts {
	double block_forward, block_backward;
	double again; /* of a block that recomputes */
	double saved; /* of block_backward, where a block keeps the outputs of norms and the activation */
	double embedding_forward, embedding_backward, head;
	/* Seconds for which a block waits for the ranks that share its tokens. */
	double exchange_forward, exchange_backward;
	double trained_blocks; /* the number of blocks that have a backward pass */
};

/* The share of the layers that have linear attention. */
double cost_linear_share(const struct model_config *c);

/* An operation that touches so many bytes. */
double cost_stream(const struct hardware *h, enum dtype type, enum rate_operation op, double bytes);
/* Of rows of `row` tokens; add: the gradients are added to those of a micro-step before. */
void cost_count_parts(const struct model_layout *l, const struct model_config *c,
                      const struct train_options *o, double row, const struct hardware *h, double logits_rows,
                      bool add, struct cost_parts *p);
/* Of the operations of a step that trains everything, those that are left: of three products of each matrix,
 * that of its weights' gradient where it is frozen, and that of its input's, too, below what is trained. */
double cost_computed_share(const struct model_layout *l, const struct model_config *c);
/* The forward pass of a teacher, or of a reference, with its head, and what its logits add to the loss;
 * without cost_exchange. c: its own. */
double cost_frozen(const struct whole_model *frozen, const struct model_config *c,
                   const struct train_options *o, double row, const struct hardware *h, double logits_rows);
/* What the ranks that share sequences send each other for a block's attention, in each pass; 0 where none do.
 */
void cost_exchange(const struct model_config *c, const struct train_options *o, double row,
                   const struct hardware_set *where, double *forward, double *backward);
/* The time in which a policy generates the completions of a step, if all of them are as long as they may be;
 * gather: that of the weights of a pass, where it waits for them. */
double cost_generation(const struct plan *plan, const struct model_config *c, const struct train_options *o,
                       double row, const struct hardware *h, double gather);
