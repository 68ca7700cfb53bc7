/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directories for temporary files of attempts, TMP_DIR/RUN.ATTEMPT. dtrain-launch makes and removes them;
 * what it could not remove, since it was killed or the machine was restarted, is removed here, in the
 * background.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/daemon.h"

struct tmp_dirs;

int tmp_dirs_open(sd_event *event, const struct daemon_config *config, struct tmp_dirs **out,
                  struct error *err);
void tmp_dirs_close(struct tmp_dirs *dirs); /* NULL: nothing */
DEFINE_CLEANUP(struct tmp_dirs *, tmp_dirs_close)

/* That of an attempt, owned by the caller; NULL: out of memory. */
char *tmp_dirs_path(const struct daemon_config *config, int64_t run, int64_t attempt);
/* No process of the attempt is left. */
void tmp_dirs_remove(struct tmp_dirs *dirs, int64_t run, int64_t attempt);
/* Those of all attempts of which is_known() is false. */
void tmp_dirs_sweep(struct tmp_dirs *dirs, bool (*is_known)(void *context, int64_t run, int64_t attempt),
                    void *context);
