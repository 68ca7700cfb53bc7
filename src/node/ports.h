/* SPDX-License-Identifier: Apache-2.0 */
/* TCP ports for runs (MASTER_PORT): from port_range of dtraind.conf, or any that the kernel has. */
#pragma once

#include "base/error.h"
#include "config/daemon.h"

struct ports {
	unsigned given; /* how many were given, and where the first of them began; 0: none yet */
};

/* A port that was free a moment ago, or -errno. Each call begins behind the port that was given last. */
int ports_free(struct ports *ports, const struct daemon_config *config, const char *node, struct error *err);
