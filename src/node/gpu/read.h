/* SPDX-License-Identifier: Apache-2.0 */
/* One reading of a GPU's sensors and error counters. */
#pragma once

#include <stdint.h>

#include "node/gpu/devices.h"

struct gpu_reading {
	double time; /* Unix; 0: none yet */
	int fault;   /* what NVML said instead: the GPU is lost, …; 0: nothing wrong */
	/* -1: not known, or not told by this driver or GPU. */
	int64_t memory_used;                       /* bytes */
	int64_t utilization;                       /* percent; not of a MIG device */
	int64_t temperature;                       /* °C */
	int64_t power, power_limit;                /* mW */
	int64_t ecc_errors;                        /* uncorrected, since the driver was loaded */
	int retirement_pending, retirement_failed; /* of memory rows or pages: 0 or 1 */
};

void gpu_read(const struct nvml *nvml, const struct node_device *device, struct gpu_reading *out);
