/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of attention as cuDNN is told of it: a graph of one operation for one shape, and the plan that its
 * heuristics choose. Causal; scale and window are given at each run.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/cuda/attention/cudnn.h"

/*
 * Documents are `batch` sequences of at most `rows` rows. Dense: each has exactly `rows`, one behind the
 * other. Ragged: lengths and offsets are in device memory; a sequence of length 0 is none. The statistics are
 * natural logarithms, [heads, batch · rows] where dense and [rows of all, heads] where ragged.
 */
struct cudnn_shape {
	bool backward, ragged, window;
	int heads, kv_heads, head_dim;
	int64_t batch, rows;
	int64_t total; /* ragged: rows of all sequences at most */
	int64_t ld_q, ld_k, ld_v, ld_o, ld_d_k, ld_d_v;
};

/* What a run is given the device's pointers to; by these numbers the tensors are known to cuDNN. */
enum cudnn_tensor {
	CUDNN_TENSOR_Q = 1,
	CUDNN_TENSOR_K,
	CUDNN_TENSOR_V,
	CUDNN_TENSOR_O,
	CUDNN_TENSOR_STATISTICS,
	CUDNN_TENSOR_D_O,
	CUDNN_TENSOR_D_Q,
	CUDNN_TENSOR_D_K,
	CUDNN_TENSOR_D_V,
	/* Ragged: int64 [batch + 1] offsets in elements, and int32 [batch] lengths. */
	CUDNN_TENSOR_OFFSETS_Q, /* of d_q, too */
	CUDNN_TENSOR_OFFSETS_K,
	CUDNN_TENSOR_OFFSETS_V,
	CUDNN_TENSOR_OFFSETS_O, /* of d_o, too */
	CUDNN_TENSOR_OFFSETS_STATISTICS,
	CUDNN_TENSOR_OFFSETS_D_K,
	CUDNN_TENSOR_OFFSETS_D_V,
	CUDNN_TENSOR_LENGTHS,
	CUDNN_TENSOR_COUNT
};

/* For whom a plan is: a GPU by its handle, or, where there is none, one described in cuDNN's JSON. */
struct cudnn_target {
	cudnnHandle_t handle;
	const char *description; /* NULL with a handle */
	int major;               /* compute capability */
};

struct cudnn_plan;

/*
 * -EOPNOTSUPP: this cuDNN has no kernel for it, or for the backward none that sums in a fixed order.
 * Takes tenths of a second, and before cuDNN 9.21, which compiles the kernel, a second.
 */
int cudnn_plan_create(const struct cudnn_target *target, const struct cudnn_shape *shape,
                      struct cudnn_plan **out, struct error *err);
void cudnn_plan_destroy(struct cudnn_plan *plan);
size_t cudnn_plan_workspace(const struct cudnn_plan *plan);
/* Queues it on the handle's stream. Pointers by enum cudnn_tensor; those a shape does not have are not
 * looked at. */
int cudnn_plan_run(const struct cudnn_plan *plan, cudnnHandle_t handle, void *const *pointers, float scale,
                   int window, void *workspace, struct error *err);
