/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be known before anything is started: is this user one here, and could they run this here.
 *
 * A directory of users and a network file system answer when they like: the looking is done by a process of
 * its own, `dtrain-launch --preflight`, which becomes the user before it touches a path of theirs. It reads
 * one JSON object from standard input,
 * {"user","uid","directory"|null,"program","engine"|null,"path","model"|null,"output_dir"|null,"log_dir"},
 * and writes lines: {"step":"directory /nfs/x"} before each look, {"user":{…}} once they are known, and at
 * the end
 * {"error":CODE,"message":"…"}, CODE 0: nothing is wrong.
 */
#pragma once

#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/launch/run_user.h"

struct preflight {
	const char *user;
	uid_t uid;
	const char *directory;  /* absolute; NULL: the user's home */
	const char *program;    /* argv[0] */
	const char *engine;     /* "cuda", "cpu": whose package has program; NULL: the user's own */
	const char *path;       /* PATH of the run */
	const char *model;      /* NULL: none; relative to directory */
	const char *output_dir; /* NULL: not to be checked here */
	const char *log_dir;
};

struct preflight_call;

/* Starts `launcher --preflight`. `done` is called once, from the event loop, and the call is gone after it:
 * with the user (borrowed) and NULL, or with one sentence on the first thing that is wrong. Codes: -EPERM:
 * nobody here of that name, another uid, or we may not become them; -ETIMEDOUT: no answer within `seconds`.
 */
int preflight_start(sd_event *event, const char *launcher, const struct preflight *what, double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err);
void preflight_cancel(struct preflight_call *call); /* done is not called; NULL: nothing */
