/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the shared store and the election over a real etcd, and the JSON of its gateway. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cluster/election.h"
#include "cluster/store_etcd.h"
#include "cluster_fixture.h"
#include "real_etcd.h"
#include "wire/etcd.h"

enum { LEASE = 3, SECONDS = REAL_ETCD_SECONDS };

/* How many keys there are below /dtrain/ with this name. */
static size_t count_keys(struct real_etcd *b, const char *kind)
{
	_cleanup_free_ char *from = str_printf("/dtrain/%s/", kind), *end = str_printf("/dtrain/%s0", kind);
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	struct etcd_pairs found;
	size_t count;

	ck_ok(etcd_call(b->etcd, "/v3/kv/range", etcd_range_request(from, end, 0), SECONDS, &answer, &err),
	      &err);
	ck_ok(etcd_range_read(answer, &found, &err), &err);
	count = found.count;
	etcd_pairs_clear(&found);
	return count;
}

static void take_error(void *context, int code, const struct error *err)
{
	*(struct error *)context = *err;
	((struct error *)context)->code = code;
}

static int commit(struct store *s, struct error *err)
{
	store_commit(s, take_error, err);
	store_wait(s);
	return err->code;
}

/* What etcd does itself when the lease runs out. */
static void take_key_away(struct real_etcd *b)
{
	_cleanup_json_ json_t *txn = etcd_txn_request("/nothing", 0), *answer = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(etcd_txn_delete(txn, "/dtrain/controller", NULL), 0);
	ck_ok(etcd_call(b->etcd, "/v3/kv/txn", steal_pointer(txn), SECONDS, &answer, &err), &err);
}

START_TEST(texts_and_numbers_come_back)
{
	static const char *const texts[] = {
	    "a", "ab", "abc", "abcd", "/dtrain/runs/\xc3\xa4\x7f\x01", "{\"a\":[1]}"};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		_cleanup_json_ json_t *request = etcd_range_request(texts[i], NULL, 0);
		_cleanup_json_ json_t *answer = json_pack(
		    "{s:[{s:O,s:O,s:s}],s:b}", "kvs", "key", json_object_get(request, "key"), "value",
		    json_object_get(request, "key"), "create_revision", "9007199254740993", "more", 1);
		struct error err = ERROR_INIT;
		struct etcd_pairs found;

		ck_ok(etcd_range_read(answer, &found, &err), &err);
		ck_assert_uint_eq(found.count, 1);
		ck_assert(found.more);
		ck_assert_str_eq(found.list[0].key, texts[i]);
		ck_assert_str_eq(found.list[0].value, texts[i]);
		ck_assert_int_eq(found.list[0].create_revision, 9007199254740993);
		etcd_pairs_clear(&found);
	}
}
END_TEST

START_TEST(other_answers_are_errors)
{
	static const char *const answers[] = {"[]",
	                                      "{\"kvs\":{}}",
	                                      "{\"kvs\":[{}]}",
	                                      "{\"kvs\":[{\"key\":\"YQ=\"}]}",
	                                      "{\"kvs\":[{\"key\":\"Y*==\"}]}",
	                                      "{\"kvs\":[{\"key\":\"YWI=\",\"value\":\"AAAA\"}]}",
	                                      "{\"kvs\":[{\"key\":\"YWI=\",\"create_revision\":\"x\"}]}"};

	for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
		_cleanup_json_ json_t *json = json_loads(answers[i], 0, NULL);
		struct error err = ERROR_INIT;
		struct etcd_pairs found;

		ck_fails(etcd_range_read(json, &found, &err), &err, "etcd: ");
	}
}
END_TEST

/* The next controller has the runs of the one before, and a higher epoch; drains, too. */
START_TEST(the_next_controller_takes_up_what_there_is)
{
	struct real_etcd b;
	struct election *e;
	struct store *s;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *again = NULL;
	_cleanup_free_ char *cluster = NULL, *config = NULL, *reason = NULL;
	struct error err = ERROR_INIT;
	int64_t epoch;

	real_etcd_open(&b);
	e = real_etcd_lead(&b, "n1", LEASE);
	s = real_etcd_open_store(&b, e, "n1");
	ck_assert_int_ge(store_epoch(s), election_revision(e));
	ck_ok(store_insert(s, r, "{\"a\":1}", &err), &err);
	fixture_place(r);
	store_update(s, r); /* in the batch that has it new */
	ck_ok(store_set_drained(s, "n7", true, "a fan", &err), &err);
	ck_ok(commit(s, &err), &err);
	epoch = store_epoch(s);
	cluster = strdup(store_cluster(s));
	store_close(s);
	election_close(e);

	e = real_etcd_lead(&b, "n2", LEASE);
	s = real_etcd_open_store(&b, e, "n2");
	ck_assert_str_eq(store_cluster(s), cluster);
	ck_assert_int_gt(store_epoch(s), epoch);
	ck_assert(store_has_epoch(s, epoch));
	ck_assert_int_eq(store_highest(s), r->id);
	ck_ok(store_get(s, r->id, &again, &err), &err);
	ck_assert_int_eq(again->state, RUN_STARTING);
	ck_assert_str_eq(again->user, r->user);
	ck_assert_uint_eq(again->rank_count, 1);
	ck_assert_int_gt(again->version, r->version);
	ck_ok(store_config(s, r->id, &config, &err), &err);
	ck_assert_str_eq(config, "{\"a\":1}");
	ck_assert(store_drained(s, "n7", &reason));
	ck_assert_str_eq(reason, "a fan");
	store_close(s);
	election_close(e);
	real_etcd_close(&b);
}
END_TEST

/* Its key is gone, and it has not noticed yet. */
START_TEST(who_has_lost_the_key_commits_nothing)
{
	struct real_etcd b;
	struct election *old, *new;
	struct store *s;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	real_etcd_open(&b);
	old = real_etcd_lead(&b, "n1", LEASE);
	s = real_etcd_open_store(&b, old, "n1");
	take_key_away(&b);
	ck_assert(election_holds(old));
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s, &err), -ESTALE);
	real_etcd_await(old, ELECTION_LOST);
	ck_assert(!election_holds(old));
	store_close(s);
	ck_assert_uint_eq(count_keys(&b, "runs"), 0);
	new = real_etcd_lead(&b, "n2", LEASE);
	ck_assert_int_gt(election_revision(new), election_revision(old));
	election_close(old);
	ck_assert(election_holds(new));
	election_close(new);
	real_etcd_close(&b);
}
END_TEST

/* More than a transaction of etcd can hold; and what it refuses is not there at all. */
START_TEST(a_batch_is_there_whole_or_not_at_all)
{
	enum { RUNS = 150, TOO_LARGE = 1300 * 1000 };
	struct real_etcd b;
	struct election *e;
	struct store *s;
	_cleanup_free_ char *large = malloc(TOO_LARGE + 1);
	struct error err = ERROR_INIT;
	struct run *runs[RUNS];

	memset(large, 'x', TOO_LARGE);
	large[TOO_LARGE] = '\0';
	real_etcd_open(&b);
	e = real_etcd_lead(&b, "n1", LEASE);
	s = real_etcd_open_store(&b, e, "n1");
	runs[0] = fixture_run(1, 1);
	ck_ok(store_check(s, runs[0], "{}", &err), &err);
	ck_fails(store_check(s, runs[0], large, &err), &err,
	         "bytes with its environment, and etcd takes 1200000");
	ck_assert_int_eq(err.code, -E2BIG);
	run_free(runs[0]);
	for (size_t i = 0; i < RUNS; i++) {
		runs[i] = fixture_run(1, 1);
		ck_ok(store_insert(s, runs[i], i == RUNS - 1 ? large : "{}", &err), &err);
	}
	ck_assert_int_eq(commit(s, &err), -E2BIG);
	ck_assert_uint_eq(count_keys(&b, "runs"), 0);
	ck_assert_uint_eq(count_keys(&b, "origins"), 0);
	ck_assert(election_holds(e));
	for (size_t i = 0; i < RUNS; i++)
		ck_ok(store_insert(s, runs[i], "{}", &err), &err);
	ck_ok(commit(s, &err), &err);
	ck_assert_uint_eq(count_keys(&b, "runs"), RUNS);
	for (size_t i = 0; i < RUNS; i++)
		run_free(runs[i]);
	store_close(s);
	election_close(e);
	real_etcd_close(&b);
}
END_TEST

static int put_many(struct real_etcd *b, int count, size_t bytes)
{
	_cleanup_json_ json_t *txn = etcd_txn_request("/nothing", 0), *answer = NULL;
	_cleanup_free_ char *value = calloc(1, bytes + 1);
	struct error err = ERROR_INIT;

	memset(value, 'x', bytes);
	for (int i = 0; i < count; i++) {
		_cleanup_free_ char *key = str_printf("/k%d", i);

		ck_assert_int_eq(etcd_txn_put(txn, key, value, 0), 0);
	}
	return etcd_call(b->etcd, "/v3/kv/txn", steal_pointer(txn), SECONDS, &answer, &err);
}

/* The words of etcd by which it is known. */
START_TEST(what_etcd_does_not_take_is_too_large)
{
	struct real_etcd b;

	real_etcd_open(&b);
	ck_assert_int_eq(put_many(&b, 128, 1), 0);
	ck_assert_int_eq(put_many(&b, 129, 1), -EMSGSIZE);
	ck_assert_int_eq(put_many(&b, 1, 1500 * 1000), 0);
	ck_assert_int_eq(put_many(&b, 1, 1600 * 1000), -EMSGSIZE);
	ck_assert_int_eq(put_many(&b, 3, 1000 * 1000), -EMSGSIZE);
	real_etcd_close(&b);
}
END_TEST

/* All have ended. Their entry has more bytes than a request may have; the next controller has all of them. */
START_TEST(a_run_may_have_many_ranks)
{
	enum { RANKS = 65536 };
	struct real_etcd b;
	struct election *e;
	struct store *s;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *again = NULL;
	struct error err = ERROR_INIT;
	size_t pieces;

	real_etcd_open(&b);
	e = real_etcd_lead(&b, "n1", LEASE);
	s = real_etcd_open_store(&b, e, "n1");
	ck_ok(store_insert(s, r, "{}", &err), &err);
	r->ranks = calloc(RANKS, sizeof(*r->ranks));
	for (r->rank_count = 0; r->rank_count < RANKS; r->rank_count++)
		r->ranks[r->rank_count] = (struct run_rank){.rank = (int64_t)r->rank_count,
		                                            .node = str_printf("n%zu", r->rank_count / 8),
		                                            .state = RANK_EXITED,
		                                            .exit_status = 1,
		                                            .ended = 1764300000.125};
	r->state = RUN_RUNNING;
	store_update(s, r);
	ck_ok(commit(s, &err), &err);
	pieces = count_keys(&b, "pieces");
	ck_assert_uint_gt(pieces, 15);
	r->state = RUN_FAILED;
	store_update(s, r);
	ck_ok(commit(s, &err), &err);
	ck_assert_uint_eq(count_keys(&b, "pieces"), pieces);
	store_close(s);
	election_close(e);

	e = real_etcd_lead(&b, "n2", LEASE);
	s = real_etcd_open_store(&b, e, "n2");
	ck_ok(store_get(s, r->id, &again, &err), &err);
	ck_assert_int_eq(again->state, RUN_FAILED);
	ck_assert_uint_eq(again->rank_count, RANKS);
	for (size_t i = 0; i < RANKS; i++)
		ck_assert_str_eq(again->ranks[i].node, r->ranks[i].node);
	store_close(s);
	election_close(e);
	real_etcd_close(&b);
}
END_TEST

/* A member that answers each request with the same text, or with none. */
struct gateway {
	const char *answer;
	int fd, calls;
	char url[40], request[4096]; /* the last one */
	pthread_t thread;
};

static void *serve(void *context)
{
	struct gateway *g = context;
	int fd;

	while ((fd = accept4(g->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		const char *end = NULL;
		size_t len = 0;
		ssize_t n = 1;

		while (n > 0 && (!end || len < (size_t)(end + 4 - g->request) +
		                                   strtoul(strcasestr(g->request, "content-length:") + 15,
		                                           NULL, 10))) {
			n = read(fd, g->request + len, sizeof(g->request) - 1 - len);
			len += n > 0 ? (size_t)n : 0;
			g->request[len] = '\0';
			end = strstr(g->request, "\r\n\r\n");
		}
		__atomic_add_fetch(&g->calls, 1, __ATOMIC_SEQ_CST);
		if (g->answer)
			ck_assert_int_gt(send(fd, g->answer, strlen(g->answer), MSG_NOSIGNAL), 0);
		else
			while (read(fd, &n, sizeof(n)) > 0)
				; /* until the caller gives up */
		close(fd);
	}
	return NULL;
}

static void gateway_open(struct gateway *g, const char *answer)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	*g = (struct gateway){.answer = answer, .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	ck_assert_int_eq(bind(g->fd, (struct sockaddr *)&a, len), 0);
	ck_assert_int_eq(getsockname(g->fd, (struct sockaddr *)&a, &len), 0);
	ck_assert_int_eq(listen(g->fd, 8), 0);
	snprintf(g->url, sizeof(g->url), "http://127.0.0.1:%d", ntohs(a.sin_port));
	ck_assert_int_eq(pthread_create(&g->thread, NULL, serve, g), 0);
}

static void gateway_close(struct gateway *g)
{
	shutdown(g->fd, SHUT_RDWR);
	pthread_join(g->thread, NULL);
	close(g->fd);
}

#define ANSWER(STATUS, BODY) "HTTP/1.1 " STATUS " X\r\nConnection: close\r\n\r\n" BODY

static const struct {
	const char *answer; /* of the first member */
	int code, calls;    /* of the second one, which gives an answer */
	const char *words;  /* of the error, where there is no second one */
} answers[] = {
    {ANSWER("200", "{\"n\":1}"), 0, 0, NULL},
    {ANSWER("400", "{\"error\":\"no such key\"}"), -EREMOTEIO, 0, ": no such key"},
    {ANSWER("400", "{\"error\":\"etcdserver: request is too large\"}"), -EMSGSIZE, 0,
     ": etcdserver: request is"},
    {ANSWER("400", "{\"error\":\"etcdserver: too many operations in txn request\"}"), -EMSGSIZE, 0,
     "too many"},
    {ANSWER("429", "{\"error\":\"grpc: received message larger than max (9 vs. 8)\"}"), -EMSGSIZE, 0,
     "larger"},
    {ANSWER("499", ""), -EREMOTEIO, 0, ": it refuses the request"},
    {ANSWER("404", "{}"), -EREMOTEIO, 0, ": it refuses the request"},
    {ANSWER("500", "{}"), 0, 1, ": the answer is not that of a JSON gateway (status 500)"},
    {ANSWER("500", "{\"error\":\"no leader\"}"), 0, 1, ": no leader (status 500)"},
    {ANSWER("399", "{}"), 0, 1, "(status 399)"},
    {ANSWER("201", "{}"), 0, 1, "(status 201)"},
    {ANSWER("200", "{\"error\":\"no leader\"}"), 0, 1, ": no leader (status 200)"},
    {ANSWER("200", "{"), 0, 1, ": the answer is not that of a JSON gateway (status 200)"},
    {ANSWER("200", ""), 0, 1, ": the answer is not that of a JSON gateway (status 200)"},
    {"nothing of HTTP", 0, 1, "cannot reach etcd at http://127.0.0.1:"},
};

static int ask(struct etcd *e, double seconds, json_t **answer, struct error *err)
{
	json_decref(*answer);
	*answer = NULL;
	return etcd_call(e, "/v3/kv/range", etcd_range_request("a", NULL, 0), seconds, answer, err);
}

/* A refusal is final. After another failure the next member is asked, and first from then on. */
START_TEST(members_are_asked_in_turn)
{
	struct gateway first, second;
	char *urls[] = {first.url, second.url, NULL}, *alone[] = {first.url, NULL};
	_cleanup_(etcd_closep) struct etcd *e = NULL, *single = NULL;
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;

	gateway_open(&first, answers[_i].answer);
	gateway_open(&second, ANSWER("200", "{\"n\":2}"));
	ck_ok(etcd_open(&(struct etcd_place){.urls = urls}, &e, &err), &err);
	for (int i = 1; i <= 2; i++) {
		int r = ask(e, SECONDS, &answer, &err);

		ck_assert_int_eq(r, answers[_i].code);
		ck_assert_int_eq(__atomic_load_n(&second.calls, __ATOMIC_SEQ_CST), i * answers[_i].calls);
		ck_assert_int_eq(__atomic_load_n(&first.calls, __ATOMIC_SEQ_CST), answers[_i].calls ? 1 : i);
		if (r == 0)
			ck_assert_int_eq(json_integer_value(json_object_get(answer, "n")),
			                 answers[_i].calls ? 2 : 1);
		else
			ck_assert_ptr_null(answer);
	}
	ck_ok(etcd_open(&(struct etcd_place){.urls = alone}, &single, &err), &err);
	if (answers[_i].words) {
		err = (struct error)ERROR_INIT;
		ck_fails(ask(single, SECONDS, &answer, &err), &err, answers[_i].words);
		ck_assert_int_eq(err.code, answers[_i].code ? answers[_i].code : -EHOSTUNREACH);
	}
	gateway_close(&first);
	gateway_close(&second);
	ck_assert_int_eq(strncmp(first.request, "POST /v3/kv/range HTTP/1.1\r\n", 28), 0);
	ck_assert_ptr_nonnull(strstr(first.request, "Content-Type: application/json\r\n"));
	ck_assert_str_eq(strstr(first.request, "\r\n\r\n"), "\r\n\r\n{\"key\":\"YQ==\"}");
}
END_TEST

/* Each once; then the call has failed. */
START_TEST(members_that_are_all_silent_take_no_longer_than_the_call_may)
{
	struct gateway members[2];
	char *urls[] = {members[0].url, members[1].url, NULL};
	_cleanup_(etcd_closep) struct etcd *e = NULL;
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	double began = clock_monotonic();

	for (int i = 0; i < 2; i++)
		gateway_open(&members[i], NULL);
	ck_ok(etcd_open(&(struct etcd_place){.urls = urls + _i}, &e, &err), &err); /* both of them, or one */
	ck_assert_int_eq(ask(e, 0.05, &answer, &err), -EHOSTUNREACH);
	ck_assert_double_ge(clock_monotonic() - began, 0.05);
	ck_assert_int_le(members[0].calls + members[1].calls, 1);
	for (int i = 0; i < 2; i++)
		gateway_close(&members[i]);
}
END_TEST

/* With https: what proves who this node is has to be there. */
START_TEST(a_certificate_that_is_not_there_is_an_error)
{
	struct gateway member;
	_cleanup_free_ char *url = NULL;
	char *urls[] = {NULL, NULL};
	_cleanup_(etcd_closep) struct etcd *e = NULL;
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;

	gateway_open(&member, "x");
	urls[0] = url = str_printf("https%s", member.url + strlen("http"));
	ck_ok(etcd_open(&(struct etcd_place){urls, "/nothing/c", "/nothing/k", "/nothing/a", NULL}, &e, &err),
	      &err);
	etcd_close(NULL);
	ck_assert_int_eq(ask(e, SECONDS, &answer, &err), -EHOSTUNREACH);
	ck_assert_msg(strstr(err.message, "/nothing/"), "%s", err.message);
	gateway_close(&member);
}
END_TEST

/* The candidate has found out that the first member is silent: its store does not ask that first again. */
START_TEST(a_store_begins_with_the_member_that_has_elected_its_controller)
{
	struct gateway silent;
	struct election *e;
	struct real_etcd b;
	char *urls[3];

	gateway_open(&silent, NULL);
	real_etcd_open(&b);
	urls[0] = silent.url;
	urls[1] = b.urls[0];
	urls[2] = NULL;
	b.place.urls = urls;
	e = real_etcd_lead(&b, "n1", LEASE);
	ck_assert_str_eq(election_member(e), b.urls[0]);
	ck_assert_int_eq(__atomic_load_n(&silent.calls, __ATOMIC_SEQ_CST), 1);
	store_close(real_etcd_open_store(&b, e, "n1"));
	ck_assert_int_eq(__atomic_load_n(&silent.calls, __ATOMIC_SEQ_CST), 1);
	election_close(e);
	real_etcd_close(&b);
	gateway_close(&silent);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("etcd");
	TCase *gateway = tcase_create("gateway");
	TCase *json = tcase_create("JSON"), *real = tcase_create("etcd");

	tcase_add_test(json, texts_and_numbers_come_back);
	tcase_add_test(json, other_answers_are_errors);
	suite_add_tcase(s, json);
	tcase_add_loop_test(gateway, members_are_asked_in_turn, 0, ARRAY_SIZE(answers));
	tcase_add_loop_test(gateway, members_that_are_all_silent_take_no_longer_than_the_call_may, 0, 2);
	tcase_add_test(gateway, a_certificate_that_is_not_there_is_an_error);
	suite_add_tcase(s, gateway);
	tcase_set_timeout(real, 3 * SECONDS);
	if (!real_etcd_is_there())
		fputs("etcd is absent: what needs it is left out\n", stderr);
	tcase_add_loop_test(real, the_next_controller_takes_up_what_there_is, 0, real_etcd_is_there());
	tcase_add_loop_test(real, who_has_lost_the_key_commits_nothing, 0, real_etcd_is_there());
	tcase_add_loop_test(real, a_batch_is_there_whole_or_not_at_all, 0, real_etcd_is_there());
	tcase_add_loop_test(real, what_etcd_does_not_take_is_too_large, 0, real_etcd_is_there());
	tcase_add_loop_test(real, a_run_may_have_many_ranks, 0, real_etcd_is_there());
	tcase_add_loop_test(real, a_store_begins_with_the_member_that_has_elected_its_controller, 0,
	                    real_etcd_is_there());
	suite_add_tcase(s, real);
	return unit_run(s);
}
