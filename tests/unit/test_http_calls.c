/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to other services: what arrives of a request, how its answer is handed over, and how a call ends.
 * Client and server have one event loop, which ends a test as soon as what it waits for is there. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "http/client.h"
#include "http/identity.h"
#include "http/internal.h"
#include "raw_http.h"

enum { LONGEST_ANSWER = 64 << 20 };

static char *dir, big[LONGEST_ANSWER + 1];
static struct identity *id;
static sd_event *event;
static struct http_server *server;
static struct http_client *client;
static int port;

/* ---- the service ---- */

static struct http_request *held;  /* of /hold */
static struct http_stream *stream; /* of /stream */
static int held_count;

/* Says what has arrived. */
static void tell(void *context, struct http_request *r)
{
	static const char *const names[] = {"X-A", "X-B", "Dtrain-Node", "Expect", "Content-Length"};
	json_t *headers = json_object();
	size_t len;
	const char *body = http_request_body(r, &len);

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const char *value = http_request_header(r, names[i]);

		if (value)
			json_object_set_new(headers, names[i], json_string(value));
	}
	http_reply_json(r, 200,
	                json_pack("{s:s,s:s,s:s%,s:o}", "method", http_request_method(r), "target",
	                          http_request_target(r), "body", body, len, "headers", headers));
}

static void on_held_closed(void *context)
{
	held_count--;
}

static void hold(void *context, struct http_request *r)
{
	held = r;
	held_count++;
	http_request_on_close(r, on_held_closed, NULL);
}

static void on_stream_closed(void *context)
{
	stream = NULL;
}

static void begin_stream(void *context, struct http_request *r)
{
	stream = http_reply_stream(r, 203, "text/x-pieces");
	MHD_add_response_footer(r->response, "X-Trailer", "after the last piece");
	http_request_on_close(r, on_stream_closed, NULL);
}

static void take(void *context, struct http_request *r)
{
	http_reply_json(r, 200, json_object());
}

static void answer_long(void *context, struct http_request *r)
{
	int64_t n;

	if (http_request_query_int(r, "n", 0, sizeof(big), 0, &n) == 0)
		http_reply_bytes(r, 200, "text/plain", big, (size_t)n);
}

static const struct http_route routes[] = {
    {"GET", "/tell", HTTP_PEER, tell},
    {"POST", "/tell", HTTP_PEER, tell},
    {"PUT", "/tell", HTTP_PEER, tell},
    {"DELETE", "/tell", HTTP_PEER, tell},
    {"GET", "/hold", HTTP_ANY, hold},
    {"GET", "/stream", HTTP_PEER, begin_stream},
    {"GET", "/long", HTTP_PEER, answer_long},
    {"POST", "/take", HTTP_PEER, take},
    {"POST", "/take/8", HTTP_PEER | HTTP_BODY_8M, take},
};

static void listen_at(const char *address)
{
	struct sockaddr_in6 any;
	socklen_t len = sizeof(any);
	struct error err = ERROR_INIT;
	int fd;

	ck_ok(http_bind_tcp(address, 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&any, &len), 0);
	port = ntohs(any.sin6_port); /* where that of IPv4 is, too */
	ck_ok(http_server_listen_tls(server, fd, id, &err), &err);
}

static void setup(void)
{
	/* On a loaded machine a handshake may take longer than a service lets it take. */
	struct http_server_options o = {
	    .routes = routes, .route_count = ARRAY_SIZE(routes), .max_body = 1 << 20, .head_seconds = 300};
	struct error err = ERROR_INIT;
	_cleanup_free_ char *path = NULL;

	dir = unit_tmpdir();
	path = str_path_join(dir, "cluster.pem");
	ck_ok(identity_make(path, true, &err), &err);
	ck_ok(identity_load(path, &id, &err), &err);
	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(http_server_create(event, &o, &server, &err), &err);
	ck_assert_int_eq(http_server_set_peers(server, (const char *[]){"127.0.0.1", "::1"}, 2), 0);
	listen_at("127.0.0.1");
	ck_ok(http_client_create(event, id, &client, &err), &err);
}

static void teardown(void)
{
	http_client_destroy(client);
	http_server_destroy(server);
	sd_event_unref(event);
	identity_free(id);
	file_remove_tree(dir, NULL);
	free(dir);
}

/* ---- a call ---- */

struct asked {
	struct http_transfer *transfer;
	char heads[64]; /* "203 text/x-pieces;": the arguments of each call of on_headers */
	bool pauses;    /* with its first piece */
	bool cancels;   /* with its first piece, or that after the pause */
	bool paused;
	struct strbuf pieces;
	/* The answer. */
	int done, status, code;
	bool sent, queued;
	size_t len;
	char *type, *body, message[768];
};

static void on_headers(void *context, int status, const char *type)
{
	struct asked *a = context;
	size_t len = strlen(a->heads);

	ck_assert_uint_eq(a->pieces.len, 0);
	ck_assert_int_eq(a->done, 0);
	snprintf(a->heads + len, sizeof(a->heads) - len, "%d %s;", status, type);
}

static void on_data(void *context, const void *data, size_t len)
{
	struct asked *a = context;

	ck_assert(!a->paused && !a->done);
	strbuf_add(&a->pieces, data, len);
	if (a->cancels && !a->pauses) {
		http_transfer_cancel(a->transfer);
		a->paused = true; /* no more comes */
	}
	if (a->pauses) {
		a->pauses = false;
		a->paused = true;
		http_transfer_pause(a->transfer, true);
		http_transfer_pause(a->transfer, true); /* as once */
	}
}

static void on_done(void *context, const struct http_answer *answer)
{
	struct asked *a = context;

	a->done++;
	a->status = answer->status;
	a->sent = answer->sent;
	a->queued = answer->queued;
	a->code = answer->error.code;
	a->len = answer->len;
	a->type = answer->type ? strdup(answer->type) : NULL;
	a->body = memcpy(calloc(1, answer->len + 1), answer->body, answer->len);
	ck_assert_int_eq(answer->body[answer->len], '\0');
	snprintf(a->message, sizeof(a->message), "%s", answer->error.message);
}

static void release(struct asked *a)
{
	strbuf_free(&a->pieces);
	free(a->type);
	free(a->body);
	*a = (struct asked){0};
}

/* What the call does not say is filled in. */
static void begin(struct asked *a, struct http_call call)
{
	struct error err = ERROR_INIT;

	call.address = call.address ? call.address : "127.0.0.1";
	call.port = call.port ? call.port : port;
	call.method = call.method ? call.method : "GET";
	call.connect = 300;
	call.context = a;
	call.on_done = on_done;
	*a = (struct asked){.pauses = a->pauses, .cancels = a->cancels};
	ck_ok(http_client_call(client, &call, &a->transfer, &err), &err);
	ck_assert_int_eq(a->done, 0);
}

static void turn(void)
{
	ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
}

static void finish(struct asked *a)
{
	while (!a->done)
		turn();
	ck_assert_int_eq(a->done, 1);
}

/* One that has to be answered. */
static void ask(struct asked *a, struct http_call call)
{
	begin(a, call);
	finish(a);
	ck_assert_msg(a->status == 200, "%d: %s", a->status, a->message);
}

/* ---- tests ---- */

static const struct {
	const char *method, *target, *body;
	size_t len;
	bool once;
	const char *node, *length;
} requests[] = {
    {"GET", "/tell", NULL, 0, false, NULL, NULL},
    {"GET", "/tell?x=%2F..&y", NULL, 0, false, "n7", NULL},
    {"POST", "/tell", "", 0, false, NULL, "0"},
    {"POST", "/tell", "", 0, true, NULL, "0"},
    {"POST", "/tell", "start", 5, false, "n7", "5"},
    {"POST", "/tell", "start", 5, true, NULL, "5"},
    {"PUT", "/tell", "some", 4, false, NULL, "4"},
    {"DELETE", "/tell", "", 0, false, NULL, "0"},
    {"POST", "/tell", big, 40000, false, NULL, "40000"},
    {"POST", "/tell", big, 40000, true, NULL, "40000"},
};

/* The memory of the caller is its own again as soon as the call is made. */
START_TEST(a_request_arrives_as_it_was_made)
{
	_cleanup_free_ char *body = NULL;
	_cleanup_json_ json_t *answer = NULL;
	char a[] = "X-A: 1", b[] = "X-B: two words";
	const json_t *headers;
	struct asked asked = {0};

	memset(big, 'x', 40000);
	if (requests[_i].body)
		body = memcpy(malloc(requests[_i].len + 1), requests[_i].body, requests[_i].len);
	begin(&asked, (struct http_call){.method = requests[_i].method,
	                                 .target = requests[_i].target,
	                                 .node = requests[_i].node,
	                                 .body = body,
	                                 .len = requests[_i].len,
	                                 .once = requests[_i].once,
	                                 .headers = (const char *const[]){a, b, NULL}});
	memset(a, '-', strlen(a));
	memset(b, '-', strlen(b));
	if (body)
		memset(body, '-', requests[_i].len);
	finish(&asked);
	ck_assert_msg(asked.status == 200, "%d: %s", asked.status, asked.message);
	ck_assert_str_eq(asked.type, "application/json");
	ck_assert(asked.sent && !asked.queued);
	ck_assert_int_eq(asked.code, 0);
	ck_assert_uint_eq(asked.len, strlen(asked.body));
	answer = json_loads(asked.body, 0, NULL);
	headers = json_object_get(answer, "headers");
	ck_assert_str_eq(json_get_string(answer, "method", ""), requests[_i].method);
	ck_assert_str_eq(json_get_string(answer, "target", ""), requests[_i].target);
	ck_assert_uint_eq(json_string_length(json_object_get(answer, "body")), requests[_i].len);
	if (requests[_i].body)
		ck_assert_int_eq(
		    memcmp(json_get_string(answer, "body", ""), requests[_i].body, requests[_i].len), 0);
	ck_assert_str_eq(json_get_string(headers, "X-A", ""), "1");
	ck_assert_str_eq(json_get_string(headers, "X-B", ""), "two words");
	ck_assert_str_eq(json_get_string(headers, "Dtrain-Node", "none"),
	                 requests[_i].node ? requests[_i].node : "none");
	ck_assert_str_eq(json_get_string(headers, "Content-Length", "none"),
	                 requests[_i].length ? requests[_i].length : "none");
	/* A body does not wait until the service has said that it takes it. */
	ck_assert_ptr_null(json_object_get(headers, "Expect"));
	release(&asked);
}
END_TEST

START_TEST(an_answer_has_a_status_and_a_body)
{
	struct asked a = {0};

	begin(&a, (struct http_call){.target = "/nowhere"});
	finish(&a);
	ck_assert_int_eq(a.status, 404);
	ck_assert_int_eq(a.code, 0);
	ck_assert_ptr_nonnull(strstr(a.body, "no-such-route"));
	release(&a);
	ask(&a, (struct http_call){.target = "/long"});
	ck_assert_uint_eq(a.len, 0);
	ck_assert_str_eq(a.type, "text/plain");
	release(&a);
	begin(&a, (struct http_call){.target = "/hold"});
	while (!held)
		turn();
	http_reply_error(held, 410, "gone", "it has gone");
	finish(&a);
	ck_assert_int_eq(a.status, 410);
	release(&a);
}
END_TEST

/* The longest that is kept whole; one byte more is an error. */
START_TEST(an_answer_may_have_64_mib)
{
	struct asked a = {0};
	_cleanup_free_ char *longest = str_printf("/long?n=%d", LONGEST_ANSWER),
	                    *beyond = str_printf("/long?n=%d", LONGEST_ANSWER + 1);

	big[LONGEST_ANSWER - 1] = 'e';
	ask(&a, (struct http_call){.target = longest});
	ck_assert_uint_eq(a.len, LONGEST_ANSWER);
	ck_assert_int_eq(memcmp(a.body, big, LONGEST_ANSWER), 0);
	release(&a);
	begin(&a, (struct http_call){.target = beyond});
	finish(&a);
	ck_assert_int_eq(a.status, 0);
	ck_assert_int_eq(a.code, -EIO);
	release(&a);
}
END_TEST

/* The limit is that of the route, or of the service; one byte more is refused. */
START_TEST(a_body_has_a_limit)
{
	static const struct {
		const char *target;
		size_t limit;
	} cases[] = {{"/take", 1 << 20}, {"/take/8", 8 << 20}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *words =
		    str_printf("the request's body is larger than %zu bytes", cases[i].limit);
		struct http_call call = {
		    .method = "POST", .target = cases[i].target, .body = big, .len = cases[i].limit};
		struct asked a = {0};

		ask(&a, call);
		release(&a);
		call.len++;
		begin(&a, call);
		finish(&a);
		ck_assert_int_eq(a.status, 413);
		ck_assert_msg(strstr(a.body, "\"too-large\"") && strstr(a.body, words), "%s", a.body);
		release(&a);
	}
}
END_TEST

START_TEST(an_answer_comes_piece_by_piece)
{
	struct asked a = {0};

	begin(&a, (struct http_call){.target = "/stream", .on_headers = on_headers, .on_data = on_data});
	while (!a.heads[0])
		turn();
	ck_assert_str_eq(a.heads, "203 text/x-pieces;");
	http_stream_write(stream, "one", 3);
	while (a.pieces.len < 3)
		turn();
	http_stream_write(stream, "two", 3);
	http_stream_end(stream);
	finish(&a);
	ck_assert_str_eq(a.pieces.data, "onetwo");
	ck_assert_str_eq(a.heads, "203 text/x-pieces;");
	ck_assert_int_eq(a.status, 203);
	ck_assert_str_eq(a.type, "text/x-pieces");
	ck_assert_uint_eq(a.len, 0);
	ck_assert_str_eq(a.body, "");
	release(&a);
}
END_TEST

/* The status has come, and then the transfer breaks. */
START_TEST(an_answer_that_breaks_off_is_an_error)
{
	_cleanup_free_ char *where = str_printf("127.0.0.1 port %d: ", port);
	struct asked a = {0};

	begin(&a, (struct http_call){.target = "/stream", .on_headers = on_headers, .on_data = on_data});
	while (!stream)
		turn();
	http_stream_write(stream, "one", 3);
	while (a.pieces.len < 3)
		turn();
	http_stream_abort(stream);
	finish(&a);
	ck_assert_str_eq(a.heads, "203 text/x-pieces;");
	ck_assert_int_eq(a.status, 0);
	ck_assert_int_eq(a.code, -EIO);
	ck_assert(a.sent);
	ck_assert_msg(str_starts(a.message, where) && strlen(a.message) > strlen(where), "%s", a.message);
	release(&a);
}
END_TEST

/* What is paused gets nothing, while other calls go on; then it gets all of it. */
START_TEST(a_reader_may_pause)
{
	enum { SIZE = 1 << 20 };
	struct asked a = {.pauses = true}, other = {0};

	memset(big, 'y', SIZE);
	begin(&a, (struct http_call){.target = "/stream", .on_headers = on_headers, .on_data = on_data});
	while (!stream)
		turn();
	http_transfer_pause(a.transfer, false); /* it is not paused */
	http_stream_write(stream, big, SIZE);
	http_stream_end(stream);
	while (!a.paused)
		turn();
	ck_assert_uint_lt(a.pieces.len, SIZE);
	for (int i = 0; i < 3; i++) {
		ask(&other, (struct http_call){.target = "/tell"});
		release(&other);
	}
	ck_assert_int_eq(a.done, 0);
	a.paused = false;
	http_transfer_pause(a.transfer, false);
	finish(&a);
	ck_assert_uint_eq(a.pieces.len, SIZE);
	ck_assert_int_eq(memcmp(a.pieces.data, big, SIZE), 0);
	release(&a);
}
END_TEST

START_TEST(a_call_has_a_time_limit)
{
	_cleanup_free_ char *want = str_printf("127.0.0.1 port %d does not answer", port);
	struct asked a = {0};

	/* The connection is there: what is left is the wait for the answer. */
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
	begin(&a, (struct http_call){.target = "/hold", .timeout = 0.05});
	finish(&a);
	ck_assert_int_eq(a.status, 0);
	ck_assert_int_eq(a.code, -ETIMEDOUT);
	ck_assert_str_eq(a.message, want);
	ck_assert(a.sent);
	release(&a);
}
END_TEST

/* The service sees that its caller has gone; the other calls go on. */
START_TEST(a_cancelled_call_says_nothing)
{
	struct asked a[3] = {0};

	http_transfer_cancel(NULL);
	for (int i = 0; i < 3; i++)
		begin(&a[i], (struct http_call){.target = i == 1 ? "/hold" : "/stream"});
	while (!held)
		turn();
	http_transfer_cancel(a[1].transfer);
	while (held_count > 0)
		turn();
	ck_assert_int_eq(a[0].done + a[1].done + a[2].done, 0);
	http_client_destroy(steal_pointer(client));
	ck_assert_int_eq(a[0].done, 1);
	ck_assert_int_eq(a[1].done, 0);
	ck_assert_int_eq(a[2].done, 1);
	for (int i = 0; i < 3; i += 2) {
		ck_assert_int_eq(a[i].status, 0);
		ck_assert_int_eq(a[i].code, -ECANCELED);
		ck_assert_str_eq(a[i].message, "cancelled");
		ck_assert_str_eq(a[i].body, "");
		release(&a[i]);
	}
}
END_TEST

/* While it is given the only piece, or one that had waited; then the client may be gone before libcurl knows
 * of it. */
START_TEST(a_call_may_be_cancelled_while_it_is_given_data)
{
	enum { SIZE = 1 << 20 };
	struct asked a = {.cancels = true, .pauses = _i > 0}, other = {0};
	size_t len;

	memset(big, 'y', SIZE);
	begin(&a, (struct http_call){.target = "/stream", .on_headers = on_headers, .on_data = on_data});
	while (!stream)
		turn();
	http_stream_write(stream, big, _i > 0 ? SIZE : 1);
	while (!a.paused)
		turn();
	if (_i > 0) {
		ask(&other, (struct http_call){.target = "/tell"});
		release(&other);
		a.paused = false;
		http_transfer_pause(a.transfer, false);
		while (!a.paused)
			turn();
	}
	len = a.pieces.len;
	if (_i == 2) {
		http_client_destroy(steal_pointer(client));
	} else {
		ask(&other, (struct http_call){.target = "/tell"});
		release(&other);
	}
	/* The service sees that its caller has gone. */
	while (stream)
		turn();
	ck_assert_uint_eq(a.pieces.len, len);
	ck_assert_uint_lt(len, SIZE);
	ck_assert_int_eq(a.done, 0);
	release(&a);
}
END_TEST

START_TEST(without_a_key_no_service_is_called)
{
	struct error err = ERROR_INIT;
	struct asked a = {0};
	struct http_call call = {.method = "GET", .address = "127.0.0.1", .port = port, .target = "/tell"};

	http_client_set_identity(client, NULL);
	ck_assert_int_eq(http_client_call(client, &call, NULL, &err), -EPERM);
	ck_assert_ptr_nonnull(strstr(err.message, "no cluster key"));
	http_client_set_identity(client, id);
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
}
END_TEST

/* Services reach each other directly, whatever the environment says. */
START_TEST(no_proxy_stands_between_services)
{
	struct asked a = {0};

	setenv("https_proxy", "http://127.0.0.1:1", 1);
	setenv("all_proxy", "http://127.0.0.1:1", 1);
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
}
END_TEST

/* Of the socket of this process that is connected to the service. */
static int option_of_client(int level, int name)
{
	DIR *fds = opendir("/proc/self/fd");
	const struct dirent *e;
	int value = -1;

	while ((e = readdir(fds))) {
		struct sockaddr_in to = {0};
		socklen_t to_len = sizeof(to), len = sizeof(value);
		int fd = atoi(e->d_name);

		if (getpeername(fd, (struct sockaddr *)&to, &to_len) == 0 && to.sin_family == AF_INET &&
		    ntohs(to.sin_port) == port)
			ck_assert_int_eq(getsockopt(fd, level, name, &value, &len), 0);
	}
	closedir(fds);
	return value;
}

/* A small request is sent at once, and a service that has gone without closing the connection is noticed. */
START_TEST(a_connection_is_quick_and_watched)
{
	struct asked a = {0};

	ask(&a, (struct http_call){.target = "/tell"});
	ck_assert_int_eq(option_of_client(IPPROTO_TCP, TCP_NODELAY), 1);
	ck_assert_int_eq(option_of_client(SOL_SOCKET, SO_KEEPALIVE), 1);
	release(&a);
}
END_TEST

START_TEST(an_address_may_be_one_of_ipv6)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct asked a = {0};

	if (fd < 0 || bind(fd, (struct sockaddr *)&sin6, sizeof(sin6)) < 0) {
		printf("http calls: this machine has no IPv6: not tested\n");
		return;
	}
	close(fd);
	listen_at("::1");
	ask(&a, (struct http_call){.target = "/tell", .address = "::1"});
	release(&a);
}
END_TEST

/* With what is no key no caller is served; one that is served already goes on. */
START_TEST(a_key_that_is_none_changes_nothing)
{
	struct identity none = *id;
	struct error err = ERROR_INIT;
	struct asked a = {0};
	int fd;

	none.key = (char *)"none";
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(http_server_listen_tls(server, fd, &none, &err), -EIO);
	ck_assert_str_eq(err.message, "cannot start serving HTTP over TLS");
	ck_assert_int_eq(http_server_set_identity(server, &none, &err), -EIO);
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
}
END_TEST

START_TEST(what_is_no_socket_is_not_served)
{
	struct error err = ERROR_INIT;
	struct asked a = {0};
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	ck_assert_int_eq(dup2(null, STDIN_FILENO), STDIN_FILENO);
	ck_assert_int_eq(http_server_listen_unix(server, -1, &err), -EBADF);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot serve on a socket"));
	ck_assert_int_eq(http_server_listen_tls(server, -1, id, &err), -EBADF);
	/* It closes nothing, and the other listener goes on. */
	ck_assert_int_ge(fcntl(STDIN_FILENO, F_GETFD), 0);
	close(null);
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
}
END_TEST

/* What was read again from an unchanged file: the listener goes on as it is. */
START_TEST(the_same_key_changes_nothing)
{
	_cleanup_free_ char *path = str_path_join(dir, "cluster.pem"),
	                    *other_path = str_path_join(dir, "o.pem");
	_cleanup_(identity_freep) struct identity *same = NULL, *other = NULL;
	struct http_listener *listener = server->listeners;
	struct error err = ERROR_INIT;
	struct asked a = {0};

	ck_ok(identity_load(path, &same, &err), &err);
	ck_ok(http_server_set_identity(server, same, &err), &err);
	ck_assert_ptr_eq(server->listeners, listener);
	ck_assert(!listener->left);
	ask(&a, (struct http_call){.target = "/tell"});
	release(&a);
	/* Another one listens with another key. */
	ck_ok(identity_make(other_path, true, &err), &err);
	ck_ok(identity_load(other_path, &other, &err), &err);
	ck_ok(http_server_set_identity(server, other, &err), &err);
	ck_assert_ptr_ne(server->listeners, listener);
	ck_ok(http_server_set_identity(server, id, &err), &err);
}
END_TEST

/* Each caller that waits gets an answer, and the handlers know that it has. */
START_TEST(the_end_of_a_service_is_an_answer)
{
	_cleanup_free_ char *path = str_path_join(dir, "socket");
	char answer[1024] = "";
	struct error err = ERROR_INIT;
	size_t len = 0;
	ssize_t n;
	int fd;

	ck_ok(http_bind_unix(path, 0600, NULL, &fd, &err), &err);
	ck_ok(http_server_listen_unix(server, fd, &err), &err);
	fd = raw_connect_unix(path);
	ck_assert_int_gt(dprintf(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
	while (!held)
		turn();
	http_server_destroy(steal_pointer(server));
	ck_assert_int_eq(held_count, 0);
	while ((n = read(fd, answer + len, sizeof(answer) - 1 - len)) > 0)
		len += (size_t)n;
	ck_assert_msg(str_starts(answer, "HTTP/1.1 503 ") && strstr(answer, "\"stopping\""), "%s", answer);
	close(fd);
}
END_TEST

/* It has another key before anybody can connect, and says so to the first one. */
START_TEST(a_key_may_change_before_a_service_listens)
{
	_cleanup_free_ char *path = str_path_join(dir, "other.pem"), *socket = str_path_join(dir, "socket");
	struct http_server_options o = {.routes = routes, .route_count = ARRAY_SIZE(routes)};
	_cleanup_(identity_freep) struct identity *other = NULL;
	struct http_server *another = NULL;
	struct error err = ERROR_INIT;
	int fd;

	ck_ok(identity_make(path, true, &err), &err);
	ck_ok(identity_load(path, &other, &err), &err);
	ck_ok(http_server_create(event, &o, &another, &err), &err);
	ck_ok(http_server_set_identity(another, id, &err), &err);
	ck_ok(http_bind_unix(socket, 0600, NULL, &fd, &err), &err);
	ck_ok(http_server_listen_unix(another, fd, &err), &err);
	ck_ok(http_server_set_identity(another, other, &err), &err);
	http_server_destroy(another);
}
END_TEST

/* Descriptors do not suffice for another connection: it is accepted as soon as they do. */
START_TEST(who_cannot_be_accepted_is_accepted_later)
{
	_cleanup_free_ char *path = str_path_join(dir, "socket");
	struct rlimit limit, before;
	struct pollfd p = {.events = POLLIN};
	struct error err = ERROR_INIT;
	int fd;

	ck_ok(http_bind_unix(path, 0600, NULL, &fd, &err), &err);
	ck_ok(http_server_listen_unix(server, fd, &err), &err);
	p.fd = raw_connect_unix(path);
	ck_assert_int_gt(dprintf(p.fd, "GET /tell HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int i = 0; i < 5; i++)
		turn();
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	while (poll(&p, 1, 0) == 0)
		turn();
	close(p.fd);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("http calls");
	TCase *c = tcase_create("http calls");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_request_arrives_as_it_was_made, 0, ARRAY_SIZE(requests));
	tcase_add_test(c, an_answer_has_a_status_and_a_body);
	tcase_add_test(c, an_answer_may_have_64_mib);
	tcase_add_test(c, a_body_has_a_limit);
	tcase_add_test(c, an_answer_comes_piece_by_piece);
	tcase_add_test(c, an_answer_that_breaks_off_is_an_error);
	tcase_add_test(c, a_reader_may_pause);
	tcase_add_test(c, a_call_has_a_time_limit);
	tcase_add_test(c, a_cancelled_call_says_nothing);
	tcase_add_loop_test(c, a_call_may_be_cancelled_while_it_is_given_data, 0, 3);
	tcase_add_test(c, without_a_key_no_service_is_called);
	tcase_add_test(c, no_proxy_stands_between_services);
	tcase_add_test(c, a_connection_is_quick_and_watched);
	tcase_add_test(c, an_address_may_be_one_of_ipv6);
	tcase_add_test(c, a_key_that_is_none_changes_nothing);
	tcase_add_test(c, what_is_no_socket_is_not_served);
	tcase_add_test(c, the_same_key_changes_nothing);
	tcase_add_test(c, the_end_of_a_service_is_an_answer);
	tcase_add_test(c, a_key_may_change_before_a_service_listens);
	tcase_add_test(c, who_cannot_be_accepted_is_accepted_later);
	return unit_run(s);
}
