/* SPDX-License-Identifier: Apache-2.0 */
/* Another service's answer, passed on as it comes. */
#include "dtraind/proxy.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "wire/submission_key.h"

enum { PIPE_HIGH = 1 << 20 }; /* more than this waits for the caller: the other side is held up */

struct pipe {
	struct http_request *request;
	struct http_stream *stream; /* NULL: JSON and errors are passed on whole */
	struct http_transfer *transfer;
	struct strbuf body;
};

static void pipe_free(struct pipe *p)
{
	strbuf_free(&p->body);
	free(p);
}

static void on_closed(void *context)
{
	struct pipe *p = context;

	http_transfer_cancel(p->transfer);
	pipe_free(p);
}

static void on_drained(void *context)
{
	struct pipe *p = context;

	if (p->transfer)
		http_transfer_pause(p->transfer, false);
}

static void on_headers(void *context, int status, const char *type)
{
	struct pipe *p = context;

	if (status < 200 || status > 299 || (type && str_starts(type, "application/json")))
		return;
	p->stream = http_reply_stream(p->request, status, type ? type : "application/octet-stream");
	http_stream_on_drain(p->stream, on_drained, p);
}

static void on_data(void *context, const void *data, size_t len)
{
	struct pipe *p = context;

	if (!p->stream) {
		strbuf_add(&p->body, data, len);
		return;
	}
	http_stream_write(p->stream, data, len);
	if (http_stream_pending(p->stream) > PIPE_HIGH)
		http_transfer_pause(p->transfer, true);
}

static void on_done(void *context, const struct http_answer *a)
{
	struct pipe *p = context;

	p->transfer = NULL;
	if (p->stream) {
		/* The request's end frees p: nothing of it is touched after this. */
		if (a->status)
			http_stream_end(p->stream);
		else
			http_stream_abort(p->stream);
		return;
	}
	if (a->error.code == -ECANCELED)
		http_reply_error(p->request, 503, "stopping", "the service is being stopped");
	else if (a->status == 0)
		http_reply_error(p->request, 502, a->sent ? "no-answer" : "unreachable", "%s",
		                 a->error.message);
	else
		http_reply_bytes(p->request, a->status, a->type ? a->type : "application/json",
		                 p->body.data ? p->body.data : "", p->body.len);
}

void pipe_call(struct daemon *d, struct http_request *r, const struct peer *to, const char *target,
               const char *const *headers)
{
	struct pipe *p = calloc(1, sizeof(*p));
	struct error err = ERROR_INIT;
	size_t len;
	const void *body = http_request_body(r, &len);
	struct http_call call = {
	    .method = http_request_method(r),
	    .address = to->address,
	    .port = to->port,
	    .node = to->name,
	    .target = target,
	    .body = len || strcmp(http_request_method(r), "GET") != 0 ? body : NULL,
	    .len = len,
	    .headers = headers,
	    .context = p,
	    .on_headers = on_headers,
	    .on_data = on_data,
	    .on_done = on_done,
	};

	if (!p || http_client_call(d->client, &call, &p->transfer, &err) < 0) {
		http_reply_error(r, 502, "unreachable", "%s", p ? err.message : "out of memory");
		free(p);
		return;
	}
	p->request = r;
	http_request_on_close(r, on_closed, p);
}

bool forward_to_controller(struct daemon *d, struct http_request *r)
{
	const struct http_caller *caller = http_request_caller(r);
	const struct settings *s = d->settings;
	const char *key = http_request_header(r, SUBMISSION_KEY_HEADER);
	_cleanup_free_ char *user = NULL, *key_line = NULL;
	const char *headers[5] = {NULL, "Content-Type: application/json"};
	size_t count = 2;

	if (d->controller)
		return false;
	if (caller->peer) {
		http_reply_error(
		    r, 421, "not-controller",
		    "%s is not the controller, it takes %s for it: the hosts files or dtraind.conf differ",
		    s->name, s->controller);
		return true;
	}
	user = str_printf("Dtrain-User: %lld:%lld:%s", (long long)caller->uid, (long long)caller->gid,
	                  caller->user ? caller->user : "");
	key_line = key ? str_printf(SUBMISSION_KEY_HEADER ": %s", key) : NULL;
	headers[0] = user;
	if (!user || (key && !key_line)) {
		http_reply_error(r, 500, "out-of-memory", "out of memory");
		return true;
	}
	if (key)
		headers[count++] = key_line;
	if (caller->admin)
		headers[count++] = HTTP_ADMIN_HEADER ": yes";
	pipe_call(d, r, &(struct peer){s->controller, s->controller_address, s->controller_port},
	          http_request_target(r), headers);
	return true;
}
