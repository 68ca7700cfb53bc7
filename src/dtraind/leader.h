/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is the controller where the candidates elect one (store = "etcd:…"). A candidate knows it from the
 * election, and becomes it in its turn; any other node tries the candidates one after the other: who is not
 * the controller names it (status 421). A controller that loses the election ends its service, which systemd
 * starts again: nothing of what it believed is left.
 */
#pragma once

#include "controller/peers.h"
#include "dtraind/daemon.h"

struct store;

struct leader_callbacks {
	/* This node becomes the controller; store as in controller_options. */
	int (*lead)(struct daemon *d, struct store *store, struct error *err);
	/* Another node than before is the controller, or this one. */
	void (*changed)(struct daemon *d);
	/* The candidate that is asked already has answered as the controller, which was not known until then.
	 */
	void (*found)(struct daemon *d);
};

/* *out is NULL where the settings name the controller. */
int leader_create(struct daemon *d, const struct leader_callbacks *callbacks, struct leader **out,
                  struct error *err);
void leader_destroy(struct leader *l); /* after the controller; NULL: nothing */

/* Whom to ask: the controller, or the candidate that may know it. Borrowed until the next event. */
struct peer leader_peer(const struct daemon *d);
/* The controller's name, borrowed; NULL: it is not known. */
const char *leader_known(const struct daemon *d);
/* May this node act as the controller now? Always, where nothing is elected. */
bool leader_holds(const struct daemon *d);
/* May it take silent nodes for lost? A controller that is cut off has received nothing from the other nodes,
 * nor from etcd, for some time; as long as its lease holds it would take all nodes for lost, and stop their
 * runs. */
bool leader_is_sure(const struct daemon *d);
/* This node was the controller: nothing is dispatched any more. */
bool leader_is_lost(const struct daemon *d);
int leader_error(const struct daemon *d, struct error *err);        /* why; returns it */
bool leader_is_candidate(const struct daemon *d, const char *name); /* may it call as the controller? */

/* `name` is the controller, another one says. */
void leader_learn(struct daemon *d, const char *name);
/* A call of this node to `name` was answered; leads: as the controller does. Or it was not, and had been sent
 * at `sent` (monotonic). */
void leader_answered(struct daemon *d, const char *name, bool leads);
void leader_unanswered(struct daemon *d, const char *name, double sent);
/* Since when (monotonic) the candidate has answered no call of this node, which has called all candidates in
 * turn in this time, since none of them was the controller. 0: it has, or was not called. */
double leader_silent_since(const struct daemon *d, const char *name);
/* `name` was asked, and cannot be reached or is not the controller: the next one is tried. */
void leader_away(struct daemon *d, const char *name);
