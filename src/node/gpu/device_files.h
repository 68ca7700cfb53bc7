/* SPDX-License-Identifier: Apache-2.0 */
/* Which files below /dev a run may open. */
#pragma once

#include "node/gpu/devices.h"

/*
 * Those of the GPUs and MIG devices in `slots`, what every program needs to use a GPU (only where there is
 * one), InfiniBand and other means of communication, FUSE and TUN for containers without root, and `more`
 * (NULL-terminated, may be NULL). Only files that exist. `root` stands before /dev and /proc, "" for the
 * machine's own. A new list that ends with NULL, owned by the caller (str_list_free); NULL: out of memory.
 */
char **device_files(const char *root, const struct devices *devices, const int *slots, size_t count,
                    char *const *more);
/* The first of the patterns that matches no device, owned by the caller; NULL: there is none. */
char *device_files_unmatched(const char *root, char *const *patterns);
