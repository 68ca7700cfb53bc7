/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this machine at the start of the service: GPUs, or CPU slots. */
#include "node/gpu/devices.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
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

/* NVML's index or the start of a UUID. */
static bool names(const char *token, const struct node_device *d)
{
	int64_t index;

	if (str_to_int64(token, 0, INT32_MAX, &index) == 0)
		return d->index == index;
	return *token && str_starts(d->uuid, token);
}

void devices_filter_visible(struct node_device *list, size_t *count, const char *visible)
{
	_cleanup_free_ struct node_device *kept = calloc(*count + 1, sizeof *kept);
	_cleanup_free_ bool *taken = calloc(*count + 1, sizeof *taken);
	_cleanup_free_ char *copy = strdup(visible);
	char *rest = copy, *token;
	size_t n = 0;

	if (!kept || !taken || !copy)
		return;
	while ((token = strsep(&rest, ","))) {
		size_t before = n;
		bool one = false;

		token = str_strip(token);
		for (size_t i = 0; i < *count; i++) {
			if (taken[i] || one || !names(token, &list[i]))
				continue;
			kept[n++] = list[i];
			taken[i] = true;
			one = !list[i].mig;
		}
		if (n == before)
			break;
	}
	memcpy(list, kept, n * sizeof *list);
	*count = n;
}

static int find_cpu_slots(const struct daemon_config *config, int hosts_slots, struct devices *out,
                          struct error *err)
{
	int slots = config->cpu_slots > 0 ? config->cpu_slots : hosts_slots > 0 ? hosts_slots : 1;
	int threads = config->slot_threads > 0 ? config->slot_threads : MAX(usable_cores() / slots, 1);

	if (config->cpu_slots > 0 && hosts_slots > 0 && config->cpu_slots != hosts_slots)
		log_warn("cpu_slots = %d of dtraind.conf counts; slots=%d of the hosts file does not",
		         (int)config->cpu_slots, hosts_slots);
	out->list = calloc(slots, sizeof *out->list);
	if (!out->list)
		return error_oom(err);
	for (int i = 0; i < slots; i++) {
		struct node_device *d = &out->list[i];

		d->index = i;
		d->numa = -1;
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

/* GPUs that must be there, though the driver shows none: not to be taken for CPU slots, nor to be
 * forgotten. */
static int make_broken_gpus(struct devices *out, int slots, const char *fault, struct error *err)
{
	out->list = calloc(slots, sizeof *out->list);
	if (!out->list)
		return error_oom(err);
	out->count = slots;
	out->by_uuid = true;
	for (int i = 0; i < slots; i++) {
		struct node_device *d = &out->list[i];

		d->gpu = true;
		d->index = i;
		d->numa = -1;
		strcpy(d->name, "GPU");
		snprintf(d->fault, sizeof d->fault, "%s", fault);
	}
	return 0;
}

static int find_gpus(struct devices *out, int hosts_slots, const char *visible, struct error *err)
{
	char fault[sizeof out->list->fault];
	int version = 0, r;

	nvml_open(&out->nvml, fault, sizeof fault);
	if (fault[0] && !(visible && !*visible))
		return make_broken_gpus(out, MAX(hosts_slots, 1), fault, err);
	if (!out->nvml)
		return 0;
	r = gpus_find(out->nvml, &out->list, &out->count, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < out->count; i++)
		out->by_uuid = out->by_uuid || out->list[i].mig || out->list[i].fault[0];
	if (visible && out->count > 0)
		devices_filter_visible(out->list, &out->count, visible);
	if (out->nvml->driver_version &&
	    out->nvml->driver_version(out->driver, sizeof out->driver) != NVML_SUCCESS)
		out->driver[0] = '\0';
	if (out->nvml->cuda_version && out->nvml->cuda_version(&version) == NVML_SUCCESS)
		snprintf(out->cuda, sizeof out->cuda, "%d.%d", version / 1000, version % 1000 / 10);
	return 0;
}

int devices_find(const struct daemon_config *config, int hosts_slots, struct devices *out, struct error *err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int r;

	memset(out, 0, sizeof *out);
	r = find_gpus(out, hosts_slots, visible, err);
	if (r == 0 && out->count == 0) {
		devices_release(out);
		return find_cpu_slots(config, hosts_slots, out, err);
	}
	if (r == 0 && hosts_slots > (int)out->count)
		r = error_set(err, -ENODEV,
		              "the hosts file says slots=%d, but this machine shows %zu GPU%s%s", hosts_slots,
		              out->count, out->count == 1 ? "" : "s",
		              visible ? " (CUDA_VISIBLE_DEVICES is set for dtraind)" : "");
	if (r == 0 && hosts_slots > 0)
		out->count = hosts_slots;
	if (r == 0)
		r = gpus_connect(out, err);
	if (r < 0) {
		devices_release(out);
		return r;
	}
	for (size_t i = 0; i < out->count; i++)
		out->list[i].threads = config->slot_threads > 0 ? config->slot_threads
		                                                : MAX(usable_cores() / (int)out->count, 1);
	return 0;
}

void devices_release(struct devices *devices)
{
	free(devices->list);
	free(devices->links);
	if (devices->nvml)
		nvml_close(devices->nvml);
	memset(devices, 0, sizeof *devices);
}

const char *node_device_describe(const struct node_device *d, char *buf, size_t size)
{
	if (!d->gpu)
		snprintf(buf, size, "CPU slot %d", d->index);
	else if (d->mig)
		snprintf(buf, size, "MIG device %s of GPU %d", d->uuid, d->index);
	else if (d->uuid[0])
		snprintf(buf, size, "GPU %d (%s)", d->index, d->uuid);
	else
		snprintf(buf, size, "GPU %d", d->index);
	return buf;
}
