/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers over flat units: the norm of all gradients, clipping, and a step by one of these:
 *
 *   adamw      Loshchilov & Hutter 2019; torch.optim.AdamW
 *   sgd        with momentum; decay is added to the gradient; torch.optim.SGD
 *   lion       Chen et al. 2023, algorithm 2
 *   lamb       You et al. 2020, algorithm 2: AdamW's direction, scaled to the norm of a tensor's weights
 *   lars       You et al. 2017, algorithm 1: SGD, scaled likewise for matrices; plain SGD for the rest
 *   adafactor  Shazeer & Stern 2018, algorithm 4 without momentum; torch.optim.Adafactor
 *   muon       Jordan et al. 2024 for the matrices of the blocks; AdamW for the rest; torch.optim.Muon
 *   *_8bit     moments of 8 bits in blocks of 256 (Dettmers et al. 2022, section 2)
 *
 * Muon's directions have the scale of Liu et al. 2025 (section 2.2), with which AdamW's rate and decay fit.
 *
 * What it costs in memory beside weights and gradients, for each parameter that a rank steps: two fp32
 * moments (adamw, lamb), one (sgd with momentum, lion, lars, muon's matrices), none (sgd, adafactor: the
 * means of rows and columns); with 8 bits, 2.03 or 1.02 bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/memory/arena.h"
#include "engine/model/layout.h"
#include "engine/model/model.h"
#include "engine/shard/shard.h"

enum optimizer_kind {
	OPTIMIZER_ADAMW,
	OPTIMIZER_SGD,
	OPTIMIZER_LION,
	OPTIMIZER_LAMB,
	OPTIMIZER_LARS,
	OPTIMIZER_ADAFACTOR,
	OPTIMIZER_MUON,
	OPTIMIZER_ADAMW_8BIT,
	OPTIMIZER_LION_8BIT,
	OPTIMIZERS
};
const char *optimizer_name(enum optimizer_kind kind);
int optimizer_parse(const char *name, enum optimizer_kind *out); /* -EINVAL: none of that name */

struct optimizer_options {
	double learning_rate, beta1, beta2, epsilon, weight_decay;
	double embedding_rate; /* the factor of learning_rate for the embedding */
	double value_rate;     /* and for a value head */
	double plus_ratio;     /* the same for the B of adapters */
	double momentum;       /* sgd, lars, muon */
	bool nesterov;
	bool decay_all;   /* norms and biases too */
	double clip;      /* 0: none */
	float loss_scale; /* by which the gradients are too large */
	int64_t step;     /* 1 for the first */
	uint64_t seed;    /* of the rounding of weights without a master copy */
};

/* Device memory that a step needs. */
struct optimizer_work {
	double *sum_squares;
	float *scale, *norm;
};

struct optimizer;
/* Borrows layout and s, and says which moments s keeps: before shard_place_buffers. with_momentum: whether
 * sgd has any. product_type: in which muon multiplies. */
int optimizer_create(enum optimizer_kind kind, bool with_momentum, enum dtype product_type,
                     const struct model_layout *layout, struct shard *s, struct optimizer **out,
                     struct error *err);
void optimizer_free(struct optimizer *o);
DEFINE_CLEANUP(struct optimizer *, optimizer_free)
/* Whether it can step state that is in host memory: one that looks at each element by itself. */
bool optimizer_steps_on_host(enum optimizer_kind kind);
/* Whether it steps by gradients of that type: of bf16, one that reads them once and writes nothing over them.
 */
bool optimizer_reads(enum optimizer_kind kind, enum dtype gradients);
/* Whether it keeps the first or second moment of a parameter. */
bool optimizer_keeps(const struct optimizer *o, int moment, const struct model_parameter *p);
void optimizer_place_buffers(struct optimizer *o, struct arena *a); /* both passes of the arena */
/* Calls `each` for the matrix products of a step, as model_products does. */
void optimizer_products(const struct optimizer *o, model_product_fn each, void *context);

/* Waits for each unit's reduction, computes the norm over all parameters and ranks into work->norm, clips and
 * steps, and starts the gathers where weights are sharded. Gradients may be overwritten. Where the norm is
 * not finite, on all ranks then, weights and moments stay as they are. */
int optimizer_step(struct optimizer *o, const struct optimizer_options *options,
                   const struct optimizer_work *work, struct error *err);

/*
 * For checkpoints. Moments of 8 bits: elements [at, at + n) of this rank's part of a unit, widened to fp32 on
 * the device; and from the host, where they are kept until optimizer_loaded quantizes them. Saved in fp32
 * they are restored to the bit where the ranks hold the same parts.
 */
bool optimizer_has_8bit(const struct optimizer *o);
void optimizer_widen(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, float *out);
int optimizer_read_8bit(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, float *out,
                        struct error *err);
int optimizer_write_8bit(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, const float *in,
                         struct error *err);
/*
 * For checkpoints: elements [first, first + n) of what the optimizer keeps of a parameter beside its moments.
 * Adafactor's means of rows, then of columns, are elements 0 … rows + cols - 1 of a tensor of the parameter's
 * own shape, whose other elements are 0. optimizer_loaded follows the last write, on every rank: a rank may
 * have written only the elements that it holds.
 */
bool optimizer_has_factors(const struct optimizer *o);
int optimizer_read_factors(struct optimizer *o, const struct model_parameter *p, int64_t first, int64_t n,
                           float *out, struct error *err);
int optimizer_write_factors(struct optimizer *o, const struct model_parameter *p, int64_t first, int64_t n,
                            const float *in, struct error *err);
int optimizer_loaded(struct optimizer *o, struct error *err);
