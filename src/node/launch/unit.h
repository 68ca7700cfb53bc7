/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * A unit: all processes of an attempt on this node, that is dtrain-launch, the ranks and what these start. No
 * process leaves its unit with the rights of its user. How units are made is chosen once, when the service
 * starts:
 *
 *     systemd   dtrain-launch is the main process of a transient service, dtrain-RUN-ATTEMPT.service in
 *               dtrain.slice (where runtime_dir is not the default, its hash follows the attempt); needs
 *               root, and systemd as process 1
 *     process   dtrain-launch is a child of dtraind, in a control group of its own where dtraind may make
 *               one; without it, dtrain-launch, its guard (guard.c) and dtraind are subreapers, and a
 *               process cannot get out from below them
 *
 * All calls from the event loop's thread; only units_create may block, for some seconds.
 */
/* clang-format on */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/daemon.h"
#include "node/launch/cgroup.h"

struct units;
struct unit;

/* Chooses how units are made: as `launch` of the configuration has it. Where systemd is process 1 and this
 * process is root's, systemd is asked for the units of an earlier service. If it cannot be reached for some
 * seconds, that is an error, but for launch = "process". */
int units_create(sd_event *event, const struct daemon_config *config, struct units **out, struct error *err);
void units_destroy(struct units *units); /* after all units; what runs goes on. NULL: nothing */
DEFINE_CLEANUP(struct units *, units_destroy)

const char *units_method(const struct units *units); /* "systemd" or "process" */
/* All attempts of an earlier service are found: units without one are killed. */
void units_adopted(struct units *units);

/* Borrowed, for as long as the unit. */
struct unit_identity {
	int64_t run, attempt;
	const char *dir; /* of the attempt */
};

struct unit_owner {
	void *context;
	/* dtrain-launch has ended, or, where not `started`, it was never executed: `why` is a sentence for a
	 * person. Called once at most, perhaps long before `empty`: what dtrain-launch has left may not die.
	 * The callback may call unit_kill. */
	void (*exited)(void *context, const char *why, bool started);
	/* dtrain-launch was told to end by another than this service: `why` is a clause for a person. The
	 * answer to unit_ask_stop. */
	void (*stopped)(void *context, const char *why);
	/* unit_kill has found processes; called once at most. */
	void (*remaining)(void *context);
	/* No process is left, the last callback. It may destroy the unit. */
	void (*empty)(void *context);
};

/* How a unit is found again: a part of launch.json and of the record of the start. Borrowed. */
struct unit_names {
	const char *cgroup;  /* path of the control group; NULL: none */
	const char *service; /* name of the systemd unit; NULL: it is none */
	/* Where kills of the OOM killer are counted that may be of its processes, unless its control group
	 * counts them itself; NULL: nowhere, or it is a service. */
	const char *oom_file;
};

struct unit_start {
	const char *program; /* dtrain-launch */
	int listen_fd;       /* of DIR/launch.sock; borrowed during the call */
	/* The rest is for systemd. */
	const char *user;                   /* for the description */
	double stop_seconds;                /* between TERM to dtrain-launch and KILL to all */
	const char *const *devices;         /* paths of those that may be opened; ends with NULL */
	const struct cgroup_limits *limits; /* of all its processes together; also without systemd */
};

/* A unit for a new attempt, not started yet. */
int unit_new(struct units *units, const struct unit_identity *identity, const struct unit_owner *owner,
             struct unit **out, struct error *err);
/* That of an attempt which an earlier service has started. It may be empty; unit_kill tells. -EHOSTUNREACH:
 * it is a service of systemd, which cannot be reached. */
int unit_find(struct units *units, const struct unit_identity *identity, const struct unit_names *names,
              const struct unit_owner *owner, struct unit **out, struct error *err);
void unit_destroy(struct unit *unit); /* what runs goes on; NULL: nothing */
DEFINE_CLEANUP(struct unit *, unit_destroy)

struct unit_names unit_names(const struct unit *unit);
/* Executes dtrain-launch in it. -EBUSY: this is not possible just now, as during a daemon-reexec. */
int unit_start(struct unit *unit, const struct unit_start *start, struct error *err);
/* Whether the end of dtrain-launch is noticed without its connection. */
bool unit_is_watched(const struct unit *unit);
/* dtrain-launch has closed the connection. reconnected: there is a new one, but it may be its guard that
 * holds the socket open: without a report (unit_set_launcher) dtrain-launch has ended. */
void unit_disconnected(struct unit *unit, bool reconnected);
/* dtrain-launch was told to end by another than this service: asks for the reason. False: it cannot be known;
 * else `stopped` is called with it. */
bool unit_ask_stop(struct unit *unit);
/* The process id of dtrain-launch, as it reports. */
void unit_set_launcher(struct unit *unit, pid_t pid);
/* KILL to all processes, again until none is left: `empty` is called then. Acts from the event loop, when all
 * units are known that are not to be killed. */
void unit_kill(struct unit *unit);
/* `empty` was called, or it was never started. */
bool unit_is_empty(const struct unit *unit);
/* Of one that was not started: nothing of it is left. NULL: nothing. */
void unit_cancel(struct unit *unit);
