/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster's own certificate authority, for clusters in which each node has a certificate of its own: a
 * directory with ca.pem and ca.key, and below nodes/ NAME.pem and NAME.key for each node. Keys have mode
 * 0600.
 */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "base/error.h"

/* From when until when a certificate is valid. */
struct validity {
	time_t from, until;
};

/* Makes the directory, where it does not exist, and in it the key and the certificate of an authority.
 * -EEXIST: it has one already, unless `force`. */
int authority_make(const char *directory, struct validity validity, bool force, struct error *err);
/* Makes the key and the certificate of a node, signed by the authority in the directory. -EEXIST likewise.
 * -EINVAL: no possible name of a node. */
int authority_make_node(const char *directory, const char *name, struct validity validity, bool force,
                        struct error *err);
