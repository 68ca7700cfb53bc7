/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server without sockets: requests go through src/http/server.c and request.c as libmicrohttpd would
 * hand them over, and their answers stay in memory. What a connection proves (the user at the other end of a
 * Unix socket, the node of a certificate) is said with each request.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/str.h"
#include "http/server.h"

struct httpd;

/* Who is at the other end, and what is asked. Borrowed for the call. */
struct fake_request {
	bool tls;         /* a service; otherwise a program on this machine */
	const char *node; /* the service's certificate is of it; NULL: it holds the cluster's key */
	uid_t uid;        /* a program's */
	const char *user; /* its name; NULL: it has none */
	bool admin;       /* it is a member of the administrators' group */
	const char *method, *target, *body;
	size_t len;
	const char *const (*headers)[2]; /* ends with {NULL} */
};

/* A request and its answer, until httpd_end_all. */
struct exchange {
	struct exchange *next;
	struct http_request *request;
	const struct http_route *route; /* NULL: there is none */
	int status;                     /* 0: not answered yet */
	char *type;
	struct strbuf body;
	bool complete, broken; /* the answer has ended, or broke off */
};

int httpd_create(sd_event *event, const struct http_server_options *options, struct httpd **out,
                 struct error *err);
void httpd_destroy(struct httpd *h);
struct exchange *httpd_send(struct httpd *h, const struct fake_request *what);
/* Takes what has been answered. False: there was nothing to do. */
bool httpd_pump(struct httpd *h);
struct exchange *httpd_first(const struct httpd *h); /* the newest */
/* Every caller hangs up. */
void httpd_end_all(struct httpd *h);
