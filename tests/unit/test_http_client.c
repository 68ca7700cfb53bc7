/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to other services over a connection that is kept open, and that breaks. Between client and service
 * stands a relay, which can swallow an answer. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "http/client.h"
#include "http/identity.h"
#include "http/server.h"
#include "unit.h"

static atomic_int received; /* requests, by the service */

static void take(void *context, struct http_request *r)
{
	size_t len;
	const char *body = http_request_body(r, &len);

	received++;
	http_reply_json(r, len == 5 && memcmp(body, "start", len) == 0 ? 200 : 400, json_object());
}

/* Its answer never comes. */
static void hold(void *context, struct http_request *r)
{
	received++;
}

static const struct http_route routes[] = {{"POST", "/take", HTTP_PEER, take},
                                           {"POST", "/hold", HTTP_PEER, hold}};

struct relay {
	int listen_fd, port, service_port;
	atomic_bool swallow; /* of what the service says: then nobody can connect any more */
	atomic_int connections;
	pthread_t thread;
};

struct fixture {
	char *dir;
	struct identity *id;
	sd_event *served, *event;
	struct http_server *server;
	struct http_client *client;
	struct relay relay;
	int stop;
	pthread_t thread;
	bool done, queued;
	int status, code; /* of the last call */
};

static int listen_somewhere(int *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(fd, 8), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	*port = ntohs(a.sin_port);
	return fd;
}

/* One connection, until either side closes it. */
static void relay_connection(struct relay *r, int from)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
	                        .sin_port = htons((in_port_t)r->service_port),
	                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct pollfd fds[] = {{from, POLLIN, 0}, {to, POLLIN, 0}};
	char data[16384];

	ck_assert_int_eq(connect(to, (struct sockaddr *)&a, sizeof(a)), 0);
	for (;;) {
		int which;
		ssize_t n;

		poll(fds, 2, -1);
		which = fds[0].revents ? 0 : 1;
		n = read(fds[which].fd, data, sizeof(data));
		if (n > 0 && which == 1 && r->swallow) {
			close(steal_fd(&r->listen_fd));
			break;
		}
		if (n <= 0 || write(fds[!which].fd, data, (size_t)n) != n)
			break;
	}
	close(to);
	close(from);
}

static void *relay_run(void *arg)
{
	struct relay *r = arg;

	while (r->listen_fd >= 0) {
		int fd = accept4(r->listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		r->connections++;
		relay_connection(r, fd);
	}
	return NULL;
}

static int on_stop(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	return sd_event_exit(sd_event_source_get_event(source), 0);
}

static void *serve(void *arg)
{
	sd_event_loop(arg);
	return NULL;
}

static void setup(struct fixture *f)
{
	/* On a loaded machine a handshake may take longer than a service lets it take. */
	struct http_server_options o = {.routes = routes,
	                                .route_count = ARRAY_SIZE(routes),
	                                .context = f,
	                                .max_body = 4096,
	                                .head_seconds = 300};
	struct error err = ERROR_INIT;
	_cleanup_free_ char *path = NULL;
	int fd;

	*f = (struct fixture){.dir = unit_tmpdir(), .stop = eventfd(0, EFD_CLOEXEC)};
	path = str_path_join(f->dir, "cluster.pem");
	ck_ok(identity_make(path, true, &err), &err);
	ck_ok(identity_load(path, &f->id, &err), &err);
	ck_assert_int_ge(sd_event_new(&f->served), 0);
	ck_assert_int_ge(sd_event_new(&f->event), 0);
	ck_assert_int_ge(sd_event_add_io(f->served, NULL, f->stop, POLLIN, on_stop, NULL), 0);
	ck_ok(http_server_create(f->served, &o, &f->server, &err), &err);
	ck_assert_int_eq(http_server_set_peers(f->server, (const char *[]){"127.0.0.1"}, 1), 0);
	fd = listen_somewhere(&f->relay.service_port);
	ck_ok(http_server_listen_tls(f->server, fd, f->id, &err), &err);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, serve, f->served), 0);
	f->relay.listen_fd = listen_somewhere(&f->relay.port);
	ck_assert_int_eq(pthread_create(&f->relay.thread, NULL, relay_run, &f->relay), 0);
	ck_ok(http_client_create(f->event, f->id, &f->client, &err), &err);
	received = 0;
}

static void teardown(struct fixture *f)
{
	http_client_destroy(f->client);
	if (f->relay.listen_fd >= 0)
		shutdown(f->relay.listen_fd, SHUT_RDWR);
	pthread_join(f->relay.thread, NULL);
	ck_assert_int_eq(eventfd_write(f->stop, 1), 0);
	pthread_join(f->thread, NULL);
	http_server_destroy(f->server);
	sd_event_unref(f->served);
	sd_event_unref(f->event);
	if (f->relay.listen_fd >= 0)
		close(f->relay.listen_fd);
	close(f->stop);
	identity_free(f->id);
	file_remove_tree(f->dir, NULL);
	free(f->dir);
}

static void on_done(void *context, const struct http_answer *answer)
{
	struct fixture *f = context;

	f->done = true;
	f->status = answer->status;
	f->code = answer->error.code;
}

static void call_once(struct fixture *f)
{
	struct http_call call = {
	    .method = "POST",
	    .address = "127.0.0.1",
	    .port = f->relay.port,
	    .target = "/take",
	    .body = "start",
	    .len = 5,
	    .timeout = 60,
	    .once = true,
	    .context = f,
	    .on_done = on_done,
	};
	struct error err = ERROR_INIT;

	f->done = false;
	ck_ok(http_client_call(f->client, &call, NULL, &err), &err);
	while (!f->done)
		ck_assert_int_ge(sd_event_run(f->event, UINT64_MAX), 0);
}

/* The request has arrived, and nobody can be connected to when it would be sent again: a connection refused
 * must not be taken for a request that has not arrived. */
START_TEST(what_is_sent_once_is_not_sent_again_when_its_answer_is_lost)
{
	struct fixture f;

	setup(&f);
	call_once(&f);
	ck_assert_int_eq(f.status, 200);
	f.relay.swallow = true;
	call_once(&f);
	ck_assert_int_eq(f.status, 0);
	ck_assert_int_eq(f.code, -EIO);
	ck_assert_int_eq(received, 2);
	teardown(&f);
}
END_TEST

START_TEST(what_is_sent_once_takes_the_connection_that_is_open)
{
	struct fixture f;

	setup(&f);
	for (int i = 0; i < 3; i++) {
		call_once(&f);
		ck_assert_int_eq(f.status, 200);
	}
	ck_assert_int_eq(f.relay.connections, 1);
	teardown(&f);
}
END_TEST

START_TEST(a_connection_that_is_refused_says_that_nothing_was_sent)
{
	struct fixture f;

	setup(&f);
	shutdown(f.relay.listen_fd, SHUT_RDWR);
	pthread_join(f.relay.thread, NULL);
	close(steal_fd(&f.relay.listen_fd));
	call_once(&f);
	ck_assert_int_eq(f.code, -ECONNREFUSED);
	ck_assert_int_eq(pthread_create(&f.relay.thread, NULL, relay_run, &f.relay), 0);
	teardown(&f);
}
END_TEST

static void on_given_up(void *context, const struct http_answer *answer)
{
	struct fixture *f = context;

	f->done = true;
	f->code = answer->error.code;
	f->queued = answer->queued;
}

/* Port and context are missing. */
static const struct http_call call_that_gives_up = {.method = "GET",
                                                    .address = "127.0.0.1",
                                                    .target = "/",
                                                    .timeout = 60,
                                                    .connect = 0.2,
                                                    .on_done = on_given_up};

/* The connection stands, and the handshake does not begin: others are before it. */
START_TEST(who_is_kept_waiting_is_told_so)
{
	struct http_call call = call_that_gives_up;
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);
	struct error err = ERROR_INIT;
	struct fixture f;
	int fd;

	setup(&f);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	call.port = ntohs(sin.sin_port);
	call.context = &f;
	for (int listens = 1; listens >= 0; listens--) {
		f.done = false;
		ck_ok(http_client_call(f.client, &call, NULL, &err), &err);
		while (!f.done)
			ck_assert_int_ge(sd_event_run(f.event, UINT64_MAX), 0);
		ck_assert_int_eq(f.queued, listens);
		ck_assert_int_eq(f.code, listens ? -ETIMEDOUT : -ECONNREFUSED);
		if (listens)
			close(fd);
	}
	teardown(&f);
}
END_TEST

/* The connection is not taken: there is no service that could have the call wait its turn. */
START_TEST(who_is_not_connected_is_not_kept_waiting)
{
	struct http_call call = call_that_gives_up;
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), full[4];
	socklen_t len = sizeof(sin);
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(listen(fd, 0), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	/* With these its queue is full, and the kernel drops who comes then. */
	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(full[i], (struct sockaddr *)&sin, sizeof(sin));
	}
	call.port = ntohs(sin.sin_port);
	call.context = &f;
	f.queued = true;
	ck_ok(http_client_call(f.client, &call, NULL, &err), &err);
	while (!f.done)
		ck_assert_int_ge(sd_event_run(f.event, UINT64_MAX), 0);
	ck_assert_int_eq(f.code, -ETIMEDOUT);
	ck_assert(!f.queued);
	for (size_t i = 0; i < ARRAY_SIZE(full); i++)
		close(full[i]);
	close(fd);
	teardown(&f);
}
END_TEST

static void begin_call(struct fixture *f, int port, const char *target, unsigned queue,
                       struct http_transfer **out)
{
	struct http_call call = {.method = "POST",
	                         .address = "127.0.0.1",
	                         .port = port,
	                         .target = target,
	                         .body = "start",
	                         .len = 5,
	                         .timeout = 60,
	                         .connect = 60,
	                         .queue = queue,
	                         .context = f,
	                         .on_done = on_done};
	struct error err = ERROR_INIT;

	f->done = false;
	ck_ok(http_client_call(f->client, &call, out, &err), &err);
}

static void await_call(struct fixture *f, int status, int code)
{
	while (!f->done)
		ck_assert_int_ge(sd_event_run(f->event, UINT64_MAX), 0);
	ck_assert_int_eq(f->code, code);
	ck_assert_int_eq(f->status, status);
}

/* A service that does not get on with its handshakes holds up the calls behind it in the same queue alone. */
START_TEST(calls_of_a_queue_begin_a_few_at_a_time)
{
	struct http_transfer *stuck[HTTP_CONNECTING], *waiting;
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);
	struct error err = ERROR_INIT;
	struct fixture f;
	int fd;

	setup(&f);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	for (size_t i = 0; i < HTTP_CONNECTING; i++)
		begin_call(&f, ntohs(sin.sin_port), "/take", 1, &stuck[i]);
	begin_call(&f, f.relay.service_port, "/take", 1, &waiting);
	begin_call(&f, f.relay.service_port, "/take", 1, NULL);
	begin_call(&f, f.relay.service_port, "/take", 1, NULL);
	begin_call(&f, f.relay.service_port, "/take", 2, NULL);
	await_call(&f, 200, 0);
	begin_call(&f, f.relay.service_port, "/take", 0, NULL);
	await_call(&f, 200, 0);
	ck_assert_int_eq(received, 2);
	/* One that goes before its turn leaves the others where they are. */
	http_transfer_cancel(waiting);
	f.done = false;
	http_transfer_cancel(stuck[0]);
	await_call(&f, 200, 0);
	f.done = false;
	await_call(&f, 200, 0);
	ck_assert_int_eq(received, 4);
	/* What cannot begin when its turn comes says so. */
	begin_call(&f, f.relay.service_port, "/take", 1, NULL);
	await_call(&f, 200, 0);
	begin_call(&f, ntohs(sin.sin_port), "/take", 1, &stuck[0]);
	begin_call(&f, f.relay.service_port, "/take", 1, NULL);
	http_client_set_identity(f.client, NULL);
	http_transfer_cancel(stuck[0]);
	await_call(&f, 0, -EPERM);
	ck_assert_int_eq(received, 5);
	close(fd);
	teardown(&f);
}
END_TEST

/* Who has its connection makes room, however long the answer takes. */
START_TEST(a_call_that_waits_for_its_answer_holds_no_other_up)
{
	struct fixture f;

	setup(&f);
	for (size_t i = 0; i < HTTP_CONNECTING + 8; i++)
		begin_call(&f, f.relay.service_port, "/hold", 1, NULL);
	while (received < HTTP_CONNECTING + 8)
		ck_assert_int_ge(sd_event_run(f.event, 100000), 0);
	ck_assert(!f.done);
	teardown(&f);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("http client");
	TCase *tc = tcase_create("once");

	tcase_add_test(tc, what_is_sent_once_is_not_sent_again_when_its_answer_is_lost);
	tcase_add_test(tc, what_is_sent_once_takes_the_connection_that_is_open);
	tcase_add_test(tc, a_connection_that_is_refused_says_that_nothing_was_sent);
	tcase_add_test(tc, who_is_kept_waiting_is_told_so);
	tcase_add_test(tc, who_is_not_connected_is_not_kept_waiting);
	tcase_add_test(tc, calls_of_a_queue_begin_a_few_at_a_time);
	tcase_add_test(tc, a_call_that_waits_for_its_answer_holds_no_other_up);
	tcase_set_timeout(tc, 120);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
