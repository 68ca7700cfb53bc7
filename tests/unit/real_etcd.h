/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd of one member in a directory of its own, for tests of what only etcd itself can tell. */
#pragma once

#include <sys/types.h>

#include "cluster/election.h"
#include "cluster/store.h"
#include "unit.h"

enum { REAL_ETCD_SECONDS = 60 }; /* for which something is awaited */

struct real_etcd {
	char *dir, *urls[2];
	int peer_port;
	pid_t pid;
	struct etcd_place place;
	struct etcd *etcd; /* a connection for the test */
};

/* Where it is not, such tests have to be left out. */
bool real_etcd_is_there(void);
void real_etcd_open(struct real_etcd *b);
/* The same, of which a request may have so many bytes; 0: as many as by default. */
void real_etcd_open_with(struct real_etcd *b, size_t request_bytes);
/* It is killed, and begins again with what it had. */
void real_etcd_restart_with(struct real_etcd *b, size_t request_bytes);
void real_etcd_close(struct real_etcd *b);
void real_etcd_await(struct election *e, enum election_state state);
/* A candidate that leads when this returns, with a lease of so many seconds. */
struct election *real_etcd_lead(struct real_etcd *b, const char *name, int lease);
/* In a directory of the candidate's own, with an epoch, as controller_create begins one. */
struct store *real_etcd_open_store(struct real_etcd *b, struct election *e, const char *name);
