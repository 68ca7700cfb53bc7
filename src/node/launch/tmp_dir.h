/* SPDX-License-Identifier: Apache-2.0 */
/* The directory for temporary files of an attempt, TMPDIR of its ranks: the user's alone. */
#pragma once

#include <sys/types.h>

#include "base/error.h"

/* Makes it anew in a directory that is ours alone to write to, or takes the user's spare one there. As root
 * it is given to the user. */
int tmp_dir_make(const char *path, uid_t uid, gid_t gid, struct error *err);
/* An empty one becomes the spare one of its user: .spare-UID beside it, which belongs to root meanwhile. Else
 * begins to remove it with all that is in it, in a child process: its end is the end of that. 0: there is
 * nothing to remove, or no process can be made; what is left, the service removes. */
pid_t tmp_dir_remove(const char *path, uid_t uid);
