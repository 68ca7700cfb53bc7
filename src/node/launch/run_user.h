/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run, looked up on this machine. */
#pragma once

#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "wire/preflight.h"

/* Asks the directory of users, which may take its time. -EPERM: nobody here of that name, another uid, or we
 * may not become them. */
int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err);
void run_user_free(struct run_user *user); /* takes NULL */
DEFINE_CLEANUP(struct run_user *, run_user_free)
