/* SPDX-License-Identifier: Apache-2.0 */
/* How the controller reaches nodes: this one by calls, the others over HTTP. */
#pragma once

#include "controller/peers.h"
#include "dtraind/daemon.h"

struct peers peers_of_daemon(struct daemon *d);
