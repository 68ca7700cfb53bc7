/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics on a listener of its own, for a collector that is no service of the cluster (metrics_listen). */
#pragma once

#include "base/error.h"

struct daemon;
struct identity;
struct metrics_listener;

/* *out is NULL where the configuration asks for none. Takes the identity from the settings. */
int metrics_listener_create(struct daemon *d, struct metrics_listener **out, struct error *err);
/* After a reload: another certificate, or other authorities. Takes new in any case; NULL: nothing is done, as
 * where there is no listener. */
int metrics_listener_renew(struct metrics_listener *m, struct identity *new, struct error *err);
void metrics_listener_destroy(struct metrics_listener *m);
