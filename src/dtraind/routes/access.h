/* SPDX-License-Identifier: Apache-2.0 */
/* Which run a request is about, and whether its caller may touch it. */
#pragma once

#include "cluster/run.h"
#include "http/server.h"

struct controller;
struct daemon;

/* May the caller touch what belongs to uid? Its owner, and administrators: root, the service's own
 * user, and the members of admin_group. */
bool caller_may(const struct http_caller *caller, int64_t uid);
/* The same of a run, whose owner has its uid and, where both names are known, its name. */
bool caller_may_run(const struct http_caller *caller, const struct run *run);
/* Where hosts are marked "submit": is this forwarded for a user by another host? Then it is refused, and
 * answered with an error. by_rank: the ranks of the run that the first captured part of the path names ask
 * for it, which their hosts may forward. */
bool refuse_forwarded(struct daemon *d, struct http_request *r, bool by_rank);
/* What was sent cannot be taken: 400 with this code, or, where only memory was missing, 500. */
void reply_not_taken(struct http_request *r, const char *code, const struct error *err);
/* The run that the first captured part of the path names. NULL: answered with an error already; also where
 * `own` and the caller may not touch it. *owned is the caller's to free. */
const struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned);
