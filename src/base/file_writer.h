/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One small file whose newest contents are kept on disk, written atomically and synced in a thread, so that a
 * slow disk does not hold up the event loop. Where contents come faster than the disk takes them, only the
 * newest are written.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"

struct file_writer;

/* code: 0, or a negative errno, and what failed. */
typedef void (*file_written_fn)(void *context, int code, const char *message);

/* The directory of `path` is made where it is missing. A failure is logged, with `consequence` ("it is not on
 * disk which devices are drained") before the reason. Both strings are copied. */
int file_writer_create(sd_event *event, const char *path, const char *consequence, struct file_writer **out,
                       struct error *err);
/* Takes text, also where it fails; NULL: out of memory. It returns before the file is written. */
int file_writer_put(struct file_writer *w, char *text, struct error *err);
/* Calls `done` on the event loop when all that was put until now is on disk or could not be written: at once
 * where nothing is left to write. */
int file_writer_wait(struct file_writer *w, file_written_fn done, void *context, struct error *err);
/* Whether the contents that were tried last could not be written. */
bool file_writer_failed(struct file_writer *w);
/* Waits until the newest contents are on disk; those who wait are told here. NULL: nothing. */
void file_writer_destroy(struct file_writer *w);
DEFINE_CLEANUP(struct file_writer *, file_writer_destroy)
