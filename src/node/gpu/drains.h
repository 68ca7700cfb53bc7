/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that get no new runs, and why: state_dir/drained.json, by UUID, so that neither a restart nor a
 * reboot nor another place on the bus gives one back. Only `dtrain resume` does; but what a reset of the GPU
 * puts right is forgotten after a reboot, and found again where it is still so.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/file_writer.h"

struct drains;

struct drain {
	char key[96];     /* UUID, or "cpu-N" */
	char reason[256]; /* empty: not drained (any more) */
	double time;      /* Unix */
	bool by_hand;
	bool until_boot;
	/* The conditions with which it was given back all the same: they alone drain it no more. */
	bool pending_accepted, failed_accepted;
};

/* A file that cannot be read is an error: a broken GPU is not given away for it. */
int drains_open(sd_event *event, const char *state_dir, struct drains **out, struct error *err);
/* What was set is on disk then. */
void drains_close(struct drains *d);
DEFINE_CLEANUP(struct drains *, drains_close)
/* NULL: nothing is known of it. */
const struct drain *drains_find(const struct drains *d, const char *key);
/* Takes the place of what was there: at once in memory, and in the background on disk. */
int drains_set(struct drains *d, const struct drain *drain, struct error *err);
/* Calls `done` on the event loop when what was set is on disk, or could not be written. */
int drains_wait(struct drains *d, file_written_fn done, void *context, struct error *err);
