/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each parameter lies. A unit is a flat run of elements that is gathered, reduced and stepped as one:
 * unit 0 is the embedding, 1 … layers the blocks, layers + 1 the final norm, (untied) the head and the value
 * head. Within a unit the matrices come first, then norms and biases, so that weight decay is one range;
 * q, k, v lie behind each other, and gate and up, so that each group is one GEMM although a checkpoint has
 * separate tensors.
 *
 * Where not all parameters are trained (tuning.h), a unit is frozen or trained as a whole. One of these of
 * which a part is trained, or which has adapters, is frozen, and what is trained lies in a companion, a unit
 * behind all of these: the trained parameters, then the adapters' A, B and magnitudes. A frozen unit has no
 * gradients and no state of an optimizer.
 *
 * Of a mixture of experts, a block has a matrix of gate, up and down for each expert. Gate and up of an
 * expert lie behind each other, then come those of the next one; behind all of them the matrices of down.
 *
 * A matrix that is stored [in, out] lies so, too, unless its unit is in 4 bits: bitsandbytes quantizes such
 * matrices turned, and so they are here, and lie [out, in].
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/model/model_config.h"
#include "engine/model/tuning.h"

enum parameter_role {
	PARAMETER_EMBEDDING,
	PARAMETER_INPUT_NORM,
	PARAMETER_Q,
	PARAMETER_K,
	PARAMETER_V,
	PARAMETER_O,
	PARAMETER_Q_NORM,
	PARAMETER_K_NORM,
	PARAMETER_POST_NORM,
	PARAMETER_GATE,
	PARAMETER_UP,
	PARAMETER_DOWN,
	PARAMETER_Q_BIAS,
	PARAMETER_K_BIAS,
	PARAMETER_V_BIAS,
	PARAMETER_O_BIAS,
	PARAMETER_GATE_BIAS,
	PARAMETER_UP_BIAS,
	PARAMETER_DOWN_BIAS,
	PARAMETER_FINAL_NORM,
	PARAMETER_HEAD,
	PARAMETER_POSITIONS,          /* learned, behind the embedding */
	PARAMETER_ATTENTION_OUT_NORM, /* of attention's output, before it is added to the residual stream */
	PARAMETER_MLP_OUT_NORM,
	PARAMETER_INPUT_NORM_BIAS,
	PARAMETER_POST_NORM_BIAS,
	PARAMETER_FINAL_NORM_BIAS,
	PARAMETER_ROUTER, /* of a mixture of experts: [experts, hidden] */
	PARAMETER_VALUE,  /* the value head: [1, hidden] */
	/* Of linear attention: q, k and v, the gate of its output, and b and a (delta.h), of the same input.
	 */
	PARAMETER_DELTA_QKV,
	PARAMETER_DELTA_Z,
	PARAMETER_DELTA_B,
	PARAMETER_DELTA_A,
	PARAMETER_DELTA_OUT,
	PARAMETER_DELTA_CONV, /* [channels, 1, width] */
	PARAMETER_DELTA_A_LOG,
	PARAMETER_DELTA_DT_BIAS,
	PARAMETER_DELTA_NORM, /* of each head's output */
	PARAMETER_ROLES
};

/* What a parameter is to the matrix of its role: the matrix itself, or a part of its adapter. */
enum parameter_part {
	PART_WEIGHT,
	PART_LORA_A,    /* [rank, in] */
	PART_LORA_B,    /* [out, rank] */
	PART_MAGNITUDE, /* of DoRA: [out] */
	PARAMETER_PARTS
};

struct model_parameter {
	char name[128];  /* as Hugging Face names it, or for a part of an adapter PEFT */
	char saved[152]; /* its name in the file that it is saved to */
	enum parameter_role role;
	enum parameter_part part;
	int expert; /* whose matrix it is; 0 also where there are no experts */
	int base;   /* the unit that it belongs to in a pass over the model */
	int unit;   /* where it lies: base, or its companion */
	bool frozen;
	bool tied_embedding; /* the head is tied to it: files may have lm_head.weight in its place */
	bool random_start; /* files that a new run begins with may lack it: it then begins as model_init_fill
	                      has it */
	bool in_state;     /* no file of a model has it: a checkpoint has it in its state alone */
	int64_t offset;    /* elements from the start of the unit */
	int dims;
	int64_t shape[3]; /* [out, in] (transposed: [in, out]), or [n]; of a convolution three */
	int64_t count;
	bool transposed;
	bool matrix; /* else a norm, a bias, or other than a matrix: no weight decay by default */
	float start; /* of a norm or a bias: what a model from nothing begins with */
};

/* Whether it is stored in 4 bits where its unit is: a router's choices depend on small differences. */
static inline bool model_parameter_in_4_bits(const struct model_parameter *p)
{
	return p->matrix && p->role != PARAMETER_ROUTER;
}

/* Elements of no parameter, for alignment: between the matrices of a unit, or behind the last of them. */
struct model_gap {
	int64_t first, count;
	int next; /* of the same unit; -1: none */
};

struct model_unit {
	int64_t count;    /* elements, gaps for alignment included; the gaps are always 0 */
	int64_t matrices; /* elements before the norms and biases */
	/* -1: not in this unit. Of experts' matrices: of the first expert. The A of a group of matrices that
	 * share their input lie behind each other. */
	int64_t offset[PARAMETER_PARTS][PARAMETER_ROLES];
	int64_t first_b, b; /* elements of the adapters' B, within the matrices: first_b … first_b + b */
	bool frozen;
	int base;      /* the unit itself, or the one whose companion it is */
	int companion; /* -1: none */
	int gap;       /* the first of its gaps; -1: none */
};

struct model_layout {
	int base_units; /* layers + 2 */
	int units;      /* companions too */
	int parameters;
	struct model_unit *unit;
	struct model_parameter *parameter; /* in the order of transformers' state_dict */
	struct model_gap *gap;
	int gaps;
	int64_t elements; /* of the parameters in files of the model, without gaps */
	int64_t trained;  /* of all that are trained, likewise */
	int lowest;       /* the first base unit of which anything is trained */
	bool adapts;      /* there are adapters: what is trained is saved, and not the model */
	/* Of the adapters' rank, what is stored and not trained (tuning_stored_rank): the last rows of A, the
	 * last columns of B. */
	int64_t kept_rank;
};

int model_layout_create(const struct model_config *c, struct model_layout **out, struct error *err);
/* The same where tuning says what is trained (NULL: everything). -EINVAL, with a message in words of the run
 * file, where it names what the model does not have. */
int model_layout_create_tuned(const struct model_config *c, const struct model_tuning *tuning,
                              struct model_layout **out, struct error *err);
void model_layout_free(struct model_layout *layout);
DEFINE_CLEANUP(struct model_layout *, model_layout_free)
/* The first role of the group of matrices that share their input, which are one product: q for q, k and v. */
enum parameter_role model_layout_leader(enum parameter_role role);
/* The role that follows it in its group; PARAMETER_ROLES: none. */
enum parameter_role model_layout_next(enum parameter_role role);
/* Whether the gradient of any matrix of the group of `leader` needs its input: not where all are frozen and
 * have no adapters. Of a base unit. */
bool model_layout_reads_input(const struct model_layout *layout, int unit, enum parameter_role leader);
/* Whether a pass writes each matrix of the unit's gradients once, as those of a block: those of the embedding
 * are sums over tokens, and those of the head over parts of a batch. */
static inline bool model_layout_writes_once(const struct model_layout *layout, int unit)
{
	return unit > 0 && unit < layout->base_units - 1;
}
/* NULL: none of that name. lm_head.weight of a tied model is none. */
const struct model_parameter *model_layout_find(const struct model_layout *layout, const char *name);
/* Copies a whole matrix that is stored [in, out] to [out, in], or with back the other way. */
void model_layout_turn(const struct model_parameter *p, bool back, float *to, const float *from);
/* The matrix that a part of an adapter belongs to; NULL: none. */
const struct model_parameter *model_layout_matrix(const struct model_layout *layout,
                                                  const struct model_parameter *part);

/* Produces elements [first, first + n) of a parameter. */
typedef int (*model_fill_fn)(void *context, const struct model_parameter *p, int64_t first, int64_t n,
                             float *out, struct error *err);
/* The fill of a model from nothing: normal(0, std) for matrices, each parameter's start for norms and biases.
 * residual_std: of the matrices o and down; 0: std. A value is a function of (seed, parameter, element) alone
 * (Philox 4x32-10), hence the same for any number of ranks. */
struct model_init {
	uint64_t seed;
	double std, residual_std;
};
/* std 0: that of c. */
struct model_init model_init_of(const struct model_config *c, uint64_t seed, double std);
int model_init_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
/* The fill of the parts of adapters: A uniform in ±1/sqrt(in), as PEFT's kaiming_uniform_(a=√5) has it, the
 * rest 0. init: a struct model_init, of which std is not used. */
int model_adapter_fill(void *init, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                       struct error *err);
/* The same of magnitudes: the lengths of the rows of the matrix, whose elements `weights` produces. */
int model_magnitude_fill(const struct model_layout *layout, model_fill_fn weights, void *context,
                         const struct model_parameter *p, int64_t first, int64_t n, float *out,
                         struct error *err);
