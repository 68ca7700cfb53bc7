/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of a device's operations, and what they are checked against before they begin. */
#include "engine/device/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static struct device_base *base_of(struct device *dev)
{
	return (struct device_base *)dev;
}

void device_fault(struct device *dev, int code, const char *fmt, ...)
{
	struct device_base *b = base_of(dev);
	va_list ap;

	if (b->fault)
		return;
	b->fault = code;
	va_start(ap, fmt);
	vsnprintf(b->fault_message, sizeof(b->fault_message), fmt, ap);
	va_end(ap);
}

int device_take_fault(struct device *dev, const char *where, struct error *err)
{
	struct device_base *b = base_of(dev);
	int fault = b->fault;

	b->fault = 0;
	return fault ? error_set(err, fault, "%s: %s", where, b->fault_message) : 0;
}

void *device_scratch(struct device *dev, size_t bytes, const char *operation)
{
	struct device_base *b = base_of(dev);

	if (bytes <= b->scratch_size)
		return b->scratch;
	device_fault(dev, -ENOMEM, "%s needs %zu bytes of scratch, %zu are reserved", operation, bytes,
	             b->scratch_size);
	return NULL;
}

bool device_update_fits(struct device *dev, const float *master, const void *param, enum dtype param_type,
                        const struct device_update *h)
{
	if (h->rule == DEVICE_MEAN || h->rule == DEVICE_LAMB || master || (param && param_type == DTYPE_BF16))
		return true;
	device_fault(dev, -EINVAL, "an update without a master copy is for bfloat16 parameters");
	return false;
}

bool device_router_fits(struct device *dev, const struct device_router *r, const char *operation)
{
	if (r->experts <= DEVICE_EXPERTS_MAX && r->chosen <= DEVICE_CHOSEN_MAX && r->chosen <= r->experts)
		return true;
	device_fault(dev, -EINVAL, "%s: %d of %d experts; at most %d of %d can be chosen", operation,
	             r->chosen, r->experts, DEVICE_CHOSEN_MAX, DEVICE_EXPERTS_MAX);
	return false;
}
