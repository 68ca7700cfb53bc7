/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs before and after attempts. */
#include "node/gpu/idle.h"

#include <stdio.h>

#include "base/str.h"

/* What a driver itself may take more than before. */
static const int64_t TOLERANCE = (int64_t)256 << 20;

void gpu_idle_leased(struct gpu_idle *idle, int64_t used)
{
	if (!idle->run)
		idle->before = used;
	idle->run = 0;
}

void gpu_idle_released(struct gpu_idle *idle, int64_t run, double now, double seconds)
{
	if (idle->before < 0 || seconds <= 0)
		return;
	idle->run = run;
	idle->deadline = now + seconds;
}

bool gpu_idle_read(struct gpu_idle *idle, int64_t used, double now, double seconds, char *reason, size_t size)
{
	int64_t run = idle->run;
	char more[16];

	if (!run || used < 0)
		return false;
	if (used <= idle->before + TOLERANCE) {
		idle->run = 0;
		return false;
	}
	if (now < idle->deadline)
		return false;
	idle->run = 0;
	snprintf(reason, size, "%s more of its memory are in use than before run %lld, which ended %g s ago",
	         str_bytes(more, sizeof(more), (uint64_t)(used - idle->before)), (long long)run, seconds);
	return true;
}
