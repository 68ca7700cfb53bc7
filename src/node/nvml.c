/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs through NVML, loaded at run time: a machine without the driver has no such library, and needs none. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "node/devices.h"

/* NVML's stable C ABI, as far as it is used here. */
struct nvml_memory {
	unsigned long long total, free, used;
};

enum { NVML_SUCCESS = 0 };

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
};

static int load(struct nvml *nvml)
{
	const struct {
		const char *name;
		void **to;
	} symbols[] = {
	    {"nvmlInit_v2", (void **)&nvml->init},
	    {"nvmlShutdown", (void **)&nvml->shutdown},
	    {"nvmlDeviceGetCount_v2", (void **)&nvml->count},
	    {"nvmlDeviceGetHandleByIndex_v2", (void **)&nvml->handle},
	    {"nvmlDeviceGetName", (void **)&nvml->name},
	    {"nvmlDeviceGetUUID", (void **)&nvml->uuid},
	    {"nvmlDeviceGetMemoryInfo", (void **)&nvml->memory},
	    {"nvmlErrorString", (void **)&nvml->error},
	};

	nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library)
		return -ENOENT;
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		*symbols[i].to = dlsym(nvml->library, symbols[i].name);
		if (!*symbols[i].to) {
			log_warn("libnvidia-ml.so.1 lacks %s: its GPUs are not used", symbols[i].name);
			dlclose(nvml->library);
			return -ENOSYS;
		}
	}
	return 0;
}

int nvml_find(struct device **list, size_t *count, struct error *err)
{
	struct nvml nvml;
	unsigned n = 0;
	int r;

	*list = NULL;
	*count = 0;
	if (load(&nvml) < 0)
		return 0;
	r = nvml.init();
	if (r != NVML_SUCCESS) {
		log_warn("NVML does not start: %s: GPUs are not used", nvml.error(r));
		dlclose(nvml.library);
		return 0;
	}
	if (nvml.count(&n) != NVML_SUCCESS)
		n = 0;
	*list = calloc(n + 1, sizeof **list);
	if (!*list) {
		r = error_oom(err);
		goto out;
	}
	r = 0;
	for (unsigned i = 0; i < n; i++) {
		struct device *d = &(*list)[*count];
		struct nvml_memory memory = {0};
		void *handle;
		int failed = nvml.handle(i, &handle);

		if (failed == NVML_SUCCESS)
			failed = nvml.uuid(handle, d->uuid, sizeof d->uuid);
		if (failed == NVML_SUCCESS)
			failed = nvml.memory(handle, &memory);
		if (failed != NVML_SUCCESS) {
			log_warn("GPU %u is left out: %s", i, nvml.error(failed));
			memset(d, 0, sizeof *d);
			continue;
		}
		if (nvml.name(handle, d->name, sizeof d->name) != NVML_SUCCESS)
			strcpy(d->name, "GPU");
		d->gpu = true;
		d->index = i;
		d->memory = memory.total;
		(*count)++;
	}
out:
	nvml.shutdown();
	dlclose(nvml.library);
	return r;
}
