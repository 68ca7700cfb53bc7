/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by server.c (connections) and request.c (requests and answers). */
#pragma once

#include <microhttpd.h>

#include "base/str.h"
#include "http/server.h"

struct http_server {
	sd_event *event;
	struct http_server_options options;
	struct http_listener *listeners;
	bool closing;
};

/* One listening socket: an MHD daemon whose epoll descriptor hangs in ours. */
struct http_listener {
	struct http_server *server;
	struct http_listener *next;
	struct MHD_Daemon *daemon;
	const struct identity *identity; /* NULL: a Unix socket */
	struct http_request *requests;   /* all that are under way */
	sd_event_source *io, *timer;
	sd_event_source *resumed; /* MHD does not look for these by itself */
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
	/* The answer: a response to queue, or an early refusal that waits for the body to have passed. */
	struct MHD_Response *response;
	int status;
	bool answered, streaming;
	struct http_stream stream;
	sd_event_source *hangup; /* while suspended: the caller's end of the connection */
	void (*closed)(void *context);
	void *closed_context;
};

/* request.c, for server.c */
void http_request_refuse(struct http_request *r, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void http_request_resume(struct http_request *r);
void http_request_end(struct http_request *r); /* the server is going: no more waiting */
void http_request_suspend(struct http_request *r);
void http_request_free(struct http_request *r);
