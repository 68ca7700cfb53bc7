/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NVML at run time and finds the functions that are used. */
#include "node/gpu/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* In the order of age: the first name that the library has is taken. */
static const struct symbol {
	size_t to;
	const char *names[2];
	bool needed;
} symbols[] = {
#define TO(field) offsetof(struct nvml, field)
    {TO(init), {"nvmlInit_v2"}, true},
    {TO(shutdown), {"nvmlShutdown"}, true},
    {TO(count), {"nvmlDeviceGetCount_v2"}, true},
    {TO(handle), {"nvmlDeviceGetHandleByIndex_v2"}, true},
    {TO(name), {"nvmlDeviceGetName"}, true},
    {TO(uuid), {"nvmlDeviceGetUUID"}, true},
    {TO(memory), {"nvmlDeviceGetMemoryInfo"}, true},
    {TO(error), {"nvmlErrorString"}, true},
    {TO(driver_version), {"nvmlSystemGetDriverVersion"}, false},
    {TO(cuda_version), {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"}, false},
    {TO(utilization), {"nvmlDeviceGetUtilizationRates"}, false},
    {TO(temperature), {"nvmlDeviceGetTemperature"}, false},
    {TO(temperature_v), {"nvmlDeviceGetTemperatureV"}, false},
    {TO(power), {"nvmlDeviceGetPowerUsage"}, false},
    {TO(power_limit), {"nvmlDeviceGetEnforcedPowerLimit"}, false},
    {TO(ecc_errors), {"nvmlDeviceGetTotalEccErrors"}, false},
    {TO(retired_pending), {"nvmlDeviceGetRetiredPagesPendingStatus"}, false},
    {TO(remapped_rows), {"nvmlDeviceGetRemappedRows"}, false},
    {TO(pci), {"nvmlDeviceGetPciInfo_v3"}, false},
    {TO(minor), {"nvmlDeviceGetMinorNumber"}, false},
    {TO(cpu_affinity), {"nvmlDeviceGetCpuAffinity"}, false},
    {TO(memory_affinity), {"nvmlDeviceGetMemoryAffinity"}, false},
    {TO(common_ancestor), {"nvmlDeviceGetTopologyCommonAncestor"}, false},
    {TO(link_state), {"nvmlDeviceGetNvLinkState"}, false},
    {TO(link_remote_pci), {"nvmlDeviceGetNvLinkRemotePciInfo_v2"}, false},
    {TO(link_remote_type), {"nvmlDeviceGetNvLinkRemoteDeviceType"}, false},
    {TO(mig_mode), {"nvmlDeviceGetMigMode"}, false},
    {TO(mig_count), {"nvmlDeviceGetMaxMigDeviceCount"}, false},
    {TO(mig_handle), {"nvmlDeviceGetMigDeviceHandleByIndex"}, false},
    {TO(gpu_instance), {"nvmlDeviceGetGpuInstanceId"}, false},
    {TO(compute_instance), {"nvmlDeviceGetComputeInstanceId"}, false},
    {TO(event_set), {"nvmlEventSetCreate"}, false},
    {TO(event_set_free), {"nvmlEventSetFree"}, false},
    {TO(event_types), {"nvmlDeviceGetSupportedEventTypes"}, false},
    {TO(event_register), {"nvmlDeviceRegisterEvents"}, false},
    /* The older one leaves the instances as they were. */
    {TO(event_wait), {"nvmlEventSetWait_v2", "nvmlEventSetWait"}, false},
#undef TO
};

static int load(struct nvml *nvml)
{
	nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library)
		return -ENOENT;
	for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
		const struct symbol *s = &symbols[i];
		void *found = dlsym(nvml->library, s->names[0]);

		if (!found && s->names[1])
			found = dlsym(nvml->library, s->names[1]);
		if (!found && s->needed) {
			log_warn("libnvidia-ml.so.1 lacks %s: its GPUs are not used", s->names[0]);
			return -ENOSYS;
		}
		memcpy((char *)nvml + s->to, &found, sizeof found);
	}
	return 0;
}

void nvml_open(struct nvml **out, char *fault, size_t fault_size)
{
	struct nvml *nvml = calloc(1, sizeof *nvml);
	int r;

	*out = NULL;
	fault[0] = '\0';
	if (!nvml)
		return;
	if (load(nvml) == 0) {
		r = nvml->init();
		if (r == NVML_SUCCESS) {
			*out = nvml;
			return;
		}
		if (r == NVML_DRIVER_NOT_LOADED)
			log_warn("NVML does not start: %s: GPUs, if there are any, are not used",
			         nvml->error(r));
		else
			snprintf(fault, fault_size, "NVML does not start: error %d, %s", r, nvml->error(r));
	}
	if (nvml->library)
		dlclose(nvml->library);
	free(nvml);
}

void nvml_close(struct nvml *nvml)
{
	nvml->shutdown();
	dlclose(nvml->library);
	free(nvml);
}
