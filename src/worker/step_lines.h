/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON lines in the output directory, each line with its step: what a run that resumes would write
 * once more is removed first. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* Opens the file to append to it; returns the descriptor, which the caller closes. Lines of steps after
 * resumed_step are removed, so that the file is that of a run that was not interrupted. resumed_step 0 is a
 * run from the start: a file that contains the text `kept` is renamed to PATH.1, or to the next number that
 * is free, another one is overwritten. */
int step_lines_open(const char *path, int64_t resumed_step, const char *kept, struct error *err);
/* text: one line, without its newline; NULL: -ENOMEM. */
int step_lines_write(int fd, const char *path, const char *text, struct error *err);
