/* SPDX-License-Identifier: Apache-2.0 */
/* A service with scripted answers: each step is an expected request and the raw answer to it. */
#pragma once

#include <stddef.h>

struct fake_step {
	const char *request; /* "GET /v1/runs": the start of the request line */
	const char *body;    /* has to be in the request's body, or NULL */
	const char *answer;  /* sent as it is */
	int hang_up;         /* then the connection is closed, or what the macros below say */
};

/* It is kept until the client closes it; further steps come over another connection meanwhile. */
#define FAKE_HOLD 2
#define FAKE_LATE 3 /* the answer comes after 50 ms */

struct fake_service;

/* Serves in a thread of its own; steps are borrowed. */
struct fake_service *fake_service_start(const char *socket, const struct fake_step *steps, size_t count);
/* Fails the test unless every step was taken, each as expected. */
void fake_service_stop(struct fake_service *fake);

/* How many steps were taken so far. */
size_t fake_service_taken(struct fake_service *fake);

/* "HTTP/1.1 200 …" around JSON or text; in a static string per use: a macro, so that scripts are tables. */
#define FAKE_HEAD(status)  "HTTP/1.1 " status "\r\nTransfer-Encoding: chunked\r\n\r\n"
#define FAKE_CLOSE(status) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n"
