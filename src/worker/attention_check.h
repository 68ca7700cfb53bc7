/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a kernel of attention in another process: one that fails leaves a device that its process cannot use
 * on, and one that never ends can be ended. */
#pragma once

#include "engine/device/device.h"

/* Starts this program again with --check-attention, and waits for it. device: its number among the visible
 * ones. -EBADMSG: the results differ; -ETIMEDOUT: it was ended; -ENODEV: it could not open the device;
 * another error: it has failed. */
int attention_check(int device, const struct device_attention_shape *shape, double seconds[2],
                    struct error *err);
/* The same in this process, for a device that no other one can open. A kernel that never ends ends the
 * process, and says so on the standard error. Before that, and where the device has failed, it makes the file
 * `mark`, where that can be; where there is such a file, nothing is checked, and the error names it. */
int attention_check_here(struct device *dev, const struct device_attention_shape *shape, const char *mark,
                         double seconds[2], struct error *err);
/* The process: what comes behind --check-attention. The exit status: 1 where the check has failed, 2 where
 * the device could not be opened. */
int attention_check_main(int argc, char **argv);
