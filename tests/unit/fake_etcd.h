/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd within the test program, for what is above cluster/etcd.h: keys, leases and transactions as etcd has
 * them, in simulated time, and calls that fail as the test wants. For programs that are linked with
 * $(fake_etcd_ldflags). Time passes only in fake_etcd_pass, in calls that are slow, and while the code under
 * test sleeps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cluster/etcd.h"
#include "unit.h"

#define FAKE_RANGE     "/v3/kv/range"
#define FAKE_TXN       "/v3/kv/txn"
#define FAKE_GRANT     "/v3/lease/grant"
#define FAKE_REVOKE    "/v3/lease/revoke"
#define FAKE_KEEPALIVE "/v3/lease/keepalive"

/* At the beginning of a test: an empty etcd, and simulated time from now on. */
void fake_etcd_begin(void);
extern const struct etcd_place fake_etcd_place;

/* Time passes, at once; it ends the pauses of threads that are over then, and leases. */
void fake_etcd_pass(double seconds);
/* The same, and returns once the thread that paused does so again. */
void fake_etcd_step(double seconds);
/* Until a thread has begun its nth pause since fake_etcd_begin, and for how long that is. */
double fake_etcd_await_pause(int n);
int fake_etcd_pauses(void);
double fake_etcd_time(void);

/* What a call does instead of its work. */
struct fake_failure {
	const char *path;     /* of the calls that fail */
	int skip, count;      /* so many work before, and then so many fail */
	int code;             /* negative; 0: the call works, and is slow */
	bool applied;         /* the call is done, and its answer is lost */
	double seconds;       /* the call takes so long */
	const char *answer;   /* with code 0: instead of the answer of etcd, JSON */
	void (*before)(void); /* called first, once */
};

void fake_etcd_fail(const struct fake_failure *failure);
/* fn is called where each call begins, and ends, in the thread that makes it. */
void fake_etcd_on_call(void (*fn)(bool begin));
int fake_etcd_calls(const char *path); /* since it was asked last */

/* The keys, for the test. */
void fake_etcd_put(const char *key, const char *value);
void fake_etcd_remove(const char *key);
const char *fake_etcd_value(const char *key); /* NULL: there is none; valid until the key changes */
int fake_etcd_count(const char *prefix);
int64_t fake_etcd_made(const char *key);    /* the revision that made it */
int64_t fake_etcd_version(const char *key); /* how often it was written since */
int64_t fake_etcd_changed(const char *key); /* the revision that wrote it last */
bool fake_etcd_leased(const char *key);
int fake_etcd_leases(void);
/* The bytes of keys and values that a transaction may have, 1.5 MiB otherwise; a larger one fails with
 * -EMSGSIZE, and so does one of more than 128 operations. */
void fake_etcd_limit(size_t bytes);
/* The most operations, and bytes of keys and values, in one transaction so far. */
int fake_etcd_operations_max(void);
size_t fake_etcd_bytes_max(void);
