/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes report, compared with what they should have. */
#pragma once

#include "base/error.h"
#include "wire/heartbeat.h"

struct controller;

/* The state of one attempt on one node. */
void controller_report(struct controller *c, const struct report *report);
/* Takes the devices out of the heartbeat. The answer is to be released by the caller: the ends that are on
 * disk, our clock, and what the node is to remember of the store. -ENOENT: the node is not in the hosts file.
 * -EALREADY: the heartbeat is not newer than the last one, and changes nothing; there is no answer that would
 * change nothing on the node. */
int controller_heartbeat(struct controller *c, struct heartbeat *heartbeat, struct heartbeat_answer *answer,
                         struct error *err);
/* After that: keeps the rest of the heartbeat, taking it, so that the next ones may be short, and says so in
 * the answer. */
void controller_keep_heartbeat(struct controller *c, struct heartbeat *heartbeat,
                               struct heartbeat_answer *answer);
/* Does what the whole heartbeat would do that it stands for. The same, and -ESTALE: that one is not kept
 * here; nothing has changed, and the node has to send a whole one. */
int controller_short_heartbeat(struct controller *c, const struct short_heartbeat *heartbeat,
                               struct heartbeat_answer *answer, struct error *err);
