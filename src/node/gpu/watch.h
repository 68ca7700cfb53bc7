/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that speak with NVML, so that the event loop never waits for a GPU that hangs: one waits for the
 * driver's events (Xid), one reads the sensors in turn. What they find reaches the event loop's thread.
 */
#pragma once

#include <systemd/sd-event.h>

#include "base/error.h"
#include "node/gpu/devices.h"
#include "node/gpu/read.h"

struct gpu_watch;

struct gpu_watch_options {
	double interval;     /* seconds between two readings of all */
	double call_timeout; /* seconds that NVML may take for one of them until the GPU counts as hung */
	void *context;
	/* All from the event loop. A new reading of this device; */
	void (*reading)(void *context, size_t device, const struct gpu_reading *reading);
	/* an Xid on this device (once for each that it is about), */
	void (*xid)(void *context, size_t device, unsigned long long code, double time);
	/* an uncorrectable memory error, */
	void (*memory_error)(void *context, size_t device);
	/* NVML has not come back from reading it (hung), and has again. */
	void (*hung)(void *context, size_t device, bool hung);
};

/* Watches the GPUs among the devices, which have to stay until gpu_watch_stop. */
int gpu_watch_start(sd_event *event, const struct devices *devices, const struct gpu_watch_options *options,
                    struct gpu_watch **out, struct error *err);
/* False: a call into NVML does not come back. Its thread is left behind, and NVML must not be closed. */
bool gpu_watch_stop(struct gpu_watch *watch);
