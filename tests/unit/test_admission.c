/* SPDX-License-Identifier: Apache-2.0 */
/* New connections: which are accepted, and in which order their handshakes begin. libmicrohttpd is a
 * stand-in; the callers have addresses of their own within 127.0.0.0/8. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-event.h>

#include "http/internal.h"
#include "unit.h"

enum { MANY = 128 };

static struct http_server server;
static struct http_listener l;
static struct sockaddr_in address;
static int resumed;

/* ---- libmicrohttpd ---- */

static struct http_connection *given[MANY]; /* in their order */
static int given_count;
static enum MHD_Result taken = MHD_YES;
static bool closes;

enum MHD_Result MHD_add_connection(struct MHD_Daemon *daemon, MHD_socket fd, const struct sockaddr *from,
                                   socklen_t len)
{
	ck_assert_int_eq(l.admitted->fd, fd);
	ck_assert(!l.tls || ((const struct sockaddr_in *)from)->sin_family == AF_INET);
	if (closes) { /* it has taken it, and closes it at once */
		struct http_connection *c = l.admitted;

		l.admitted = NULL;
		http_connection_free(c);
	}
	if (taken != MHD_YES) {
		close(fd);
		return taken;
	}
	ck_assert_int_lt(given_count, MANY);
	given[given_count++] = l.admitted;
	l.admitted = NULL;
	return taken;
}

void http_peer_release(struct http_peer *peer)
{
}

/* ---- callers ---- */

static int callers[MANY], caller_count;

static int on_resumed(sd_event_source *source, void *context)
{
	resumed++;
	return 0;
}

static void setup(void)
{
	socklen_t len = sizeof(address);
	struct error err = ERROR_INIT;
	int fd;

	server = (struct http_server){0};
	ck_assert_int_ge(sd_event_new(&server.event), 0);
	ck_ok(http_bind_tcp("0.0.0.0", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	l = (struct http_listener){.server = &server, .tls = true, .fd = fd};
	ck_assert_int_ge(sd_event_add_defer(server.event, &l.resumed, on_resumed, NULL), 0);
	ck_assert_int_ge(sd_event_source_set_enabled(l.resumed, SD_EVENT_OFF), 0);
	ck_assert_int_ge(sd_event_add_time(server.event, &l.head_timer, CLOCK_MONOTONIC, UINT64_MAX, 1,
	                                   http_connections_timer, &l),
	                 0);
	ck_ok(http_accept_begin(&l, &err), &err);
}

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
	http_accept_end(&l);
	for (int i = 0; i < caller_count; i++)
		close(callers[i]);
	sd_event_source_disable_unref(l.head_timer);
	sd_event_source_disable_unref(l.resumed);
	sd_event_unref(server.event);
	free(server.peers);
}

/* Connects; words NULL: and says nothing. Returns the caller's number. */
static int call(const char *from, const char *words)
{
	struct sockaddr_in own = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(inet_pton(AF_INET, from, &own.sin_addr), 1);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	if (words)
		ck_assert_int_eq(write(fd, words, strlen(words)), (ssize_t)strlen(words));
	ck_assert_int_lt(caller_count, MANY);
	callers[caller_count] = fd;
	return caller_count++;
}

/* Runs what is due, until so many connections are there and so many of them are in the queue. */
static void await_queue(size_t connections, size_t queued)
{
	for (;;) {
		size_t n = 0;

		for (const struct http_connection *c = l.queue.first; c; c = c->then)
			n++;
		if (l.connection_count == connections && n == queued)
			return;
		ck_assert_int_ge(sd_event_run(server.event, UINT64_MAX), 0);
	}
}

static bool is_from(const struct http_connection *c, const char *from)
{
	struct in_addr want;

	ck_assert_int_eq(inet_pton(AF_INET, from, &want), 1);
	return memcmp(&c->address.s6_addr[12], &want, 4) == 0;
}

static void set_known(const char *const *addresses, size_t count)
{
	ck_assert_int_eq(http_server_set_peers(&server, addresses, count), 0);
}

static const char *nth_address(int i)
{
	static char text[32];

	snprintf(text, sizeof(text), "127.3.0.%d", i + 1);
	return text;
}

/* ---- tests ---- */

START_TEST(what_says_nothing_has_no_place)
{
	int silent = call("127.3.0.1", NULL), gone = call("127.3.0.2", NULL);

	call("127.3.0.3", "hello");
	await_queue(3, 1);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert(is_from(given[0], "127.3.0.3"));
	ck_assert_uint_eq(http_admit(&l), 0);
	ck_assert_uint_eq(l.places, 1);
	resumed = 0;
	ck_assert_int_eq(write(callers[silent], "x", 1), 1);
	await_queue(3, 1);
	while (!resumed)
		ck_assert_int_ge(sd_event_run(server.event, UINT64_MAX), 0);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert(is_from(given[1], "127.3.0.1"));
	shutdown(callers[gone], SHUT_RDWR);
	await_queue(2, 0);
}
END_TEST

START_TEST(who_has_gone_gets_no_place)
{
	int gone = call("127.3.0.1", "hello");

	call("127.3.0.2", "hello");
	await_queue(2, 2);
	shutdown(callers[gone], SHUT_RDWR);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert(is_from(given[0], "127.3.0.2"));
	ck_assert_uint_eq(l.connection_count, 1);
}
END_TEST

START_TEST(there_are_32_places)
{
	char text[40][32];
	const char *addresses[40];

	for (int i = 0; i < 40; i++) {
		snprintf(text[i], sizeof(text[i]), "%s", nth_address(i));
		addresses[i] = text[i];
	}
	set_known(addresses, 40);
	for (int i = 0; i < 40; i++)
		call(addresses[i], "hello");
	await_queue(40, 40);
	ck_assert_uint_eq(http_admit(&l), 32);
	for (int i = 0; i < 32; i++)
		ck_assert(is_from(given[i], addresses[i]));
	ck_assert_uint_eq(http_admit(&l), 0);
	/* The end of a handshake, and that of a connection, make room. */
	http_connection_head(given[0], false);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert(is_from(given[32], addresses[32]));
	leave(given[1]);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert_uint_eq(http_admit(&l), 0);
	ck_assert_uint_eq(l.places, 32);
}
END_TEST

START_TEST(strangers_have_24_of_them)
{
	set_known((const char *const[]){"127.4.0.1"}, 1);
	for (int i = 0; i < 30; i++)
		call(nth_address(i), "hello");
	call("127.4.0.1", "hello");
	await_queue(31, 31);
	ck_assert_uint_eq(http_admit(&l), 25);
	for (int i = 0; i < 24; i++)
		ck_assert(is_from(given[i], nth_address(i)));
	ck_assert(is_from(given[24], "127.4.0.1"));
}
END_TEST

START_TEST(an_address_has_8_of_them)
{
	set_known((const char *const[]){"127.3.0.1", "127.4.0.1"}, 2);
	for (int i = 0; i < 12; i++)
		call("127.3.0.1", "hello");
	await_queue(12, 12);
	ck_assert_uint_eq(http_admit(&l), 8);
	/* Of two that wait the one with fewer goes first. */
	http_connection_head(given[0], false);
	call("127.4.0.1", "hello");
	await_queue(13, 5);
	ck_assert_uint_eq(http_admit(&l), 2);
	ck_assert(is_from(given[8], "127.4.0.1"));
	ck_assert(is_from(given[9], "127.3.0.1"));
}
END_TEST

/* Four times as long as a handshake takes of late, at least 20 ms, at most a second; an option says
 * otherwise. */
START_TEST(who_stops_loses_its_place)
{
	static const struct {
		double handshake, option, late, early;
	} cases[] = {
	    {0.1, 0, 0.41, 0.3},
	    {0.0001, 0, 0.021, 0.01},
	    {60, 0, 1.01, 0.9},
	    {60, 100, 101, 90},
	};
	struct http_connection *c;
	uint64_t now;

	server.options.stalled_seconds = cases[_i].option;
	l.handshake_seconds = cases[_i].handshake;
	set_known((const char *const[]){"127.3.0.1"}, 1);
	for (int i = 0; i < 10; i++)
		call("127.3.0.1", "h");
	await_queue(10, 10);
	ck_assert_uint_eq(http_admit(&l), 8);
	ck_assert_int_ge(sd_event_now(server.event, CLOCK_MONOTONIC, &now), 0);
	for (int i = 0; i < 8; i++) {
		char byte;

		given[i]->begun = now - (uint64_t)((i < 3 ? cases[_i].late : cases[_i].early) * 1e6);
		/* What the second one has said is still to be read. */
		if (i != 1)
			ck_assert_int_eq(read(given[i]->fd, &byte, 1), 1);
	}
	ck_assert_uint_eq(http_admit(&l), 2);
	ck_assert(!given[0]->place);
	ck_assert(given[1]->place);
	ck_assert(!given[2]->place);
	ck_assert(given[3]->place);
	/* It keeps its connection and its deadline. */
	ck_assert(given[0]->pending);
	c = given[0];
	http_connection_head(c, false);
	ck_assert_uint_eq(l.places, 8);
}
END_TEST

START_TEST(a_first_handshake_is_taken_to_last_60_ms)
{
	ck_assert(l.handshake_seconds == 0.06);
}
END_TEST

/* Others have their turn before the next 64. */
START_TEST(no_more_than_64_are_accepted_in_a_turn)
{
	for (int i = 0; i < 70; i++)
		call(nth_address(i), NULL);
	ck_assert_int_eq(sd_event_run(server.event, UINT64_MAX), 1);
	ck_assert_uint_eq(l.connection_count, 64);
	await_queue(70, 0);
}
END_TEST

/* A connection that is dropped and not closed yet counts: libmicrohttpd has it. */
START_TEST(beyond_the_limit_none_is_accepted)
{
	int enabled;

	server.options.tls_connections = 4;
	for (int i = 0; i < 6; i++) {
		call(nth_address(i), "hello");
		if (i < 4) {
			await_queue((size_t)i + 1, 1);
			ck_assert_uint_eq(http_admit(&l), 1);
		}
	}
	ck_assert_uint_eq(l.connection_count, 4);
	ck_assert_int_ge(sd_event_source_get_enabled(l.accept, &enabled), 0);
	ck_assert_int_eq(enabled, SD_EVENT_OFF);
	while (sd_event_run(server.event, 0) > 0)
		;
	ck_assert_uint_eq(l.connection_count, 4);
	leave(given[0]);
	await_queue(4, 1);
}
END_TEST

/* Where descriptors do not suffice the service does not turn in circles; it tries again later. */
START_TEST(without_descriptors_accepting_pauses)
{
	struct rlimit limit, before;
	int enabled;

	call("127.3.0.1", "hello");
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (!l.starved)
		ck_assert_int_ge(sd_event_run(server.event, UINT64_MAX), 0);
	ck_assert_int_ge(sd_event_source_get_enabled(l.accept, &enabled), 0);
	ck_assert_int_eq(enabled, SD_EVENT_OFF);
	ck_assert_uint_eq(l.connection_count, 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	http_accept_again(&l);
	ck_assert(!l.starved);
	await_queue(1, 1);
	/* Without need it changes nothing. */
	ck_assert_int_ge(sd_event_source_set_enabled(l.accept, SD_EVENT_OFF), 0);
	http_accept_again(&l);
	ck_assert_int_ge(sd_event_source_get_enabled(l.accept, &enabled), 0);
	ck_assert_int_eq(enabled, SD_EVENT_OFF);
}
END_TEST

START_TEST(what_the_library_does_not_take_is_gone)
{
	call("127.3.0.1", "hello");
	await_queue(1, 1);
	taken = MHD_NO;
	closes = _i;
	http_admit(&l);
	ck_assert_uint_eq(l.connection_count, 0);
	ck_assert_uint_eq(l.places, 0);
	ck_assert_ptr_null(l.admitted);
	ck_assert_ptr_null(l.connections);
}
END_TEST

/* A caller that has gone before it was accepted leaves nothing, and keeps no other caller out. */
START_TEST(who_has_gone_is_not_accepted)
{
	const struct linger reset = {.l_onoff = 1};
	int gone = call("127.3.0.1", "hello");

	ck_assert_int_eq(setsockopt(callers[gone], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	ck_assert_int_eq(close(callers[gone]), 0);
	callers[gone] = -1;
	call("127.3.0.2", "hello");
	await_queue(1, 1);
	ck_assert_uint_eq(http_admit(&l), 1);
	ck_assert(is_from(given[0], "127.3.0.2"));
}
END_TEST

/* The kernel says who calls on a Unix socket: there is no handshake, and no queue. */
START_TEST(a_connection_of_this_machine_does_not_wait)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = NULL;
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct error err = ERROR_INIT;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	http_accept_end(&l);
	ck_assert_int_eq(l.fd, -1);
	ck_assert_ptr_null(l.accept);
	ck_assert_int_ge(asprintf(&path, "%s/socket", dir), 0);
	ck_ok(http_bind_unix(path, 0600, NULL, &l.fd, &err), &err);
	l.tls = false;
	ck_ok(http_accept_begin(&l, &err), &err);
	strcpy(sun.sun_path, path);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	while (given_count < 1)
		ck_assert_int_ge(sd_event_run(server.event, UINT64_MAX), 0);
	ck_assert_int_eq(given[0]->uid, geteuid());
	ck_assert_uint_eq(l.places, 0);
	close(fd);
	file_remove_tree(dir, NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("admission");
	TCase *c = tcase_create("admission");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, what_says_nothing_has_no_place);
	tcase_add_test(c, who_has_gone_gets_no_place);
	tcase_add_test(c, there_are_32_places);
	tcase_add_test(c, strangers_have_24_of_them);
	tcase_add_test(c, an_address_has_8_of_them);
	tcase_add_loop_test(c, who_stops_loses_its_place, 0, 4);
	tcase_add_test(c, a_first_handshake_is_taken_to_last_60_ms);
	tcase_add_test(c, no_more_than_64_are_accepted_in_a_turn);
	tcase_add_test(c, beyond_the_limit_none_is_accepted);
	tcase_add_test(c, without_descriptors_accepting_pauses);
	tcase_add_loop_test(c, what_the_library_does_not_take_is_gone, 0, 2);
	tcase_add_test(c, who_has_gone_is_not_accepted);
	tcase_add_test(c, a_connection_of_this_machine_does_not_wait);
	return unit_run(s);
}
