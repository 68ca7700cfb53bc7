/* SPDX-License-Identifier: Apache-2.0 */
/* Small values between the ranks of a run, from host memory to host memory. comm may be NULL for one rank.
 * `staging` is device memory of as many bytes as travel; NULL: allocated for the call. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"

struct ranks {
	struct device *dev;
	struct comm *comm;
	const char *node; /* names this machine in errors */
};

int ranks_rank(const struct ranks *r);
int ranks_size(const struct ranks *r);
/* all [ranks · each], each a multiple of 4: this rank's own part is input; afterwards all parts are there. */
int ranks_gather(const struct ranks *r, void *staging, void *all, size_t each, struct error *err);
int ranks_broadcast(const struct ranks *r, void *staging, void *host, size_t bytes, int root,
                    struct error *err);
/* A text of any length, which ends with a zero; *text is the root's as input, and owned by the caller on the
 * others. NULL stays NULL. */
int ranks_broadcast_text(const struct ranks *r, char **text, int root, struct error *err);
/* Every rank gives what a step of its own has come to: 0, or a negative errno with err filled. All return the
 * same: 0, or the failure of the first rank that failed, in its words (with rank and node, unless it is rank
 * 0). A failure of the communicator itself is *broken. */
int ranks_agree(const struct ranks *r, int own, bool *broken, struct error *err);
