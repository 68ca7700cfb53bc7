/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the shared store and the election over a real etcd, and the JSON of its gateway. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cluster/election.h"
#include "cluster/store_etcd.h"
#include "cluster_fixture.h"
#include "wire/etcd.h"

enum { LEASE = 3, SECONDS = 60 };

/* etcd of one member in a directory of its own. */
struct bed {
	char *dir, *urls[2];
	pid_t pid;
	struct etcd_place place;
	struct etcd *etcd;
};

static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

static void execute_etcd(const struct bed *b, int peer_port)
{
	_cleanup_free_ char *data = str_printf("%s/etcd", b->dir);
	_cleanup_free_ char *peer = str_printf("http://127.0.0.1:%d", peer_port);
	_cleanup_free_ char *initial = str_printf("m=%s", peer);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	execlp("etcd", "etcd", "--name", "m", "--data-dir", data, "--listen-client-urls", b->urls[0],
	       "--advertise-client-urls", b->urls[0], "--listen-peer-urls", peer,
	       "--initial-advertise-peer-urls", peer, "--initial-cluster", initial, "--unsafe-no-fsync",
	       NULL);
	_exit(127);
}

static bool has_etcd(void)
{
	return access("/usr/bin/etcd", X_OK) == 0;
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){0, 50000000}, NULL);
}

static void bed_open(struct bed *b)
{
	double until = clock_monotonic() + SECONDS;
	struct error err = ERROR_INIT;
	int r = -1;

	b->dir = unit_tmpdir();
	b->urls[0] = str_printf("http://127.0.0.1:%d", free_port());
	b->urls[1] = NULL;
	b->place = (struct etcd_place){.urls = b->urls};
	b->pid = fork();
	if (b->pid == 0)
		execute_etcd(b, free_port());
	ck_ok(etcd_open(&b->place, &b->etcd, &err), &err);
	while (r < 0 && clock_monotonic() < until) {
		_cleanup_json_ json_t *answer = NULL;

		r = etcd_call(b->etcd, "/v3/kv/range", etcd_range_request("/", NULL, 1), 1, &answer, &err);
		if (r < 0)
			pause_briefly();
	}
	ck_ok(r, &err);
}

static void bed_close(struct bed *b)
{
	etcd_close(b->etcd);
	kill(b->pid, SIGKILL);
	waitpid(b->pid, NULL, 0);
	file_remove_tree(b->dir, NULL);
	free(b->urls[0]);
	free(b->dir);
}

/* How many keys there are below /dtrain/ with this name. */
static size_t count_keys(struct bed *b, const char *kind)
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

static void await_state(struct election *e, enum election_state state)
{
	double until = clock_monotonic() + SECONDS;
	struct election_view view = {ELECTION_FOLLOWING};

	while (view.state != state && clock_monotonic() < until) {
		struct pollfd p = {election_fd(e), POLLIN, 0};

		poll(&p, 1, 100);
		election_read(e, &view);
	}
	ck_assert_int_eq(view.state, state);
}

static struct election *lead(struct bed *b, const char *name)
{
	struct error err = ERROR_INIT;
	struct election *e;

	ck_ok(election_open(&b->place, name, LEASE, &e, &err), &err);
	await_state(e, ELECTION_LEADING);
	return e;
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

/* In a directory of the candidate's own, with an epoch, as controller_create begins one. */
static struct store *open_store(struct bed *b, struct election *e, const char *name)
{
	_cleanup_free_ char *dir = str_printf("%s/%s", b->dir, name);
	struct error err = ERROR_INIT;
	struct store *s;

	ck_ok(file_mkdirs(dir, 0755, &err), &err);
	ck_ok(store_etcd_open(&b->place, e, dir, &s, &err), &err);
	ck_ok(store_commit_epoch(s, &err), &err);
	return s;
}

/* What etcd does itself when the lease runs out. */
static void take_key_away(struct bed *b)
{
	_cleanup_json_ json_t *txn = etcd_txn_request("/nothing", 0), *answer = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(etcd_txn_delete(txn, "/dtrain/controller"), 0);
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
	struct bed b;
	struct election *e;
	struct store *s;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *again = NULL;
	_cleanup_free_ char *cluster = NULL, *config = NULL, *reason = NULL;
	struct error err = ERROR_INIT;
	int64_t epoch;

	bed_open(&b);
	e = lead(&b, "n1");
	s = open_store(&b, e, "n1");
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

	e = lead(&b, "n2");
	s = open_store(&b, e, "n2");
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
	bed_close(&b);
}
END_TEST

/* Its key is gone, and it has not noticed yet. */
START_TEST(who_has_lost_the_key_commits_nothing)
{
	struct bed b;
	struct election *old, *new;
	struct store *s;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	bed_open(&b);
	old = lead(&b, "n1");
	s = open_store(&b, old, "n1");
	take_key_away(&b);
	ck_assert(election_holds(old));
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s, &err), -ESTALE);
	await_state(old, ELECTION_LOST);
	ck_assert(!election_holds(old));
	store_close(s);
	ck_assert_uint_eq(count_keys(&b, "runs"), 0);
	new = lead(&b, "n2");
	ck_assert_int_gt(election_revision(new), election_revision(old));
	election_close(old);
	ck_assert(election_holds(new));
	election_close(new);
	bed_close(&b);
}
END_TEST

/* More than a transaction of etcd can hold; and what it refuses is not there at all. */
START_TEST(a_batch_is_there_whole_or_not_at_all)
{
	enum { RUNS = 150, TOO_LARGE = 1300 * 1000 };
	struct bed b;
	struct election *e;
	struct store *s;
	_cleanup_free_ char *large = malloc(TOO_LARGE + 1);
	struct error err = ERROR_INIT;
	struct run *runs[RUNS];

	memset(large, 'x', TOO_LARGE);
	large[TOO_LARGE] = '\0';
	bed_open(&b);
	e = lead(&b, "n1");
	s = open_store(&b, e, "n1");
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
	bed_close(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("etcd");
	TCase *json = tcase_create("JSON"), *real = tcase_create("etcd");

	tcase_add_test(json, texts_and_numbers_come_back);
	tcase_add_test(json, other_answers_are_errors);
	suite_add_tcase(s, json);
	tcase_set_timeout(real, 3 * SECONDS);
	if (!has_etcd())
		fputs("etcd is absent: what needs it is left out\n", stderr);
	tcase_add_loop_test(real, the_next_controller_takes_up_what_there_is, 0, has_etcd());
	tcase_add_loop_test(real, who_has_lost_the_key_commits_nothing, 0, has_etcd());
	tcase_add_loop_test(real, a_batch_is_there_whole_or_not_at_all, 0, has_etcd());
	suite_add_tcase(s, real);
	return unit_run(s);
}
