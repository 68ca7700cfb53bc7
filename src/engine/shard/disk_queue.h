/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file without a name, parts of which are read and written while the caller computes: by io_uring, and with
 * O_DIRECT where the file system has it. Where the kernel or a sandbox refuses io_uring, each call reads or
 * writes before it returns. The file is gone when the process ends, however it ends.
 *
 * One thread uses it. Memory, sizes and offsets are multiples of DISK_QUEUE_ALIGNMENT.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { DISK_QUEUE_ALIGNMENT = 4096, DISK_QUEUE_TAGS = 8 };

enum disk_direction { DISK_READ, DISK_WRITE };

struct disk_queue;

/* Makes the file, which reads as zeros, in a directory that is there, with room for `bytes`: -ENOSPC where
 * the disk has less. Messages name the directory. */
int disk_queue_open(const char *directory, int64_t bytes, struct disk_queue **out, struct error *err);
/* Waits for what is under way. q may be NULL. */
void disk_queue_close(struct disk_queue *q);
bool disk_queue_is_direct(const struct disk_queue *q);     /* past the page cache */
bool disk_queue_is_concurrent(const struct disk_queue *q); /* io_uring */

/* Starts to read or write. The memory is the queue's until all of this tag has been waited for. Operations of
 * different tags end in any order, and what is written is read once the writing has been waited for. */
int disk_queue_start(struct disk_queue *q, enum disk_direction direction, int tag, void *memory, size_t bytes,
                     int64_t offset, struct error *err);
/* Until all operations of the tag have ended. An error of any tag that has been found meanwhile is returned
 * by this call and all later ones: the file is of no use any more. */
int disk_queue_wait(struct disk_queue *q, int tag, struct error *err);
