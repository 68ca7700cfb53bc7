/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of preflights, `dtrain-launch --preflight` (preflight.h): one that is executed for a request,
 * or a fork of one that was executed ahead of its need and waits for requests, the spare. The spare has
 * loaded its libraries and the sources of the directory of users, and looks at nothing itself, so that it
 * does not hang. It ends with the service: at the end of file of its socket.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/error.h"

struct preflight_process {
	int answer_fd; /* a socket: its lines */
	int pidfd; /* the event loop, or the spare, reaps it; -1: not known before its first line is read */
};

/* Executes `launcher --preflight` for the request in that file, which stays the caller's. */
int preflight_process_start(sd_event *event, const char *launcher, int request_fd,
                            struct preflight_process *out, struct error *err);
/* What it has written, as recv(2) has it, or -errno. */
ssize_t preflight_process_read(struct preflight_process *process, char *buf, size_t size);
/* SIGKILL; both descriptors are closed. One that hangs in the kernel ends when it can. One whose pidfd is not
 * known yet ends at its next line. */
void preflight_process_kill(struct preflight_process *process);

struct preflight_spare;

int preflight_spare_create(sd_event *event, struct preflight_spare **out, struct error *err);
void preflight_spare_destroy(struct preflight_spare *spare); /* kills it; NULL: nothing */
/* Has one started soon, unless there is one. Where that fails there is none. */
void preflight_spare_prepare(struct preflight_spare *spare, const char *launcher);
/* Kills it, so that the next preparation starts another one: it did not answer. */
void preflight_spare_drop(struct preflight_spare *spare);
bool preflight_spare_is_ready(const struct preflight_spare *spare);
/* Gives the request to the spare, whose fork for it is the caller's. False: none is ready, or the program is
 * another one by now. */
bool preflight_spare_take(struct preflight_spare *spare, const char *launcher, int request_fd,
                          struct preflight_process *out);
