/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared store over a stand-in for etcd, in simulated time: what it writes there, when it repeats that or
 * takes it back, and what the next controller makes of it. tests/unit/test_etcd.c has a real etcd.
 */
#include <string.h>
#include <sys/resource.h>

#include "base/str.h"
#include "cluster/election.h"
#include "cluster/store_etcd.h"
#include "cluster_fixture.h"
#include "failing_memory.h"
#include "fake_etcd.h"

#define CONTROLLER "/dtrain/controller"

enum {
	LEASE = 6,
	VERSION_BITS = 20,
	OPERATIONS_MAX = 100,
	BYTES_MAX = 1000 * 1000,
	ORIGIN_MAX = 1200 * 1000
};

static char *dir;
static struct election *election;
static struct store *store;

static void setup(void)
{
	dir = unit_tmpdir();
	fake_etcd_begin();
}

static void elect(const char *name)
{
	int before = fake_etcd_pauses();
	struct error err = ERROR_INIT;

	ck_ok(election_open(&fake_etcd_place, name, LEASE, &election, &err), &err);
	fake_etcd_await_pause(before + 1);
	ck_assert(election_holds(election));
}

static int open_store(const char *name, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(dir, name);

	ck_ok(file_mkdirs(path, 0755, err), err);
	return store_etcd_open(&fake_etcd_place, election, path, &store, err);
}

/* A controller in a directory of its own. */
static void begin(const char *name)
{
	struct error err = ERROR_INIT;

	elect(name);
	ck_ok(open_store(name, &err), &err);
	ck_ok(store_commit_epoch(store, &err), &err);
}

static void end(void)
{
	store_close(store);
	election_close(election);
	store = NULL;
	election = NULL;
}

static void teardown(void)
{
	end();
	file_remove_tree(dir, NULL);
	free(dir);
}

static struct election_view peek(void)
{
	struct election_view view;

	election_peek(election, &view);
	return view;
}

static void take_error(void *context, int code, const struct error *err)
{
	*(struct error *)context = *err;
	((struct error *)context)->code = code;
}

static struct error commit(void)
{
	struct error result = ERROR_INIT;

	store_commit(store, take_error, &result);
	store_wait(store);
	return result;
}

static void commit_ok(void)
{
	struct error err = commit();

	ck_ok(err.code, &err);
}

/* In the next batch; owned by the caller. */
static struct run *insert(enum run_state state, const char *config)
{
	struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	r->state = state;
	ck_ok(store_insert(store, r, config, &err), &err);
	return r;
}

static void insert_many(int count, enum run_state state)
{
	for (int i = 0; i < count; i++)
		run_free(insert(state, "{}"));
}

static const char *key_of(const char *kind, int64_t id)
{
	static char key[64];

	snprintf(key, sizeof(key), "/dtrain/%s/%020lld", kind, (long long)id);
	return key;
}

static bool has_run(int64_t id)
{
	bool entry = fake_etcd_value(key_of("runs", id)) != NULL;

	ck_assert_int_eq(fake_etcd_value(key_of("origins", id)) != NULL, entry);
	return entry;
}

static int64_t writes_of(int64_t id)
{
	return fake_etcd_version(key_of("runs", id));
}

static void set_text(char **text, const char *value)
{
	ck_assert_int_eq(str_replace(text, value), 0);
}

START_TEST(the_keys_are_those_of_the_description)
{
	struct run *r;

	begin("n1");
	ck_assert_str_eq(fake_etcd_value("/dtrain/cluster"), store_cluster(store));
	ck_assert_uint_eq(strlen(store_cluster(store)), 32);
	ck_assert_uint_eq(strspn(store_cluster(store), "0123456789abcdef"), 32);
	ck_assert_str_eq(fake_etcd_value(key_of("epochs", store_epoch(store))), "");
	ck_assert_int_eq(fake_etcd_count("/dtrain/"), 3);
	r = insert(RUN_QUEUED, "{\"a\":1}");
	commit_ok();
	ck_assert_int_eq(r->id, 1);
	ck_assert_str_eq(fake_etcd_value("/dtrain/highest"), "1");
	ck_assert(has_run(1));
	ck_assert_int_eq(fake_etcd_count("/dtrain/"), 6);
	run_free(r);
}
END_TEST

/* All of it, and both what is set and what is not. */
START_TEST(the_next_controller_has_what_a_run_was)
{
	struct run *r, *other;
	_cleanup_(run_freep) struct run *again = NULL;
	_cleanup_free_ char *config = NULL;
	struct error err = ERROR_INIT;
	int64_t id = 0, version;

	begin("n1");
	r = fixture_run(2, 3);
	fixture_place(r);
	r->submitted = 11.5;
	r->started = 12.5;
	r->ended = 13.5;
	r->exit_status = 7;
	r->gid = 1001;
	r->failed = true;
	r->cancelled = _i == 1;
	r->requeue = _i == 2;
	set_text(&r->reason, "no space");
	set_text(&r->detail, "last line");
	set_text(&r->output, "/out");
	set_text(&r->key, "k1");
	ck_ok(store_insert(store, r, "{\"a\":1}", &err), &err);
	other = insert(RUN_QUEUED, "{}");
	commit_ok();
	end();

	begin("n2");
	version = election_revision(election) << VERSION_BITS;
	ck_ok(store_get(store, 1, &again, &err), &err);
	ck_assert_int_eq(again->version, version);
	ck_assert_int_eq(again->attempt, r->attempt);
	ck_assert_int_eq(again->uid, 1000);
	ck_assert_int_eq(again->gid, 1001);
	ck_assert_int_eq(again->state, RUN_STARTING);
	ck_assert_double_eq(again->submitted, 11.5);
	ck_assert_double_eq(again->started, 12.5);
	ck_assert_double_eq(again->ended, 13.5);
	ck_assert_int_eq(again->exit_status, 7);
	ck_assert_int_eq(again->failed, true);
	ck_assert_int_eq(again->cancelled, _i == 1);
	ck_assert_int_eq(again->requeue, _i == 2);
	ck_assert_str_eq(again->reason, "no space");
	ck_assert_str_eq(again->detail, "last line");
	ck_assert_int_eq(again->nodes, 2);
	ck_assert_int_eq(again->per_node, 3);
	ck_assert_uint_eq(again->rank_count, 6);
	ck_assert_str_eq(again->ranks[2].node, "n1");
	ck_assert_str_eq(again->ranks[3].node, "n2");
	ck_assert_str_eq(again->name, "test");
	ck_assert_str_eq(again->user, "alice");
	ck_assert_str_eq(again->task, "command");
	ck_assert_str_eq(again->directory, "/tmp");
	ck_assert_str_eq(again->output, "/out");
	ck_ok(store_config(store, 1, &config, &err), &err);
	ck_assert_str_eq(config, "{\"a\":1}");
	ck_ok(store_find_key(store, 1000, "k1", &id, &err), &err);
	ck_assert_int_eq(id, 1);
	run_free(again);
	again = NULL;
	ck_ok(store_get(store, 2, &again, &err), &err);
	ck_assert_int_eq(again->state, RUN_QUEUED);
	ck_assert_int_eq(again->exit_status, -1);
	ck_assert(!again->failed && !again->cancelled && !again->requeue);
	ck_assert_ptr_null(again->reason);
	ck_assert_ptr_null(again->output);
	run_free(r);
	run_free(other);
}
END_TEST

/* What is the same as before is not written, such as a run of which only the progress differs. */
START_TEST(runs_are_written_when_they_change)
{
	struct run *runs[5];

	begin("n1");
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		runs[i] = insert(RUN_QUEUED, "{}");
	commit_ok();
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		runs[i]->progress = json_pack("{s:i}", "step", (int)i);
		store_update(store, runs[i]);
	}
	commit_ok();
	for (int64_t id = 1; id <= 5; id++)
		ck_assert_int_eq(writes_of(id), 1);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i += 2) {
		set_text(&runs[i]->reason, "waits");
		store_update(store, runs[i]);
	}
	commit_ok();
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		store_update(store, runs[i]);
	commit_ok();
	for (int64_t id = 1; id <= 5; id++)
		ck_assert_int_eq(writes_of(id), id % 2 ? 2 : 1);
	/* The middle one ends: the others are known as before. */
	runs[2]->state = RUN_SUCCEEDED;
	store_update(store, runs[2]);
	commit_ok();
	ck_assert_int_eq(writes_of(3), 3);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		if (i != 2)
			store_update(store, runs[i]);
	commit_ok();
	for (int64_t id = 1; id <= 5; id++)
		ck_assert_int_eq(writes_of(id), id == 3 ? 3 : id % 2 ? 2 : 1);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		run_free(runs[i]);
}
END_TEST

/* The newest 500 that have ended are kept, and all that have not, also by the next controller. */
START_TEST(the_oldest_runs_that_have_ended_are_removed)
{
	begin("n1");
	insert_many(2, RUN_QUEUED);
	insert_many(500, RUN_FAILED);
	commit_ok();
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 502);
	insert_many(1, RUN_FAILED);
	commit_ok();
	ck_assert(!has_run(3));
	ck_assert(has_run(4));
	ck_assert(has_run(1) && has_run(2));
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 502);
	insert_many(1, RUN_CANCELLED);
	commit_ok();
	ck_assert(!has_run(4));
	ck_assert(has_run(5));
	end();

	begin("n2");
	insert_many(1, RUN_SUCCEEDED);
	commit_ok();
	ck_assert(!has_run(5));
	ck_assert(has_run(6) && has_run(505));
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 502);
}
END_TEST

START_TEST(drains_and_their_reasons_are_kept)
{
	_cleanup_free_ char *reason = NULL;
	struct error err = ERROR_INIT;

	begin("n1");
	ck_ok(store_set_drained(store, "n1", true, "a fan", &err), &err);
	ck_ok(store_set_drained(store, "n2", true, NULL, &err), &err);
	ck_ok(store_set_drained(store, "n3", true, "a disk", &err), &err);
	commit_ok();
	ck_ok(store_set_drained(store, "n3", false, NULL, &err), &err);
	commit_ok();
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/n1"), "a fan");
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/n2"), "");
	ck_assert_ptr_null(fake_etcd_value("/dtrain/drains/n3"));
	end();
	begin("n2");
	ck_assert(store_drained(store, "n1", &reason));
	ck_assert_str_eq(reason, "a fan");
	free(reason);
	ck_assert(store_drained(store, "n2", &reason));
	ck_assert_ptr_null(reason);
	ck_assert(!store_drained(store, "n3", &reason));
}
END_TEST

static void ck_drained(const char *node, const char *reason)
{
	_cleanup_free_ char *found = NULL;

	ck_assert_int_eq(store_drained(store, node, &found), reason != NULL);
	ck_assert_pstr_eq(found, reason);
}

/* The hosts file may have spelt it in another way when it was drained: by another controller, or by this one,
 * with which it was read again since. */
START_TEST(a_drained_node_is_found_under_any_spelling)
{
	struct error err = ERROR_INIT;

	fake_etcd_put("/dtrain/drains/n1", "a fan");
	fake_etcd_put("/dtrain/drains/n2", "a disk");
	fake_etcd_put("/dtrain/drains/N2", "a cable");
	fake_etcd_put("/dtrain/drains/n22", "");
	begin("n1");
	ck_drained("N1", "a fan");
	ck_drained("n1", "a fan");
	/* Its key is from now on as the hosts file has it. */
	ck_ok(store_set_drained(store, "N1", true, "a lamp", &err), &err);
	commit_ok();
	ck_drained("n1", "a lamp");
	ck_assert_ptr_null(fake_etcd_value("/dtrain/drains/n1"));
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/N1"), "a lamp");
	ck_ok(store_set_drained(store, "n1", false, NULL, &err), &err);
	ck_ok(store_set_drained(store, "N2", false, NULL, &err), &err);
	commit_ok();
	ck_drained("n1", NULL);
	ck_drained("n2", NULL);
	ck_assert_int_eq(fake_etcd_count("/dtrain/drains/"), 1);
	end();
	begin("n2");
	ck_drained("n1", NULL);
	ck_drained("n2", NULL);
	ck_assert(store_drained(store, "N22", &(char *){NULL}));
}
END_TEST

/* A change that is refused is made up for by the next one, the other spellings included. */
START_TEST(a_spelling_is_removed_with_the_next_batch)
{
	static const struct fake_failure refused = {.path = FAKE_TXN, .count = 1, .code = -EREMOTEIO};
	struct error err = ERROR_INIT;

	fake_etcd_put("/dtrain/drains/n1", "a fan");
	begin("n1");
	ck_ok(store_set_drained(store, "N1", true, "a lamp", &err), &err);
	fake_etcd_fail(&refused);
	err = commit();
	ck_assert_int_eq(err.code, -EREMOTEIO);
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/n1"), "a fan");
	commit_ok();
	ck_assert_ptr_null(fake_etcd_value("/dtrain/drains/n1"));
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/N1"), "a lamp");
}
END_TEST

START_TEST(an_epoch_may_replace_the_one_before)
{
	int64_t first, second, third;

	begin("n1");
	first = store_epoch(store);
	ck_assert_int_eq(first, election_revision(election));
	store_begin_epoch(store, 0, false);
	commit_ok();
	second = store_epoch(store);
	store_begin_epoch(store, 0, true);
	commit_ok();
	third = store_epoch(store);
	ck_assert_int_gt(third, second);
	ck_assert_ptr_nonnull(fake_etcd_value(key_of("epochs", first)));
	ck_assert_ptr_null(fake_etcd_value(key_of("epochs", second)));
	ck_assert_ptr_nonnull(fake_etcd_value(key_of("epochs", third)));
	end();
	begin("n2");
	ck_assert(store_has_epoch(store, first));
	ck_assert(!store_has_epoch(store, second));
	ck_assert(store_has_epoch(store, third));
	ck_assert_int_gt(store_epoch(store), third);
}
END_TEST

/* An epoch that is higher than the revision of etcd, and than those after it in the list. */
START_TEST(the_next_epoch_is_above_all)
{
	elect("n1");
	fake_etcd_put(key_of("epochs", 900), "");
	fake_etcd_put(key_of("epochs", 1000), "");
	end();
	begin("n2");
	ck_assert_int_eq(store_epoch(store), 1001);
	ck_assert(store_has_epoch(store, 900));
}
END_TEST

START_TEST(a_batch_is_cut_where_etcd_would_refuse_it)
{
	enum { LARGE = 300 * 1000 };
	_cleanup_free_ char *large = calloc(1, ORIGIN_MAX + 1);
	struct run *r;

	memset(large, 'x', LARGE);
	begin("n1");
	insert_many(150, RUN_QUEUED);
	commit_ok();
	ck_assert_int_eq(fake_etcd_operations_max(), OPERATIONS_MAX);
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 150);
	fake_etcd_calls(FAKE_TXN);
	for (int i = 0; i < 4; i++)
		run_free(insert(RUN_QUEUED, large));
	commit_ok();
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 2);
	ck_assert_uint_le(fake_etcd_bytes_max(), BYTES_MAX);
	ck_assert_uint_gt(fake_etcd_bytes_max(), 3 * LARGE);
	/* One that is longer has a transaction of its own. */
	memset(large, 'x', BYTES_MAX + 1);
	run_free(insert(RUN_QUEUED, large));
	commit_ok();
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 3);
	ck_assert_uint_gt(fake_etcd_bytes_max(), BYTES_MAX);
	/* A key stands once in a transaction. */
	r = insert(RUN_QUEUED, "{}");
	r->state = RUN_STARTING;
	store_update(store, r);
	r->state = RUN_FAILED;
	store_update(store, r);
	commit_ok();
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 3);
	ck_assert_int_eq(writes_of(r->id), 3);
	ck_assert_ptr_nonnull(strstr(fake_etcd_value(key_of("runs", r->id)), "failed"));
	/* Nothing is sent where nothing has changed. */
	commit_ok();
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 0);
	run_free(r);
}
END_TEST

/* The most bytes that are taken, by halves. */
START_TEST(a_configuration_may_be_as_long_as_etcd_takes)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	_cleanup_free_ char *text = malloc(ORIGIN_MAX + 1);
	size_t most = 0, refused = ORIGIN_MAX;
	struct error err = ERROR_INIT;

	begin("n1");
	memset(text, 'x', ORIGIN_MAX);
	while (refused - most > 1) {
		size_t middle = (most + refused) / 2;

		text[middle] = '\0';
		if (store_check(store, r, text, &err) == 0)
			most = middle;
		else
			refused = middle;
		text[middle] = 'x';
	}
	text[most] = '\0';
	ck_ok(store_insert(store, r, text, &err), &err);
	commit_ok();
	ck_assert_uint_eq(strlen(fake_etcd_value(key_of("origins", 1))), ORIGIN_MAX);
	text[most] = 'x';
	text[most + 1] = '\0';
	ck_assert_int_eq(store_check(store, r, text, &err), -E2BIG);
	run_free(insert(RUN_QUEUED, text));
	ck_assert_int_eq(commit().code, -E2BIG);
	ck_assert(!has_run(2));
	ck_assert(election_holds(election));
}
END_TEST

/* Until etcd answers: to repeat what was done already changes nothing. */
START_TEST(a_transaction_without_an_answer_is_repeated)
{
	double began;

	begin("n1");
	fake_etcd_fail(
	    &(struct fake_failure){.path = FAKE_TXN, .count = 3, .code = -EHOSTUNREACH, .applied = _i == 1});
	fake_etcd_calls(FAKE_TXN);
	began = fake_etcd_time();
	insert_many(1, RUN_QUEUED);
	commit_ok();
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 4);
	ck_assert_double_eq_tol(fake_etcd_time() - began, 0.6, 1e-3);
	ck_assert(has_run(1));
	ck_assert_int_eq(writes_of(1), _i == 1 ? 4 : 1);
	ck_assert(election_holds(election));
}
END_TEST

static void ck_lost(struct error err, const char *why)
{
	ck_assert_int_eq(err.code, -ESTALE);
	ck_assert_str_eq(err.message, "this node is not the controller any more");
	ck_assert_int_eq(peek().state, ELECTION_LOST);
	ck_assert_msg(strstr(peek().error.message, why), "\"%s\" lacks \"%s\"", peek().error.message, why);
}

START_TEST(a_transaction_is_repeated_no_longer_than_the_lease)
{
	begin("n1");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .count = 99, .code = -EHOSTUNREACH});
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_KEEPALIVE, .count = 99, .code = -EHOSTUNREACH});
	insert_many(1, RUN_QUEUED);
	ck_lost(commit(), "cannot reach etcd");
	fake_etcd_calls(FAKE_TXN);
	insert_many(1, RUN_QUEUED);
	ck_assert_int_eq(commit().code, -ESTALE);
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 0);
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 0);
}
END_TEST

/* The key of the election is gone, or another's. */
START_TEST(who_has_lost_the_key_writes_nothing)
{
	begin("n1");
	fake_etcd_remove(CONTROLLER);
	if (_i == 1)
		fake_etcd_put(CONTROLLER, "n2");
	insert_many(150, RUN_QUEUED);
	fake_etcd_calls(FAKE_TXN);
	ck_lost(commit(), "another node has taken its place");
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 1);
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 0);
	ck_assert_int_eq(fake_etcd_count("/dtrain/origins/"), 0);
}
END_TEST

/* A run that is stored, with a change that is not yet. */
static struct run *insert_and_change(void)
{
	struct run *run = insert(RUN_QUEUED, "{}");

	commit_ok();
	run->state = RUN_STARTING;
	store_update(store, run);
	return run;
}

/* Its second transaction: the new runs of the first one are removed. The changes of older runs stay, and are
 * written once more with the next change, whatever that is. */
START_TEST(a_batch_that_is_refused_in_its_middle_is_taken_back)
{
	struct run *old;

	begin("n1");
	old = insert_and_change();
	insert_many(60, RUN_QUEUED);
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .skip = 1, .count = 1, .code = -EREMOTEIO});
	/* What takes it back is repeated, too. */
	fake_etcd_fail(
	    &(struct fake_failure){.path = FAKE_TXN, .count = _i, .code = -EHOSTUNREACH, .skip = 1});
	ck_assert_int_eq(commit().code, -EREMOTEIO);
	ck_assert(election_holds(election));
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 1);
	ck_assert_int_eq(fake_etcd_count("/dtrain/origins/"), 1);
	ck_assert_int_eq(writes_of(1), 2);
	store_update(store, old);
	commit_ok();
	ck_assert_int_eq(writes_of(1), 3);
	/* Numbers are not given again. */
	insert_many(1, RUN_QUEUED);
	commit_ok();
	ck_assert(has_run(62));
	run_free(old);
}
END_TEST

START_TEST(a_batch_that_cannot_be_taken_back_ends_the_controller)
{
	begin("n1");
	insert_many(60, RUN_QUEUED);
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .skip = 1, .count = 1, .code = -EREMOTEIO});
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .skip = _i, .count = 1, .code = -EREMOTEIO});
	ck_assert_int_eq(commit().code, -EREMOTEIO);
	ck_assert_int_eq(peek().state, ELECTION_LOST);
	ck_assert_str_eq(peek().error.message, "cannot reach etcd");
	/* The next one does not have what could not be taken back. */
	ck_assert_int_gt(fake_etcd_count("/dtrain/"), 3);
}
END_TEST

/* Of a refused batch without new runs there is nothing to take back; it is written with the next change. */
START_TEST(a_refused_change_is_written_with_the_next_one)
{
	struct run *old;

	begin("n1");
	old = insert_and_change();
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .count = 1, .code = -EREMOTEIO});
	fake_etcd_calls(FAKE_TXN);
	ck_assert_int_eq(commit().code, -EREMOTEIO);
	ck_assert_int_eq(fake_etcd_calls(FAKE_TXN), 1);
	ck_assert(election_holds(election));
	ck_assert_int_eq(writes_of(1), 1);
	store_update(store, old);
	commit_ok();
	ck_assert_int_eq(writes_of(1), 2);
	run_free(old);
}
END_TEST

/* What etcd has and this machine cannot write. */
START_TEST(a_full_disk_ends_the_controller)
{
	struct rlimit limit = {100, RLIM_INFINITY};
	struct error err;

	begin("n1");
	insert_many(1, RUN_QUEUED);
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	err = commit();
	ck_assert_int_lt(err.code, 0);
	ck_assert_int_ne(err.code, -ESTALE);
	ck_assert_int_eq(peek().state, ELECTION_LOST);
	ck_assert_str_eq(peek().error.message, err.message);
	ck_assert(has_run(1));
}
END_TEST

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
	const char *id;
	bool right;
} clusters[] = {{"a", true},  {"09af", true}, {HEX64, true},   {HEX64 "0", false}, {"", false},
                {"A", false}, {"0g", false},  {"../x", false}, {"g0", false}};

START_TEST(the_id_of_the_cluster_is_the_name_of_the_history)
{
	_cleanup_free_ char *path = str_printf("%s/n1/history-%s.db", dir, clusters[_i].id);
	struct error err = ERROR_INIT;

	fake_etcd_put("/dtrain/cluster", clusters[_i].id);
	elect("n1");
	if (!clusters[_i].right) {
		ck_fails(open_store("n1", &err), &err, "/dtrain/cluster is not the id of a cluster");
		ck_assert_int_eq(err.code, -EINVAL);
		return;
	}
	ck_ok(open_store("n1", &err), &err);
	ck_assert_str_eq(store_cluster(store), clusters[_i].id);
	ck_assert(file_exists(path));
	ck_assert_str_eq(fake_etcd_value("/dtrain/cluster"), clusters[_i].id);
}
END_TEST

/* In the order of the calls: cluster, runs, pieces, origins, highest, drains, epochs. */
START_TEST(what_cannot_be_read_is_an_error)
{
	struct error err = ERROR_INIT;

	elect("n1");
	fake_etcd_fail(
	    &(struct fake_failure){.path = FAKE_RANGE, .skip = _i, .count = 1, .code = -EHOSTUNREACH});
	ck_fails(open_store("n1", &err), &err, "cannot reach etcd");
	/* And so is what is not an answer. */
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_RANGE, .skip = _i, .count = 1, .answer = "[]"});
	err = (struct error)ERROR_INIT;
	ck_fails(open_store("n1", &err), &err, "of an unknown form");
	err = (struct error)ERROR_INIT;
	ck_ok(open_store("n1", &err), &err);
	ck_assert_int_eq(err.code, 0);
}
END_TEST

START_TEST(a_cluster_that_cannot_be_named_is_an_error)
{
	struct error err = ERROR_INIT;

	elect("n1");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_TXN, .count = 1, .code = -EREMOTEIO});
	ck_fails(open_store("n1", &err), &err, "cannot reach etcd");
	ck_assert_ptr_null(fake_etcd_value("/dtrain/cluster"));
}
END_TEST

static void put_drains(int count)
{
	for (int i = 0; i < count; i++) {
		_cleanup_free_ char *key = str_printf("/dtrain/drains/n%03d", i);

		fake_etcd_put(key, "why");
	}
}

/* In pages of 100 keys; where etcd refuses an answer of that size, in smaller ones. */
static const struct {
	int keys, refused;
	int calls; /* 6 others, too */
} pages[] = {{0, 0, 1}, {99, 0, 1}, {100, 0, 1}, {101, 0, 2}, {250, 0, 3}, {25, 1, 4}, {20, 1, 3}, {5, 2, 7}};

START_TEST(all_pages_are_read)
{
	_cleanup_free_ char *reason = NULL;
	struct error err = ERROR_INIT;

	fake_etcd_put("/dtrain/drains", "not below it");
	fake_etcd_put("/dtrain/drains0", "behind it");
	put_drains(pages[_i].keys);
	elect("n1");
	fake_etcd_calls(FAKE_RANGE);
	fake_etcd_fail(&(struct fake_failure){
	    .path = FAKE_RANGE, .skip = 5, .count = pages[_i].refused, .code = -EREMOTEIO});
	ck_ok(open_store("n1", &err), &err);
	ck_assert_int_eq(fake_etcd_calls(FAKE_RANGE), 6 + pages[_i].calls);
	for (int i = 0; i < pages[_i].keys + 1; i++) {
		_cleanup_free_ char *node = str_printf("n%03d", i);

		free(reason);
		ck_assert_int_eq(store_drained(store, node, &reason), i < pages[_i].keys);
	}
	ck_assert(!store_drained(store, "", &reason));
}
END_TEST

START_TEST(a_refused_answer_of_one_key_is_an_error)
{
	struct error err = ERROR_INIT;

	put_drains(5);
	elect("n1");
	fake_etcd_fail(&(struct fake_failure){.path = FAKE_RANGE, .skip = 5, .count = 3, .code = -EREMOTEIO});
	ck_assert_int_eq(open_store("n1", &err), -EREMOTEIO);
}
END_TEST

/* One run, as a later controller may have written it. */
#define ENTRY(ID)                                                                                            \
	"{\"version\":1,\"id\":" ID ",\"attempt\":0,\"uid\":1000,\"gid\":1000,\"state\":\"queued\","         \
	"\"nodes\":1,\"per_node\":1}"
#define ORIGIN "{\"version\":1,\"name\":\"x\",\"user\":\"alice\",\"task\":\"command\",\"config\":\"{}\"}"

static int count_run(void *context, struct run *r, struct error *err)
{
	*(int64_t *)context = *(int64_t *)context * 10 + r->id;
	run_free(r);
	return 0;
}

/* It does not keep the controller from the others. */
START_TEST(what_cannot_be_understood_is_left_out)
{
	struct error err = ERROR_INIT;
	int64_t ids = 0;

	fake_etcd_put(key_of("origins", 1), ORIGIN);
	fake_etcd_put(key_of("runs", 2), ENTRY("2"));
	fake_etcd_put(key_of("origins", 2), ORIGIN);
	fake_etcd_put(key_of("runs", 3), ENTRY("3"));
	fake_etcd_put(key_of("runs", 4), "{}");
	fake_etcd_put(key_of("origins", 4), ORIGIN);
	fake_etcd_put(key_of("runs", 5), ENTRY("5"));
	fake_etcd_put(key_of("origins", 5), "{}");
	fake_etcd_put(key_of("runs", 6), ENTRY("6"));
	fake_etcd_put(key_of("origins", 6), "[");
	fake_etcd_put(key_of("runs", 7), "{");
	fake_etcd_put(key_of("origins", 7), ORIGIN);
	fake_etcd_put("/dtrain/origins/00000000000000000008x", ORIGIN);
	fake_etcd_put(key_of("runs", 8), ENTRY("8"));
	fake_etcd_put(key_of("origins", 8), ORIGIN);
	fake_etcd_put(key_of("origins", 9), ORIGIN);
	fake_etcd_put("/dtrain/epochs/x", "");
	fake_etcd_put(key_of("epochs", 0), "");
	fake_etcd_put(key_of("epochs", 500), "");
	fake_etcd_put(key_of("epochs", 501), "");
	begin("n1");
	ck_ok(store_list(store, &(struct run_query){.states = run_state_set("all"), .limit = 100}, count_run,
	                 &ids, &err),
	      &err);
	ck_assert_int_eq(ids, 82);
	ck_assert_int_eq(store_highest(store), 8);
	ck_assert_int_eq(store_epoch(store), 502);
	ck_assert(store_has_epoch(store, 500));
	ck_assert(!store_has_epoch(store, 0));
}
END_TEST

static const struct {
	const char *value; /* of the key; NULL: there is none */
	const char *run;   /* there is one with this number */
	int64_t own;       /* the last number in the history of this machine */
	int64_t highest;   /* -1: refused */
} numbers[] = {
    {NULL, NULL, 0, 0},  {"7", NULL, 0, 7}, {NULL, "3", 0, 3},  {"7", "3", 0, 7},
    {"2", "3", 0, 3},    {"7", NULL, 9, 9}, {"9", NULL, 7, 9},  {"x", NULL, 0, -1},
    {"-1", NULL, 0, -1}, {"0", NULL, 0, 0}, {"7 ", "3", 0, -1}, {"", NULL, 0, -1},
};

START_TEST(no_number_is_given_again)
{
	struct error err = ERROR_INIT;

	if (numbers[_i].own) {
		begin("n1");
		store_lift(store, numbers[_i].own);
		commit_ok();
		end();
		fake_etcd_remove("/dtrain/highest");
	}
	if (numbers[_i].value)
		fake_etcd_put("/dtrain/highest", numbers[_i].value);
	if (numbers[_i].run) {
		fake_etcd_put(key_of("runs", atoi(numbers[_i].run)), ENTRY("3"));
		fake_etcd_put(key_of("origins", atoi(numbers[_i].run)), ORIGIN);
	}
	elect("n1");
	if (numbers[_i].highest < 0) {
		ck_fails(open_store("n1", &err), &err, "/dtrain/highest is not a number");
		ck_assert_int_eq(err.code, -EINVAL);
		return;
	}
	ck_ok(open_store("n1", &err), &err);
	ck_assert_int_eq(store_highest(store), numbers[_i].highest);
	run_free(insert(RUN_QUEUED, "{}"));
	ck_assert_int_eq(store_newest_highest(store), numbers[_i].highest + 1);
}
END_TEST

/* Before anything is asked of etcd; the stand-in needs memory, too. */
START_TEST(without_memory_nothing_is_opened)
{
	struct election *none = NULL;
	struct error err = ERROR_INIT;

	for (long n = 1; n <= 3; n++) {
		memory_left = n;
		ck_assert_int_eq(election_open(&fake_etcd_place, "n1", LEASE, &none, &err), -ENOMEM);
		memory_left = 0;
		ck_assert_ptr_null(none);
	}
	elect("n1");
	for (long n = 1; n <= 2; n++) {
		memory_left = n;
		ck_assert_int_eq(store_etcd_open(&fake_etcd_place, election, dir, &store, &err), -ENOMEM);
		memory_left = 0;
		ck_assert_ptr_null(store);
	}
}
END_TEST

/* Runs of many ranks. */

/* All of them have ended, on nodes of 8 slots; each has all that a rank can have. */
static void give_ranks(struct run *r, size_t count)
{
	message_free_list(&run_rank_message, r->ranks, r->rank_count);
	r->ranks = calloc(count, sizeof(*r->ranks));
	r->rank_count = count;
	for (size_t i = 0; i < count; i++)
		r->ranks[i] = (struct run_rank){.rank = (int64_t)i,
		                                .node = str_printf("gpu-node%05zu", i / 8),
		                                .slot = (int64_t)i % 8,
		                                .state = RANK_EXITED,
		                                .pid = 1000000 + (int64_t)i,
		                                .exit_status = r->attempt,
		                                .signal = strdup("SIGKILL"),
		                                .ended = 1764300000.123456 + (double)i,
		                                .stopped = true};
}

/* What the store of this machine has. */
static void check_ranks(int64_t id, size_t count, int64_t attempt)
{
	_cleanup_(run_freep) struct run *back = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_get(store, id, &back, &err), &err);
	ck_assert_int_eq(back->attempt, attempt);
	ck_assert_uint_eq(back->rank_count, count);
	for (size_t i = 0; i < count; i++) {
		_cleanup_free_ char *node = str_printf("gpu-node%05zu", i / 8);

		ck_assert_int_eq(back->ranks[i].rank, (int64_t)i);
		ck_assert_str_eq(back->ranks[i].node, node);
		ck_assert_int_eq(back->ranks[i].exit_status, attempt);
		ck_assert_double_eq(back->ranks[i].ended, 1764300000.123456 + (double)i);
	}
}

static int pieces_of(int64_t id)
{
	_cleanup_free_ char *prefix = str_printf("%s/", key_of("pieces", id));

	return fake_etcd_count(prefix);
}

/* The next attempt, with so many ranks. */
static void change(struct run *r, enum run_state state, size_t ranks)
{
	r->attempt++;
	r->state = state;
	give_ranks(r, ranks);
	store_update(store, r);
}

static const size_t sizes[] = {1, 4000, 10240, 65536};

START_TEST(a_run_may_have_many_ranks)
{
	struct run *r;

	begin("n1");
	r = insert(RUN_QUEUED, "{}");
	commit_ok();
	change(r, RUN_FAILED, sizes[_i]);
	insert_many(1, RUN_QUEUED);
	commit_ok();
	check_ranks(1, sizes[_i], 1);
	ck_assert(has_run(1) && has_run(2));
	ck_assert_int_eq(pieces_of(1) > 0, sizes[_i] > 4000);
	end();
	begin("n2");
	check_ranks(1, sizes[_i], 1);
	check_ranks(2, 0, 0);
	run_free(r);
}
END_TEST

/* There are no others, whatever the run was before. */
START_TEST(the_pieces_of_a_run_are_those_of_its_entry)
{
	struct run *r;
	int pieces;

	begin("n1");
	r = insert(RUN_QUEUED, "{}");
	change(r, RUN_RUNNING, 10240);
	commit_ok();
	pieces = pieces_of(1);
	ck_assert_int_gt(pieces, 0);
	change(r, RUN_RUNNING, 10240);
	commit_ok();
	ck_assert_int_eq(pieces_of(1), pieces);
	/* Twice in a batch, and smaller in between. */
	change(r, RUN_QUEUED, 1);
	change(r, RUN_RUNNING, 20480);
	commit_ok();
	ck_assert_int_gt(pieces_of(1), pieces);
	check_ranks(1, 20480, 4);
	end();
	begin("n2");
	check_ranks(1, 20480, 4);
	change(r, RUN_QUEUED, 1);
	commit_ok();
	ck_assert_int_eq(pieces_of(1), 0);
	/* One that has ended takes its pieces along. */
	change(r, RUN_FAILED, 10240);
	commit_ok();
	ck_assert_int_eq(pieces_of(1), pieces);
	insert_many(500, RUN_FAILED);
	commit_ok();
	ck_assert(!has_run(1));
	ck_assert_int_eq(fake_etcd_count("/dtrain/pieces/"), 0);
	run_free(r);
}
END_TEST

static void take_the_key(void)
{
	fake_etcd_remove(CONTROLLER);
}

/* The controller loses its place in front of one transaction after the other: the next one finds what the run
 * was, or what it became, and removes what was written for nothing. */
START_TEST(a_run_is_never_a_mixture)
{
	int found[] = {0, 0};
	bool lost = true;

	for (int i = 0; lost; i++) {
		struct error err = ERROR_INIT;
		struct run *r;
		bool written;
		int pieces;

		begin("n1");
		r = insert(RUN_QUEUED, "{}");
		change(r, RUN_RUNNING, 10240);
		commit_ok();
		pieces = pieces_of(r->id);
		change(r, RUN_RUNNING, 10240);
		fake_etcd_fail(
		    &(struct fake_failure){.path = FAKE_TXN, .skip = i, .count = 1, .before = take_the_key});
		lost = commit().code < 0;
		written = writes_of(r->id) == 3;
		if (!lost)
			ck_assert_int_eq(store_commit_epoch(store, &err), -ESTALE);
		end();
		begin("n2");
		check_ranks(r->id, 10240, written ? 2 : 1);
		ck_assert_int_eq(pieces_of(r->id), pieces);
		found[written]++;
		end();
		run_free(r);
	}
	ck_assert_int_ge(found[0], 2);
	ck_assert_int_ge(found[1], 2);
	begin("n1");
}
END_TEST

static const struct {
	const char *run, *pieces[3]; /* of run 2: its value, and the names of the pieces that are there */
	int kept;
} damages[] = {
    {"{\"version\":1,\"series\":7,\"pieces\":2,\"bytes\":102}", {"00000000000000000007/000000"}, 1},
    {"{\"version\":1,\"series\":7,\"pieces\":1,\"bytes\":102}", {"00000000000000000008/000000"}, 0},
    {"{\"version\":1,\"series\":7,\"pieces\":2,\"bytes\":102}",
     {"00000000000000000007/000000", "00000000000000000007/000002"},
     2},
    {"{\"version\":1,\"series\":7,\"pieces\":1,\"bytes\":9}", {"00000000000000000007/000000"}, 1},
    /* Which ones it names is not known: */
    {"{\"version\":1,\"series\":7,\"pieces\":0,\"bytes\":9}", {NULL}, 0},
    {"{\"version\":1,\"pieces\":1}", {"00000000000000000007/000000"}, 1},
    {"{\"version\":1,\"series\":7,\"pieces\":1",
     {"00000000000000000007/000000", "00000000000000000008/000000"},
     2},
    {"{\"version\":2,\"parts\":1}", {"00000000000000000007/000000"}, 1},
};

/* It is left out, and the others are served. Pieces that it names or may name are left, all others are
 * removed. */
START_TEST(a_run_without_all_of_its_pieces_is_left_out)
{
	struct error err = ERROR_INIT;
	int64_t ids = 0;

	fake_etcd_put(key_of("runs", 1), ENTRY("1"));
	fake_etcd_put(key_of("origins", 1), ORIGIN);
	fake_etcd_put(key_of("runs", 2), damages[_i].run);
	fake_etcd_put(key_of("origins", 2), ORIGIN);
	fake_etcd_put(key_of("runs", 3), ENTRY("3"));
	fake_etcd_put(key_of("origins", 3), ORIGIN);
	for (size_t i = 0; i < 3 && damages[_i].pieces[i]; i++) {
		_cleanup_free_ char *key = str_printf("%s/%s", key_of("pieces", 2), damages[_i].pieces[i]);

		fake_etcd_put(key, ENTRY("2"));
	}
	fake_etcd_put("/dtrain/pieces/00000000000000000001/00000000000000000007/000000", ENTRY("1"));
	fake_etcd_put("/dtrain/pieces/00000000000000000003/00000000000000000007/000000", ENTRY("3"));
	fake_etcd_put("/dtrain/pieces/00000000000000000009/00000000000000000007/000000", ENTRY("9"));
	begin("n1");
	ck_ok(store_list(store, &(struct run_query){.states = run_state_set("all"), .limit = 100}, count_run,
	                 &ids, &err),
	      &err);
	ck_assert_int_eq(ids, 31);
	ck_assert_int_eq(fake_etcd_count("/dtrain/pieces/"), damages[_i].kept);
	ck_assert_int_eq(pieces_of(2), damages[_i].kept);
	ck_assert_ptr_nonnull(fake_etcd_value(key_of("runs", 2)));
}
END_TEST

START_TEST(pieces_are_joined)
{
	static const char entry[] = ENTRY("2");
	_cleanup_free_ char *named =
	    str_printf("{\"version\":1,\"series\":7,\"pieces\":2,\"bytes\":%zu}", strlen(entry));
	_cleanup_free_ char *first = strndup(entry, 11);
	struct error err = ERROR_INIT;
	int64_t ids = 0;

	fake_etcd_put(key_of("runs", 2), named);
	fake_etcd_put(key_of("origins", 2), ORIGIN);
	fake_etcd_put("/dtrain/pieces/00000000000000000002/00000000000000000007/000000", first);
	fake_etcd_put("/dtrain/pieces/00000000000000000002/00000000000000000007/000001", entry + 11);
	begin("n1");
	ck_ok(store_list(store, &(struct run_query){.states = run_state_set("all"), .limit = 100}, count_run,
	                 &ids, &err),
	      &err);
	ck_assert_int_eq(ids, 2);
	ck_assert_int_eq(pieces_of(2), 2);
}
END_TEST

/* Of long ones fewer are kept, and always the newest. */
START_TEST(runs_that_have_ended_take_so_many_bytes_at_most)
{
	enum { DETAIL = 10000 * 1000, KEPT = 6, LARGE = 70 };
	_cleanup_free_ char *detail = calloc(1, (size_t)LARGE << 20);

	memset(detail, 'x', DETAIL);
	begin("n1");
	insert_many(3, RUN_QUEUED);
	for (int i = 0; i < KEPT + 2; i++) {
		struct run *r = fixture_run(1, 1);
		struct error err = ERROR_INIT;

		r->state = RUN_FAILED;
		set_text(&r->detail, detail);
		ck_ok(store_insert(store, r, "{}", &err), &err);
		commit_ok();
		run_free(r);
	}
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 3 + KEPT);
	ck_assert(!has_run(5));
	ck_assert(has_run(6));
	ck_assert_int_eq(pieces_of(5), 0);
	end();
	/* The next controller counts them, too. */
	begin("n2");
	insert_many(1, RUN_FAILED);
	commit_ok();
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 4 + KEPT);
	memset(detail, 'x', ((size_t)LARGE << 20) - 1);
	for (int i = 0; i < 2; i++) {
		struct run *r = insert(RUN_QUEUED, "{}");

		r->state = RUN_FAILED;
		set_text(&r->detail, detail);
		store_update(store, r);
		commit_ok();
		run_free(r);
	}
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 3 + 1);
	ck_assert(has_run(14));
}
END_TEST

/* Runs whose record is larger than etcd accepts. */

struct refusals {
	struct error result;
	bool refused[8]; /* by id */
};

static void note_refusals(void *context, int code, const struct error *err)
{
	struct refusals *got = context;

	got->result = *err;
	got->result.code = code;
	for (int64_t id = 1; id < (int64_t)ARRAY_SIZE(got->refused); id++) {
		const char *why = store_refusal(store, id);

		got->refused[id] = why != NULL;
		ck_assert(!why || strstr(why, "request is too large"));
	}
}

static struct refusals commit_some(void)
{
	struct refusals got = {.result = ERROR_INIT};

	store_commit(store, note_refusals, &got);
	store_wait(store);
	ck_ok(got.result.code, &got.result);
	ck_assert_ptr_null(store_refusal(store, 2));
	return got;
}

/* It is not there, or as it was before; the others are there. It is there as soon as etcd takes it. */
START_TEST(a_run_that_etcd_refuses_stops_no_other)
{
	enum { LIMIT = 50 * 1000 };
	_cleanup_free_ char *large = calloc(1, LIMIT + 1);
	struct refusals got;
	struct run *runs[3], *placed, *found = NULL;
	struct error err = ERROR_INIT;

	memset(large, 'x', LIMIT);
	begin("n1");
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		runs[i] = insert(RUN_QUEUED, "{}");
	commit_ok();
	fake_etcd_limit(LIMIT);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		change(runs[i], RUN_RUNNING, i == 1 ? (_i ? 10240 : 1000) : 1);
	placed = insert(RUN_QUEUED, large);
	change(placed, RUN_STARTING, 1);
	run_free(insert(RUN_QUEUED, "{}"));
	ck_ok(store_set_drained(store, "n1", true, "a fan", &err), &err);
	got = commit_some();
	for (int64_t id = 1; id <= 5; id++)
		ck_assert_int_eq(got.refused[id], id == 2 || id == 4);
	check_ranks(1, 1, 1);
	check_ranks(2, 0, 0);
	check_ranks(3, 1, 1);
	ck_assert_int_eq(store_get(store, 4, &found, &err), -ENOENT);
	run_free(placed);
	ck_assert(has_run(1) && has_run(2) && has_run(3) && !has_run(4) && has_run(5));
	ck_assert_int_eq(writes_of(1), 2);
	ck_assert_int_eq(writes_of(2), 1);
	ck_assert_str_eq(fake_etcd_value("/dtrain/drains/n1"), "a fan");
	ck_assert(election_holds(election));
	/* Again, and with no other. */
	store_update(store, runs[1]);
	ck_assert(commit_some().refused[2]);
	fake_etcd_limit(LIMIT * 5);
	store_update(store, runs[1]);
	ck_assert(!commit_some().refused[2]);
	check_ranks(2, runs[1]->rank_count, 1);
	end();
	begin("n2");
	check_ranks(2, runs[1]->rank_count, 1);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		run_free(runs[i]);
}
END_TEST

/* Of a new run that is placed at once, what is refused may be the placement alone. */
START_TEST(a_new_run_whose_placement_is_refused_is_in_no_store)
{
	enum { LIMIT = 50 * 1000 };
	struct run *placed, *other, *found = NULL;
	struct error err = ERROR_INIT;
	struct refusals got;

	begin("n1");
	fake_etcd_limit(LIMIT);
	other = insert(RUN_QUEUED, "{}");
	placed = insert(RUN_QUEUED, "{}");
	change(other, RUN_STARTING, 1);
	/* In between, and behind it, are changes that etcd takes. */
	change(placed, RUN_STARTING, 1);
	change(placed, RUN_STARTING, _i ? 10240 : 1000);
	change(placed, RUN_QUEUED, 1);
	got = commit_some();
	ck_assert(!got.refused[1] && got.refused[2]);
	for (int i = 0; i < 2; i++) {
		ck_assert(has_run(1) && !has_run(2));
		ck_assert_int_eq(pieces_of(2), 0);
		check_ranks(1, 1, 1);
		ck_assert_int_eq(store_get(store, 2, &found, &err), -ENOENT);
		end();
		begin("n2");
	}
	run_free(placed);
	run_free(other);
}
END_TEST

/* Where the limits of etcd are lower than by default. */
START_TEST(a_transaction_that_is_too_large_is_divided)
{
	enum { CONFIG = 100 * 1000 };
	_cleanup_free_ char *large = calloc(1, CONFIG + 1);

	memset(large, 'x', CONFIG);
	begin("n1");
	fake_etcd_limit(3 * CONFIG);
	for (int i = 0; i < 9; i++)
		run_free(insert(RUN_QUEUED, large));
	commit_ok();
	for (int64_t id = 1; id <= 9; id++)
		ck_assert(has_run(id));
	ck_assert_uint_le(fake_etcd_bytes_max(), 3 * CONFIG);
}
END_TEST

/* What is of no run is needed. */
START_TEST(a_refusal_of_what_is_of_no_run_fails_the_commit)
{
	begin("n1");
	fake_etcd_limit(10);
	insert_many(1, RUN_QUEUED);
	ck_assert_int_eq(commit().code, -EMSGSIZE);
	ck_assert_int_eq(fake_etcd_count("/dtrain/runs/"), 0);
	ck_assert(election_holds(election));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("store_etcd");
	TCase *tc = tcase_create("store_etcd");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, without_memory_nothing_is_opened);
	tcase_add_test(tc, the_keys_are_those_of_the_description);
	tcase_add_loop_test(tc, the_next_controller_has_what_a_run_was, 0, 3);
	tcase_add_test(tc, runs_are_written_when_they_change);
	tcase_add_test(tc, the_oldest_runs_that_have_ended_are_removed);
	tcase_add_test(tc, drains_and_their_reasons_are_kept);
	tcase_add_test(tc, a_drained_node_is_found_under_any_spelling);
	tcase_add_test(tc, a_spelling_is_removed_with_the_next_batch);
	tcase_add_test(tc, an_epoch_may_replace_the_one_before);
	tcase_add_test(tc, the_next_epoch_is_above_all);
	tcase_add_test(tc, a_batch_is_cut_where_etcd_would_refuse_it);
	tcase_add_test(tc, a_configuration_may_be_as_long_as_etcd_takes);
	tcase_add_loop_test(tc, a_transaction_without_an_answer_is_repeated, 0, 2);
	tcase_add_test(tc, a_transaction_is_repeated_no_longer_than_the_lease);
	tcase_add_loop_test(tc, who_has_lost_the_key_writes_nothing, 0, 2);
	tcase_add_loop_test(tc, a_batch_that_is_refused_in_its_middle_is_taken_back, 0, 3);
	tcase_add_loop_test(tc, a_batch_that_cannot_be_taken_back_ends_the_controller, 1, 2);
	tcase_add_test(tc, a_refused_change_is_written_with_the_next_one);
	tcase_add_test(tc, a_full_disk_ends_the_controller);
	tcase_add_loop_test(tc, the_id_of_the_cluster_is_the_name_of_the_history, 0, ARRAY_SIZE(clusters));
	tcase_add_loop_test(tc, what_cannot_be_read_is_an_error, 0, 7);
	tcase_add_test(tc, a_cluster_that_cannot_be_named_is_an_error);
	tcase_add_loop_test(tc, all_pages_are_read, 0, ARRAY_SIZE(pages));
	tcase_add_test(tc, a_refused_answer_of_one_key_is_an_error);
	tcase_add_test(tc, what_cannot_be_understood_is_left_out);
	tcase_add_loop_test(tc, no_number_is_given_again, 0, ARRAY_SIZE(numbers));
	tcase_add_loop_test(tc, a_run_may_have_many_ranks, 0, ARRAY_SIZE(sizes));
	tcase_add_test(tc, the_pieces_of_a_run_are_those_of_its_entry);
	tcase_add_test(tc, a_run_is_never_a_mixture);
	tcase_add_loop_test(tc, a_run_without_all_of_its_pieces_is_left_out, 0, ARRAY_SIZE(damages));
	tcase_add_test(tc, pieces_are_joined);
	tcase_add_test(tc, runs_that_have_ended_take_so_many_bytes_at_most);
	tcase_add_loop_test(tc, a_run_that_etcd_refuses_stops_no_other, 0, 2);
	tcase_add_loop_test(tc, a_new_run_whose_placement_is_refused_is_in_no_store, 0, 2);
	tcase_add_test(tc, a_transaction_that_is_too_large_is_divided);
	tcase_add_test(tc, a_refusal_of_what_is_of_no_run_fails_the_commit);
	tcase_set_timeout(tc, 120);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
