/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this machine, one slot each: GPUs through NVML, or CPU slots where there is no GPU. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "config/daemon.h"

struct device {
	bool gpu;
	int index;       /* GPU: as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; CPU: the slot */
	char name[96];   /* model */
	char uuid[96];   /* empty for a CPU slot */
	uint64_t memory; /* bytes of it; of a CPU slot its share of the machine's */
	int threads;     /* CPU threads for one rank here */
};

struct devices {
	struct device *list;
	size_t count;
};

/* hosts_slots: slots= of the hosts file, 0: not said. More slots than GPUs is an error that says so. */
int devices_find(const struct daemon_config *config, int hosts_slots, struct devices *out, struct error *err);
void devices_release(struct devices *devices);

/* GPUs that NVML shows, into a new list (owned by the caller); 0 where there is no driver or no GPU. */
int nvml_find(struct device **list, size_t *count, struct error *err);
/* Keeps what CUDA_VISIBLE_DEVICES names (indices or UUID prefixes, in its order; as CUDA does, the first
 * entry that names none ends the list). */
void devices_filter_visible(struct device *list, size_t *count, const char *visible);
