/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a command waits for the commit of what the command has changed. */
#include "dtraind/routes/committed.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "controller/commit.h"

struct reply {
	struct http_request *request;
	struct commit_waiter *waiter;
	int status;
	json_t *json;
};

static void reply_free(struct reply *reply)
{
	json_decref(reply->json);
	free(reply);
}

static void on_closed(void *context)
{
	struct reply *reply = context;

	commit_waiter_free(reply->waiter);
	reply_free(reply);
}

static void on_committed(void *context, const struct error *err)
{
	struct reply *reply = context;

	http_request_on_close(reply->request, NULL, NULL);
	if (err)
		http_reply_error(
		    reply->request, 500, "store",
		    "the store cannot be written: %s; what was asked for is in effect, and is written "
		    "down as soon as that is possible",
		    err->message);
	else
		http_reply_json(reply->request, reply->status, steal_pointer(reply->json));
	reply_free(reply);
}

void reply_when_committed(struct controller *c, struct http_request *r, int64_t run, int status, json_t *json)
{
	struct reply *reply = calloc(1, sizeof(*reply));

	if (reply) {
		*reply = (struct reply){r, NULL, status, json};
		reply->waiter = commit_waiter_create(c, run, on_committed, reply);
	}
	if (!reply || !reply->waiter) {
		json_decref(json);
		free(reply);
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return;
	}
	http_request_on_close(r, on_closed, reply);
}
