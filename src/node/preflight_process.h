/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of preflights, `dtrain-launch --preflight` (preflight.h): one that is executed for a request,
 * or one that was executed ahead of its need and waits for a request, the spare. The spare has loaded its
 * libraries and the sources of the directory of users; until it has a request it is no one's. It ends with
 * the service: at the end of file of its socket.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/error.h"

struct preflight_process {
	int answer_fd; /* its lines */
	int pidfd;     /* the event loop reaps it, also after the end of this */
};

/* Executes `launcher --preflight` for the request in that file, which stays the caller's. */
int preflight_process_start(sd_event *event, const char *launcher, int request_fd,
                            struct preflight_process *out, struct error *err);
/* SIGKILL; both descriptors are closed. One that hangs in the kernel ends when it can. */
void preflight_process_kill(struct preflight_process *process);

struct preflight_spare;

int preflight_spare_create(sd_event *event, struct preflight_spare **out, struct error *err);
void preflight_spare_destroy(struct preflight_spare *spare); /* kills it; NULL: nothing */
/* Has one started soon, unless there is one. Where that fails there is none. */
void preflight_spare_prepare(struct preflight_spare *spare, const char *launcher);
bool preflight_spare_is_ready(const struct preflight_spare *spare);
/* Gives the request to the spare, which is the caller's from then on. False: none is ready, or the program is
 * another one by now. */
bool preflight_spare_take(struct preflight_spare *spare, const char *launcher, int request_fd,
                          struct preflight_process *out);
