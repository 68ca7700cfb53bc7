/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of this machine: its devices, what is known of them now, and which of them are drained. A device
 * that reports errors is drained here, whatever the controller believes.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/file_writer.h"
#include "config/daemon.h"
#include "node/gpu/devices.h"
#include "wire/device_info.h"

struct slots;

struct slots_callbacks {
	void *context;
	/* A device was drained for an error of its own: who runs on it has to know.
	 * "GPU 3 (GPU-12…) of n2: Xid 79: fell off the bus" */
	void (*fault)(void *context, int slot, const char *text);
	void (*changed)(void *context); /* something is drained, or is given back */
};

int slots_create(sd_event *event, const struct daemon_config *config, const char *node, int hosts_slots,
                 const struct slots_callbacks *callbacks, struct slots **out, struct error *err);
void slots_destroy(struct slots *slots);
DEFINE_CLEANUP(struct slots *, slots_destroy)

const struct devices *slots_devices(const struct slots *slots);
int slots_count(const struct slots *slots);
/* Why it gets no new runs; NULL: it does. */
const char *slots_drained(const struct slots *slots, int slot);
/* The same in full, where it was drained for an error of its own; into buf, or NULL. */
const char *slots_fault(const struct slots *slots, int slot, char *buf, size_t size);
/* A run begins on it, and has ended on it: its memory is to be free again within gpu_idle_timeout of the
 * configuration, else it is drained. */
void slots_leased(struct slots *slots, int slot);
void slots_released(struct slots *slots, int slot, int64_t run);
/* By hand; reason NULL or "": none is given. -ENOENT: no such slot. */
int slots_drain(struct slots *slots, int slot, const char *reason, struct error *err);
/* Back again. -ENOENT; -EIO: it cannot be spoken to even now. */
int slots_resume(struct slots *slots, int slot, struct error *err);
/* Calls `done` when all drains until now are on disk, or could not be written. */
int slots_wait_drains(struct slots *slots, file_written_fn done, void *context, struct error *err);
/* run 0: free. To be released by the caller, where it succeeds. */
int slots_describe(const struct slots *slots, int slot, int64_t run, struct device_info *out,
                   struct error *err);
