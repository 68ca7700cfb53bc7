/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be known before anything is started: is this user one here, and could they run this here.
 *
 * A directory of users and a network file system answer when they like: the looking is done by a process of
 * its own, `dtrain-launch --preflight`, which becomes the user before it touches a path of theirs. It reads
 * a struct preflight_request from standard input and writes lines, each a struct preflight_line.
 *
 * Where standard input is a socket, the process is executed ahead of its need. It writes PREFLIGHT_READY as
 * soon as it has loaded what it needs. Each message of the socket has two descriptors, the file with a
 * request and the socket for its lines; a fork of the process looks, and sends its pidfd with an empty line
 * first. The process ends at the end of its socket.
 */
#pragma once

#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/launch/run_user.h"

#define PREFLIGHT_READY "{\"ready\":true}\n"

struct preflight_call;
struct preflight_spare; /* preflight_process.h */

/* Starts `launcher --preflight`, or takes the spare (NULL: none) where that is ready. `done` is called once,
 * from the event loop, and the call is gone after it: with the user (borrowed) and NULL, or with one sentence
 * on the first thing that is wrong. Codes: -EPERM: there is no user of that name here, its uid differs, or
 * this process may not take it; -ETIMEDOUT: no answer in time. */
int preflight_start(sd_event *event, struct preflight_spare *spare, const char *launcher,
                    const struct preflight_request *what, double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err);
void preflight_cancel(struct preflight_call *call); /* done is not called; NULL: nothing */
