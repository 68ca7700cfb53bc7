/* SPDX-License-Identifier: Apache-2.0 */
/* A blocking HTTP/1.1 client for a Unix socket, without libcurl, which takes longer to load than a call
 * takes. */
#include "http/local.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/socket.h"
#include "base/str.h"
#include "wire/error_answer.h"

enum { LINE_MAX_BYTES = 8192 };

struct http_local {
	int fd;
	char *socket;
	char buf[65536]; /* what was received and not used yet: [start, end) */
	size_t start, end;
	char code[64], type[64];
	bool broken;   /* a call ended before its answer did */
	bool answered; /* the service has answered on this connection */
};

/* The head of an answer, as far as it matters here. */
struct head {
	int status;
	bool chunked, close;
	int64_t length; /* -1: not said */
	char type[64];
};

typedef int (*piece_fn)(void *context, const char *data, size_t len, struct error *err);

/* The members of the socket's group may use it; a process has the groups that its user had at login. */
static int permission_error(const char *path, struct error *err)
{
	const struct passwd *user = getpwuid(geteuid());
	const struct group *group;
	struct stat st;

	if (!user || stat(path, &st) < 0 || !(group = getgrgid(st.st_gid)))
		return error_set(err, -EACCES,
		                 "no permission to use %s: be a member of its group, and log in again "
		                 "after joining it",
		                 path);
	if (!(st.st_mode & S_IWGRP) || st.st_gid == 0)
		return error_set(err, -EACCES,
		                 "no permission to use %s: it is for root alone, unless dtraind.conf names a "
		                 "group of users",
		                 path);
	for (char **member = group->gr_mem; *member; member++)
		if (strcmp(*member, user->pw_name) == 0)
			return error_set(err, -EACCES,
			                 "no permission to use %s: %s is a member of group %s now, but was "
			                 "not at this login: log in again",
			                 path, user->pw_name, group->gr_name);
	return error_set(
	    err, -EACCES,
	    "no permission to use %s: %s is not in group %s on this machine: as root, adduser %s "
	    "%s; then a new login",
	    path, user->pw_name, group->gr_name, user->pw_name, group->gr_name);
}

static int connect_error(const char *path, int code, struct error *err)
{
	if (code == -EACCES)
		return permission_error(path, err);
	if (code == -ENOENT)
		return error_set(
		    err, code,
		    "dtraind does not answer at %s: on a node of the cluster, systemctl start dtraind; "
		    "another machine needs the package dtrain for this",
		    path);
	if (code == -ECONNREFUSED)
		return error_set(err, code, "dtraind does not answer at %s: systemctl start dtraind", path);
	return error_errno(err, code, "cannot connect to %s", path);
}

int http_local_open(const char *path, struct http_local **out, struct error *err)
{
	_cleanup_(http_local_closep) struct http_local *l = calloc(1, sizeof(*l));
	struct sockaddr_un sun;
	int r;

	if (!l)
		return error_oom(err);
	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	l->socket = strdup(path);
	if (l->fd < 0 || !l->socket)
		return error_errno(err, -errno, "cannot make a socket");
	if ((r = socket_address(path, &sun, err)) < 0)
		return r;
	if (connect(l->fd, (struct sockaddr *)&sun, sizeof(sun)) < 0)
		return connect_error(path, -errno, err);
	*out = steal_pointer(l);
	return 0;
}

void http_local_close(struct http_local *l)
{
	if (!l)
		return;
	closep(&l->fd);
	free(l->socket);
	free(l);
}

const char *http_local_error_code(const struct http_local *l)
{
	return l->code;
}

const char *http_local_type(const struct http_local *l)
{
	return l->type;
}

static int send_all(struct http_local *l, const char *p, size_t len, struct error *err)
{
	while (len > 0) {
		ssize_t n = send(l->fd, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "dtraind at %s has closed the connection", l->socket);
		p += n;
		len -= n;
	}
	return 0;
}

static int send_request(struct http_local *l, const char *method, const char *target, const char *header,
                        const char *type, const void *body, size_t len, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	strbuf_addf(&b, "%s %s HTTP/1.1\r\nHost: dtraind\r\n", method, target);
	if (header)
		strbuf_addf(&b, "%s\r\n", header);
	if (type)
		strbuf_addf(&b, "Content-Type: %s\r\n", type);
	if (body || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0)
		strbuf_addf(&b, "Content-Length: %zu\r\n", len);
	strbuf_adds(&b, "\r\n");
	strbuf_add(&b, body ? body : "", body ? len : 0);
	return b.failed ? error_oom(err) : send_all(l, b.data, b.len, err);
}

/* More bytes into the buffer: their count, 0 at the end of the connection. */
static int fill(struct http_local *l, struct error *err)
{
	ssize_t n;

	if (l->start == l->end)
		l->start = l->end = 0;
	else if (l->end == sizeof(l->buf) && l->start > 0) {
		memmove(l->buf, l->buf + l->start, l->end - l->start);
		l->end -= l->start;
		l->start = 0;
	}
	if (l->end == sizeof(l->buf))
		return error_set(err, -EPROTO, "%s: this is no answer of dtraind", l->socket);
	do
		n = recv(l->fd, l->buf + l->end, sizeof(l->buf) - l->end, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return error_set(err, -ETIMEDOUT, "dtraind at %s does not answer in time", l->socket);
	/* systemd accepts the connection, and closes it where the service cannot be started. */
	if (n < 0 && errno == ECONNRESET && !l->answered)
		return error_set(err, -ECONNRESET,
		                 "dtraind at %s has ended without an answer: systemctl status dtraind, or "
		                 "journalctl -u dtraind, says why",
		                 l->socket);
	if (n < 0)
		return error_errno(err, -errno, "cannot read from dtraind at %s", l->socket);
	l->end += n;
	l->answered = l->answered || n > 0;
	return n;
}

static int gone(struct http_local *l, struct error *err)
{
	return error_set(err, -ECONNRESET,
	                 "dtraind at %s has closed the connection before its answer was complete", l->socket);
}

/* One line without its line end, valid until the next call. */
static int read_line(struct http_local *l, char **line, struct error *err)
{
	size_t seen = 0;

	for (;;) {
		char *nl = memchr(l->buf + l->start + seen, '\n', l->end - l->start - seen);
		int r;

		if (nl) {
			*line = l->buf + l->start;
			l->start = nl + 1 - l->buf;
			*nl = '\0';
			if (nl > *line && nl[-1] == '\r')
				nl[-1] = '\0';
			return 0;
		}
		seen = l->end - l->start;
		if (seen > LINE_MAX_BYTES)
			return error_set(err, -EPROTO, "%s: this is no answer of dtraind", l->socket);
		r = fill(l, err);
		if (r <= 0)
			return r < 0 ? r : gone(l, err);
	}
}

static int read_head(struct http_local *l, struct head *h, struct error *err)
{
	char *line, *value;
	int r;

	*h = (struct head){.length = -1};
	r = read_line(l, &line, err);
	if (r < 0)
		return r;
	if (sscanf(line, "HTTP/1.%*d %d", &h->status) != 1)
		return error_set(err, -EPROTO, "%s: this is no answer of dtraind", l->socket);
	for (;;) {
		r = read_line(l, &line, err);
		if (r < 0)
			return r;
		if (!*line)
			return 0;
		value = strchr(line, ':');
		if (!value)
			continue;
		*value++ = '\0';
		value = str_strip(value);
		if (strcasecmp(line, "Content-Length") == 0)
			str_to_int64(value, 0, INT64_MAX, &h->length);
		else if (strcasecmp(line, "Transfer-Encoding") == 0)
			h->chunked = strcasecmp(value, "chunked") == 0;
		else if (strcasecmp(line, "Content-Type") == 0)
			snprintf(h->type, sizeof(h->type), "%s", value);
		else if (strcasecmp(line, "Connection") == 0)
			h->close = strcasecmp(value, "close") == 0;
	}
}

/* n bytes of body (-1: all until the connection ends) to `piece`. */
static int read_span(struct http_local *l, int64_t n, piece_fn piece, void *context, struct error *err)
{
	while (n != 0) {
		size_t have = l->end - l->start, use = n > 0 && (int64_t)have > n ? (size_t)n : have;
		int r;

		if (have == 0) {
			r = fill(l, err);
			if (r < 0)
				return r;
			if (r == 0)
				return n < 0 ? 0 : gone(l, err);
			continue;
		}
		l->start += use;
		r = piece(context, l->buf + l->start - use, use, err);
		if (r < 0)
			return r;
		if (n > 0)
			n -= use;
	}
	return 0;
}

static int read_chunks(struct http_local *l, piece_fn piece, void *context, struct error *err)
{
	for (;;) {
		char *line, *end;
		int64_t n;
		int r;

		r = read_line(l, &line, err);
		if (r < 0)
			return r;
		n = strtoll(line, &end, 16);
		if (end == line || n < 0)
			return error_set(err, -EPROTO, "%s: this is no answer of dtraind", l->socket);
		if (n > 0) {
			r = read_span(l, n, piece, context, err);
			if (r < 0)
				return r;
		}
		do /* the line end after a chunk; after the last one the trailer up to an empty line */
			r = read_line(l, &line, err);
		while (r == 0 && n == 0 && *line);
		if (r < 0 || n == 0)
			return r;
	}
}

static int read_body(struct http_local *l, const struct head *h, piece_fn piece, void *context,
                     struct error *err)
{
	if (h->status == 204 || h->status == 304)
		return 0;
	if (h->chunked)
		return read_chunks(l, piece, context, err);
	return read_span(l, h->length, piece, context, err);
}

static int collect(void *context, const char *data, size_t len, struct error *err)
{
	struct strbuf *b = context;

	strbuf_add(b, data, len);
	return b->failed ? error_oom(err) : 0;
}

static int begin(struct http_local *l, const char *method, const char *target, const char *header,
                 const char *type, const void *body, size_t len, struct head *h, struct error *err)
{
	int r;

	l->code[0] = l->type[0] = '\0';
	if (l->broken)
		return error_set(err, -EPIPE, "the connection to %s is of no more use", l->socket);
	l->broken = true;
	r = send_request(l, method, target, header, type, body, len, err);
	if (r == 0)
		r = read_head(l, h, err);
	if (r == 0)
		strcpy(l->type, h->type);
	return r;
}

/* An error answer into words. */
static int remote_error(struct http_local *l, const struct head *h, const struct strbuf *body,
                        struct error *err)
{
	_cleanup_json_ json_t *json = json_loadb(body->data ? body->data : "", body->len, 0, NULL);
	struct error_answer answer;

	error_answer_read(json, &answer);
	snprintf(l->code, sizeof(l->code), "%s", answer.code);
	return error_set(err, -EREMOTEIO, "%s",
	                 answer.message ? answer.message : "dtraind has answered with an error");
}

int http_local_bytes(struct http_local *l, const char *method, const char *target, const char *type,
                     const void *body, size_t len, double timeout, int *status, char **answer,
                     size_t *answer_len, struct error *err)
{
	struct timeval tv = {(time_t)timeout, (timeout - (time_t)timeout) * 1e6};
	_cleanup_strbuf_ struct strbuf b = {0};
	struct head h;
	int r;

	*status = 0;
	setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if ((r = begin(l, method, target, NULL, type, body, len, &h, err)) < 0 ||
	    (r = read_body(l, &h, collect, &b, err)) < 0)
		return r;
	l->broken = h.close;
	*status = h.status;
	*answer_len = b.len;
	*answer = strbuf_steal(&b);
	return *answer ? 0 : error_oom(err);
}

int http_local_json(struct http_local *l, const char *method, const char *target, const char *header,
                    const json_t *body, int *status, json_t **answer, struct error *err)
{
	_cleanup_free_ char *text = body ? json_to_string(body) : NULL;
	_cleanup_strbuf_ struct strbuf b = {0};
	struct timeval tv = {0, 0};
	struct head h;
	int r;

	if (status)
		*status = 0;
	if (body && !text)
		return error_oom(err);
	setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	r = begin(l, method, target, header, text ? "application/json" : NULL, text, text ? strlen(text) : 0,
	          &h, err);
	if (r == 0)
		r = read_body(l, &h, collect, &b, err);
	if (r < 0)
		return r;
	l->broken = h.close;
	if (status)
		*status = h.status;
	if (h.status < 200 || h.status > 299)
		return remote_error(l, &h, &b, err);
	return answer ? json_parse(b.data ? b.data : "", b.len, "dtraind's answer", answer, err) : 0;
}

int http_local_stream(struct http_local *l, const char *method, const char *target, piece_fn piece,
                      void *context, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	struct timeval tv = {0, 0};
	struct head h;
	bool ok;
	int r;

	setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	r = begin(l, method, target, NULL, NULL, NULL, 0, &h, err);
	if (r < 0)
		return r;
	ok = h.status >= 200 && h.status <= 299;
	r = read_body(l, &h, ok ? piece : collect, ok ? context : &b, err);
	if (r < 0)
		return r;
	l->broken = h.close;
	return ok ? 0 : remote_error(l, &h, &b, err);
}

char *http_escape(const char *s)
{
	struct strbuf b = {0};

	for (; *s; s++)
		if (isalnum((unsigned char)*s) || strchr("-._~", *s))
			strbuf_addc(&b, *s);
		else
			strbuf_addf(&b, "%%%02X", (unsigned char)*s);
	return strbuf_steal(&b);
}
