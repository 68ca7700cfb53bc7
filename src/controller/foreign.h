/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts on nodes that no controller with this store has started. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct controller;

/* An administrator ends foreign work on a node: that of one run, or (0) all. Returns how many attempts were
 * told to stop. */
size_t controller_cancel_foreign(struct controller *c, const char *node, int64_t run);
