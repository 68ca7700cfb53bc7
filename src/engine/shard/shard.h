/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat units of parameters with their gradients and optimizer state. Each unit is padded so that it divides
 * over the ranks. The strategy decides which part of each buffer a rank holds between the steps; all other
 * code is the same:
 *
 *             compute weights   gradients        master weights, moments
 *   ddp       whole             whole            whole
 *   zero1     whole             whole            own shard
 *   zero2     whole             own shard        own shard
 *   zero3     own shard         own shard        own shard
 *   hybrid    as zero3 within a group of `degree` ranks; each such group is a replica of the others
 *
 * The gradients of an embedding to which the head is tied are complete at the very end of a backward pass.
 * Under ddp those of the head are summed long before that, and only rows of the tokens come behind them
 * (rows.c).
 *
 * Buffers that are not held whole are whole only while they are used, in a slot of a ring: the weights of a
 * unit are gathered before they are read (shard_need), and its gradients are reduced as soon as the backward
 * pass has computed them (shard_gradients), while the computation goes on. The blocks share a ring. The
 * embedding and the head, which are not used at the same time, come to the same ring where that takes less
 * memory than a slot of their own: where they are smaller than the blocks, or not much larger. The blocks'
 * weights, if they are not in 4 bits, have one slot more than `prefetch`: the last operation that reads a
 * unit is queued before the gather that takes its slot. Weights stay in their slot until it is taken or they
 * change, so that the last blocks are still there when the backward pass begins, and the first ones when the
 * next micro-step does.
 *
 * With a `prefetch` of 0 there is one slot. A unit's gradients then come to the place of its weights, matrix
 * by matrix, as the backward pass has done with them (model_set_unit), and the next unit is gathered once
 * they are summed: whole weights and gradients take no more memory than the larger of the two. Those of the
 * head do so where its logits are in one chunk.
 *
 * The weights of some units are whole under every strategy: the embedding to which the head is tied, which is
 * read at both ends of a pass, units without matrices, and units of less than `persist_below` elements.
 *
 * Gradients lie in memory of activations and logits where the model does not use that at the time. Where a
 * step has one micro-batch, they are kept there to its end: whole if they fit, else a rank's own part, if
 * that fits. Otherwise gradients that are not whole between the steps are whole until they are summed: each
 * in memory that is free then, or in memory for that alone. A tied embedding has a slot of its own, since its
 * gradient is there for the whole backward pass (gradient_layout.c).
 *
 * Gradients are fp32, whatever the compute type is: sums over many micro-steps and ranks stay exact enough,
 * and 4 bytes a parameter are little compared with the activations of models that are small enough for ddp.
 * Where a step has one micro-batch, those of the blocks may be bf16 (gradient_type): nothing is added to them
 * on a rank. Their sums over the ranks are taken in `wire`, and rounded to bf16 once they are complete.
 * In fp32 the compute weights are also the master weights. Without a master copy there are only the bf16
 * weights, which the optimizer rounds stochastically.
 *
 * Units that are frozen (layout.h) have weights alone, divided as the strategy says; a companion's weights
 * are whole.
 *
 * Frozen blocks may be stored in 4 bits (packed.h). Their weights then have one slot, into which each block
 * is dequantized before it is used, and which the embedding and the head do not share; where the strategy
 * shards weights, it is the bytes of 4 bits that are gathered ahead, into a ring of their own.
 *
 * With offload the master weights and the optimizer's state are in the host's memory, and in fp32 a master
 * copy of their own, too. A unit's own gradients go down once they are summed, on the device's lane of
 * transfers, under the rest of the backward pass; the compute weights come up when the host has stepped them.
 *
 * With offload of all, a rank holds its part of the weights and of the gradients in the host's memory alone,
 * but for the units that stay whole. Weights come up into a slot before they are used, `prefetch` units
 * ahead; where ranks share a copy, one unit earlier still, since the gather starts once they are there. A
 * unit's gradients go down after each micro-step; those of the micro-steps before come up to be added to, so
 * that sums are taken on the device, in the same order as without offload. Of a unit that is frozen that is
 * its weights, in the compute type, or the bytes of 4 bits.
 *
 * With a directory for offload, the moments and the master weights are in a file there instead, and in host
 * memory while they are stepped, piece by piece; in fp32, where they are the weights, the master weights stay
 * in host memory.
 *
 * All ranks make the same calls in the same order, whatever their batches are.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/memory/arena.h"
#include "engine/model/layout.h"
#include "engine/model/model.h"

enum shard_strategy { SHARD_DDP, SHARD_ZERO1, SHARD_ZERO2, SHARD_ZERO3, SHARD_HYBRID };

/* "ddp", "zero1", "zero2", "zero3", "hybrid"; -EINVAL: none of them. */
int shard_strategy_parse(const char *name, enum shard_strategy *out);
const char *shard_strategy_name(enum shard_strategy strategy);

/* What lies in the host's memory: nothing; the master weights and the optimizer's state; or all that a rank
 * holds between the steps. */
enum shard_offload { SHARD_OFFLOAD_NONE, SHARD_OFFLOAD_OPTIMIZER, SHARD_OFFLOAD_ALL };

/* "none", "optimizer", "all"; -EINVAL: none of them. */
int shard_offload_parse(const char *name, enum shard_offload *out);

/* How the frozen blocks are stored: in the compute type, or in NF4, with its scales as they are or quantized,
 * too (packed.h). */
enum shard_quantize { SHARD_QUANTIZE_NONE, SHARD_NF4, SHARD_NF4_DOUBLE };

/* "none", "nf4", "nf4_double"; -EINVAL: none of them. */
int shard_quantize_parse(const char *name, enum shard_quantize *out);

/* What decides where things are. */
struct shard_options {
	int rank, world_size;
	enum shard_strategy strategy;
	int degree;      /* hybrid: consecutive ranks that share one copy; divides world_size */
	enum dtype type; /* of the compute weights */
	bool without_master;
	bool accumulates;      /* a step has more than one micro-step */
	int prefetch;          /* units whose weights are gathered ahead of the one that is used */
	int64_t persist_below; /* elements: smaller units' weights stay whole */
	enum dtype wire;       /* in which gradients are summed: fp32 or bf16 */
	/* Of the gradients of units that write them once (model_layout_writes_once), fp32 or bf16; those of
	 * the others are fp32. bf16: without micro-steps that accumulate, and without offload. */
	enum dtype gradient_type;
	enum shard_offload offload;
	const char *offload_dir; /* borrowed; NULL: what is offloaded stays in host memory */
	int64_t state_piece;     /* elements that are stepped at a time with offload_dir; 0: by default */
	enum shard_quantize quantize;
	int64_t max_tokens; /* of a micro-batch; 0: the rows of a tied embedding's gradients do not travel by
	                     * themselves */
};

struct packed_unit;

struct shard_unit {
	int64_t count, padded; /* elements */
	int64_t matrices;      /* elements that decay by default come first */
	int64_t first, own;    /* the part that is this rank's: [first, first + own) */
	int64_t base;          /* elements of the units before this one, without padding */
	int belongs_to;        /* the unit itself, or the one whose companion it is */
	int ring;              /* by its place in the model; the rings that it uses: */
	int weights_ring, gradients_ring, wire_ring;
	struct packed_unit *packed;    /* in 4 bits; NULL: not */
	bool frozen;                   /* no gradients, and no state but the weights in the compute type */
	bool whole_weights;            /* else in a slot, while they are used */
	bool whole_gradients, in_slot; /* by the strategy; in_slot: whole until they are summed, no longer */
	bool in_place;                 /* they are then in the slot of its weights, which they replace */
	void *weights;                 /* compute type, [padded]; NULL while they are in no slot */
	void *own_weights;             /* [own]; NULL with offload of all, where they are not whole */
	enum dtype gradient_type;
	void *gradients;          /* [padded]; of the slot they were last in */
	void *own_gradients;      /* [own]; with offload of all, of the slot they were last in */
	struct model_reuse reuse; /* the memory of the model in which its gradients may lie */
	/* Of gradients, or own gradients, that are kept in activations; and of whole ones until they are
	 * summed: where they are in the arena, and for the latter how far before the end. */
	bool kept;
	size_t kept_at, gradients_at, before_end;
	void *gradients_memory; /* at gradients_at; NULL: in a slot of a fixed place */
	float *master, *m, *v;  /* [own], [own - m_from], [own - v_from]; NULL where there is none */
	int64_t m_from, v_from; /* own elements before these have no such moment: the optimizer's to say */
	int64_t state_first;    /* with offload_dir, of the piece that is stepped: own elements before it */
	/* With offload, in host memory, as master, m and v are then. */
	float *host_gradients; /* [own] */
	/* [own], compute type; NULL in fp32, where it is master, and of frozen units whose weights are on
	 * the device */
	void *host_copy;
	struct device_event *down, *up;
	struct device_event *stepped; /* behind its step, while that is under way aside */
	bool stepping;
	bool coming; /* its weights are on their way into their slot, and have not been waited for */
	comm_ticket gathering; /* 0: not under way */
	comm_ticket reducing;
	bool direct;             /* it ends in own_gradients */
	void *wire;              /* of the reduction that is under way, where it is in another type */
	bool adds;               /* the reduction that is under way is to be added to own_gradients */
	bool last;               /* ... and is the step's last */
	comm_ticket replicating; /* hybrid: the sum of own_gradients over the replicas */
};

/* Memory for one unit at a time. */
struct shard_slot {
	void *memory;
	int unit;      /* whose weights, or whose gradients until their reduction has ended; -1: none */
	bool used;     /* between need and done */
	int gradients; /* of weights: whose gradients are there until then; -1: none */
};

/* Of ddp, where the head is tied (rows.c). */
struct shard_rows {
	/* Of the table, which begins at `place` in unit 0; hidden 0: its gradients are summed at the end. */
	int64_t hidden, vocab, place;
	void *all; /* [world_size, most, hidden], of `bytes` at most */
	size_t bytes;
	int32_t *ids; /* device, of a rank: [max_tokens] */
	/* Host, of this step's last micro-steps: tokens of each rank, and [world_size, max_tokens] of ids. */
	const int64_t *counts;
	const int32_t *host_ids;
	int64_t most; /* of counts */
	bool begun;   /* the sum of the table, before the rows are there */
	comm_ticket gathering;
};

enum { SHARD_RING_ENDS, SHARD_RING_BLOCKS, SHARD_RINGS };
enum { SHARD_SLOTS_MAX = 16 };
enum { SHARD_STATE_BUFFERS = 3 };

struct shard_ring {
	int slots, next;
	bool packed;   /* units in 4 bits are dequantized into its only slot, when they are needed */
	int64_t bytes; /* of the largest unit that comes here */
	struct shard_slot slot[SHARD_SLOTS_MAX];
};

struct shard {
	struct device *dev;
	struct comm *comm;            /* of all ranks; NULL: one rank, or planning alone */
	struct comm *gather, *reduce; /* of those who share a copy */
	struct comm *lane[3];         /* those of them that are made here */
	struct comm *replicate;       /* of those who hold the same shard; NULL: each shard is held once */
	struct shard_options o;
	int degree, replicas; /* ranks that share one copy, and the number of copies */
	int units;            /* companions too (layout.h) */
	int base_units;       /* that a pass goes through, in order */
	int lowest;           /* the backward pass ends with it */
	bool tied;            /* the embedding is the head, too, and is read at both ends of a pass */
	struct shard_unit *unit;
	struct shard_ring packed; /* whole bytes of units in 4 bits */
	int64_t largest_packed;   /* elements of the largest matrix in 4 bits */
	/* The blocks' slots of gradients have no memory; each unit has its own (gradient_layout.c). */
	struct shard_ring weights[SHARD_RINGS], gradients[SHARD_RINGS];
	int *placed; /* the units that have, in the order of the backward pass; -1 behind them */
	bool keeps;  /* any unit's gradients are kept in activations */
	size_t gradients_from, gradients_end; /* all of that memory, in the arena; */
	void *gradients_span;                 /* where that is */
	struct shard_ring wire[SHARD_RINGS];  /* gradients in the type in which they are summed */
	/* With offload of all: own gradients, where they are a part of a unit; and, on the device, the sum of
	 * the squares of those of the last micro-step, which have gone down. */
	struct shard_ring own[SHARD_RINGS];
	double *squares;
	/* With offload_dir. */
	struct disk_state *disk;
	char *state_buffer[SHARD_STATE_BUFFERS]; /* host */
	int64_t state_buffer_bytes;
	bool first_micro_step, last_micro_step;
	struct shard_rows rows;
	/* Memory of the model that no one uses from the end of a pass to the next one: set by the caller
	 * before shard_place_buffers. */
	void *reusable;
	size_t reusable_bytes;
};

/* dev and comm may be NULL for an estimate; comm also where world_size is 1. */
int shard_create(struct device *dev, struct comm *comm, const struct shard_options *options,
                 const struct model_layout *layout, struct shard **out, struct error *err);
void shard_free(struct shard *s);
DEFINE_CLEANUP(struct shard *, shard_free)
/* Called in both passes of the arenas, with what the model has placed right before: `host` is one of host
 * memory, not used without offload. The caller has set `reuse` of the units. */
void shard_place_buffers(struct shard *s, struct arena *a, struct arena *host);
/* Weights or gradients are not whole on each rank between the steps: the ranks have to run as many passes,
 * with empty batches where they have no rows. */
bool shard_in_step(const struct shard *s);
/* Each micro-step's gradients are reduced by themselves: the model writes them, and does not add. */
bool shard_reduces_each(const struct shard *s);
/* The weights of some units are in slots while they are used. */
bool shard_has_slots(const struct shard *s);

/* The communicators that shard_connect makes beyond that of all ranks. */
int shard_lanes(const struct shard *s);
/* Makes the communicators, and registers the buffers with them, once these have been placed; every rank calls
 * it at the same time. shard_disconnect ends these communicators, in the same order on all ranks, before the
 * memory of the buffers is freed; the one of all ranks is the caller's. */
int shard_connect(struct shard *s, struct error *err);
void shard_disconnect(struct shard *s);

/* Called by the model's hooks, around the use of a unit's weights: after shard_need unit->weights has
 * them. */
int shard_need(struct shard *s, int unit, enum model_phase phase, struct error *err);
void shard_done(struct shard *s, int unit, enum model_phase phase);
/* Called by the same hook in the backward pass: afterwards unit->gradients may be written. */
int shard_need_gradients(struct shard *s, int unit, struct error *err);
/* The sum of a unit's gradients, where it is under way, has ended: their place is free. */
int shard_finish_gradients(struct shard *s, int unit, struct error *err);
/* Called by it in a forward pass: afterwards that may write up to where it needs the next unit. */
int shard_clear_gradients(struct shard *s, int unit, struct error *err);
/* Before each micro-step. */
void shard_micro_step(struct shard *s, bool first, bool last);
/* A unit's gradients are final in this micro-step: starts their sum over the ranks where that is due. The
 * last one of a step begins a group of the communicator of all ranks (comm_group_begin), to which the caller
 * may add: it starts with comm_group_end, or once it is waited for. */
void shard_gradients(struct shard *s, int unit);
/* ---- a tied embedding under ddp, whose gradients come from the head and from the rows of tokens (rows.c)
 * ---- */
/* Whether the rows of a step's last micro-step travel by themselves. */
bool shard_gathers_rows(const struct shard *s);
/* Where they do, before the last micro-step: how many tokens each rank has in its own last micro-step, and
 * which, [world_size, max_tokens]. On the host, borrowed until the gradients of unit 0 have been waited for.
 */
void shard_set_rows(struct shard *s, const int64_t *counts, const int32_t *ids);
/* What the head adds to the gradients of the unit is there: may start their sum over the ranks. */
void shard_head_gradients(struct shard *s, int unit);
/* The gradients of this rank's tokens, [tokens, hidden] of memory for max_tokens: true where they are
 * gathered, and not for the caller to add. They stay as they are until the gradients of unit 0 have been
 * waited for. */
bool shard_embedding_rows(struct shard *s, const void *d_out);
/* After the last micro-step: own_gradients of a unit are complete. */
int shard_wait_gradients(struct shard *s, int unit, struct error *err);
/* Adds the squares of this rank's gradients to *sum, on the device. Called for each unit that is trained,
 * from the last to the first, after it has been waited for. */
void shard_sum_squares(struct shard *s, int unit, double *sum);
/* With offload, after that: the host has a unit's gradients, and may change its state. */
int shard_wait_host(struct shard *s, int unit, struct error *err);

/* ---- offload_dir ---- */
enum shard_state { SHARD_MASTER, SHARD_MOMENT1, SHARD_MOMENT2, SHARD_STATES };
bool shard_state_is_on_disk(const struct shard *s, enum shard_state which);
int64_t shard_disk_bytes(const struct shard *s); /* of this rank's file */
/* "by io_uring and O_DIRECT", or what of it is missing; NULL: no file. */
const char *shard_disk_describe(const struct shard *s);
/* A step takes a unit's state in so many pieces, one without offload_dir. After shard_need_state the elements
 * [*first, *first + *n) of the unit are in master, m and v; shard_put_state follows once they have changed.
 * Units and their pieces are taken in order. */
int64_t shard_state_pieces(const struct shard *s, int unit);
int shard_need_state(struct shard *s, int unit, int64_t piece, int64_t *first, int64_t *n, struct error *err);
int shard_put_state(struct shard *s, int unit, struct error *err);
/* Between steps: elements [at, at + n) of this rank's part of a unit, of state that is on disk and that the
 * optimizer keeps. Master weights that are written are rounded to the compute weights, too. */
int shard_read_state(struct shard *s, enum shard_state which, int unit, int64_t at, int64_t n, float *out,
                     struct error *err);
int shard_write_state(struct shard *s, enum shard_state which, int unit, int64_t at, int64_t n,
                      const float *in, struct error *err);

/* The sum of what ranks have computed over their own parts alone, in place on the device. */
int shard_sum(struct shard *s, double *sums, int64_t n, struct error *err);

/* The operations that step a unit, and the gather of shard_publish, between these two: aside, where the state
 * is on the device. Whoever reads the unit's weights or state, or writes its gradients, comes behind
 * shard_need, or shard_await_step (of all units: shard_await_steps). */
void shard_begin_step(struct shard *s, int unit);
void shard_end_step(struct shard *s, int unit);
void shard_await_step(struct shard *s, int unit);
void shard_await_steps(struct shard *s);

/* own_weights of a unit have changed: where they are whole, starts the gather, which shard_need waits for.
 * `converted` where they are already rounded from the master weights, if there are any. */
void shard_publish(struct shard *s, int unit, bool converted);
/* After the last of them: starts the gather of what the next pass needs first. */
int shard_published(struct shard *s, struct error *err);
/* Waits until no gather is under way: before weights are written from the host, and at the end. */
int shard_settle(struct shard *s, struct error *err);
/* Seconds that the computation has stood still for other ranks (comm_waited_seconds). */
double shard_waited_seconds(struct shard *s);

/* For loading, of a unit that is packed: where elements of p from `first` on are written in the compute type,
 * and after all of p's: they are stored. The parameters of a unit are loaded before those of the next. */
void *shard_packed_place(struct shard *s, const struct model_parameter *p, int64_t first);
void shard_packed_loaded(struct shard *s, const struct model_parameter *p);

/* What is to be in slots at the same time: the unit that is used next, and those ahead of it. */
struct shard_window {
	int unit[SHARD_SLOTS_MAX + 1], n;
};
bool shard_in_window(const struct shard_window *w, int unit);
/* The unit that a training pass uses after this one: forward to the last, then back to the lowest that is
 * trained, the first block at least (the embedding's gradient needs no weights). False: none. */
bool shard_next_unit(const struct shard *s, int *unit, enum model_phase *phase);

/* Intersects elements [first, first + n) of the unit with this rank's own part. Returns the number of common
 * elements; *at is the index of the first one within the own part. */
int64_t shard_own(const struct shard_unit *u, int64_t first, int64_t n, int64_t *at);
