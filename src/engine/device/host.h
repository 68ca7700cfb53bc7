/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers' steps on the cores of the host, for weights and moments that lie in host memory. They are
 * the CPU engine's kernels, under names of their own so that a program for GPUs can have them, too: the same
 * bits as device_adamw and device_update. All pointers are to host memory; the threads are those that OpenMP
 * has for the caller; the step is done when the call returns.
 */
#pragma once

#include "engine/device/device.h"

void host_adamw(float *master, void *param, enum dtype param_type, const float *grad, float *m, float *v,
                int64_t n, const float *grad_scale, const struct device_adamw *h);
void host_update(float *master, void *param, enum dtype param_type, float *grad, float *m, float *v,
                 int64_t n, const float *grad_scale, const struct device_update *h);
