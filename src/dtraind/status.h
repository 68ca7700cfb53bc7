/* SPDX-License-Identifier: Apache-2.0 */
/* What this node does at the moment, in one line for `systemctl status`. */
#pragma once

#include "dtraind/daemon.h"

void status_notify(struct daemon *d);
