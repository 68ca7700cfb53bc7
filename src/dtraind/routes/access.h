/* SPDX-License-Identifier: Apache-2.0 */
/* Which run a request is about, and whether its caller may touch it. */
#pragma once

#include "cluster/run.h"
#include "http/server.h"

struct controller;

/* May the caller touch what belongs to uid? Its owner, root, and the service's own user. */
bool caller_may(const struct http_caller *caller, int64_t uid);
/* The run that the first captured part of the path names. NULL: answered with an error already; also where
 * `own` and the caller may not touch it. *owned is the caller's to free. */
const struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned);
