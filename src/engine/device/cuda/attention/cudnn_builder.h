/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files that describe attention to cuDNN share: descriptors that belong to a plan, and the tensors
 * of a shape. Every function does nothing after the first error, which the builder keeps.
 */
#pragma once

#include "engine/device/cuda/attention/cudnn_plan.h"

/* The tensors that are passed by value, in the memory of the host, and those that are never in memory. */
enum {
	SCALE = CUDNN_TENSOR_COUNT,
	AHEAD,  /* the score of a key that is ahead of its query: -inf */
	BEHIND, /* the score of a key that is behind the window */
	WINDOW,
	SCORES,
	CAUSAL,
	BANDED,
	SOFTMAX_IN,
	SOFTMAX_OUT,
	FIRST_VIRTUAL /* the composite graph numbers its own from here on */
};

enum { GRAPH_DESCRIPTORS = 160 };

struct cudnn_plan {
	struct cudnn_shape shape;
	cudnnBackendDescriptor_t descriptors[GRAPH_DESCRIPTORS], execution;
	size_t count, workspace;
};

/* Keeps the first error; after it, nothing more is built. */
struct builder {
	struct cudnn_plan *plan;
	const struct cudnn_target *target;
	struct error *err;
	cudnnBackendDescriptor_t properties, graph;
	int r;
};

int graph_failed(cudnnStatus_t status, const char *what, struct error *err);
void graph_check(struct builder *b, cudnnStatus_t status, const char *what);

/* what: words for the message of an error. NULL after an error. */
cudnnBackendDescriptor_t graph_make(struct builder *b, int type, const char *what);
void graph_set(struct builder *b, cudnnBackendDescriptor_t d, int name, int type, int64_t count,
               const void *elements, const char *what);
void graph_set_part(struct builder *b, cudnnBackendDescriptor_t d, int name, cudnnBackendDescriptor_t part,
                    const char *what);
void graph_set_number(struct builder *b, cudnnBackendDescriptor_t d, int name, int64_t x, const char *what);
void graph_finish(struct builder *b, cudnnBackendDescriptor_t d, const char *what);

enum graph_kind { IN_MEMORY, BY_VALUE, NOWHERE };
cudnnBackendDescriptor_t graph_tensor(struct builder *b, int64_t uid, int type, const int64_t *dims,
                                      const int64_t *strides, enum graph_kind kind,
                                      cudnnBackendDescriptor_t offsets);
/* One fp32 number that is passed by value. */
cudnnBackendDescriptor_t graph_value(struct builder *b, int64_t uid);
/* A tensor of scores, which are never in memory. */
cudnnBackendDescriptor_t graph_scores(struct builder *b, int64_t uid, int type);
cudnnBackendDescriptor_t graph_per_document(struct builder *b, int64_t uid, int type, int64_t n);
/* NULL where the shape is dense. */
cudnnBackendDescriptor_t graph_offsets(struct builder *b, int64_t uid);
/* A tensor of `heads` heads in a matrix of tokens whose rows are ld elements apart. transposed: [head_dim,
 * rows]. */
cudnnBackendDescriptor_t graph_matrix(struct builder *b, int64_t uid, int heads, int64_t ld, bool transposed,
                                      cudnnBackendDescriptor_t at);
cudnnBackendDescriptor_t graph_statistics(struct builder *b);

/* cudnn_composite.c: the operations of the forward pass for versions before CUDNN_ONE_OPERATION. Returns how
 * many there are in `operations`. */
enum { GRAPH_OPERATIONS = 32 };
int graph_composite_forward(struct builder *b, cudnnBackendDescriptor_t operations[GRAPH_OPERATIONS]);
