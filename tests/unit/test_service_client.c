/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a worker asks of its service while the controller is restarted, or replaced by another one. */
#include "unit.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "fake_service.h"
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
	tcase_add_test(t, without_a_service_the_end_is_not_held_up);
	suite_add_tcase(s, t);
	return unit_run(s);
}
