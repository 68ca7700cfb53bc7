/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an attempt in its directory below runtime_dir, and its logs below log_dir. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "node/launch/run_user.h"
#include "node/request.h"
#include "wire/launch.h"

/* Replaces the file at once. It is not synced: runtime_dir is gone after a reboot, and so is all that runs.
 */
int attempt_file_write(const char *dir, const char *name, const json_t *json, uid_t owner, mode_t mode,
                       struct error *err);
/* The directory anew with launch.json, request.json and config.json, and empty logs that belong to the user.
 * cgroup: NULL where there is none; grace in seconds. */
int attempt_files_make(const char *dir, const struct request *q, const struct request_place *place,
                       const struct run_user *user, const char *cgroup, double grace, struct error *err);
/* launch.json, which an older dtraind may have written; to be released by the caller where it succeeds. */
int attempt_files_read_launch(const char *dir, struct launch_description *out, struct error *err);
