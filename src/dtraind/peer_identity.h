/* SPDX-License-Identifier: Apache-2.0 */
/* What this service shows to others, and whom it takes for one of them. */
#pragma once

#include "dtraind/daemon.h"

/* Before peers are served: takes the identity out of the settings, or reads the cluster's key. */
int peer_identity_setup(struct daemon *d, struct error *err);
/* After a reload: another certificate, other authorities, or other hosts. Takes the identity, NULL: nothing
 * is to do. Connections and runs go on. */
int peer_identity_renew(struct daemon *d, struct identity *taken, struct error *err);
/* For http_server_options.find_node; the context is the struct daemon. */
const char *peer_identity_find(void *context, const char *name);
