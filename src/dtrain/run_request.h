/* SPDX-License-Identifier: Apache-2.0 */
/* Runs as they are posted: read from a file or made from a command line, seen from the current directory. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "dtrain/client.h"

/* The JSON of a run file with overrides ("key=value", NULL-terminated, or NULL). Its "directory" is absolute.
 */
int run_request_file(const char *path, const char *const *overrides, json_t **out, struct error *err);
/* The same for a command, argv NULL-terminated. */
int run_request_command(char **argv, const char *const *overrides, json_t **out, struct error *err);
/* A task without a file. */
int run_request_task(const char *task, const char *const *overrides, json_t **out, struct error *err);

/* Prints the log of a rank ("0", "all") to stdout until the run has ended. The exit status of a failure to do
 * so. */
int run_request_follow(struct client *client, int64_t id, const char *rank);
/* For client_stream: straight to stdout. */
int run_request_print(void *context, const char *data, size_t len, struct error *err);
