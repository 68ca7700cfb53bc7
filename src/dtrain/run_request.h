/* SPDX-License-Identifier: Apache-2.0 */
/* Runs as they are posted: read from a file or made from a command line, seen from the current directory. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "dtrain/client.h"
#include "dtrain/environment.h"

/* The JSON of a run file with overrides ("key=value", NULL-terminated, or NULL). Its "directory" is absolute.
 * environment: what goes with it from here; NULL: nothing. */
int run_request_file(const char *path, const char *const *overrides,
                     const struct environment_options *environment, json_t **out, struct error *err);
/* The same for a command, argv NULL-terminated. */
int run_request_command(char **argv, const char *const *overrides,
                        const struct environment_options *environment, json_t **out, struct error *err);
/* A task without a file. items: what the key `list` of the group that is named as the task has,
 * NULL-terminated; or NULL. */
int run_request_task(const char *task, const char *list, const char *const *items,
                     const char *const *overrides, json_t **out, struct error *err);
