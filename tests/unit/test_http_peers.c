/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a service takes its callers for. The client here is one that anybody can write: gnutls and a socket,
 * with no check of its own, so that a refusal is the service's.
 */
#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "http/identity.h"
#include "http/server.h"
#include "unit.h"

enum { SILENCE_MS = 20000 };

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

static void service_start(struct service *s)
{
	struct http_server_options o = {routes, ARRAY_SIZE(routes), s, 4096, 0, 0, NULL};
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
	ck_ok(http_bind_unix(s->socket, 0600, NULL, &unix_fd, &err), &err);
	ck_ok(http_server_listen_unix(s->server, unix_fd, &err), &err);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &tcp_fd, &err), &err);
	ck_assert_int_eq(getsockname(tcp_fd, (struct sockaddr *)&sin, &len), 0);
	s->port = ntohs(sin.sin_port);
	ck_ok(http_server_listen_tls(s->server, tcp_fd, s->id, &err), &err);
	ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
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

static int connect_tcp(const struct service *s)
{
	struct sockaddr_in sin = {.sin_family = AF_INET,
	                          .sin_port = htons((uint16_t)s->port),
	                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval silence = {SILENCE_MS / 1000, 0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence)), 0);
	return fd;
}

static int connect_unix(const struct service *s)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct timeval silence = {SILENCE_MS / 1000, 0};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(sun.sun_path, s->socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence)), 0);
	return fd;
}

static char *request_text(const char *path, const char *header)
{
	return str_printf("GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%s\r\n", path,
	                  header ? header : "", header ? "\r\n" : "");
}

/* The whole answer over TLS, "" where the service gave none; owned by the caller. certificate, key: PEM, or
 * NULL. */
static char *ask_tls(const struct service *s, const char *certificate, const char *key, const char *path,
                     const char *header)
{
	_cleanup_free_ char *request = request_text(path, header);
	_cleanup_strbuf_ struct strbuf answer = {0};
	gnutls_certificate_credentials_t credentials;
	gnutls_session_t session;
	int fd = connect_tcp(s), r;

	ck_assert_int_eq(gnutls_certificate_allocate_credentials(&credentials), 0);
	gnutls_certificate_set_flags(credentials, GNUTLS_CERTIFICATE_SKIP_KEY_CERT_MATCH);
	if (certificate)
		ck_assert_int_ge(
		    gnutls_certificate_set_x509_key_mem(
		        credentials, &(gnutls_datum_t){(unsigned char *)certificate, strlen(certificate)},
		        &(gnutls_datum_t){(unsigned char *)key, strlen(key)}, GNUTLS_X509_FMT_PEM),
		    0);
	ck_assert_int_eq(gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT | GNUTLS_NO_SIGNAL),
	                 0);
	ck_assert_int_eq(gnutls_set_default_priority(session), 0);
	ck_assert_int_eq(gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials), 0);
	gnutls_transport_set_int(session, fd);
	do
		r = gnutls_handshake(session);
	while (r < 0 && !gnutls_error_is_fatal(r));
	/* With TLS 1.3 the client's side is complete before the service has judged the certificate. */
	if (r == 0 && gnutls_record_send(session, request, strlen(request)) > 0)
		for (;;) {
			char piece[1024];
			ssize_t n = gnutls_record_recv(session, piece, sizeof(piece));

			ck_assert_msg(n != GNUTLS_E_AGAIN, "the service neither answers nor closes");
			if (n > 0)
				strbuf_add(&answer, piece, n);
			else if (n == 0 || gnutls_error_is_fatal((int)n))
				break;
		}
	gnutls_deinit(session);
	gnutls_certificate_free_credentials(credentials);
	close(fd);
	strbuf_add(&answer, "", 1);
	return strbuf_steal(&answer);
}

static char *ask_plain(int fd, const char *path, const char *header)
{
	_cleanup_free_ char *request = request_text(path, header);
	_cleanup_strbuf_ struct strbuf answer = {0};
	char piece[1024];
	ssize_t n;

	ck_assert_int_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
	while ((n = recv(fd, piece, sizeof(piece), 0)) > 0)
		strbuf_add(&answer, piece, n);
	close(fd);
	strbuf_add(&answer, "", 1);
	return strbuf_steal(&answer);
}

static json_t *body_of(const char *answer)
{
	const char *body = strstr(answer, "\r\n\r\n");
	json_t *json = body ? json_loads(body + 4, JSON_DISABLE_EOF_CHECK, NULL) : NULL;

	ck_assert_msg(str_starts(answer, "HTTP/1.1 200 ") && json, "%s", answer);
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
			_cleanup_free_ char *answer =
			    ask_tls(&s, cases[i].certificate, cases[i].key, "/who", NULL);

			ck_assert_msg(cases[i].answered ? str_starts(answer, "HTTP/1.1 200 ")
			                                : strstr(answer, "200") == NULL,
			              "%s: %s", cases[i].what, answer);
		}
	}
	{
		_cleanup_free_ char *answer = ask_plain(connect_tcp(&s), "/who", NULL);

		ck_assert_str_eq(answer, "");
	}
	service_stop(&s);
}
END_TEST

/* Over TLS it is a service that calls, for itself or for a user that it names. */
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
		_cleanup_free_ char *answer =
		    ask_tls(&s, s.id->certificate, s.id->key, "/who", cases[i].header);
		_cleanup_json_ json_t *who = body_of(answer);

		ck_assert(json_get_bool(who, "peer", false));
		ck_assert_int_eq(json_get_int(who, "uid", -2), cases[i].uid);
		ck_assert_int_eq(json_get_int(who, "gid", -2), cases[i].gid);
		ck_assert_pstr_eq(json_get_string(who, "user", NULL), cases[i].user);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		_cleanup_free_ char *answer = ask_tls(&s, s.id->certificate, s.id->key, "/who", bad[i]);

		ck_assert_msg(str_starts(answer, "HTTP/1.1 403 "), "%s", answer);
	}
	service_stop(&s);
}
END_TEST

/* On the Unix socket the kernel says who calls; what the caller says of itself counts for nothing. */
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
		_cleanup_free_ char *answer = ask_plain(connect_unix(&s), "/who", said[i]);
		_cleanup_json_ json_t *who = body_of(answer);

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
		const char *path, *tls, *local;
	} cases[] = {
	    {"/who", "HTTP/1.1 200 ", "HTTP/1.1 200 "},
	    {"/peers", "HTTP/1.1 200 ", "HTTP/1.1 403 "},
	    {"/local", "HTTP/1.1 403 ", "HTTP/1.1 200 "},
	    {"/nix", "HTTP/1.1 404 ", "HTTP/1.1 404 "},
	};
	struct service s;

	service_start(&s);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *tls =
		    ask_tls(&s, s.id->certificate, s.id->key, cases[i].path, "Dtrain-User: 0:0:root");
		_cleanup_free_ char *local = ask_plain(connect_unix(&s), cases[i].path, NULL);

		ck_assert_msg(str_starts(tls, cases[i].tls), "%s: %s", cases[i].path, tls);
		ck_assert_msg(str_starts(local, cases[i].local), "%s: %s", cases[i].path, local);
	}
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
	tcase_add_test(c, a_service_says_for_whom_it_speaks);
	tcase_add_test(c, a_program_cannot_say_that_it_is_another_user);
	tcase_add_test(c, each_socket_has_its_own_routes);
	return unit_run(s);
}
