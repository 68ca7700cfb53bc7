/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of all attempts of this node: at a shutdown of the machine, and where an administrator asks for it
 * (dtraind --end-runs, which the removal of the package calls). A mere stop of the service leaves them
 * running.
 */
#pragma once

#include "dtraind/daemon.h"

/* Is systemd shutting the machine (or the container) down? */
bool shutdown_of_machine(void);
/* Stops all attempts here, each with the grace of its run (at most shutdown_grace), and takes no new ones;
 * where `exit`, the event loop ends once they have ended and the controller has their reports. A second call
 * with `exit` ends it at once. */
int shutdown_begin(struct daemon *d, bool exit, struct error *err);
void shutdown_free(struct shutdown *s);
/* dtraind --end-runs: asks the service of this node, or does it where none runs. */
int shutdown_end_runs(const char *config_path, struct error *err);
