/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a node to the controller: heartbeats, and what its attempts do, at once. Where the controller is in
 * this very process, the same things are said to it by call.
 */
#pragma once

#include "dtraind/daemon.h"

int link_create(struct daemon *d, struct link **out, struct error *err);
void link_destroy(struct link *l);
/* The node's callback: an attempt here has changed. */
void link_report(struct link *l, const struct report *report);
int64_t link_sequence(const struct link *l); /* of the last heartbeat */
void link_heartbeat(struct link *l);         /* one now */
bool link_is_idle(const struct link *l);     /* nothing is under way to the controller, or waits for it */
/* Our own devices, into the controller's view, where that is here. */
void link_refresh_local(struct daemon *d);
