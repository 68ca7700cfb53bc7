/* SPDX-License-Identifier: Apache-2.0 */
/* What model.c, forward.c, backward.c and decode.c share. Shapes are rows first; T is the batch's tokens. */
#pragma once

#include "engine/model/model.h"

/* Kept from a block's forward for its backward. Without training all blocks share one; with recompute all
 * share everything but `input`. */
struct model_activations {
	char *input;     /* [T, hidden] residual stream into the block; one more after the last block */
	char *qkv;       /* [T, qkv] with bias; q and k rotated already, unless the family norms them first */
	char *attention; /* [T, q] */
	float *lse;      /* [heads, T] */
	char *middle;    /* [T, hidden] residual stream between attention and MLP */
	char *gate_up;   /* [T, 2·intermediate] */
	size_t bytes;    /* all of these, in one piece from input on; 0 where blocks share them */
};

struct model {
	struct device *dev;
	struct model_config c;
	const struct model_layout *layout;
	struct model_options o;
	size_t size;              /* of an element of o.type */
	int64_t q, kv, qkv, wide; /* columns */
	int64_t logits_rows;
	struct {
		char *w;
		float *g;
	} * unit;
	struct model_hooks hooks;
	struct model_activations *layer; /* [layers + 1] */

	/* Scratch, alive within a block. */
	char *h;       /* [T, hidden] a norm's output, or a gradient with respect to it */
	char *y;       /* [T, wide] SwiGLU's output */
	char *d_wide;  /* [T + 1, wide] */
	char *d_qkv;   /* [T, qkv] */
	char *rotated; /* [T, qkv] normed and rotated q and k, where the family norms them */
	char *dx;      /* [T, hidden] gradient of the residual stream */
	float *rstd;   /* [T · (heads + kv_heads)] */
	char *logits;  /* [logits_rows, vocab] */
	float *losses; /* [logits_rows] */

	/* Input on the device. */
	int32_t *ids, *targets, *positions, *starts, *rows, *inverse;
	float *cos, *sin; /* [max_sequence, head_dim / 2] */

	/* Host. */
	int32_t *host_positions, *host_rows, *host_targets;
	float *host_losses;

	/* Generation: per layer [cache_tokens, 2·kv], k then v. */
	char **cache;
	int64_t past;
	float *decode_logits;
};

/* The batch being worked on. */
struct model_pass {
	const struct model_batch *b;
	struct device_attention attention;
	int64_t counted; /* rows with a target */
	bool compact;    /* only those go through the head: m->rows lists them */
};

/* NULL where the unit has none. */
static inline char *weight(const struct model *m, int unit, enum parameter_role role)
{
	int64_t at = role < PARAMETER_ROLES ? m->layout->unit[unit].offset[role] : -1;

	return at < 0 ? NULL : m->unit[unit].w + (size_t)at * m->size;
}

static inline float *gradient(const struct model *m, int unit, enum parameter_role role)
{
	int64_t at = role < PARAMETER_ROLES ? m->layout->unit[unit].offset[role] : -1;

	return at < 0 ? NULL : m->unit[unit].g + at;
}

static inline int model_need(const struct model *m, int unit, enum model_phase phase, struct error *err)
{
	return m->hooks.need ? m->hooks.need(m->hooks.context, unit, phase, err) : 0;
}

static inline void model_done(const struct model *m, int unit, enum model_phase phase)
{
	if (m->hooks.done)
		m->hooks.done(m->hooks.context, unit, phase);
}

/* The first so many blocks recompute; but the last of these finds its activations where they are shared. */
static inline int model_recomputed(const struct model *m)
{
	return m->o.training && m->o.recompute != MODEL_KEEP_ALL ? MAX(m->c.layers - m->o.kept, 0) : 0;
}

/* The matrix of the head lies in the embedding's unit when tied. */
static inline int head_unit(const struct model *m)
{
	return m->c.tied ? 0 : m->layout->units - 1;
}

static inline enum parameter_role head_role(const struct model *m)
{
	return m->c.tied ? PARAMETER_EMBEDDING : PARAMETER_HEAD;
}

/*
 * Products with a matrix of weights w[out, in], named by its unit and role; PARAMETER_Q is that of q, k and v
 * together, PARAMETER_GATE that of gate and up, whose outputs are columns of one row.
 */
/* y[tokens, out] = x[tokens, in] · wᵀ + bias */
void model_linear(struct model *m, int unit, enum parameter_role role, void *y, const void *x,
                  int64_t tokens);
/* The same, with the output in fp32. */
void model_linear_f32(struct model *m, int unit, enum parameter_role role, float *y, const void *x,
                      int64_t tokens);
/* dx[tokens, in] = dy[tokens, out] · w */
void model_linear_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                 const void *dy, int64_t tokens);
/* dw[out, in] = dyᵀ · x where `first`, else added to it; the sums over dy's rows are always added to the
 * bias's gradient. */
void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first);
void model_norm(struct model *m, void *y, const void *x, const void *w, int64_t tokens);
/* sum += x, y = norm(sum): the residual connection and the norm after it. */
void model_add_norm(struct model *m, void *y, void *sum, const void *x, const void *w, int64_t tokens);
/* Norm and rotation of q and k of x into y (both [tokens, qkv]), where the family norms them; statistics in
 * m->rstd. */
void model_qk_norm_rotate(struct model *m, int unit, char *y, const char *x, int64_t tokens);
void model_rotate(struct model *m, char *x, int64_t tokens, bool inverse);

/* Checks the batch, copies it to the device, fills p. */
int model_begin(struct model *m, const struct model_batch *batch, struct model_pass *p, struct error *err);
/* Everything up to the final norm, whose output is in m->h and statistics in m->rstd. The phase has no more
 * use for any unit but those of the head, of which model_head_done says so. */
int model_forward(struct model *m, const struct model_pass *p, enum model_phase phase, struct error *err);
void model_head_done(const struct model *m, enum model_phase phase);
/* The hooks of a forward pass, for a batch with nothing to compute. */
int model_forward_nothing(const struct model *m, enum model_phase phase, struct error *err);
/* One block from its input (whose norm is in m->h) up to m->y, SwiGLU's output. */
void model_block_forward(struct model *m, const struct model_pass *p, int layer);
/* Rows of a chunk of logits, so that `rows` are cut into equal ones. */
static inline int64_t logits_chunk(const struct model *m, int64_t rows)
{
	int64_t chunks = (rows + m->logits_rows - 1) / m->logits_rows;
	int64_t n = ((rows + chunks - 1) / chunks + 15) / 16 * 16;

	return MIN(n, m->logits_rows);
}

/* The head's input rows: m->h, or the gathered ones. */
const char *model_head_input(struct model *m, const struct model_pass *p);
