/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection with the dtrain-launch of one attempt (node/launch/launch.h), over which it reports. Its
 * process is a matter of its unit (node/launch/unit.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/run.h"
#include "wire/launch.h"

struct launcher;

struct launcher_owner {
	sd_event *event;
	int64_t run; /* for the journal */
	void *context;
	/* What the report owns may be taken. */
	void (*reported)(void *context, struct launch_report *report);
	/* dtrain-launch has closed the connection. The callback may destroy the launcher. */
	void (*closed)(void *context);
};

/* Makes the socket in the directory of the attempt on which dtrain-launch is to listen, and connects: the
 * connection waits in the socket's queue. *listen_fd is the caller's. */
int launcher_listen(const struct launcher_owner *owner, const char *dir, int *listen_fd,
                    struct launcher **out, struct error *err);
/* Connects with one that is there already. */
int launcher_connect(const struct launcher_owner *owner, const char *dir, struct launcher **out,
                     struct error *err);
/* Once more, after `closed`. */
int launcher_reconnect(struct launcher *l);
/* What runs goes on. NULL: nothing. */
void launcher_destroy(struct launcher *l);
DEFINE_CLEANUP(struct launcher *, launcher_destroy)

/* TERM to all ranks, and KILL after so many seconds. */
void launcher_stop(struct launcher *l, struct stop_times times);
/* The end is on record: it may exit. */
void launcher_acknowledge(struct launcher *l);
/* The controller knows the attempt. */
void launcher_confirm(struct launcher *l);
/* Takes what has arrived. */
void launcher_receive(struct launcher *l);
void launcher_disconnect(struct launcher *l);         /* NULL: nothing */
bool launcher_is_connected(const struct launcher *l); /* NULL: false */
