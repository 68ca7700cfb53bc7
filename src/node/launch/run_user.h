/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run, looked up on this machine. */
#pragma once

#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "wire/preflight.h"

/* Looks the user up, which may take long where users are in a directory service. -EPERM: there is no user of
 * that name, its uid differs, or this process may not take it. */
int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err);
void run_user_free(struct run_user *user); /* takes NULL */
DEFINE_CLEANUP(struct run_user *, run_user_free)
