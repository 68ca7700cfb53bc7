/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a worker asks of its service while the controller is restarted, or replaced by another one. */
#include "unit.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "fake_service.h"
#include "wire/worker_event.h"
#include "worker/service_client.h"

#define OK        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
#define NO_KEY    "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
#define NO_ANSWER "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}"
#define ABSENT                                                                                               \
	"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 37\r\n\r\n"                                     \
	"{\"error\":{\"message\":\"no controller\"}}"

enum { SECONDS = 30 };

static char *dir;
static struct environment env;

static void setup(void)
{
	dir = unit_tmpdir();
	env = (struct environment){
	    .world_size = 2, .run_id = "7", .attempt = 2, .socket = str_path_join(dir, "socket")};
}

static void teardown(void)
{
	free((char *)env.socket);
	file_remove_tree(dir, NULL);
	free(dir);
}

static struct service_client *make(void)
{
	struct service_client *service;
	struct error err = ERROR_INIT;

	ck_ok(service_client_create(&env, &service, &err), &err);
	return service;
}

static void await_steps(struct fake_service *fake, size_t count)
{
	double until = clock_monotonic() + SECONDS;

	while (fake_service_taken(fake) < count && clock_monotonic() < until)
		usleep(10000);
	ck_assert_uint_ge(fake_service_taken(fake), count);
}

START_TEST(a_key_is_put_as_soon_as_there_is_a_controller)
{
	static const struct fake_step steps[] = {
	    {"PUT /v1/runs/7/rendezvous/a/0?attempt=2", "value", ABSENT, 0},
	    {"PUT /v1/runs/7/rendezvous/a/0?attempt=2", "value", NO_ANSWER, 1},
	    {"PUT /v1/runs/7/rendezvous/a/0?attempt=2", "value", "", 1},
	    {"PUT /v1/runs/7/rendezvous/a/0?attempt=2", "value", OK, 0},
	};
	struct fake_service *fake = fake_service_start(env.socket, steps, ARRAY_SIZE(steps));
	struct service_client *service = make();
	const struct kv_store *store = service_client_store(service);
	struct error err = ERROR_INIT;

	ck_ok(store->put(store->context, "a/0", "value", 5, &err), &err);
	service_client_destroy(service);
	fake_service_stop(fake);
}
END_TEST

/* The next controller has none of the keys: the rank that has put them puts the newest values again, though
 * it waits for nothing itself. */
START_TEST(keys_that_a_controller_has_lost_are_put_again)
{
	static const struct fake_step steps[] = {
	    {"PUT /v1/runs/7/rendezvous/a/0?", "first", OK, 0},
	    {"PUT /v1/runs/7/rendezvous/b/0?", "second", OK, 0},
	    {"PUT /v1/runs/7/rendezvous/a/0?", "the third", OK, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?", NULL, NO_ANSWER, 1},
	    {"GET /v1/runs/7/rendezvous/a/0?", NULL, OK, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?", NULL, NO_KEY, 0},
	    {"PUT /v1/runs/7/rendezvous/a/0?", "the third", OK, 0},
	    {"PUT /v1/runs/7/rendezvous/b/0?", "second", OK, 0},
	};
	struct fake_service *fake = fake_service_start(env.socket, steps, ARRAY_SIZE(steps));
	struct service_client *service = make();
	const struct kv_store *store = service_client_store(service);
	struct error err = ERROR_INIT;

	ck_ok(store->put(store->context, "a/0", "first", 5, &err), &err);
	ck_ok(store->put(store->context, "b/0", "second", 6, &err), &err);
	ck_ok(store->put(store->context, "a/0", "the third", 9, &err), &err);
	await_steps(fake, ARRAY_SIZE(steps));
	service_client_destroy(service);
	fake_service_stop(fake);
}
END_TEST

/* Whoever waits in short steps goes on, as for a key that is not there. */
START_TEST(a_get_without_a_service_is_one_that_timed_out)
{
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/7/rendezvous/a/1?attempt=2&wait=", NULL, ABSENT, 0},
	    {"GET /v1/runs/7/rendezvous/a/1?attempt=2&wait=", NULL, ABSENT, 0},
	};
	struct service_client *service = make();
	const struct kv_store *store = service_client_store(service);
	struct error err = ERROR_INIT;
	struct fake_service *fake;
	void *data = NULL;
	size_t len;

	ck_fails(store->get(store->context, "a/1", 50, &data, &len, &err), &err,
	         "dtraind does not answer at");
	ck_assert_int_eq(err.code, -ETIMEDOUT);
	fake = fake_service_start(env.socket, steps, ARRAY_SIZE(steps));
	ck_fails(store->get(store->context, "a/1", 50, &data, &len, &err), &err, "no controller");
	ck_assert_int_eq(err.code, -ETIMEDOUT);
	service_client_destroy(service);
	fake_service_stop(fake);
}
END_TEST

/* The last ones of a run that ends meanwhile, too. */
START_TEST(reports_wait_for_a_controller)
{
	static const struct fake_step steps[] = {
	    {"POST /v1/runs/7/metrics?attempt=2", "{\"step\":9}", ABSENT, 0},
	    {"POST /v1/runs/7/metrics?attempt=2", "{\"step\":9}", NO_ANSWER, 1},
	    {"POST /v1/runs/7/metrics?attempt=2", "{\"step\":9}", OK, 0},
	};
	struct fake_service *fake = fake_service_start(env.socket, steps, ARRAY_SIZE(steps));
	struct service_client *service = make();

	service_client_report(service, "{\"step\":9}");
	await_steps(fake, 1);
	service_client_destroy(service);
	fake_service_stop(fake);
}
END_TEST

/* There is no service to wait for. */
START_TEST(without_a_service_the_end_is_not_held_up)
{
	struct service_client *service = make();
	double begun = clock_monotonic();

	service_client_report(service, "{\"step\":9}");
	service_client_destroy(service);
	ck_assert_double_lt(clock_monotonic() - begun, 10);
}
END_TEST

#define DENIED                                                                                               \
	"HTTP/1.1 403 Forbidden\r\nContent-Length: 36\r\n\r\n{\"error\":{\"message\":\"another user\"}}"

static struct service_client *serve(const struct fake_step *steps, size_t count, struct fake_service **fake)
{
	*fake = fake_service_start(env.socket, steps, count);
	return make();
}

static void stop(struct service_client *service, struct fake_service *fake)
{
	service_client_destroy(service);
	fake_service_stop(fake);
}

START_TEST(a_key_may_be_refused)
{
	static const struct fake_step steps[] = {
	    {"PUT /v1/runs/7/rendezvous/a/0?attempt=2", "value", DENIED, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?attempt=2&wait=0.000 ", NULL, DENIED, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?attempt=2&wait=", NULL, DENIED, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?attempt=2&wait=0.000 ", NULL, ABSENT, 0},
	    {"GET /v1/runs/7/rendezvous/a/0?attempt=2&wait=0.000 ", NULL, NO_KEY, 0},
	};
	struct fake_service *fake;
	struct service_client *service = serve(steps, ARRAY_SIZE(steps), &fake);
	const struct kv_store *store = service_client_store(service);
	struct error err = ERROR_INIT;
	void *data = NULL;
	size_t len;

	ck_assert_int_eq(store->put(store->context, "a/0", "value", 5, &err), -EREMOTEIO);
	ck_assert_str_eq(err.message, "rendezvous a/0: the service answered 403: another user");
	ck_assert_int_eq(store->get(store->context, "a/0", 0, &data, &len, &err), -EREMOTEIO);
	ck_assert_int_eq(store->get(store->context, "a/0", 5000, &data, &len, &err), -EREMOTEIO);
	ck_assert_str_eq(err.message, "rendezvous a/0: the service answered 403: another user");
	ck_assert_int_eq(store->get(store->context, "a/0", 0, &data, &len, &err), -EREMOTEIO);
	ck_assert_str_eq(err.message, "rendezvous a/0: the service answered 503: no controller");
	ck_assert_int_eq(store->get(store->context, "a/0", 0, &data, &len, &err), -ETIMEDOUT);
	ck_assert_str_eq(err.message, "rendezvous a/0: timed out after 0 s");
	ck_assert_ptr_null(data);
	stop(service, fake);
}
END_TEST

/* It is asked for again until it is there; each time for 20 s at most. */
START_TEST(a_key_is_waited_for)
{
	static const struct fake_step steps[] = {
	    {"GET /v1/runs/7/rendezvous/a/1?attempt=2&wait=20.000 ", NULL, NO_KEY, 0},
	    {"GET /v1/runs/7/rendezvous/a/1?attempt=2&wait=20.000 ", NULL, OK, 0},
	};
	struct fake_service *fake;
	struct service_client *service = serve(steps, ARRAY_SIZE(steps), &fake);
	const struct kv_store *store = service_client_store(service);
	struct error err = ERROR_INIT;
	char *data = NULL;
	size_t len;

	ck_ok(store->get(store->context, "a/1", 60000, (void **)&data, &len, &err), &err);
	ck_assert_uint_eq(len, 2);
	ck_assert_int_eq(memcmp(data, "{}", 2), 0);
	free(data);
	stop(service, fake);
}
END_TEST

/* Those that are too many while the service takes none: the newest are kept. */
START_TEST(the_oldest_reports_are_dropped)
{
	struct strbuf newest = {0};
	struct fake_step steps[] = {
	    {"POST /v1/runs/7/metrics?attempt=2", "\r\n\r\nfirst\n", ABSENT, 0},
	    {"POST /v1/runs/7/metrics?attempt=2", "\r\n\r\nfirst\n", OK, 0},
	    {"POST /v1/runs/7/metrics?attempt=2", NULL, OK, 0},
	};
	struct fake_service *fake;
	struct service_client *service;

	strbuf_adds(&newest, "\r\n\r\n");
	for (int i = 44; i < 300; i++)
		strbuf_addf(&newest, "{\"n\":%d}\n", i);
	steps[2].body = newest.data;
	service = serve(steps, ARRAY_SIZE(steps), &fake);
	service_client_report(service, "first");
	await_steps(fake, 1);
	for (int i = 0; i < 300; i++) {
		char line[32];

		snprintf(line, sizeof(line), "{\"n\":%d}", i);
		service_client_report(service, line);
	}
	await_steps(fake, 3);
	stop(service, fake);
	strbuf_free(&newest);
}
END_TEST

/* Rank 0 reports for all. */
START_TEST(other_ranks_report_nothing)
{
	static const struct fake_step steps[] = {
	    {"POST /v1/runs/7/events?attempt=2", "{\"rank\":1,\"kind\":\"ready\",\"message\":\"now\"", OK, 1},
	};
	struct fake_service *fake;
	struct service_client *service;

	env.rank = 1;
	service = serve(steps, ARRAY_SIZE(steps), &fake);
	service_client_report(service, "{}");
	service_client_event(service, "ready", "now");
	stop(service, fake);
}
END_TEST

/* The first error alone: those after it follow from it. */
START_TEST(an_error_is_an_event_and_a_file)
{
	static const struct {
		int code;
		const char *kind, *file;
	} cases[] = {
	    {-EIO, "\"kind\":\"" WORKER_ERROR "\",\"message\":\"words\"",
	     "{\"message\":{\"message\":\"words\",\"extraInfo\":{\"lost_peer\":false}}}"},
	    {-ECONNRESET, "\"kind\":\"" WORKER_PEER_LOST "\",\"message\":\"words\"",
	     "{\"message\":{\"message\":\"words\",\"extraInfo\":{\"lost_peer\":true}}}"},
	    {-ECANCELED, "\"kind\":\"" WORKER_PEER_LOST "\",\"message\":\"words\"",
	     "{\"message\":{\"message\":\"words\",\"extraInfo\":{\"lost_peer\":true}}}"},
	};

	env.error_file = str_path_join(dir, "error");
	env.rank = 1;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct fake_step steps[] = {{"POST /v1/runs/7/events?attempt=2", cases[i].kind, OK, 1}};
		struct error first = ERROR_INIT, second = ERROR_INIT;
		_cleanup_free_ char *text = NULL;
		struct fake_service *fake;
		struct service_client *service = serve(steps, 1, &fake);

		error_set(&first, cases[i].code, "words");
		error_set(&second, -EIO, "another");
		service_client_error(service, &first);
		service_client_error(service, &second);
		ck_assert_int_eq(file_read(env.error_file, 0, &text, NULL, NULL), 0);
		ck_assert_str_eq(text, cases[i].file);
		stop(service, fake);
		unlink(env.socket);
	}
	free((char *)env.error_file);
}
END_TEST

/* Without a service, ranks find each other by files of their attempt. */
START_TEST(keys_may_be_files)
{
	_cleanup_free_ char *path = str_path_join(dir, "2-a_0");
	struct error err = ERROR_INIT;
	const struct kv_store *store;
	struct service_client *service;
	char *data = NULL;
	size_t len;

	free((char *)env.socket);
	env.socket = NULL;
	service = make();
	ck_assert_ptr_null(service_client_store(service));
	service_client_report(service, "{}");
	service_client_event(service, "ready", "");
	service_client_destroy(service);
	env.rendezvous_dir = dir;
	service = make();
	store = service_client_store(service);
	ck_assert_int_eq(store->get(store->context, "a/0", 0, (void **)&data, &len, &err), -ETIMEDOUT);
	ck_assert_msg(str_starts(err.message, "rendezvous ") &&
	                  str_ends(err.message, "/2-a_0: timed out after 0 s"),
	              "%s", err.message);
	ck_ok(store->put(store->context, "a/0", "value", 5, &err), &err);
	ck_assert(file_exists(path));
	ck_ok(store->get(store->context, "a/0", 0, (void **)&data, &len, &err), &err);
	ck_assert_uint_eq(len, 5);
	ck_assert_str_eq(data, "value");
	free(data);
	service_client_destroy(service);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("service client");
	TCase *t = tcase_create("service client");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 2 * SECONDS);
	tcase_add_test(t, a_key_is_put_as_soon_as_there_is_a_controller);
	tcase_add_test(t, keys_that_a_controller_has_lost_are_put_again);
	tcase_add_test(t, a_get_without_a_service_is_one_that_timed_out);
	tcase_add_test(t, reports_wait_for_a_controller);
	tcase_add_test(t, a_key_may_be_refused);
	tcase_add_test(t, a_key_is_waited_for);
	tcase_add_test(t, the_oldest_reports_are_dropped);
	tcase_add_test(t, other_ranks_report_nothing);
	tcase_add_test(t, an_error_is_an_event_and_a_file);
	tcase_add_test(t, keys_may_be_files);
	tcase_add_test(t, without_a_service_the_end_is_not_held_up);
	suite_add_tcase(s, t);
	return unit_run(s);
}
