/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the shared store where memory runs out, over a stand-in for etcd that has enough: what is opened, and
 * what is written, is there whole or not at all. */
#include <string.h>

#include "base/str.h"
#include "cluster/election.h"
#include "cluster/store_backend.h"
#include "cluster/store_etcd.h"
#include "cluster_fixture.h"
#include "failing_memory.h"
#include "fake_etcd.h"

enum { LEASE = 6 };

static char *dir;
static struct election *election;

/* What the store hands to the store of this machine. */
static const struct store_primary *primary;
static void *primary_self;

void __real_store_set_primary(struct store *s, const struct store_primary *p, void *self);
void __wrap_store_set_primary(struct store *s, const struct store_primary *p, void *self);
void __wrap_store_set_primary(struct store *s, const struct store_primary *p, void *self)
{
	primary = p;
	primary_self = self;
	__real_store_set_primary(s, p, self);
}

/* etcd has a machine of its own. */
static void on_call(bool begin)
{
	static _Thread_local long left;

	if (begin)
		left = memory_left;
	memory_left = begin ? 0 : left;
}

static void setup(void)
{
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	fake_etcd_begin();
	fake_etcd_on_call(on_call);
	ck_ok(election_open(&fake_etcd_place, "n1", LEASE, &election, &err), &err);
	fake_etcd_await_pause(1);
	ck_assert(election_holds(election));
}

static void teardown(void)
{
	election_close(election);
	file_remove_tree(dir, NULL);
	free(dir);
}

/* A run with all that it can have. */
static struct run *full_run(void)
{
	struct run *r = fixture_run(2, 1);

	fixture_place(r);
	ck_assert_int_eq(str_replace(&r->reason, "waits"), 0);
	ck_assert_int_eq(str_replace(&r->detail, "last line"), 0);
	ck_assert_int_eq(str_replace(&r->output, "/out"), 0);
	ck_assert_int_eq(str_replace(&r->key, "k"), 0);
	return r;
}

static void check_run(struct store *s)
{
	_cleanup_(run_freep) struct run *back = NULL;
	_cleanup_free_ char *config = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_get(s, 1, &back, &err), &err);
	ck_assert_str_eq(back->reason, "waits");
	ck_assert_str_eq(back->output, "/out");
	ck_assert_uint_eq(back->rank_count, 2);
	ck_ok(store_config(s, 1, &config, &err), &err);
	ck_assert_str_eq(config, "{\"a\":1}");
}

static int open_store(void *context, struct error *err)
{
	struct store *s = NULL;
	int r = store_etcd_open(&fake_etcd_place, election, dir, &s, err);
	long left = memory_left;

	ck_assert_int_eq(s != NULL, r == 0);
	memory_left = 0;
	if (s && context)
		check_run(s);
	store_close(s);
	memory_left = left;
	/* A value for which there is no memory is taken for a wrong one. */
	return r == -EINVAL && strstr(err->message, "no base64") ? -ENOMEM : r;
}

/* Of an etcd in which there is nothing yet, and one with a run, a drain and an epoch. */
START_TEST(a_store_takes_over_all_or_is_not_opened)
{
	struct error err = ERROR_INIT;
	struct run *r = full_run();
	struct store *s;

	memory_runs_out(open_store, NULL);
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 0);
	ck_ok(store_etcd_open(&fake_etcd_place, election, dir, &s, &err), &err);
	ck_ok(store_commit_epoch(s, &err), &err);
	ck_ok(store_insert(s, r, "{\"a\":1}", &err), &err);
	ck_ok(store_set_drained(s, "n1", true, "a fan", &err), &err);
	ck_ok(store_commit_epoch(s, &err), &err);
	store_close(s);
	run_free(r);
	memory_runs_out(open_store, &err);
}
END_TEST

enum { RUNS = 51 };

static void make_batch(struct store_batch *b, struct run *r, int64_t first)
{
	*b = (struct store_batch){.epoch = first, .replaced = 4000, .highest = first + RUNS};
	fake_etcd_put("/dtrain/epochs/00000000000000004000", "");
	ck_assert_int_eq(store_batch_set_drained(b, "n1", true, "a fan"), 0);
	ck_assert_int_eq(store_batch_set_drained(b, "n2", false, NULL), 0);
	for (int i = 1; i <= RUNS; i++) {
		r->id = first + i;
		r->state = RUN_QUEUED;
		ck_assert_int_eq(store_batch_add_run(b, r, "{\"a\":1}"), 0);
	}
}

/* So many runs that it takes two transactions. What was new of a failed batch is taken back, whatever of it
 * was written. */
START_TEST(a_batch_is_there_whole_or_not)
{
	struct error err = ERROR_INIT;
	struct run *r = full_run();
	int written = 0;
	struct store *s;

	json_set_alloc_funcs(__wrap_malloc, free);
	ck_ok(store_etcd_open(&fake_etcd_place, election, dir, &s, &err), &err);
	memory_refused = true;
	/* Each run is written as the one before. */
	for (long n = 1; memory_refused; n += n < 120 ? 1 : 13) {
		_cleanup_free_ char *highest = str_printf("%ld", n * 100 + RUNS);
		struct store_batch batch;
		int code;

		make_batch(&batch, r, n * 100);
		memory_refused = false;
		memory_left = n;
		code = primary->apply(primary_self, &batch, &err);
		memory_left = 0;
		ck_assert(election_holds(election));
		ck_assert(code == 0 || (code == -ENOMEM && memory_refused));
		written += code == 0 ? RUNS : 0;
		ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), written);
		ck_assert_int_eq(fake_etcd_count("/dtrain/origins/"), written);
		ck_assert(code < 0 || str_eq(fake_etcd_value("/dtrain/highest"), highest));
		ck_assert(code < 0 || !fake_etcd_value("/dtrain/epochs/00000000000000004000"));
		store_batch_clear(&batch);
	}
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/n1"), "a fan");
	store_close(s);
	run_free(r);
}
END_TEST

static int check(void *context, struct error *err)
{
	return primary->check(primary_self, context, "{\"a\":1}", err);
}

START_TEST(a_run_is_checked_or_not)
{
	struct error err = ERROR_INIT;
	struct run *r = full_run();
	struct store *s;

	json_set_alloc_funcs(__wrap_malloc, free);
	ck_ok(store_etcd_open(&fake_etcd_place, election, dir, &s, &err), &err);
	memory_runs_out(check, r);
	store_close(s);
	run_free(r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("store_etcd memory");
	TCase *tc = tcase_create("memory");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_store_takes_over_all_or_is_not_opened);
	tcase_add_test(tc, a_batch_is_there_whole_or_not);
	tcase_add_test(tc, a_run_is_checked_or_not);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
