/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simple HTTP client over a socket, optionally with gnutls. It makes no checks, so that every refusal comes
 * from the service. Each connection has one request. An error on the side of the client fails the test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "unit.h"

struct raw_request {
	const char *method, *target;
	const char *header; /* one more line, without its end; NULL: none */
	const char *body;   /* NULL: none */
	bool head_only;     /* reads only the head, of an answer that does not end */
	bool stays;         /* does not ask for the end of the connection: the service has to close it */
};

struct raw_answer {
	int status;    /* 0: the service closed the connection without an answer */
	char code[64]; /* of an error; "": none */
	char *body;    /* unchanged, NUL-terminated, "" where there is none; owned by the caller */
	size_t len;
};

int raw_connect_unix(const char *path);
int raw_connect_tcp(int port);                                        /* on this machine */
struct raw_answer raw_ask(int fd, const struct raw_request *request); /* takes fd */
/* certificate, key: PEM; NULL: none is shown. They need not belong together. */
struct raw_answer raw_ask_tls(int fd, const char *certificate, const char *key,
                              const struct raw_request *request);
