/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was started here, in state_dir: a record for each attempt, on disk before the first of its ranks is
 * executed, until the controller has the end of the attempt. runtime_dir does not outlive a boot: an attempt
 * of which only the record is left was started, and is lost; it must not be taken for one that never began.
 * Its content, a struct start_record, says where its processes are to be sought that live
 * on where the directory was cleared without a boot. It is not synced: after a power failure none do.
 */
#pragma once

#include "base/error.h"
#include "node/launch/unit.h"
#include "node/request.h"
#include "wire/launch.h"

/* The record's path, state_dir/started/RUN.ATTEMPT.EPOCH.CLUSTER; owned by the caller, NULL: out of memory.
 * dtrain-launch makes it. */
char *started_path(const char *state_dir, const struct request *request);
/* Its content, owned by the caller. NULL: out of memory. */
struct start_record *started_describe(const struct request *request, struct unit_names unit);
/* The attempt is forgotten: its file is kept for a later record (node/launch/start_record.h). */
void started_forget(const char *state_dir, const struct request *request);
int started_make_directory(const char *state_dir, struct error *err);
/* A request for each record, with what name and content say and without ranks and config, which is the
 * callback's to free. Where the content is lost, its uid is (uid_t)-1 and it has no slots. A
 * negative return of it ends the reading and is returned. */
int started_each(const char *state_dir,
                 int (*each)(void *context, struct request *request, struct error *err), void *context,
                 struct error *err);
