/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of dtrain-launch with the service: lines in both directions, none of which waits for the
 * other side. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct launch_client {
	int epoll_fd; /* that of the launcher's loop, */
	uint64_t tag; /* where its events have this tag */
	int fd;       /* -1: no connection */
	struct strbuf in, out;
	size_t sent; /* of out */
};

/* Takes over fd, a connected socket; what is connected now is closed. */
void launch_client_begin(struct launch_client *c, int fd);
/* Calls take for each line that has arrived, without its end. Where the other side has closed, or sends 64
 * KiB without the end of a line, the connection is closed after that. */
void launch_client_receive(struct launch_client *c, void (*take)(void *context, const char *line, size_t len),
                           void *context);
/* Sends what the socket takes. True: there is a connection, and it has all; only then launch_client_put. */
bool launch_client_flush(struct launch_client *c);
void launch_client_put(struct launch_client *c, const char *text);
void launch_client_end(struct launch_client *c);
