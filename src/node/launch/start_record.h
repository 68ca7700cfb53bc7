/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that says that an attempt was started (node/started.h), and the spare files beside it. A file
 * that is made and deleted for each attempt costs much where attempts are short: ext4 passes over what was
 * deleted within the last seconds one by one when it looks for a free inode. So the file of an attempt that
 * is forgotten waits, empty and under another name, for a later one.
 */
#pragma once

#include "base/error.h"
#include "wire/launch.h"

/* The spare files that are not there yet, in the directory of the records. */
int start_record_make_spares(const char *directory, struct error *err);
/* Makes the record with this content, NULL: empty. Its name is on disk when this returns. */
int start_record_make(const char *path, const struct start_record *content, struct error *err);
/* Makes a spare file of it. */
void start_record_forget(const char *path);
