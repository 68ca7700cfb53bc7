/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention's forward pass as products, comparisons and sums of cuDNN's graph, for versions whose operation
 * for attention takes no masks. cuDNN recognizes these operations in this order, and runs them as one kernel:
 *
 *     scores = q · kᵀ · scale
 *     padding mask (ragged), causal mask, window (if there is one)
 *     max, sum of exp(scores - max), statistics = max + log(sum)
 *     o = exp(scores - max) / sum · v
 */
#include "engine/device/cuda/attention/cudnn_builder.h"

#define MOST 3 /* tensors that an operation reads */

typedef cudnnBackendDescriptor_t descriptor;

/* The operations so far, and the number of the next tensor that is never in memory. */
struct composite {
	struct builder *b;
	descriptor *operations;
	int count;
	int64_t next;
};

static void add_operation(struct composite *c, descriptor d, const char *what)
{
	graph_finish(c->b, d, what);
	if (c->b->r == 0)
		c->operations[c->count++] = d;
}

/* A new tensor of scores. */
static descriptor next_scores(struct composite *c, int type)
{
	return graph_scores(c->b, c->next++, type);
}

/* A new tensor with one number for each row of scores. */
static descriptor next_column(struct composite *c)
{
	const struct cudnn_shape *s = &c->b->plan->shape;
	int64_t dims[4] = {s->batch, s->heads, s->rows, 1};
	int64_t strides[4] = {s->heads * s->rows, s->rows, 1, 1};

	return graph_tensor(c->b, c->next++, CUDNN_DATA_FLOAT, dims, strides, NOWHERE, NULL);
}

/* to = mode(in[0], in[1], in[2]), computed in `type`; those after the first may be NULL. */
static descriptor pointwise(struct composite *c, int mode, int type, int64_t axis, descriptor to,
                            const descriptor in[MOST])
{
	static const int names[MOST] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
	                                CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
	                                CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
	static const char what[] = "an elementwise operation";
	descriptor how = graph_make(c->b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what), d;

	graph_set(c->b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
	graph_set(c->b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
	if (mode == CUDNN_POINTWISE_GEN_INDEX)
		graph_set_number(c->b, how, CUDNN_ATTR_POINTWISE_AXIS, axis, what);
	graph_finish(c->b, how, what);
	d = graph_make(c->b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how, what);
	for (int i = 0; i < MOST; i++)
		if (in[i])
			graph_set_part(c->b, d, names[i], in[i], what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to, what);
	add_operation(c, d, what);
	return to;
}

static descriptor two(struct composite *c, int mode, descriptor to, descriptor x, descriptor y)
{
	return pointwise(c, mode, CUDNN_DATA_FLOAT, 0, to, (const descriptor[MOST]){x, y});
}

/* Whether x and y compare so, for each score. */
static descriptor compare(struct composite *c, int mode, descriptor x, descriptor y)
{
	return pointwise(c, mode, CUDNN_DATA_BOOLEAN, 0, next_scores(c, CUDNN_DATA_BOOLEAN),
	                 (const descriptor[MOST]){x, y});
}

/* The position of each score on an axis: 2 is that of queries, 3 that of keys. */
static descriptor positions(struct composite *c, int64_t axis, int type, descriptor scores)
{
	return pointwise(c, CUDNN_POINTWISE_GEN_INDEX, type, axis, next_scores(c, CUDNN_DATA_INT32),
	                 (const descriptor[MOST]){scores});
}

/* The scores where the mask is true, -inf elsewhere. */
static descriptor choose(struct composite *c, descriptor scores, descriptor mask)
{
	return pointwise(c, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0,
	                 next_scores(c, CUDNN_DATA_FLOAT),
	                 (const descriptor[MOST]){scores, graph_value(c->b, AHEAD), mask});
}

static descriptor mask_padding(struct composite *c, descriptor scores, descriptor lengths)
{
	descriptor row = positions(c, 2, CUDNN_DATA_INT32, scores);
	descriptor column = positions(c, 3, CUDNN_DATA_INT32, scores);
	descriptor row_is = compare(c, CUDNN_POINTWISE_CMP_LT, row, lengths);
	descriptor column_is = compare(c, CUDNN_POINTWISE_CMP_LT, column, lengths);

	return choose(c, scores, compare(c, CUDNN_POINTWISE_LOGICAL_AND, row_is, column_is));
}

static descriptor mask_ahead(struct composite *c, descriptor scores)
{
	descriptor row = positions(c, 2, CUDNN_DATA_FLOAT, scores);
	descriptor column = positions(c, 3, CUDNN_DATA_FLOAT, scores);

	return choose(c, scores, compare(c, CUDNN_POINTWISE_CMP_GE, row, column));
}

static descriptor mask_behind(struct composite *c, descriptor scores)
{
	descriptor row = positions(c, 2, CUDNN_DATA_FLOAT, scores);
	descriptor column = positions(c, 3, CUDNN_DATA_FLOAT, scores);

	column =
	    two(c, CUDNN_POINTWISE_ADD, next_scores(c, CUDNN_DATA_FLOAT), column, graph_value(c->b, WINDOW));
	return choose(c, scores, compare(c, CUDNN_POINTWISE_CMP_GT, column, row));
}

/* Over the keys of each query. */
static descriptor reduce(struct composite *c, int mode, descriptor scores)
{
	static const char what[] = "a sum over keys";
	descriptor how = graph_make(c->b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what), d, to;
	int type = CUDNN_DATA_FLOAT;

	graph_set(c->b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
	graph_set(c->b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode,
	          what);
	graph_finish(c->b, how, what);
	to = next_column(c);
	d = graph_make(c->b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, scores, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how, what);
	add_operation(c, d, what);
	return to;
}

/* override: which size of the product the lengths of the documents (NULL: none) replace, beside that of the
 * rows of x. */
static void multiply(struct composite *c, descriptor to, descriptor x, descriptor y, descriptor lengths,
                     int override)
{
	static const char what[] = "a product";
	descriptor how = graph_make(c->b, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what), d;
	int type = CUDNN_DATA_FLOAT;

	graph_set(c->b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
	graph_finish(c->b, how, what);
	d = graph_make(c->b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to, what);
	graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how, what);
	if (lengths) {
		graph_set_part(c->b, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths, what);
		graph_set_part(c->b, d, override, lengths, what);
	}
	add_operation(c, d, what);
}

/* The probabilities, in bf16 as the second product reads them; writes the statistics. */
static descriptor softmax(struct composite *c, descriptor scores)
{
	descriptor max = reduce(c, CUDNN_REDUCE_TENSOR_MAX, scores), sum, log;

	scores = two(c, CUDNN_POINTWISE_SUB, next_scores(c, CUDNN_DATA_FLOAT), scores, max);
	scores = two(c, CUDNN_POINTWISE_EXP, next_scores(c, CUDNN_DATA_FLOAT), scores, NULL);
	sum = reduce(c, CUDNN_REDUCE_TENSOR_ADD, scores);
	log = two(c, CUDNN_POINTWISE_LOG, next_column(c), sum, NULL);
	two(c, CUDNN_POINTWISE_ADD, graph_statistics(c->b), max, log);
	return two(c, CUDNN_POINTWISE_DIV, next_scores(c, CUDNN_DATA_BFLOAT16), scores, sum);
}

int graph_composite_forward(struct builder *b, descriptor operations[GRAPH_OPERATIONS])
{
	const struct cudnn_shape *s = &b->plan->shape;
	struct composite c = {.b = b, .operations = operations, .next = FIRST_VIRTUAL};
	descriptor lengths =
	    s->ragged ? graph_per_document(b, CUDNN_TENSOR_LENGTHS, CUDNN_DATA_INT32, s->batch) : NULL;
	descriptor q = graph_matrix(b, CUDNN_TENSOR_Q, s->heads, s->ld_q, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_Q));
	descriptor k = graph_matrix(b, CUDNN_TENSOR_K, s->kv_heads, s->ld_k, true,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_K));
	descriptor v = graph_matrix(b, CUDNN_TENSOR_V, s->kv_heads, s->ld_v, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_V));
	descriptor o = graph_matrix(b, CUDNN_TENSOR_O, s->heads, s->ld_o, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_O));
	descriptor scores = next_scores(&c, CUDNN_DATA_FLOAT);

	multiply(&c, scores, q, k, lengths, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
	scores =
	    two(&c, CUDNN_POINTWISE_MUL, next_scores(&c, CUDNN_DATA_FLOAT), scores, graph_value(b, SCALE));
	if (s->ragged)
		scores = mask_padding(&c, scores, lengths);
	scores = mask_ahead(&c, scores);
	if (s->window)
		scores = mask_behind(&c, scores);
	scores = softmax(&c, scores);
	multiply(&c, o, scores, v, lengths, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
	return c.count;
}
