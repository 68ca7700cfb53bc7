/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run takes of its devices, for each way in which it could be run: the plan that a worker would
 * allocate, whether it fits, and the time of a step. `parallel.strategy = "auto"` and `dtrain estimate`
 * choose by the same function, which depends on its arguments alone.
 */
#pragma once

#include <stddef.h>

#include "engine/memory/arena.h"
#include "engine/train/cost.h"
#include "engine/train/hardware.h"
#include "engine/train/options.h"

struct estimate_input {
	const struct model_config *model;
	const struct train_options *options; /* strategy and recompute: those of the run itself */
	int64_t max_row;                     /* tokens of the longest row */
	const struct hardware_set *where;
};

struct estimate {
	enum shard_strategy strategy;
	enum model_recompute recompute;
	int kept;                     /* blocks that keep everything all the same */
	int outputs;                  /* blocks that keep the outputs of norms and of the activation, too */
	size_t bytes[BUFFER_CLASSES]; /* of a rank; the engine's own scratch is in BUFFER_SCRATCH */
	size_t plan;                  /* what the worker reports as its memory: aligned, with that scratch */
	size_t copies;                /* host memory that checkpoints are copied to */
	size_t outside;               /* beyond the plan; on a CPU the copies too */
	size_t host;                  /* in host memory, which on a CPU is the device's and part of total */
	size_t disk;                  /* in the file of parallel.offload_dir */
	size_t total, available;
	bool fits;  /* total is available */
	bool spare; /* and a part is left over: "auto" takes a plan without only where there is no other */
	struct cost cost;
};

const char *estimate_strategy_name(enum shard_strategy strategy); /* shard_strategy_name */
/* With the options as they are. */
/* -EINVAL: these ranks, or this model, cannot be divided so. */
int estimate_run(const struct estimate_input *in, struct estimate *out, struct error *err);

const char *estimate_class_name(enum buffer_class c);

enum { ESTIMATES_MAX = 32 };
struct estimate_list {
	struct estimate all[ESTIMATES_MAX]; /* by strategy, then by recomputation, the most kept first */
	size_t count;
	int run; /* which of them the run asks for */
	/* The fastest that fits, of those with spare memory if there are any, the one of less memory of two
	 * that are as fast; -1: none fits */
	int choice;
};
int estimate_list(const struct estimate_input *in, struct estimate_list *out, struct error *err);
/* The fastest that fits, of those with spare memory if there are any, else the one of the least memory, of
 * those with this strategy and recomputation; -1: of all. */
const struct estimate *estimate_best(const struct estimate_list *list, int strategy, int recompute);
/* "none", "full", "full, 12 kept", or "none, outputs of 12 kept"; into buf, returned. */
const char *estimate_recompute_text(char *buf, size_t size, const struct estimate *e);
/* "yes", "tight" where no memory is spare, or "no". */
const char *estimate_fits_text(const struct estimate *e);
/* The value of train.recompute with which a run has this plan. */
const char *estimate_recompute_key(const struct estimate *e);
/* -ENOMEM where a rank's plan is larger than its device, with the nearest that fits: another strategy, else
 * more devices. What a worker takes beyond the plan is not counted: a refused run cannot run. */
int estimate_check(const struct estimate_input *in, struct error *err);
/* One of "plans"; NULL: out of memory. */
json_t *estimate_plan_json(const struct estimate *e);
/* {"model":…,"devices":…,"options":…,"plans":[…],"run":…,"choice":…}; dtrain(1) describes it. */
int estimate_to_json(const struct estimate_input *in, const struct estimate_list *list, json_t **out,
                     struct error *err);
