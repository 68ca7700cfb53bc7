/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs are near to a GPU, and which of them a rank gets. */
#pragma once

#include <sched.h>
#include <stdbool.h>

#include "node/gpu/devices.h"

/* From sysfs, where NVML does not say: -1 and an empty set where that does not say either. */
int affinity_pci_numa(const char *pci);
void affinity_numa_cpus(int numa, cpu_set_t *cpus);

/* "0-3,8": of a set, into a new string (owned by the caller; NULL: out of memory). */
char *affinity_format(const cpu_set_t *cpus);
int affinity_parse(const char *list, cpu_set_t *cpus); /* -EINVAL */

/* The CPUs for the `which`-th of `count` ranks, on slots[0…]: those near to its GPU that we may use
 * ourselves, shared by whole cores among the ranks with the same ones. The whole set where there are fewer
 * cores than ranks, or where its share is less than `threads`. False: nothing is known, or nothing would be
 * left: the rank stays free. */
bool affinity_share(const struct devices *devices, const int *slots, size_t count, size_t which, int threads,
                    const cpu_set_t *allowed, cpu_set_t *out);
