/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for the client of other services and for the election: fake_client.h. */
#include "fake_client.h"

#include <string.h>

struct fake_client fake_client;
struct fake_leader fake_leader;

int http_client_call(struct http_client *client, const struct http_call *call, struct http_transfer **out,
                     struct error *err)
{
	struct http_transfer *t = &fake_client.transfers[fake_client.count];
	struct strbuf b = {0};

	if (fake_client.refusal)
		return error_set(err, -EPERM, "%s", fake_client.refusal);
	ck_assert_uint_lt(fake_client.count, FAKE_TRANSFERS_MAX);
	fake_client.count++;
	strbuf_addf(&b, "%s %s at %s:%d %s", call->method, call->node, call->address, call->port,
	            call->target);
	if (call->body)
		strbuf_addf(&b, " \"%.*s\"", (int)call->len, (const char *)call->body);
	for (const char *const *h = call->headers; h && *h; h++)
		strbuf_addf(&b, " | %s", *h);
	if (call->once)
		strbuf_adds(&b, " once");
	*t = (struct http_transfer){.call = *call, .text = strbuf_steal(&b)};
	if (out)
		*out = t;
	return 0;
}

void http_transfer_cancel(struct http_transfer *t)
{
	if (!t)
		return;
	ck_assert(!t->done && !t->cancelled);
	t->cancelled = true;
}

void http_transfer_pause(struct http_transfer *t, bool pause)
{
	ck_assert(!t->done && !t->cancelled);
	t->paused = pause;
}

struct peer leader_peer(const struct daemon *d)
{
	return fake_leader.asked;
}

const char *leader_known(const struct daemon *d)
{
	return fake_leader.known;
}

bool leader_holds(const struct daemon *d)
{
	return fake_leader.holds;
}

void leader_learn(struct daemon *d, const char *name)
{
	strbuf_addf(&fake_leader.told, "learn %s, ", name);
}

void leader_answered(struct daemon *d, const char *name, bool leads)
{
	strbuf_addf(&fake_leader.answers, "%s%s answers, ", name, leads ? " leads and" : "");
}

void leader_unanswered(struct daemon *d, const char *name, double sent)
{
	strbuf_addf(&fake_leader.answers, "%s silent since %g, ", name, sent);
}

void leader_away(struct daemon *d, const char *name)
{
	strbuf_addf(&fake_leader.told, "away %s, ", name);
}

void fake_client_release(void)
{
	for (size_t i = 0; i < fake_client.count; i++)
		free(fake_client.transfers[i].text);
	strbuf_free(&fake_leader.told);
	strbuf_free(&fake_leader.answers);
	fake_client = (struct fake_client){0};
	fake_leader = (struct fake_leader){0};
}

struct http_transfer *fake_client_last(void)
{
	ck_assert_uint_gt(fake_client.count, 0);
	return &fake_client.transfers[fake_client.count - 1];
}

void fake_client_answer(struct http_transfer *t, int status, const char *type, const char *body, int code,
                        bool sent)
{
	struct http_answer a = {.status = status, .sent = sent, .type = type, .body = ""};

	ck_assert(!t->done && !t->cancelled);
	if (status && t->call.on_headers)
		t->call.on_headers(t->call.context, status, type);
	if (body && *body && t->call.on_data) {
		t->call.on_data(t->call.context, body, strlen(body));
	} else if (body) {
		a.body = body;
		a.len = strlen(body);
	}
	if (code)
		error_set(&a.error, code, "it broke");
	t->done = true;
	t->call.on_done(t->call.context, &a);
}
