/* SPDX-License-Identifier: Apache-2.0 */
/* unix(7): addresses, and descriptors that are sent and received with SCM_RIGHTS. */
#include "base/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int socket_address(const char *path, struct sockaddr_un *out, struct error *err)
{
	if (strlen(path) >= sizeof(out->sun_path))
		return error_set(err, -ENAMETOOLONG,
		                 "socket %s: a path of at most %zu characters is possible", path,
		                 sizeof(out->sun_path) - 1);
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	strcpy(out->sun_path, path);
	return 0;
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(SOCKET_FDS_MAX * sizeof(int))];
};

int socket_send_fds(int socket, char byte, const int *fds, size_t count)
{
	union control control = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr message = {.msg_iov = &iov,
	                         .msg_iovlen = 1,
	                         .msg_control = &control,
	                         .msg_controllen = CMSG_SPACE(count * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -errno;
}

static void close_all(const int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(fds[i]);
}

ssize_t socket_receive(int socket, void *buf, size_t size, int *fds, size_t *count)
{
	union control control = {0};
	struct iovec iov = {buf, size};
	struct msghdr message = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	size_t room = *count, n = 0;
	int got[SOCKET_FDS_MAX];
	ssize_t r = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);

	*count = 0;
	if (r < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(got, CMSG_DATA(c), n * sizeof(int));
		}
	if (n > room || (message.msg_flags & MSG_CTRUNC)) {
		close_all(got, n);
		return -EPROTO;
	}
	memcpy(fds, got, n * sizeof(int));
	*count = n;
	return r;
}
