/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners of libmicrohttpd, and its callbacks, which come in its turns (turns.c). A request whose answer is
 * not there yet is suspended. Before its handler is called, the caller is identified and the route found.
 */
#include "http/server.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "http/internal.h"

enum {
	IDLE_SECONDS = 300,    /* a connection on which nothing is asked; peers speak every heartbeat */
	LARGE_BODY = 64 << 10, /* takes time to parse: handled one a turn */
	LARGE_PRIORITY = 50,   /* after the sockets */
};

static int verify_peer(gnutls_session_t session)
{
	const struct http_listener *l = gnutls_session_get_ptr(session);
	struct http_peer peer = {0};
	int r = l ? http_peer_check(l->server, session, &peer) : -EACCES;

	http_peer_release(&peer);
	return r < 0 ? GNUTLS_E_CERTIFICATE_ERROR : 0;
}

static struct http_connection *connection_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info ? info->socket_context : NULL;
}

/* The handshake has checked the certificate already. It is checked again here because the handshake's
 * callback may not have been called, and because the keys may have changed since. */
static int identify_peer(struct http_request *r)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	struct http_connection *c = connection_of(r->connection);

	if (!info || !c ||
	    http_peer_check(r->listener->server, info->tls_session, http_connection_peer(c)) < 0)
		return -EACCES;
	r->caller.node = http_connection_peer(c)->node;
	return 0;
}

/* Who calls: for the Unix socket the kernel says; a peer says for whom it speaks. The kernel knows no names:
 * see find_name. */
static int identify(struct http_request *r)
{
	const union MHD_ConnectionInfo *info;
	struct ucred cred;
	socklen_t len = sizeof(cred);
	const char *said;
	long long uid, gid;
	int used = 0;

	r->caller = (struct http_caller){.peer = r->listener->tls, .uid = -1, .gid = -1};
	if (r->caller.peer) {
		if (identify_peer(r) < 0)
			return -EACCES;
		said = http_request_header(r, "Dtrain-User");
		if (!said)
			return 0;
		if (sscanf(said, "%lld:%lld:%n", &uid, &gid, &used) != 2 || used == 0)
			return -EINVAL;
		r->user = said[used] ? strdup(said + used) : NULL;
		if (said[used] && !r->user)
			return -ENOMEM;
		r->caller.uid = uid;
		r->caller.gid = gid;
		r->caller.admin = http_request_header(r, HTTP_ADMIN_HEADER);
	} else {
		info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
		if (!info || getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
			return -EACCES;
		r->caller.uid = cred.uid;
		r->caller.gid = cred.gid;
	}
	r->caller.user = r->user;
	return 0;
}

/* One that is refused gives its connection back, too. */
static void admit(struct http_request *r, bool reserved)
{
	char why[HTTP_REFUSAL_SIZE];

	if (http_connection_admit(connection_of(r->connection), reserved, r->caller.uid, why) == 0)
		return;
	if (!r->answered)
		http_request_refuse(r, 503, "too-many", "%s", why);
	if (r->response)
		MHD_add_response_header(r->response, MHD_HTTP_HEADER_CONNECTION, "close");
}

/* The node that another service means to reach, where that is not this one; otherwise NULL. Services of an
 * older version do not say it. */
static const char *wrong_node(const struct http_request *r)
{
	const char *own = r->listener->server->options.node;
	const char *meant = r->listener->tls && own ? http_request_header(r, "Dtrain-Node") : NULL;

	return meant && !str_eq_host(meant, own) ? meant : NULL;
}

/* A service whose certificate is accepted no longer connects anew, possibly with another one. */
static void refuse_unidentified(struct http_request *r)
{
	http_request_refuse(r, 403, "not-allowed", "the caller's identity cannot be told");
	if (r->listener->tls && r->response)
		MHD_add_response_header(r->response, MHD_HTTP_HEADER_CONNECTION, "close");
}

static void refuse_memory(struct http_request *r)
{
	http_request_refuse(r, 500, "out-of-memory", "out of memory");
}

/* Everything that can be said before the body: the answer then waits until the body has passed. */
static void request_start(struct http_request *r, const char *method, const char *path)
{
	const struct http_server_options *o = &r->listener->server->options;
	int found = http_route_match(o->routes, o->route_count, method, path, &r->match);
	unsigned who = r->listener->tls ? HTTP_PEER : HTTP_LOCAL;
	int identified = identify(r);

	if (found == -EOPNOTSUPP)
		http_request_refuse(r, 405, "method-not-allowed", "%s is not possible on %s", method, path);
	else if (found < 0)
		http_request_refuse(r, 404, "no-such-route", "there is no %s here", path);
	else if (!(r->match.route->callers & who))
		http_request_refuse(r, 403, "not-allowed", "%s is for %s only", path,
		                    who == HTTP_PEER ? "programs on this machine" : "services");
	else if (identified == -ENOMEM)
		refuse_memory(r);
	else if (identified < 0)
		refuse_unidentified(r);
	else if (wrong_node(r))
		http_request_refuse(r, 421, "wrong-node",
		                    "this is node %s, not %s: correct addr= or port= of %s in the hosts file",
		                    o->node, wrong_node(r), wrong_node(r));
	for (size_t i = 0; found == 0 && i < r->match.count; i++) {
		r->captures[i] = strndup(path + r->match.captures[i].start, r->match.captures[i].len);
		if (!r->captures[i])
			refuse_memory(r);
	}
	if (r->listener->tls)
		admit(r, found == 0 && (r->match.route->callers & HTTP_RESERVED));
}

static void request_body(struct http_request *r, const char *data, size_t len)
{
	size_t max;

	if (r->answered)
		return;
	max = r->match.route->callers & HTTP_BODY_8M   ? 8 << 20
	      : r->match.route->callers & HTTP_BODY_4M ? 4 << 20
	      : r->match.route->callers & HTTP_BODY_1M ? 1 << 20
	                                               : r->listener->server->options.max_body;
	if (r->body.len + len > max) {
		strbuf_free(&r->body);
		http_request_refuse(r, 413, "too-large", "the request's body is larger than %zu bytes", max);
		return;
	}
	if (!http_request_keep(r, r->body.len, len)) {
		strbuf_free(&r->body);
		return;
	}
	strbuf_add(&r->body, data, len);
	if (r->body.failed)
		refuse_memory(r);
}

static void request_dispatch(struct http_request *r)
{
	const struct http_route *route = r->match.route;
	struct http_server *s = r->listener->server;
	unsigned bits;

	if (!r->answered && s->closing)
		http_request_refuse(r, 503, "stopping", "the service is being stopped");
	if (r->answered)
		return;
	bits = route->callers & ~(unsigned)(HTTP_OWNER - 1);
	if (!bits || !s->options.intercept || !s->options.intercept(s->options.context, r, bits))
		route->handler(s->options.context, r);
}

static int on_large(sd_event_source *source, void *userdata)
{
	struct http_server *s = userdata;
	struct http_request *r = s->large;

	if (!r)
		return 0;
	http_request_unqueue(r);
	if (s->large)
		sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	request_dispatch(r);
	return 0;
}

/* False: it is being looked up. True: it is found, or the request is answered. */
static bool find_name(struct http_request *r)
{
	const char *name;
	int found;

	if (r->answered || r->listener->tls)
		return true;
	found = users_find(r->listener->server->users, r->caller.uid, &name);
	if (found == 0)
		return false;
	r->user = name ? strdup(name) : NULL;
	if (found < 0 || (name && !r->user)) {
		refuse_memory(r);
		return true;
	}
	r->caller.user = r->user;
	r->caller.admin = users_is_admin(r->listener->server->users, r->caller.uid);
	return true;
}

static void handle(struct http_request *r)
{
	if (!r->answered && r->body.len > LARGE_BODY && (r->match.route->callers & HTTP_LOCAL))
		http_request_queue(r);
	else
		request_dispatch(r);
}

static struct http_request *next_named(struct http_server *s)
{
	for (struct http_listener *l = s->listeners; l; l = l->next)
		for (struct http_request *r = l->requests; r; r = r->next)
			if (r->unnamed && find_name(r))
				return r;
	return NULL;
}

/* A handler may end any request: after each the search begins anew. */
static void on_users(void *context)
{
	struct http_request *r;

	while ((r = next_named(context))) {
		r->unnamed = false;
		handle(r);
	}
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *path,
                                 const char *method, const char *version, const char *data, size_t *len,
                                 void **con_cls)
{
	struct http_request *r = *con_cls;

	if (!r)
		return MHD_NO;
	r->listener->fruitless = 0;
	r->connection = connection;
	if (!r->started) {
		r->started = true;
		http_connection_head(connection_of(connection), true);
		request_start(r, method, path);
		return MHD_YES;
	}
	if (*len > 0) {
		request_body(r, data, *len);
		*len = 0;
		return MHD_YES;
	}
	if (!r->dispatched) {
		r->dispatched = true;
		r->unnamed = !find_name(r);
		if (!r->unnamed)
			handle(r);
	}
	if (!r->answered) {
		http_request_suspend(r);
		return MHD_YES;
	}
	return MHD_queue_response(connection, r->status, r->response);
}

/* Called with the request line: the request begins here. */
static void *on_request_line(void *cls, const char *target, struct MHD_Connection *connection)
{
	struct http_request *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->listener = cls;
	r->connection = connection;
	http_connection_head(connection_of(connection), false);
	r->target = strdup(target);
	if (!r->target) {
		free(r);
		return NULL;
	}
	list_push(r->listener->requests, r);
	return r;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
	http_connection_done(connection_of(connection));
	http_request_free(*con_cls);
	*con_cls = NULL;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
	struct http_listener *l = cls;
	const union MHD_ConnectionInfo *info;
	gnutls_session_t session;

	l->fruitless = 0;
	if (code != MHD_CONNECTION_NOTIFY_STARTED) {
		http_connection_free(*socket_context);
		*socket_context = NULL;
		return;
	}
	*socket_context = l->admitted;
	l->admitted = NULL;
	if (!l->tls)
		return;
	info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	if (!info)
		return;
	session = info->tls_session;
	gnutls_session_set_ptr(session, l);
	gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
	gnutls_session_set_verify_function(session, verify_peer);
}

static void on_log(void *cls, const char *fmt, va_list ap)
{
	char line[512];

	vsnprintf(line, sizeof(line), fmt, ap);
	log_debug("http: %s", str_strip(line));
}

int http_server_create(sd_event *event, const struct http_server_options *options, struct http_server **out,
                       struct error *err)
{
	struct http_server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->event = sd_event_ref(event);
	s->options = *options;
	s->large_end = &s->large;
	r = users_create(event, options->users, on_users, s, &s->users, err);
	if (r < 0) {
		http_server_destroy(s);
		return r;
	}
	if ((r = sd_event_add_defer(event, &s->large_source, on_large, s)) < 0 ||
	    (r = sd_event_source_set_priority(s->large_source, LARGE_PRIORITY)) < 0 ||
	    (r = sd_event_source_set_enabled(s->large_source, SD_EVENT_OFF)) < 0) {
		http_server_destroy(s);
		return error_errno(err, r, "cannot serve HTTP");
	}
	*out = s;
	return 0;
}

static struct MHD_Daemon *start_daemon(struct http_listener *l, const struct identity *id)
{
	unsigned flags =
	    MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET;
	struct MHD_OptionItem tls[] = {
	    {MHD_OPTION_HTTPS_MEM_KEY, 0, id ? id->key : NULL},
	    {MHD_OPTION_HTTPS_MEM_CERT, 0, id ? id->certificate : NULL},
	    {MHD_OPTION_HTTPS_MEM_TRUST, 0,
	     !id         ? NULL
	     : id->trust ? id->trust
	                 : id->certificate},
	    {MHD_OPTION_HTTPS_PRIORITIES, 0, "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
	    {MHD_OPTION_END, 0, NULL},
	};
	struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};

	if (l->tls)
		flags |= MHD_USE_TLS;
	return MHD_start_daemon(flags, 0, NULL, NULL, on_access, l, MHD_OPTION_EXTERNAL_LOGGER, on_log, l,
	                        MHD_OPTION_URI_LOG_CALLBACK, on_request_line, l, MHD_OPTION_NOTIFY_COMPLETED,
	                        on_completed, l, MHD_OPTION_NOTIFY_CONNECTION, on_connection, l,
	                        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
	                        MHD_OPTION_CONNECTION_LIMIT, (unsigned)http_connection_limit(l),
	                        MHD_OPTION_ARRAY, l->tls ? tls : none, MHD_OPTION_END);
}

static void listener_free(struct http_listener *l)
{
	struct http_request *next;

	/* MHD must not be stopped while a connection waits: each gets its end, and one turn to send it. */
	for (struct http_request *r = l->requests; r; r = next) {
		next = r->next;
		http_request_end(r);
	}
	if (l->requests)
		MHD_run(l->daemon);
	http_accept_end(l);
	http_connections_close(l);
	http_turns_end(l);
	if (l->daemon)
		MHD_stop_daemon(l->daemon);
	sd_event_source_disable_unref(l->head_timer);
	free(l);
}

DEFINE_CLEANUP(struct http_listener *, listener_free)

static int listen_on(struct http_server *s, int fd_taken, const struct identity *identity, struct error *err)
{
	_cleanup_(listener_freep) struct http_listener *l = calloc(1, sizeof(*l));
	_cleanup_close_ int fd = fd_taken;
	int r;

	if (!l)
		return error_oom(err);
	l->fd = -1;
	/* One that systemd passes blocks as it comes, and so would accept. */
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		return error_errno(err, -errno, "cannot serve on a socket");
	l->server = s;
	l->tls = identity != NULL;
	l->fd = steal_fd(&fd);
	l->daemon = start_daemon(l, identity);
	if (!l->daemon)
		return error_set(err, -EIO, "cannot start serving HTTP%s", identity ? " over TLS" : "");
	if ((r = http_turns_begin(l, err)) < 0)
		return r;
	if ((r = sd_event_add_time(s->event, &l->head_timer, CLOCK_MONOTONIC, UINT64_MAX, 50000,
	                           http_connections_timer, l)) < 0)
		return error_errno(err, r, "cannot serve HTTP");
	if ((r = http_accept_begin(l, err)) < 0)
		return r;
	l->next = s->listeners;
	s->listeners = steal_pointer(l);
	return 0;
}

int http_server_listen_unix(struct http_server *server, int fd, struct error *err)
{
	return listen_on(server, fd, NULL, err);
}

int http_server_listen_tls(struct http_server *server, int fd, const struct identity *identity,
                           struct error *err)
{
	const struct identity *before = server->identity;
	int r;

	server->identity = identity;
	server->generation++;
	r = listen_on(server, fd, identity, err);
	if (r < 0)
		server->identity = before;
	return r;
}

/* The listeners of earlier identities without any connection are not needed any more. */
static void free_left(struct http_server *s)
{
	for (struct http_listener **p = &s->listeners, *l; (l = *p);) {
		if (!l->tls || !l->left || l->connection_count > 0) {
			p = &l->next;
			continue;
		}
		*p = l->next;
		listener_free(l);
	}
}

/* A listener of libmicrohttpd keeps the key that it was started with: another one takes the socket over. */
int http_server_set_identity(struct http_server *s, const struct identity *identity, struct error *err)
{
	struct http_listener *old = s->listeners;
	int fd, r;

	while (old && (!old->tls || old->left))
		old = old->next;
	if (!old || identity_equal(identity, s->identity)) {
		s->identity = identity;
		s->generation++;
		return 0;
	}
	fd = fcntl(old->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return error_errno(err, -errno, "cannot serve with another certificate");
	r = http_server_listen_tls(s, fd, identity, err);
	if (r < 0)
		return r;
	http_accept_end(old);
	old->left = true;
	free_left(s);
	return 0;
}

void http_server_leave_unix(struct http_server *server)
{
	for (struct http_listener *l = server->listeners; l; l = l->next) {
		if (l->tls || l->left)
			continue;
		http_accept_end(l);
		l->left = true;
	}
}

void http_server_destroy(struct http_server *s)
{
	struct http_listener *l;

	if (!s)
		return;
	s->closing = true;
	while ((l = s->listeners)) {
		s->listeners = l->next;
		listener_free(l);
	}
	sd_event_source_disable_unref(s->large_source);
	users_destroy(s->users);
	free(s->peers);
	sd_event_unref(s->event);
	free(s);
}
