/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and tasks of a run, from its number of slots. */
#include "node/limits.h"

#include <unistd.h>

/* What no run may take of the machine's memory: the services that let an administrator in need some. */
enum { RESERVED_PART = 16 };

static uint64_t machine_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;
}

struct cgroup_limits limits_of(const struct daemon_config *config, size_t slots)
{
	uint64_t machine = machine_memory();
	struct cgroup_limits limits = {.memory = machine, .tasks = UINT64_MAX};

	if (config->slot_memory > 0)
		limits.memory = (uint64_t)(config->slot_memory * (double)slots * (1 << 30));
	else if (machine != UINT64_MAX)
		limits.memory = machine - machine / RESERVED_PART;
	if (config->slot_tasks > 0)
		limits.tasks = (uint64_t)config->slot_tasks * slots;
	return limits;
}
