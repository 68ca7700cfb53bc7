/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN, for the calls of device.h that it supports. */
#pragma once

#include "engine/device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets dev->cudnn, or leaves it NULL where our own kernels are to do all: chosen so, or, with "auto", where
 * there is no cuDNN that can be used. */
int attention_cudnn_create(struct device *dev, enum device_attention_choice choice, struct error *err);
void attention_cudnn_destroy(struct device *dev);
/* "attention: cuDNN 9.28", or "attention: own (no cuDNN)"; text. */
const char *attention_cudnn_describe(const struct device *dev, char *text, size_t size);
/* Bytes for the largest calls of such shapes; 0 where none is taken. Makes all their plans, in place of those
 * of the shapes before: no other call is taken from here on. */
size_t attention_cudnn_scratch(const struct device *dev, const struct device_shapes *need);

/* True: queued (or a fault is kept). False: not taken. q, k, v, o and the gradients can be read 16 bytes at a
 * time. */
bool attention_cudnn_forward(struct device *dev, const struct device_attention *a, void *o, float *lse,
                             const void *q, const void *k, const void *v);
bool attention_cudnn_backward(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                              void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                              const void *k, const void *v);

/* Whether such a call is cuDNN's on this device, and whether it were with "auto". */
bool attention_cudnn_takes(struct device *dev, const struct device_attention *a, bool backward);
bool attention_cudnn_by_auto(const struct device *dev, const struct device_attention *a);

/* ---- attention.cu: kernels for it ---- */
/* batch + 1 offsets, `count` times: the first row of each document times ld; lengths[batch]: its rows.
 * Documents that are not there begin at the end and have none. */
struct attention_places {
	int64_t *offsets, stride, ld[8];
	int32_t *lengths;
	int count, batch;
};
void attention_places(struct device *dev, const struct attention_places *p, const int32_t *starts,
                      int documents);
/* to[cols, rows] = from[rows, cols] transposed. */
void attention_transpose(struct device *dev, float *to, const float *from, int64_t rows, int64_t cols);

#ifdef __cplusplus
}
#endif
