/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run as this machine knows them. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

struct run_user {
	char *name, *home, *shell;
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	int group_count;
	bool change; /* we are root, and become them */
};

/* Asks the directory of users, which may take its time. -EPERM: nobody here of that name, another uid, or we
 * may not become them. */
int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err);
/* {"name","home","shell","uid","gid","groups":[…],"change"}: from one process of ours to another. */
json_t *run_user_to_json(const struct run_user *user);
int run_user_from_json(const json_t *json, struct run_user **out, struct error *err);
void run_user_free(struct run_user *user);
DEFINE_CLEANUP(struct run_user *, run_user_free)
