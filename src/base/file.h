/* SPDX-License-Identifier: Apache-2.0 */
/* Files: read whole, mapped, and written so that a reader sees the old content or the new, never a part. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/* A descriptor to read from, *st filled; or -EISDIR, and -EINVAL for what is neither a directory nor a
 * regular file. Never waits. */
int file_open_regular(const char *path, struct stat *st, struct error *err);
/* Whole regular file, NUL-terminated after *len bytes; owned by the caller. -EFBIG beyond `max` bytes (0: no
 * limit). */
int file_read(const char *path, size_t max, char **data, size_t *len, struct error *err);
/* The same of a pipe or a terminal, too: to its end, however long that takes. -ENODATA where no process has
 * the pipe open for writing and nothing is in it. */
int file_read_stream(const char *path, size_t max, char **data, size_t *len, struct error *err);

/* Written to a temporary name in the same directory, synced, renamed over `path`, directory synced. */
int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct error *err);

/* mkdir -p; existing directories are fine. */
int file_mkdirs(const char *path, mode_t mode, struct error *err);

/* rm -r; a missing path is success. Stays within the tree whatever its owner does to it meanwhile, follows no
 * symbolic link, and leaves what is mounted in it. Goes on after an error, and returns the first. */
int file_remove_tree(const char *path, struct error *err);

int file_sync_directory(const char *path, struct error *err);
bool file_exists(const char *path);
bool file_exists_in(const char *directory, const char *name);       /* needs no memory */
int file_copy(const char *from, const char *to, struct error *err); /* content and mode, not atomic */

/* Writes all of it to fd, through EINTR and short writes. */
int file_write_all(int fd, const void *data, size_t len, struct error *err);

/* A read-only mapping of a whole file. An empty file maps as data = "" and len = 0. */
struct file_map {
	const void *data;
	size_t len;
};

int file_map_open(const char *path, struct file_map *map, struct error *err);
void file_map_close(struct file_map *map);
/* The pages that were read no longer count as memory of this process; they stay in the system's cache. */
void file_map_release(const struct file_map *map);

#define _cleanup_file_map_ _cleanup_(file_map_close)
