/* SPDX-License-Identifier: Apache-2.0 */
/* The rotation of the gradients that attention's backward pass has written, by an operation of its own: where
 * no kernel of attention does it before it writes them. C and CUDA C++ include it. */
#pragma once

#include "engine/device/device.h"

static inline void rotation_undo(struct device *dev, const struct device_attention *a, void *d_q, void *d_k)
{
	size_t q = (size_t)a->heads * (size_t)a->head_dim * dtype_size(a->type);
	bool together = a->ld_q == a->ld_k && (char *)d_k == (char *)d_q + q;
	struct device_rope r = {a->tokens,    a->ld_q,       a->heads + (together ? a->kv_heads : 0),
	                        a->head_dim,  a->rotary_dim, false,
	                        a->positions, a->cos,        a->sin,
	                        a->type};

	if (a->rotary_dim <= 0)
		return;
	device_rope_inverse(dev, &r, d_q);
	if (together)
		return;
	r.ld = a->ld_k;
	r.heads = a->kv_heads;
	device_rope_inverse(dev, &r, d_k);
}
