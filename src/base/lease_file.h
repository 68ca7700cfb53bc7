/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file with the end of a node's lease (node/lease.h), which the service writes, and which dtrain-launch
 * and the workers read. Its times are those of CLOCK_BOOTTIME, so it is of one boot of the machine, whose id
 * it names.
 */
#pragma once

#include "base/error.h"

struct lease_end {
	double until;  /* by CLOCK_BOOTTIME */
	double ending; /* seconds before that, at which what must not outlive the lease begins to be ended */
};

/* In place: a reader finds the old content or the new one. */
int lease_file_write(const char *path, const struct lease_end *end, struct error *err);
/* -ENOENT: there is none; -ESTALE: it is of another boot; -EINVAL: it is none. */
int lease_file_read(const char *path, struct lease_end *end);
