/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for libmicrohttpd, for the bounds on connections, and for the names of users, around the HTTP
 * server: fake_httpd.h. */
#include "fake_httpd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Who is at the other end of a Unix socket is in the connection, not in the kernel. */
#define getsockopt(fd, level, name, value, len) ((void)(len), fake_credentials(fd, value))
static int fake_credentials(int fd, void *value);
#include "http/server.c"
#undef getsockopt

enum {
	ARGUMENTS = 16,
	HEADERS = 8,
	PIECE = 64 << 10,    /* of a stream, read at a time */
	BODY_KEPT = 1 << 20, /* of an answer; the rest is read and dropped */
};

struct argument {
	char *name, *value;
};

struct MHD_Response {
	char *data;
	size_t len;
	MHD_ContentReaderCallback reader;
	void *context;
	char *type;
	unsigned references;
};

struct MHD_Connection {
	struct exchange exchange; /* first */
	struct httpd *httpd;
	struct http_connection ours;
	struct http_listener *listener;
	void *request;
	char *target, *path, *method, *headers[HEADERS][2];
	struct argument arguments[ARGUMENTS];
	size_t argument_count, header_count;
	struct MHD_Response *response;
	bool suspended;
	union MHD_ConnectionInfo info;
};

struct httpd {
	struct http_server *server;
	struct http_listener listeners[2]; /* by whether it is TLS */
	struct exchange *first;
	struct fake_request current; /* that is being handed over */
};

/* The server has one user look-up at a time, for the request that is being handed over. */
struct users {
	const struct fake_request *caller;
};

static struct users the_users;

static int fake_credentials(int fd, void *value)
{
	*(struct ucred *)value = (struct ucred){.uid = the_users.caller->uid, .gid = the_users.caller->uid};
	return 0;
}

int users_create(sd_event *event, const struct users_options *options, void (*changed)(void *context),
                 void *context, struct users **out, struct error *err)
{
	*out = &the_users;
	return 0;
}

void users_destroy(struct users *u)
{
}

int users_find(struct users *u, uid_t uid, const char **name)
{
	*name = u->caller->user;
	return 1;
}

bool users_is_admin(const struct users *u, uid_t uid)
{
	return u->caller->admin;
}

/* ---- connections: no bounds ---- */

int http_accept_begin(struct http_listener *l, struct error *err)
{
	return 0;
}

void http_accept_end(struct http_listener *l)
{
}

int http_turns_begin(struct http_listener *l, struct error *err)
{
	return 0;
}

void http_turns_end(struct http_listener *l)
{
}

void http_connections_close(struct http_listener *l)
{
}

void http_connection_free(struct http_connection *c)
{
}

struct http_peer *http_connection_peer(struct http_connection *c)
{
	return &c->peer;
}

void http_connection_head(struct http_connection *c, bool complete)
{
}

int http_connection_admit(struct http_connection *c, bool reserved, int64_t uid, char why[HTTP_REFUSAL_SIZE])
{
	return 0;
}

void http_connection_done(struct http_connection *c)
{
}

size_t http_connection_limit(const struct http_listener *l)
{
	return HTTP_CONNECTIONS;
}

int http_connections_timer(sd_event_source *source, uint64_t usec, void *listener)
{
	return 0;
}

int http_peer_check(struct http_server *s, gnutls_session_t session, struct http_peer *peer)
{
	return 0;
}

void http_peer_release(struct http_peer *peer)
{
}

/* ---- libmicrohttpd ---- */

const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *c,
                                                        enum MHD_ConnectionInfoType type, ...)
{
	memset(&c->info, 0, sizeof(c->info));
	if (type == MHD_CONNECTION_INFO_CONNECTION_FD)
		c->info.connect_fd = -1; /* whether the caller hangs up is not watched */
	else if (type == MHD_CONNECTION_INFO_SOCKET_CONTEXT)
		c->info.socket_context = &c->ours;
	return &c->info;
}

const char *MHD_lookup_connection_value(struct MHD_Connection *c, enum MHD_ValueKind kind, const char *key)
{
	for (size_t i = 0; kind == MHD_GET_ARGUMENT_KIND && i < c->argument_count; i++)
		if (strcmp(c->arguments[i].name, key) == 0)
			return c->arguments[i].value;
	for (size_t i = 0; kind == MHD_HEADER_KIND && i < c->header_count; i++)
		if (strcasecmp(c->headers[i][0], key) == 0)
			return c->headers[i][1];
	return NULL;
}

struct MHD_Response *MHD_create_response_from_buffer(size_t size, void *buffer,
                                                     enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *r = calloc(1, sizeof(*r));

	if (mode == MHD_RESPMEM_MUST_COPY) {
		r->data = malloc(size + 1);
		memcpy(r->data, buffer, size);
	} else {
		r->data = buffer;
	}
	r->len = size;
	r->references = 1;
	return r;
}

struct MHD_Response *MHD_create_response_from_callback(uint64_t size, size_t block,
                                                       MHD_ContentReaderCallback reader, void *context,
                                                       MHD_ContentReaderFreeCallback release)
{
	struct MHD_Response *r = calloc(1, sizeof(*r));

	r->reader = reader;
	r->context = context;
	r->references = 1;
	return r;
}

enum MHD_Result MHD_add_response_header(struct MHD_Response *r, const char *name, const char *value)
{
	if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_TYPE) == 0)
		str_replace(&r->type, value);
	return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *r)
{
	if (--r->references > 0)
		return;
	free(r->data);
	free(r->type);
	free(r);
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *c, unsigned status, struct MHD_Response *r)
{
	if (c->response)
		abort(); /* a request has one answer */
	c->response = r;
	r->references++;
	c->exchange.status = (int)status;
	c->exchange.type = r->type ? strdup(r->type) : NULL;
	if (!r->reader) {
		strbuf_add(&c->exchange.body, r->data, r->len);
		c->exchange.complete = true;
	}
	return MHD_YES;
}

void MHD_suspend_connection(struct MHD_Connection *c)
{
	c->suspended = true;
}

void MHD_resume_connection(struct MHD_Connection *c)
{
	c->suspended = false;
}

enum MHD_Result MHD_run(struct MHD_Daemon *daemon)
{
	return MHD_YES;
}

/* ---- one request ---- */

static int digit(char c)
{
	const char *p = c ? strchr("0123456789abcdef", c | (c >= 'A' && c <= 'F' ? 0x20 : 0)) : NULL;

	return p ? (int)(p - "0123456789abcdef") : -1;
}

/* As libmicrohttpd does it: what is no escape stays. */
static void unescape(char *text)
{
	char *out = text;

	for (const char *p = text; *p; p++) {
		int high = *p == '%' ? digit(p[1]) : -1, low = high >= 0 ? digit(p[2]) : -1;

		*out++ = low >= 0 ? (char)(high << 4 | low) : *p;
		p += low >= 0 ? 2 : 0;
	}
	*out = '\0';
}

static void split_target(struct MHD_Connection *c)
{
	char *query;

	c->path = strdup(c->target);
	query = strchr(c->path, '?');
	if (query)
		*query++ = '\0';
	unescape(c->path);
	while (query && c->argument_count < ARGUMENTS) {
		char *one = strsep(&query, "&"), *value = strchr(one, '=');
		struct argument *a = &c->arguments[c->argument_count++];

		if (value)
			*value++ = '\0';
		for (char *p = one; *p; p++)
			*p = *p == '+' ? ' ' : *p;
		for (char *p = value; p && *p; p++)
			*p = *p == '+' ? ' ' : *p;
		unescape(one);
		if (value)
			unescape(value);
		*a = (struct argument){one, value};
	}
}

static void hand_over(struct MHD_Connection *c, const char *data, size_t len)
{
	if (on_access(c->listener, c, c->path, c->method, "HTTP/1.1", data, &len, &c->request) != MHD_YES)
		abort();
}

struct exchange *httpd_send(struct httpd *h, const struct fake_request *what)
{
	struct MHD_Connection *c = calloc(1, sizeof(*c));
	struct http_request *r;

	h->current = *what;
	the_users.caller = &h->current;
	c->httpd = h;
	c->listener = &h->listeners[what->tls];
	c->target = strdup(what->target);
	c->method = strdup(what->method);
	c->ours.peer.node = what->node ? strdup(what->node) : NULL;
	for (size_t i = 0; what->headers && what->headers[i][0] && i < HEADERS; i++) {
		c->headers[i][0] = strdup(what->headers[i][0]);
		c->headers[i][1] = strdup(what->headers[i][1]);
		c->header_count++;
	}
	split_target(c);
	c->exchange.next = h->first;
	h->first = &c->exchange;
	c->request = r = on_request_line(c->listener, c->target, c);
	c->exchange.request = r;
	hand_over(c, NULL, 0);
	c->exchange.route = r->match.route;
	if (what->len > 0)
		hand_over(c, what->body, what->len);
	hand_over(c, NULL, 0);
	return &c->exchange;
}

static bool read_stream(struct MHD_Connection *c)
{
	_cleanup_free_ char *piece = malloc(PIECE);
	bool progress = false;

	while (!c->suspended && !c->exchange.complete) {
		ssize_t n = c->response->reader(c->response->context, 0, piece, PIECE);

		if (n < 0) {
			c->exchange.complete = true;
			c->exchange.broken = n == MHD_CONTENT_READER_END_WITH_ERROR;
		} else if (c->exchange.body.len < BODY_KEPT) {
			strbuf_add(&c->exchange.body, piece, (size_t)n);
		}
		progress = progress || n != 0;
	}
	return progress;
}

static bool go_on(struct MHD_Connection *c)
{
	if (c->suspended || c->exchange.complete)
		return false;
	if (c->response)
		return read_stream(c);
	hand_over(c, NULL, 0);
	return true;
}

bool httpd_pump(struct httpd *h)
{
	bool progress = false;

	for (struct exchange *e = h->first; e; e = e->next)
		progress = go_on((struct MHD_Connection *)e) || progress;
	return progress;
}

struct exchange *httpd_first(const struct httpd *h)
{
	return h->first;
}

static void connection_free(struct MHD_Connection *c)
{
	on_completed(c->listener, c, &c->request, MHD_REQUEST_TERMINATED_COMPLETED_OK);
	if (c->response)
		MHD_destroy_response(c->response);
	for (size_t i = 0; i < c->header_count; i++) {
		free(c->headers[i][0]);
		free(c->headers[i][1]);
	}
	strbuf_free(&c->exchange.body);
	free(c->exchange.type);
	free(c->ours.peer.node);
	free(c->target);
	free(c->path);
	free(c->method);
	free(c);
}

void httpd_end_all(struct httpd *h)
{
	struct exchange *e;

	while ((e = h->first)) {
		h->first = e->next;
		connection_free((struct MHD_Connection *)e);
	}
}

int httpd_create(sd_event *event, const struct http_server_options *options, struct httpd **out,
                 struct error *err)
{
	struct httpd *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return error_oom(err);
	r = http_server_create(event, options, &h->server, err);
	if (r < 0) {
		free(h);
		return r;
	}
	for (int tls = 0; tls < 2; tls++)
		h->listeners[tls] = (struct http_listener){.server = h->server, .fd = -1, .tls = tls};
	*out = h;
	return 0;
}

void httpd_destroy(struct httpd *h)
{
	httpd_end_all(h);
	http_server_destroy(h->server);
	free(h);
}
