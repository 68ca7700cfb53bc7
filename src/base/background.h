/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that may take long (a look-up in a directory service, DNS, a file system), off the event loop: in a
 * thread of its own, with a deadline. The thread cannot be ended; one that hangs is left behind.
 */
#pragma once

#include <systemd/sd-event.h>

#include "base/error.h"

struct background;

struct background_task {
	double deadline; /* seconds */
	void (*work)(void *data);
	/* On the event loop: data, after work, whose contents are the callback's to take. Or NULL: the
	 * deadline has passed, and the work goes on; unless it is cancelled now, `done` is called once more
	 * when it has ended. */
	void (*done)(void *context, void *data);
	void *context;
	void (*release)(void *data); /* called once, in either thread: frees data */
	void *data;                  /* nothing else may use it before `done` */
};

/* On failure data is released, too. The handle is valid until `done` is called with data. */
int background_start(sd_event *event, const struct background_task *task, struct background **out,
                     struct error *err);
/* `done` will not be called any more; the work is left to itself. NULL: nothing. */
void background_cancel(struct background *b);
