/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and reads the short messages between two ranks. */
#include "engine/comm/ucx/lifeline.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

void peer_send(struct peer *peer, const struct message *message)
{
	if (peer->fd >= 0)
		(void)!send(peer->fd, message, sizeof(*message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

int peer_read(struct peer *peer, struct message *message)
{
	for (;;) {
		size_t have = peer->partial_len;
		ssize_t n;

		if (peer->fd < 0)
			return 0;
		n = recv(peer->fd, (char *)&peer->partial + have, sizeof(peer->partial) - have, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n <= 0)
			return -ECONNRESET;
		peer->partial_len += n;
		if (peer->partial_len == sizeof(peer->partial)) {
			*message = peer->partial;
			peer->partial_len = 0;
			return 1;
		}
	}
}

void lifeline_close(struct peer *peer)
{
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
}

void stream_close(struct peer *peer)
{
	if (peer->stream_fd >= 0)
		close(peer->stream_fd);
	peer->stream_fd = -1;
}

void peer_close(struct peer *peer)
{
	if (!peer)
		return;
	lifeline_close(peer);
	stream_close(peer);
	free(peer->address);
	peer->address = NULL;
}
