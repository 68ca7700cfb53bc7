/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's log as a stream: what is there, then what is appended while it is followed. Never blocks; the
 * wakeup comes from the event loop.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"

struct log_reader;

/* There may be something to read again, after -EAGAIN. Not called from within open or read. */
typedef void (*log_wakeup_fn)(void *context);

/* tail: only the last so many lines of what is there now, -1 for all. follow false: the end of the file is
 * the end. event and wakeup may be NULL without follow. */
int log_reader_open(sd_event *event, const char *path, int64_t tail, bool follow, log_wakeup_fn wakeup,
                    void *context, struct log_reader **out, struct error *err);
/* Before the first read: it begins at this byte, whatever the tail; at the first where the log is shorter. */
void log_reader_seek(struct log_reader *reader, int64_t offset);
/* The offset in the file of the byte behind what was read last. */
int64_t log_reader_position(const struct log_reader *reader);
/* Bytes read; -EAGAIN: nothing now, wait for the wakeup; 0: the end; else a negative errno. */
ssize_t log_reader_read(struct log_reader *reader, void *buf, size_t size);
/* Nothing more will be written: what is left is read, then comes the end. Wakes a waiting reader. */
void log_reader_finish(struct log_reader *reader);
void log_reader_close(struct log_reader *reader);
DEFINE_CLEANUP(struct log_reader *, log_reader_close)
