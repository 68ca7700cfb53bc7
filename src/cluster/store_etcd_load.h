/* SPDX-License-Identifier: Apache-2.0 */
/* Reading all that a shared store has, for the controller that takes it up. Blocks. */
#pragma once

#include "cluster/etcd.h"
#include "cluster/store_backend.h"

struct store_etcd_size {
	size_t bytes;
	bool pieces;
};

struct store_etcd_contents {
	/* runs in their order, each with its configuration; drains, one of a host; the last number */
	struct store_batch batch;
	/* The names of all keys of drains: a host may have more than one, in upper and lower case. */
	char **drains;
	size_t drain_count;
	struct store_etcd_size *sizes; /* of the entries of these runs */
	char **stale;                  /* keys of pieces that no entry names; NULL-terminated, NULL: none */
	size_t stale_count;
	int64_t *epochs;
	size_t epoch_count;
};

/* version: of all runs, above what the controllers before have given. To be cleared after a failure, too. */
int store_etcd_load(struct etcd *etcd, int64_t version, struct store_etcd_contents *out, struct error *err);
/* Puts a copy of the name into such a list, where it is not there in this spelling. -ENOMEM. */
int store_etcd_add_name(char ***list, size_t *count, const char *name);
void store_etcd_free_names(char **list, size_t count);
void store_etcd_contents_clear(struct store_etcd_contents *c);
/* The value of one key, owned by the caller; NULL: it is not there. */
int store_etcd_read_value(struct etcd *etcd, const char *key, char **out, struct error *err);
