/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller: the one owner of the cluster's state. Events (submissions, reports, heartbeats, commands)
 * change runs in memory; one flush per turn of the event loop then makes a scheduling pass, commits to the
 * store, and only after that answers, starts attempts and notifies who waits.
 *
 * What it can do is in submit.h, runs.h, waiters.h, nodes.h, reconcile.h and foreign.h. It calls nodes
 * through peers.h and has its time from clock.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/hosts.h"
#include "controller/clock.h"
#include "controller/peers.h"

struct controller;
struct rendezvous;
struct store;
struct store_backup;

/* Of one user; 0: none. Root has none. */
struct user_limits {
	int64_t runs;  /* that have not ended */
	int64_t slots; /* of the attempts of all its runs */
};

struct controller_options {
	const char *name;      /* of the node that it is on, which is never taken for down; borrowed */
	const char *state_dir; /* of the store and of the runs' directories; borrowed */
	const struct hosts *hosts;
	int default_port;    /* of hosts that name none */
	double node_timeout; /* seconds without a heartbeat after which a node is down */
	double lease;        /* seconds for which a node may keep its attempts without an answer of ours */
	int most_heartbeats; /* that all nodes are asked for in a second; 0: any number */
	struct user_limits user_limits;
	struct controller_clock clock;
	struct peers peers;
	struct store *store;            /* taken in any case; NULL: the one in state_dir is opened */
	bool begun;                     /* an epoch of its own is committed in that already */
	void (*flushed)(void *context); /* after each flush; NULL: not needed */
	void *context;
};

/* Takes up the runs in the store. Options are copied, but for what is borrowed. */
int controller_create(const struct controller_options *options, struct controller **out, struct error *err);
/* Commits what has changed. No callback is called for who still waits. */
void controller_destroy(struct controller *c);
DEFINE_CLEANUP(struct controller *, controller_destroy)

/* Runs that the user has already stay, and so do their attempts. */
void controller_set_user_limits(struct controller *c, struct user_limits limits);

/* What controller_clock.set_timer asked for. */
void controller_run_timer(struct controller *c, enum controller_timer timer);

struct controller_status {
	size_t nodes, nodes_up;
	size_t queued, under_way; /* runs */
};

void controller_get_status(const struct controller *c, struct controller_status *out);

/* Where the ranks of attempts under way meet: the controller's. */
struct rendezvous *controller_rendezvous(struct controller *c);

/* A copy of the store, as store_backup_begin makes it. */
int controller_backup_begin(struct controller *c, const char *path,
                            void (*done)(void *context, int code, const struct error *err), void *context,
                            struct store_backup **out, struct error *err);

/* The store commits in a thread of its own. While this is readable, controller_dispatch_store is to be
 * called. */
int controller_store_fd(const struct controller *c);
void controller_dispatch_store(struct controller *c);
