/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session of PAM for the user of an attempt, as the service "dtrain" (/etc/pam.d/dtrain) has it: limits of
 * resources from limits.conf(5), and what else a site puts there. Its limits are those of the calling
 * process, which the ranks inherit. libpam is loaded at run time, and only where the service is configured.
 */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"

struct session;

/* directory NULL: where PAM has its services. *out is NULL where there is no service of that name. -EACCES:
 * PAM refuses the user. */
int session_open(const char *directory, const char *user, struct session **out, struct error *err);
void session_close(struct session *session); /* NULL: nothing */
DEFINE_CLEANUP(struct session *, session_close)
