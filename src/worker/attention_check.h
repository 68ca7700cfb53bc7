/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a kernel of attention in another process: one that fails leaves a device that no process can use on,
 * and one that never ends can be ended. */
#pragma once

#include "engine/device/device.h"

/* Starts this program again with --check-attention, and waits for it. device: its number among the visible
 * ones. -EBADMSG: the results differ; -ETIMEDOUT: it was ended; another error: it has failed. */
int attention_check(int device, const struct device_attention_shape *shape, double seconds[2],
                    struct error *err);
/* The process: what comes behind --check-attention. The exit status. */
int attention_check_main(int argc, char **argv);
