/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the candidates is the controller, by etcd: a key that is made where it is not there, with a lease
 * that its maker renews. The revision of etcd that made it is the controller's epoch, and the condition of
 * everything that it writes: who has lost the key can write nothing any more.
 *
 *             the key is not there               a renewal fails for as long as the lease,
 *   FOLLOWING --------------------> LEADING ----------------------------------------------> LOST
 *                                            or the key is another's
 *
 * A thread of its own does this. LOST is the end: the owner closes this, and all that it has led.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cluster/etcd.h"

#define ETCD_PREFIX "/dtrain/"

enum election_state { ELECTION_FOLLOWING, ELECTION_LEADING, ELECTION_LOST };

struct election_view {
	enum election_state state;
	char leader[256];   /* while FOLLOWING: name of the controller; "": there is none */
	struct error error; /* of LOST: why; while FOLLOWING: why etcd cannot be asked, code 0: it can */
};

/* How often a candidate asks for the key: so long the key may be gone before the next controller takes it.
 */
enum { ELECTION_ASK_MSEC = 250 };

struct election;

/* name: of this candidate, unique among them. seconds: of the lease. The first answer of etcd is not
 * awaited. */
int election_open(const struct etcd_place *place, const char *name, int64_t seconds, struct election **out,
                  struct error *err);
/* Gives the key back where it is ours: after all that wrote as the controller. */
void election_close(struct election *e);
DEFINE_CLEANUP(struct election *, election_close)

int election_fd(const struct election *e); /* readable: something has changed since election_read */
void election_read(struct election *e, struct election_view *out);
void election_peek(struct election *e,
                   struct election_view *out); /* the same, the descriptor stays readable */

/* The member of etcd that has answered its calls, as etcd_place.first; once LEADING; borrowed. */
const char *election_member(const struct election *e);

/* From any thread. */
bool election_holds(struct election *e);             /* LEADING, and the lease has not run out by our clock */
bool election_is_sure(struct election *e);           /* and etcd has renewed it within its last half */
int64_t election_revision(const struct election *e); /* that made our key; once LEADING */
const char *election_key(const struct election *e);
void election_lose(struct election *e, const char *why); /* LEADING -> LOST */
