/* SPDX-License-Identifier: Apache-2.0 */
/* The part of device.h that moves bytes, with the memory of the host, for tests that compute nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/device/device.h"

int device_alloc(struct device *dev, size_t bytes, void **out, struct error *err)
{
	*out = calloc(1, bytes);
	return *out ? 0 : error_oom(err);
}

void device_free(struct device *dev, void *p)
{
	free(p);
}

int device_write(struct device *dev, void *to, const void *from, size_t bytes, struct error *err)
{
	memcpy(to, from, bytes);
	return 0;
}

int device_read(struct device *dev, void *to, const void *from, size_t bytes, struct error *err)
{
	memcpy(to, from, bytes);
	return 0;
}
