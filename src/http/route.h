/* SPDX-License-Identifier: Apache-2.0 */
/* Routes are data: a method, a pattern, who may call, and the handler. */
#pragma once

#include <stddef.h>

struct http_request;

typedef void (*http_handler)(void *context, struct http_request *request);

enum http_callers {
	HTTP_LOCAL = 1, /* programs on this machine, through the Unix socket */
	HTTP_PEER = 2,  /* services that hold the cluster's key */
	HTTP_ANY = 3,
	/* Beside who may call: request bodies larger than the server's limit. */
	HTTP_BODY_1M = 4,
	HTTP_BODY_8M = 8,
	HTTP_BODY_4M = 16,
	/* Services' own calls: the bounds on requests over TLS leave connections for them. */
	HTTP_RESERVED = 32,
	/* This bit and those above it belong to the owner of the table: see http_server_options.intercept. */
	HTTP_OWNER = 64,
};

struct http_route {
	const char *method;
	const char *pattern; /* "/v1/runs/{}/rendezvous/{...}": {} is one segment, {...} the non-empty rest */
	unsigned callers;
	http_handler handler;
};

enum { HTTP_CAPTURES = 3 };

struct http_match {
	const struct http_route *route;
	struct {
		size_t start, len; /* into the path */
	} captures[HTTP_CAPTURES];
	size_t count;
};

/* 0 with *match filled; -ENOENT: no such path; -EOPNOTSUPP: the path is there, but not with this method. */
int http_route_match(const struct http_route *routes, size_t count, const char *method, const char *path,
                     struct http_match *match);
