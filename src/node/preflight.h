/* SPDX-License-Identifier: Apache-2.0 */
/* What can be known before anything is started: is this user one here, and could they run this here. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/* The user of a run as this machine knows them. */
struct run_user {
	char *name, *home, *shell;
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	int group_count;
	bool change; /* we are root, and become them */
};

/* -EPERM: nobody here of that name, another uid, or we may not become them. */
int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err);
void run_user_free(struct run_user *user);
DEFINE_CLEANUP(struct run_user *, run_user_free)

struct preflight {
	const struct run_user *user;
	const char *directory;  /* absolute */
	const char *program;    /* argv[0] */
	const char *engine;     /* "cuda", "cpu": whose package has program; NULL: the user's own */
	const char *path;       /* PATH of the run */
	const char *model;      /* NULL: none; relative to directory */
	const char *output_dir; /* NULL: not to be checked here */
	const char *log_dir;
};

/* Looks with the user's own rights at directory, program, model and output directory; and at the free disk
 * for logs. One sentence on the first thing that is wrong. */
int preflight_check(const struct preflight *what, struct error *err);
