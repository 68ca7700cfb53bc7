/* SPDX-License-Identifier: Apache-2.0 */
/* A client of etcd's gateway: libcurl, one connection, and the member that has answered last. */
#include "cluster/etcd.h"

#include <curl/curl.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "wire/etcd.h"

enum { ANSWER_MAX = 256 << 20 };

/* After so long without an answer of one member, the next one is asked. */
static const double MEMBER_SECONDS = 1.5;

struct etcd {
	CURL *curl;
	struct curl_slist *headers;
	char **urls;
	size_t count, current;
	char curl_error[CURL_ERROR_SIZE];
};

static size_t on_body(char *data, size_t size, size_t n, void *context)
{
	struct strbuf *body = context;

	if (body->len + size * n > ANSWER_MAX)
		return 0;
	strbuf_add(body, data, size * n);
	return body->failed ? 0 : size * n;
}

int etcd_open(const struct etcd_place *place, struct etcd **out, struct error *err)
{
	_cleanup_(etcd_closep) struct etcd *e = calloc(1, sizeof(*e));

	if (!e)
		return error_oom(err);
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(e->curl = curl_easy_init()))
		return error_set(err, -ENOMEM, "cannot set up libcurl");
	e->urls = str_list_copy(place->urls);
	e->headers = curl_slist_append(NULL, "Content-Type: application/json");
	if (!e->urls || !e->headers)
		return error_oom(err);
	for (; e->urls[e->count]; e->count++)
		if (str_eq(e->urls[e->count], place->first))
			e->current = e->count;
	curl_easy_setopt(e->curl, CURLOPT_HTTPHEADER, e->headers);
	curl_easy_setopt(e->curl, CURLOPT_PROXY, "");
	curl_easy_setopt(e->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e->curl, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(e->curl, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(e->curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(e->curl, CURLOPT_ERRORBUFFER, e->curl_error);
	curl_easy_setopt(e->curl, CURLOPT_WRITEFUNCTION, on_body);
	if (place->certificate) {
		curl_easy_setopt(e->curl, CURLOPT_SSLCERT, place->certificate);
		curl_easy_setopt(e->curl, CURLOPT_SSLKEY, place->key);
		curl_easy_setopt(e->curl, CURLOPT_CAINFO, place->ca);
		/* The authorities that the system trusts are not trusted here. */
		curl_easy_setopt(e->curl, CURLOPT_CAPATH, NULL);
		curl_easy_setopt(e->curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	}
	*out = steal_pointer(e);
	return 0;
}

void etcd_close(struct etcd *e)
{
	if (!e)
		return;
	curl_easy_cleanup(e->curl);
	curl_slist_free_all(e->headers);
	str_list_free(e->urls);
	free(e);
}

/* Does etcd, or gRPC within it, say that a request or an answer is beyond one of its limits, which sites set?
 */
static bool is_too_large(const char *why)
{
	static const char *const words[] = {"request is too large", "too many operations", "larger than max"};

	for (size_t i = 0; why && i < ARRAY_SIZE(words); i++)
		if (strstr(why, words[i]))
			return true;
	return false;
}

/* A refusal is final; what else is no answer may be found elsewhere. */
static int read_answer(const struct etcd *e, long status, const struct strbuf *body, json_t **answer,
                       struct error *err)
{
	_cleanup_json_ json_t *json = body->len ? json_loadb(body->data, body->len, 0, NULL) : NULL;
	const char *why = etcd_error(json), *url = e->urls[e->current];

	if (status == 200 && json && !why) {
		*answer = steal_pointer(json);
		return 0;
	}
	if (status >= 400 && status < 500)
		return error_set(err, is_too_large(why) ? -EMSGSIZE : -EREMOTEIO, "etcd at %s: %s", url,
		                 why ? why : "it refuses the request");
	return error_set(err, -EHOSTUNREACH, "etcd at %s: %s (status %ld)", url,
	                 why ? why : "the answer is not that of a JSON gateway", status);
}

static int call_one(struct etcd *e, const char *path, const char *text, double seconds, json_t **answer,
                    struct error *err)
{
	_cleanup_free_ char *url = str_printf("%s%s", e->urls[e->current], path);
	_cleanup_strbuf_ struct strbuf body = {0};
	long status = 0;
	CURLcode code;

	if (!url)
		return error_oom(err);
	e->curl_error[0] = '\0';
	curl_easy_setopt(e->curl, CURLOPT_URL, url);
	curl_easy_setopt(e->curl, CURLOPT_POSTFIELDS, text);
	curl_easy_setopt(e->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
	curl_easy_setopt(e->curl, CURLOPT_WRITEDATA, &body);
	curl_easy_setopt(e->curl, CURLOPT_TIMEOUT_MS, (long)(seconds * 1000) + 1);
	code = curl_easy_perform(e->curl);
	if (code != CURLE_OK)
		return error_set(err, -EHOSTUNREACH, "cannot reach etcd at %s: %s", e->urls[e->current],
		                 e->curl_error[0] ? e->curl_error : curl_easy_strerror(code));
	curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &status);
	return read_answer(e, status, &body, answer, err);
}

int etcd_call(struct etcd *e, const char *path, json_t *request, double seconds, json_t **answer,
              struct error *err)
{
	_cleanup_json_ json_t *taken = request;
	_cleanup_free_ char *text = taken ? json_to_string(taken) : NULL;
	double until = clock_monotonic() + seconds;
	int r = -EHOSTUNREACH;

	if (!text)
		return error_oom(err);
	for (size_t i = 0; i < e->count && r == -EHOSTUNREACH; i++) {
		double left = until - clock_monotonic();

		if (i > 0 && left <= 0)
			break;
		/* The last member has all of the time that is left. */
		r = call_one(e, path, text, i + 1 < e->count ? MIN(left, MEMBER_SECONDS) : MAX(left, 0.1),
		             answer, err);
		if (r == -EHOSTUNREACH)
			e->current = (e->current + 1) % e->count;
	}
	return r;
}

const char *etcd_member(const struct etcd *e)
{
	return e->urls[e->current];
}
