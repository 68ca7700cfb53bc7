/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's timers on the service's event loop. */
#pragma once

#include "controller/clock.h"
#include "dtraind/daemon.h"

int timers_create(struct daemon *d, struct timers **out, struct error *err);
/* Once there is a controller: its store tells of what it has committed. */
int timers_watch_store(struct timers *t, struct error *err);
void timers_destroy(struct timers *t); /* after the controller */
struct controller_clock timers_clock(struct timers *t);
