/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an attempt in its directory below runtime_dir, and its logs below log_dir. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "node/launch/run_user.h"
#include "node/launch/unit.h"
#include "node/request.h"
#include "wire/launch.h"

/* Replaces the file at once. It is not synced: runtime_dir is gone after a reboot, and so is all that
 * runs. */
int attempt_file_write(const char *dir, const char *name, const json_t *json, uid_t owner, mode_t mode,
                       struct error *err);
/* The directory anew with launch.json, request.json and config.json, and empty logs that belong to the user.
 * times: of a stop by TERM to dtrain-launch. *launch, empty before, is what launch.json has; to be released
 * by the caller, also where it fails. */
int attempt_files_make(const char *dir, const struct request *q, const struct request_place *place,
                       const struct run_user *user, struct unit_names unit, struct stop_times times,
                       struct launch_description *launch, struct error *err);
/* launch.json, which an older dtraind may have written; to be released by the caller where it succeeds. */
int attempt_files_read_launch(const char *dir, struct launch_description *out, struct error *err);
/* Path of a rank's log, owned by the caller. attempt 0: the newest that has one. -ENOENT: there is none. */
int attempt_files_log(const char *log_dir, int64_t run, int64_t attempt, int rank, char **path,
                      struct error *err);
