/* SPDX-License-Identifier: Apache-2.0 */
/* What model.c, forward.c, backward.c and decode.c share. Shapes are rows first; T is the batch's tokens. */
#pragma once

#include "engine/device/delta.h"
#include "engine/model/model.h"

/* Products of the same input: q, k and v; or those of linear attention. */
enum { MODEL_GROUP_MAX = 4 };

/* Of cos and sin, that of queries where these are scaled (query_beta), of which there is one more then. */
enum { SCALED_TABLE = 1 };
static inline int model_tables(const struct model_config *c)
{
	return model_config_rotary_tables(c) + (c->query_beta > 0);
}

/* The norms of a block. */
enum model_block_norm {
	NORM_INPUT,         /* PARAMETER_INPUT_NORM */
	NORM_POST,          /* PARAMETER_POST_NORM */
	NORM_ATTENTION_OUT, /* PARAMETER_ATTENTION_OUT_NORM */
	NORM_MLP_OUT,       /* PARAMETER_MLP_OUT_NORM */
	BLOCK_NORMS
};

/* Where a norm's output is, and its statistics: of RMSNorm [T], of LayerNorm [2, T]. */
struct model_normed {
	char *y; /* [T, hidden] */
	float *statistics;
};

/* Where tokens have gone in a mixture of experts (device_router). */
struct model_routing {
	char *logits;    /* [T, experts], and in the backward pass their gradients */
	int32_t *expert; /* [T, chosen_experts] */
	float *weight;   /* [T, chosen_experts] */
	int32_t *place;  /* [T, chosen_experts] */
	int32_t *row;    /* [places] */
	int32_t *starts; /* host [2 · experts + 1], as device_expert_places has them */
};

/* Kept from a block's forward for its backward. Without training all blocks share one; with recompute all
 * share everything but `input`. */
struct model_activations {
	char *input; /* [T, hidden] residual stream into the block; one more after the last block */
	/* [T, qkv] with bias; q and k rotated already, unless the family norms them first; of linear
	 * attention [T, delta_row]. */
	char *qkv;
	char *attention; /* [T, q]; of linear attention [T, delta_value] */
	char *gate;      /* [T, q] of gated attention */
	float *lse;      /* [heads, T] */
	/* [T, hidden] outputs of attention and of the MLP, where a norm comes behind them; else NULL. */
	char *attention_out, *mlp_out;
	char *middle;  /* [T, hidden] residual stream between attention and MLP */
	char *gate_up; /* [T, gate_up]; of experts [places, gate_up] */
	struct model_routing routing;
	/* Of a block that keeps outputs (model_kept_outputs); NULL: computed again. Behind attention and the
	 * MLP, the output of a norm is added to the residual stream, and its statistics alone are kept. */
	struct model_normed norm[BLOCK_NORMS];
	char *active; /* [T, intermediate] the activation's output; of experts [places, intermediate] */
	size_t at, input_end; /* of input, as offsets in the arena; what the block has for itself follows */
};

/* The four inputs of a block's products, of which the outputs are up to three products (linear.c). */
enum { FP8_GROUPS = 4, FP8_PRODUCTS = 3, FP8_WEIGHTS = FP8_GROUPS * FP8_PRODUCTS };

/* Codes of a matrix as it lies, and turned. */
struct model_fp8_matrix {
	uint8_t *codes, *turned;
	float *scale; /* [2] */
	int unit;     /* of which these weights are; -1: of none */
};

/* Operands of products in fp8 whose kernels find their largest magnitudes: m->h and m->y, the gradients of
 * gate_up and of the residual stream (m->dx), and those of each layer (model_layer_operand). */
enum {
	OPERAND_NORM,
	OPERAND_ACTIVATION,
	OPERAND_GATE_GRADIENT, /* behind the activation: one kernel finds both */
	OPERAND_STREAM_GRADIENT,
	OPERAND_LAYERS
};

/* The output of attention, and what a layer keeps of norms and of the activation. */
enum model_layer_operand {
	OPERAND_ATTENTION,
	OPERAND_KEPT_INPUT,
	OPERAND_KEPT_POST,
	OPERAND_KEPT_ACTIVATION,
	LAYER_OPERANDS
};

static inline int model_layer_operand(int layer, enum model_layer_operand operand)
{
	return OPERAND_LAYERS + layer * LAYER_OPERANDS + (int)operand;
}

struct model_fp8_amax {
	float *at;  /* device */
	bool known; /* the kernel that wrote the operand last has written it */
};

/* What products in fp8 are made of (fp8.c). */
struct model_fp8 {
	struct model_fp8_matrix *weight; /* [layers, or 1 with o.fp8_shared][FP8_WEIGHTS] */
	struct model_fp8_matrix input;   /* one buffer, since codes and turned ones are used apart */
	struct model_fp8_matrix gradient[FP8_PRODUCTS]; /* of an output; parts of two buffers */
	const void *gradient_of[FP8_PRODUCTS];          /* where it is not in fp8; unit says whose it is */
	struct model_fp8_amax *amax;                    /* [OPERAND_LAYERS + layers · LAYER_OPERANDS] */
};

/* Who takes the products of linear.c instead of the device (products.c). */
struct model_listing {
	model_product_fn each;
	void *context;
};

struct model {
	struct device *dev;
	struct model_config c;
	const struct model_layout *layout;
	struct model_options o;
	size_t size;                       /* of an element of o.type */
	int64_t q, kv, qkv, wide, gate_up; /* columns */
	/* Of linear attention: columns of all heads of q or k, of v, of the convolution (q, k and v), and of
	 * the first product. */
	int64_t delta_key, delta_value, channels, delta_row;
	int64_t logits_rows;
	int multiple;   /* of experts: device_router's */
	int64_t places; /* rows of the MLP: those of the largest batch, or of experts, its places */
	struct {
		char *w, *g;
	} * unit;
	struct model_hooks hooks;
	struct model *teacher;               /* borrowed; NULL: none */
	const char *lesson;                  /* of this pass, by model_forward: the teacher's head input */
	const struct model_listing *listing; /* NULL: products are computed */
	struct model_activations *layer;     /* [layers + 1] */

	/* Scratch, alive within a block. */
	char *h;      /* [T, hidden] a norm's output, or a gradient with respect to it */
	char *y;      /* [T, wide] SwiGLU's output; of experts at least [places, intermediate] */
	char *d_wide; /* [T + 1, wide]; of experts at least [places, intermediate or hidden, whichever is
	                 more] */
	char *d_qkv;  /* [T, qkv], or [T, delta_row] where that is more */
	/* Of gated attention: q_proj's output, and its gradient, [T, qkv + q]; and that of the gates [T, q].
	 */
	char *projected, *d_gate;
	char *convolved,
	    *d_convolved; /* of linear attention: [T, channels] q, k and v behind the convolution */
	char *rotated;    /* [T, qkv] normed and rotated q and k, where the family norms them */
	char *dx;         /* [T, hidden] gradient of the residual stream */
	/* [T, hidden] and of what attention or the MLP adds to it, where it is not the same; else NULL */
	char *d_branch;
	float *rstd;       /* [T · (heads + kv_heads)], or of linear attention [T · value heads] */
	char *logits;      /* [logits_rows, vocab]; of a model of scores, their gradients */
	size_t logits_end; /* as an offset in the arena */
	float *losses;     /* [logits_rows]; of a model of scores, these */
	float *factors;    /* [T] of the rows that go through the head, with o.weighed */
	/* Of a model with a value head: those of a chunk of rows [logits_rows], and their gradients, of
	 * o.type; and the derivatives of the loss by those of all rows [T]. */
	float *values, *value_factors;
	char *d_values;
	struct model_fp8 fp8;
	/* Where there are adapters. */
	int64_t rank, trained_rank; /* stored, and of it trained (tuning.h) */
	float adapter_scale;
	char *low, *d_low; /* [T, GROUP · rank] x·Aᵀ, and its gradient */
	int d_low_of;      /* whose gradient that is */
	bool drops;        /* in this pass, which is of the micro-batch `number` */
	int64_t number;
	char *masked; /* [T, wide] x, or a gradient of it, with dropout's mask */
	bool dora;
	char *unscaled,
	    *d_scaled;   /* [T, widest output] of DoRA: an output before it is scaled; its gradient */
	int d_scaled_of; /* whose gradient that is */
	float *norms;    /* [widest output] */
	float *unused;   /* [hidden] the gradient of a norm that is frozen */
	/* Gradients of norms and biases of the unit in work, where they are not added up in place. */
	float *vectors;
	/* Norms and biases of the unit in work, where the gradients of its matrices are written over them. */
	char *vector_weights;
	int vector_weights_of; /* whose these are; -1: of none */

	/* Where ranks share a sequence: what is sent, or has come; and of all tokens, for the heads of this
	 * rank, what attention reads and writes. */
	char *exchanged;               /* [T, qkv] */
	char *heads_qkv, *heads_d_qkv; /* as [T, qkv] */
	char *heads_o, *heads_d_o;     /* as [T, q] */
	int heads_of;                  /* the layer of which heads_qkv and heads_o are */

	/* Where there are experts. */
	char *spread;     /* [places, hidden] rows of tokens, or of what experts give */
	float *d_weights; /* [T, chosen_experts] */
	float *balance;   /* [experts] with o.router_loss: device_route_backward's */
	float *row_losses;
	int32_t *expert_starts; /* [2 · experts + 1] */
	int32_t *host_starts;   /* of all layers; host */
	float *host_shares;     /* [ranks that share a batch, experts] of their tokens; host */
	int64_t filling;        /* of this rank's tokens, in this pass: model_batch.filling */

	/* Input on the device. */
	int32_t *ids, *targets, *positions, *starts, *rows, *inverse;
	float *cos[2],
	    *sin[2]; /* [max_sequence, rotary_dim / 2], of each table; or the second of scaled queries */

	/* Host. */
	int32_t *host_positions, *host_rows, *host_targets;
	float *host_losses;
	/* With o.weighed: [max_tokens], of all ranks that share a batch, then as many factors; of a model
	 * with a value head [2, tokens] and as many. */
	float *token_losses;

	/* Generation: per layer and sequence [cache_tokens, 2·kv], k then v. */
	char **cache;
	/* Of linear attention in its place, and of sequence: states [value heads, key_dim, value_dim], and
	 * the last inputs of the convolution [width - 1, channels]. */
	float **state;
	char **last;
	int32_t *host_parts; /* [parts + 1] first tokens of the parts in work; on the device in `starts` */
	int64_t *past;       /* tokens of each sequence */
	bool by_rows;        /* each of the rows in work is a token of another sequence */
	int32_t *sequences, *host_sequences; /* of the tokens in work */
	float *decode_logits;                /* [sequences, vocab] */
	int32_t *chosen;                     /* [sequences], by these numbers */
	double *uniform;
};

/* Numbers of a layer in host_starts. */
static inline size_t model_starts(const struct model *m)
{
	return 2 * (size_t)m->c.experts + 1;
}

/* The batch being worked on. Not to be copied: b may point into it. */
struct model_pass {
	const struct model_batch *whole;
	const struct model_batch *b; /* this rank's part of it, which is `part` where ranks share it */
	struct model_batch part;
	struct device_attention attention; /* of all tokens */
	int64_t counted;                   /* rows with a target */
	int64_t all_counted;               /* the same of the whole batch */
	bool compact;                      /* only those go through the head: m->rows lists them */
	bool has_logits;                   /* m->logits are those of all of these rows */
};

/* The unit that has a part of a role of a base unit: itself or its companion; -1: none. */
static inline int model_place(const struct model *m, int unit, enum parameter_part part,
                              enum parameter_role role)
{
	const struct model_unit *u = &m->layout->unit[unit];

	if (role == PARAMETER_ROLES)
		return -1;
	if (u->offset[part][role] >= 0)
		return unit;
	return u->companion >= 0 && m->layout->unit[u->companion].offset[part][role] >= 0 ? u->companion : -1;
}

/* NULL: none. */
static inline char *model_weight(const struct model *m, int unit, enum parameter_part part,
                                 enum parameter_role role)
{
	int at = model_place(m, unit, part, role);
	const struct model_unit *u = &m->layout->unit[MAX(at, 0)];
	int64_t offset;

	if (at < 0)
		return NULL;
	offset = u->offset[part][role];
	if (at == m->vector_weights_of && offset >= u->matrices)
		return m->vector_weights + (size_t)(offset - u->matrices) * m->size;
	return m->unit[at].w + (size_t)offset * m->size;
}

/* Whether the gradients of a unit replace its weights. The gradient of a matrix does so once that of its
 * input is computed. Where it takes more bytes than the matrix, it reaches into what lies behind that: the
 * matrices that the backward pass has done with, which are laid out in the order of the forward pass. */
static inline bool model_is_in_place(const struct model *m, int unit)
{
	return m->o.in_place && m->unit[unit].g && m->unit[unit].g == m->unit[unit].w;
}

/* Of a unit, by itself. */
static inline enum dtype model_gradient_type(const struct model *m, int unit)
{
	return m->o.gradient_type != DTYPE_F32 && model_layout_writes_once(m->layout, unit) &&
	               !m->layout->unit[unit].frozen
	           ? m->o.gradient_type
	           : DTYPE_F32;
}

/* Whether the gradients of a unit's norms and biases add up in m->vectors, in fp32. */
static inline bool model_adds_apart(const struct model *m, int unit)
{
	return model_gradient_type(m, unit) != DTYPE_F32 || model_is_in_place(m, unit);
}

/* Where a matrix is, of the unit's type; where a norm or bias is, in fp32: what is added to these comes to
 * its place when the unit ends, and is rounded. NULL: none, or it is frozen. */
static inline void *model_gradient(const struct model *m, int unit, enum parameter_part part,
                                   enum parameter_role role)
{
	int at = model_place(m, unit, part, role);
	const struct model_unit *u = &m->layout->unit[MAX(at, 0)];

	if (at < 0 || u->frozen)
		return NULL;
	if (u->offset[part][role] >= u->matrices && model_adds_apart(m, at))
		return m->vectors + (u->offset[part][role] - u->matrices);
	return m->unit[at].g + (size_t)u->offset[part][role] * dtype_size(model_gradient_type(m, at));
}

/* Of the matrix itself; of none: fp32. */
static inline enum dtype model_matrix_gradient_type(const struct model *m, int unit, enum parameter_role role)
{
	int at = model_place(m, unit, PART_WEIGHT, role);

	return at < 0 ? DTYPE_F32 : model_gradient_type(m, at);
}

static inline char *weight(const struct model *m, int unit, enum parameter_role role)
{
	return model_weight(m, unit, PART_WEIGHT, role);
}

static inline void *gradient(const struct model *m, int unit, enum parameter_role role)
{
	return model_gradient(m, unit, PART_WEIGHT, role);
}

/* Of a base unit; its companion comes with it. */
static inline int model_need(const struct model *m, int unit, enum model_phase phase, struct error *err)
{
	int companion = m->layout->unit[unit].companion, r;

	if (!m->hooks.need)
		return 0;
	r = m->hooks.need(m->hooks.context, unit, phase, err);
	return r < 0 || companion < 0 ? r : m->hooks.need(m->hooks.context, companion, phase, err);
}

static inline void model_done(const struct model *m, int unit, enum model_phase phase)
{
	int companion = m->layout->unit[unit].companion;

	if (!m->hooks.done)
		return;
	m->hooks.done(m->hooks.context, unit, phase);
	if (companion >= 0)
		m->hooks.done(m->hooks.context, companion, phase);
}

/* Whether the hook adds the rows of m->dx to the embedding's gradients. */
static inline bool model_embedding_rows(const struct model *m)
{
	return m->c.tied && m->hooks.embedding_rows && m->hooks.embedding_rows(m->hooks.context, m->dx);
}

static inline int model_operands(const struct model_config *c)
{
	return model_layer_operand(c->layers, OPERAND_ATTENTION);
}

/* The first so many blocks recompute; but the last of these finds its activations where they are shared. */
static inline int model_recomputed(const struct model *m)
{
	return m->o.training && m->o.recompute != MODEL_KEEP_ALL ? MAX(m->c.layers - m->o.kept, 0) : 0;
}

/* The matrix of the head lies in the embedding's unit when tied. */
static inline int head_unit(const struct model *m)
{
	return m->c.tied ? 0 : m->layout->base_units - 1;
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
/* The same, added to dx. */
void model_linear_add_input_gradient(struct model *m, int unit, enum parameter_role role, void *dx,
                                     const void *dy, int64_t tokens);
/* dw[out, in] = dyᵀ · x where `first`, else added to it; the sums over dy's rows are always added to the
 * bias's gradient. */
void model_linear_weight_gradient(struct model *m, int unit, enum parameter_role role, const void *dy,
                                  const void *x, int64_t tokens, bool first);

/* ---- fp8.c, fp8_buffers.c: the operands of a product of a block's weights ---- */
/* Product `index` of the group that `leader` leads: weights that lie as [rows, cols] at w, outputs that are
 * columns of dy from `column` on, of a row of `ld`. */
struct model_fp8_product {
	int unit, index;
	enum parameter_role leader;
	bool transposed; /* rows are inputs */
	int64_t in, out, column, ld;
	const void *weight;
};
/* Whether the products of a unit are in fp8. */
static inline bool model_is_fp8(const struct model *m, int unit)
{
	return m->o.fp8 && unit > 0 && unit < m->layout->base_units - 1;
}
/* Below FP8_GROUPS. */
int model_fp8_group(enum parameter_role leader);
void model_fp8_place(struct model *m, struct arena *a);
void model_fp8_start(struct model *m); /* of a backward pass: no gradient has codes */
int model_fp8_check(const struct model *m, struct error *err);
/* Where the kernel that writes an operand is to put its largest magnitude, where that is `found`; NULL: it is
 * not, or no product is in fp8. Called wherever an operand is written. */
float *model_fp8_amax(struct model *m, int operand, bool found);
/* Codes of a group's input: as it lies, or turned for the gradient of weights. */
void model_fp8_input(struct model *m, int unit, enum parameter_role leader, const void *x, int64_t tokens,
                     int64_t in, bool turned);
/* Make of a product in the model's type one in fp8. The input's codes have been made. */
void model_fp8_forward(struct model *m, const struct model_fp8_product *p, struct device_gemm *g);
void model_fp8_input_gradient(struct model *m, const struct model_fp8_product *p, const void *dy,
                              struct device_gemm *g);
void model_fp8_weight_gradient(struct model *m, const struct model_fp8_product *p, const void *dy,
                               struct device_gemm *g);

/* Norms are named by unit and role, too. Where a norm's output and statistics are: m->h and m->rstd, or what
 * the block keeps of them. */
struct model_normed model_normed(const struct model *m, int unit, enum parameter_role role);
/* Its statistics go to where model_normed says, and so does y where it is that place. */
void model_norm(struct model *m, int unit, enum parameter_role role, void *y, const void *x, int64_t tokens);
/* The gradient of a norm whose statistics are where model_normed says. */
void model_norm_gradient(struct model *m, int unit, enum parameter_role role, void *dx, bool accumulate,
                         const void *dy, const void *x, int64_t tokens);
/* The residual connection: sum += x, then norm(sum), to where model_normed says, where the unit has that
 * norm. */
void model_add_norm(struct model *m, int unit, enum parameter_role role, void *sum, const void *x,
                    int64_t tokens);
/* What a block does with the output of attention or the MLP before it is added to the residual stream: sum =
 * scale · norm(out), or scale · sum where out is sum. */
void model_branch_end(struct model *m, int unit, enum parameter_role role, char *sum, const char *out,
                      int64_t tokens);
/* Its gradient, from m->dx; out NULL: without a norm. Changes m->h. */
const char *model_branch_gradient(struct model *m, int unit, enum parameter_role role, const char *out,
                                  int64_t tokens);
/* What attention or the MLP reads: norm(x), or x where the unit has no such norm. Where it is, once it has
 * been computed; computing it; and for the backward pass, which does so unless it is kept. */
const char *model_branch_place(const struct model *m, int unit, enum parameter_role role, const char *x);
const char *model_branch_input(struct model *m, int unit, enum parameter_role role, const char *x,
                               int64_t tokens);
const char *model_branch_input_again(struct model *m, int unit, enum parameter_role role, const char *x,
                                     int64_t tokens);
/* Adds its gradient to m->dx. The statistics are those that model_branch_input has left. */
void model_branch_input_gradient(struct model *m, int unit, enum parameter_role role, const char *dy,
                                 const char *x, int64_t tokens);
/* Norm and rotation of q and k, as far as the layer has them. Returns where both are then: in qkv itself, or
 * (normed) in m->rotated, with the statistics in m->rstd. */
char *model_qk(struct model *m, int layer, char *qkv, int64_t tokens);
/* From the gradients that attention has written to those of qkv, in place in m->d_qkv. */
void model_qk_gradient(struct model *m, int layer, const char *qkv, int64_t tokens);
/* Has attention's backward pass undo the rotation of q and k, unless a norm is in front of it. */
void model_rotation(const struct model *m, int layer, struct device_attention *a);
/* all [ranks that share the batch, n]: the n numbers that each has (host), n at most max_tokens, or the
 * number of experts. */
int model_share(struct model *m, const float *own, int64_t n, float *all, struct error *err);
/* Losses of the batch's tokens (host), of which this rank has computed those of its own. */
int model_share_losses(struct model *m, const struct model_pass *p, float *losses, struct error *err);
/* ---- mixer.c, mixer_buffers.c: attention, or linear attention in its place ---- */
/* The roles of the products in front of it and behind it. */
enum parameter_role model_projection(const struct model *m, int layer);
enum parameter_role model_output_projection(const struct model *m, int layer);
/* The first product, of x, to a->qkv, and the gates to a->gate. */
void model_project(struct model *m, int layer, const char *x, int64_t tokens);
/* From there to a->attention. */
int model_mix(struct model *m, const struct model_pass *p, int layer, struct error *err);
/* The input of the second product: a->attention, or m->y, to which it is computed. */
const char *model_mixed(struct model *m, int layer, int64_t tokens);
/* From the gradient of that in m->d_wide to that of the first product's output, *d_projected. */
int model_mix_backward(struct model *m, const struct model_pass *p, int layer, const char **d_projected,
                       struct error *err);
/* Linear attention of parts of sequences, from their states. */
void model_mix_carried(struct model *m, int layer, int64_t tokens, int parts);
/* Of a sequence in a layer: floats of its states, and bytes of the last inputs of the convolution. */
size_t model_state_floats(const struct model *m);
size_t model_last_bytes(const struct model *m);
void model_state_place(struct model *m, struct arena *a, int layer);
void model_state_reset(struct model *m, int layer, int sequence);
void model_state_copy(struct model *m, int layer, int from, int to);

/* Attention of the batch, to a->attention and a->lse; q and k are in qk, v in a->qkv. Both passes wait for
 * other ranks where these share the batch. */
int model_attend(struct model *m, const struct model_pass *p, int layer, const char *qk, struct error *err);
/* From the gradient in m->d_wide to that of q, k and v, in m->d_qkv. */
int model_attend_backward(struct model *m, const struct model_pass *p, int layer, const char *qk,
                          struct error *err);
/* The activation's output from the layer's gate_up. Returns where it is: m->y, or what the layer keeps. */
const char *model_activate(struct model *m, int layer, int64_t tokens);
/* The gradient of gate_up, in place, from m->d_wide. Returns where the activation's output is: it is written
 * to m->y again unless it is kept, or nothing reads it (then NULL). */
const char *model_activation_gradient(struct model *m, int layer, int64_t tokens);
/* ---- teacher.c ---- */
/* model_cross_entropy with the teacher: of m->logits, which are those of the head's input rows from `first`
 * on. With the gradient. */
void model_distill(struct model *m, int64_t first, int64_t n, float scale);

/* ---- experts.c, experts_buffers.c: the MLP of a mixture of experts, in place of the products of gate, up
 * and down ---- */
/* The routing of x, and gate_up of the rows that it sends to each expert. */
int model_experts_begin(struct model *m, int layer, const void *x, int64_t tokens, struct error *err);
/* The same with the routing that is there. */
void model_experts_gate_up(struct model *m, int layer, const void *x, int64_t tokens);
/* y [T, hidden] from gate_up: the weighted sums of what the experts of each token give. */
void model_experts_end(struct model *m, int layer, void *y, int64_t tokens);
/* From dy, the gradient of y, to those of weights and router, and to m->dx. */
void model_experts_backward(struct model *m, int layer, const char *dy, int64_t tokens, float scale,
                            bool first, double *loss_sum);
/* Before the backward pass: the loss that balances the experts. */
int model_experts_balance(struct model *m, const struct model_pass *p, struct error *err);
struct device_router model_router(const struct model *m, int64_t tokens);
void model_experts_size(struct model *m); /* before the next two */
void model_experts_place(struct model *m, struct arena *a);
void model_experts_activations(struct model *m, struct arena *a, int layer);
/* The products with experts' weights that a batch of so many tokens may have, for model_products; place:
 * where their operands are. */
void model_experts_list(struct model *m, int unit, int64_t tokens, void *place);

/* The first block's input from m->ids, with the noise of a training pass over `noisy` unless that is NULL;
 * and the gradients of unit 0 from m->dx, which it may change. */
void model_embed(struct model *m, int64_t tokens, const struct model_batch *noisy);
void model_embedding_gradient(struct model *m, const int32_t *host_ids, int64_t tokens, bool first);

/* Checks the batch, copies it to the device, fills p. */
int model_begin(struct model *m, const struct model_batch *batch, struct model_pass *p, struct error *err);
/* Everything up to the final norm, whose output is in m->h and statistics in m->rstd. The phase has no more
 * use for any unit but those of the head, of which model_head_done says so. */
int model_forward(struct model *m, const struct model_pass *p, enum model_phase phase, struct error *err);
void model_head_done(const struct model *m, enum model_phase phase);
/* The hooks of a forward pass, for a batch with nothing to compute. */
int model_forward_nothing(const struct model *m, enum model_phase phase, struct error *err);
/* One block from its input (whose norm has been computed) up to gate_up. */
int model_block_forward(struct model *m, const struct model_pass *p, int layer, struct error *err);
/* The block from attention's output up to gate_up. */
int model_block_middle(struct model *m, int layer, int64_t tokens, struct error *err);
/* The block from gate_up to what it adds to the residual stream, in the next block's input. */
void model_block_end(struct model *m, int layer, int64_t tokens);
/* The role of the norm of what block `layer` has made. */
static inline enum parameter_role next_norm(const struct model *m, int layer)
{
	return layer == m->c.layers - 1 ? PARAMETER_FINAL_NORM : PARAMETER_INPUT_NORM;
}

/* Where the output of attention, or of the MLP, goes: a norm behind it needs it for its gradient. */
static inline char *branch_out(char *kept, char *sum)
{
	return kept ? kept : sum;
}

/* Rows of a chunk of logits, so that `rows` are cut into equal ones. */
static inline int64_t logits_chunk(const struct model *m, int64_t rows)
{
	int64_t chunks = (rows + m->logits_rows - 1) / m->logits_rows;
	int64_t n = ((rows + chunks - 1) / chunks + 15) / 16 * 16;

	return MIN(n, m->logits_rows);
}

/* The loss of each token of the batch into losses (host, [tokens]; values behind them), 0 where it is not
 * counted, by the head's input x; where losses is NULL, their sum alone is added to *loss_sum. */
int model_head_losses(struct model *m, const struct model_pass *p, const char *x, double *loss_sum,
                      float *losses, struct error *err);
/* The head's input rows: m->h, or the gathered ones; once for each forward pass. */
char *model_head_input(struct model *m, const struct model_pass *p);
/* m->losses of m->logits (n rows): cross-entropy. With backward the loss that is trained, and the gradient of
 * sum(loss · row_scale) · scale replaces the logits. */
void model_cross_entropy(struct model *m, const int32_t *targets, int64_t n, float scale,
                         const float *row_scale, bool backward);
/* The soft cap of logits on the host, where the family has one. */
void model_cap_logits(const struct model *m, float *logits, int64_t n);
/* The factor of the logits, applied to the head's input, or to the gradient of that. */
void model_scale_logits(struct model *m, void *x, int64_t rows);
