/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine and how they are connected, at the start of the service. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "node/gpu/affinity.h"
#include "node/gpu/devices.h"

struct found {
	struct node_device *list;
	size_t count, capacity;
};

static struct node_device *add(struct found *f)
{
	struct node_device *d;

	if (f->count == f->capacity) {
		size_t capacity = f->capacity ? f->capacity * 2 : 16;

		d = reallocarray(f->list, capacity, sizeof *d);
		if (!d)
			return NULL;
		f->list = d;
		f->capacity = capacity;
	}
	d = &f->list[f->count++];
	memset(d, 0, sizeof *d);
	d->gpu = true;
	d->numa = d->minor = -1;
	return d;
}

/* What is said of a GPU that cannot be used, and what only says that this one is not ours. */
static bool is_fault(int code)
{
	return code != NVML_NO_PERMISSION && code != NVML_NOT_FOUND && code != NVML_INVALID_ARGUMENT &&
	       code != NVML_OPERATING_SYSTEM;
}

static void locate(const struct nvml *nvml, struct node_device *d)
{
	struct nvml_pci pci = {0};
	unsigned long set[CPU_SETSIZE / (8 * sizeof(long))] = {0};
	unsigned minor;

	if (nvml->minor && nvml->minor(d->parent, &minor) == NVML_SUCCESS)
		d->minor = (int)minor;
	if (nvml->pci && nvml->pci(d->parent, &pci) == NVML_SUCCESS)
		snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.0", pci.domain & 0xffffff, pci.bus & 0xff,
		         pci.device & 0xff);
	/* Of the memory next to the GPU; its own, where that is a node too (Grace), is not what is meant. */
	if (nvml->memory_affinity &&
	    nvml->memory_affinity(d->parent, ARRAY_SIZE(set), set, 0) == NVML_SUCCESS)
		for (size_t i = 0; i < 8 * sizeof set && d->numa < 0; i++)
			if (set[i / (8 * sizeof(long))] >> (i % (8 * sizeof(long))) & 1)
				d->numa = (int)i;
	if (d->numa < 0)
		d->numa = affinity_pci_numa(d->pci);
	memset(set, 0, sizeof set);
	if (nvml->cpu_affinity && nvml->cpu_affinity(d->parent, ARRAY_SIZE(set), set) == NVML_SUCCESS) {
		for (size_t i = 0; i < CPU_SETSIZE; i++)
			if (set[i / (8 * sizeof(long))] >> (i % (8 * sizeof(long))) & 1)
				CPU_SET(i, &d->cpus);
	} else {
		affinity_numa_cpus(d->numa, &d->cpus);
	}
}

/* Identity of what d->handle stands for. Returns NVML's code. */
static int identify(const struct nvml *nvml, struct node_device *d)
{
	struct nvml_memory memory = {0};
	int code = nvml->uuid(d->handle, d->uuid, sizeof d->uuid);

	if (code == NVML_SUCCESS)
		code = nvml->memory(d->handle, &memory);
	if (code != NVML_SUCCESS)
		return code;
	if (nvml->name(d->handle, d->name, sizeof d->name) != NVML_SUCCESS)
		strcpy(d->name, d->mig ? "MIG device" : "GPU");
	d->memory = memory.total;
	locate(nvml, d);
	return NVML_SUCCESS;
}

static int add_mig_devices(const struct nvml *nvml, void *parent, unsigned index, struct found *f,
                           struct error *err)
{
	unsigned max = 0, seen = 0;

	if (nvml->mig_count(parent, &max) != NVML_SUCCESS)
		max = 0;
	for (unsigned i = 0; i < max; i++) {
		struct node_device *d;
		void *handle;
		int code = nvml->mig_handle(parent, i, &handle);

		if (code == NVML_NOT_FOUND)
			continue;
		d = code == NVML_SUCCESS ? add(f) : NULL;
		if (code == NVML_SUCCESS && !d)
			return error_oom(err);
		if (d) {
			d->index = index;
			d->handle = handle;
			d->parent = parent;
			d->mig = true;
			d->gpu_instance = d->compute_instance = NVML_NO_INSTANCE;
			if (nvml->gpu_instance)
				nvml->gpu_instance(handle, &d->gpu_instance);
			if (nvml->compute_instance)
				nvml->compute_instance(handle, &d->compute_instance);
			code = identify(nvml, d);
		}
		if (code == NVML_SUCCESS) {
			seen++;
			continue;
		}
		log_warn("MIG device %u of GPU %u is left out: %s", i, index, nvml->error(code));
		f->count -= d != NULL;
	}
	if (seen == 0)
		log_warn("GPU %u is in MIG mode and has no MIG device: it gives no slot", index);
	return 0;
}

static int add_gpu(const struct nvml *nvml, unsigned index, struct found *f, struct error *err)
{
	unsigned mig = 0, pending;
	struct node_device *d;
	void *handle = NULL;
	int code = nvml->handle(index, &handle);

	if (code == NVML_SUCCESS && nvml->mig_mode && nvml->mig_count && nvml->mig_handle &&
	    nvml->mig_mode(handle, &mig, &pending) == NVML_SUCCESS && mig == 1)
		return add_mig_devices(nvml, handle, index, f, err);
	if (code != NVML_SUCCESS && !is_fault(code)) {
		log_warn("GPU %u is left out: %s", index, nvml->error(code));
		return 0;
	}
	d = add(f);
	if (!d)
		return error_oom(err);
	d->index = index;
	if (code == NVML_SUCCESS) {
		d->handle = d->parent = handle;
		code = identify(nvml, d);
	}
	if (code == NVML_SUCCESS)
		return 0;
	d->handle = d->parent = NULL;
	d->uuid[0] = '\0';
	strcpy(d->name, "GPU");
	snprintf(d->fault, sizeof d->fault, "%s", nvml->error(code));
	return 0;
}

int gpus_find(const struct nvml *nvml, struct node_device **list, size_t *count, struct error *err)
{
	struct found f = {0};
	unsigned n = 0;
	int r = 0;

	if (nvml->count(&n) != NVML_SUCCESS)
		n = 0;
	for (unsigned i = 0; i < n && r == 0; i++)
		r = add_gpu(nvml, i, &f, err);
	if (r < 0) {
		free(f.list);
		return r;
	}
	*list = f.list;
	*count = f.count;
	return 0;
}

/* The NVLinks of one GPU: to which of the others how many, and how many into a switch (or to where NVML does
 * not say, as in a virtual machine that has no part in the switches). */
struct wires {
	unsigned char *direct; /* count entries, by device */
	unsigned to_switch;
};

static void follow_wires(const struct nvml *nvml, const struct devices *devices, const struct node_device *d,
                         struct wires *w)
{
	if (!d->parent || !nvml->link_state || d->mig) /* MIG devices have no NVLink */
		return;
	for (unsigned link = 0; link < NVML_LINKS_MAX; link++) {
		struct nvml_pci remote = {0};
		int active = 0, type = NVML_REMOTE_SWITCH, known = -1;
		char pci[16];
		int code = nvml->link_state(d->parent, link, &active);

		if (code == NVML_INVALID_ARGUMENT) /* one more than it has */
			break;
		if (code != NVML_SUCCESS || !active)
			continue;
		if (nvml->link_remote_pci &&
		    nvml->link_remote_pci(d->parent, link, &remote) == NVML_SUCCESS) {
			snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", remote.domain & 0xffffff,
			         remote.bus & 0xff, remote.device & 0xff);
			for (size_t i = 0; i < devices->count; i++)
				if (str_eq(devices->list[i].pci, pci))
					known = (int)i;
		}
		if (known >= 0)
			w->direct[known]++;
		else if (!nvml->link_remote_type ||
		         nvml->link_remote_type(d->parent, link, &type) != NVML_SUCCESS ||
		         type != NVML_REMOTE_GPU)
			w->to_switch++;
	}
}

static const char *path_name(int level)
{
	if (level <= NVML_PATH_SWITCH)
		return "PIX";
	if (level <= NVML_PATH_SWITCHES)
		return "PXB";
	if (level <= NVML_PATH_HOST_BRIDGE)
		return "PHB";
	return level <= NVML_PATH_NUMA_NODE ? "NODE" : "SYS";
}

static void name_link(const struct devices *devices, const struct wires *wires, size_t i, size_t k,
                      char *name)
{
	const struct node_device *a = &devices->list[i], *b = &devices->list[k];
	unsigned direct = wires[i].direct[k], switched = MIN(wires[i].to_switch, wires[k].to_switch);
	int level;

	if (i == k)
		strcpy(name, "X");
	else if (!a->parent || !b->parent)
		name[0] = '\0';
	else if (a->parent == b->parent)
		strcpy(name, "MIG");
	else if (direct || switched)
		snprintf(name, LINK_NAME, "NV%u", direct ? direct : switched);
	else if (devices->nvml->common_ancestor &&
	         devices->nvml->common_ancestor(a->parent, b->parent, &level) == NVML_SUCCESS)
		strcpy(name, path_name(level));
	else
		name[0] = '\0';
}

int gpus_connect(struct devices *devices, struct error *err)
{
	size_t n = devices->count;
	_cleanup_free_ struct wires *wires = calloc(n + 1, sizeof *wires);
	_cleanup_free_ unsigned char *direct = calloc(n + 1, n + 1);

	devices->links = calloc(n * n + 1, sizeof *devices->links);
	if (!wires || !direct || !devices->links)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		wires[i].direct = &direct[i * n];
		follow_wires(devices->nvml, devices, &devices->list[i], &wires[i]);
	}
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++)
			name_link(devices, wires, i, k, devices->links[i * n + k]);
	return 0;
}
