/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease of the node as dtrain-launch watches it: no service may be left to end the ranks in time. A
 * timer tells when to read the file (base/lease_file.h) again, in which the service renews the lease.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

struct lease_watch {
	const char *path; /* borrowed */
	int timer_fd;     /* readable when lease_watch_check is to be called; -1: nothing is watched */
};

int lease_watch_open(struct lease_watch *watch, const char *path, struct error *err);
/* Sets the timer anew. True: the lease runs out in *seconds, and a service that runs would have ended the
 * ranks by now. */
bool lease_watch_check(struct lease_watch *watch, double *seconds);
void lease_watch_close(struct lease_watch *watch);
