/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of combinations share (combinations.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/dataset/dataset.h"
#include "engine/train/trainer.h"

/* VOCABULARY_LEAST: rows have ids below it. */
enum { STEPS = 7, RANKS = 4, VOCABULARY_LEAST = 50 };

enum axis {
	FAMILY,
	TIED,
	LAYERS,
	VOCABULARY,
	WORLD,
	MICRO,
	ACCUMULATION,
	ROWS,
	DOCUMENTS,
	MASKED,
	TASK,
	OPTIMIZER,
	DECAY,
	CLIP,
	PRECISION,
	SCALE,
	RECOMPUTE,
	KEPT_BLOCKS,
	KEPT_OUTPUTS,
	STRATEGY,
	DEGREE,
	WIRE,
	GRADIENT,
	OFFLOAD,
	DISK,
	QUANTIZE,
	PREFETCH,
	PERSIST,
	TUNING,
	TARGET,
	SAVED,
	RANK,
	ADAPTER,
	DROPOUT,
	RATES,
	EVALUATE,
	STOP,
	MOVE,
	LOSS,
	NOISE,
	SEQUENCE,
	AXES
};

struct setup {
	int axis[AXES];
};

/* splitmix64 */
static inline uint64_t draw(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* ---- combination_rows.c ---- */
/* dataset_close frees it. The first row has targets. */
struct dataset *make_rows(const struct setup *s, int64_t rows, uint64_t seed);

/* ---- combination_options.c ---- */
/* A list of names, which the setup owns; one of a few shapes of what is named. */
struct names {
	char text[3][64];
	char *list[4];
};

struct lists {
	struct names target, saved, modules, extra;
};

bool has_experts(const struct setup *s);
bool has_linear_attention(const struct setup *s);
int make_config(const struct setup *s, struct model_config *c, struct error *err);
/* lists: names that the options borrow. directory: of offloaded state. */
void set_options(const struct setup *s, struct train_options *o, struct lists *l, const char *directory);

/* ---- combination_runs.c ---- */
struct run {
	const struct setup *setup;
	int world_size;
	struct train_options o;
	enum shard_quantize rounded; /* the model begins with what these 4 bits stand for */
	const struct dataset *train, *eval;
	/* From which it starts after step `start`. */
	float *const *state;
	const double *reference;
	int64_t start, stop; /* stop: its state after so many steps is kept */
	struct loss_scaler scaler;
};

struct rank {
	const struct run *run;
	struct comm *comm;
	double losses[STEPS + 1], norms[STEPS + 1], evaluations[STEPS + 1];
	float *begin;              /* weights */
	float *state[3], *kept[3]; /* on rank 0, at the end and after run->stop steps */
	double *reference;
	struct loss_scaler scaler, kept_scaler;
	struct trainer *trainer;
	int number;            /* of the rank */
	const char *directory; /* in which ranks over NCCL meet */
	int result;
	struct error err;
};

/* Ends the process with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *fmt, ...);
/* Whether the values of a parameter are gathered: those in 4 bits are not. */
bool is_read(const struct run *run, const struct model_parameter *p);
/* All ranks of a run, which the process keeps to its end; NULL: the options are refused, and err says why. */
struct rank *run_all(const struct run *run, const char *name, struct error *err);
