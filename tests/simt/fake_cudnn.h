/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors of the stand-in for cuDNN, and what a run of a plan is given. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/device/cuda/attention/cudnn_plan.h"

enum { ATTRIBUTES = 24 };

struct attribute {
	int name, type;
	int64_t count;
	unsigned char bytes[17 * 8 * 2];
};

struct descriptor {
	int type, count;
	bool final;
	struct descriptor *own; /* the engine that a query has returned */
	struct attribute attributes[ATTRIBUTES];
};

static inline size_t size_of(int type)
{
	switch (type) {
	case CUDNN_TYPE_BOOLEAN:
	case CUDNN_TYPE_CHAR:
		return 1;
	case CUDNN_TYPE_DATA_TYPE:
	case CUDNN_TYPE_HEUR_MODE:
	case CUDNN_TYPE_KNOB_TYPE:
	case CUDNN_TYPE_POINTWISE_MODE:
	case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
		return sizeof(int);
	default:
		return 8;
	}
}

static inline const struct attribute *find(const struct descriptor *d, int name)
{
	for (int i = 0; i < d->count; i++)
		if (d->attributes[i].name == name)
			return &d->attributes[i];
	return NULL;
}

static inline struct descriptor *part(const struct descriptor *d, int name)
{
	const struct attribute *a = find(d, name);

	return a && a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? *(struct descriptor *const *)a->bytes : NULL;
}

static inline int64_t number(const struct descriptor *d, int name)
{
	const struct attribute *a = find(d, name);

	if (!a)
		return -1;
	return size_of(a->type) == 8   ? *(const int64_t *)a->bytes
	       : size_of(a->type) == 1 ? *a->bytes
	                               : *(const int *)a->bytes;
}

static inline const int64_t *numbers(const struct descriptor *d, int name)
{
	const struct attribute *a = find(d, name);

	return a && a->type == CUDNN_TYPE_INT64 ? (const int64_t *)a->bytes : NULL;
}

static inline int64_t uid(const struct descriptor *t)
{
	return number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

static inline const int64_t *dims(const struct descriptor *t)
{
	return numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}

static inline const int64_t *strides(const struct descriptor *t)
{
	return numbers(t, CUDNN_ATTR_TENSOR_STRIDES);
}

struct pack {
	const int64_t *uids;
	void *const *pointers;
	int64_t count;
};

static inline void *pointer(struct pack *p, const struct descriptor *t)
{
	for (int64_t i = 0; i < p->count; i++)
		if (p->uids[i] == uid(t)) {
			if (number(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE) < 0) {
				simt_check(p->pointers[i], "a tensor of cuDNN");
				if ((uintptr_t)p->pointers[i] % 16)
					break;
			}
			return p->pointers[i];
		}
	fprintf(stderr, "cuDNN's stand-in: tensor %lld is not given, or not aligned\n", (long long)uid(t));
	abort();
}

/* Heads of rows somewhere in memory; sequence `b` begins at `first`. */
struct view {
	char *p;
	const int64_t *strides, *offsets;
};

static inline struct view view_of(struct pack *p, const struct descriptor *t)
{
	const struct descriptor *offsets = part(t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);

	return (struct view){pointer(p, t), strides(t), offsets ? pointer(p, offsets) : NULL};
}

static inline int64_t at(const struct view *v, int64_t b, int64_t h, int64_t row)
{
	return (v->offsets ? v->offsets[b] : b * v->strides[0]) + h * v->strides[1] + row * v->strides[2];
}

/* cudnn_composite.c: whether it is the first operation of such a graph, and its run. */
bool fake_is_composite(const struct descriptor *first);
cudnnStatus_t fake_composite_check(const struct descriptor *operation);
cudnnStatus_t fake_composite_run(struct pack *p, const struct descriptor *graph);
