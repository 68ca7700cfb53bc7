/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_qk_norm_rope and its backward pass by the operations that they stand for: two norms and a rotation.
 * An engine without kernels of its own computes them so, and one with such kernels where they do not fit.
 * Names, shapes and in-place rules are those of device.h. C and CUDA C++ include it.
 */
#pragma once

#include "engine/device/device.h"

/* The norm of `heads` heads of each row. */
static inline struct device_norm qk_norm_of_heads(const struct device_qk_norm *n, int heads)
{
	const struct device_norm norm = {n->tokens, heads,       n->head_dim, n->ld, n->ld,
	                                 n->eps,    n->w_offset, n->type,     NULL};

	return norm;
}

/* Bytes from the heads of q to those of k in a row. */
static inline size_t qk_norm_k_offset(const struct device_qk_norm *n)
{
	return (size_t)n->heads * (size_t)n->head_dim * dtype_size(n->type);
}

static inline struct device_rope qk_norm_rotation(const struct device_qk_norm *n)
{
	const struct device_rope r = {n->tokens,   n->ld,  n->heads + n->kv_heads, n->head_dim,
	                              n->head_dim, false,  n->positions,           n->cos,
	                              n->sin,      n->type};

	return r;
}

static inline void qk_norm_rope_apart(struct device *dev, const struct device_qk_norm *n, void *y,
                                      float *rstd, const void *x, const void *w_q, const void *w_k)
{
	const struct device_norm q = qk_norm_of_heads(n, n->heads), k = qk_norm_of_heads(n, n->kv_heads);
	const struct device_rope r = qk_norm_rotation(n);
	size_t at = qk_norm_k_offset(n);

	device_rmsnorm_forward(dev, &q, y, rstd, x, w_q);
	device_rmsnorm_forward(dev, &k, (char *)y + at, rstd ? rstd + n->tokens * n->heads : NULL,
	                       (const char *)x + at, w_k);
	device_rope(dev, &r, y);
}

static inline void qk_norm_rope_backward_apart(struct device *dev, const struct device_qk_norm *n, void *d,
                                               void *d_w_q, void *d_w_k, enum dtype grad_type, const void *x,
                                               const float *rstd, const void *w_q, const void *w_k)
{
	const struct device_norm q = qk_norm_of_heads(n, n->heads), k = qk_norm_of_heads(n, n->kv_heads);
	const struct device_rope r = qk_norm_rotation(n);
	size_t at = qk_norm_k_offset(n);

	device_rope_inverse(dev, &r, d);
	device_rmsnorm_backward(dev, &q, d, false, d_w_q, grad_type, d, x, rstd, w_q);
	device_rmsnorm_backward(dev, &k, (char *)d + at, false, d_w_k, grad_type, (char *)d + at,
	                        (const char *)x + at, rstd + n->tokens * n->heads, w_k);
}
