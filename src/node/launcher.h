/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain-launch of one attempt as the service sees it: a process, which is our child unless an earlier
 * dtraind has started it, and a connection, over which it reports (node/launch/launch.h). It is not gone
 * before both have ended.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "wire/launch.h"

struct launcher;

struct launcher_owner {
	sd_event *event;
	int64_t run; /* for the journal */
	void *context;
	/* What the report owns may be taken. */
	void (*reported)(void *context, struct launch_report *report);
	/* It is gone, and no end was acknowledged. `why` is a sentence for a person. */
	void (*lost)(void *context, const char *why);
	/* The connection or the process has ended: launcher_is_gone may hold now. The callback may destroy
	 * the launcher. */
	void (*closed)(void *context);
};

/* Executes `program` with a socket in the directory of the attempt, and connects. */
int launcher_start(const struct launcher_owner *owner, const char *dir, const char *program,
                   struct launcher **out, struct error *err);
/* Connects with one that is there already. */
int launcher_connect(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                     struct error *err);
/* What runs goes on. NULL: nothing. */
void launcher_destroy(struct launcher *l);
DEFINE_CLEANUP(struct launcher *, launcher_destroy)

/* TERM to all ranks, and KILL after so many seconds. */
void launcher_stop(struct launcher *l, double grace);
/* The end is on record: it may exit, and is not lost when it does. */
void launcher_acknowledge(struct launcher *l);
void launcher_disconnect(struct launcher *l); /* NULL: nothing */
/* Neither connection nor child is left; NULL is gone. */
bool launcher_is_gone(const struct launcher *l);
pid_t launcher_pid(const struct launcher *l); /* 0: not known; NULL: 0 */
