/* SPDX-License-Identifier: Apache-2.0 */
/* How the controller reaches nodes: this one by calls, the others over HTTP. */
#pragma once

#include "controller/peers.h"
#include "dtraind/daemon.h"

struct peers peers_of_daemon(struct daemon *d);
/* Drains a device of this node, or gives it back, and calls `done` when that is on disk. Errors as
 * node_drain's. */
void peers_set_own_device(struct daemon *d, int64_t slot, bool drained, const char *reason, peer_done_fn done,
                          void *context);
