/* SPDX-License-Identifier: Apache-2.0 */
/* Reading all that a shared store has, for the controller that takes it up. Blocks. */
#pragma once

#include "cluster/etcd.h"
#include "cluster/store_backend.h"

struct store_etcd_contents {
	/* runs in their order, each with its configuration; drains; the last number */
	struct store_batch batch;
	int64_t *epochs;
	size_t epoch_count;
};

/* version: of all runs, above what the controllers before have given. To be cleared after a failure, too. */
int store_etcd_load(struct etcd *etcd, int64_t version, struct store_etcd_contents *out, struct error *err);
void store_etcd_contents_clear(struct store_etcd_contents *c);
/* The value of one key, owned by the caller; NULL: it is not there. */
int store_etcd_read_value(struct etcd *etcd, const char *key, char **out, struct error *err);
