/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decoder-only transformer over device.h: forward and backward by hand. The model owns no memory of the
 * device: model_place_buffers takes its buffers from an arena, and the flat parameters and gradients of the
 * units belong to whoever shards them (shard/) and are borrowed (model_set_unit). Where they are not all in
 * memory at all times, hooks bring them before they are read (model_set_hooks).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/device.h"
#include "engine/memory/arena.h"
#include "engine/model/layout.h"
#include "engine/model/model_config.h"
#include "engine/model/sampling.h"

struct model;

/* What blocks keep from their forward pass for the backward one. The outputs of norms and of the activation
 * are computed again from what is kept, unless kept_outputs asks for them, too. */
enum model_recompute {
	MODEL_KEEP_ALL,            /* q, k and v, attention's output, the residual streams, gate and up */
	MODEL_RECOMPUTE_BLOCK,     /* the block's input alone; all else is computed again */
	MODEL_RECOMPUTE_SELECTIVE, /* all but gate and up, the largest of them, which are computed again */
};

struct model_options {
	enum dtype type; /* of compute weights and activations */
	/* Of the gradients of the units that write them once (model_layout_writes_once), fp32 or `type`;
	 * those of the others are fp32. Not fp32: they are never added to those of a pass before. */
	enum dtype gradient_type;
	bool fp8;             /* the products of the blocks' matrices are in fp8 */
	bool fp8_shared;      /* with it: the codes of one block's weights are held at a time */
	int64_t max_tokens;   /* rows of the largest micro-batch, or of a rank's part of it */
	int64_t max_sequence; /* longest document: the length of the RoPE tables */
	bool training;        /* false: no buffers for the backward pass */
	enum model_recompute recompute;
	int kept; /* with it: so many blocks, the last ones, keep everything all the same */
	/* So many blocks, the last ones, as far as they recompute nothing else: they keep the outputs of
	 * their norms and of their activation, too, where the backward pass reads them. */
	int kept_outputs;
	int64_t logits_rows;               /* rows of a cross-entropy chunk, 0: chosen by logits_bytes */
	size_t logits_bytes;               /* device_logits_bytes of the device that it is for */
	const struct model_tuning *tuning; /* that the layout was made with, borrowed; NULL: none */
	bool portable_attention;           /* device_attention.portable */
	bool quantized; /* frozen blocks are in 4 bits: none of their matrices lies as [in, out] (layout.h) */
	uint64_t seed;  /* of the masks of dropout, and of noise */
	bool weighed;   /* batches have weigh */
	/* The gradients of a unit may come to the place of its weights (model_set_unit). */
	bool in_place;
	/* Of training passes alone; evaluation has neither noise nor another loss than cross-entropy. */
	double neftune_alpha;   /* noise on the embeddings of a row of L tokens, uniform in ±alpha /
	                         * sqrt(L · hidden) (Jain et al. 2023); 0: none */
	double label_smoothing; /* of device_loss; 0: none */
	bool dft;               /* its by_probability */
	/* The factor of the loss that balances the experts of a mixture (Fedus et al. 2021, equations 4 to 6;
	 * over all layers together, as transformers has it), which is added to the others of a micro-batch
	 * with the weight of its counted tokens; 0: none. */
	double router_loss;
	/* Of device_distillation, with a teacher (model_set_teacher); then without label_smoothing and dft.
	 */
	double distillation_weight, distillation_temperature;
	/* Ranks that share their micro-batches, in equal parts, and which of them this one is
	 * (DeepSpeed-Ulysses, Jacobs et al. 2023): all but attention is computed of a rank's own tokens, and
	 * attention of all tokens, for a part of the heads. Degree 0: as 1. A divisor of heads and kv_heads;
	 * not with generation. A teacher has the same two. */
	int sequence_degree, sequence_rank;
	int64_t cache_tokens; /* generation: length of the KV cache of a sequence, 0: none */
	int cache_sequences;  /* generation: sequences; 0: one */
};

/* A micro-batch: rows of all its sequences behind each other, without padding. Host memory, borrowed for the
 * call. Ranks that share it are given all of it. */
struct model_batch {
	int64_t tokens;         /* a multiple of sequence_degree, */
	int64_t filling;        /* to which so many at the end, in documents of their own, fill it up */
	const int32_t *ids;     /* within [0, vocab) */
	const int32_t *targets; /* < 0: not counted; NULL where no loss is asked for */
	int documents;
	const int32_t *starts; /* [documents + 1]: 0 first, tokens last */
	int64_t number; /* among all of the run, for the masks of dropout and the noise in a training pass */
	/* Where the rows end, of which each has some of the documents: the last one at `tokens`. For the
	 * noise; NULL: each document is a row. */
	const int32_t *row_ends;
	int rows;
	/* For losses of more than single tokens, in a model made for it (weighed); else NULL. Of a model of
	 * scores: with the score in place of the loss where targets has an id, whichever. Called in each
	 * training pass, between forward and backward, with the loss of each token (host, [tokens], 0 where
	 * it is not counted); fills in the derivative of the whole loss by it, which it is multiplied with in
	 * place of 1. With NULL for both where the batch has nothing to compute. Of a model with a value head
	 * both are [2, tokens]: then come the values, and the derivatives by these; not of a batch that ranks
	 * share. */
	int (*weigh)(void *context, const float *losses, float *factors, struct error *err);
	void *weigh_context;
};

/* Host structures only. c is copied, layout borrowed. dev NULL: for planning alone. */
int model_create(struct device *dev, const struct model_config *c, const struct model_layout *layout,
                 const struct model_options *options, struct model **out, struct error *err);
void model_free(struct model *m);
DEFINE_CLEANUP(struct model *, model_free)
void model_place_buffers(struct model *m, struct arena *a); /* both passes of the arena */
/* What the rows of an expert are a multiple of, in training passes over at most so many tokens. */
int model_expert_multiple(const struct model_config *c, int64_t tokens);
/* The number of blocks that keep the outputs of norms and of the activation; blocks that have no backward
 * pass keep none. */
int model_kept_outputs(const struct model *m);
/* Memory of activations and logits that a pass has no use for while gradients of a unit are there, as offsets
 * in the arena. They lie in one piece, which ends where model_place_buffers has left the arena. */
struct model_reuse {
	size_t free_from;  /* to `end`: free once the backward pass begins to write the unit's gradients */
	size_t written_to; /* a forward pass writes below this alone before it needs the next unit */
	size_t kept_end;   /* below it are activations, which nothing but passes uses; behind it, logits */
	size_t end;
	bool in_place; /* with o.in_place: the unit's gradients may come to the place of its weights */
};
struct model_reuse model_reuse(const struct model *m, int unit); /* after model_place_buffers */
/* Memory that is used within a pass alone: of a model of scores the output of the MLP, else the logits of a
 * chunk. Its size. */
size_t model_scratch(const struct model *m, void **memory);
/* After the arena has memory: fills the tables (RoPE). */
int model_prepare(struct model *m, struct error *err);
void model_shapes(const struct model *m, struct device_shapes *shapes); /* for device_scratch_bytes */

/* Calls `each` for the products of a training pass over so many tokens, of an evaluation, too, and of passes
 * whose gradients are added to others: some of them several times. Their addresses are aligned as those of
 * the pass, and mean nothing else. Before the arena has memory, too. */
typedef void (*model_product_fn)(void *context, const struct device_gemm *product);
int model_products(const struct model *m, int64_t tokens, model_product_fn each, void *context,
                   struct error *err);

/* Sets the flat parameters (compute type) and gradients (NULL where not training) of a unit, borrowed. With
 * o.in_place both may begin at the same address: the gradients then replace the weights, which nothing reads
 * any more when the backward pass is done with the unit. */
void model_set_unit(struct model *m, int unit, void *parameters, void *gradients);

/* The weights have changed: fp8 codes are made of them again at their next use. */
void model_weights_changed(struct model *m);

/* The teacher, whose forward pass is a part of each training pass from now on: borrowed, prepared, with units
 * that are set, of the same type, for as many tokens, as long documents and as many logits_rows. */
void model_set_teacher(struct model *m, struct model *teacher);

/* The passes over the units. A training pass is MODEL_FORWARD, unit 0 first, and then MODEL_BACKWARD, the
 * last unit first; MODEL_EVALUATE is a forward pass without a backward pass behind it. */
enum model_phase { MODEL_FORWARD, MODEL_BACKWARD, MODEL_EVALUATE };

/* Called in the order in which a pass uses the units, which is the same for every batch: with one that has
 * nothing to compute, too, so that ranks whose batches differ make the same calls. Each may be NULL. */
struct model_hooks {
	void *context;
	/* Before the first access to a unit in a phase. All phases read its weights (MODEL_BACKWARD those of
	 * unit 0 only where the head is tied to it), and MODEL_BACKWARD writes its gradients: buffers that
	 * have moved are set here (model_set_unit). A negative return ends the pass with that error. */
	int (*need)(void *context, int unit, enum model_phase phase, struct error *err);
	/* The last operation of the phase that reads the unit's weights is queued. */
	void (*done)(void *context, int unit, enum model_phase phase);
	/* The unit's gradients are final within this micro-step: head first, embedding last. */
	void (*gradients)(void *context, int unit);
	/* Where the head is tied to unit 0, which is trained: what it adds to the gradients of that unit is
	 * there, before any gradients are final. */
	void (*head_gradients)(void *context, int unit);
	/* Before the gradients of unit 0 are final: those of the embedding's output, [tokens, hidden], of
	 * which each is to be added to the row of its token. True: the hook sees to that. The memory has room
	 * for max_tokens, and stays as it is until the next backward pass. */
	bool (*embedding_rows)(void *context, const void *d_out);
	/* With a sequence_degree above 1, and not NULL then: comm_all_to_all of the ranks that share the
	 * batch, between memory of the device. What is queued behind it reads `out` and may overwrite `in`.
	 */
	int (*exchange)(void *context, void *out, const void *in, int64_t count, enum dtype type,
	                struct error *err);
};
void model_set_hooks(struct model *m, const struct model_hooks *hooks); /* copied */

/* Forward and backward. Of a batch that ranks share, loss and gradients are those of a rank's tokens, which
 * add up to those of all. Gradients of sum(loss) · scale are written where `first`, else added. The sum of
 * the rows' losses is added to *loss_sum (device float64). -EINVAL for a batch that is larger than the
 * options, with ids out of range, or with starts that do not rise. A batch of 0 tokens is fine: its gradients
 * are 0. */
int model_forward_backward(struct model *m, const struct model_batch *batch, float scale, bool first,
                           double *loss_sum, struct error *err);
/* Forward and loss alone; nothing for a batch of 0 tokens. losses (host, [tokens]; of a model with a value
 * head [2, tokens], values behind losses) may be NULL. Of a batch that ranks share, the sum is that of this
 * rank's tokens, and losses has those of all. */
int model_evaluate(struct model *m, const struct model_batch *batch, double *loss_sum, float *losses,
                   struct error *err);

/* Tokens that are appended to a sequence of the cache. */
struct model_part {
	int sequence, n;
	float *logits; /* host fp32 [vocab]: takes those after the last token; NULL: they are not wanted */
	bool chosen;   /* an id will be chosen by them: model_decode_choose */
};
/* Generation: appends tokens to one sequence or to several, each of which is there once: ids has those of the
 * first part, then those of the second, and so on. -E2BIG: more than max_tokens at once, or more than
 * cache_tokens in a sequence. Parts of one token each have the logits that they have by themselves; to the
 * bit where device_gemm.by_rows says so. */
int model_decode(struct model *m, const struct model_part *parts, int count, const int32_t *ids,
                 struct error *err);
/* Chooses ids, from those below `ids`, by the logits of the last model_decode, whose parts said so: the
 * first `rows` parts' each, or as many by the logits of the first part. uniform (host, [rows]):
 * sampling_uniform. */
int model_decode_choose(struct model *m, const struct sampling *s, int64_t ids, int rows, bool of_first,
                        const double *uniform, int32_t *chosen, struct error *err);
void model_decode_reset(struct model *m, int sequence);
/* `to` becomes a sequence of the same tokens as `from`. */
void model_decode_copy(struct model *m, int from, int to);
/* The hooks of model_decode for a rank that has nothing to append while others have. */
int model_decode_nothing(struct model *m, struct error *err);

/* For tests: all logits of a batch, tokens · vocab floats on the host. fp32 models only, without ranks that
 * share the batch. */
int model_logits(struct model *m, const struct model_batch *batch, float *logits, struct error *err);
