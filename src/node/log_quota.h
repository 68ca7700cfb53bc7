/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a rank's log a node keeps. The rank writes to the file itself, so nothing stands between them:
 * where the file has become too large, its oldest part becomes a hole, which takes no space on the disk. The
 * place of what was written since stays the same, for the rank and for those who read.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* Where the log takes more than so many bytes on the disk, the oldest part goes, and a line before the rest
 * says so. *removed: how many bytes there are before that line; 0: nothing was to do. -EOPNOTSUPP: this file
 * system has no holes. */
int log_quota_apply(const char *path, int64_t quota, int64_t *removed, struct error *err);
