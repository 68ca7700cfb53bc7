/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "http/client.h"
#include "http/identity.h"
#include "http/local.h"
#include "http/server.h"
#include "unit.h"

static void nothing(void *context, struct http_request *r)
{
	http_reply_json(r, 200, json_object());
}

START_TEST(routes_match)
{
	static const struct http_route routes[] = {
	    {"GET", "/v1/runs", HTTP_ANY, nothing},
	    {"GET", "/v1/runs/{}", HTTP_ANY, nothing},
	    {"DELETE", "/v1/runs/{}", HTTP_ANY, nothing},
	    {"PUT", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY, nothing},
	};
	static const struct {
		const char *method, *path;
		int result, route;
		const char *first, *second;
	} cases[] = {
	    {"GET", "/v1/runs", 0, 0, NULL, NULL},
	    {"POST", "/v1/runs", -EOPNOTSUPP, 0, NULL, NULL},
	    {"GET", "/v1/runs/", -ENOENT, 0, NULL, NULL},
	    {"GET", "/v1/runs/17", 0, 1, "17", NULL},
	    {"DELETE", "/v1/runs/17", 0, 2, "17", NULL},
	    {"GET", "/v1/runs/17/", -ENOENT, 0, NULL, NULL},
	    {"GET", "/v1/runs/17/nix", -ENOENT, 0, NULL, NULL},
	    {"PUT", "/v1/runs/17/rendezvous/a/b", 0, 3, "17", "a/b"},
	    {"PUT", "/v1/runs/17/rendezvous/", -ENOENT, 0, NULL, NULL},
	    {"GET", "/v1/runs/17/rendezvous/a", -EOPNOTSUPP, 0, NULL, NULL},
	    {"GET", "/", -ENOENT, 0, NULL, NULL},
	    {"GET", "", -ENOENT, 0, NULL, NULL},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *want[] = {cases[i].first, cases[i].second};
		struct http_match m;
		int r = http_route_match(routes, ARRAY_SIZE(routes), cases[i].method, cases[i].path, &m);

		ck_assert_msg(r == cases[i].result, "%s %s: %d", cases[i].method, cases[i].path, r);
		if (r < 0)
			continue;
		ck_assert_ptr_eq(m.route, &routes[cases[i].route]);
		for (size_t k = 0; k < 2; k++) {
			ck_assert_uint_eq(k < m.count, want[k] != NULL);
			if (want[k])
				ck_assert(strlen(want[k]) == m.captures[k].len &&
				          memcmp(cases[i].path + m.captures[k].start, want[k],
				                 m.captures[k].len) == 0);
		}
	}
}
END_TEST

START_TEST(identity_file)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/cluster.pem", dir), *old = NULL,
	                    *new = NULL;
	_cleanup_(identity_freep) struct identity *id = NULL;
	struct error err = ERROR_INIT;
	struct stat st;

	ck_fails(identity_load(path, &id, &err), &err, "cannot read the cluster key");
	ck_ok(identity_make(path, false, &err), &err);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_ok(file_read(path, 0, &old, NULL, &err), &err);
	ck_ok(identity_load(path, &id, &err), &err);
	ck_assert_uint_gt(id->certificate_der_len, 100);
	ck_assert(str_starts(id->pin, "sha256//"));
	ck_assert(str_starts(id->certificate, "-----BEGIN CERTIFICATE-----"));
	ck_assert(str_starts(id->key, "-----BEGIN PRIVATE KEY-----"));

	ck_assert_int_eq(identity_make(path, false, &err), -EEXIST);
	ck_assert_ptr_nonnull(strstr(err.message, "--force"));
	ck_ok(identity_make(path, true, &err), &err);
	ck_ok(file_read(path, 0, &new, NULL, &err), &err);
	ck_assert_str_ne(old, new);

	chmod(path, 0640);
	identity_free(steal_pointer(id));
	ck_assert_int_eq(identity_load(path, &id, &err), -EPERM);
	ck_assert_ptr_nonnull(strstr(err.message, "chmod 600"));
	chmod(path, 0600);
	ck_ok(file_write_atomic(path, old, strlen(old) / 2, 0600, &err), &err);
	ck_fails(identity_load(path, &id, &err), &err, "dtrain keygen");

	/* The key of one with the certificate of another. */
	{
		_cleanup_strbuf_ struct strbuf mixed = {0};

		strbuf_add(&mixed, old, strstr(old, "-----BEGIN CERT") - old);
		strbuf_adds(&mixed, strstr(new, "-----BEGIN CERT"));
		ck_ok(file_write_atomic(path, mixed.data, mixed.len, 0600, &err), &err);
		ck_fails(identity_load(path, &id, &err), &err, "do not belong together");
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* A server on its own thread, for a blocking client here. */
struct served {
	sd_event *event;
	struct http_server *server;
	struct http_request *held; /* by /hold, until /release */
	int closed;
	pthread_t thread;
	char *dir, *socket;
};

static void echo(void *context, struct http_request *r)
{
	const struct http_caller *caller = http_request_caller(r);
	_cleanup_json_ json_t *body = http_request_json(r);

	if (body)
		http_reply_json(r, 200,
		                json_pack("{s:O,s:I,s:s,s:s?}", "body", body, "uid", (json_int_t)caller->uid,
		                          "name", http_request_capture(r, 0), "q",
		                          http_request_query(r, "q")));
}

static void count_lines(void *context, struct http_request *r)
{
	struct http_stream *s;
	char line[64];
	int64_t n;

	if (http_request_query_int(r, "n", 1, 1000000, 10, &n) < 0)
		return;
	s = http_reply_stream(r, 200, "text/plain");
	for (int64_t i = 0; i < n; i++)
		http_stream_write(s, line, snprintf(line, sizeof(line), "line %lld\n", (long long)i));
	http_stream_end(s);
}

static void on_held_closed(void *context)
{
	struct served *s = context;

	s->held = NULL;
	s->closed++;
}

static void hold(void *context, struct http_request *r)
{
	struct served *s = context;

	s->held = r;
	http_request_on_close(r, on_held_closed, s);
}

static void release(void *context, struct http_request *r)
{
	struct served *s = context;

	if (s->held)
		http_reply_json(s->held, 200, json_pack("{s:b}", "released", 1));
	http_reply_json(r, 200, json_pack("{s:i}", "closed", s->closed));
}

static void stop(void *context, struct http_request *r)
{
	struct served *s = context;

	http_reply_json(r, 200, json_object());
	sd_event_exit(s->event, 0);
}

static const struct http_route test_routes[] = {
    {"POST", "/echo/{}", HTTP_ANY, echo},  {"GET", "/lines", HTTP_ANY, count_lines},
    {"GET", "/hold", HTTP_ANY, hold},      {"POST", "/release", HTTP_ANY, release},
    {"GET", "/peers", HTTP_PEER, nothing}, {"POST", "/stop", HTTP_ANY, stop},
};

static void *serve(void *arg)
{
	struct served *s = arg;

	sd_event_loop(s->event);
	http_server_destroy(s->server);
	sd_event_unref(s->event);
	return NULL;
}

static void served_start(struct served *s)
{
	struct http_server_options o = {test_routes, ARRAY_SIZE(test_routes), s, 1 << 20};
	struct error err = ERROR_INIT;
	int fd;

	memset(s, 0, sizeof(*s));
	s->dir = unit_tmpdir();
	s->socket = str_printf("%s/sock", s->dir);
	ck_assert_int_ge(sd_event_new(&s->event), 0);
	ck_ok(http_server_create(s->event, &o, &s->server, &err), &err);
	ck_ok(http_bind_unix(s->socket, 0600, NULL, &fd, &err), &err);
	ck_ok(http_server_listen_unix(s->server, fd, &err), &err);
	ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void served_stop(struct served *s)
{
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	struct error err = ERROR_INIT;

	ck_ok(http_local_open(s->socket, &l, &err), &err);
	http_local_json(l, "POST", "/stop", NULL, NULL, NULL, &err);
	pthread_join(s->thread, NULL);
	file_remove_tree(s->dir, NULL);
	free(s->dir);
	free(s->socket);
}

static int count_piece(void *context, const char *data, size_t len, struct error *err)
{
	size_t *n = context;

	for (size_t i = 0; i < len; i++)
		*n += data[i] == '\n';
	return 0;
}

START_TEST(server_answers)
{
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	_cleanup_json_ json_t *answer = NULL, *body = json_pack("{s:i}", "x", 7);
	struct error err = ERROR_INIT;
	size_t lines = 0, len;
	struct served s;
	int status, fd;
	char *text, *big;

	served_start(&s);
	ck_assert_int_eq(http_bind_unix(s.socket, 0600, NULL, &fd, &err), -EADDRINUSE);
	ck_ok(http_local_open(s.socket, &l, &err), &err);
	ck_ok(http_local_json(l, "POST", "/echo/b%20c?q=1%262", body, &status, &answer, &err), &err);
	ck_assert_int_eq(status, 200);
	ck_assert_int_eq(json_get_int(json_object_get(answer, "body"), "x", 0), 7);
	ck_assert_int_eq(json_get_int(answer, "uid", -1), getuid());
	ck_assert_str_eq(json_get_string(answer, "name", ""), "b c");
	ck_assert_str_eq(json_get_string(answer, "q", ""), "1&2");

	/* The same connection goes on after errors. */
	ck_assert_int_eq(http_local_json(l, "POST", "/echo/x", NULL, &status, NULL, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 400);
	ck_assert_str_eq(http_local_error_code(l), "bad-json");
	ck_assert_int_eq(http_local_json(l, "GET", "/nix", NULL, &status, NULL, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 404);
	ck_assert_int_eq(http_local_json(l, "PUT", "/lines", NULL, &status, NULL, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 405);
	ck_assert_int_eq(http_local_json(l, "GET", "/peers", NULL, &status, NULL, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 403);
	ck_assert_int_eq(http_local_json(l, "GET", "/lines?n=0", NULL, &status, NULL, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 400);

	ck_ok(http_local_stream(l, "GET", "/lines?n=300000", count_piece, &lines, &err), &err);
	ck_assert_uint_eq(lines, 300000);

	big = calloc(1, 2 << 20);
	ck_ok(http_local_bytes(l, "POST", "/echo/x", NULL, big, 2 << 20, 5, &status, &text, &len, &err),
	      &err);
	ck_assert_int_eq(status, 413);
	free(text);
	free(big);
	served_stop(&s);
}
END_TEST

static void *get_hold(void *arg)
{
	struct served *s = arg;
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	struct error err = ERROR_INIT;
	json_t *answer = NULL;

	if (http_local_open(s->socket, &l, &err) == 0)
		http_local_json(l, "GET", "/hold", NULL, NULL, &answer, &err);
	return answer;
}

/* An answer that comes later, and a caller that goes away before it. */
START_TEST(server_holds)
{
	_cleanup_(http_local_closep) struct http_local *l = NULL, *gone = NULL;
	_cleanup_json_ json_t *held = NULL, *answer = NULL;
	struct error err = ERROR_INIT;
	struct served s;
	pthread_t thread;
	size_t len;
	char *text;
	int status;

	served_start(&s);
	ck_ok(http_local_open(s.socket, &l, &err), &err);
	ck_assert_int_eq(pthread_create(&thread, NULL, get_hold, &s), 0);
	while (!*(struct http_request *volatile *)&s.held)
		;
	ck_ok(http_local_json(l, "POST", "/release", NULL, NULL, NULL, &err), &err);
	pthread_join(thread, (void **)&held);
	ck_assert(json_get_bool(held, "released", false));

	ck_ok(http_local_open(s.socket, &gone, &err), &err);
	ck_assert_int_eq(
	    http_local_bytes(gone, "GET", "/hold", NULL, NULL, 0, 0.1, &status, &text, &len, &err),
	    -ETIMEDOUT);
	http_local_close(steal_pointer(gone));
	/* Both have been closed: the first by its answer, the second by its end. */
	do {
		json_decref(answer);
		ck_ok(http_local_json(l, "POST", "/release", NULL, NULL, &answer, &err), &err);
	} while (json_get_int(answer, "closed", 0) < 2);

	/* One that is still held when the server goes is answered. */
	ck_assert_int_eq(pthread_create(&thread, NULL, get_hold, &s), 0);
	while (!*(struct http_request *volatile *)&s.held)
		;
	served_stop(&s);
	json_decref(steal_pointer(held));
	pthread_join(thread, (void **)&held);
	ck_assert_ptr_null(held);
	ck_assert_int_eq(s.closed, 3);
}
END_TEST

struct peer_call {
	sd_event *event;
	int status;
	size_t bytes;
	char error[768];
};

static void on_peer_data(void *context, const void *data, size_t len)
{
	((struct peer_call *)context)->bytes += len;
}

static void on_peer_done(void *context, const struct http_answer *a)
{
	struct peer_call *p = context;

	p->status = a->status;
	snprintf(p->error, sizeof(p->error), "%s", a->error.message);
	sd_event_exit(p->event, 0);
}

static struct peer_call call_peer(const struct identity *server_id, const struct identity *client_id,
                                  const char *target)
{
	struct http_server_options o = {test_routes, ARRAY_SIZE(test_routes), NULL, 1 << 20};
	struct http_server *server;
	struct http_client *client;
	struct error err = ERROR_INIT;
	struct peer_call p = {0};
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);
	struct http_call call = {.method = "GET",
	                         .address = "127.0.0.1",
	                         .target = target,
	                         .timeout = 10,
	                         .context = &p,
	                         .on_data = on_peer_data,
	                         .on_done = on_peer_done};
	int fd;

	ck_assert_int_ge(sd_event_new(&p.event), 0);
	ck_ok(http_server_create(p.event, &o, &server, &err), &err);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	call.port = ntohs(sin.sin_port);
	ck_ok(http_server_listen_tls(server, fd, server_id, &err), &err);
	ck_ok(http_client_create(p.event, client_id, &client, &err), &err);
	ck_ok(http_client_call(client, &call, NULL, &err), &err);
	sd_event_loop(p.event);
	http_client_destroy(client);
	http_server_destroy(server);
	sd_event_unref(p.event);
	return p;
}

START_TEST(peers_need_the_key)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *ours = str_printf("%s/a.pem", dir),
	                    *other = str_printf("%s/b.pem", dir);
	_cleanup_(identity_freep) struct identity *a = NULL, *b = NULL;
	struct identity mixed;
	struct error err = ERROR_INIT;
	struct peer_call p;

	ck_ok(identity_make(ours, false, &err), &err);
	ck_ok(identity_make(other, false, &err), &err);
	ck_ok(identity_load(ours, &a, &err), &err);
	ck_ok(identity_load(other, &b, &err), &err);
	p = call_peer(a, a, "/peers");
	ck_assert_msg(p.status == 200, "%s", p.error);
	p = call_peer(a, a, "/lines?n=100000");
	ck_assert_msg(p.status == 200, "%s", p.error);
	ck_assert_uint_gt(p.bytes, 1000000);
	/* What was asked for is what arrives: no path is made out of another one on the way. */
	p = call_peer(a, a, "/nix/../peers");
	ck_assert_int_eq(p.status, 404);
	p = call_peer(a, a, "/nix/%FF\xe4/a#b");
	ck_assert_int_eq(p.status, 404);
	/* A server with another key is not spoken to, nor is a client with another key. */
	p = call_peer(b, a, "/peers");
	ck_assert_int_eq(p.status, 0);
	mixed = *a;
	mixed.certificate = b->certificate;
	mixed.key = b->key;
	mixed.pin = b->pin;
	p = call_peer(a, &mixed, "/peers");
	ck_assert_int_eq(p.status, 0);
	file_remove_tree(dir, NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("http");
	TCase *c = tcase_create("http");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, routes_match);
	tcase_add_test(c, identity_file);
	tcase_add_test(c, server_answers);
	tcase_add_test(c, server_holds);
	tcase_add_test(c, peers_need_the_key);
	return unit_run(s);
}
