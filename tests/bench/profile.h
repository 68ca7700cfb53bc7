/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a step goes: every operation of device.h, timed on the device's own stream. The program
 * is linked with $(wrap_device), which leads its calls through profile.c; what is not listed there is not
 * seen.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "engine/device/device.h"

/* Bytes of the device's memory that are in use, by whoever; -1: it cannot be asked. */
int64_t profile_memory(void);
/* Tells a profiler that waits for it (ncu --profile-from-start off) where to begin and end. */
void profile_capture(bool on);

/* From here to profile_stop operations are timed. */
int profile_start(struct device *dev, struct error *err);
/* Waits for the device and prints one line for each kind of operation, tab-separated, costliest first:
 * "profile", name with its sizes, calls, milliseconds, operations (floating-point), bytes that it has to move
 * at least. The last line, "profile total", has the time from start to stop in place of calls. */
int profile_stop(struct device *dev, FILE *out, struct error *err);
