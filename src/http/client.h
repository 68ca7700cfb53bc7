/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to other services, on the event loop: connections are kept open between calls, over TLS 1.3 with
 * the cluster's key on both sides (the server's certificate has to be the cluster's; host names say nothing).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "http/identity.h"

struct http_client;
struct http_transfer;

enum {
	HTTP_QUEUES = 3,      /* of a client, 0 included */
	HTTP_CONNECTING = 64, /* calls of a queue that wait for their connections */
};

/* What came of a call. body: all of the answer's body, where on_data is NULL (at most 64 MiB). */
struct http_answer {
	int status; /* 0: no answer, error says why */
	bool sent;  /* some of the request has left: it may have arrived */
	/* The service has taken the connection, and not ended the TLS handshake in time: it has many to do.
	 */
	bool queued;
	struct error error; /* also where the transfer broke after the status */
	const char *type;   /* content type, or NULL */
	const char *body;   /* NUL-terminated */
	size_t len;
};

struct http_call {
	const char *method;
	const char *address; /* host name or address */
	int port;
	/* Name of the service that is meant, or NULL. It is told, and another service that has the address
	 * refuses the request with status 421 and code "wrong-node". */
	const char *node;
	const char *target; /* path and query */
	const void *body;   /* NULL: none; copied */
	size_t len;
	const char *const *headers; /* "Name: value", NULL-terminated, or NULL; copied */
	/* Seconds for all of it; 0: none. The connection has to come up within 5 s, or `connect` seconds. */
	double timeout, connect;
	/* The body is sent at most once. Without it a request may be sent again, over another connection,
	 * where one that was kept open broke before the answer came. Then -ECONNREFUSED is no proof that it
	 * has not arrived; with `once` it is. */
	bool once;
	/* 0: it begins at once. Otherwise its turn comes in the queue of this number, below HTTP_QUEUES: of
	 * each queue so many calls at most wait for their connections, and those behind them have not begun;
	 * the seconds above are counted from the beginning. */
	unsigned queue;
	void *context;
	/* Optional: the status has come; then pieces of the body as they come, each to be taken whole. */
	void (*on_headers)(void *context, int status, const char *type);
	void (*on_data)(void *context, const void *data, size_t len);
	/* Once, at the end; the transfer is gone after it. Not called after http_transfer_cancel. */
	void (*on_done)(void *context, const struct http_answer *answer);
};

/* identity is borrowed and may be NULL: then every call fails. */
int http_client_create(sd_event *event, const struct identity *identity, struct http_client **out,
                       struct error *err);
void http_client_set_identity(struct http_client *client, const struct identity *identity);
/* What is under way ends with -ECANCELED. */
void http_client_destroy(struct http_client *client);
DEFINE_CLEANUP(struct http_client *, http_client_destroy)

/* Never calls back from within. *out (may be NULL) is valid until on_done. */
int http_client_call(struct http_client *client, const struct http_call *call, struct http_transfer **out,
                     struct error *err);
/* Also from on_data of the same call; no callback of it is called after that. */
void http_transfer_cancel(struct http_transfer *t);
/* For a reader that cannot take more: stops and goes on with the body. */
void http_transfer_pause(struct http_transfer *t, bool pause);
