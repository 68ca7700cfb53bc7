/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of the shared store, in as many transactions as etcd needs for them. Each is done under the
 * condition that the election's key is ours, and repeated until etcd has done or refused it, or the election
 * is lost; to repeat one changes nothing. For the store's thread, and blocks.
 */
#pragma once

#include "cluster/election.h"
#include "cluster/etcd.h"
#include "cluster/store_backend.h"

enum {
	STORE_ETCD_OPERATIONS_MAX = 100,    /* of a transaction; etcd's default is 128 */
	STORE_ETCD_BYTES_MAX = 1000 * 1000, /* of one with several operations; etcd's default is 1.5 MiB */
	STORE_ETCD_NO_RUN = -1,
};

struct store_etcd_txn {
	struct etcd *etcd;
	struct election *election;
	struct store_batch *batch; /* NULL: none of its changes is one of a run */
	long run;                  /* whose changes follow: its place in the batch, or STORE_ETCD_NO_RUN */
	/* What is not sent yet. */
	json_t *json;
	size_t operations, bytes;
	char *keys[STORE_ETCD_OPERATIONS_MAX]; /* etcd takes each key once */
	long runs[STORE_ETCD_OPERATIONS_MAX];
};

/* These send what there is so far where it has no room for another one. -ESTALE: we are no controller any
 * more. Where etcd takes a change of a run not even alone, since it is too large, the run is marked as
 * refused in the batch, and none of its further changes is sent. */
int store_etcd_put(struct store_etcd_txn *t, const char *key, const char *value, struct error *err);
int store_etcd_remove(struct store_etcd_txn *t, const char *key, struct error *err);
/* All keys from `from` on that are before `end`. */
int store_etcd_remove_range(struct store_etcd_txn *t, const char *from, const char *end, struct error *err);
/* What there is, if anything. */
int store_etcd_send(struct store_etcd_txn *t, struct error *err);
void store_etcd_txn_clear(struct store_etcd_txn *t); /* what is not sent is forgotten */
