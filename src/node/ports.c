/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a free TCP port by binding to it. */
#include "node/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

/* -errno, or the port that was bound and let go again; 0: any. */
static int try_port(int port)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t len = sizeof address;

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		return -errno;
	return ntohs(address.sin_port);
}

int ports_free(struct ports *ports, const struct daemon_config *config, const char *node, struct error *err)
{
	int low = config->port_low, count = low ? config->port_high - low + 1 : 1;
	int r = -EADDRINUSE;

	/* A service that was started anew does not begin with those that it gave away last. */
	if (!ports->given)
		ports->given = (unsigned)getpid();
	for (int i = 0; i < count && r < 0; i++)
		r = try_port(low ? low + (int)(ports->given++ % (unsigned)count) : 0);
	if (r < 0 && low)
		return error_errno(err, r, "no port of port_range %s is free on node %s", config->port_range,
		                   node);
	return r < 0 ? error_errno(err, r, "cannot find a free TCP port") : r;
}
