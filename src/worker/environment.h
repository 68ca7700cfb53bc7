/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher sets for a worker: torchrun's variables and dtrain's own. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* Strings are the environment's own. */
struct environment {
	int rank, world_size;
	int local_world_size; /* ranks on this node; 0: not set */
	int device;           /* DTRAIN_DEVICE: its GPU among the visible ones; LOCAL_RANK without */
	const char *config;   /* DTRAIN_CONFIG: path of the run's JSON; always there */
	const char *run_id;   /* DTRAIN_RUN_ID, NULL without a service */
	int64_t attempt;      /* DTRAIN_ATTEMPT, 1 for the first */
	const char *cluster;  /* DTRAIN_CLUSTER, NULL without a service */
	int64_t epoch;        /* DTRAIN_EPOCH of that cluster's store, 0 without */
	/* DTRAIN_CHECKPOINT: step of the newest that earlier attempts have left; 0: none is known */
	int64_t checkpoint;
	const char *checkpoint_node; /* DTRAIN_CHECKPOINT_NODE: where their rank 0 saved it; NULL: unknown */
	const char *lease;      /* DTRAIN_LEASE: file with the end of the node's lease; NULL: there is none */
	const char *error_file; /* TORCHELASTIC_ERROR_FILE: for the error that it ends with; NULL: nowhere */
	const char *socket;     /* DTRAIN_SOCKET, NULL without a service */
	const char *node;       /* DTRAIN_NODE: this machine in the cluster's words; its own name without */
	char host[65];          /* what node points to without */
	const char *rendezvous_dir; /* DTRAIN_RENDEZVOUS_DIR: files instead of a service, for tests */
};

int environment_read(struct environment *env, struct error *err);
