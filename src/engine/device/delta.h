/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta.h: what a block of linear attention by the gated delta rule needs of a device, besides device.h,
 * whose conventions hold: cpu/ and cuda/ each implement all of it.
 *
 * The rule (Yang, Kautz & Hatamizadeh 2025, Gated Delta Networks, equation 10). Of each head, S is a state of
 * [key_dim, value_dim], zero in front of a document's first token, and of token t
 *
 *     S = exp(g_t) · S;  u_t = beta_t · (v_t - Sᵀ k_t);  S = S + k_t u_tᵀ;  o_t = Sᵀ q_t
 *
 * where q and k have been brought to the length 1, x / sqrt(sum(x²) + 1e-6), and q divided by sqrt(key_dim),
 * beta_t = sigmoid(b_t), and g_t = -exp(a_log) · log(1 + exp(a_t + dt_bias)). Each head of q and k serves
 * value_heads / key_heads heads of v that lie behind each other.
 *
 * It is computed by chunks of tokens (section 3.3): what the tokens of a chunk do to each other is products
 * of matrices. A chunk ends where a document does, and at each multiple of DEVICE_DELTA_CHUNK tokens of the
 * batch.
 */
#pragma once

#include "engine/device/device.h"

#define DEVICE_DELTA_CHUNK 64

struct device_delta {
	int64_t tokens;
	int documents;
	const int32_t *starts;      /* device, [documents + 1] */
	const int32_t *host_starts; /* the same on the host */
	int key_heads, value_heads; /* the second a multiple of the first */
	int key_dim, value_dim;
	int64_t ld;                  /* from one row of q, k and v to the next */
	int64_t ld_gates;            /* of b and a */
	int64_t ld_o;                /* of o */
	const void *a_log, *dt_bias; /* [value_heads] of `type` */
	enum dtype type;
};
/* q, k [tokens, key_heads · key_dim], v, o [tokens, value_heads · value_dim], b, a [tokens, value_heads]. */
void device_delta_forward(struct device *dev, const struct device_delta *d, void *o, const void *q,
                          const void *k, const void *v, const void *b, const void *a);
/* d_q, d_k, d_v (rows ld apart) and d_b, d_a (rows ld_gates apart) are written; d_a_log and d_dt_bias (fp32)
 * are added to. What the forward pass has found is computed again. */
void device_delta_backward(struct device *dev, const struct device_delta *d, void *d_q, void *d_k, void *d_v,
                           void *d_b, void *d_a, float *d_a_log, float *d_dt_bias, const void *d_o,
                           const void *q, const void *k, const void *v, const void *b, const void *a);
/* The same as forward of documents that are parts of sequences, each another: states [sequences, value_heads,
 * key_dim, value_dim] (fp32) are those in front of a part, and become those behind it. sequences (device,
 * [tokens]): of each token. */
void device_delta_carried(struct device *dev, const struct device_delta *d, float *states,
                          const int32_t *sequences, void *o, const void *q, const void *k, const void *v,
                          const void *b, const void *a);

/* ---- convolution over the tokens of a document, each channel by itself, and SiLU ---- */
#define DEVICE_CONV_WIDTH 8 /* at most */
struct device_conv {
	int64_t tokens;
	int documents;
	const int32_t *starts; /* as device_delta has them */
	const int32_t *host_starts;
	int channels, width;
	int64_t ld_x, ld_y;
	enum dtype type;
};
/* y[t, c] = silu(sum over j of w[c, j] · x[t - width + 1 + j, c]), where x is 0 in front of the document; w
 * is [channels, width]. */
void device_conv_forward(struct device *dev, const struct device_conv *c, void *y, const void *x,
                         const void *w);
/* d_x (rows ld_x apart) is written, d_w (fp32) added to; d_y has rows ld_y apart, and is changed. */
void device_conv_backward(struct device *dev, const struct device_conv *c, void *d_x, float *d_w, void *d_y,
                          const void *x, const void *w);
/* As device_delta_carried: last [sequences, width - 1, channels] of `type` are the last rows of x in front of
 * a part, zeros before the first, and become those up to its end. */
void device_conv_carried(struct device *dev, const struct device_conv *c, void *last,
                         const int32_t *sequences, void *y, const void *x, const void *w);

/* ---- gates ---- */
struct device_gating {
	int64_t rows;
	int cols;
	int64_t ld_x, ld_gate, ld_y;
	bool silu; /* f(g) = g · sigmoid(g), else sigmoid(g) */
	enum dtype type;
};
/* y = x · f(gate); y may be x. */
void device_gate_forward(struct device *dev, const struct device_gating *g, void *y, const void *x,
                         const void *gate);
/* d_x = d_y · f(gate) (rows ld_y apart, may be d_y), d_gate = d_y · x · f'(gate) (rows ld_gate apart). */
void device_gate_backward(struct device *dev, const struct device_gating *g, void *d_x, void *d_gate,
                          const void *d_y, const void *x, const void *gate);

/* ---- columns in groups ---- */
/* y[r, g · step_y + i] = x[r, g · step_x + i] for i < cols and each of the groups; rows are ld apart. */
struct device_group_copy {
	int64_t rows;
	int groups, cols;
	int64_t ld_x, step_x, ld_y, step_y;
	enum dtype type;
};
void device_copy_groups(struct device *dev, const struct device_group_copy *c, void *y, const void *x);
