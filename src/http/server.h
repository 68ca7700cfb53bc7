/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server on an sd-event loop: one table of routes, served on Unix sockets (the caller's identity
 * comes from the kernel) and over mutual TLS 1.3 (the caller has to hold the cluster's key, or a certificate
 * of a node).
 *
 * A handler is called once the request's body is there, and answers now or later: until it has answered, the
 * request waits without a cost. It stays valid until its `closed` callback; a request that was answered is
 * not to be touched any more, a stream not after its own `closed`. Requests with a large body that do not
 * come from another service are handled one a turn of the event loop, after what else there is to read.
 */
#pragma once

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "http/identity.h"
#include "http/route.h"

struct http_server;
struct http_stream;
struct users_options;

struct http_server_options {
	const struct http_route *routes; /* borrowed, for the server's life */
	size_t route_count;
	void *context;   /* for the handlers */
	size_t max_body; /* larger request bodies: 413; for routes without a limit of their own (route.h) */
	double head_seconds; /* for a handshake and the head of a request; 0: 10 */
	/* A handshake from which nothing comes for so long makes room for others. 0: a few times as long as
	 * handshakes take of late. */
	double stalled_seconds;
	/* of a listener for services; 0: 4,000. The bounds on requests are parts of it */
	size_t tls_connections;
	/* Of the requests of a user, other than root: bodies that are not handled yet, and answers that are
	 * not read. A request beyond that is refused, a stream is aborted. 0: 256 MiB. */
	size_t user_memory;
	/* Called before the handler of each route with bits of its owner's (NULL: never), with these bits.
	 * True: the request is taken care of, and the handler is not called. */
	bool (*intercept)(void *context, struct http_request *r, unsigned bits);
	const struct users_options *users; /* NULL: the defaults */
	/* This service's name among services; borrowed, for the server's life. A request of another service
	 * that says that it is meant for one of another name ("Dtrain-Node: NAME") is refused with 421. NULL:
	 * none is. */
	const char *node;
	/* The node that has this name in its certificate, as the hosts file spells it (valid for the call);
	 * NULL: none has. Needed where nodes have certificates of their own. */
	const char *(*find_node)(void *context, const char *name);
	/* Whoever has a certificate that an authority of the identity has signed may call, whatever its
	 * names. */
	bool any_name;
};

int http_server_create(sd_event *event, const struct http_server_options *options, struct http_server **out,
                       struct error *err);
/* Serve on a listening socket; takes fd in any case. */
int http_server_listen_unix(struct http_server *server, int fd, struct error *err);
int http_server_listen_tls(struct http_server *server, int fd, const struct identity *identity,
                           struct error *err);
/* Another identity, or other nodes, or authorities, than until now: connections that are there stay, and
 * their callers are checked again at the next request. Borrowed, as in http_server_listen_tls; where it fails
 * nothing has changed. */
int http_server_set_identity(struct http_server *server, const struct identity *identity, struct error *err);
/* Unix sockets that were listened on so far take no new connections; those that are there go on. */
void http_server_leave_unix(struct http_server *server);
/* Addresses of other services, as numbers (names are passed over): the bounds for strangers
 * are not theirs. */
int http_server_set_peers(struct http_server *server, const char *const *addresses, size_t count);
/* Ends every connection; the `closed` callbacks of what is open run from here. */
void http_server_destroy(struct http_server *server);
DEFINE_CLEANUP(struct http_server *, http_server_destroy)

/* Listening sockets. mode and group (NULL: none) of the Unix socket apply before anyone can connect; a stale
 * socket file is replaced, one that answers is -EADDRINUSE. */
bool http_unix_answers(const char *path); /* whether a process listens there: a connection succeeds */
int http_bind_unix(const char *path, mode_t mode, const char *group, int *fd, struct error *err);
int http_bind_tcp(const char *address, int port, int *fd, struct error *err);

/* The caller. For a peer, uid, gid, user and admin are those of the user it speaks for, as it says
 * ("Dtrain-User: UID:GID:NAME"; HTTP_ADMIN_HEADER: an administrator); -1, NULL and false where it speaks for
 * itself. */
#define HTTP_ADMIN_HEADER "Dtrain-Admin"

struct http_caller {
	bool peer;
	int64_t uid, gid;
	const char *node; /* the peer's name, of its certificate; NULL: any that holds the cluster's key */
	bool admin;       /* a member of the administrators' group: users.h */
	const char *user; /* NULL: no such entry in the password database, or it does not answer */
};

const struct http_caller *http_request_caller(const struct http_request *r);
const char *http_request_method(const struct http_request *r);
const char *http_request_target(const struct http_request *r); /* path and query as they came */
/* The i-th captured part of the path, NUL-terminated, unescaped. */
const char *http_request_capture(const struct http_request *r, size_t i);
const char *http_request_query(const struct http_request *r, const char *name); /* NULL: absent */
/* A whole number within [min, max]; `fallback` where absent. -EINVAL: answered with 400 already. */
int http_request_query_int(struct http_request *r, const char *name, int64_t min, int64_t max,
                           int64_t fallback, int64_t *out);
const char *http_request_header(const struct http_request *r, const char *name);
const void *http_request_body(const struct http_request *r, size_t *len);
/* The body as a JSON object (new reference); otherwise NULL, and the request is answered with 400. */
json_t *http_request_json(struct http_request *r);

/* Called once: when the request has been answered and sent, or when the caller went away. */
void http_request_on_close(struct http_request *r, void (*closed)(void *context), void *context);

/* Answers. Each ends the request for its handler. json: the reference is taken. */
void http_reply_json(struct http_request *r, int status, json_t *json);
void http_reply_bytes(struct http_request *r, int status, const char *type, const void *data, size_t len);
void http_reply_error(struct http_request *r, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A body that comes in pieces. The stream is the request's: it ends with the callback of
 * http_request_on_close, after which nothing may be written. */
struct http_stream *http_reply_stream(struct http_request *r, int status, const char *type);
void http_stream_write(struct http_stream *s, const void *data, size_t len);
void http_stream_end(struct http_stream *s);   /* all that was written is still sent */
void http_stream_abort(struct http_stream *s); /* the caller sees a broken transfer, not an end */
/* Bytes written and not sent yet, SIZE_MAX where the stream is broken; `drained` is called when they fall to
 * nothing, for writers that wait. */
size_t http_stream_pending(const struct http_stream *s);
void http_stream_on_drain(struct http_stream *s, void (*drained)(void *context), void *context);
