/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a node to the controller: heartbeats, and what its attempts do, at once. Where the controller is in
 * this very process, the same things are said to it by call.
 */
#pragma once

#include "dtraind/daemon.h"
#include "node/node.h"

int heartbeats_create(struct daemon *d, struct heartbeats **out, struct error *err);
void heartbeats_destroy(struct heartbeats *l);
/* What this node calls when an attempt or a device of it has changed. The heartbeats may be created after it.
 */
struct node_callbacks heartbeats_of_node(struct daemon *d);
/* An attempt here has changed. */
void heartbeats_report(struct heartbeats *l, const struct report *report);
int64_t heartbeats_sequence(const struct heartbeats *l); /* of the last heartbeat */
void heartbeats_send(struct heartbeats *l);              /* one now */
/* Nothing is under way to the controller, or waits for it. */
bool heartbeats_are_idle(const struct heartbeats *l);
/* The controller has changed: what is under way to the one before is dropped, and a heartbeat is sent now. */
void heartbeats_follow(struct heartbeats *l);
/* Our own devices, into the controller's view, where that is here. */
void heartbeats_refresh_local(struct daemon *d);
