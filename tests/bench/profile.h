/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of each operation of device.h in a step, measured on the stream of the device. The program is
 * linked with $(wrap_device), which directs its calls to profile.c; operations that are not listed there are
 * not measured.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "engine/device/device.h"

/* Bytes of the memory of the device that are in use by all processes; -1: unknown. */
int64_t profile_memory(void);
/* Starts and ends the recording of a profiler that waits for it (ncu --profile-from-start off). */
void profile_capture(bool on);

/* From here to profile_stop operations are timed. */
int profile_start(struct device *dev, struct error *err);
/* Waits for the device and prints one line for each kind of operation, tab-separated, costliest first:
 * "profile", name with its sizes, calls, milliseconds, operations (floating-point), bytes that it has to move
 * at least. The last line, "profile total", has the time from start to stop in place of calls. */
int profile_stop(struct device *dev, FILE *out, struct error *err);
