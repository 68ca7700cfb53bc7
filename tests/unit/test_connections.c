/* SPDX-License-Identifier: Apache-2.0 */
/* Who may have how many connections and requests, and for how long a head may take. The listener has no
 * server; addresses and users of the callers are what the test says. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "base/clock.h"
#include "failing_memory.h"
#include "http/internal.h"

/* ---- who calls ---- */

static const char *address; /* NULL: the caller has gone already */
static uid_t uid;

int __wrap_getpeername(int fd, struct sockaddr *out, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *out, socklen_t *len)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	if (!address) {
		errno = ENOTCONN;
		return -1;
	}
	memset(out, 0, *len);
	out->sa_family = strchr(address, ':') ? AF_INET6 : AF_INET;
	ck_assert_int_eq(
	    inet_pton(out->sa_family, address,
	              out->sa_family == AF_INET ? (void *)&v4->sin_addr : (void *)&v6->sin6_addr),
	    1);
	return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	ck_assert_int_eq(name, SO_PEERCRED);
	*(struct ucred *)value = (struct ucred){.pid = 1, .uid = uid, .gid = 1};
	return 0;
}

void http_peer_release(struct http_peer *peer)
{
}

/* ---- a listener ---- */

enum { MANY = 5000 };

static struct http_server server;
static struct http_listener l;
static int ends[MANY], end_count; /* of the callers, in the order in which they came */
static struct http_connection *last;

static void setup(void)
{
	server = (struct http_server){0};
	l = (struct http_listener){.server = &server, .tls = true, .fd = -1};
	end_count = 0;
	ck_assert_int_ge(sd_event_new(&server.event), 0);
	ck_assert_int_ge(
	    sd_event_add_time(server.event, &l.head_timer, CLOCK_MONOTONIC, 0, 1, http_connections_timer, &l),
	    0);
	ck_assert_int_ge(sd_event_source_set_enabled(l.head_timer, SD_EVENT_OFF), 0);
}

/* What MHD does with its connections when it ends. */
static void leave(struct http_connection *c)
{
	int fd = c->fd;

	http_connection_free(c);
	close(fd);
}

static void teardown(void)
{
	while (l.connections)
		leave(l.connections);
	ck_assert_uint_eq(l.connection_count, 0);
	ck_assert_uint_eq(l.trying, 0);
	ck_assert_uint_eq(l.places, 0);
	ck_assert_ptr_null(l.pending.first);
	ck_assert_ptr_null(l.queue.first);
	for (int i = 0; i < end_count; i++)
		close(ends[i]);
	sd_event_source_disable_unref(l.head_timer);
	sd_event_source_disable_unref(l.accept);
	sd_event_unref(server.event);
	free(server.peers);
}

/* Returns its number. */
static int arrive(const char *from)
{
	int fds[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
	address = from;
	last = http_connection_new(&l, fds[0]);
	ck_assert_int_lt(end_count, MANY);
	ends[end_count] = fds[1];
	return end_count++;
}

static bool is_open(int i)
{
	char byte;

	return recv(ends[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

static int count_open(void)
{
	int n = 0;

	for (int i = 0; i < end_count; i++)
		n += is_open(i);
	return n;
}

/* A connection whose first request has a head: it is no longer pending. */
static struct http_connection *prove(const char *from)
{
	arrive(from);
	http_connection_begin(last);
	http_connection_head(last, false);
	http_connection_head(last, true);
	return last;
}

static const char *nth_address(int i)
{
	static char text[32];

	snprintf(text, sizeof(text), "10.1.%d.%d", i / 250, i % 250 + 1);
	return text;
}

/* ---- connections that are pending ---- */

START_TEST(an_unknown_address_has_64_pending)
{
	int other = arrive("10.0.0.2"), first = arrive("10.0.0.1");

	for (int i = 1; i < 64; i++)
		arrive(i % 2 ? "10.0.0.1" : "::ffff:10.0.0.1");
	ck_assert_int_eq(count_open(), 65);
	arrive("10.0.0.1");
	ck_assert_int_eq(count_open(), 65);
	ck_assert(!is_open(first));
	ck_assert(is_open(first + 1));
	ck_assert(is_open(other));
	ck_assert(is_open(end_count - 1));
	/* Those that wait for their handshake to begin are counted; one that is pending goes first. */
	while (l.pending.first)
		http_connection_enqueue(l.pending.first);
	arrive("10.0.0.1");
	ck_assert(!is_open(first + 1));
	arrive("10.0.0.1");
	ck_assert(!is_open(end_count - 2));
	ck_assert(is_open(first + 2));
	ck_assert(is_open(other));
}
END_TEST

START_TEST(a_service_has_512_pending)
{
	static const char *const peers[] = {"n1", "10.0.0.1", "fd00::1"};
	int first;

	ck_assert_int_eq(http_server_set_peers(&server, peers, 3), 0);
	first = arrive("fd00::1");
	for (int i = 1; i < 512; i++)
		arrive("fd00::1");
	ck_assert_int_eq(count_open(), 512);
	arrive("fd00::1");
	ck_assert_int_eq(count_open(), 512);
	ck_assert(!is_open(first));
	for (int i = 0; i < 65; i++)
		arrive("10.0.0.1");
	ck_assert_int_eq(count_open(), 577);
	/* Later settings take the place of those before. */
	ck_assert_int_eq(http_server_set_peers(&server, peers, 1), 0);
	arrive("10.0.0.1");
	ck_assert_int_eq(count_open(), 577);
}
END_TEST

/* A service whose name is in the hosts file instead of its address is known as long as it is connected. */
START_TEST(an_address_is_known_by_a_connection_that_is_proven)
{
	struct http_connection *c;
	int first;

	arrive("10.0.0.1");
	ck_assert(!last->known);
	c = prove("10.0.0.1");
	ck_assert(!c->known);
	first = arrive("10.0.0.1");
	ck_assert(last->known);
	arrive("10.0.0.2");
	ck_assert(!last->known);
	http_connection_drop(c);
	ck_assert(!is_open(first - 1));
	arrive("10.0.0.1");
	ck_assert(!last->known);
}
END_TEST

START_TEST(strangers_have_512_pending_together)
{
	static const char *const peers[] = {"10.0.0.1"};

	ck_assert_int_eq(http_server_set_peers(&server, peers, 1), 0);
	arrive("10.0.0.1");
	prove("10.0.0.3");
	http_connection_head(last, false);
	for (int i = 0; i < 512; i++)
		arrive(nth_address(i));
	ck_assert_int_eq(count_open(), 514);
	arrive("10.0.0.1");
	ck_assert_int_eq(count_open(), 515);
	arrive("10.0.0.2");
	ck_assert_int_eq(count_open(), 515);
	ck_assert(is_open(0));
	ck_assert(is_open(1));
	ck_assert(!is_open(2));
}
END_TEST

START_TEST(strangers_that_wait_have_a_quarter)
{
	static const char *const peers[] = {"10.0.0.1"};

	server.options.tls_connections = 400;
	ck_assert_int_eq(http_server_set_peers(&server, peers, 1), 0);
	arrive("10.0.0.1");
	http_connection_enqueue(last);
	for (int i = 0; i < 100; i++) {
		arrive(nth_address(i));
		http_connection_enqueue(last);
	}
	ck_assert_int_eq(count_open(), 101);
	arrive("10.0.0.1");
	ck_assert_int_eq(count_open(), 102);
	arrive(nth_address(200));
	ck_assert_int_eq(count_open(), 102);
	ck_assert(is_open(0));
	ck_assert(!is_open(1));
}
END_TEST

START_TEST(who_has_gone_is_not_taken)
{
	arrive(NULL);
	ck_assert_ptr_null(last);
	ck_assert(!is_open(0));
	ck_assert_uint_eq(l.connection_count, 0);
	ck_assert_ptr_null(l.connections);
}
END_TEST

/* ---- all connections ---- */

/* Of 40 one is to spare. */
START_TEST(who_is_idle_makes_room)
{
	struct http_connection *idle[2], *reserved, *busy;
	char why[HTTP_REFUSAL_SIZE];

	server.options.tls_connections = 40;
	ck_assert_uint_eq(http_connection_limit(&l), 40);
	ck_assert_int_eq(http_server_set_peers(&server, (const char *const[]){"10.0.0.4"}, 1), 0);
	reserved = prove("10.0.0.1");
	ck_assert_int_eq(http_connection_admit(reserved, true, -1, why), 0);
	http_connection_done(reserved);
	busy = prove("10.0.0.2");
	ck_assert_int_eq(http_connection_admit(busy, false, 70001, why), 0);
	for (int i = 0; i < 2; i++) {
		idle[i] = prove("10.0.0.3");
		ck_assert_int_eq(http_connection_admit(idle[i], false, 70001, why), 0);
		http_connection_done(idle[i]);
	}
	for (int i = 4; i < 39; i++)
		arrive(nth_address(i));
	ck_assert_int_eq(count_open(), 39);
	arrive("10.0.0.4");
	ck_assert(!is_open(2));
	ck_assert_int_eq(count_open(), 39);
	arrive("10.0.0.4");
	ck_assert(!is_open(3));
	ck_assert_int_eq(count_open(), 39);
	/* Then the oldest that is pending, and then one that waits. */
	arrive("10.0.0.4");
	ck_assert(!is_open(4));
	while (l.pending.first)
		http_connection_enqueue(l.pending.first);
	arrive("10.0.0.4");
	ck_assert(!is_open(5));
	ck_assert_int_eq(count_open(), 39);
	ck_assert(is_open(0));
	ck_assert(is_open(1));
	ck_assert(is_open(end_count - 1));
}
END_TEST

START_TEST(a_listener_of_services_may_have_4000)
{
	ck_assert_uint_eq(http_connection_limit(&l), 4000);
	server.options.tls_connections = 7;
	ck_assert_uint_eq(http_connection_limit(&l), 7);
	l.tls = false;
	ck_assert_uint_eq(http_connection_limit(&l), 4000);
}
END_TEST

/* MHD closes what it has, and what it has not is closed with the listener. */
START_TEST(a_listener_closes_what_was_not_given_away)
{
	struct http_connection *c = prove("10.0.0.1");

	arrive("10.0.0.1");
	arrive("10.0.0.2");
	http_connection_enqueue(last);
	http_connections_close(&l);
	ck_assert(is_open(0));
	ck_assert_int_eq(count_open(), 1);
	ck_assert_ptr_eq(l.connections, c);
	ck_assert_ptr_null(c->next);
}
END_TEST

/* ---- users of the Unix socket ---- */

static void arrive_as(uid_t who)
{
	uid = who;
	arrive(NULL);
}

START_TEST(a_user_has_512_connections)
{
	static const char head[] = "HTTP/1.1 503 Service Unavailable\r\n";
	char answer[1024], *body;
	size_t length = 0;
	ssize_t n;

	l.tls = false;
	for (int i = 0; i < 512; i++)
		arrive_as(70001);
	ck_assert_int_eq(count_open(), 512);
	arrive_as(70001);
	ck_assert(last->dropped);
	n = recv(ends[512], answer, sizeof(answer) - 1, 0);
	ck_assert_int_gt(n, 0);
	answer[n] = '\0';
	ck_assert_msg(strncmp(answer, head, strlen(head)) == 0, "%s", answer);
	ck_assert_ptr_nonnull(strstr(answer, "\"too-many\""));
	ck_assert_ptr_nonnull(strstr(answer, "Connection: close\r\n"));
	body = strstr(answer, "\r\n\r\n");
	ck_assert_ptr_nonnull(body);
	ck_assert_int_eq(sscanf(strstr(answer, "Content-Length:"), "Content-Length: %zu", &length), 1);
	ck_assert_uint_eq(length, strlen(body + 4));
	ck_assert_int_eq(recv(ends[512], answer, sizeof(answer), 0), 0);
	arrive_as(70002);
	arrive_as(0);
	arrive_as(geteuid());
	ck_assert_int_eq(count_open(), 515);
	/* The one that was refused is not closed yet, and takes no one's place. */
	for (struct http_connection *c = l.connections; c; c = c->next)
		if (c->uid == 70001 && !c->dropped) {
			leave(c);
			break;
		}
	arrive_as(70001);
	ck_assert(!last->dropped);
	arrive_as(70001);
	ck_assert(last->dropped);
}
END_TEST

/* 3600 of 4000: the rest is root's. */
START_TEST(users_have_a_bound_together)
{
	struct rlimit limit;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	l.tls = false;
	arrive_as(0);
	for (int i = 0; i < 3600; i++) {
		uid = (uid_t)(70000 + i);
		last = http_connection_new(&l, open("/dev/null", O_RDONLY | O_CLOEXEC));
		ck_assert(!last->dropped);
	}
	arrive_as(70000);
	ck_assert(last->dropped);
	arrive_as(0);
	ck_assert(!last->dropped);
}
END_TEST

/* Where the refusal cannot be written, the connection ends without one. */
START_TEST(a_user_is_refused_without_memory)
{
	int after = 0;

	l.tls = false;
	for (int i = 0; i < 512; i++)
		arrive_as(70001);
	memory_refused = true;
	for (long n = 1; memory_refused; n++) {
		memory_refused = false;
		memory_left = n;
		arrive_as(70001);
		memory_left = 0;
		ck_assert_msg(!last || last->dropped, "allocation %ld", n);
		ck_assert_int_eq(count_open(), 512);
		after++;
	}
	ck_assert_int_gt(after, 2);
}
END_TEST

/* ---- requests ---- */

static struct http_connection *open_request(const char *from, int64_t user, const char *refused)
{
	struct http_connection *c = prove(from);
	char why[HTTP_REFUSAL_SIZE] = "";
	int r = http_connection_admit(c, false, user, why);

	ck_assert_msg(refused ? r == -EAGAIN && strstr(why, refused) : r == 0, "%d of %s: %s", (int)user,
	              from, why);
	return c;
}

/* Of 40 connections the 10 of a node; returns one of them. */
static struct http_connection *use_all_of_a_node(void)
{
	struct http_connection *c;

	server.options.tls_connections = 40;
	c = open_request("10.0.0.1", 70001, NULL);
	for (int i = 1; i < 10; i++)
		open_request("10.0.0.1", 70000 + i, NULL);
	return c;
}

/* Of 40 connections: 10 requests of a node, 20 of a user, 24 of users, 25 in all. */
START_TEST(requests_of_users_are_bounded)
{
	char why[HTTP_REFUSAL_SIZE];
	struct http_connection *c;

	c = use_all_of_a_node();
	open_request("10.0.0.1", 70050, "10 of users on this node");
	/* What services ask for themselves is not counted, and root is not a user. */
	ck_assert_int_eq(http_connection_admit(prove("10.0.0.1"), true, 70001, why), 0);
	http_connection_done(open_request("10.0.0.1", 0, NULL));
	/* One that has ended makes room, and one that is dropped. */
	http_connection_done(c);
	c = open_request("10.0.0.1", 70001, NULL);
	open_request("10.0.0.1", 70050, "10 of users on this node");
	http_connection_drop(c);
	open_request("10.0.0.1", 70001, NULL);
	open_request("10.0.0.1", 70050, "10 of users on this node");
	for (int i = 0; i < 14; i++)
		open_request("10.0.0.2", i < 9 ? 70060 : 70070, i < 10 ? NULL : "10 of users on this node");
	for (int i = 0; i < 4; i++)
		open_request("10.0.0.3", 70060, NULL);
	open_request("10.0.0.3", 70061, "24 of users on all nodes");
	open_request("10.0.0.3", 0, NULL);
	open_request("10.0.0.3", 0, "25 from all nodes");
	ck_assert_int_eq(http_connection_admit(prove("10.0.0.3"), true, 70001, why), 0);
}
END_TEST

/* Users may have 24 of them also while root has one. */
START_TEST(requests_of_root_are_not_those_of_users)
{
	server.options.tls_connections = 40;
	open_request("10.0.0.4", 0, NULL);
	for (int i = 0; i < 24; i++)
		open_request(nth_address(i / 10), 70000 + i, NULL);
}
END_TEST

START_TEST(requests_of_one_user_are_bounded_on_all_nodes)
{
	struct http_connection *c = NULL;

	server.options.tls_connections = 40;
	for (int i = 0; i < 20; i++)
		c = open_request(nth_address(i), 70001, NULL);
	open_request("10.0.0.1", 70001, "20 of the user with uid 70001 on all nodes");
	open_request("10.0.0.1", 70002, NULL);
	/* For no user. */
	open_request("10.0.0.1", -1, NULL);
	open_request("10.0.0.1", -1, NULL);
	http_connection_done(c);
	open_request("10.0.0.1", 70001, NULL);
	http_connection_done(NULL);
	ck_assert_int_eq(http_connection_admit(NULL, false, 70001, NULL), 0);
}
END_TEST

/* The next request of a connection is admitted as if the one before had not been. */
START_TEST(a_connection_has_one_request_at_a_time)
{
	char why[HTTP_REFUSAL_SIZE];
	struct http_connection *c;

	c = use_all_of_a_node();
	ck_assert_int_eq(http_connection_admit(c, false, 70001, why), 0);
	open_request("10.0.0.1", 70050, "10 of users on this node");
	/* As a user; then what a service asks for itself, which leaves the place of the user. */
	ck_assert_int_eq(http_connection_admit(c, true, 70001, why), 0);
	open_request("10.0.0.1", 70050, NULL);
	open_request("10.0.0.1", 70051, "10 of users on this node");
	ck_assert_int_eq(http_connection_admit(c, false, 70001, why), -EAGAIN);
}
END_TEST

/* What MHD still has to say of a connection that was dropped has no effect. */
START_TEST(a_connection_that_is_dropped_stays_so)
{
	struct http_connection *c = prove("10.0.0.1");
	char why[HTTP_REFUSAL_SIZE];

	http_connection_head(NULL, true);
	http_connection_drop(c);
	http_connection_head(c, false);
	ck_assert_ptr_null(l.pending.first);
	ck_assert(!c->pending);
	ck_assert_int_eq(http_connection_admit(c, false, 70001, why), 0);
	ck_assert(!c->busy);
	http_connection_begin(c);
	ck_assert_uint_eq(l.places, 0);
	ck_assert_uint_eq(l.trying, 0);
	ck_assert_ptr_null(l.pending.first);
}
END_TEST

/* ---- deadlines ---- */

static void await_closed(int i)
{
	while (is_open(i))
		ck_assert_int_ge(sd_event_run(server.event, UINT64_MAX), 0);
}

START_TEST(a_head_has_to_come_in_time)
{
	struct http_connection *c;
	double begun = clock_monotonic();

	server.options.head_seconds = 0.1;
	arrive("10.0.0.1"); /* says nothing */
	arrive("10.0.0.1"); /* waits for its handshake */
	http_connection_enqueue(last);
	prove("10.0.0.1"); /* has asked */
	c = prove("10.0.0.1");
	http_connection_head(c, false); /* asks again */
	ck_assert_uint_eq(l.trying, 1);
	http_connection_head(c, false);
	ck_assert_uint_eq(l.trying, 1);
	arrive("10.0.0.2"); /* its handshake does not end */
	http_connection_begin(last);
	ck_assert_uint_eq(l.trying, 2);
	await_closed(4);
	ck_assert(clock_monotonic() - begun >= 0.1);
	ck_assert(!is_open(0));
	ck_assert(is_open(1));
	ck_assert(is_open(2));
	ck_assert(!is_open(3));
	ck_assert_uint_eq(l.trying, 0);
	/* The timer is set anew for who comes then. */
	arrive("10.0.0.1");
	await_closed(5);
	ck_assert(is_open(1));
}
END_TEST

/* A head that is there in time is not cut off by the deadline of another one. */
START_TEST(the_deadline_is_that_of_the_oldest)
{
	server.options.head_seconds = 0.05;
	arrive("10.0.0.1");
	server.options.head_seconds = 3600;
	arrive("10.0.0.1");
	await_closed(0);
	ck_assert(is_open(1));
	ck_assert(l.head_timer_set);
	ck_assert_int_eq(sd_event_run(server.event, 0), 0);
	ck_assert(is_open(1));
}
END_TEST

START_TEST(ten_seconds_are_the_default)
{
	uint64_t now;

	ck_assert_int_ge(sd_event_now(server.event, CLOCK_MONOTONIC, &now), 0);
	arrive("10.0.0.1");
	ck_assert_uint_ge(last->due, now + 10000000);
	ck_assert_int_ge(sd_event_now(server.event, CLOCK_MONOTONIC, &now), 0);
	ck_assert_uint_le(last->due, now + 10000000);
}
END_TEST

/* ---- handshakes ---- */

/* The mean remembers eight of them. */
START_TEST(the_duration_of_handshakes_is_measured)
{
	double begun = clock_monotonic(), most, measured;

	l.handshake_seconds = 8;
	arrive("10.0.0.1");
	http_connection_begin(last);
	ck_assert_uint_eq(l.places, 1);
	http_connection_head(last, false);
	most = 7 + (clock_monotonic() - begun) / 8;
	ck_assert_uint_eq(l.places, 0);
	measured = l.handshake_seconds;
	ck_assert(measured >= 7 && measured <= most);
	/* The second request of the connection has none. */
	http_connection_head(last, true);
	http_connection_head(last, false);
	ck_assert(l.handshake_seconds == measured);
	/* A Unix socket has none either. */
	l.tls = false;
	arrive_as(0);
	http_connection_begin(last);
	http_connection_head(last, true);
	ck_assert_uint_eq(l.places, 0);
	ck_assert(l.handshake_seconds == measured);
}
END_TEST

/* ---- the listening socket ---- */

START_TEST(the_end_of_a_connection_lets_another_one_in)
{
	int on = eventfd(0, EFD_CLOEXEC), enabled;

	ck_assert_int_ge(sd_event_add_io(server.event, &l.accept, on, 0, NULL, NULL), 0);
	for (int starved = 1; starved >= 0; starved--) {
		ck_assert_int_ge(sd_event_source_set_enabled(l.accept, SD_EVENT_OFF), 0);
		l.starved = starved;
		arrive("10.0.0.1");
		leave(last);
		ck_assert_int_ge(sd_event_source_get_enabled(l.accept, &enabled), 0);
		ck_assert_int_eq(enabled, starved ? SD_EVENT_OFF : SD_EVENT_ON);
	}
	l.accept = sd_event_source_disable_unref(l.accept);
	close(on);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("connections");
	TCase *c = tcase_create("connections");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, an_unknown_address_has_64_pending);
	tcase_add_test(c, a_service_has_512_pending);
	tcase_add_test(c, an_address_is_known_by_a_connection_that_is_proven);
	tcase_add_test(c, strangers_have_512_pending_together);
	tcase_add_test(c, strangers_that_wait_have_a_quarter);
	tcase_add_test(c, who_has_gone_is_not_taken);
	tcase_add_test(c, who_is_idle_makes_room);
	tcase_add_test(c, a_listener_of_services_may_have_4000);
	tcase_add_test(c, a_listener_closes_what_was_not_given_away);
	tcase_add_test(c, a_user_has_512_connections);
	tcase_add_test(c, users_have_a_bound_together);
	tcase_add_test(c, requests_of_users_are_bounded);
	tcase_add_test(c, requests_of_root_are_not_those_of_users);
	tcase_add_test(c, requests_of_one_user_are_bounded_on_all_nodes);
	tcase_add_test(c, a_user_is_refused_without_memory);
	tcase_add_test(c, a_connection_has_one_request_at_a_time);
	tcase_add_test(c, a_connection_that_is_dropped_stays_so);
	tcase_add_test(c, a_head_has_to_come_in_time);
	tcase_add_test(c, the_deadline_is_that_of_the_oldest);
	tcase_add_test(c, ten_seconds_are_the_default);
	tcase_add_test(c, the_duration_of_handshakes_is_measured);
	tcase_add_test(c, the_end_of_a_connection_lets_another_one_in);
	return unit_run(s);
}
