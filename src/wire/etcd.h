/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is sent to etcd, version 3, and read from it, through its JSON gateway: keys and values are base64
 * there, and numbers of 64 bits are strings. Keys and values of ours are text without NUL bytes.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct etcd_pair {
	char *key, *value;
	int64_t create_revision; /* of the store when the key was made */
};

struct etcd_pairs {
	struct etcd_pair *list;
	size_t count;
	bool more; /* there are others behind them */
};

void etcd_pairs_clear(struct etcd_pairs *pairs);

/* Requests are new references; NULL: out of memory. */

/* end: the first key that is not meant any more, or NULL for `key` alone. limit 0: all. */
json_t *etcd_range_request(const char *key, const char *end, int64_t limit);
int etcd_range_read(const json_t *answer, struct etcd_pairs *out, struct error *err);

/* A transaction that is done where `key` was made by this revision (0: where it is not there), with the
 * changes that are added. */
json_t *etcd_txn_request(const char *key, int64_t create_revision);
int etcd_txn_put(json_t *txn, const char *key, const char *value, int64_t lease); /* lease 0: none */
int etcd_txn_delete(json_t *txn, const char *key, const char *end);               /* end: as above */
/* The ith change of another one, too. */
int etcd_txn_take(json_t *txn, const json_t *other, size_t i);
/* *done: the condition held. *revision: of the store, with these changes. */
int etcd_txn_read(const json_t *answer, bool *done, int64_t *revision, struct error *err);

json_t *etcd_lease_request(int64_t id, int64_t seconds); /* 0: left out */
/* Of a grant, or of a renewal, for which *seconds is 0 where the lease is not there any more. */
int etcd_lease_read(const json_t *answer, int64_t *id, int64_t *seconds, struct error *err);

/* The error of an answer, borrowed; NULL: it has none. */
const char *etcd_error(const json_t *answer);
