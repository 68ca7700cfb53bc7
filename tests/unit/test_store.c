/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the store: what is on disk after a commit, a crash, an upgrade and a copy. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cluster/store.h"
#include "cluster/store_backend.h"
#include "cluster_fixture.h"
#include "failing_memory.h"
#include "held_store.h"

/* A mutex is given back, and awaited with, by the thread that has it alone. */
#define MUST_HOLD(lock) ck_assert_int_eq((lock)->__data.__owner, gettid())

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __real_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *lock);

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
	MUST_HOLD(lock);
	return __real_pthread_mutex_unlock(lock);
}

int __wrap_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *lock)
{
	MUST_HOLD(lock);
	return __real_pthread_cond_wait(changed, lock);
}

static void take_code(void *context, int code, const struct error *err)
{
	*(int *)context = code;
}

/* Commits, waits for the end, and returns the result of the commit. */
static int commit(struct store *s)
{
	int code = 1;

	store_commit(s, take_code, &code);
	store_wait(s);
	ck_assert_int_le(code, 0);
	return code;
}

/* After this call, a write of this process beyond so many bytes of a file fails with EFBIG; -1: none does. */
static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = MIN(bytes, limit.rlim_max);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A cluster keeps its id, each opening gets its epoch; numbers can be lifted, also before the first one. */
START_TEST(epochs_and_numbers_grow_across_openings)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *cluster = NULL,
	                    *other = str_printf("%s/other.db", dir);
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_open(other, &second, &err), &err);
	cluster = strdup(store_cluster(s));
	ck_assert_uint_eq(strlen(cluster), 32);
	ck_assert_str_ne(cluster, store_cluster(second));
	ck_assert_int_eq(store_epoch(s), 0);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(store_newest_epoch(s), 1);
	ck_assert_int_eq(store_epoch(s), 0);
	ck_assert_int_eq(store_highest(s), 0);
	store_lift(s, 57);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 58);
	store_lift(s, 40);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 59);
	store_lift(s, 100);
	ck_assert_int_eq(commit(s), 0);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_str_eq(cluster, store_cluster(s));
	ck_assert_int_eq(store_epoch(s), 1);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(store_newest_epoch(s), 2);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 101);
	/* A node knows epoch 7: this store is an older copy, and never had what lies between. */
	store_begin_epoch(s, 7, true);
	ck_assert_int_eq(store_newest_epoch(s), 8);
	ck_assert(store_has_epoch(s, 1) && !store_has_epoch(s, 8));
	ck_assert_int_eq(store_highest(s), 100);
	ck_assert_int_eq(store_newest_highest(s), 101);
	ck_assert_int_eq(commit(s), 0);
	ck_assert(store_has_epoch(s, 8) && !store_has_epoch(s, 7));
	/* The second one, which was never on disk, kept the first one from being replaced. */
	ck_assert(store_has_epoch(s, 1) && !store_has_epoch(s, 2));
	ck_assert_int_eq(store_epoch(s), 8);
	ck_assert_int_eq(store_highest(s), 101);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The next commit has what a failed commit had of the cluster: the epoch, which is not sent before it is on
 * disk, the run numbers, and the drains, but no run. */
START_TEST(a_failed_commit_is_made_up_for_by_the_next)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *reason = NULL;
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *back = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(commit(s), 0);
	store_begin_epoch(s, 7, true);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_ok(store_set_drained(s, "n1", true, "a new fan", &err), &err);
	ck_ok(store_set_drained(s, "n2", true, NULL, &err), &err);
	ck_assert_int_eq(store_epoch(s), 1);
	limit_files(0);
	ck_assert_int_lt(commit(s), 0);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(store_epoch(s), 1);
	ck_assert_int_eq(store_highest(s), 0);
	ck_assert(store_has_epoch(s, 1) && !store_has_epoch(s, 8));
	ck_assert(store_drained(s, "n1", &reason));
	ck_assert_str_eq(reason, "a new fan");
	/* The latest value counts. */
	ck_ok(store_set_drained(s, "n2", false, NULL, &err), &err);
	ck_assert_int_eq(commit(s), 0);
	ck_assert_int_eq(store_epoch(s), 8);
	ck_assert(store_has_epoch(s, 8) && !store_has_epoch(s, 1));
	store_close(steal_pointer(s));

	free(steal_pointer(reason));
	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_int_eq(store_epoch(s), 8);
	ck_assert_int_eq(store_get(s, 1, &back, &err), -ENOENT);
	ck_assert_int_eq(store_highest(s), 1); /* its number is not given again */
	ck_assert(store_drained(s, "n1", &reason));
	ck_assert_str_eq(reason, "a new fan");
	free(steal_pointer(reason));
	ck_assert(!store_drained(s, "n2", &reason));
	file_remove_tree(dir, NULL);
}
END_TEST

/* A store that cannot take the new epoch keeps the one that it replaces. */
START_TEST(an_epoch_that_cannot_be_replaced_is_kept)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	sqlite3 *db;

	ck_ok(store_open(path, &s, &err), &err);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(commit(s), 0);
	store_close(steal_pointer(s));
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(
	    sqlite3_exec(db,
	                 "CREATE TRIGGER a BEFORE INSERT ON epochs BEGIN SELECT RAISE(ABORT, 'no'); END;"
	                 "CREATE TRIGGER b BEFORE UPDATE ON epochs BEGIN SELECT RAISE(ABORT, 'no'); END;",
	                 NULL, NULL, NULL),
	    SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	ck_ok(store_open(path, &s, &err), &err);
	store_begin_epoch(s, 7, true);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_lt(commit(s), 0);
		ck_assert(store_has_epoch(s, 1));
		ck_assert_int_eq(store_epoch(s), 1);
	}
	file_remove_tree(dir, NULL);
}
END_TEST

static int count_run(void *context, struct run *r, struct error *err)
{
	int64_t *seen = context;

	ck_assert(seen[0] == 0 || r->id < seen[0]);
	seen[0] = r->id;
	seen[1]++;
	run_free(r);
	return 0;
}

START_TEST(what_is_committed_is_there_after_a_restart)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *config = NULL;
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *back = NULL;
	_cleanup_free_ char *reason = NULL;
	struct error err = ERROR_INIT;
	int64_t seen[2] = {0, 0};
	struct stat st;

	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(store_open(path, &second, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "another dtraind"));
	ck_ok(store_insert(s, r, "{\"task\":\"command\"}", &err), &err);
	ck_assert_int_eq(r->id, 1);
	fixture_place(r);
	run_set_reason(r, "because");
	r->progress = json_pack("{s:i}", "step", 5);
	store_update(s, r);
	ck_assert_int_eq(commit(s), 0);
	ck_ok(store_set_drained(s, "n2", true, "a new fan", &err), &err);
	ck_ok(store_set_drained(s, "n3", true, NULL, &err), &err);
	ck_assert_int_eq(commit(s), 0);
	/* A run that was not committed does not exist. */
	ck_ok(store_insert(s, r, "{}", &err), &err);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_get(s, 1, &back, &err), &err);
	ck_assert_str_eq(back->user, "alice");
	ck_assert_int_eq(back->state, RUN_STARTING);
	ck_assert_int_eq(back->attempt, 1);
	ck_assert_str_eq(back->reason, "because");
	ck_assert_int_eq(json_get_int(back->progress, "step", 0), 5);
	ck_ok(run_recover(back, 300, &err), &err);
	ck_assert_uint_eq(back->part_count, 2);
	ck_ok(store_config(s, 1, &config, &err), &err);
	ck_assert_str_eq(config, "{\"task\":\"command\"}");
	ck_assert_int_eq(store_get(s, 2, &back, &err), -ENOENT);
	ck_assert(!store_drained(s, "n1", &reason));
	ck_assert(store_drained(s, "n3", &reason));
	ck_assert_ptr_null(reason);
	ck_assert(store_drained(s, "n2", &reason));
	ck_assert_str_eq(reason, "a new fan");
	ck_ok(store_list(s, &(struct run_query){.states = run_state_set("all"), .limit = 10}, count_run, seen,
	                 &err),
	      &err);
	ck_assert_int_eq(seen[1], 1);
	file_remove_tree(dir, NULL);
}
END_TEST

/* A store that several controllers share, in front of that of this machine. */
struct front {
	int code; /* of its commits */
	int applied, copies_failed, closed;
};

static int front_apply(void *self, struct store_batch *b, struct error *err)
{
	struct front *f = self;

	f->applied++;
	return f->code < 0 ? error_set(err, f->code, "refused") : 0;
}

static int front_check(void *self, const struct run *r, const char *config, struct error *err)
{
	return str_eq(config, "large") ? error_set(err, -E2BIG, "too large") : 0;
}

static void front_copy_failed(void *self, const struct error *err)
{
	struct front *f = self;

	ck_assert_int_lt(err->code, 0);
	f->copies_failed++;
}

static void front_close(void *self)
{
	struct front *f = self;

	f->closed++;
}

START_TEST(what_controllers_share_is_written_first)
{
	static const struct store_primary primary = {.apply = front_apply,
	                                             .check = front_check,
	                                             .copy_failed = front_copy_failed,
	                                             .close = front_close};
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *back = NULL;
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	struct front front = {0};

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_check(s, r, "large", &err), &err); /* there is no such store yet */
	store_set_primary(s, &primary, &front);
	ck_assert_int_eq(store_check(s, r, "large", &err), -E2BIG);
	ck_ok(store_check(s, r, "{}", &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s), 0);
	ck_assert_int_eq(front.applied, 1);
	/* What it refuses is not written here. */
	front.code = -ESTALE;
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s), -ESTALE);
	ck_assert_int_eq(front.applied, 2);
	ck_assert_int_eq(store_get(s, 2, &back, &err), -ENOENT);
	ck_assert_int_eq(front.copies_failed, 0);
	/* What it has, and this machine cannot write, is told to it. */
	front.code = 0;
	ck_ok(store_insert(s, r, "{}", &err), &err);
	limit_files(0);
	ck_assert_int_lt(commit(s), 0);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(front.applied, 3);
	ck_assert_int_eq(front.copies_failed, 1);
	ck_assert_int_eq(front.closed, 0);
	store_close(steal_pointer(s));
	ck_assert_int_eq(front.closed, 1);
	file_remove_tree(dir, NULL);
}
END_TEST

/* An update that finds no memory fails its commit, of which then nothing is written; a run that cannot be
 * inserted takes no number. */
START_TEST(a_commit_that_lacks_something_is_none)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *other = fixture_run(1, 1);
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	bool refused = true;

	ck_ok(store_open(path, &s, &err), &err);
	for (long n = 1; refused; n++) {
		int code;

		memory_refused = false;
		memory_left = n;
		code = store_insert(s, r, "{}", &err);
		memory_left = 0;
		refused = memory_refused;
		ck_assert_int_eq(code, refused ? -ENOMEM : 0);
	}
	ck_assert_int_eq(r->id, 1);
	fixture_place(r);
	ck_assert_int_eq(commit(s), 0);
	refused = true;
	for (long n = 1; refused; n++) {
		_cleanup_free_ char *reason = str_printf("reason %ld", n);
		_cleanup_(run_freep) struct run *back = NULL, *none = NULL;

		ck_ok(store_insert(s, other, "{}", &err), &err);
		run_set_reason(r, "%s", reason);
		memory_refused = false;
		memory_left = n;
		store_update(s, r);
		memory_left = 0;
		refused = memory_refused;
		ck_assert_int_eq(commit(s), refused ? -ENOMEM : 0);
		ck_ok(store_get(s, 1, &back, &err), &err);
		ck_assert_int_eq(str_eq(back->reason, reason), !refused);
		ck_assert_int_eq(store_get(s, other->id, &none, &err), refused ? -ENOENT : 0);
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* A key finds the run of its user once that is committed, also after a restart. */
START_TEST(a_run_is_found_by_the_key_of_its_submission)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;
	int64_t id = 0;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err); /* runs without keys */
	ck_ok(store_insert(s, r, "{}", &err), &err);
	r->uid = 7;
	r->key = strdup("k1");
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(store_find_key(s, 7, "k1", &id, &err), -ENOENT);
	ck_assert_int_eq(commit(s), 0);
	r->uid = 8; /* two users may have the same key */
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s), 0);
	store_update(s, r);
	ck_assert_int_eq(commit(s), 0);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_find_key(s, 7, "k1", &id, &err), &err);
	ck_assert_int_eq(id, 3);
	ck_ok(store_find_key(s, 8, "k1", &id, &err), &err);
	ck_assert_int_eq(id, 4);
	ck_assert_int_eq(store_find_key(s, 9, "k1", &id, &err), -ENOENT);
	ck_assert_int_eq(store_find_key(s, 7, "k2", &id, &err), -ENOENT);
	/* A second run with the key would be a fault of the controller. */
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_lt(commit(s), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The controller is killed and starts again: all that it knows of the run is in its store. */
static void restart(struct store *s, struct run **r)
{
	struct error err = ERROR_INIT;
	int64_t id = (*r)->id;

	ck_assert((*r)->dirty);
	store_update(s, *r);
	ck_assert_int_eq(commit(s), 0);
	run_free(*r);
	*r = NULL;
	ck_ok(store_get(s, id, r, &err), &err);
	ck_ok(run_recover(*r, 1000, &err), &err);
}

/* A run is stopping when the controller is restarted: it ends with the same words as without. */
START_TEST(the_cause_outlives_the_controller)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
	_cleanup_json_ json_t *view = NULL, *left = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	fixture_place(r);
	store_update(s, r);
	r->dirty = false;
	switch (_i) {
	case 0: /* a start was refused: that node has no attempt that it could have lost */
		run_refused(r, run_part_find(r, "n1"), REFUSED_FINAL, "private: no directory", 150);
		restart(s, &r);
		ck_assert(run_part_find(r, "n1")->ended && !run_part_find(r, "n2")->ended);
		fixture_report(r, "n2", "ended", RANK1_OK);
		ck_assert_str_eq(r->reason, "node n1: the start has failed");
		ck_assert_str_eq(r->detail, "node n1: private: no directory");
		break;
	case 1: /* by a node whose slots were taken: it waits again */
		run_refused(r, run_part_find(r, "n1"), REFUSED_BUSY, "slot 0 is leased to run 9", 150);
		restart(s, &r);
		fixture_report(r, "n2", "ended", RANK1_OK);
		ck_assert_int_eq(r->state, RUN_QUEUED);
		break;
	case 2: /* both ranks fail, and one said why; its device is the first cause */
		run_worker_error(r, 0, "private: rank 1 is gone", true);
		run_worker_error(r, 1, "private: no such column", false);
		fixture_report_with(r, "n1", "ended",
		                    "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"ended\":50.0,"
		                    "\"error\":\"private: traceback\"}",
		                    "\"device_errors\":[\"GPU 0 of n1: Xid 79\"],");
		restart(s, &r);
		fixture_report(r, "n2", "ended",
		               "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1,\"ended\":50.1}");
		ck_assert_str_eq(r->reason, "GPU 0 of n1: Xid 79; rank 1 on n2: exit status 1");
		ck_assert_str_eq(r->detail, "private: no such column");
		break;
	case 3: /* the lines of the log of a part that has ended are not reported again */
		fixture_report(r, "n2", "ended", RANK1_KILLED);
		restart(s, &r);
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
		ck_assert_str_eq(r->detail, "last line");
		break;
	case 4: /* the store of an earlier version, which kept nothing of it */
		r->failed = true;
		r->state = RUN_STOPPING;
		run_set_reason(r, "a part of it has failed, the rest is being stopped");
		run_touch(r);
		restart(s, &r);
		fixture_report(r, "n1", "ended", RANK0_OK);
		fixture_report(r, "n2", "ended", RANK1_OK);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_ptr_null(strstr(r->reason, "is being stopped"));
		break;
	case 5: /* cancelled when it had failed */
		fixture_report(r, "n2", "ended", RANK1_KILLED);
		run_cancel(r, "alice", 160);
		restart(s, &r);
		fixture_report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, RUN_CANCELLED);
		ck_assert_str_eq(r->reason, "cancelled by alice");
		break;
	case 6: /* gone before, but noticed only now: it did not make the other fail, long ago */
		fixture_report(r, "n2", "ended", RANK1_KILLED);
		restart(s, &r);
		run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 0, 1010);
		ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
		break;
	case 7: /* gone when the controller started at the latest: the other failed for it, 8 s later */
		run_touch(r);
		restart(s, &r);
		run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 0, 1010);
		fixture_report(r, "n2", "ended",
		               "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1,\"ended\":1001.0}");
		ck_assert_str_eq(r->reason, "node n1 is down");
		break;
	case 8: /* nothing has ended, but a worker has sent its error */
		run_worker_error(r, 1, "private: no such column", false);
		restart(s, &r);
		fixture_report(r, "n1", "ended", RANK0_OK);
		fixture_report(r, "n2", "ended",
		               "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1,\"ended\":50.1}");
		ck_assert_str_eq(r->reason, "rank 1 on n2: exit status 1");
		ck_assert_str_eq(r->detail, "private: no such column");
		break;
	}
	view = run_to_json(r, false);
	text = json_to_string(view);
	ck_assert_ptr_null(strstr(text, "private"));
	ck_assert_ptr_null(strstr(text, "last line"));
	ck_assert_int_eq(run_under_way(r, &left), 0);
	/* Nothing of it stays in the store, but how often it was refused. */
	ck_assert_int_eq(r->retries.record.busy_starts, _i == 1);
	ck_assert(_i == 1 || !left);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The record of an attempt in the store is damaged: the run is loaded nevertheless, with what can be read. */
START_TEST(a_damaged_record_of_an_attempt_loses_no_run)
{
	static const struct {
		const char *record, *error;
	} cases[] = {
	    {"{\"parts\":3}", NULL},
	    {"[1]", NULL},
	    {"{\"parts\":[{\"node\":\"n1\"},{}],\"device_error\":\"GPU 0\"}", NULL},
	    {"{\"device_error\":\"GPU 0\",\"words\":{}}", "GPU 0"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir),
		                    *sql = str_printf("UPDATE runs SET under_way='%s';", cases[i].record);
		_cleanup_(store_closep) struct store *s = NULL;
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *back = NULL;
		struct error err = ERROR_INIT;
		sqlite3 *db;

		ck_ok(store_open(path, &s, &err), &err);
		ck_ok(store_insert(s, r, "{}", &err), &err);
		fixture_place(r);
		store_update(s, r);
		ck_assert_int_eq(commit(s), 0);
		store_close(steal_pointer(s));
		ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
		ck_assert_int_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
		ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
		ck_ok(store_open(path, &s, &err), &err);
		ck_ok(store_get(s, r->id, &back, &err), &err);
		ck_assert_pstr_eq(back->device_error, cases[i].error);
		ck_ok(run_recover(back, 1000, &err), &err);
		ck_assert_uint_eq(back->part_count, 2);
		file_remove_tree(dir, NULL);
	}
}
END_TEST

/* The layout of the first release. */
static const char first_layout[] =
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, user TEXT, uid INTEGER NOT "
    "NULL,"
    " gid INTEGER NOT NULL, task TEXT NOT NULL, state INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " version INTEGER NOT NULL, submitted REAL NOT NULL, started REAL NOT NULL, ended REAL NOT NULL, reason "
    "TEXT,"
    " exit_status INTEGER NOT NULL, cancelled INTEGER NOT NULL, failed INTEGER NOT NULL, requeue INTEGER NOT "
    "NULL,"
    " nodes INTEGER NOT NULL, per_node INTEGER NOT NULL, directory TEXT, output TEXT, ranks TEXT NOT NULL,"
    " progress TEXT, config TEXT NOT NULL);"
    "CREATE INDEX runs_state ON runs (state, id);"
    "CREATE TABLE drained (node TEXT PRIMARY KEY) WITHOUT ROWID;"
    "PRAGMA user_version = 1; INSERT INTO drained VALUES ('n1');"
#define OLD_RUN(reason, status)                                                                              \
	"INSERT INTO runs VALUES (NULL, 'x', 'alice', 1, 1, 'command', 5, 1, 1, 1, 1, 1, '" reason           \
	"', " status ", 0, 1, 0, 1, 1, NULL, NULL, '[]', NULL, '{}');"
    OLD_RUN("rank 1 on n2: exit status 3: private\nlines", "3")
        OLD_RUN("GPU 3 of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL\nprivate", "137")
            OLD_RUN("node n2: private", "-1") OLD_RUN("node n2 is down: no heartbeat for 5 s", "-1");

/* The reason was shown to all users: its private part is now shown to the owner only. */
static const char *const old_reasons[][2] = {
    {"rank 1 on n2: exit status 3", "rank 1 on n2: exit status 3: private\nlines"},
    {"GPU 3 of n2: Xid 79: fell off the bus",
     "GPU 3 of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL\nprivate"},
    {"node n2: the start has failed", "node n2: private"},
    {"node n2 is down: no heartbeat for 5 s", NULL},
};

/* The number of the layout in the file at `path`, which the package reads while the store is open. */
static int file_layout(const char *path)
{
	unsigned char at[4] = {0};
	FILE *f = fopen(path, "rb");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fseek(f, 60, SEEK_SET), 0);
	ck_assert_uint_eq(fread(at, 1, sizeof(at), f), sizeof(at));
	fclose(f);
	return at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

START_TEST(a_store_of_the_first_layout_is_converted_once)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *reason = NULL;
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	sqlite3 *db;

	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, first_layout, NULL, NULL, NULL), SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	for (int i = 0; i < 2; i++) { /* brought up to date, once */
		ck_ok(store_open(path, &s, &err), &err);
		ck_assert(file_layout(path) > 1);
		ck_assert(store_drained(s, "n1", &reason));
		ck_assert_ptr_null(reason);
		for (size_t k = 0; k < ARRAY_SIZE(old_reasons); k++) {
			_cleanup_(run_freep) struct run *r = NULL;

			ck_ok(store_get(s, (int64_t)k + 1, &r, &err), &err);
			ck_assert_str_eq(r->reason, old_reasons[k][0]);
			ck_assert_pstr_eq(r->detail, old_reasons[k][1]);
		}
		ck_ok(store_set_drained(s, "n2", true, "a new fan", &err), &err);
		ck_assert_int_eq(commit(s), 0);
		store_close(steal_pointer(s));
	}
	file_remove_tree(dir, NULL);
}
END_TEST

static int drained_rows(const char *path)
{
	sqlite3_stmt *st = NULL;
	sqlite3 *db = NULL;
	int count;

	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_prepare_v2(db, "SELECT count(*) FROM drained", -1, &st, NULL), SQLITE_OK);
	ck_assert_int_eq(sqlite3_step(st), SQLITE_ROW);
	count = sqlite3_column_int(st, 0);
	sqlite3_finalize(st);
	sqlite3_close(db);
	return count;
}

static void ck_drained(struct store *s, const char *node, const char *reason)
{
	_cleanup_free_ char *found = NULL;

	ck_assert_int_eq(store_drained(s, node, &found), reason != NULL);
	ck_assert_pstr_eq(found, reason);
}

/* The hosts file may have spelt it in another way when it was drained; earlier versions could then write it a
 * second time. */
START_TEST(a_drained_node_is_found_under_any_spelling)
{
	static const char rows[] =
	    "INSERT INTO drained VALUES ('n2', 'a fan'), ('N3', 'a disk'), ('n3', 'a fan')";
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	sqlite3 *db;

	ck_ok(store_open(path, &s, &err), &err);
	store_close(steal_pointer(s));
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, rows, NULL, NULL, NULL), SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	ck_ok(store_open(path, &s, &err), &err);
	ck_drained(s, "N2", "a fan");
	ck_drained(s, "n2", "a fan");
	ck_drained(s, "n3", "a fan");
	ck_drained(s, "N3", "a disk");
	/* What was set last counts, also before it is written. */
	ck_ok(store_set_drained(s, "N2", true, "a cable", &err), &err);
	ck_drained(s, "n2", "a cable");
	ck_assert_int_eq(commit(s), 0);
	ck_drained(s, "n2", "a cable");
	ck_drained(s, "N2", "a cable");
	ck_ok(store_set_drained(s, "N3", false, NULL, &err), &err);
	ck_assert_int_eq(commit(s), 0);
	ck_drained(s, "n3", NULL);
	ck_drained(s, "N3", NULL);
	store_close(steal_pointer(s));
	ck_assert_int_eq(drained_rows(path), 1);
	file_remove_tree(dir, NULL);
}
END_TEST

/* After a restart a run has all that an update wrote; what is given only once stays as it was inserted. */
START_TEST(an_update_writes_all_that_changes)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *back = NULL;
	_cleanup_json_ json_t *was = NULL, *is = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	r->submitted = 50.5;
	ck_ok(store_insert(s, r, "{}", &err), &err);
	fixture_place(r);
	fixture_report(r, "n1", "running", "{\"rank\":0,\"state\":\"running\",\"pid\":11}");
	fixture_report(r, "n1", "ended", RANK0_OK);
	fixture_report(r, "n2", "ended", RANK1_KILLED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	r->per_node = 3;
	r->version = 77;
	r->cancelled = r->requeue = true;
	r->progress = json_pack("{s:i}", "step", 5);
	store_update(s, r);
	ck_assert_int_eq(commit(s), 0);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_get(s, r->id, &back, &err), &err);
	was = run_to_json(r, true);
	is = run_to_json(back, true);
	ck_assert(json_equal(was, is));
	ck_assert_int_eq(back->version, 77);
	ck_assert_int_eq(back->attempt, 1);
	ck_assert_int_eq(back->exit_status, 137);
	ck_assert_double_eq(back->started, 100);
	ck_assert_double_eq(back->ended, 200);
	ck_assert_int_eq(back->per_node, 3);
	ck_assert(back->cancelled && back->failed && back->requeue);
	ck_assert_str_eq(back->detail, "last line");
	file_remove_tree(dir, NULL);
}
END_TEST

struct listed {
	char ids[64];
	int left; /* after so many the listing is ended */
};

static int note_id(void *context, struct run *r, struct error *err)
{
	struct listed *l = context;
	size_t len = strlen(l->ids);

	snprintf(l->ids + len, sizeof(l->ids) - len, "%lld ", (long long)r->id);
	run_free(r);
	return --l->left == 0 ? error_set(err, -ECANCELED, "enough") : 0;
}

START_TEST(a_listing_is_a_page_of_the_states_asked_for)
{
	static const enum run_state states[] = {RUN_SUCCEEDED, RUN_QUEUED,    RUN_FAILED,
	                                        RUN_RUNNING,   RUN_SUCCEEDED, RUN_STOPPING};
	static const struct {
		const char *states, *user;
		int64_t before, limit;
		const char *ids;
	} cases[] = {
	    {"all", NULL, 0, 100, "6 5 4 3 2 1 "}, {"all", NULL, 4, 100, "3 2 1 "},
	    {"all", NULL, 4, 2, "3 2 "},           {"all", NULL, 1, 100, ""},
	    {"active", NULL, 0, 100, "6 4 2 "},    {"active", NULL, 6, 100, "4 2 "},
	    {"active", NULL, 6, 1, "4 "},          {"succeeded", NULL, 0, 100, "5 1 "},
	    {"succeeded", NULL, 5, 100, "1 "},     {"running", NULL, 0, 100, "4 "},
	    {"running", NULL, 4, 100, ""},         {"cancelled", NULL, 0, 100, ""},
	    {"all", "eve", 0, 100, "5 3 1 "},      {"all", "eve", 5, 1, "3 "},
	    {"succeeded", "eve", 0, 100, "5 1 "},  {"active", "eve", 0, 100, ""},
	    {"active", "alice", 0, 100, "6 4 2 "}, {"all", "EVE", 0, 100, ""},
	};
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct listed stopped = {.left = 2};
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		r->state = states[i];
		ck_assert_int_eq(str_replace(&r->user, i % 2 ? "alice" : "eve"), 0);
		ck_ok(store_insert(s, r, "{}", &err), &err);
	}
	ck_assert_int_eq(commit(s), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct listed l = {.left = -1};

		ck_ok(store_list(s,
		                 &(struct run_query){.states = run_state_set(cases[i].states),
		                                     .user = cases[i].user,
		                                     .before = cases[i].before,
		                                     .limit = cases[i].limit},
		                 note_id, &l, &err),
		      &err);
		ck_assert_msg(str_eq(l.ids, cases[i].ids), "%s of %s before %lld, %lld at most: %s, not %s",
		              cases[i].states, cases[i].user ? cases[i].user : "all",
		              (long long)cases[i].before, (long long)cases[i].limit, l.ids, cases[i].ids);
	}
	ck_assert_int_eq(store_list(s, &(struct run_query){.states = run_state_set("all"), .limit = 100},
	                            note_id, &stopped, &err),
	                 -ECANCELED);
	ck_assert_str_eq(stopped.ids, "6 5 ");
	file_remove_tree(dir, NULL);
}
END_TEST

/* Runs that do not exist, and a store that a newer version has made. */
START_TEST(what_the_store_does_not_have_is_said)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *text = NULL;
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	struct run *r = NULL;
	sqlite3 *db;

	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_int_eq(store_get(s, 7, &r, &err), -ENOENT);
	ck_assert_int_lt(store_config(s, 7, &text, &err), 0);
	store_close(steal_pointer(s));
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version = 99;", NULL, NULL, NULL), SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	ck_assert_int_lt(store_open(path, &s, &err), 0);
	ck_assert_ptr_null(s);
	ck_ok(file_write_atomic(path, "no database", 11, 0600, &err), &err);
	ck_assert_int_lt(store_open(path, &s, &err), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The message ends with the error of the system call. */
START_TEST(a_store_that_cannot_be_opened_says_why)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *want = NULL;
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	store_closep(&s);
	s = NULL;
	limit_files(4096); /* too little for the shared memory of its log */
	ck_assert_int_eq(store_open(path, &s, &err), -EIO);
	want = str_printf("%s: disk I/O error: File too large", path);
	ck_assert_str_eq(err.message, want);
	limit_files(RLIM_INFINITY);
	ck_ok(store_open(path, &s, &err), &err);
}
END_TEST

/* Another process opens the store at `path` when `go` says so: its status is the error's number, 0 if it got
 * in. It is forked before this one has opened the store, and so knows nothing of its locks. */
static pid_t start_opener(const char *path, int go[2])
{
	pid_t pid;

	ck_assert_int_eq(pipe(go), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct error err = ERROR_INIT;
		struct store *s;
		char c;

		close(go[1]);
		if (read(go[0], &c, 1) != 1)
			_exit(255);
		_exit(-store_open(path, &s, &err));
	}
	close(go[0]);
	return pid;
}

static int opener_status(pid_t pid, const int go[2])
{
	int status;

	ck_assert_int_eq(write(go[1], "g", 1), 1);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	close(go[1]);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* As long as the store is open, no other process gets in, whatever was opened and closed in
 * this one before. */
START_TEST(another_process_cannot_open_an_open_store)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;
	int go[4][2];
	pid_t pids[4];

	for (int i = 0; i < 4; i++)
		pids[i] = start_opener(path, go[i]);
	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_int_eq(opener_status(pids[0], go[0]), EBUSY);
	ck_assert_int_eq(store_open(path, &second, &err), -EBUSY);
	ck_assert_int_eq(opener_status(pids[1], go[1]), EBUSY);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(commit(s), 0);
	ck_assert_int_eq(opener_status(pids[2], go[2]), EBUSY);
	store_close(steal_pointer(s));
	ck_assert_int_eq(opener_status(pids[3], go[3]), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* Waits until the store has a result, and calls its callbacks. */
static void dispatch(struct store *s)
{
	struct pollfd poll_fd = {.fd = store_fd(s), .events = POLLIN};

	ck_assert_int_eq(poll(&poll_fd, 1, 60000), 1);
	store_dispatch(s);
}

/* A commit during a backup is in the copy. Should the copy be complete first, it is made once more: of a
 * larger store. */
START_TEST(a_copy_has_what_is_written_meanwhile)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir),
	                    *to = str_printf("%s/copy", dir), *config = calloc(1, (1 << 20) + 1);
	_cleanup_(store_closep) struct store *s = NULL, *copy = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *back = NULL;
	struct error err = ERROR_INIT;
	bool meanwhile = false;

	memset(config, 'x', 1 << 20);
	ck_ok(store_open(path, &s, &err), &err);
	for (int round = 0; !meanwhile; round++) {
		_cleanup_(store_backup_freep) struct store_backup *b = NULL;
		int copied = 1, committed = 1;

		ck_assert_int_lt(round, 5);
		for (int i = 0; i < 8 << round; i++)
			ck_ok(store_insert(s, r, config, &err), &err);
		ck_assert_int_eq(commit(s), 0);
		ck_ok(file_write_atomic(to, "", 0, 0600, &err), &err);
		ck_ok(store_backup_begin(s, to, take_code, &copied, &b, &err), &err);
		ck_ok(store_insert(s, r, "{}", &err), &err);
		store_commit(s, take_code, &committed);
		while (committed == 1)
			dispatch(s);
		ck_assert_int_eq(committed, 0);
		meanwhile = copied == 1;
		while (copied == 1)
			dispatch(s);
		ck_assert_int_eq(copied, 0);
	}
	ck_ok(store_open(to, &copy, &err), &err);
	ck_ok(store_get(copy, r->id, &back, &err), &err);
	ck_assert_str_eq(back->user, "alice");
	file_remove_tree(dir, NULL);
}
END_TEST

/* A copy that is given up, or fails, leaves the store as it is. */
START_TEST(a_copy_is_given_up_or_fails)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir),
	                    *to = str_printf("%s/copy", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(store_backup_freep) struct store_backup *b = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;
	int given_up = 1, code = 1;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_ok(file_write_atomic(to, "", 0, 0600, &err), &err);
	ck_ok(store_backup_begin(s, to, take_code, &given_up, &b, &err), &err);
	store_backup_free(steal_pointer(b));
	ck_assert_int_eq(commit(s), 0);
	ck_ok(store_backup_begin(s, "/nonexistent/copy", take_code, &code, &b, &err), &err);
	while (code == 1)
		dispatch(s);
	ck_assert_int_lt(code, 0);
	ck_assert_int_eq(given_up, 1);
	store_update(s, r);
	ck_assert_int_eq(commit(s), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The end of a store does not wait for a copy, and leaves nothing of it. */
START_TEST(a_copy_ends_with_its_store)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir),
	                    *to = str_printf("%s/copy", dir);
	struct error err = ERROR_INIT;
	struct held_store *held;
	struct store *s;

	held_store_open(path, &held, &s);
	ck_ok(file_write_atomic(to, "", 0, 0600, &err), &err);
	held_store_begin_endless_copy(held, s, to);
	store_close(s);
	held_store_free(held);
	file_remove_tree(dir, NULL);
}
END_TEST

/* During a commit that takes long, committed data can be read. Changes go into the next commit, and are not
 * visible before. */
START_TEST(a_slow_commit_holds_up_no_reader)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *config = NULL,
	                    *reason = NULL, *path_of_copy = str_printf("%s/copy", dir);
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *back = NULL;
	int64_t seen[2] = {0, 0}, counts[RUN_STATES];
	int first = 1, second = 1, copied = 1;
	_cleanup_(store_backup_freep) struct store_backup *b = NULL;
	struct error err = ERROR_INIT;
	struct held_store *held;
	struct store *s;

	held_store_open(path, &held, &s);
	ck_ok(store_insert(s, r, "{\"a\":1}", &err), &err);
	ck_assert_int_eq(commit(s), 0);
	ck_assert(!store_is_busy(s));
	held_store_hold(held);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_ok(store_set_drained(s, "n1", true, "a new fan", &err), &err);
	store_commit(s, take_code, &first);
	held_store_await_held(held);
	ck_assert(store_is_busy(s));
	/* The next one. */
	r->id = 2;
	r->exit_status = 7;
	store_update(s, r);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(r->id, 3);
	store_dispatch(s);
	ck_assert_int_eq(first, 1);
	ck_ok(store_get(s, 1, &back, &err), &err);
	ck_assert_int_eq(store_get(s, 2, &back, &err), -ENOENT);
	ck_ok(store_config(s, 1, &config, &err), &err);
	ck_assert_str_eq(config, "{\"a\":1}");
	ck_ok(store_list(s, &(struct run_query){.states = run_state_set("all"), .limit = 10}, count_run, seen,
	                 &err),
	      &err);
	ck_assert_int_eq(seen[1], 1);
	ck_ok(store_counts(s, counts, &err), &err);
	ck_assert_int_eq(counts[RUN_QUEUED], 1);
	ck_assert_int_eq(store_highest(s), 1);
	ck_assert(store_drained(s, "n1", &reason));
	ck_assert_str_eq(reason, "a new fan");
	ck_ok(file_write_atomic(path_of_copy, "", 0, 0600, &err), &err);
	ck_ok(store_backup_begin(s, path_of_copy, take_code, &copied, &b, &err), &err);
	held_store_release(held);
	while (first == 1)
		dispatch(s);
	ck_assert_int_eq(first, 0);
	ck_assert(!store_is_busy(s));
	run_free(steal_pointer(back));
	ck_ok(store_get(s, 2, &back, &err), &err);
	ck_assert_int_ne(back->exit_status, 7);
	ck_assert_int_eq(store_get(s, 3, &back, &err), -ENOENT);
	ck_assert_int_eq(store_epoch(s), 0);
	store_commit(s, take_code, &second);
	while (second == 1 || copied == 1)
		dispatch(s);
	ck_assert_int_eq(second + copied, 0);
	run_free(steal_pointer(back));
	ck_ok(store_get(s, 2, &back, &err), &err);
	ck_assert_int_eq(back->exit_status, 7);
	ck_assert_int_eq(store_epoch(s), 1);
	ck_assert_int_eq(store_highest(s), 3);
	store_backup_free(steal_pointer(b));
	store_close(s);
	held_store_free(held);
	file_remove_tree(dir, NULL);
}
END_TEST

/* An epoch that follows one whose commit has failed replaces the one on disk only where both would have. */
START_TEST(an_epoch_after_a_failed_one_follows_the_one_on_disk)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	bool replace = _i & 1, again = _i & 2;
	struct held_store *held;
	struct store *s;
	int code = 1;

	held_store_open(path, &held, &s);
	store_begin_epoch(s, 0, false);
	ck_assert_int_eq(commit(s), 0);
	held_store_hold(held);
	held_store_fail(held, 1);
	store_begin_epoch(s, 7, replace);
	store_commit(s, take_code, &code);
	store_begin_epoch(s, 9, again);
	held_store_release(held);
	while (code == 1)
		dispatch(s);
	ck_assert_int_lt(code, 0);
	ck_assert_int_eq(store_epoch(s), 1);
	ck_assert_int_eq(commit(s), 0);
	ck_assert_int_eq(store_epoch(s), 10);
	ck_assert(store_has_epoch(s, 10) && !store_has_epoch(s, 8));
	ck_assert_int_eq(store_has_epoch(s, 1), !(replace && again));
	store_close(s);
	held_store_free(held);
	file_remove_tree(dir, NULL);
}
END_TEST

static void *release_held(void *context)
{
	struct held_store *held = context;

	held_store_await_held(held);
	held_store_release(held);
	return NULL;
}

/* Closing waits until the commit in progress is on disk, and calls no callback. */
START_TEST(closing_waits_for_the_commit)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1), *back = NULL;
	struct error err = ERROR_INIT;
	struct held_store *held;
	pthread_t thread;
	struct store *s;
	int code = 1;

	held_store_open(path, &held, &s);
	held_store_hold(held);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	store_commit(s, take_code, &code);
	ck_assert_int_eq(pthread_create(&thread, NULL, release_held, held), 0);
	store_close(s);
	pthread_join(thread, NULL);
	held_store_free(held);
	ck_assert_int_eq(code, 1);
	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_get(s, 1, &back, &err), &err);
	store_close(s);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The times are printed, not checked, since the machine may be busy. */
START_TEST(thousands_of_runs_are_listed_by_state)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;
	int64_t all[2] = {0, 0}, active[2] = {0, 0}, counts[RUN_STATES];
	double t;

	ck_ok(store_open(path, &s, &err), &err);
	t = clock_monotonic();
	for (int i = 0; i < 11000; i++) {
		r->state = i < 10000 ? RUN_SUCCEEDED : RUN_QUEUED;
		ck_ok(store_insert(s, r, "{\"task\":\"command\"}", &err), &err);
	}
	ck_assert_int_eq(commit(s), 0);
	printf("11000 runs written: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	t = clock_monotonic();
	ck_ok(store_list(s, &(struct run_query){.states = run_state_set("all"), .limit = 100}, count_run, all,
	                 &err),
	      &err);
	printf("newest 100 listed: %.2f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 100);
	memset(all, 0, sizeof(all));
	t = clock_monotonic();
	ck_ok(store_list(s, &(struct run_query){.states = run_state_set("all"), .limit = 100000}, count_run,
	                 all, &err),
	      &err);
	printf("all 11000 listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 11000);
	t = clock_monotonic();
	ck_ok(store_list(s, &(struct run_query){.states = run_state_set("active"), .limit = 100000},
	                 count_run, active, &err),
	      &err);
	printf("1000 active listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(active[1], 1000);
	ck_ok(store_counts(s, counts, &err), &err);
	ck_assert_int_eq(counts[RUN_SUCCEEDED], 10000);
	ck_assert_int_eq(counts[RUN_QUEUED], 1000);
	file_remove_tree(dir, NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("store");
	TCase *c = tcase_create("store");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, epochs_and_numbers_grow_across_openings);
	tcase_add_test(c, a_failed_commit_is_made_up_for_by_the_next);
	tcase_add_test(c, an_epoch_that_cannot_be_replaced_is_kept);
	tcase_add_test(c, what_is_committed_is_there_after_a_restart);
	tcase_add_test(c, what_controllers_share_is_written_first);
	tcase_add_test(c, a_commit_that_lacks_something_is_none);
	tcase_add_test(c, a_run_is_found_by_the_key_of_its_submission);
	tcase_add_test(c, a_drained_node_is_found_under_any_spelling);
	tcase_add_test(c, an_update_writes_all_that_changes);
	tcase_add_test(c, a_listing_is_a_page_of_the_states_asked_for);
	tcase_add_test(c, what_the_store_does_not_have_is_said);
	tcase_add_loop_test(c, the_cause_outlives_the_controller, 0, 9);
	tcase_add_test(c, a_damaged_record_of_an_attempt_loses_no_run);
	tcase_add_test(c, a_store_of_the_first_layout_is_converted_once);
	tcase_add_test(c, a_store_that_cannot_be_opened_says_why);
	tcase_add_test(c, another_process_cannot_open_an_open_store);
	tcase_add_test(c, a_copy_has_what_is_written_meanwhile);
	tcase_add_test(c, a_copy_is_given_up_or_fails);
	tcase_add_test(c, a_copy_ends_with_its_store);
	tcase_add_test(c, a_slow_commit_holds_up_no_reader);
	tcase_add_loop_test(c, an_epoch_after_a_failed_one_follows_the_one_on_disk, 0, 4);
	tcase_add_test(c, closing_waits_for_the_commit);
	tcase_add_test(c, thousands_of_runs_are_listed_by_state);
	return unit_run(s);
}
