/* SPDX-License-Identifier: Apache-2.0 */
/* A controller whose store is a real etcd, in simulated time, and a run of which that accepts no more. */
#include "commit_bed.h"
#include "real_etcd.h"

#include "cluster/store_etcd_load.h"

enum { LEASE = 60, SMALL = 6000, LARGE = 4000 };

/* Until nothing is left to be committed. Returns whether anything was. */
static bool pass(struct bed *b, double seconds)
{
	bool any = false;

	b->now += seconds;
	turn(b);
	while (store_is_busy(b->store)) {
		any = true;
		held_store_await_done(b->store);
		turn(b);
	}
	return any;
}

static void open_controller(struct bed *b, struct real_etcd *etcd, struct election *e)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct controller_options options;
	struct error err = ERROR_INIT;

	*b = (struct bed){.dir = etcd->dir, .now = 1000};
	options = bed_options(b, hosts);
	b->store = real_etcd_open_store(etcd, e, "n1");
	options.store = b->store;
	options.begun = true;
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		b->due[i] = -1;
	ck_ok(controller_create(&options, &b->controller, &err), &err);
	heartbeats(b);
	pass(b, 0);
}

static bool is_in_etcd(const struct real_etcd *etcd, const char *key, const char *words)
{
	_cleanup_free_ char *value = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_etcd_read_value(etcd->etcd, key, &value, &err), &err);
	return value && strstr(value, words);
}

/* What its two workers say is more than etcd takes of one run: it is tried at these times and no other, while
 * a drain is committed. When etcd takes more, the run is there. */
START_TEST(a_run_that_etcd_refuses_is_tried_less_and_less)
{
	static const char run[] = "/dtrain/runs/00000000000000000001", drain[] = "/dtrain/drains/n2";
	static const double tries[] = {1, 3, 7, 15, 31, 63};
	_cleanup_free_ char *text = str_printf("no such column: %0*d", LARGE, 0);
	struct real_etcd etcd;
	struct election *e;
	struct answer a;
	struct bed b;
	size_t n = 0;

	real_etcd_open_with(&etcd, SMALL);
	e = real_etcd_lead(&etcd, "n1", LEASE);
	open_controller(&b, &etcd, e);
	submit(&b, &a);
	pass(&b, 0);
	ck_assert_str_eq(a.error, "");
	both_report(&b, 1, 1, "running");
	pass(&b, 0);
	pass(&b, 1);
	ck_assert(is_in_etcd(&etcd, run, "\"running\""));
	for (int64_t rank = 0; rank < 2; rank++)
		controller_worker_error(b.controller, 1, rank, text, false);
	pass(&b, 0);
	ck_assert(pass(&b, 1));
	for (int i = 1; i <= 2 * 64; i++) {
		bool is_try = n < ARRAY_SIZE(tries) && i * 0.5 == tries[n];

		ck_assert_int_eq(pass(&b, 0.5), is_try);
		n += is_try;
	}
	ck_assert_uint_eq(n, ARRAY_SIZE(tries));
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, "a fan"), 0);
	ck_assert(pass(&b, 0));
	ck_assert(is_in_etcd(&etcd, drain, "a fan"));
	ck_assert(!is_in_etcd(&etcd, run, "no such column"));
	real_etcd_restart_with(&etcd, 0);
	ck_assert(!pass(&b, 58));
	ck_assert(pass(&b, 1));
	ck_assert(is_in_etcd(&etcd, run, "no such column"));
	ck_assert(!pass(&b, 100));
	controller_destroy(b.controller);
	election_close(e);
	real_etcd_close(&etcd);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("controller over etcd");
	TCase *c = tcase_create("etcd");

	if (!real_etcd_is_there())
		printf("etcd is absent: apt-get install etcd-server\n");
	tcase_set_timeout(c, 3 * REAL_ETCD_SECONDS);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_run_that_etcd_refuses_is_tried_less_and_less, 0, real_etcd_is_there());
	return unit_run(s);
}
