/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the implementations of device.h share: each one's struct device begins with a struct device_base, in
 * which the operations' scratch lies, and the first fault since the device was last waited for.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/device/device.h"

struct device_base {
	char *scratch;
	size_t scratch_size;
	int fault; /* first negative errno of an operation, cleared when it is returned; 0: none */
	char fault_message[192];
};

/* Keeps the first fault of the operations since the last synchronize. */
void device_fault(struct device *dev, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Returns the fault that is kept, in words behind `where`, and forgets it; 0: none. */
int device_take_fault(struct device *dev, const char *where, struct error *err);
/* The scratch, or NULL with a fault where it is smaller than `bytes`. */
void *device_scratch(struct device *dev, size_t bytes, const char *operation);
/* False, with a fault, where a rule would step weights that it has no copy of in a type that it can round
 * to. */
bool device_update_fits(struct device *dev, const float *master, const void *param, enum dtype param_type,
                        const struct device_update *h);
/* False, with a fault, where there are more experts, or more choices of a token, than the engines have room
 * for. */
bool device_router_fits(struct device *dev, const struct device_router *r, const char *operation);
