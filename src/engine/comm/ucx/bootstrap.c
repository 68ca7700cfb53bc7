/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: how the ranks of a communicator find each other. Every rank listens, puts its address into the
 * key-value store (struct rank_address, with a random token and UCX's address), reads the others' addresses,
 * connects to every lower rank and accepts every higher one. Both ends show the other's token first, so that
 * that a connection of another program, a port scan or a rank of an older attempt is recognized and closed:
 *
 *     rank r (connects to every lower rank)               rank q < r (accepts)
 *     put r's address                                     put q's address
 *     get q's address                                     get r's address
 *     connect, one address of q after another  -------->  accept: unproven for CONNECTION_TIMEOUT at most
 *     greeting: q's token, rank r              -------->  checks its own token and that r > q
 *     checks its own token and that it is q    <--------  greeting: r's token, rank q
 *     greeting: q's token, rank r              -------->  checks both again
 *     the lifeline to q                                   the lifeline to r
 *
 * A second connection between every two ranks is made in the same way, for data: stream.c.
 *
 * The third greeting is needed because a rank that timed out meanwhile has left a dead connection behind:
 * only then does either end count the connection as made.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/boot_id.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "engine/comm/ucx/internal.h"

#define MAGIC         0x324c5444u /* "DTL2": changes with struct rank_address, greeting or message */
#define ADDRESSES_MAX 16
/* At most this many incoming connections that have not proved themselves; a new one replaces the oldest. */
#define UNPROVEN_MAX 64
/* The seconds after which an unproven connection is closed, or the next address of a rank is tried. */
#define CONNECTION_TIMEOUT 3.0
/* The seconds before a rank that has refused a connection at each of its addresses is tried again. */
#define RETRY_PAUSE 0.1

struct rank_address {
	uint32_t magic, rank, world_size, address_count;
	uint8_t token[16];
	char host[64];    /* where it runs, for people */
	char host_id[96]; /* kernel and namespaces: equal means the same host to UCX */
	uint16_t port;    /* host order */
	uint16_t reserved[3];
	uint8_t addresses[ADDRESSES_MAX][16]; /* IPv6, or IPv4 mapped into it; best first */
	uint64_t blob_len;                    /* UCX's address follows */
};

enum channel { CHANNEL_LIFELINE, CHANNEL_STREAM, CHANNELS };

struct greeting {
	uint32_t magic, rank, channel;
	uint8_t token[16]; /* of the rank that it is sent to */
};

/* A connection that is being made to a lower rank, or an incoming one that has not proved itself. */
struct connection {
	int fd;
	int rank;     /* that we connect to; -1: an incoming one */
	int from;     /* of an incoming one, once it has greeted; else -1 */
	int channel;  /* of an incoming one, once it has greeted */
	int attempt;  /* index of the address that is tried */
	bool greeted; /* connected and our greeting sent */
	double since;
	struct greeting received;
	size_t received_len;
};

struct bootstrap {
	struct comm *comm;
	const struct comm_options *options;
	struct peer *peers;
	struct rank_address *ranks; /* [world_size] */
	int listen_fd;
	bool ipv4_only;
	struct connection *connections; /* [connection_count] */
	int connection_count, connection_max;
	double deadline;
};

static void bootstrap_release(struct bootstrap *m)
{
	for (int i = 0; i < m->connection_count; i++)
		if (m->connections[i].fd >= 0)
			close(m->connections[i].fd);
	if (m->listen_fd >= 0)
		close(m->listen_fd);
	free(m->connections);
	free(m->ranks);
}

static int timeout_ms(const struct bootstrap *m)
{
	double left = m->deadline - clock_monotonic();

	return left <= 0 ? 0 : left > 3600 ? 3600 * 1000 : (int)(left * 1000) + 1;
}

/* Boot id, network namespace and IPC namespace: two processes have to share them to use shared memory and the
 * loopback interface. */
static void describe_host(char *host_id, size_t size)
{
	char boot[BOOT_ID_SIZE];
	struct stat net = {0}, ipc = {0};

	boot_id_read(boot);
	stat("/proc/self/ns/net", &net);
	stat("/proc/self/ns/ipc", &ipc);
	snprintf(host_id, size, "%s %lx %lx", boot, (unsigned long)net.st_ino, (unsigned long)ipc.st_ino);
}

static void map_ipv4(uint8_t out[16], const struct in_addr *in)
{
	memset(out, 0, 10);
	out[10] = out[11] = 0xff;
	memcpy(out + 12, in, 4);
}

static bool is_ipv4(const uint8_t address[16])
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return !memcmp(address, prefix, 12);
}

/* Mbit/s of a network interface; 0: not known, as of most virtual ones. */
static int interface_speed(const char *name)
{
	_cleanup_free_ char *path = str_printf("/sys/class/net/%s/speed", name);
	_cleanup_fclose_ FILE *f = path ? fopen(path, "re") : NULL;
	int speed = 0;

	return f && fscanf(f, "%d", &speed) == 1 && speed > 0 ? speed : 0;
}

/* Adds an address of this speed behind those that are as fast or faster, from `first` on. */
static void add_address(struct rank_address *mine, int *speeds, int first, const uint8_t address[16],
                        int speed)
{
	int at = mine->address_count++;

	for (; at > first && speeds[at - 1] < speed; at--) {
		memcpy(mine->addresses[at], mine->addresses[at - 1], 16);
		speeds[at] = speeds[at - 1];
	}
	memcpy(mine->addresses[at], address, 16);
	speeds[at] = speed;
}

/* Lists every address of this machine that another machine could reach, IPv4 first, and of each kind that of
 * the fastest network first, since data may travel there. Link-local addresses are left out, since another
 * machine cannot tell which of its links they are on. */
static void list_addresses(struct rank_address *mine, bool ipv4_only)
{
	int speeds[ADDRESSES_MAX], first = 0;
	struct ifaddrs *list = NULL;

	if (getifaddrs(&list) < 0)
		return;
	for (int family = AF_INET;; family = AF_INET6) {
		for (struct ifaddrs *i = list; i && mine->address_count < ADDRESSES_MAX; i = i->ifa_next) {
			uint8_t address[16];

			if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
			    (i->ifa_flags & IFF_LOOPBACK))
				continue;
			if (family == AF_INET) {
				map_ipv4(address, &((struct sockaddr_in *)i->ifa_addr)->sin_addr);
			} else {
				const struct in6_addr *a = &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;

				if (ipv4_only || IN6_IS_ADDR_LINKLOCAL(a))
					continue;
				memcpy(address, a, 16);
			}
			add_address(mine, speeds, first, address, interface_speed(i->ifa_name));
		}
		if (family == AF_INET6)
			break;
		first = mine->address_count;
	}
	freeifaddrs(list);
}

/* Binds to a port of UCX_TCP_PORT_RANGE ("29700-29999"), which UCX obeys for its own ports, or to any port
 * where it is not set. The search begins at a random port of the range, since the ranks of a machine search
 * at the same time. */
static int bind_port(int fd, struct sockaddr *address, socklen_t len, in_port_t *port)
{
	const char *range = getenv("UCX_TCP_PORT_RANGE");
	unsigned low = 0, high = 0, count = 1, start = 0;

	if (range && sscanf(range, "%u-%u", &low, &high) == 2 && low > 0 && low <= high && high <= 65535) {
		count = high - low + 1;
		if (getrandom(&start, sizeof(start), GRND_NONBLOCK) < 0)
			start = (unsigned)getpid();
	} else {
		low = 0;
	}
	for (unsigned i = 0; i < count; i++) {
		*port = htons(low ? low + (start + i) % count : 0);
		if (bind(fd, address, len) == 0)
			return 0;
		if (errno != EADDRINUSE && errno != EACCES)
			break;
	}
	return -errno;
}

static int start_listening(struct bootstrap *m, uint16_t *port, struct error *err)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6};
	struct sockaddr_in any4 = {.sin_family = AF_INET};
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	int off = 0, r;

	m->listen_fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (m->listen_fd >= 0) {
		setsockopt(m->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
		r = bind_port(m->listen_fd, (struct sockaddr *)&any6, sizeof(any6), &any6.sin6_port);
		if (r == -EADDRINUSE)
			return error_errno(err, r, "no port of UCX_TCP_PORT_RANGE=%s for the other ranks",
			                   getenv("UCX_TCP_PORT_RANGE") ?: "");
		if (r < 0) {
			close(m->listen_fd);
			m->listen_fd = -1;
		}
	}
	if (m->listen_fd < 0) {
		m->ipv4_only = true;
		m->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		r = m->listen_fd < 0
		        ? -errno
		        : bind_port(m->listen_fd, (struct sockaddr *)&any4, sizeof(any4), &any4.sin_port);
		if (r < 0)
			return error_errno(err, r, "cannot open a TCP port for the other ranks");
	}
	if (listen(m->listen_fd, 1024) < 0 || getsockname(m->listen_fd, (struct sockaddr *)&bound, &len) < 0)
		return error_errno(err, -errno, "cannot listen on a TCP port for the other ranks");
	*port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
	                                          : ((struct sockaddr_in *)&bound)->sin_port);
	return 0;
}

static char *address_key(const struct comm_options *o, int rank)
{
	return str_printf("%s/ucx/%d", o->group && *o->group ? o->group : "comm", rank);
}

static int publish(struct bootstrap *m, const void *blob, size_t blob_len, struct error *err)
{
	const struct comm_options *o = m->options;
	struct rank_address *mine = &m->ranks[o->rank];
	_cleanup_free_ char *key = address_key(o, o->rank);
	_cleanup_free_ char *value = malloc(sizeof(*mine) + blob_len);
	int r;

	if (!key || !value)
		return error_oom(err);
	mine->magic = MAGIC;
	mine->rank = o->rank;
	mine->world_size = o->world_size;
	mine->blob_len = blob_len;
	describe_host(mine->host_id, sizeof(mine->host_id));
	if (o->node)
		snprintf(mine->host, sizeof(mine->host), "%s", o->node);
	else if (gethostname(mine->host, sizeof(mine->host) - 1) < 0)
		strcpy(mine->host, "?");
	if (getrandom(mine->token, sizeof(mine->token), 0) != sizeof(mine->token))
		return error_errno(err, -errno, "no random numbers");
	r = start_listening(m, &mine->port, err);
	if (r < 0)
		return r;
	list_addresses(mine, m->ipv4_only);
	memcpy(value, mine, sizeof(*mine));
	memcpy(value + sizeof(*mine), blob, blob_len);
	r = o->store->put(o->store->context, key, value, sizeof(*mine) + blob_len, err);
	return r < 0 ? error_prefix(err, "rendezvous, putting %s", key) : 0;
}

/* In steps of a second, since the family may fail meanwhile. */
static int get_value(struct bootstrap *m, const char *key, void **data, size_t *len, struct error *err)
{
	const struct kv_store *store = m->options->store;
	int left, r;

	do {
		left = timeout_ms(m);
		r = store->get(store->context, key, MIN(left, 1000), data, len, err);
		if (r == -ETIMEDOUT && family_check(m->comm, NULL) < 0)
			r = family_check(m->comm, err);
	} while (r == -ETIMEDOUT && left > 1000);
	return r;
}

static int read_address(struct bootstrap *m, int rank, struct error *err)
{
	const struct comm_options *o = m->options;
	_cleanup_free_ char *key = address_key(o, rank);
	_cleanup_free_ void *data = NULL;
	struct rank_address *theirs = &m->ranks[rank];
	struct peer *peer = &m->peers[rank];
	size_t len = 0;
	int r;

	if (!key)
		return error_oom(err);
	r = get_value(m, key, &data, &len, err);
	if (r == -ETIMEDOUT)
		return error_set(err, r, "rank %d of %d did not publish its address within %d s", rank,
		                 o->world_size, o->timeout_s);
	if (r < 0)
		return error_prefix(err, "rendezvous, waiting for rank %d", rank);
	if (len >= sizeof(*theirs))
		memcpy(theirs, data, sizeof(*theirs));
	if (len < sizeof(*theirs) || theirs->magic != MAGIC || theirs->rank != (uint32_t)rank ||
	    theirs->address_count > ADDRESSES_MAX || theirs->blob_len != len - sizeof(*theirs))
		return error_set(err, -EPROTO,
		                 "what rank %d put into the rendezvous cannot be read: "
		                 "does it run another version of dtrain?",
		                 rank);
	if (theirs->world_size != (uint32_t)o->world_size)
		return error_set(err, -EPROTO, "rank %d counts %u ranks, this rank %d", rank,
		                 theirs->world_size, o->world_size);
	theirs->host[sizeof(theirs->host) - 1] = '\0';
	theirs->host_id[sizeof(theirs->host_id) - 1] = '\0';
	strcpy(peer->host, theirs->host);
	peer->same_host = str_eq(theirs->host_id, m->ranks[o->rank].host_id);
	peer->address_len = theirs->blob_len;
	peer->address = malloc(theirs->blob_len ? theirs->blob_len : 1);
	if (!peer->address)
		return error_oom(err);
	memcpy(peer->address, (char *)data + sizeof(*theirs), theirs->blob_len);
	return 0;
}

static void greet(const struct bootstrap *m, struct connection *conn, int rank)
{
	struct greeting g = {.magic = MAGIC, .rank = m->options->rank, .channel = conn->channel};

	memcpy(g.token, m->ranks[rank].token, sizeof(g.token));
	(void)!send(conn->fd, &g, sizeof(g), MSG_DONTWAIT | MSG_NOSIGNAL);
	conn->greeted = true;
}

/* Begins a connection to the next address of a lower rank; the first address follows the last. */
static void connect_next(const struct bootstrap *m, struct connection *conn)
{
	const struct rank_address *theirs = &m->ranks[conn->rank];
	bool local = m->peers[conn->rank].same_host;
	int count = theirs->address_count + local, which;
	uint8_t address[16];
	int r;

	if (conn->fd >= 0)
		close(conn->fd);
	conn->fd = -1;
	conn->greeted = false;
	conn->received_len = 0;
	conn->since = clock_monotonic();
	if (!count)
		return;
	which = conn->attempt++ % count;
	if (local && which == 0)
		map_ipv4(address, &(struct in_addr){htonl(INADDR_LOOPBACK)});
	else
		memcpy(address, theirs->addresses[which - local], 16);
	if (is_ipv4(address)) {
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(theirs->port)};

		memcpy(&to.sin_addr, address + 12, 4);
		conn->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		r = conn->fd < 0 ? -1 : connect(conn->fd, (struct sockaddr *)&to, sizeof(to));
	} else {
		struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(theirs->port)};

		memcpy(&to.sin6_addr, address, 16);
		conn->fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		r = conn->fd < 0 ? -1 : connect(conn->fd, (struct sockaddr *)&to, sizeof(to));
	}
	if (r < 0 && errno != EINPROGRESS && conn->fd >= 0) {
		close(conn->fd);
		/* The connection times out in connect_all, and the next address is tried. */
		conn->fd = -1;
	}
}

/* Whether each address of the rank has been tried as often as the others. */
static bool has_tried_all(const struct bootstrap *m, const struct connection *conn)
{
	int count = m->ranks[conn->rank].address_count + m->peers[conn->rank].same_host;

	return count > 0 && conn->attempt % count == 0;
}

static void connection_end(struct bootstrap *m, int i)
{
	if (m->connections[i].fd >= 0)
		close(m->connections[i].fd);
	m->connections[i] = m->connections[--m->connection_count];
}

/* Makes a connection that has proved itself the lifeline to that rank. */
/* Where the connection of a channel to a rank is kept; -1 there: it is missing. */
static int *connection_place(const struct bootstrap *m, int rank, int channel)
{
	return channel == CHANNEL_LIFELINE ? &m->peers[rank].fd : &m->peers[rank].stream_fd;
}

static void connection_proved(struct bootstrap *m, int i, int rank)
{
	int fd = m->connections[i].fd, one = 1, count = 5;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* A host that has lost its power does not close its connections. The kernel's keep-alive notices
	 * that, even while the process is stopped. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	/* Within one machine nothing is congested, and the pacing of BBR, which may be this machine's
	 * default, takes half of the rate. */
	if (m->connections[i].channel == CHANNEL_STREAM && m->peers[rank].same_host)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
	*connection_place(m, rank, m->connections[i].channel) = fd;
	m->connections[i].fd = -1;
	connection_end(m, i);
}

static void accept_one(struct bootstrap *m)
{
	struct connection conn = {.rank = -1, .from = -1, .since = clock_monotonic()};

	conn.fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (conn.fd < 0)
		return;
	if (m->connection_count == m->connection_max) {
		int oldest = -1;

		for (int i = 0; i < m->connection_count; i++)
			if (m->connections[i].rank < 0 &&
			    (oldest < 0 || m->connections[i].since < m->connections[oldest].since))
				oldest = i;
		/* There is one that has not proved itself, since connection_max exceeds the
		 * number of ranks. */
		connection_end(m, oldest);
	}
	m->connections[m->connection_count++] = conn;
}

/* Reads a greeting. False: the connection is to be dropped (a connection of ours then tries the next
 * address). */
static bool connection_read(struct bootstrap *m, int i)
{
	struct connection *conn = &m->connections[i];
	const struct rank_address *mine = &m->ranks[m->options->rank];
	uint32_t rank, channel;
	ssize_t n;

	if (conn->rank >= 0 && !conn->greeted) {
		int failed = 0;
		socklen_t len = sizeof(failed);

		if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 || failed)
			return false;
		greet(m, conn, conn->rank);
		return true;
	}
	n = recv(conn->fd, (char *)&conn->received + conn->received_len,
	         sizeof(conn->received) - conn->received_len, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	conn->received_len += n;
	if (conn->received_len < sizeof(conn->received))
		return true;
	rank = conn->received.rank;
	channel = conn->received.channel;
	if (conn->received.magic != MAGIC || memcmp(conn->received.token, mine->token, sizeof(mine->token)) ||
	    rank >= (uint32_t)m->options->world_size || channel >= CHANNELS)
		return false;
	conn->received_len = 0;
	if (conn->rank >= 0) {
		if (rank != (uint32_t)conn->rank || channel != (uint32_t)conn->channel)
			return false;
		greet(m, conn, rank);
	} else if (conn->from < 0) {
		if (rank <= (uint32_t)m->options->rank)
			return false;
		conn->from = rank;
		conn->channel = channel;
		greet(m, conn, rank);
		return true;
	} else if (rank != (uint32_t)conn->from || channel != (uint32_t)conn->channel ||
	           *connection_place(m, rank, channel) >= 0) {
		return false;
	}
	connection_proved(m, i, rank);
	return true;
}

static int missing_rank(const struct bootstrap *m)
{
	for (int r = 0; r < m->options->world_size; r++)
		if (r != m->options->rank && (m->peers[r].fd < 0 || m->peers[r].stream_fd < 0))
			return r;
	return -1;
}

static int connect_all(struct bootstrap *m, struct error *err)
{
	_cleanup_free_ struct pollfd *fds = calloc(m->connection_max + 1, sizeof(*fds));
	int missing, failed;

	if (!fds)
		return error_oom(err);
	for (int i = 0; i < m->options->rank * CHANNELS; i++) {
		struct connection *conn = &m->connections[m->connection_count++];

		*conn =
		    (struct connection){.fd = -1, .rank = i / CHANNELS, .from = -1, .channel = i % CHANNELS};
		connect_next(m, conn);
	}
	while ((missing = missing_rank(m)) >= 0) {
		double now = clock_monotonic();
		int n = m->connection_count, timeout = timeout_ms(m);

		if (now >= m->deadline)
			return error_set(err, -ETIMEDOUT,
			                 "no connection to rank %d on %s within %d s: is TCP between the "
			                 "nodes blocked?",
			                 missing, m->ranks[missing].host, m->options->timeout_s);
		failed = family_check(m->comm, err);
		if (failed < 0)
			return failed;
		for (int i = 0; i < n; i++) {
			fds[i].fd = m->connections[i].fd;
			fds[i].events = m->connections[i].rank >= 0 && !m->connections[i].greeted &&
			                        m->connections[i].fd >= 0
			                    ? POLLOUT
			                    : POLLIN;
			fds[i].revents = 0;
		}
		fds[n] = (struct pollfd){.fd = m->listen_fd, .events = POLLIN};
		if (poll(fds, n + 1, MIN(timeout, 100)) < 0 && errno != EINTR)
			return error_errno(err, -errno, "poll");
		/* From the end, since connection_end moves the last one into a gap. */
		for (int i = n - 1; i >= 0; i--) {
			struct connection *conn = &m->connections[i];
			bool keep = true;

			if (conn->fd >= 0 && fds[i].revents)
				keep = connection_read(m, i);
			else if (clock_monotonic() - conn->since >
			         (conn->fd >= 0 ? CONNECTION_TIMEOUT : RETRY_PAUSE))
				keep = false;
			if (!keep && conn->fd >= 0 && conn->rank >= 0 && has_tried_all(m, conn) &&
			    clock_monotonic() - conn->since < RETRY_PAUSE) {
				/* Nothing listens there, as after the rank's death: not again at once. */
				close(conn->fd);
				conn->fd = -1;
			} else if (!keep && conn->rank >= 0)
				connect_next(m, conn);
			else if (!keep)
				connection_end(m, i);
		}
		if (fds[n].revents)
			accept_one(m);
	}
	return 0;
}

int bootstrap_connect(struct comm *comm, const struct comm_options *options, const void *address,
                      size_t address_len, struct peer *peers, struct error *err)
{
	_cleanup_(bootstrap_release) struct bootstrap m = {
	    .comm = comm,
	    .options = options,
	    .peers = peers,
	    .listen_fd = -1,
	    .connection_max = options->world_size * CHANNELS + UNPROVEN_MAX,
	    .deadline = clock_monotonic() + options->timeout_s,
	};
	int r;

	m.ranks = calloc(options->world_size, sizeof(*m.ranks));
	m.connections = calloc(m.connection_max, sizeof(*m.connections));
	if (!m.ranks || !m.connections)
		return error_oom(err);
	if ((r = publish(&m, address, address_len, err)) < 0)
		return r;
	for (int rank = 0; rank < options->world_size; rank++)
		if (rank != options->rank && (r = read_address(&m, rank, err)) < 0)
			return r;
	strcpy(peers[options->rank].host, m.ranks[options->rank].host);
	return connect_all(&m, err);
}
