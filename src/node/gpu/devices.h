/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this machine, one slot each: GPUs and MIG devices through NVML, or CPU slots where there is
 * no GPU. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "config/daemon.h"
#include "node/gpu/nvml.h"

struct node_device {
	bool gpu;
	int index;       /* GPU: as NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID count; CPU: the slot */
	char name[96];   /* model */
	char uuid[96];   /* empty for a CPU slot, and where fault is set */
	uint64_t memory; /* bytes of it; of a CPU slot its share of the machine's */
	int threads;     /* CPU threads for one rank here */

	/* The rest is a GPU's. */
	void *handle; /* NVML's; NULL where there was none to be had */
	void *parent; /* of the GPU: of a MIG device the one that it is a part of, else handle */
	bool mig;
	unsigned gpu_instance, compute_instance; /* of a MIG device */
	char pci[16];                            /* "0000:1b:00.0"; empty: unknown */
	int minor;                               /* of /dev/nvidiaN; -1: unknown */
	int numa;                                /* -1: unknown */
	cpu_set_t cpus;                          /* near to it; empty: unknown */
	char fault[160];                         /* why it could not be used from the start */
};

enum { LINK_NAME = 8 };

struct devices {
	struct node_device *list;
	size_t count;
	bool by_uuid; /* some are MIG devices, or lost: numbers may not mean to CUDA what they mean to us */
	char driver[32], cuda[16]; /* versions; empty: unknown */
	/* count × count: how two are connected, as nvidia-smi names it: X NV18 PIX PXB PHB NODE SYS, and MIG
	 * for parts of one GPU; empty: unknown. NULL without GPUs. */
	char (*links)[LINK_NAME];
	struct nvml *nvml; /* NULL without GPUs */
};

/* hosts_slots: slots= of the hosts file, 0: not said. More slots than GPUs is an error that says so. */
int devices_find(const struct daemon_config *config, int hosts_slots, struct devices *out, struct error *err);
void devices_release(struct devices *devices);

/* gpus.c: what NVML shows, into a new list (owned by the caller). A GPU in MIG mode is no device itself, its
 * MIG devices are. One that cannot be spoken to is there with its fault. */
int gpus_find(const struct nvml *nvml, struct node_device **list, size_t *count, struct error *err);
int gpus_connect(struct devices *devices, struct error *err); /* fills links */
/* Keeps what CUDA_VISIBLE_DEVICES names (indices or UUID prefixes, in its order; as CUDA does, the first
 * entry that names none ends the list). A GPU in MIG mode stands for all of its MIG devices. */
void devices_filter_visible(struct node_device *list, size_t *count, const char *visible);
/* "GPU 3 (GPU-1234…)", "MIG device MIG-1234… of GPU 3", "CPU slot 1": into buf, returned. */
const char *node_device_describe(const struct node_device *device, char *buf, size_t size);
