/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One service for a directory: a lock on the file dtraind.lock in it, held as long as the process lives. It
 * is taken before anything else in the directory is read or changed.
 */
#pragma once

#include "base/error.h"

/* `key` names the directory in dtraind.conf, for the message. The directory is made where it is missing.
 * *fd holds the lock until it is closed. -EBUSY: another process holds it; err says which. */
int lock_take(const char *key, const char *directory, int *fd, struct error *err);
