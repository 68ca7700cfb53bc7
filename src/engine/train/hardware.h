/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that a run is planned for: a table of known ones, with what their makers state and what share
 * of it well-written programs reach, and the number of nodes and devices.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/dtype.h"
#include "engine/device/sizes.h"
#include "engine/train/rates.h"

/* Rates are bytes or operations a second, dense, of one device; a link's is for one direction. */
struct hardware {
	const char *name;  /* "H100-80GB" */
	const char *board; /* a part of the name that the driver gives: "H100" */
	struct device_sizing sizing;
	int64_t memory; /* bytes that a program can have: what CUDA reports of a GPU */
	int64_t
	    shown; /* of a GPU of the table: what the driver shows in nvidia-smi and NVML, which is more */
	/* Bytes that a worker takes beyond its plan: program, driver and libraries; what the library for bf16
	 * takes more, and with adapters besides; what the communicator of all ranks takes, and what each
	 * further one does. */
	int64_t outside, outside_bf16, outside_adapters, outside_comm, outside_lane;
	double fp32, bf16, fp16, fp8; /* peaks; 0: it has no such arithmetic at a useful speed */
	double bandwidth;             /* of its memory */
	double intra, inter; /* links to devices of its node, and its share of those to other nodes */
	/* The shares that are reached. */
	double gemm, attention_forward, attention_backward, stream, link;
	/* Likewise, where the kernels of attention are the engine's portable ones; 0: the same. */
	double portable_forward, portable_backward;
	const struct rates *rates; /* measured ones, which count instead; borrowed; NULL: none */
	int slots;                 /* of a CPU: how many of the run share the machine */
	double crowd;   /* of a CPU: by how much its threads take longer, since they share it; 0: of a GPU */
	double start;   /* seconds that it takes to start an operation */
	double latency; /* seconds of a step of a collective */
	/* part of the time of a collective by which it slows down the computation beside it */
	double overlap;
};

/* Equal devices on equal nodes. */
struct hardware_set {
	struct hardware device;
	int nodes, per_node;
};

/* The i-th of the table; NULL behind the last. The name "cpu" stands for a CPU slot of this machine. */
const struct hardware *hardware_at(size_t i);
/* Completes a copy of the table's "cpu": `slots` share a machine of so many processors, 0: this machine's.
 * threads 0: the processors are shared. */
void hardware_fill_cpu(struct hardware *h, int slots, int threads, int processors);
/* By its name in the table, or the part before the hyphen where one name alone begins so; false: there is
 * none. */
bool hardware_find(const char *name, struct hardware *out);
/* By the name that the driver gives ("NVIDIA H100 80GB HBM3") and its memory, which the result has; NULL:
 * none is known by that name. */
const struct hardware *hardware_by_board(const char *board, int64_t memory);
/* What CUDA would report of a GPU of which the driver shows so much: in proportion, since it may be a part of
 * one. */
int64_t hardware_usable(const struct hardware *h, int64_t shown);
/* "8xH100-80GB", "H100-80GB", or "128x8xH100-80GB" (nodes, devices of each). More than 8 without a number of
 * nodes are nodes of 8; without a number nodes and per_node are 0. An unknown name is an error that lists the
 * names, with the nearest of them. */
int hardware_parse(const char *text, struct hardware_set *out, struct error *err);
/* The file of the rates that `dtrain estimate --measure` has left for this user's devices of that engine, in
 * $XDG_CACHE_HOME/dtrain or ~/.cache/dtrain. Owned by the caller; NULL: out of memory. */
char *hardware_rates_path(enum device_engine engine);
/* Its contents, freed by the caller; NULL: it does not exist, or is of other devices. */
int hardware_read_rates(const struct hardware *h, struct rates **out, struct error *err);
double hardware_peak(const struct hardware *h, enum dtype type);
