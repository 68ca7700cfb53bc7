/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs are near to a GPU, and which of them a rank gets. */
#include "node/gpu/affinity.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* First line of a sysfs file; empty: not there. */
static void read_line(const char *path, char *line, size_t size)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");

	line[0] = '\0';
	if (f && !fgets(line, (int)size, f))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
}

int affinity_pci_numa(const char *pci)
{
	char path[64], line[16];
	int64_t node;

	if (!*pci)
		return -1;
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
	read_line(path, line, sizeof line);
	return str_to_int64(line, 0, INT16_MAX, &node) == 0 ? (int)node : -1;
}

void affinity_numa_cpus(int numa, cpu_set_t *cpus)
{
	char path[64], line[4096];

	CPU_ZERO(cpus);
	if (numa < 0)
		return;
	snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", numa);
	read_line(path, line, sizeof line);
	if (affinity_parse(line, cpus) < 0)
		CPU_ZERO(cpus);
}

int affinity_parse(const char *list, cpu_set_t *cpus)
{
	const char *p = list;

	CPU_ZERO(cpus);
	while (*p) {
		char *end;
		unsigned long first = strtoul(p, &end, 10), last = first;

		if (end == p)
			return -EINVAL;
		if (*end == '-') {
			p = end + 1;
			last = strtoul(p, &end, 10);
			if (end == p)
				return -EINVAL;
		}
		if (last < first || last >= CPU_SETSIZE || (*end && *end != ','))
			return -EINVAL;
		for (unsigned long i = first; i <= last; i++)
			CPU_SET(i, cpus);
		p = *end ? end + 1 : end;
	}
	return 0;
}

char *affinity_format(const cpu_set_t *cpus)
{
	struct strbuf b = {0};

	for (int i = 0; i < CPU_SETSIZE; i++) {
		int first = i;

		if (!CPU_ISSET(i, cpus))
			continue;
		while (i + 1 < CPU_SETSIZE && CPU_ISSET(i + 1, cpus))
			i++;
		strbuf_addf(&b, i > first ? "%s%d-%d" : "%s%d", b.len ? "," : "", first, i);
	}
	return strbuf_steal(&b);
}

/* The first of the CPUs that share this one's core. */
static int core_of(int cpu)
{
	char path[96], line[256];
	cpu_set_t siblings;

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
	read_line(path, line, sizeof line);
	if (affinity_parse(line, &siblings) < 0)
		return cpu;
	for (int i = 0; i < cpu; i++)
		if (CPU_ISSET(i, &siblings))
			return i;
	return cpu;
}

bool affinity_share(const struct devices *devices, const int *slots, size_t count, size_t which, int threads,
                    const cpu_set_t *allowed, cpu_set_t *out)
{
	const struct node_device *own = &devices->list[slots[which]];
	int cores = 0, sharers = 0, turn = 0, seen = -1, core[CPU_SETSIZE];
	cpu_set_t all, first;

	CPU_AND(&all, &own->cpus, allowed);
	if (!own->gpu || CPU_COUNT(&all) == 0)
		return false;
	for (size_t i = 0; i < count; i++)
		if (CPU_EQUAL(&devices->list[slots[i]].cpus, &own->cpus)) {
			turn += i < which;
			sharers++;
		}
	CPU_ZERO(&first);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all)) {
			core[i] = core_of(i);
			cores += !CPU_ISSET(core[i], &first);
			CPU_SET(core[i], &first);
		}
	*out = all;
	if (cores < sharers)
		return true;
	/* Core c of n goes to rank c * sharers / n: whole cores, next to each other, none left over. */
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &first))
			continue;
		seen++;
		for (int k = i; k < CPU_SETSIZE && seen * sharers / cores != turn; k++)
			if (CPU_ISSET(k, &all) && core[k] == i)
				CPU_CLR(k, out);
	}
	if (CPU_COUNT(out) < threads)
		*out = all;
	return true;
}
