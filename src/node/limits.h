/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a run may use on this machine, as slot_memory and slot_tasks of dtraind.conf have
 * it. */
#pragma once

#include <stddef.h>

#include "config/daemon.h"
#include "node/launch/cgroup.h"

/* Without CPUs. */
struct cgroup_limits limits_of(const struct daemon_config *config, size_t slots);
