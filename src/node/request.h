/* SPDX-License-Identifier: Apache-2.0 */
/* A request to start an attempt (node.h: node_start), checked; and what dtrain-launch is told of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/daemon.h"
#include "node/gpu/devices.h"
#include "node/launch/run_user.h"
#include "wire/launch.h"
#include "wire/start_request.h"

struct request_rank {
	int rank, local_rank;
	int slot;                 /* the first of: */
	size_t first, slot_count; /* request.slots[first …]: one, or with one_per_node all of the run here */
};

struct request {
	struct start_request start; /* as it was sent; the strings below are its own */
	int64_t run, attempt;
	const char *cluster; /* id of the cluster that counts the runs so; "": not named */
	int64_t epoch;       /* of its store when the attempt was started */
	const char *user;
	uid_t uid;
	const struct run_config *config; /* NULL: only the record of its start is left */
	char *cgroup, *service;          /* of that record; NULL: it names none */
	bool native;                     /* a task of ours, not a command */
	int world_size, node_rank, node_count, local_world_size, master_port;
	const char *master_addr;
	struct request_rank *ranks;
	size_t rank_count;
	int *slots; /* of all ranks */
	size_t slot_count;
};

/* Takes what `start` owns and leaves it empty, also where it fails. */
int request_new(struct start_request *start, struct request **out, struct error *err);
void request_free(struct request *request);
DEFINE_CLEANUP(struct request *, request_free)
bool request_has_slot(const struct request *request, int slot);

/* Where everything of the attempt lies. */
struct request_place {
	const struct daemon_config *config;
	const char *node;
	const char *dir;  /* the attempt's own directory */
	const char *logs; /* and that of its logs */
	const struct devices *devices;
	bool own_mounts; /* the ranks are in units of systemd, in which the mounts of our own do not hold */
};

/* "cuda" or "cpu": what the slots need to run it; NULL: nothing, it is the user's own command. */
const char *request_engine(const struct request *request, const struct request_place *place);
/* argv[0] and PATH as the ranks will have them; *program is owned by the caller. */
int request_program(const struct request *request, const struct request_place *place, char **program,
                    const char **path, struct error *err);
/* Fills launch.json but for what concerns the record, the control group and the grace; to be released by the
 * caller, also where it fails. */
int request_describe_launch(const struct request *request, const struct request_place *place,
                            const struct run_user *user, struct launch_description *out, struct error *err);
/* Paths within place->logs, owned by the caller; NULL: out of memory. */
char *request_log_path(const char *logs, int rank);
