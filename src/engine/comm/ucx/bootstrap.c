/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meeting: how the ranks of a communicator find each other. Every rank listens, publishes a card in the
 * rendezvous (its addresses, a random token, UCX's address), reads the others' cards, connects to every lower
 * rank and accepts every higher one. Both ends show the other's token first, so that a stray connection, a
 * port scan or a rank of an older attempt is told apart and dropped. The caller greets, the called one
 * answers, the caller greets again: only then does either count it as made, since a caller that lost its
 * patience meanwhile has left a dead connection behind.
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

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "engine/comm/ucx/lifeline.h"

#define MAGIC         0x314c5444u /* "DTL1": changes whenever card, greeting or message do */
#define ADDRESSES_MAX 16
#define STRAYS_MAX    64  /* unproven connections held at once; the oldest goes first */
#define PATIENCE      3.0 /* seconds that an unproven connection, or an address tried, is given */

struct card {
	uint32_t magic, rank, world_size, address_count;
	uint8_t token[16];
	char host[64]; /* where it runs, for people */
	char home[96]; /* kernel and namespaces: equal means the same host to UCX */
	uint16_t port; /* host order */
	uint16_t reserved[3];
	uint8_t addresses[ADDRESSES_MAX][16]; /* IPv6, or IPv4 mapped into it; best first */
	uint64_t blob_len;                    /* UCX's address follows */
};

struct greeting {
	uint32_t magic, rank;
	uint8_t token[16]; /* of the one who is spoken to */
};

/* A connection that is being made to a lower rank, or one that came in and has not proved itself. */
struct call {
	int fd;
	int rank;     /* whom we call; -1: came in */
	int from;     /* who came in, once it has greeted; else -1 */
	int attempt;  /* which of its addresses */
	bool greeted; /* connected and our greeting sent */
	double since;
	struct greeting heard;
	size_t heard_len;
};

struct meeting {
	const struct comm_options *options;
	struct peer *peers;
	struct card *cards; /* [world_size] */
	int listen_fd;
	bool ipv4_only;
	struct call *calls; /* [call_count] */
	int call_count, call_max;
	double deadline;
};

static void meeting_release(struct meeting *m)
{
	for (int i = 0; i < m->call_count; i++)
		if (m->calls[i].fd >= 0)
			close(m->calls[i].fd);
	if (m->listen_fd >= 0)
		close(m->listen_fd);
	free(m->calls);
	free(m->cards);
}

static int timeout_ms(const struct meeting *m)
{
	double left = m->deadline - clock_monotonic();

	return left <= 0 ? 0 : left > 3600 ? 3600 * 1000 : (int)(left * 1000) + 1;
}

/* boot id, network and IPC namespace: what two processes have to share for shared memory and loopback. */
static void describe_home(char *home, size_t size)
{
	char boot[40] = "";
	struct stat net = {0}, ipc = {0};
	_cleanup_fclose_ FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (f && fgets(boot, sizeof(boot), f))
		boot[strcspn(boot, "\n")] = '\0';
	stat("/proc/self/ns/net", &net);
	stat("/proc/self/ns/ipc", &ipc);
	snprintf(home, size, "%s %lx %lx", boot, (unsigned long)net.st_ino, (unsigned long)ipc.st_ino);
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

/* Every address of this machine that another could reach, IPv4 first; link-local ones are of no use. */
static void list_addresses(struct card *card, bool ipv4_only)
{
	struct ifaddrs *list = NULL;

	if (getifaddrs(&list) < 0)
		return;
	for (int family = AF_INET;; family = AF_INET6) {
		for (struct ifaddrs *i = list; i && card->address_count < ADDRESSES_MAX; i = i->ifa_next) {
			uint8_t *out = card->addresses[card->address_count];

			if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
			    (i->ifa_flags & IFF_LOOPBACK))
				continue;
			if (family == AF_INET) {
				map_ipv4(out, &((struct sockaddr_in *)i->ifa_addr)->sin_addr);
			} else {
				const struct in6_addr *a = &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;

				if (ipv4_only || IN6_IS_ADDR_LINKLOCAL(a))
					continue;
				memcpy(out, a, 16);
			}
			card->address_count++;
		}
		if (family == AF_INET6)
			break;
	}
	freeifaddrs(list);
}

/* Binds to a port of UCX_TCP_PORT_RANGE ("29700-29999"), which UCX heeds for its own, or to any. The search
 * begins anywhere in it: ranks of one machine begin together. */
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

static int start_listening(struct meeting *m, uint16_t *port, struct error *err)
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

static char *card_key(const struct comm_options *o, int rank)
{
	return str_printf("%s/ucx/%d", o->group && *o->group ? o->group : "comm", rank);
}

static int publish(struct meeting *m, const void *blob, size_t blob_len, struct error *err)
{
	const struct comm_options *o = m->options;
	struct card *mine = &m->cards[o->rank];
	_cleanup_free_ char *key = card_key(o, o->rank);
	_cleanup_free_ char *value = malloc(sizeof(*mine) + blob_len);
	int r;

	if (!key || !value)
		return error_oom(err);
	mine->magic = MAGIC;
	mine->rank = o->rank;
	mine->world_size = o->world_size;
	mine->blob_len = blob_len;
	describe_home(mine->home, sizeof(mine->home));
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
	r = o->rendezvous->put(o->rendezvous->context, key, value, sizeof(*mine) + blob_len, err);
	return r < 0 ? error_prefix(err, "rendezvous, putting %s", key) : 0;
}

static int read_card(struct meeting *m, int rank, struct error *err)
{
	const struct comm_options *o = m->options;
	_cleanup_free_ char *key = card_key(o, rank);
	_cleanup_free_ void *data = NULL;
	struct card *card = &m->cards[rank];
	struct peer *peer = &m->peers[rank];
	size_t len = 0;
	int r;

	if (!key)
		return error_oom(err);
	r = o->rendezvous->get(o->rendezvous->context, key, timeout_ms(m), &data, &len, err);
	if (r == -ETIMEDOUT)
		return error_set(err, r, "rank %d of %d did not come to the rendezvous within %d s", rank,
		                 o->world_size, o->timeout_s);
	if (r < 0)
		return error_prefix(err, "rendezvous, waiting for rank %d", rank);
	if (len >= sizeof(*card))
		memcpy(card, data, sizeof(*card));
	if (len < sizeof(*card) || card->magic != MAGIC || card->rank != (uint32_t)rank ||
	    card->address_count > ADDRESSES_MAX || card->blob_len != len - sizeof(*card))
		return error_set(err, -EPROTO,
		                 "what rank %d put into the rendezvous cannot be read: "
		                 "does it run another version of dtrain?",
		                 rank);
	if (card->world_size != (uint32_t)o->world_size)
		return error_set(err, -EPROTO, "rank %d counts %u ranks, this rank %d", rank,
		                 card->world_size, o->world_size);
	card->host[sizeof(card->host) - 1] = '\0';
	card->home[sizeof(card->home) - 1] = '\0';
	strcpy(peer->host, card->host);
	peer->same_host = str_eq(card->home, m->cards[o->rank].home);
	peer->address_len = card->blob_len;
	peer->address = malloc(card->blob_len ? card->blob_len : 1);
	if (!peer->address)
		return error_oom(err);
	memcpy(peer->address, (char *)data + sizeof(*card), card->blob_len);
	return 0;
}

static void greet(const struct meeting *m, struct call *call, int rank)
{
	struct greeting g = {.magic = MAGIC, .rank = m->options->rank};

	memcpy(g.token, m->cards[rank].token, sizeof(g.token));
	(void)!send(call->fd, &g, sizeof(g), MSG_DONTWAIT | MSG_NOSIGNAL);
	call->greeted = true;
}

/* Begins a connection to the next address of a lower rank; after the last one, with the first again. */
static void call_next(const struct meeting *m, struct call *call)
{
	const struct card *card = &m->cards[call->rank];
	bool local = m->peers[call->rank].same_host;
	int count = card->address_count + local, which;
	uint8_t address[16];
	int r;

	if (call->fd >= 0)
		close(call->fd);
	call->fd = -1;
	call->greeted = false;
	call->heard_len = 0;
	call->since = clock_monotonic();
	if (!count)
		return;
	which = call->attempt++ % count;
	if (local && which == 0)
		map_ipv4(address, &(struct in_addr){htonl(INADDR_LOOPBACK)});
	else
		memcpy(address, card->addresses[which - local], 16);
	if (is_ipv4(address)) {
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(card->port)};

		memcpy(&to.sin_addr, address + 12, 4);
		call->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		r = call->fd < 0 ? -1 : connect(call->fd, (struct sockaddr *)&to, sizeof(to));
	} else {
		struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(card->port)};

		memcpy(&to.sin6_addr, address, 16);
		call->fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		r = call->fd < 0 ? -1 : connect(call->fd, (struct sockaddr *)&to, sizeof(to));
	}
	if (r < 0 && errno != EINPROGRESS && call->fd >= 0) {
		close(call->fd);
		call->fd = -1; /* its patience runs out below, and the next address is tried */
	}
}

static void call_end(struct meeting *m, int i)
{
	if (m->calls[i].fd >= 0)
		close(m->calls[i].fd);
	m->calls[i] = m->calls[--m->call_count];
}

/* The connection has proved itself: it is the lifeline to that rank now. */
static void call_done(struct meeting *m, int i, int rank)
{
	int fd = m->calls[i].fd, one = 1, count = 5;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* A host that lost its power sends nothing: the kernel asks, even while the process is stopped. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	m->peers[rank].fd = fd;
	m->calls[i].fd = -1;
	call_end(m, i);
}

static void accept_one(struct meeting *m)
{
	struct call call = {.rank = -1, .from = -1, .since = clock_monotonic()};

	call.fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (call.fd < 0)
		return;
	if (m->call_count == m->call_max) {
		int oldest = -1;

		for (int i = 0; i < m->call_count; i++)
			if (m->calls[i].rank < 0 &&
			    (oldest < 0 || m->calls[i].since < m->calls[oldest].since))
				oldest = i;
		call_end(m, oldest); /* call_max leaves room for all of ours, so one is a stray */
	}
	m->calls[m->call_count++] = call;
}

/* Reads a greeting. False: the connection is to be dropped (a call of ours then tries the next address). */
static bool call_read(struct meeting *m, int i)
{
	struct call *call = &m->calls[i];
	const struct card *mine = &m->cards[m->options->rank];
	uint32_t rank;
	ssize_t n;

	if (call->rank >= 0 && !call->greeted) {
		int failed = 0;
		socklen_t len = sizeof(failed);

		if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 || failed)
			return false;
		greet(m, call, call->rank);
		return true;
	}
	n = recv(call->fd, (char *)&call->heard + call->heard_len, sizeof(call->heard) - call->heard_len,
	         MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	call->heard_len += n;
	if (call->heard_len < sizeof(call->heard))
		return true;
	rank = call->heard.rank;
	if (call->heard.magic != MAGIC || memcmp(call->heard.token, mine->token, sizeof(mine->token)) ||
	    rank >= (uint32_t)m->options->world_size)
		return false;
	call->heard_len = 0;
	if (call->rank >= 0) {
		if (rank != (uint32_t)call->rank)
			return false;
		greet(m, call, rank);
	} else if (call->from < 0) {
		if (rank <= (uint32_t)m->options->rank)
			return false;
		call->from = rank;
		greet(m, call, rank);
		return true;
	} else if (rank != (uint32_t)call->from || m->peers[rank].fd >= 0) {
		return false;
	}
	call_done(m, i, rank);
	return true;
}

static int missing_rank(const struct meeting *m)
{
	for (int r = 0; r < m->options->world_size; r++)
		if (r != m->options->rank && m->peers[r].fd < 0)
			return r;
	return -1;
}

static int connect_all(struct meeting *m, struct error *err)
{
	_cleanup_free_ struct pollfd *fds = calloc(m->call_max + 1, sizeof(*fds));
	int missing;

	if (!fds)
		return error_oom(err);
	for (int r = 0; r < m->options->rank; r++) {
		struct call *call = &m->calls[m->call_count++];

		*call = (struct call){.fd = -1, .rank = r, .from = -1};
		call_next(m, call);
	}
	while ((missing = missing_rank(m)) >= 0) {
		double now = clock_monotonic();
		int n = m->call_count, timeout = timeout_ms(m);

		if (now >= m->deadline)
			return error_set(err, -ETIMEDOUT,
			                 "no connection to rank %d on %s within %d s: is TCP between the "
			                 "nodes blocked?",
			                 missing, m->cards[missing].host, m->options->timeout_s);
		for (int i = 0; i < n; i++) {
			fds[i].fd = m->calls[i].fd;
			fds[i].events = m->calls[i].rank >= 0 && !m->calls[i].greeted && m->calls[i].fd >= 0
			                    ? POLLOUT
			                    : POLLIN;
			fds[i].revents = 0;
		}
		fds[n] = (struct pollfd){.fd = m->listen_fd, .events = POLLIN};
		if (poll(fds, n + 1, MIN(timeout, 100)) < 0 && errno != EINTR)
			return error_errno(err, -errno, "poll");
		/* From the end, since call_end moves the last one into a gap. */
		for (int i = n - 1; i >= 0; i--) {
			struct call *call = &m->calls[i];
			bool keep = true;

			if (call->fd >= 0 && fds[i].revents)
				keep = call_read(m, i);
			else if (clock_monotonic() - call->since > (call->fd >= 0 ? PATIENCE : 0.1))
				keep = false;
			if (!keep && call->rank >= 0)
				call_next(m, call);
			else if (!keep)
				call_end(m, i);
		}
		if (fds[n].revents)
			accept_one(m);
	}
	return 0;
}

int meeting_hold(const struct comm_options *options, const void *address, size_t address_len,
                 struct peer *peers, struct error *err)
{
	_cleanup_(meeting_release) struct meeting m = {
	    .options = options,
	    .peers = peers,
	    .listen_fd = -1,
	    .call_max = options->world_size + STRAYS_MAX,
	    .deadline = clock_monotonic() + options->timeout_s,
	};
	int r;

	m.cards = calloc(options->world_size, sizeof(*m.cards));
	m.calls = calloc(m.call_max, sizeof(*m.calls));
	if (!m.cards || !m.calls)
		return error_oom(err);
	r = publish(&m, address, address_len, err);
	for (int rank = 0; r >= 0 && rank < options->world_size; rank++)
		if (rank != options->rank)
			r = read_card(&m, rank, err);
	if (r >= 0) {
		strcpy(peers[options->rank].host, m.cards[options->rank].host);
		r = connect_all(&m, err);
	}
	return r;
}
