/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for the client of other services and for the election, for tests of single files of the service.
 * A call is kept; the test gives its answer. */
#pragma once

#include "base/str.h"
#include "dtraind/leader.h"
#include "http/client.h"
#include "unit.h"

enum { FAKE_TRANSFERS_MAX = 64 };

struct http_transfer {
	struct http_call call; /* what it points to has been released */
	char *text; /* "POST n2 at a2:2 /target \"body\" | Header: x once": what was sent, and to whom */
	bool cancelled, paused, done;
};

extern struct fake_client {
	struct http_transfer transfers[FAKE_TRANSFERS_MAX]; /* in the order of the calls */
	size_t count;
	const char *refusal; /* why the next call cannot be made; NULL: it can */
} fake_client;

extern struct fake_leader {
	const char *known;     /* the controller, or NULL */
	struct peer asked;     /* who is asked next */
	bool holds;            /* this node is the controller, and may act */
	struct strbuf told;    /* "learn n3, away n1, ": the calls to the election so far */
	struct strbuf answers; /* "n3 leads and answers, n1 silent since 17, ": likewise */
} fake_leader;

void fake_client_release(void);
struct http_transfer *fake_client_last(void);
/* The answer of the other service. code: of the transfer, where there is no status. */
void fake_client_answer(struct http_transfer *t, int status, const char *type, const char *body, int code,
                        bool sent);
