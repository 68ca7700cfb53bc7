/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets: their addresses, and descriptors that go from one process to another over them. */
#pragma once

#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/error.h"

/* -ENAMETOOLONG: the path does not fit in. */
int socket_address(const char *path, struct sockaddr_un *out, struct error *err);

enum { SOCKET_FDS_MAX = 2 };

/* One byte, and with it copies of the descriptors, SOCKET_FDS_MAX at most. 0, or -errno; it does not wait. */
int socket_send_fds(int socket, char byte, const int *fds, size_t count);
/* As recv(2), -errno where that fails. Descriptors that came with the bytes are the caller's, closed at exec:
 * their number is in *count, which says before how many there may be. Where more came, or they cannot be
 * told, -EPROTO. */
ssize_t socket_receive(int socket, void *buf, size_t size, int *fds, size_t *count);
