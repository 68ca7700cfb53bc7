/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of cuDNN's graph that belong to a plan, and the tensors of a shape of attention. */
#include "engine/device/cuda/attention/cudnn_builder.h"

#include <errno.h>

#include "base/cleanup.h"

#define ALIGNMENT 16

int graph_failed(cudnnStatus_t status, const char *what, struct error *err)
{
	char words[256] = "";

	cudnnGetLastErrorString(words, sizeof(words));
	return error_set(err, -EOPNOTSUPP, "cuDNN: %s: %s%s%s", what, cudnnGetErrorString(status),
	                 *words ? ": " : "", words);
}

void graph_check(struct builder *b, cudnnStatus_t status, const char *what)
{
	if (b->r == 0 && status)
		b->r = graph_failed(status, what, b->err);
}

cudnnBackendDescriptor_t graph_make(struct builder *b, int type, const char *what)
{
	cudnnBackendDescriptor_t d = NULL;

	if (b->r == 0 && b->plan->count == GRAPH_DESCRIPTORS)
		b->r = error_set(b->err, -EOVERFLOW, "cuDNN: %s: a graph of too many parts", what);
	if (b->r < 0)
		return NULL;
	graph_check(b, cudnnBackendCreateDescriptor(type, &d), what);
	if (b->r == 0)
		b->plan->descriptors[b->plan->count++] = d;
	return d;
}

void graph_set(struct builder *b, cudnnBackendDescriptor_t d, int name, int type, int64_t count,
               const void *elements, const char *what)
{
	if (b->r == 0)
		graph_check(b, cudnnBackendSetAttribute(d, name, type, count, elements), what);
}

void graph_set_part(struct builder *b, cudnnBackendDescriptor_t d, int name, cudnnBackendDescriptor_t part,
                    const char *what)
{
	graph_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part, what);
}

void graph_set_number(struct builder *b, cudnnBackendDescriptor_t d, int name, int64_t x, const char *what)
{
	graph_set(b, d, name, CUDNN_TYPE_INT64, 1, &x, what);
}

void graph_finish(struct builder *b, cudnnBackendDescriptor_t d, const char *what)
{
	if (b->r == 0)
		graph_check(b, cudnnBackendFinalize(d), what);
}

/* ---- tensors ---- */
cudnnBackendDescriptor_t graph_tensor(struct builder *b, int64_t uid, int type, const int64_t *dims,
                                      const int64_t *strides, enum graph_kind kind,
                                      cudnnBackendDescriptor_t offsets)
{
	cudnnBackendDescriptor_t d = graph_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
	bool yes = true;

	graph_set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "a tensor's type");
	graph_set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims, "a tensor's size");
	graph_set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides, "a tensor's strides");
	graph_set_number(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid, "a tensor's number");
	graph_set_number(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ALIGNMENT, "a tensor's alignment");
	if (kind == BY_VALUE)
		graph_set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, "a value");
	if (kind == NOWHERE)
		graph_set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes,
		          "a virtual tensor");
	if (offsets)
		graph_set_part(b, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets, "a tensor's offsets");
	graph_finish(b, d, "a tensor");
	return d;
}

cudnnBackendDescriptor_t graph_value(struct builder *b, int64_t uid)
{
	static const int64_t one[4] = {1, 1, 1, 1};

	return graph_tensor(b, uid, CUDNN_DATA_FLOAT, one, one, BY_VALUE, NULL);
}

/* A tensor of scores, which are never in memory. */
cudnnBackendDescriptor_t graph_scores(struct builder *b, int64_t uid, int type)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, s->heads, s->rows, s->rows};
	int64_t strides[4] = {s->heads * s->rows * s->rows, s->rows * s->rows, s->rows, 1};

	return graph_tensor(b, uid, type, dims, strides, NOWHERE, NULL);
}

cudnnBackendDescriptor_t graph_per_document(struct builder *b, int64_t uid, int type, int64_t n)
{
	int64_t dims[4] = {n, 1, 1, 1}, strides[4] = {1, 1, 1, 1};

	return graph_tensor(b, uid, type, dims, strides, IN_MEMORY, NULL);
}

cudnnBackendDescriptor_t graph_offsets(struct builder *b, int64_t uid)
{
	const struct cudnn_shape *s = &b->plan->shape;

	return s->ragged ? graph_per_document(b, uid, CUDNN_DATA_INT64, s->batch + 1) : NULL;
}

/* A tensor of `heads` heads in a matrix of tokens whose rows are ld elements apart. */
cudnnBackendDescriptor_t graph_matrix(struct builder *b, int64_t uid, int heads, int64_t ld, bool transposed,
                                      cudnnBackendDescriptor_t at)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, heads, s->rows, s->head_dim};
	int64_t strides[4] = {s->rows * ld, s->head_dim, ld, 1};

	if (transposed) {
		dims[2] = s->head_dim, dims[3] = s->rows;
		strides[2] = 1, strides[3] = ld;
	}
	return graph_tensor(b, uid, CUDNN_DATA_BFLOAT16, dims, strides, IN_MEMORY, at);
}

cudnnBackendDescriptor_t graph_statistics(struct builder *b)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, s->heads, s->rows, 1};
	int64_t dense[4] = {s->rows, s->batch * s->rows, 1, 1};
	int64_t ragged[4] = {s->heads * s->rows, 1, s->heads, 1};

	return graph_tensor(b, CUDNN_TENSOR_STATISTICS, CUDNN_DATA_FLOAT, dims, s->ragged ? ragged : dense,
	                    IN_MEMORY, graph_offsets(b, CUDNN_TENSOR_OFFSETS_STATISTICS));
}
