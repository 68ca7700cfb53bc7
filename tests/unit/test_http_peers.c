/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of callers: a holder of the cluster's key, or the user that the kernel reports. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "http/identity.h"
#include "http/server.h"
#include "raw_http.h"

static void say_who(void *context, struct http_request *r)
{
	const struct http_caller *c = http_request_caller(r);

	http_reply_json(r, 200,
	                json_pack("{s:b,s:I,s:I,s:s?}", "peer", c->peer, "uid", (json_int_t)c->uid, "gid",
	                          (json_int_t)c->gid, "user", c->user));
}

static const struct http_route routes[] = {
    {"GET", "/who", HTTP_ANY, say_who},
    {"GET", "/peers", HTTP_PEER | HTTP_RESERVED, say_who},
    {"GET", "/local", HTTP_LOCAL, say_who},
};

/* A service on a thread of its own, with both of its sockets. */
struct service {
	char *dir, *socket;
	struct identity *id;
	int port, stop;
	sd_event *event;
	struct http_server *server;
	pthread_t thread;
};

static int on_stop(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	return sd_event_exit(sd_event_source_get_event(source), 0);
}

static void *serve(void *arg)
{
	sd_event_loop(((struct service *)arg)->event);
	return NULL;
}

static void make_identity(const char *dir, const char *name, struct identity **out)
{
	_cleanup_free_ char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(identity_make(path, true, &err), &err);
	ck_ok(identity_load(path, out, &err), &err);
}

/* connections: of services; 0: the default */
static void service_start_with(struct service *s, size_t connections)
{
	struct http_server_options o = {.routes = routes,
	                                .route_count = ARRAY_SIZE(routes),
	                                .context = s,
	                                .max_body = 4096,
	                                .tls_connections = connections,
	                                .node = "n1"};
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);
	struct error err = ERROR_INIT;
	int unix_fd, tcp_fd;

	*s = (struct service){.dir = unit_tmpdir(), .stop = eventfd(0, EFD_CLOEXEC)};
	s->socket = str_path_join(s->dir, "socket");
	make_identity(s->dir, "cluster.pem", &s->id);
	ck_assert_int_ge(sd_event_new(&s->event), 0);
	ck_assert_int_ge(sd_event_add_io(s->event, NULL, s->stop, POLLIN, on_stop, NULL), 0);
	ck_ok(http_server_create(s->event, &o, &s->server, &err), &err);
	if (connections) /* the bounds for strangers are no part of so few */
		ck_assert_int_eq(http_server_set_peers(s->server, (const char *const[]){"127.0.0.1"}, 1), 0);
	ck_ok(http_bind_unix(s->socket, 0600, NULL, &unix_fd, &err), &err);
	ck_ok(http_server_listen_unix(s->server, unix_fd, &err), &err);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &tcp_fd, &err), &err);
	ck_assert_int_eq(getsockname(tcp_fd, (struct sockaddr *)&sin, &len), 0);
	s->port = ntohs(sin.sin_port);
	ck_ok(http_server_listen_tls(s->server, tcp_fd, s->id, &err), &err);
	ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void service_start(struct service *s)
{
	service_start_with(s, 0);
}

static void service_stop(struct service *s)
{
	ck_assert_int_eq(eventfd_write(s->stop, 1), 0);
	pthread_join(s->thread, NULL);
	http_server_destroy(s->server);
	sd_event_unref(s->event);
	close(s->stop);
	identity_free(s->id);
	file_remove_tree(s->dir, NULL);
	free(s->dir);
	free(s->socket);
}

/* Another key, whose certificate has as many bytes as ours. The length of a signature varies by a few. */
static void make_lookalike(const struct service *s, struct identity **out)
{
	make_identity(s->dir, "other.pem", out);
	while ((*out)->certificate_der_len != s->id->certificate_der_len) {
		identity_free(steal_pointer(*out));
		make_identity(s->dir, "other.pem", out);
	}
}

/* GET as a service, or (over the Unix socket) as this user. header may be NULL. */
static struct raw_answer get_tls(const struct service *s, const char *path, const char *header)
{
	struct raw_request q = {.method = "GET", .target = path, .header = header};

	return raw_ask_tls(raw_connect_tcp(s->port), s->id->certificate, s->id->key, &q);
}

static struct raw_answer get_local(const struct service *s, const char *path, const char *header)
{
	struct raw_request q = {.method = "GET", .target = path, .header = header};

	return raw_ask(raw_connect_unix(s->socket), &q);
}

static json_t *body_of(struct raw_answer a)
{
	_cleanup_free_ char *body = a.body;
	json_t *json = json_loads(body, 0, NULL);

	ck_assert_msg(a.status == 200 && json, "%d: %s", a.status, body);
	return json;
}

START_TEST(only_who_holds_the_key_is_answered_over_tls)
{
	_cleanup_(identity_freep) struct identity *other = NULL;
	struct service s;

	service_start(&s);
	make_lookalike(&s, &other);
	{
		const struct {
			const char *what, *certificate, *key;
			bool answered;
		} cases[] = {
		    {"the cluster's key", s.id->certificate, s.id->key, true},
		    {"another key, whose certificate is as long", other->certificate, other->key, false},
		    {"the cluster's certificate without its key", s.id->certificate, other->key, false},
		    {"the cluster's key with another certificate", other->certificate, s.id->key, false},
		    {"no certificate", NULL, NULL, false},
		};

		for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
			struct raw_request q = {.method = "GET", .target = "/who"};
			struct raw_answer a =
			    raw_ask_tls(raw_connect_tcp(s.port), cases[i].certificate, cases[i].key, &q);

			ck_assert_msg(a.status == (cases[i].answered ? 200 : 0), "%s: %d", cases[i].what,
			              a.status);
			free(a.body);
		}
	}
	{
		struct raw_request q = {.method = "GET", .target = "/who"};
		struct raw_answer plain = raw_ask(raw_connect_tcp(s.port), &q);

		ck_assert_int_eq(plain.status, 0);
		free(plain.body);
	}
	service_stop(&s);
}
END_TEST

/* Over TLS it is a service that calls, for itself or for a user that it names. */
/* libmicrohttpd takes a connection in the middle of its handshake for one that is ready. */
START_TEST(a_handshake_that_does_not_go_on_costs_next_to_nothing)
{
	static const unsigned char beginning[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01};
	uint64_t before, after;
	struct raw_answer a;
	struct pollfd p;
	struct service s;

	service_start(&s);
	p = (struct pollfd){raw_connect_tcp(s.port), POLLIN, 0};
	ck_assert_int_eq(write(p.fd, beginning, sizeof(beginning)), sizeof(beginning));
	a = get_tls(&s, "/who", NULL); /* by then it has read them */
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	sd_event_get_iteration(s.event, &before);
	ck_assert_int_eq(poll(&p, 1, 500), 0);
	sd_event_get_iteration(s.event, &after);
	ck_assert_uint_lt(after - before, 200);
	a = get_tls(&s, "/who", NULL);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	close(p.fd);
	service_stop(&s);
}
END_TEST

START_TEST(a_service_says_for_whom_it_speaks)
{
	static const struct {
		const char *header, *user;
		int64_t uid, gid;
	} cases[] = {
	    {NULL, NULL, -1, -1},
	    {"Dtrain-User: 1000:100:alice", "alice", 1000, 100},
	    {"Dtrain-User: 1000:100:", NULL, 1000, 100},
	};
	static const char *const bad[] = {"Dtrain-User: alice", "Dtrain-User: 0", "Dtrain-User: 0:root"};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *who = body_of(get_tls(&s, "/who", cases[i].header));

		ck_assert(json_get_bool(who, "peer", false));
		ck_assert_int_eq(json_get_int(who, "uid", -2), cases[i].uid);
		ck_assert_int_eq(json_get_int(who, "gid", -2), cases[i].gid);
		ck_assert_pstr_eq(json_get_string(who, "user", NULL), cases[i].user);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct raw_answer a = get_tls(&s, "/who", bad[i]);

		ck_assert_msg(a.status == 403 && str_eq(a.code, "not-allowed"), "%s: %d", bad[i], a.status);
		free(a.body);
	}
	service_stop(&s);
}
END_TEST

/* On the Unix socket the kernel reports the user; the header Dtrain-User is ignored. */
/* Of so few connections no request may take one: what is refused gives its own back. */
START_TEST(who_is_refused_has_no_connection)
{
	struct raw_request q = {.method = "GET", .target = "/who", .stays = true};
	struct raw_answer a;
	struct service s;

	service_start_with(&s, 1);
	a = raw_ask_tls(raw_connect_tcp(s.port), s.id->certificate, s.id->key, &q);
	ck_assert_msg(a.status == 503, "%d: %s", a.status, a.body);
	ck_assert_str_eq(a.code, "too-many");
	free(a.body);
	service_stop(&s);
}
END_TEST

/* It shall connect anew, maybe with a better certificate. */
START_TEST(who_is_not_known_has_no_connection)
{
	static const char *const headers[] = {"Dtrain-User: nonsense", "Dtrain-User: 5", "Dtrain-User: 5:6",
	                                      "Dtrain-User: :6:eve", "Dtrain-User: 5:x:eve"};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
		struct raw_request q = {
		    .method = "GET", .target = "/who", .header = headers[i], .stays = true};
		struct raw_answer a = raw_ask_tls(raw_connect_tcp(s.port), s.id->certificate, s.id->key, &q);

		ck_assert_msg(a.status == 403, "%s: %d: %s", headers[i], a.status, a.body);
		ck_assert_str_eq(a.code, "not-allowed");
		ck_assert_ptr_nonnull(strstr(a.body, "the caller's identity cannot be told"));
		free(a.body);
	}
	service_stop(&s);
}
END_TEST

START_TEST(a_program_cannot_say_that_it_is_another_user)
{
	static const char *const said[] = {
	    NULL,
	    "Dtrain-User: 0:0:root",
	    "Dtrain-User: 4242:4242:mallory",
	    "Dtrain-User: -1:-1:",
	    "Dtrain-User: what",
	};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(said); i++) {
		_cleanup_json_ json_t *who = body_of(get_local(&s, "/who", said[i]));

		ck_assert(!json_get_bool(who, "peer", true));
		ck_assert_int_eq(json_get_int(who, "uid", -2), geteuid());
		ck_assert_int_eq(json_get_int(who, "gid", -2), getegid());
		ck_assert_str_ne(json_get_string(who, "user", ""), "mallory");
	}
	service_stop(&s);
}
END_TEST

START_TEST(each_socket_has_its_own_routes)
{
	static const struct {
		const char *path;
		int tls, local;
	} cases[] = {
	    {"/who", 200, 200},
	    {"/peers", 200, 403},
	    {"/local", 403, 200},
	    {"/nix", 404, 404},
	};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct raw_answer tls = get_tls(&s, cases[i].path, "Dtrain-User: 0:0:root");
		struct raw_answer local = get_local(&s, cases[i].path, NULL);

		ck_assert_msg(tls.status == cases[i].tls, "%s: %d", cases[i].path, tls.status);
		ck_assert_msg(local.status == cases[i].local, "%s: %d", cases[i].path, local.status);
		free(tls.body);
		free(local.body);
	}
	service_stop(&s);
}
END_TEST

/* A wrong address in a hosts file leads to another node than the one that is meant. */
START_TEST(a_request_for_another_node_is_refused)
{
	static const struct {
		const char *header;
		int status;
	} cases[] = {
	    {NULL, 200}, /* of an older version */
	    {"Dtrain-Node: n1", 200},
	    {"Dtrain-Node: N1", 200},
	    {"Dtrain-Node: n2", 421},
	    {"Dtrain-Node: n11", 421},
	    {"Dtrain-Node: ", 421},
	};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct raw_answer a = get_tls(&s, "/peers", cases[i].header);

		ck_assert_msg(a.status == cases[i].status, "%s: %d", cases[i].header, a.status);
		if (a.status == 421) {
			ck_assert_str_eq(a.code, "wrong-node");
			ck_assert_ptr_nonnull(strstr(a.body, "this is node n1, not "));
		}
		free(a.body);
	}
	/* Programs on this machine mean this machine. */
	json_decref(body_of(get_local(&s, "/who", "Dtrain-Node: n2")));
	service_stop(&s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("http peers");
	TCase *c = tcase_create("http peers");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, only_who_holds_the_key_is_answered_over_tls);
	tcase_add_test(c, a_handshake_that_does_not_go_on_costs_next_to_nothing);
	tcase_add_test(c, a_service_says_for_whom_it_speaks);
	tcase_add_test(c, who_is_refused_has_no_connection);
	tcase_add_test(c, who_is_not_known_has_no_connection);
	tcase_add_test(c, a_program_cannot_say_that_it_is_another_user);
	tcase_add_test(c, each_socket_has_its_own_routes);
	tcase_add_test(c, a_request_for_another_node_is_refused);
	return unit_run(s);
}
