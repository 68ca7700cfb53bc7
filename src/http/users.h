/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of local users by uid, and which of them are administrators. The password database may be a
 * directory service that is slow or down: each look-up runs off the event loop, and what it has found is kept
 * for a while.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/error.h"

struct users;

struct users_options {
	double deadline; /* of a look-up, seconds; 0: 10. Beyond it the user has no name until it ends */
	/* A name is looked up again after so many seconds, and stays good meanwhile, but not longer than
	 * twice as many; 0: 60. */
	double keep;
	/* NULL: getpwuid_r. Into a name of NAME_SIZE bytes; false: there is no such user. In a thread. */
	bool (*look_up)(uid_t uid, char *name);
	/* Its members are administrators; copied. NULL, "", or no such group: only root is one. */
	const char *admin_group;
};

enum { USERS_NAME_SIZE = 256 };

/* changed: on the event loop, whenever users_find has a new answer. */
int users_create(sd_event *event, const struct users_options *options, void (*changed)(void *context),
                 void *context, struct users **out, struct error *err);
void users_destroy(struct users *u);
/* 1: *name is the user's, NULL where the database has none or has not answered in time; it is valid until the
 * event loop goes on. 0: it is being looked up, and `changed` is called. -ENOMEM: it cannot be looked up. */
int users_find(struct users *u, uid_t uid, const char **name);
/* As of the last look-up; false before one has ended. */
bool users_is_admin(const struct users *u, uid_t uid);
