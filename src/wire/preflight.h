/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the node service asks of `dtrain-launch --preflight` (node/launch/preflight.h): could this user run
 * this here. The request is one JSON object, the answer is one object a line.
 */
#pragma once

#include "wire/message.h"

/* The user of a run as this machine knows them. */
struct run_user {
	char *name, *home, *shell;
	int64_t uid, gid;
	int64_t *groups;
	size_t group_count;
	bool change; /* we are root, and become them; optional */
};

MESSAGE_DECLARE(run_user)

struct preflight_request {
	char *user;
	int64_t uid;
	char *directory; /* absolute; optional: the user's home */
	char *program;   /* argv[0] */
	char *engine;    /* "cuda", "cpu": whose package has program; optional: the user's own program */
	char *path;      /* PATH of the run; optional */
	char *model;     /* relative to directory; optional: none */
	char *teacher, *reward_model, *reference; /* the same */
	char *output_dir;                         /* optional: not to be checked here */
	char *offload_dir;                        /* optional: none */
	char *log_dir;                            /* optional: not to be checked */
	char *socket; /* of the service, which the program uses; optional: it does not */
	/* The ranks do not have the mounts of the process that looks, which may be read-only for it alone;
	 * optional. */
	bool own_mounts;
};

MESSAGE_DECLARE(preflight_request)

enum { PREFLIGHT_UNDER_WAY = 1 };

/* A line of the answer: {"step"} before each look, {"user"} once they are known, {"error","message"} at the
 * end. All is optional. */
struct preflight_line {
	char *step;            /* what is looked at next: "directory /nfs/x" */
	struct run_user *user; /* NULL: not in this line */
	int64_t error; /* 0: nothing is wrong; a negative errno; PREFLIGHT_UNDER_WAY: not the last line */
	char *message; /* what is wrong */
};

MESSAGE_DECLARE(preflight_line)
