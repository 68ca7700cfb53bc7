/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by server.c, admission.c, connections.c, peers.c, request.c and turns.c: server.c calls the others,
 * they do not call it; turns.c calls admission.c, which calls connections.c. */
#pragma once

#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"
#include "http/server.h"
#include "http/users.h"

struct http_connection;

enum {
	HTTP_CONNECTIONS = 4000
}; /* of a listener; below the limit of descriptors that dtraind.service asks for */

enum { HTTP_REFUSAL_SIZE = 256 };

/* No bound is theirs. */
static inline bool http_user_is_privileged(int64_t uid)
{
	return uid == 0 || uid == geteuid();
}

struct http_server {
	sd_event *event;
	struct http_server_options options;
	struct http_listener *listeners;
	struct http_request *large, **large_end; /* large bodies, complete, in the order of their handling */
	sd_event_source *large_source;
	struct users *users;
	struct in6_addr *peers; /* addresses of services */
	size_t peer_count;
	const struct identity *identity; /* NULL: services are not served */
	unsigned generation;             /* changes when what was found out about certificates may not hold */
	double next_refusal_log;         /* monotonic */
	bool closing;
};

/* Which service is at the other end of a connection. */
struct http_peer {
	char *node; /* NULL: not known; of the cluster's key always */
	unsigned generation;
	time_t expires; /* its certificate */
};

/* Connections in their order, the oldest first. */
struct http_connection_list {
	struct http_connection *first, *last;
};

struct http_connection {
	struct http_listener *listener;
	struct http_connection *prev, *next;   /* all of the listener */
	struct http_connection *before, *then; /* in the list that it is in */
	bool pending, queued;                  /* in the listener's list of that name */
	bool proven, known, dropped;
	bool inside;            /* MHD has it, and closes it */
	bool place;             /* it is one of the handshakes that are worked on */
	bool busy;              /* over TLS: a request is under way that was admitted */
	bool reserved;          /* the last request was a service's own */
	int64_t user;           /* for whom it was, or -1 */
	uint64_t due;           /* monotonic, microseconds */
	uint64_t begun;         /* when its handshake began: the same; 0: it has ended */
	sd_event_source *first; /* until something comes, before MHD has it */
	int fd;
	int64_t uid; /* Unix socket; -1: over TLS */
	struct in6_addr address;
	struct http_peer peer;
};

/* One listening socket: an MHD daemon whose epoll descriptor hangs in ours. */
struct http_listener {
	struct http_server *server;
	struct http_listener *next;
	struct MHD_Daemon *daemon;
	int fd;                        /* -1: it was given up */
	bool tls;                      /* for services; otherwise a Unix socket */
	bool left;                     /* takes no new connections */
	struct http_request *requests; /* all that are under way */
	struct http_connection *connections;
	struct http_connection_list pending; /* those that have a deadline */
	struct http_connection_list queue;   /* those whose handshake may begin, but for the others' */
	size_t connection_count;             /* those that are dropped and not closed yet included */
	size_t trying;                       /* of those that are pending: MHD has them */
	size_t places;                       /* handshakes that are worked on */
	double handshake_seconds;            /* how long one takes, of late */
	struct http_connection *admitted;    /* which is being given to MHD */
	bool starved; /* descriptors or memory did not suffice for another connection */
	bool head_timer_set;
	sd_event_source *accept, *head_timer;
	/* The turns of MHD: */
	unsigned fruitless; /* those without an event, since something has last come of one */
	bool delayed;       /* events wait for the timer */
	uint64_t wake;      /* when `timer` fires: monotonic, microseconds; UINT64_MAX: it is off */
	sd_event_source *io, *timer;
	sd_event_source *resumed; /* MHD does not look for these by itself; see http_turn_soon */
};

struct http_stream {
	struct strbuf buffer;
	size_t sent; /* of the buffer */
	bool ended, broken;
	void (*drained)(void *context);
	void *drained_context;
};

struct http_request {
	struct http_listener *listener;
	struct http_request *prev, *next; /* in the listener's list */
	struct MHD_Connection *connection;
	char *target;
	struct http_match match;
	char *captures[HTTP_CAPTURES];
	struct http_caller caller;
	char *user; /* behind caller.user */
	struct strbuf body;
	bool started, dispatched, suspended, gone;
	struct http_request *large_next; /* in the server's queue of large bodies, where `queued` */
	bool queued;
	bool unnamed; /* complete, and waits for the name of its caller */
	/* The answer: a response to queue, or an early refusal that waits for the body to have passed. */
	struct MHD_Response *response;
	int status;
	size_t answer_len; /* of one that is in memory as a whole */
	bool answered, streaming;
	struct http_stream stream;
	sd_event_source *hangup; /* while suspended: the caller's end of the connection */
	void (*closed)(void *context);
	void *closed_context;
};

/* peers.c. 0: the other end of the session is a service of this cluster, by now as well as at the handshake.
 * *peer is kept with the connection, and says which one. */
int http_peer_check(struct http_server *s, gnutls_session_t session, struct http_peer *peer);
void http_peer_release(struct http_peer *peer);

/* turns.c: MHD runs in turns: after events, when its time-outs are due, and after http_turn_soon. The
 * listener's daemon has been started. Where it fails, the caller ends the turns. */
int http_turns_begin(struct http_listener *l, struct error *err);
void http_turns_end(struct http_listener *l); /* also of turns that have not begun; before the daemon stops */
/* MHD runs in the next turn of the event loop, since a connection was resumed, or accepted. */
static inline void http_turn_soon(struct http_listener *l)
{
	if (l->resumed)
		sd_event_source_set_enabled(l->resumed, SD_EVENT_ONESHOT);
}

/* request.c, for server.c */
void http_request_refuse(struct http_request *r, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Whether the request may keep `more` bytes in memory beside the `kept` that its body, or its answer, has by
 * now: the bound is for all requests of a user together (http_server_options.user_memory). False: it is
 * refused, where it is not answered. */
bool http_request_keep(struct http_request *r, size_t kept, size_t more);
void http_request_resume(struct http_request *r);
void http_request_end(struct http_request *r); /* the server is going: no more waiting */
void http_request_suspend(struct http_request *r);
void http_request_free(struct http_request *r);
/* Requests with a large body wait in the server's queue for their turn. */
void http_request_queue(struct http_request *r);
void http_request_unqueue(struct http_request *r); /* does nothing where it is not in the queue */

/* admission.c: new connections, and in which order their handshakes begin. */
int http_accept_begin(struct http_listener *l, struct error *err); /* on l->fd */
void http_accept_again(struct http_listener *l); /* after descriptors or memory did not suffice */
void http_accept_end(struct http_listener *l);
/* Gives connections to MHD for which there is a place. Returns how many. */
size_t http_admit(struct http_listener *l);

/* connections.c: bounds and deadlines. One that is over a bound is shut down from within; where MHD does not
 * have it yet, it is closed and freed. */
/* Takes fd. NULL: it is closed already. */
struct http_connection *http_connection_new(struct http_listener *l, int fd);
/* The listener closes: those that MHD does not have. */
void http_connections_close(struct http_listener *l);
void http_connection_drop(struct http_connection *c);
void http_connection_enqueue(struct http_connection *c); /* behind the others in the queue */
/* MHD gets it: its deadline begins, and it takes a place where it comes over TLS. */
void http_connection_begin(struct http_connection *c);
void http_connection_leave_place(struct http_connection *c);
void http_connection_free(struct http_connection *c);
struct http_peer *http_connection_peer(struct http_connection *c);
/* The first line of a request's head is there, or all of it. */
void http_connection_head(struct http_connection *c, bool complete);
/* A request over TLS begins, on behalf of user uid (-1: of a service). reserved: its route is HTTP_RESERVED.
 * -EAGAIN: a bound is reached, which `why` says, and the request is to be refused. */
int http_connection_admit(struct http_connection *c, bool reserved, int64_t uid, char why[HTTP_REFUSAL_SIZE]);
void http_connection_done(struct http_connection *c); /* the request has ended */
/* The most connections that a listener takes. */
size_t http_connection_limit(const struct http_listener *l);
int http_connections_timer(sd_event_source *source, uint64_t usec, void *listener);
