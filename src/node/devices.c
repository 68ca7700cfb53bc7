/* SPDX-License-Identifier: Apache-2.0 */
#include "node/devices.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

/* What this process may use, not what the machine has: containers and CPUAffinity= count. */
static int usable_cores(void)
{
	cpu_set_t set;
	int n = 0;

	if (sched_getaffinity(0, sizeof set, &set) == 0)
		n = CPU_COUNT(&set);
	else
		n = (int)sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the set holds */
	return MAX(n, 1);
}

static void cpu_name(char *buf, size_t size)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], *colon;

	snprintf(buf, size, "CPU");
	while (f && fgets(line, sizeof line, f)) {
		if (!str_starts(line, "model name") || !(colon = strchr(line, ':')))
			continue;
		snprintf(buf, size, "%s", str_strip(colon + 1));
		return;
	}
}

static uint64_t machine_memory(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void devices_filter_visible(struct device *list, size_t *count, const char *visible)
{
	_cleanup_free_ struct device *kept = calloc(*count + 1, sizeof *kept);
	_cleanup_free_ char *copy = strdup(visible);
	char *rest = copy, *token;
	size_t n = 0;

	if (!kept || !copy)
		return;
	while ((token = strsep(&rest, ","))) {
		struct device *found = NULL;
		int64_t index;

		token = str_strip(token);
		for (size_t i = 0; i < *count && !found && *token; i++)
			if (str_to_int64(token, 0, INT32_MAX, &index) == 0 ? list[i].index == index
			                                                   : str_starts(list[i].uuid, token))
				found = &list[i];
		for (size_t i = 0; i < n && found; i++)
			if (kept[i].index == found->index)
				found = NULL;
		if (!found || n == *count)
			break;
		kept[n++] = *found;
	}
	memcpy(list, kept, n * sizeof *list);
	*count = n;
}

static int find_cpu_slots(const struct daemon_config *config, int hosts_slots, struct devices *out,
                          struct error *err)
{
	int slots = config->cpu_slots > 0 ? config->cpu_slots : hosts_slots > 0 ? hosts_slots : 1;
	int threads = config->slot_threads > 0 ? config->slot_threads : MAX(usable_cores() / slots, 1);

	out->list = calloc(slots, sizeof *out->list);
	if (!out->list)
		return error_oom(err);
	for (int i = 0; i < slots; i++) {
		struct device *d = &out->list[i];

		d->index = i;
		d->threads = threads;
		d->memory = machine_memory() / slots;
		if (i == 0)
			cpu_name(d->name, sizeof d->name);
		else
			memcpy(d->name, out->list[0].name, sizeof d->name);
	}
	out->count = slots;
	return 0;
}

int devices_find(const struct daemon_config *config, int hosts_slots, struct devices *out, struct error *err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int r;

	memset(out, 0, sizeof *out);
	r = nvml_find(&out->list, &out->count, err);
	if (r < 0)
		return r;
	if (visible && out->count > 0)
		devices_filter_visible(out->list, &out->count, visible);
	if (out->count == 0) {
		devices_release(out);
		return find_cpu_slots(config, hosts_slots, out, err);
	}
	if (hosts_slots > (int)out->count) {
		r = error_set(err, -ENODEV,
		              "the hosts file says slots=%d, but this machine shows %zu GPU%s%s", hosts_slots,
		              out->count, out->count == 1 ? "" : "s",
		              visible ? " (CUDA_VISIBLE_DEVICES is set for dtraind)" : "");
		devices_release(out);
		return r;
	}
	if (hosts_slots > 0)
		out->count = hosts_slots;
	for (size_t i = 0; i < out->count; i++)
		out->list[i].threads = config->slot_threads > 0 ? config->slot_threads
		                                                : MAX(usable_cores() / (int)out->count, 1);
	return 0;
}

void devices_release(struct devices *devices)
{
	free(devices->list);
	devices->list = NULL;
	devices->count = 0;
}
