/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lifeline: one TCP connection between every two ranks, apart from UCX, which over shared memory does not
 * notice that a peer has died. The kernel closes the sockets of a dead process at once, so an end of file
 * without a departure means that the peer has died, whatever transport carries the data. The few messages of
 * a lifeline say which rank left in order, which failed first and why, and, when a collective makes no
 * progress, which ranks still answer and where they are.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/comm/comm.h"

enum message_type {
	MESSAGE_PING = 1,       /* asks where the other is */
	MESSAGE_PONG,           /* ticket, kind: the collective begun last; code: 1 while it runs */
	MESSAGE_DEPARTURE,      /* ticket: this rank has completed all up to it and will begin no other */
	MESSAGE_DEPARTURE_READ, /* ticket: this rank has completed all up to the departure of the other */
	MESSAGE_FAIL,           /* code, rank: this rank fails, and why */
};

struct message {
	uint32_t type, kind;
	int32_t code, rank;
	uint64_t ticket;
};

struct peer {
	int fd;         /* -1: this rank itself, or closed */
	int stream_fd;  /* -1, or a second connection, for data (stream.c) */
	char host[65];  /* for error messages */
	bool same_host; /* one kernel, one network and IPC namespace */
	void *address;  /* UCX's, until the endpoints exist */
	size_t address_len;
	/* It has departed; this rank has answered that; it has answered this rank's departure. */
	bool departed, sent_read, has_read;
	uint64_t departed_after;
	bool answered, running; /* its last pong */
	uint64_t at_ticket;
	uint32_t at_kind;
	struct message partial;
	size_t partial_len;
};

/* Publishes this rank's addresses, waits for all others' and connects to each; peers is [world_size], zeroed
 * by the caller with every fd and stream_fd -1. Connections that do not show this attempt's token are closed
 * and ignored. Ends within a second once comm_check(comm) returns an error, and with this error. On failure
 * the caller still owns what is in peers (peer_close). */
int bootstrap_connect(struct comm *comm, const struct comm_options *options, const void *address,
                      size_t address_len, struct peer *peers, struct error *err);

/* Never blocks; a message that does not fit is lost, and the peer then counts as not answering. */
void peer_send(struct peer *peer, const struct message *message);
/* 1: *message was read; 0: nothing there; -ECONNRESET: the peer's end is gone. */
int peer_read(struct peer *peer, struct message *message);
void lifeline_close(struct peer *peer);
void stream_close(struct peer *peer);
void peer_close(struct peer *peer); /* both, and frees the address */
