/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to other services, over libcurl.
 *
 * A TLS handshake takes milliseconds of the processor and a hundred KiB: a thousand at once would keep the
 * loop busy for seconds. Calls of a queue begin a few at a time; who has its connection makes room for the
 * next one, however long the answer takes.
 */
#include "http/client.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "http/curl_loop.h"

enum { ANSWER_MAX = 64 << 20, KEPT_CONNECTIONS = 1024, CONNECT_SECONDS = 5 };

/* libcurl's buffers of a call: as much as it reads of a short answer at once, and the least that it takes for
 * sending. Its defaults are 16 and 64 KiB. */
enum { SHORT_ANSWER_BUFFER = 4 << 10, SEND_BUFFER = 16 << 10 };

/* After this time a connection is not used again: a certificate is checked when a connection is made. */
enum { CHECK_AGAIN_SECONDS = 3600 };

/* Calls that have not begun, in their order, and how many that have wait for their connections. */
struct call_queue {
	struct http_transfer *first, *last;
	size_t connecting;
};

struct http_client {
	struct curl_loop *loop;
	/* Frees calls that were cancelled in their callback, and begins those that have waited. */
	sd_event_source *turn;
	struct call_queue queues[HTTP_QUEUES];
	const struct identity *identity;
	struct http_transfer *transfers;
};

struct http_transfer {
	struct http_client *client;
	struct http_transfer *prev, *next;
	struct http_transfer *behind; /* in its queue */
	bool waits, begun, connecting;
	CURL *easy;
	struct curl_slist *headers, *connect_to;
	struct http_call call; /* only the callbacks and the context are used after the start */
	char *body; /* of a call that is sent once: what libcurl has not yet taken begins at `taken` */
	size_t taken;
	struct strbuf answer;
	char *where;
	char curl_error[CURL_ERROR_SIZE];
	bool headers_told, paused;
	bool in_data, cancelled; /* on_data of it is being called; it was cancelled there */
};

/* It has its connection, or has ended: the next one of its queue may begin, but not within a callback of
 * libcurl. */
static void leave_connecting(struct http_transfer *t)
{
	struct http_client *c = t->client;
	struct call_queue *q = &c->queues[t->call.queue];

	if (!t->connecting)
		return;
	t->connecting = false;
	q->connecting--;
	if (q->first)
		sd_event_source_set_enabled(c->turn, SD_EVENT_ONESHOT);
}

static void enqueue(struct http_transfer *t)
{
	struct call_queue *q = &t->client->queues[t->call.queue];

	t->waits = true;
	if (q->last)
		q->last->behind = t;
	else
		q->first = t;
	q->last = t;
}

static void leave_queue(struct http_transfer *t)
{
	struct call_queue *q = &t->client->queues[t->call.queue];
	struct http_transfer *before = NULL, **at = &q->first;

	if (!t->waits)
		return;
	t->waits = false;
	while (*at != t) {
		before = *at;
		at = &before->behind;
	}
	*at = t->behind;
	if (q->last == t)
		q->last = before;
	t->behind = NULL;
}

static void transfer_free(struct http_transfer *t)
{
	struct http_client *c = t->client;

	leave_queue(t);
	leave_connecting(t);
	list_remove(c->transfers, t);
	if (t->begun)
		curl_loop_remove(c->loop, t->easy);
	if (t->easy)
		curl_easy_cleanup(t->easy);
	curl_slist_free_all(t->headers);
	curl_slist_free_all(t->connect_to);
	strbuf_free(&t->answer);
	free(t->body);
	free(t->where);
	free(t);
}

/* In TLS 1.3 the handshake of a client has ended before the service has read its certificate: a service that
 * does not accept it closes the new connection then, without an answer. */
static bool is_shut_out(const struct http_transfer *t, CURLcode code)
{
	long connects = 0, status = 0;
	curl_off_t secure = 0;

	curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &connects);
	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(t->easy, CURLINFO_APPCONNECT_TIME_T, &secure);
	return (code == CURLE_GOT_NOTHING || code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR) &&
	       connects > 0 && status == 0 && secure > 0 && !identity_is_shared(t->client->identity);
}

static const char *describe(const struct http_transfer *t, CURLcode code)
{
	if (is_shut_out(t, code))
		return "it has closed the connection without an answer, as a service does that refuses the "
		       "certificate of this node; expected a certificate that is valid, that an authority in "
		       "its ca_file has signed, and whose name is in its hosts file";
	return t->curl_error[0] ? t->curl_error : curl_easy_strerror(code);
}

/* What may be wrong where the certificate of the other service is not accepted. */
static const char *certificate_hint(const struct http_transfer *t, CURLcode code)
{
	enum { NOT_YET_VALID = 9, EXPIRED = 10 }; /* OpenSSL's, which the curl of Debian is built with */
	bool shared = identity_is_shared(t->client->identity);
	long result = 0;

	if (code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_PINNEDPUBKEYNOTMATCH)
		return "";
	curl_easy_getinfo(t->easy, CURLINFO_SSL_VERIFYRESULT, &result);
	/* The cluster's key expires in 2106. */
	if (result == NOT_YET_VALID || (result == EXPIRED && shared))
		return "; is the clock of this node right?";
	return shared
	           ? "; is the cluster's key (cluster_key, cluster.pem) the same file on both nodes?"
	           : "; expected a valid certificate with the name of that node, signed by an authority in "
	             "the ca_file of this node";
}

static void transfer_done(struct http_transfer *t, CURLcode code)
{
	struct http_answer a = {.body = t->answer.data ? t->answer.data : "", .len = t->answer.len};
	char *type = NULL;
	long status = 0, sent = 0, port = 0;
	curl_off_t secure = 0;

	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type);
	curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &sent);
	a.type = type;
	curl_easy_getinfo(t->easy, CURLINFO_LOCAL_PORT, &port); /* 0: not connected */
	curl_easy_getinfo(t->easy, CURLINFO_APPCONNECT_TIME_T, &secure);
	a.sent = sent > 0;
	a.queued = code == CURLE_OPERATION_TIMEDOUT && port > 0 && secure == 0;
	if (code == CURLE_OK && !t->answer.failed)
		a.status = status;
	else if (code == CURLE_OPERATION_TIMEDOUT)
		error_set(&a.error, -ETIMEDOUT, "%s does not answer", t->where);
	else /* another connection that was refused says nothing of a body that has left over the first one */
		error_set(&a.error, code == CURLE_COULDNT_CONNECT && !t->taken ? -ECONNREFUSED : -EIO,
		          "%s: %s%s", t->where, describe(t, code), certificate_hint(t, code));
	if (t->call.on_done && !t->cancelled)
		t->call.on_done(t->call.context, &a);
	transfer_free(t);
}

static void on_ended(void *context, CURL *easy, CURLcode code)
{
	struct http_transfer *t = NULL;

	curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&t);
	transfer_done(t, code);
}

static void set_tls(CURL *e, const struct identity *id)
{
	struct curl_blob crt = {id->certificate, strlen(id->certificate), CURL_BLOB_COPY};
	struct curl_blob key = {id->key, strlen(id->key), CURL_BLOB_COPY};
	const char *trust = id->trust ? id->trust : id->certificate;
	struct curl_blob ca = {(char *)trust, strlen(trust), CURL_BLOB_COPY};

	curl_easy_setopt(e, CURLOPT_SSLCERTTYPE, "PEM");
	curl_easy_setopt(e, CURLOPT_SSLCERT_BLOB, &crt);
	curl_easy_setopt(e, CURLOPT_SSLKEYTYPE, "PEM");
	curl_easy_setopt(e, CURLOPT_SSLKEY_BLOB, &key);
	curl_easy_setopt(e, CURLOPT_CAINFO_BLOB, &ca);
	curl_easy_setopt(e, CURLOPT_CAPATH, NULL); /* the authorities of the system vouch for no node */
	curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 1L);
	curl_easy_setopt(e, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_3);
	if (identity_is_shared(id)) {
		curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 0L); /* the key is the name */
		curl_easy_setopt(e, CURLOPT_PINNEDPUBLICKEY, id->pin);
	} else {
		curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 2L); /* the name in the URL is the node's */
		curl_easy_setopt(e, CURLOPT_MAXLIFETIME_CONN, (long)CHECK_AGAIN_SECONDS);
	}
}

/* Called before a request leaves, over a connection that is up, or was kept. */
static int on_connected(void *userdata, char *to, char *from, int to_port, int from_port)
{
	leave_connecting(userdata);
	return CURL_PREREQFUNC_OK;
}

static int begin(struct http_transfer *t, struct error *err)
{
	struct http_client *c = t->client;

	leave_queue(t);
	if (!c->identity)
		return error_set(err, -EPERM, "no cluster key: other services cannot be called");
	set_tls(t->easy, c->identity);
	if (curl_loop_add(c->loop, t->easy) < 0)
		return error_set(err, -EIO, "cannot call %s", t->where);
	t->begun = true;
	if (t->call.queue) {
		t->connecting = true;
		c->queues[t->call.queue].connecting++;
	}
	return 0;
}

static bool has_room(const struct call_queue *q)
{
	return q->connecting < HTTP_CONNECTING;
}

/* One that cannot begin says so as one that has ended. */
static void begin_waiting(struct http_transfer *t)
{
	struct http_answer a = {.body = ""};

	if (begin(t, &a.error) == 0)
		return;
	if (t->call.on_done)
		t->call.on_done(t->call.context, &a);
	transfer_free(t);
}

static int on_turn(sd_event_source *source, void *userdata)
{
	struct http_client *c = userdata;
	struct http_transfer *next;

	for (struct http_transfer *t = c->transfers; t; t = next) {
		next = t->next;
		if (t->cancelled)
			transfer_free(t);
	}
	for (size_t i = 1; i < HTTP_QUEUES; i++)
		while (c->queues[i].first && has_room(&c->queues[i]))
			begin_waiting(c->queues[i].first);
	return 0;
}

int http_client_create(sd_event *event, const struct identity *identity, struct http_client **out,
                       struct error *err)
{
	_cleanup_(http_client_destroyp) struct http_client *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return error_oom(err);
	c->identity = identity;
	r = curl_loop_create(event, KEPT_CONNECTIONS, on_ended, c, &c->loop, err);
	if (r < 0)
		return r;
	if ((r = sd_event_add_defer(event, &c->turn, on_turn, c)) < 0 ||
	    (r = sd_event_source_set_enabled(c->turn, SD_EVENT_OFF)) < 0)
		return error_errno(err, r, "cannot set up the HTTP client");
	*out = steal_pointer(c);
	return 0;
}

void http_client_set_identity(struct http_client *client, const struct identity *identity)
{
	client->identity = identity;
}

void http_client_destroy(struct http_client *c)
{
	if (!c)
		return;
	while (c->transfers) {
		struct http_transfer *t = c->transfers;
		struct http_answer a = {.body = ""};

		error_set(&a.error, -ECANCELED, "cancelled");
		if (t->call.on_done && !t->cancelled)
			t->call.on_done(t->call.context, &a);
		transfer_free(t);
	}
	curl_loop_destroy(c->loop);
	sd_event_source_disable_unref(c->turn);
	free(c);
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata)
{
	struct http_transfer *t = userdata;
	size_t len = size * n;

	if (t->cancelled)
		return 0;
	if (t->paused)
		return CURL_WRITEFUNC_PAUSE;
	if (!t->call.on_data) {
		if (t->answer.len + len > ANSWER_MAX)
			return 0;
		strbuf_add(&t->answer, data, len);
		return len;
	}
	t->in_data = true;
	t->call.on_data(t->call.context, data, len);
	t->in_data = false;
	return len;
}

/* libcurl sends a request again, over a new connection, where one that was kept open breaks before the answer
 * comes; but not one whose body it has from a function that cannot go back, once it has taken of it. */
static size_t on_send(char *to, size_t size, size_t n, void *userdata)
{
	struct http_transfer *t = userdata;
	size_t len = MIN(size * n, t->call.len - t->taken);

	memcpy(to, t->body + t->taken, len);
	t->taken += len;
	return len;
}

/* The empty line after the headers: now the status and the type are known. */
static size_t on_header(char *data, size_t size, size_t n, void *userdata)
{
	struct http_transfer *t = userdata;
	size_t len = size * n;
	char *type = NULL;
	long status = 0;

	if (t->headers_told || !t->call.on_headers || !(len == 2 && memcmp(data, "\r\n", 2) == 0))
		return len;
	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type);
	if (status < 200)
		return len;
	t->headers_told = true;
	t->call.on_headers(t->call.context, status, type);
	return len;
}

static int add_header(struct http_transfer *t, const char *header)
{
	struct curl_slist *list = header ? curl_slist_append(t->headers, header) : NULL;

	if (!list)
		return -ENOMEM;
	t->headers = list;
	return 0;
}

static int set_headers(struct http_transfer *t, const struct http_call *call)
{
	_cleanup_free_ char *node = call->node ? str_printf("Dtrain-Node: %s", call->node) : NULL;

	for (const char *const *h = call->headers; h && *h; h++)
		if (add_header(t, *h) < 0)
			return -ENOMEM;
	if (call->node && add_header(t, node) < 0)
		return -ENOMEM;
	return add_header(t, "Expect:"); /* no extra round trip before a body */
}

static char *place_of(const char *name, int port)
{
	bool v6 = strchr(name, ':');

	return str_printf("%s%s%s:%d", v6 ? "[" : "", name, v6 ? "]" : "", port);
}

static int set_call(struct http_transfer *t, const struct http_call *call, struct error *err)
{
	bool shared = identity_is_shared(t->client->identity);
	_cleanup_free_ char *address = place_of(call->address, call->port),
	                    *host = place_of(shared ? call->address : call->node, call->port),
	                    *url = address && host ? str_printf("https://%s/", host) : NULL;
	CURL *e = t->easy;

	t->where = str_printf("%s port %d", call->address, call->port);
	if (!url || !t->where)
		return error_oom(err);
	/* The URL has the name that the certificate has to have; this is where its service is. */
	if (!shared) {
		_cleanup_free_ char *to = str_printf("::%s", address);

		t->connect_to = to ? curl_slist_append(NULL, to) : NULL;
		if (!t->connect_to)
			return error_oom(err);
		curl_easy_setopt(e, CURLOPT_CONNECT_TO, t->connect_to);
	}
	if (set_headers(t, call) < 0)
		return error_oom(err);
	curl_easy_setopt(e, CURLOPT_URL, url);
	/* As it is, not as a part of the URL: one that a user made up ("/v1/runs/1/../../peer", "%2Fv1@host")
	 * would come out as another route, or another host, and there we speak as a service. */
	curl_easy_setopt(e, CURLOPT_REQUEST_TARGET, call->target);
	curl_easy_setopt(e, CURLOPT_PRIVATE, t);
	curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->headers);
	curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, call->method);
	curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(e, CURLOPT_PROXY, "");
	curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->curl_error);
	if (!call->on_data)
		curl_easy_setopt(e, CURLOPT_BUFFERSIZE, (long)SHORT_ANSWER_BUFFER);
	curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, (long)SEND_BUFFER);
	if (call->queue) {
		curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_connected);
		curl_easy_setopt(e, CURLOPT_PREREQDATA, t);
	}
	curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
	                 (long)((call->connect > 0 ? call->connect : CONNECT_SECONDS) * 1000));
	curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(call->timeout * 1000));
	curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
	if (call->body)
		curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->len);
	if (call->body && call->once) {
		t->body = malloc(call->len + 1);
		if (!t->body)
			return error_oom(err);
		memcpy(t->body, call->body, call->len);
		curl_easy_setopt(e, CURLOPT_POST, 1L);
		curl_easy_setopt(e, CURLOPT_READFUNCTION, on_send);
		curl_easy_setopt(e, CURLOPT_READDATA, t);
	} else if (call->body) {
		curl_easy_setopt(e, CURLOPT_COPYPOSTFIELDS, call->body);
	}
	return 0;
}

int http_client_call(struct http_client *c, const struct http_call *call, struct http_transfer **out,
                     struct error *err)
{
	struct call_queue *q = &c->queues[call->queue];
	struct http_transfer *t;
	int r;

	if (!c->identity)
		return error_set(err, -EPERM, "no cluster key: other services cannot be spoken to");
	if (!call->node && !identity_is_shared(c->identity))
		return error_set(err, -EINVAL, "%s: which node is meant is not known", call->address);
	t = calloc(1, sizeof(*t));
	if (!t)
		return error_oom(err);
	t->client = c;
	t->call = *call;
	list_push(c->transfers, t);
	t->easy = curl_easy_init();
	r = t->easy ? set_call(t, call, err) : error_oom(err);
	if (r == 0 && (q->first || !has_room(q))) /* never in queue 0, which counts none */
		enqueue(t);
	else if (r == 0)
		r = begin(t, err);
	if (r < 0) {
		transfer_free(t);
		return r;
	}
	if (out)
		*out = t;
	return 0;
}

void http_transfer_cancel(struct http_transfer *t)
{
	if (!t)
		return;
	if (!t->in_data) {
		transfer_free(t);
		return;
	}
	/* libcurl, which is calling, would use it after it was freed. */
	t->cancelled = true;
	sd_event_source_set_enabled(t->client->turn, SD_EVENT_ONESHOT);
}

void http_transfer_pause(struct http_transfer *t, bool pause)
{
	if (t->paused == pause)
		return;
	t->paused = pause;
	if (!pause)
		curl_easy_pause(t->easy, CURLPAUSE_CONT);
}
