/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may have how many connections, and for how long one may say nothing: a stranger who opens thousands
 * must not keep services and root out.
 *
 * A connection is pending until the head of a request is complete, and has ten seconds for it, the TLS
 * handshake included. While one that has said something waits for its handshake to begin (admission.c), it
 * has no deadline. Over TLS only those who hold the cluster's key get as far as a head: what is pending is
 * bounded for each address and, for addresses that no service has, in all; a new one takes the place of the
 * oldest, so that who is quick gets through. On a Unix socket the kernel says who calls: users have a bound
 * each and leave room for root.
 *
 * A service passes requests of its users on over TLS, each over a connection of its own for as long as it
 * lasts (events, logs that are followed, waits). Those under way are bounded for each address, each user and
 * in all, and refused beyond that: the rest of the connections is for what services ask of each other
 * (heartbeats, reports, starts). Where all connections are in use but a few, a new one takes the place of one
 * that is idle after such a request, or else of the oldest that is pending.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "http/internal.h"
#include "wire/error_answer.h"

enum {
	HEAD_SECONDS = 10,
	PENDING_OF_ADDRESS = 64,
	PENDING_OF_PEER = 512, /* the ranks of a node call at the same moment */
	PENDING_OF_STRANGERS = 512,
	SMOOTHING = 8, /* how many handshakes the mean of their durations remembers */
	OF_USER = 512,
	OF_USERS = HTTP_CONNECTIONS - 400, /* the rest is root's */
	/* In fortieths of the listener's connections. */
	PARTS = 40,
	QUEUED_OF_STRANGERS = 10,
	/* Requests under way that a service makes for others. */
	REQUESTS_OF_ADDRESS = 10,
	REQUESTS_OF_USER = 20, /* on all nodes: the ranks of its runs are in it */
	REQUESTS_OF_USERS = 24,
	REQUESTS = 25, /* root's included */
	SPARE = 1,
};

/* An IPv4 address as the IPv6 one that stands for it. */
static void to_address(int family, const void *from, struct in6_addr *to)
{
	*to = (struct in6_addr){0};
	if (family == AF_INET6) {
		memcpy(to, from, sizeof(*to));
		return;
	}
	to->s6_addr[10] = to->s6_addr[11] = 0xff;
	memcpy(&to->s6_addr[12], from, 4);
}

static bool same_address(const struct http_connection *a, const struct http_connection *b)
{
	return memcmp(&a->address, &b->address, sizeof(a->address)) == 0;
}

int http_server_set_peers(struct http_server *s, const char *const *addresses, size_t count)
{
	struct in6_addr *peers = calloc(count + 1, sizeof(*peers));
	unsigned char raw[16];
	size_t n = 0;

	if (!peers)
		return -ENOMEM;
	/* Names are not resolved: a service whose address is not known is once it has called. */
	for (size_t i = 0; i < count; i++) {
		if (inet_pton(AF_INET, addresses[i], raw) == 1)
			to_address(AF_INET, raw, &peers[n++]);
		else if (inet_pton(AF_INET6, addresses[i], raw) == 1)
			to_address(AF_INET6, raw, &peers[n++]);
	}
	free(s->peers);
	s->peers = peers;
	s->peer_count = n;
	return 0;
}

static void append(struct http_connection_list *list, struct http_connection *c)
{
	c->before = list->last;
	c->then = NULL;
	if (c->before)
		c->before->then = c;
	else
		list->first = c;
	list->last = c;
}

static void take_out(struct http_connection_list *list, struct http_connection *c)
{
	if (c->before)
		c->before->then = c->then;
	else
		list->first = c->then;
	if (c->then)
		c->then->before = c->before;
	else
		list->last = c->before;
}

void http_connection_leave_place(struct http_connection *c)
{
	c->listener->places -= c->place;
	c->place = false;
}

/* Out of the list that it is in. */
static void unlist(struct http_connection *c)
{
	struct http_listener *l = c->listener;

	http_connection_leave_place(c);
	if (c->pending) {
		l->trying -= c->inside;
		take_out(&l->pending, c);
	} else if (c->queued) {
		take_out(&l->queue, c);
	}
	c->pending = c->queued = false;
}

static void set_pending(struct http_connection *c)
{
	struct http_listener *l = c->listener;
	double seconds = l->server->options.head_seconds > 0 ? l->server->options.head_seconds : HEAD_SECONDS;
	uint64_t now;

	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	unlist(c);
	c->due = now + (uint64_t)(seconds * 1e6);
	c->pending = true;
	l->trying += c->inside;
	append(&l->pending, c);
	/* One that is set already fires before: a request that comes at once sets none. */
	if (!l->head_timer_set) {
		sd_event_source_set_time(l->head_timer, c->due);
		sd_event_source_set_enabled(l->head_timer, SD_EVENT_ONESHOT);
		l->head_timer_set = true;
	}
}

void http_connection_enqueue(struct http_connection *c)
{
	unlist(c);
	c->queued = true;
	append(&c->listener->queue, c);
}

void http_connection_begin(struct http_connection *c)
{
	struct http_listener *l = c->listener;

	unlist(c);
	c->inside = true; /* what is new to MHD counts as tried from here on */
	if (c->dropped)
		return;
	set_pending(c);
	if (!l->tls)
		return;
	sd_event_now(l->server->event, CLOCK_MONOTONIC, &c->begun);
	c->place = true;
	l->places++;
}

/* MHD sees the end of one that it has, and closes it. */
void http_connection_drop(struct http_connection *c)
{
	unlist(c);
	c->dropped = true;
	shutdown(c->fd, SHUT_RDWR);
	if (c->inside || !c->listener->tls)
		return;
	close(c->fd);
	http_connection_free(c);
}

void http_connections_close(struct http_listener *l)
{
	struct http_connection *next;

	for (struct http_connection *c = l->connections; c; c = next) {
		next = c->next;
		if (!c->inside)
			http_connection_drop(c);
	}
}

int http_connections_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct http_listener *l = userdata;
	uint64_t now;

	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	while (l->pending.first && l->pending.first->due <= now)
		http_connection_drop(l->pending.first);
	l->head_timer_set = l->pending.first;
	if (!l->pending.first)
		return 0;
	sd_event_source_set_time(source, l->pending.first->due);
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static bool is_known(const struct http_connection *c)
{
	const struct http_server *s = c->listener->server;

	for (size_t i = 0; i < s->peer_count; i++)
		if (memcmp(&s->peers[i], &c->address, sizeof(c->address)) == 0)
			return true;
	for (const struct http_connection *x = c->listener->connections; x; x = x->next)
		if (x->proven && !x->dropped && same_address(x, c))
			return true;
	return false;
}

size_t http_connection_limit(const struct http_listener *l)
{
	const struct http_server_options *o = &l->server->options;

	return l->tls && o->tls_connections ? o->tls_connections : HTTP_CONNECTIONS;
}

static size_t part_of(const struct http_listener *l, size_t parts)
{
	return http_connection_limit(l) * parts / PARTS;
}

/* What bounds c among those of a list. */
struct crowd {
	struct http_connection *oldest,
	    *oldest_stranger; /* the oldest from its address, and of all strangers */
	size_t same, strangers;
};

static void count_crowd(const struct http_connection_list *list, const struct http_connection *c,
                        struct crowd *crowd)
{
	for (struct http_connection *x = list->first; x; x = x->then) {
		if (x == c)
			continue;
		if (same_address(x, c) && crowd->same++ == 0)
			crowd->oldest = x;
		if (!x->known && !x->proven && crowd->strangers++ == 0)
			crowd->oldest_stranger = x;
	}
}

/* Makes room among those that are pending, and those that wait for their handshake to begin. Strangers that
 * wait are services, too, where the hosts file has names: after a restart all of them may call at once. */
static void bound_pending(struct http_connection *c)
{
	struct http_listener *l = c->listener;
	struct crowd pending = {0}, queued = {0};

	count_crowd(&l->pending, c, &pending);
	count_crowd(&l->queue, c, &queued);
	if (pending.same + queued.same >= (c->known ? PENDING_OF_PEER : PENDING_OF_ADDRESS))
		http_connection_drop(pending.oldest ? pending.oldest : queued.oldest);
	else if (!c->known && pending.strangers >= PENDING_OF_STRANGERS)
		http_connection_drop(pending.oldest_stranger);
	else if (!c->known && queued.strangers >= part_of(l, QUEUED_OF_STRANGERS))
		http_connection_drop(queued.oldest_stranger);
}

/* MHD takes no more than the limit: whoever comes then, a heartbeat too, waits until one ends. */
static void bound_all(struct http_connection *c)
{
	struct http_listener *l = c->listener;
	struct http_connection *idle = NULL;
	size_t count = 0;

	for (struct http_connection *x = l->connections; x; x = x->next) {
		if (x->dropped)
			continue;
		count++;
		if (x->proven && !x->pending && !x->busy && !x->reserved)
			idle = x; /* the oldest comes last */
	}
	if (count <= part_of(l, PARTS - SPARE))
		return;
	if (idle)
		http_connection_drop(idle);
	else if (l->pending.first && l->pending.first != c)
		http_connection_drop(l->pending.first);
	else if (l->queue.first)
		http_connection_drop(l->queue.first);
}

static bool bound_users(const struct http_connection *c)
{
	size_t own = 0, users = 0;

	if (http_user_is_privileged(c->uid))
		return true;
	for (const struct http_connection *x = c->listener->connections; x; x = x->next) {
		if (x == c || x->dropped)
			continue;
		own += x->uid == c->uid;
		users += !http_user_is_privileged(x->uid);
	}
	return own < OF_USER && users < OF_USERS;
}

/* It fits into the socket's buffer, and is there to be read after the end. */
static void refuse(struct http_connection *c)
{
	_cleanup_json_ json_t *json = error_answer_encode(&(struct error_answer){
	    .code = "too-many", .message = "this user has too many connections to dtraind"});
	_cleanup_free_ char *body = json_to_string(json);
	_cleanup_free_ char *text =
	    body ? str_printf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
	                      "Content-Length: %zu\r\nConnection: close\r\n\r\n%s\n",
	                      strlen(body) + 1, body)
	         : NULL;

	if (text && send(c->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("http: a refusal cannot be sent: %s", strerror(errno));
	http_connection_drop(c);
}

static int identify(struct http_connection *c)
{
	struct sockaddr_storage from;
	socklen_t len = sizeof(from), cred_len = sizeof(struct ucred);
	struct ucred cred;

	c->uid = -1;
	if (!c->listener->tls) {
		if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) < 0)
			return -errno;
		c->uid = cred.uid;
		return 0;
	}
	if (getpeername(c->fd, (struct sockaddr *)&from, &len) < 0)
		return -errno;
	to_address(from.ss_family,
	           from.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&from)->sin6_addr
	                                      : (void *)&((struct sockaddr_in *)&from)->sin_addr,
	           &c->address);
	c->known = is_known(c);
	return 0;
}

struct http_connection *http_connection_new(struct http_listener *l, int fd)
{
	struct http_connection *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return NULL;
	}
	c->listener = l;
	c->fd = fd;
	list_push(l->connections, c);
	l->connection_count++;
	if (identify(c) < 0) { /* it has gone already */
		close(fd);
		http_connection_free(c);
		return NULL;
	}
	if (!l->tls && !bound_users(c)) {
		refuse(c);
		return c;
	}
	set_pending(c);
	if (l->tls) {
		bound_pending(c);
		bound_all(c);
	}
	return c;
}

void http_connection_free(struct http_connection *c)
{
	if (!c)
		return;
	unlist(c);
	sd_event_source_disable_unref(c->first);
	c->listener->connection_count--;
	list_remove(c->listener->connections, c);
	if (c->listener->accept && !c->listener->starved)
		sd_event_source_set_enabled(c->listener->accept, SD_EVENT_ON); /* unless it was on */
	http_peer_release(&c->peer);
	free(c);
}

struct http_peer *http_connection_peer(struct http_connection *c)
{
	return &c->peer;
}

static void end_handshake(struct http_connection *c)
{
	struct http_listener *l = c->listener;
	uint64_t now;

	sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
	l->handshake_seconds += ((now - c->begun) / 1e6 - l->handshake_seconds) / SMOOTHING;
	c->begun = 0;
	http_connection_leave_place(c);
}

void http_connection_head(struct http_connection *c, bool complete)
{
	if (!c || c->dropped)
		return;
	if (c->begun)
		end_handshake(c);
	if (!complete && !c->pending)
		set_pending(c);
	if (!complete)
		return;
	unlist(c);
	c->proven = true;
}

int http_connection_admit(struct http_connection *c, bool reserved, int64_t uid, char why[HTTP_REFUSAL_SIZE])
{
	size_t of_address = 0, of_user = 0, of_users = 0, all = 0, most;

	if (!c || c->dropped)
		return 0;
	c->reserved = reserved;
	c->user = uid;
	c->busy = false;
	for (const struct http_connection *x = reserved ? NULL : c->listener->connections; x; x = x->next) {
		if (!x->busy || x->reserved || x->dropped)
			continue;
		all++;
		if (http_user_is_privileged(x->user))
			continue;
		of_users++;
		of_address += same_address(x, c);
		of_user += uid >= 0 && x->user == uid;
	}
	if (all >= (most = part_of(c->listener, REQUESTS)))
		snprintf(why, HTTP_REFUSAL_SIZE,
		         "too many requests are under way: %zu from all nodes; try again later", most);
	else if (http_user_is_privileged(uid))
		c->busy = true;
	else if (of_users >= (most = part_of(c->listener, REQUESTS_OF_USERS)))
		snprintf(why, HTTP_REFUSAL_SIZE,
		         "too many requests are under way: %zu of users on all nodes; try again later", most);
	else if (of_user >= (most = part_of(c->listener, REQUESTS_OF_USER)))
		snprintf(why, HTTP_REFUSAL_SIZE,
		         "too many requests are under way: %zu of the user with uid %lld on all nodes; "
		         "try again later",
		         most, (long long)uid);
	else if (of_address >= (most = part_of(c->listener, REQUESTS_OF_ADDRESS)))
		snprintf(why, HTTP_REFUSAL_SIZE,
		         "too many requests are under way: %zu of users on this node; try again later", most);
	else
		c->busy = true;
	return c->busy ? 0 : -EAGAIN;
}

void http_connection_done(struct http_connection *c)
{
	if (c)
		c->busy = false;
}
