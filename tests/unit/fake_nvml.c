/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvidia-ml.so.1 for machines without one. It shows four GPUs, the third of which fell off the bus; or,
 * with FAKE_NVML=DIR, those of DIR/gpus, which is read again at every call: a line for each GPU,
 *   lost=CODE fault=CODE hang=1 mig=N used=MiB util=PERCENT temp=C power=mW limit=mW ecc=N pending=1 failed=1
 *   pix=SWITCH phb=BRIDGE numa=NODE cpus=MASK nv=PEER:LINKS,… sw=LINKS
 * (missing values are 0). Each line "GPU XID [INSTANCE]" that is written to the FIFO DIR/events becomes an
 * event; an Xid of 0 is a double-bit error. Built with -DOLD it has the functions of a driver of 2013.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	GPUS_MAX = 16,
	MIG_MAX = 7,
	LINKS_MAX = 18,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	TIMEOUT = 10,
	LOST = 15
};
enum { INVALID = 2 };

/* The first of each row is the GPU, the others are its MIG devices. */
static char handles[GPUS_MAX][1 + MIG_MAX];

struct memory {
	unsigned long long total, free, used;
};

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

struct event {
	void *device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
};

#define EXPORT __attribute__((visibility("default")))

static int gpu_of(void *handle)
{
	return (int)(((char *)handle - handles[0]) / (1 + MIG_MAX));
}

static int part_of(void *handle) /* -1: the GPU itself */
{
	return (int)(((char *)handle - handles[0]) % (1 + MIG_MAX)) - 1;
}

/* The line of the GPU, empty without one; returns the number of GPUs. */
static int read_machine(int gpu, char line[256])
{
	const char *dir = getenv("FAKE_NVML");
	char path[512], each[256];
	FILE *f;
	int n = 0;

	line[0] = '\0';
	if (!dir) {
		if (gpu == 2)
			strcpy(line, " lost=15");
		return 4;
	}
	snprintf(path, sizeof path, "%s/gpus", dir);
	f = fopen(path, "re");
	for (; f && fgets(each, sizeof each - 1, f); n++)
		if (n == gpu)
			snprintf(line, 256, " %.250s", each);
	if (f)
		fclose(f);
	return n;
}

static const char *find(const char *line, const char *key)
{
	char word[32];
	const char *at;

	snprintf(word, sizeof word, " %s=", key);
	at = strstr(line, word);
	return at ? at + strlen(word) : NULL;
}

static long get(int gpu, const char *key)
{
	char line[256];
	const char *value;

	read_machine(gpu, line);
	value = find(line, key);
	return value ? strtol(value, NULL, 0) : 0;
}

EXPORT int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	return getenv("FAKE_NVML_INIT") ? atoi(getenv("FAKE_NVML_INIT")) : 0;
}

EXPORT int nvmlShutdown(void);
int nvmlShutdown(void)
{
	return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
	char line[256];

	*count = (unsigned)read_machine(0, line);
	return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
	*handle = handles[index];
	return (int)get((int)index, "lost");
}

EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned size);
int nvmlDeviceGetName(void *handle, char *name, unsigned size)
{
	snprintf(name, size, part_of(handle) < 0 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
	return 0;
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size);
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size)
{
	if (part_of(handle) < 0)
		snprintf(uuid, size, "GPU-%d000", gpu_of(handle));
	else
		snprintf(uuid, size, "MIG-%d00%d", gpu_of(handle), part_of(handle));
	return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory);
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
	int gpu = gpu_of(handle);

	while (get(gpu, "hang"))
		nanosleep(&(struct timespec){0, 5000000}, NULL);
	if (part_of(handle) >= get(gpu, "mig"))
		return INVALID;
	memory->total = part_of(handle) < 0 ? 141ULL << 30 : 18ULL << 30;
	memory->used = (unsigned long long)get(gpu, "used") << 20;
	memory->free = memory->total - memory->used;
	return (int)get(gpu, "fault");
}

EXPORT const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
	return code == LOST ? "GPU is lost" : code ? "Some error" : "Success";
}

#ifndef OLD
static int number(void *handle, const char *key, unsigned *out)
{
	int fault = (int)get(gpu_of(handle), "fault");

	if (fault == 0)
		*out = (unsigned)get(gpu_of(handle), key);
	return fault;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size);
int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	snprintf(version, size, "580.65.06");
	return 0;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 13000;
	return 0;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *handle, unsigned use[2]);
int nvmlDeviceGetUtilizationRates(void *handle, unsigned use[2])
{
	if (part_of(handle) >= 0)
		return NOT_SUPPORTED;
	return number(handle, "util", &use[0]);
}

EXPORT int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out);
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out)
{
	return number(handle, "temp", out);
}

EXPORT int nvmlDeviceGetPowerUsage(void *handle, unsigned *out);
int nvmlDeviceGetPowerUsage(void *handle, unsigned *out)
{
	return number(handle, "power", out);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *out);
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *out)
{
	return number(handle, "limit", out);
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *out);
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *out)
{
	unsigned n = 0;
	int r = number(handle, "ecc", &n);

	*out = type == 1 && counter == 0 ? n : 1000;
	return r;
}

EXPORT int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failed);
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
	*corrected = *uncorrected = 0;
	*pending = (unsigned)get(gpu_of(handle), "pending");
	return number(handle, "failed", failed);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci);
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x1b + (unsigned)gpu_of(handle);
	snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
	return part_of(handle) < 0 ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long *set);
int nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long *set)
{
	memset(set, 0, size * sizeof *set);
	set[0] = (unsigned long)get(gpu_of(handle), "cpus");
	return set[0] ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *set, unsigned scope);
int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *set, unsigned scope)
{
	memset(set, 0, size * sizeof *set);
	set[0] = 1UL << get(gpu_of(handle), "numa");
	return 0;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level);
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level)
{
	int i = gpu_of(a), k = gpu_of(b);

	*level = get(i, "numa") != get(k, "numa") ? 50
	         : get(i, "phb") != get(k, "phb") ? 40
	         : get(i, "pix") != get(k, "pix") ? 30
	                                          : 10;
	return 0;
}

/* The peer of an NVLink: -1 a switch, -2 none. */
static int link_peer(int gpu, unsigned link)
{
	char line[256];
	const char *at;
	unsigned n = 0;

	read_machine(gpu, line);
	for (at = find(line, "nv"); at && *at >= '0' && *at <= '9';) {
		char *end;
		int peer = (int)strtol(at, &end, 10);

		n += (unsigned)strtol(end + 1, &end, 10);
		if (link < n)
			return peer;
		at = *end == ',' ? end + 1 : NULL;
	}
	return link < n + (unsigned)get(gpu, "sw") ? -1 : -2;
}

EXPORT int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active);
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active)
{
	if (link >= LINKS_MAX)
		return INVALID;
	*active = link_peer(gpu_of(handle), link) > -2;
	return 0;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci)
{
	int peer = link_peer(gpu_of(handle), link);

	memset(pci, 0, sizeof *pci);
	pci->bus = peer >= 0 ? 0x1b + (unsigned)peer : 0xee;
	return 0;
}

EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending);
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
	*current = *pending = get(gpu_of(handle), "mig") > 0;
	return 0;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count);
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
	*count = MIG_MAX;
	return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out);
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out)
{
	if ((long)index >= get(gpu_of(handle), "mig"))
		return NOT_FOUND;
	*out = &handles[gpu_of(handle)][1 + index];
	return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id);
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id)
{
	*id = 7 + (unsigned)part_of(handle);
	return 0;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id);
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id)
{
	*id = 0;
	return 0;
}

EXPORT int nvmlEventSetCreate(void **set);
int nvmlEventSetCreate(void **set)
{
	char path[512];
	int *fd = malloc(sizeof *fd);

	snprintf(path, sizeof path, "%s/events", getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/nonexistent");
	/* Opened for writing, too, so that reading never reaches its end. */
	*fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	*set = fd;
	return 0;
}

EXPORT int nvmlEventSetFree(void *set);
int nvmlEventSetFree(void *set)
{
	if (*(int *)set >= 0)
		close(*(int *)set);
	free(set);
	return 0;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types);
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types)
{
	long events = get(gpu_of(handle), "events");

	*types = events ? (unsigned long long)events : 0x1f;
	return 0;
}

EXPORT int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set);
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set)
{
	unsigned long long supported;

	nvmlDeviceGetSupportedEventTypes(handle, &supported);
	return part_of(handle) < 0 && types == (supported & 0xa) ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout);
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout)
{
	struct pollfd p = {*(int *)set, POLLIN, 0};
	char line[64];
	size_t n = 0;
	int gpu, xid, instance = -1;

	if (poll(&p, 1, (int)timeout) <= 0)
		return TIMEOUT;
	while (n < sizeof line - 1 && read(*(int *)set, &line[n], 1) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	if (sscanf(line, "%d %d %d", &gpu, &xid, &instance) < 2)
		return TIMEOUT;
	*event = (struct event){handles[gpu], xid ? 0x8 : 0x2, (unsigned long long)xid, (unsigned)instance,
	                        instance < 0 ? -1U : 0};
	return 0;
}
#endif
