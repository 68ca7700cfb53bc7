/* SPDX-License-Identifier: Apache-2.0 */
/* A libnvidia-ml.so.1 with four GPUs, the third of which fell off the bus. */
#include <stdio.h>
#include <string.h>

enum { GPU_COUNT = 4, GPU_LOST = 2, ERROR_GPU_IS_LOST = 15 };

static int handles[GPU_COUNT];

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned size);
EXPORT int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size);
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory);
EXPORT const char *nvmlErrorString(int code);

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = GPU_COUNT;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
	*handle = &handles[index];
	return index == GPU_LOST ? ERROR_GPU_IS_LOST : 0;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned size)
{
	snprintf(name, size, "NVIDIA H200");
	return 0;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size)
{
	snprintf(uuid, size, "GPU-%d000", (int)((int *)handle - handles));
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory)
{
	memory[0] = 141ULL << 30;
	return 0;
}

const char *nvmlErrorString(int code)
{
	return code == ERROR_GPU_IS_LOST ? "GPU is lost" : "Success";
}
