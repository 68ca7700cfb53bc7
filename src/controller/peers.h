/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes as the controller reaches them: functions that are handed to controller_create. Whether a node is
 * the machine that the controller runs on or another one is known to the implementation alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct device_drained;
struct start_request;
struct stop_request;

/* A node, and where its service is reached. Borrowed for the call. */
struct peer {
	const char *name, *address;
	int port;
};

/* The result of a call. Everything in it is borrowed for the callback. */
struct peer_result {
	/* 0: done. -EBUSY: a slot is leased or drained. -ENOENT: the node lacks a file that the run names.
	 * -EHOSTUNREACH: no answer came, and whether the node has the call is unknown. -ECONNREFUSED: the
	 * same, but the node does not have it: there was no connection, or its service stops. -ECANCELED:
	 * this service stops; the controller may be gone already, and is not to be touched.
	 * -ENOTRECOVERABLE: the node could start no run at all. Other codes: the
	 * node refuses; those of start_may_succeed_later() where something there has failed. */
	int code;
	const char *message;  /* why, where code is negative */
	const char *instance; /* of a start or a stop: the node's service, */
	int64_t sequence;     /* and the number of its last heartbeat: only later ones tell the result */
	const struct device_drained *device; /* of set_device: how it is now */
	double backoff;                      /* seconds in which the node should get no further start */
};

typedef void (*peer_done_fn)(void *context, const struct peer_result *result);

struct peers {
	void *context; /* the first argument of each function */
	/* Starts or stops a node's part of an attempt. What a node was asked to stop it does not start
	 * afterwards. start takes what the request owns and leaves it empty.
	 * `done` is called once, from within the call or later. */
	void (*start)(void *context, const struct peer *peer, struct start_request *request,
	              peer_done_fn done, void *done_context);
	void (*stop)(void *context, const struct peer *peer, const struct stop_request *request,
	             peer_done_fn done, void *done_context);
	/* Drains a device of the node (reason: why, or NULL), or gives it back. Refused with -ENOENT: there
	 * is no such slot; with -EIO: the device is broken still. -EBADMSG: it is done, but the answer
	 * cannot be read. `done` as above. */
	void (*set_device)(void *context, const struct peer *peer, int64_t slot, bool drained,
	                   const char *reason, peer_done_fn done, void *done_context);
	/* A TCP port that is free on the node at this moment. 0: that is not known without a call; the caller
	 * takes one of the ports in the node's last heartbeat. */
	int (*free_port)(void *context, const struct peer *peer, struct error *err);
};
