/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that is written beside its place, and appears there when it is complete. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"

struct output;

/* Makes ".NAME.partial" in the directory of `path`, empty, and locks it: -EBUSY where another process has it.
 * -EEXIST where `path` exists and is not an empty directory, unless `replace` says that it may be replaced,
 * which only a directory with a config.json or an adapter_config.json may. Refuses to replace a directory
 * that is, or contains, one of `inputs` (NULL among them: none). */
int output_create(const char *path, bool replace, const char *const *inputs, size_t n, struct output **out,
                  struct error *err);
const char *output_directory(const struct output *o);
/* Syncs the directory and gives it its name; a directory that was there is removed after that. */
int output_publish(struct output *o, struct error *err);
/* Removes what was not published. */
void output_free(struct output *o);
DEFINE_CLEANUP(struct output *, output_free)
