/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets, with words where one cannot be had. */
#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/socket.h"
#include "http/server.h"

bool http_unix_answers(const char *path)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un sun;

	if (fd < 0 || socket_address(path, &sun, NULL) < 0)
		return false;
	/* EAGAIN: so many wait there that one more has no room. */
	return connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0 || errno == EAGAIN;
}

static int give_to_group(const char *path, const char *group, struct error *err)
{
	struct group *gr;

	if (!group || !*group)
		return 0;
	gr = getgrnam(group);
	if (!gr)
		return error_set(err, -ENOENT,
		                 "there is no group %s to give %s to: addgroup --system %s, or "
		                 "set group in dtraind.conf",
		                 group, path, group);
	if (chown(path, -1, gr->gr_gid) < 0)
		return error_errno(err, -errno, "cannot give %s to group %s", path, group);
	return 0;
}

int http_bind_unix(const char *path, mode_t mode, const char *group, int *out, struct error *err)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un sun;
	mode_t old;
	int r;

	if (fd < 0)
		return error_errno(err, -errno, "cannot make a socket");
	if ((r = socket_address(path, &sun, err)) < 0)
		return r;
	if (http_unix_answers(path))
		return error_set(err, -EADDRINUSE, "socket %s is in use: another dtraind answers there",
		                 path);
	unlink(path);
	old = umask(0777); /* no connection before group and mode are set */
	r = bind(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 ? -errno : 0;
	umask(old);
	if (r < 0)
		return error_errno(err, r, "cannot make the socket %s", path);
	r = give_to_group(path, group, err);
	if (r < 0)
		return r;
	if (chmod(path, mode) < 0 || listen(fd, 512) < 0)
		return error_errno(err, -errno, "cannot listen on %s", path);
	*out = steal_fd(&fd);
	return 0;
}

int http_bind_tcp(const char *address, int port, int *out, struct error *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
	                *list = NULL;
	_cleanup_close_ int fd = -1;
	char service[8];
	int r;

	snprintf(service, sizeof(service), "%d", port);
	r = getaddrinfo(address && *address ? address : NULL, service, &hints, &list);
	if (r != 0)
		return error_set(err, -EINVAL, "cannot listen on %s: %s", address, gai_strerror(r));
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	r = fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0 ? -errno : 0;
	freeaddrinfo(list);
	if (r == -EACCES && port < 1024)
		return error_set(
		    err, r,
		    "cannot listen on %s port %d: a port below 1024 needs CAP_NET_BIND_SERVICE; see "
		    "PORTS in dtraind(8)",
		    address, port);
	if (r < 0)
		return error_errno(err, r, "cannot listen on %s port %d", address, port);
	*out = steal_fd(&fd);
	return 0;
}
