/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML's stable C ABI as far as it is used here, loaded at run time: a machine without the driver has no such
 * library, and needs none. Calls may take long, or not come back, where a GPU hangs: after the start they are
 * made by the threads of gpu_watch.h alone.
 */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"

enum {
	NVML_SUCCESS = 0,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_POWER = 8,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_IRQ_ISSUE = 11,
	NVML_GPU_IS_LOST = 15,
	NVML_RESET_REQUIRED = 16,
	NVML_OPERATING_SYSTEM = 17,
};

enum { NVML_ECC_UNCORRECTED = 1, NVML_ECC_VOLATILE = 0, NVML_TEMPERATURE_GPU = 0, NVML_LINKS_MAX = 36 };
enum { NVML_REMOTE_GPU = 0, NVML_REMOTE_SWITCH = 2 };
enum { NVML_EVENT_DOUBLE_BIT_ECC = 0x2, NVML_EVENT_XID = 0x8 };
enum {
	NVML_PATH_INTERNAL = 0,
	NVML_PATH_SWITCH = 10,
	NVML_PATH_SWITCHES = 20,
	NVML_PATH_HOST_BRIDGE = 30,
	NVML_PATH_NUMA_NODE = 40,
};

#define NVML_NO_INSTANCE 0xffffffffU

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_utilization {
	unsigned gpu, memory; /* percent of the last sampling period */
};

struct nvml_pci {
	char bus_id_legacy[16];
	unsigned domain, bus, device, id, subsystem_id;
	char bus_id[32];
};

struct nvml_temperature {
	unsigned version, sensor;
	int temperature;
};

#define NVML_TEMPERATURE_V1 ((unsigned)sizeof(struct nvml_temperature) | 1U << 24)

struct nvml_event {
	void *device;
	unsigned long long type, data; /* data: the Xid */
	unsigned gpu_instance, compute_instance;
};

/* The functions by NVML's names. What an older driver lacks is NULL, but for the first group. */
struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned *);
	int (*handle)(unsigned, void **);
	int (*name)(void *, char *, unsigned);
	int (*uuid)(void *, char *, unsigned);
	int (*memory)(void *, struct nvml_memory *);
	const char *(*error)(int);

	int (*driver_version)(char *, unsigned);
	int (*cuda_version)(int *);
	int (*utilization)(void *, struct nvml_utilization *);
	int (*temperature)(void *, int, unsigned *);
	int (*temperature_v)(void *, struct nvml_temperature *);
	int (*power)(void *, unsigned *);
	int (*power_limit)(void *, unsigned *);
	int (*ecc_errors)(void *, int, int, unsigned long long *);
	int (*retired_pending)(void *, int *);
	int (*remapped_rows)(void *, unsigned *, unsigned *, unsigned *, unsigned *);
	int (*pci)(void *, struct nvml_pci *);
	int (*minor)(void *, unsigned *);
	int (*cpu_affinity)(void *, unsigned, unsigned long *);
	int (*memory_affinity)(void *, unsigned, unsigned long *, unsigned);
	int (*common_ancestor)(void *, void *, int *);
	int (*link_state)(void *, unsigned, int *);
	int (*link_remote_pci)(void *, unsigned, struct nvml_pci *);
	int (*link_remote_type)(void *, unsigned, int *);
	int (*mig_mode)(void *, unsigned *, unsigned *);
	int (*mig_count)(void *, unsigned *);
	int (*mig_handle)(void *, unsigned, void **);
	int (*gpu_instance)(void *, unsigned *);
	int (*compute_instance)(void *, unsigned *);
	int (*event_set)(void **);
	int (*event_set_free)(void *);
	int (*event_types)(void *, unsigned long long *);
	int (*event_register)(void *, unsigned long long, void *);
	int (*event_wait)(void *, struct nvml_event *, unsigned);
};

/* *out NULL where there is no driver, or none that can be used. Where that is not how a machine without GPUs
 * looks (after an upgrade the library and the kernel's part of the driver may differ), fault says so;
 * otherwise it is empty. */
void nvml_open(struct nvml **out, char *fault, size_t fault_size);
void nvml_close(struct nvml *nvml);
DEFINE_CLEANUP(struct nvml *, nvml_close)
