/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the client of etcd's gateway over a stand-in for libcurl, in simulated time: how long each member is
 * asked, in which order, what of TLS is demanded, and what a failure is called. */
#include <curl/curl.h>
#include <stdarg.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/etcd.h"
#include "failing_memory.h"
#include "wire/etcd.h"

enum { OPTIONS_MAX = 32, CALLS_MAX = 16, MEMBERS = 3 };

/* As they were set last; numbers are kept as they are. */
static struct {
	CURLoption option;
	void *value;
} options[OPTIONS_MAX];
static size_t option_count;
static double now = 1000;

/* What a member does, for each of MEMBERS. */
static struct member {
	CURLcode code;
	const char *words; /* of libcurl; NULL: none */
	long status;
	const char *body;
	double seconds;  /* that it takes, no longer than it may */
	size_t too_long; /* bytes that it announces beyond the body */
} members[MEMBERS];

/* "MEMBER:SECONDS " of each call. */
static char calls[256], posted[256];

int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
	*out = (struct timespec){(time_t)now, (long)((now - (double)(time_t)now) * 1e9)};
	return 0;
}

static void *value_of(CURLoption option)
{
	for (size_t i = 0; i < option_count; i++)
		if (options[i].option == option)
			return options[i].value;
	return NULL;
}

static bool is_set(CURLoption option)
{
	for (size_t i = 0; i < option_count; i++)
		if (options[i].option == option)
			return true;
	return false;
}

CURLcode __wrap_curl_easy_setopt(CURL *curl, CURLoption option, ...);
CURLcode __wrap_curl_easy_setopt(CURL *curl, CURLoption option, ...)
{
	size_t i = 0;
	va_list ap;

	while (i < option_count && options[i].option != option)
		i++;
	ck_assert_uint_lt(i, OPTIONS_MAX);
	options[i].option = option;
	va_start(ap, option);
	options[i].value = va_arg(ap, void *);
	va_end(ap);
	option_count += i == option_count;
	return CURLE_OK;
}

static struct member *current(void)
{
	const char *url = value_of(CURLOPT_URL);

	ck_assert(str_starts(url, "http://m"));
	return &members[url[strlen("http://m")] - '0'];
}

CURLcode __wrap_curl_easy_perform(CURL *curl);
CURLcode __wrap_curl_easy_perform(CURL *curl)
{
	size_t (*write)(char *, size_t, size_t, void *) =
	    (size_t(*)(char *, size_t, size_t, void *))value_of(CURLOPT_WRITEFUNCTION);
	double most = (double)(long)value_of(CURLOPT_TIMEOUT_MS) / 1000;
	struct member *m = current();
	size_t len = m->body ? strlen(m->body) : 0;

	sprintf(calls + strlen(calls), "%d:%.1f ", (int)(m - members), most);
	snprintf(posted, sizeof(posted), "%.*s", (int)(long)value_of(CURLOPT_POSTFIELDSIZE_LARGE),
	         (char *)value_of(CURLOPT_POSTFIELDS));
	ck_assert_str_eq((char *)value_of(CURLOPT_URL) + strlen("http://m0"), "/v3/kv/range");
	now += MIN(m->seconds, most);
	if (m->words)
		strcpy(value_of(CURLOPT_ERRORBUFFER), m->words);
	if (m->code != CURLE_OK)
		return m->code;
	/* In pieces, as they come. */
	for (size_t i = 0; i < len; i++)
		if (write((char *)m->body + i, 1, 1, value_of(CURLOPT_WRITEDATA)) != 1)
			return CURLE_WRITE_ERROR;
	if (m->too_long && write(NULL, 1, m->too_long, value_of(CURLOPT_WRITEDATA)) != m->too_long)
		return CURLE_WRITE_ERROR;
	return CURLE_OK;
}

CURLcode __wrap_curl_easy_getinfo(CURL *curl, CURLINFO info, ...);
CURLcode __wrap_curl_easy_getinfo(CURL *curl, CURLINFO info, ...)
{
	va_list ap;

	ck_assert_int_eq(info, CURLINFO_RESPONSE_CODE);
	va_start(ap, info);
	*va_arg(ap, long *) = current()->status;
	va_end(ap);
	return CURLE_OK;
}

static struct etcd *open_client(size_t count, const char *first)
{
	static char urls[MEMBERS][40], *list[MEMBERS + 1];
	struct etcd_place place = {.urls = list, .first = first};
	struct error err = ERROR_INIT;
	struct etcd *e;

	for (size_t i = 0; i < count; i++) {
		snprintf(urls[i], sizeof(urls[i]), "http://m%zu", i);
		list[i] = urls[i];
		members[i] = (struct member){.status = 200, .body = "{\"n\":1}"};
	}
	list[count] = NULL;
	ck_ok(etcd_open(&place, &e, &err), &err);
	calls[0] = '\0';
	return e;
}

static int ask(struct etcd *e, double seconds, struct error *err)
{
	_cleanup_json_ json_t *answer = NULL;
	int r = etcd_call(e, "/v3/kv/range", etcd_range_request("a", NULL, 0), seconds, &answer, err);

	ck_assert_int_eq(answer != NULL, r == 0);
	ck_assert(!answer || json_get_int(answer, "n", 0) == 1);
	return r;
}

/* 1.5 s each; the last one has the rest. */
static const struct {
	double seconds, each; /* of the call; that each member takes */
	int silent;           /* so many of the first */
	const char *calls;
	const char *then; /* a second call, to which all answer */
} times[] = {
    {2.0, 9, 0, "0:1.5 ", "0:1.5 "},
    {2.0, 9, 1, "0:1.5 1:0.5 ", "1:1.5 "},
    {6.0, 9, 1, "0:1.5 1:1.5 ", "1:1.5 "},
    {6.0, 9, 2, "0:1.5 1:1.5 2:3.0 ", "2:1.5 "},
    {6.0, 9, 3, "0:1.5 1:1.5 2:3.0 ", "0:1.5 "},
    {6.0, 0, 3, "0:1.5 1:1.5 2:6.0 ", "0:1.5 "}, /* at once */
    {1.0, 9, 3, "0:1.0 ", "1:1.5 "},             /* there is no time for another one */
    {3.0, 9, 3, "0:1.5 1:1.5 ", "2:1.5 "},
};

START_TEST(each_member_has_its_time)
{
	_cleanup_(etcd_closep) struct etcd *e = open_client(MEMBERS, NULL);
	struct error err = ERROR_INIT;
	int r;

	for (int i = 0; i < times[_i].silent; i++)
		members[i] = (struct member){.code = CURLE_OPERATION_TIMEDOUT, .seconds = times[_i].each};
	r = ask(e, times[_i].seconds, &err);
	ck_assert_int_eq(r, times[_i].silent < MEMBERS ? 0 : -EHOSTUNREACH);
	ck_assert_str_eq(calls, times[_i].calls);
	for (int i = 0; i < MEMBERS; i++)
		members[i] = (struct member){.status = 200, .body = "{\"n\":1}"};
	calls[0] = '\0';
	ck_ok(ask(e, 9, &err), &err);
	ck_assert_str_eq(calls, times[_i].then);
	/* The one that has answered is the one to begin with elsewhere. */
	ck_assert_int_eq(etcd_member(e)[strlen("http://m")], times[_i].then[0]);
}
END_TEST

/* One alone has all of it, and some where there is none left. */
START_TEST(a_single_member_has_all_the_time)
{
	_cleanup_(etcd_closep) struct etcd *e = open_client(1, NULL);
	struct error err = ERROR_INIT;

	ck_ok(ask(e, 60, &err), &err);
	ck_ok(ask(e, 0, &err), &err);
	ck_ok(ask(e, -5, &err), &err);
	ck_assert_str_eq(calls, "0:60.0 0:0.1 0:0.1 ");
	ck_assert_str_eq(posted, "{\"key\":\"YQ==\"}");
}
END_TEST

START_TEST(the_named_member_is_asked_first)
{
	_cleanup_(etcd_closep) struct etcd *e = open_client(MEMBERS, "http://m1"),
	                                   *other = open_client(MEMBERS, "http://m9");
	struct error err = ERROR_INIT;

	ck_assert_str_eq(etcd_member(e), "http://m1");
	ck_assert_str_eq(etcd_member(other), "http://m0"); /* it is none of them */
	members[1].code = members[2].code = CURLE_COULDNT_CONNECT;
	ck_ok(ask(e, 60, &err), &err);
	ck_assert_str_eq(calls, "1:1.5 2:1.5 0:60.0 ");
}
END_TEST

/* In the words of libcurl, which are not those of the call before. */
START_TEST(a_failure_is_in_the_words_of_libcurl)
{
	_cleanup_(etcd_closep) struct etcd *e = open_client(1, NULL);
	struct error err = ERROR_INIT;

	members[0].code = CURLE_COULDNT_CONNECT;
	members[0].words = "connection refused by m0";
	ck_assert_int_eq(ask(e, 1, &err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message, "cannot reach etcd at http://m0: connection refused by m0");
	members[0].words = NULL;
	ck_assert_int_eq(ask(e, 1, &err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message, "cannot reach etcd at http://m0: Couldn't connect to server");
	/* An answer that no gateway gives. */
	members[0] = (struct member){.status = 200, .body = "{", .too_long = (256 << 20)};
	ck_assert_int_eq(ask(e, 1, &err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message,
	                 "cannot reach etcd at http://m0: Failed writing received data to disk/application");
}
END_TEST

static void ck_number(CURLoption option, long value)
{
	ck_assert(is_set(option));
	ck_assert_int_eq((long)value_of(option), value);
}

START_TEST(connections_are_as_etcd_needs_them)
{
	_cleanup_(etcd_closep) struct etcd *e = open_client(1, NULL);
	const struct curl_slist *headers = value_of(CURLOPT_HTTPHEADER);
	struct error err = ERROR_INIT;

	ck_assert_str_eq(headers->data, "Content-Type: application/json");
	ck_assert_ptr_null(headers->next);
	ck_assert_str_eq(value_of(CURLOPT_PROXY), ""); /* whatever the environment says */
	ck_number(CURLOPT_NOSIGNAL, 1);
	ck_number(CURLOPT_TCP_NODELAY, 1);
	ck_number(CURLOPT_TCP_KEEPALIVE, 1);
	ck_number(CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
	ck_assert(!is_set(CURLOPT_SSLCERT) && !is_set(CURLOPT_CAINFO) && !is_set(CURLOPT_SSLVERSION));
	ck_ok(ask(e, 1, &err), &err);
	ck_number(CURLOPT_TIMEOUT_MS, 1001);
}
END_TEST

START_TEST(both_sides_prove_who_they_are)
{
	char *urls[] = {(char *)"https://m0", NULL};
	const struct etcd_place place = {urls, (char *)"/c", (char *)"/k", (char *)"/a", NULL};
	_cleanup_(etcd_closep) struct etcd *e = NULL;
	struct error err = ERROR_INIT;

	ck_ok(etcd_open(&place, &e, &err), &err);
	ck_assert_str_eq(value_of(CURLOPT_SSLCERT), "/c");
	ck_assert_str_eq(value_of(CURLOPT_SSLKEY), "/k");
	ck_assert_str_eq(value_of(CURLOPT_CAINFO), "/a");
	ck_assert(is_set(CURLOPT_CAPATH));
	ck_assert_ptr_null(value_of(CURLOPT_CAPATH)); /* not those that the system trusts */
	ck_number(CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
	ck_assert(!is_set(CURLOPT_SSL_VERIFYPEER) && !is_set(CURLOPT_SSL_VERIFYHOST)); /* as by default */
}
END_TEST

static int use_client(void *context, struct error *err)
{
	char *urls[] = {(char *)"http://m0", NULL};
	_cleanup_(etcd_closep) struct etcd *e = NULL;
	_cleanup_json_ json_t *answer = NULL;
	int r = etcd_open(&(struct etcd_place){.urls = urls}, &e, err);

	ck_assert_int_eq(e != NULL, r == 0);
	if (r == 0)
		r = etcd_call(e, "/v3/kv/range", json_incref(context), 1, &answer, err);
	/* An answer for which there is no memory is none: it may have been done. */
	if (r == -EHOSTUNREACH && memory_refused) {
		ck_assert_ptr_nonnull(strstr(err->message, "Failed writing"));
		return -ENOMEM;
	}
	return r;
}

START_TEST(a_client_works_whole_or_not)
{
	_cleanup_json_ json_t *request = etcd_range_request("a", NULL, 0);
	_cleanup_(etcd_closep) struct etcd *e = open_client(1, NULL);
	struct error err = ERROR_INIT;
	json_t *answer = NULL;

	memory_runs_out(use_client, request);
	/* A request for which there was no memory. */
	calls[0] = '\0';
	ck_assert_int_eq(etcd_call(e, "/v3/kv/range", NULL, 1, &answer, &err), -ENOMEM);
	ck_assert_str_eq(calls, "");
}
END_TEST

static int make_requests(void *context, struct error *err)
{
	_cleanup_json_ json_t *range = etcd_range_request("a", "b", 5), *lease = NULL, *txn = NULL;
	int done = 0;

	if (range)
		lease = etcd_lease_request(3, 4);
	if (lease)
		txn = etcd_txn_request("k", 7);
	if (!txn)
		return -ENOMEM;
	if (etcd_txn_put(txn, "k", "v", 9) == 0)
		done = etcd_txn_delete(txn, "l", NULL) == 0 ? 2 : 1;
	/* What fails is not there in part. */
	ck_assert_uint_eq(json_array_size(json_object_get(txn, "success")), (size_t)done);
	return done == 2 ? 0 : -ENOMEM;
}

START_TEST(a_request_is_made_whole_or_not)
{
	json_set_alloc_funcs(__wrap_malloc, free);
	memory_runs_out(make_requests, NULL);
}
END_TEST

static int read_pairs(void *context, struct error *err)
{
	struct etcd_pairs found = {0};
	int r = etcd_range_read(context, &found, err);

	ck_assert_uint_eq(found.count, r == 0 ? 2 : 0);
	ck_assert_int_eq(found.list != NULL, r == 0);
	if (r == 0) {
		ck_assert_str_eq(found.list[1].key, "b");
		ck_assert_str_eq(found.list[1].value, "");
		ck_assert_int_eq(found.list[1].create_revision, 0);
		ck_assert_int_eq(found.list[0].create_revision, 4);
		ck_assert(found.more);
	}
	etcd_pairs_clear(&found);
	ck_assert_uint_eq(found.count, 0);
	/* A text for which there is no memory is taken for a wrong one. */
	return r == -EINVAL ? -ENOMEM : r;
}

START_TEST(pairs_are_read_whole_or_not)
{
	_cleanup_json_ json_t *answer =
	    json_loads("{\"kvs\":[{\"key\":\"YQ==\",\"value\":\"YWI=\",\"create_revision\":\"4\"},"
	               "{\"key\":\"Yg==\"}],\"more\":true}",
	               0, NULL);

	memory_runs_out(read_pairs, answer);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("etcd client");
	TCase *tc = tcase_create("client");

	tcase_add_loop_test(tc, each_member_has_its_time, 0, ARRAY_SIZE(times));
	tcase_add_test(tc, a_single_member_has_all_the_time);
	tcase_add_test(tc, the_named_member_is_asked_first);
	tcase_add_test(tc, a_failure_is_in_the_words_of_libcurl);
	tcase_add_test(tc, connections_are_as_etcd_needs_them);
	tcase_add_test(tc, both_sides_prove_who_they_are);
	tcase_add_test(tc, a_client_works_whole_or_not);
	tcase_add_test(tc, a_request_is_made_whole_or_not);
	tcase_add_test(tc, pairs_are_read_whole_or_not);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
