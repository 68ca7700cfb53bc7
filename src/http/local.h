/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small blocking client for the service's Unix socket: for the dtrain command and for workers. Knows no
 * libcurl, whose loading alone takes longer than a call. One connection, one thread, any number of calls.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"

struct http_local;

/* Connects. -ECONNREFUSED, -ENOENT, -EACCES: the service does not run, or not for this user; the message says
 * what to do. */
int http_local_open(const char *socket, struct http_local **out, struct error *err);
void http_local_close(struct http_local *l);
DEFINE_CLEANUP(struct http_local *, http_local_close)

/* JSON to JSON. header: one more, "Name: value"; it and body may be NULL. *answer (may be NULL) gets the body
 * of a 2xx answer, a new reference. An error answer is -EREMOTEIO with its message in err, its code in
 * http_local_error_code, its status in *status (may be NULL; 0 where there was no answer at all: then the
 * connection is of no more use). */
int http_local_json(struct http_local *l, const char *method, const char *target, const char *header,
                    const json_t *body, int *status, json_t **answer, struct error *err);
const char *http_local_error_code(const struct http_local *l); /* "no-such-run"; "" where none came */
const char *http_local_type(const struct http_local *l);       /* Content-Type of the last answer; "": none */

/* Bytes to bytes; *answer is NUL-terminated and owned by the caller, also of an error answer, which is no
 * failure here: see *status. type may be NULL. timeout in seconds between two arrivals, 0: none. */
int http_local_bytes(struct http_local *l, const char *method, const char *target, const char *type,
                     const void *body, size_t len, double timeout, int *status, char **answer,
                     size_t *answer_len, struct error *err);

/* The body of the answer piece by piece, as it comes; a negative return of `piece` ends it and is returned.
 * Errors as with http_local_json. */
int http_local_stream(struct http_local *l, const char *method, const char *target,
                      int (*piece)(void *context, const char *data, size_t len, struct error *err),
                      void *context, struct error *err);

/* "/v1/…": escapes what may not stand in a path segment or a query value. Owned by the caller. */
char *http_escape(const char *s);
