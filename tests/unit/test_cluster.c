/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
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
#include "cluster/feed.h"
#include "cluster/members.h"
#include "cluster/queue.h"
#include "cluster/rendezvous.h"
#include "cluster/store.h"
#include "unit.h"

static struct run *make_run(int nodes, int per_node)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:s,s:{s:i,s:i,s:i}}", "task", "command", "name", "test", "directory", "/tmp",
	              "resources", "nodes", nodes, "devices_per_node", per_node, "grace", 7);
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_new(config, &r, &err), &err);
	r->user = strdup("alice");
	r->uid = r->gid = 1000;
	r->id = 1;
	return r;
}

static void place(struct run *r)
{
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {0, 1};
	struct error err = ERROR_INIT;

	ck_ok(run_place(r, names, slots, 100, &err), &err);
}

static unsigned report_with(struct run *r, const char *node, const char *state, const char *rank,
                            const char *more)
{
	_cleanup_free_ char *text = str_printf("{\"run\":1,\"attempt\":%lld,\"node\":\"%s\",\"state\":\"%s\","
	                                       "%s\"ranks\":[%s]}",
	                                       (long long)r->attempt, node, state, more, rank);
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(json);
	return run_report(r, json, 200);
}

static unsigned report(struct run *r, const char *node, const char *state, const char *rank)
{
	return report_with(r, node, state, rank, "");
}

#define RANK0_OK "{\"rank\":0,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_OK "{\"rank\":1,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_KILLED                                                                                         \
	"{\"rank\":1,\"state\":\"exited\",\"exit_status\":137,\"signal\":\"SIGKILL\",\"ended\":5.0,"         \
	"\"error\":\"last line\"}"

/* Every slot of a node: how many that is, a placement says, and the store keeps. */
START_TEST(all_slots_until_placed)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:{s:i,s:s,s:s}}", "task", "command", "directory", "/tmp", "resources",
	              "nodes", 2, "devices_per_node", "all", "kind", "gpu");
	_cleanup_json_ json_t *json = NULL, *placed = NULL;
	_cleanup_(run_freep) struct run *r = NULL;
	struct error err = ERROR_INIT;
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {0, 1, 0, 1};

	ck_ok(run_new(config, &r, &err), &err);
	ck_assert(r->all_slots);
	ck_assert_int_eq(r->kind, SLOT_GPU);
	json = run_to_json(r, true);
	ck_assert(json_is_null(json_object_get(json, "world_size")));
	r->per_node = 2;
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	/* As the controller does it for one that comes out of the store. */
	ck_ok(run_set_request(r, config, &err), &err);
	ck_assert_int_eq(r->per_node, 2);
	placed = run_to_json(r, true);
	ck_assert_int_eq(json_get_int(placed, "world_size", 0), 4);
	ck_assert_int_eq(json_array_size(json_object_get(placed, "ranks")), 4);
}
END_TEST

/* One rank a node, on all slots of the run there. */
START_TEST(one_rank_per_node)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:s,s:{s:i,s:i,s:b}}", "task", "command", "name", "x", "directory", "/tmp",
	              "resources", "nodes", 2, "devices_per_node", 3, "one_per_node", 1);
	_cleanup_json_ json_t *want =
	    json_pack("[{s:i,s:s,s:i,s:[i,i,i],s:s},{s:i,s:s,s:i,s:[i,i,i],s:s}]", "rank", 0, "node", "n1",
	              "slot", 4, "slots", 4, 5, 6, "state", "starting", "rank", 1, "node", "n2", "slot", 0,
	              "slots", 0, 1, 2, "state", "starting");
	_cleanup_(run_freep) struct run *r = NULL;
	struct error err = ERROR_INIT;
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {4, 5, 6, 0, 1, 2};

	ck_ok(run_new(config, &r, &err), &err);
	r->id = 1;
	ck_assert_int_eq(run_world_size(r), 2);
	ck_ok(run_place(r, names, slots, 100, &err), &err);
	ck_assert(json_equal(r->ranks, want));
	ck_assert_uint_eq(r->part_count, 2);
	ck_assert_int_eq(run_world_size(r), 2);
	/* What the nodes say of their ranks takes none of the slots away. */
	report(r, "n1", "ended", "{\"rank\":0,\"slot\":4,\"state\":\"exited\",\"exit_status\":0}");
	ck_assert_uint_eq(json_array_size(json_object_get(json_array_get(r->ranks, 0), "slots")), 3);
}
END_TEST

START_TEST(run_succeeds)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);
	_cleanup_json_ json_t *json = NULL;

	place(r);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(report(r, "n1", "running", "{\"rank\":0,\"state\":\"running\",\"pid\":11}"), 0);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(report(r, "n2", "running", "{\"rank\":1,\"state\":\"running\",\"pid\":12}"), 0);
	ck_assert_int_eq(r->state, RUN_RUNNING);
	/* One node cannot speak for another's rank. */
	report(r, "n2", "running", "{\"rank\":0,\"state\":\"exited\",\"exit_status\":9}");
	ck_assert_int_eq(r->state, RUN_RUNNING);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), 0);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_SUCCEEDED);
	json = run_to_json(r, true);
	ck_assert_int_eq(json_get_int(json, "exit_status", -1), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(json, "nodes")), 2);
}
END_TEST

START_TEST(run_fails_with_the_first_cause)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);

	place(r);
	report(r, "n1", "running", "");
	report(r, "n2", "running", "");
	ck_assert_uint_eq(report(r, "n2", "stopping", RANK1_KILLED), RUN_STOP);
	ck_assert_int_eq(r->state, RUN_STOPPING);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), 0);
	/* The survivor dies of the stop: that is not the cause. */
	ck_assert_uint_eq(report(r, "n1", "ended",
	                         "{\"rank\":0,\"state\":\"exited\",\"exit_status\":143,\"signal\":"
	                         "\"SIGTERM\",\"stopped\":true}"),
	                  RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->exit_status, 137);
	ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
	ck_assert_str_eq(r->detail, "last line");
	/* The same end a second time is nothing new. */
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), 0);
}
END_TEST

/* A device that fails is the cause, whether its node says so before or after the rank has failed of it. */
START_TEST(run_fails_with_its_device)
{
	static const char *const error =
	    "\"device_errors\":[\"GPU 3 (GPU-x) of n2: Xid 79: fell off the bus\"],";
	static const char *const want =
	    "GPU 3 (GPU-x) of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL";

	for (int late = 0; late < 2; late++) {
		_cleanup_(run_freep) struct run *r = make_run(2, 1);

		place(r);
		report(r, "n1", "running", "");
		report_with(r, "n2", "running", "", late ? "" : error);
		ck_assert_int_eq(r->state, RUN_RUNNING); /* it may get over it */
		report_with(r, "n2", "stopping", RANK1_KILLED, late ? "" : error);
		report_with(r, "n2", "ended", RANK1_KILLED, error);
		report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_str_eq(r->reason, want);
	}
}
END_TEST

START_TEST(run_worker_says_why)
{
	_cleanup_(run_freep) struct run *r = make_run(1, 1);

	place(r);
	run_worker_error(r, 0, "no such column: text", false);
	report(r, "n1", "ended",
	       "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"error\":\"other lines\"}");
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 1");
	ck_assert_str_eq(r->detail, "no such column: text");
}
END_TEST

START_TEST(run_is_cancelled)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1), *queued = make_run(1, 1);

	place(r);
	ck_assert_uint_eq(run_cancel(r, 150), RUN_STOP);
	ck_assert_uint_eq(run_cancel(r, 151), 0);
	report(r, "n1", "ended", RANK0_OK);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_CANCELLED);
	ck_assert_uint_eq(run_cancel(queued, 150), RUN_ENDED);
	ck_assert_int_eq(queued->state, RUN_CANCELLED);
}
END_TEST

START_TEST(run_is_refused_or_lost)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);

	/* Slots that somebody else has: back into the queue, with the next number. */
	place(r);
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n2"), true, "slot 1 is leased to run 9", 150),
	                  RUN_STOP);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_QUEUED);
	place(r);
	ck_assert_int_eq(r->attempt, 2);
	/* A preflight that fails is the run's own fault. */
	run_refused(r, run_part_find(r, "n2"), false, "no directory /data", 150);
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n1"), false, "no directory /data either", 150),
	                  RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2: the start has failed");
	ck_assert_str_eq(json_get_string(json_array_get(r->ranks, 0), "state", ""), "not-started");

	r->state = RUN_QUEUED;
	place(r);
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 160, 160), RUN_STOP);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2 is down");
}
END_TEST

/* After a restart of the controller, which had written the start down: one node had begun, the other had not.
 * In whatever order that is known, the run has failed, and is not executed once more. */
START_TEST(run_that_was_begun_is_not_queued_again)
{
	static const char lost[] = "\"lost\":true,\"reason\":\"attempt 1 was started and is lost\",";

	for (int order = 0; order < 3; order++) {
		_cleanup_(run_freep) struct run *r = make_run(2, 1);

		place(r);
		r->parts[0].acknowledged = r->parts[1].acknowledged = true; /* out of the store */
		if (order == 0)
			report_with(r, "n1", "ended", "", lost);
		run_refused(r, run_part_find(r, "n2"), true, "not started", 150);
		if (order == 1)
			report_with(r, "n1", "ended", "", lost);
		if (order == 2)
			run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 160, 160);
		else if (run_part_find(r, "n2") && !run_part_find(r, "n2")->ended)
			run_part_lost(r, run_part_find(r, "n2"), "node n2 has lost it", 160, 160);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_str_eq(r->reason, order == 2 ? "node n1 is down"
		                                       : "node n1: attempt 1 was started and is lost");
		if (order < 2)
			ck_assert_str_eq(json_get_string(json_array_get(r->ranks, 0), "state", ""), "lost");
		ck_assert_str_eq(json_get_string(json_array_get(r->ranks, 1), "state", ""), "not-started");
	}
}
END_TEST

START_TEST(run_of_an_older_store_is_superseded)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);

	ck_assert_uint_eq(run_superseded(r, "n1", 0, 100), 0);
	ck_assert_uint_eq(run_superseded(r, "n1", 1, 100), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->attempt, 0); /* the attempt there is foreign, still */
	ck_assert_ptr_nonnull(strstr(r->reason, "attempt 1 was started on node n1"));
}
END_TEST

/* A cluster keeps its id, each opening gets its epoch; numbers can be lifted, also before the first one. */
START_TEST(store_counts_epochs_and_numbers)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *cluster = NULL,
	                    *other = str_printf("%s/other.db", dir);
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = make_run(1, 1);
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_open(other, &second, &err), &err);
	cluster = strdup(store_cluster(s));
	ck_assert_uint_eq(strlen(cluster), 32);
	ck_assert_str_ne(cluster, store_cluster(second));
	ck_assert_int_eq(store_epoch(s), 0);
	ck_ok(store_begin_epoch(s, 0, false, &err), &err);
	ck_assert_int_eq(store_newest_epoch(s), 1);
	ck_assert_int_eq(store_epoch(s), 0);
	ck_assert_int_eq(store_highest(s), 0);
	ck_ok(store_lift(s, 57, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 58);
	ck_ok(store_lift(s, 40, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 59);
	ck_ok(store_lift(s, 100, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_str_eq(cluster, store_cluster(s));
	ck_assert_int_eq(store_epoch(s), 1);
	ck_ok(store_begin_epoch(s, 0, false, &err), &err);
	ck_assert_int_eq(store_newest_epoch(s), 2);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	ck_assert_int_eq(r->id, 101);
	/* A node knows epoch 7: this store is an older copy, and never had what lies between. */
	ck_ok(store_begin_epoch(s, 7, true, &err), &err);
	ck_assert_int_eq(store_newest_epoch(s), 8);
	ck_assert(store_has_epoch(s, 1) && store_has_epoch(s, 8));
	ck_assert(!store_has_epoch(s, 2) && !store_has_epoch(s, 7));
	ck_ok(store_commit(s, &err), &err);
	ck_assert_int_eq(store_epoch(s), 8);
	file_remove_tree(dir, NULL);
}
END_TEST

/* One that was not written down is not sent, is no longer known, and begins anew with the next attempt. How:
 * by a rollback, or by a commit that fails. */
START_TEST(epoch_that_is_not_committed_is_undone)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	struct rlimit limit;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_begin_epoch(s, 0, false, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	ck_ok(store_begin_epoch(s, 7, true, &err), &err);
	ck_assert_int_eq(store_epoch(s), 1);
	if (_i == 0)
		store_rollback(s);
	else {
		signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails with EFBIG */
		ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
		ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, limit.rlim_max}), 0);
		ck_assert_int_lt(store_commit(s, &err), 0);
		ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	}
	ck_assert_int_eq(store_epoch(s), 1);
	ck_assert_int_eq(store_newest_epoch(s), 1);
	ck_assert(store_has_epoch(s, 1) && !store_has_epoch(s, 8));
	ck_ok(store_begin_epoch(s, 7, true, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	ck_assert_int_eq(store_epoch(s), 8);
	ck_assert(store_has_epoch(s, 8) && !store_has_epoch(s, 1));
	file_remove_tree(dir, NULL);
}
END_TEST

/* A store that cannot take the new epoch keeps the one that it replaces, whatever is committed after it. */
START_TEST(epoch_is_replaced_or_kept)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	struct error err = ERROR_INIT;
	sqlite3 *db;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_begin_epoch(s, 0, false, &err), &err);
	ck_ok(store_commit(s, &err), &err);
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
	ck_assert_int_lt(store_begin_epoch(s, 7, true, &err), 0);
	ck_ok(store_commit(s, &err), &err);
	ck_assert(store_has_epoch(s, 1));
	ck_assert_int_eq(store_epoch(s), 1);
	ck_assert_int_eq(store_newest_epoch(s), 1);
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

/* As long as the store is open, no other process gets in, whatever was opened and closed in this one before.
 */
START_TEST(store_keeps_others_out)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = make_run(1, 1);
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
	ck_ok(store_commit(s, &err), &err);
	ck_assert_int_eq(opener_status(pids[2], go[2]), EBUSY);
	store_close(steal_pointer(s));
	ck_assert_int_eq(opener_status(pids[3], go[3]), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* What is written while the copy is made is in it. */
START_TEST(store_is_copied_live)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir),
	                    *to = str_printf("%s/copy", dir);
	_cleanup_(store_closep) struct store *s = NULL, *copy = NULL;
	_cleanup_(store_backup_freep) struct store_backup *b = NULL;
	_cleanup_(run_freep) struct run *r = make_run(1, 1), *back = NULL;
	struct error err = ERROR_INIT;
	bool done = false;
	int slices = 0;

	ck_ok(store_open(path, &s, &err), &err);
	for (int i = 0; i < 500; i++)
		ck_ok(store_insert(s, r, "{\"some\":\"text that takes a part of a page\"}", &err), &err);
	ck_ok(store_commit(s, &err), &err);
	ck_ok(file_write_atomic(to, "", 0, 0600, &err), &err);
	ck_ok(store_backup_begin(s, to, &b, &err), &err);
	while (!done) {
		ck_ok(store_backup_step(b, 4, &done, &err), &err);
		if (slices++ == 3) {
			ck_ok(store_insert(s, r, "{}", &err), &err);
			ck_ok(store_backup_step(b, 4, &done, &err), &err); /* a transaction is open: later */
			ck_ok(store_commit(s, &err), &err);
		}
	}
	ck_assert_int_gt(slices, 4);
	store_backup_free(steal_pointer(b));
	ck_ok(store_open(to, &copy, &err), &err);
	ck_ok(store_get(copy, 501, &back, &err), &err);
	ck_assert_str_eq(back->user, "alice");
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(store_survives)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *config = NULL;
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = make_run(2, 1), *back = NULL;
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
	place(r);
	run_set_reason(r, "because");
	r->progress = json_pack("{s:i}", "step", 5);
	ck_ok(store_update(s, r, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	ck_ok(store_set_drained(s, "n2", true, "a new fan", &err), &err);
	ck_ok(store_set_drained(s, "n3", true, NULL, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	/* Not committed: as if it had never been. */
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
	ck_ok(store_list(s, run_state_set("all"), 0, 10, count_run, seen, &err), &err);
	ck_assert_int_eq(seen[1], 1);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The controller is killed and starts again: all that it knows of the run is in its store. */
static void restart(struct store *s, struct run **r)
{
	struct error err = ERROR_INIT;
	int64_t id = (*r)->id;

	ck_assert((*r)->dirty);
	ck_ok(store_update(s, *r, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	run_free(*r);
	*r = NULL;
	ck_ok(store_get(s, id, r, &err), &err);
	ck_ok(run_recover(*r, 1000, &err), &err);
}

/* A run is stopping when the controller is restarted: it ends with the same words as without. */
START_TEST(cause_outlives_the_controller)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = make_run(2, 1);
	_cleanup_json_ json_t *view = NULL, *left = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_insert(s, r, "{}", &err), &err);
	place(r);
	ck_ok(store_update(s, r, &err), &err);
	r->dirty = false;
	switch (_i) {
	case 0: /* a start was refused: that node has no attempt that it could have lost */
		run_refused(r, run_part_find(r, "n1"), false, "private: no directory", 150);
		restart(s, &r);
		ck_assert(run_part_find(r, "n1")->ended && !run_part_find(r, "n2")->ended);
		report(r, "n2", "ended", RANK1_OK);
		ck_assert_str_eq(r->reason, "node n1: the start has failed");
		ck_assert_str_eq(r->detail, "node n1: private: no directory");
		break;
	case 1: /* by a node whose slots were taken: it waits again */
		run_refused(r, run_part_find(r, "n1"), true, "slot 0 is leased to run 9", 150);
		restart(s, &r);
		report(r, "n2", "ended", RANK1_OK);
		ck_assert_int_eq(r->state, RUN_QUEUED);
		break;
	case 2: /* both ranks fail, and one said why; its device is the first cause */
		run_worker_error(r, 0, "private: rank 1 is gone", true);
		run_worker_error(r, 1, "private: no such column", false);
		report_with(r, "n1", "ended",
		            "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"ended\":50.0,"
		            "\"error\":\"private: traceback\"}",
		            "\"device_errors\":[\"GPU 0 of n1: Xid 79\"],");
		restart(s, &r);
		report(r, "n2", "ended",
		       "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1,\"ended\":50.1}");
		ck_assert_str_eq(r->reason, "GPU 0 of n1: Xid 79; rank 1 on n2: exit status 1");
		ck_assert_str_eq(r->detail, "private: no such column");
		break;
	case 3: /* the lines of the log of a part that has ended are not reported again */
		report(r, "n2", "ended", RANK1_KILLED);
		restart(s, &r);
		report(r, "n1", "ended", RANK0_OK);
		ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
		ck_assert_str_eq(r->detail, "last line");
		break;
	case 4: /* the store of an earlier version, which kept nothing of it */
		r->failed = true;
		r->state = RUN_STOPPING;
		run_set_reason(r, "a part of it has failed, the rest is being stopped");
		run_touch(r);
		restart(s, &r);
		report(r, "n1", "ended", RANK0_OK);
		report(r, "n2", "ended", RANK1_OK);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_ptr_null(strstr(r->reason, "is being stopped"));
		break;
	case 5: /* cancelled when it had failed */
		report(r, "n2", "ended", RANK1_KILLED);
		run_cancel(r, 160);
		restart(s, &r);
		report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, RUN_CANCELLED);
		ck_assert_ptr_null(r->reason);
		break;
	case 6: /* gone before, but noticed only now: it did not make the other fail, long ago */
		report(r, "n2", "ended", RANK1_KILLED);
		restart(s, &r);
		run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 0, 1010);
		ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL");
		break;
	case 7: /* gone when the controller started at the latest: the other failed for it, 8 s later */
		run_touch(r);
		restart(s, &r);
		run_part_lost(r, run_part_find(r, "n1"), "node n1 is down", 0, 1010);
		report(r, "n2", "ended",
		       "{\"rank\":1,\"state\":\"exited\",\"exit_status\":1,\"ended\":1001.0}");
		ck_assert_str_eq(r->reason, "node n1 is down");
		break;
	}
	view = run_to_json(r, false);
	text = json_to_string(view);
	ck_assert_ptr_null(strstr(text, "private"));
	ck_assert_ptr_null(strstr(text, "last line"));
	left = run_under_way(r);
	ck_assert_ptr_null(left); /* nothing of it stays in the store */
	file_remove_tree(dir, NULL);
}
END_TEST

/* As dtrain 0.1 made it. */
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

/* The reason was shown to everybody: what was private in it is the owner's now. */
static const char *const old_reasons[][2] = {
    {"rank 1 on n2: exit status 3", "rank 1 on n2: exit status 3: private\nlines"},
    {"GPU 3 of n2: Xid 79: fell off the bus",
     "GPU 3 of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL\nprivate"},
    {"node n2: the start has failed", "node n2: private"},
    {"node n2 is down: no heartbeat for 5 s", NULL},
};

START_TEST(store_of_the_first_layout)
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
		ck_assert(store_drained(s, "n1", &reason));
		ck_assert_ptr_null(reason);
		for (size_t k = 0; k < ARRAY_SIZE(old_reasons); k++) {
			_cleanup_(run_freep) struct run *r = NULL;

			ck_ok(store_get(s, (int64_t)k + 1, &r, &err), &err);
			ck_assert_str_eq(r->reason, old_reasons[k][0]);
			ck_assert_pstr_eq(r->detail, old_reasons[k][1]);
		}
		ck_ok(store_set_drained(s, "n2", true, "a new fan", &err), &err);
		ck_ok(store_commit(s, &err), &err);
		store_close(steal_pointer(s));
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* The times are printed, not judged: a test machine may be busy. */
START_TEST(store_many)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = make_run(1, 1);
	struct error err = ERROR_INIT;
	int64_t all[2] = {0, 0}, active[2] = {0, 0}, counts[RUN_STATES];
	double t;

	ck_ok(store_open(path, &s, &err), &err);
	t = clock_monotonic();
	for (int i = 0; i < 11000; i++) {
		r->state = i < 10000 ? RUN_SUCCEEDED : RUN_QUEUED;
		ck_ok(store_insert(s, r, "{\"task\":\"command\"}", &err), &err);
	}
	ck_ok(store_commit(s, &err), &err);
	printf("11000 runs written: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("all"), 0, 100, count_run, all, &err), &err);
	printf("newest 100 listed: %.2f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 100);
	memset(all, 0, sizeof(all));
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("all"), 0, 100000, count_run, all, &err), &err);
	printf("all 11000 listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 11000);
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("active"), 0, 100000, count_run, active, &err), &err);
	printf("1000 active listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(active[1], 1000);
	ck_ok(store_counts(s, counts, &err), &err);
	ck_assert_int_eq(counts[RUN_SUCCEEDED], 10000);
	ck_assert_int_eq(counts[RUN_QUEUED], 1000);
	file_remove_tree(dir, NULL);
}
END_TEST

static json_t *heartbeat(const char *node, const char *instance, int sequence)
{
	return json_pack("{s:s,s:s,s:i,s:s,s:[{s:s,s:i,s:s,s:n},{s:s,s:i,s:s,s:i}],s:[i,i]}", "node", node,
	                 "instance", instance, "sequence", sequence, "version", "1", "devices", "node", node,
	                 "index", 0, "state", "free", "run", "node", node, "index", 1, "state", "leased",
	                 "run", 7, "ports", 4001, 4002);
}

static void on_down(void *context, struct member *m)
{
	strcat(context, m->name);
}

static bool keep_none(void *context, const char *name)
{
	return false;
}

START_TEST(members_come_and_go)
{
	static const char text[] = "a slots=2\nb slots=2 addr=10.0.0.2 port=7 fast\n",
	                  less[] = "b slots=2\nc slots=1\n", other[] = "c slots=1\n";
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL, *fewer = NULL, *none = NULL;
	_cleanup_json_ json_t *beat = heartbeat("b", "x", 3), *list = NULL, *nodes = NULL, *devices = NULL;
	struct error err = ERROR_INIT;
	char down[16] = "";
	struct member *b;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(hosts_parse(less, strlen(less), "hosts", &fewer, &err), &err);
	ck_ok(hosts_parse(other, strlen(other), "hosts", &none, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	b = members_find(m, "B");
	ck_assert_ptr_nonnull(b);
	ck_assert_int_eq(b->port, 7);
	ck_assert_int_eq(member_kind(b), SLOT_ANY);
	ck_assert(member_awaited(b));
	ck_assert(member_heartbeat(b, beat, 101, 1000));
	ck_assert(!member_heartbeat(b, beat, 102, 1001));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(!member_awaited(b) && member_awaited(members_find(m, "a")));
	ck_assert_uint_eq(member_free_slots(b), 1);
	member_release(b, 7);
	ck_assert_uint_eq(member_free_slots(b), 2);
	ck_assert_int_ne(member_take_port(b, 1), member_take_port(b, 1));
	ck_assert_int_gt(member_take_port(b, 1), 1024);
	/* Where the node has a range, what is taken without having been offered is of it, too. */
	json_object_set_new(beat, "port_range", json_pack("[i,i]", 700, 702));
	member_heartbeat(b, beat, 102, 1001);
	ck_assert_int_eq(member_take_port(b, 1), 4002);
	ck_assert_int_eq(member_take_port(b, 1), 4001);
	for (int i = 0; i < 20; i++) {
		int port = member_take_port(b, i);

		ck_assert(port >= 700 && port <= 702);
	}

	/* a was never heard of, b not since 102. */
	ck_assert_double_eq(members_expire(m, "c", 104, 5, on_down, down), 104.625);
	ck_assert_str_eq(down, "");
	ck_assert_double_eq(members_expire(m, "c", 105.5, 5, on_down, down), 106.125);
	ck_assert_str_eq(down, "a");
	ck_assert(!member_awaited(members_find(m, "a")));
	ck_assert_double_eq(members_expire(m, "c", 107, 5, on_down, down), 0);
	ck_assert_str_eq(down, "ab");
	ck_assert_str_eq(member_state(b), "down");
	ck_assert(!member_awaited(b));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(member_heartbeat(b, beat, 109, 1002));
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	ck_assert_ptr_null(members_find(m, "a"));
	/* Out of the hosts file and back: it has what it knows from us. */
	b->epoch = 5;
	ck_ok(members_set_hosts(m, none, 29600, 110, keep_none, NULL, &err), &err);
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	b = members_find(m, "b");
	ck_assert_int_eq(b->epoch, 5);
	ck_assert(!b->up);
	ck_assert_int_eq(members_find(m, "c")->epoch, 0);
	ck_assert(member_heartbeat(b, beat, 110, 1002));
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_assert(b->up);
	ck_assert_int_eq(b->port, 29600);
	list = members_to_json(m, "b");
	ck_assert_uint_eq(json_array_size(list), 2);
	ck_assert(json_get_bool(json_array_get(list, 0), "controller", false));
	member_set_drained(b, true, "a new fan");
	nodes = members_to_json(m, "b");
	devices = members_devices(m);
	ck_assert_str_eq(json_get_string(json_array_get(nodes, 0), "reason", ""), "a new fan");
	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "state", ""), "drained");
	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "reason", ""), "a new fan");
	member_set_drained(b, false, NULL);
	ck_assert_ptr_null(b->drain_reason);
}
END_TEST

/* A controller that stood still: it knows nothing of what was sent to it meanwhile. */
START_TEST(members_outlive_a_stall)
{
	static const char text[] = "a slots=1\nb slots=1\nc slots=1\n";
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	_cleanup_json_ json_t *a = heartbeat("a", "x", 3), *b = heartbeat("b", "y", 3);
	struct error err = ERROR_INIT;
	char down[16] = "";
	double next;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	ck_assert(member_heartbeat(members_find(m, "a"), a, 100, 1000));
	ck_assert(member_heartbeat(members_find(m, "b"), b, 100, 1000));
	next = members_expire(m, "a", 100, 5, on_down, down);
	ck_assert(next > 100 && next <= 101);
	/* 6 s, then 15 s without a look: nobody is judged, not even one that was never heard of. */
	next = members_expire(m, "a", 106, 5, on_down, down);
	ck_assert(next > 106);
	next = members_expire(m, "a", 121, 5, on_down, down);
	ck_assert_str_eq(down, "");
	/* From then on as ever, but for the node that judges. */
	while (next > 0 && next < 130)
		next = members_expire(m, "a", next, 5, on_down, down);
	ck_assert_double_eq(next, 0);
	ck_assert_str_eq(down, "bc");
	ck_assert_str_eq(member_state(members_find(m, "a")), "up");
}
END_TEST

static void on_key(void *context, const void *value, size_t len)
{
	snprintf(context, 16, "%.*s", value ? (int)len : 4, value ? (const char *)value : "gone");
}

START_TEST(rendezvous_waits)
{
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	struct rendezvous_waiter *w1, *w2, *w3;
	char one[16] = "", two[16] = "", three[16] = "", key[RENDEZVOUS_KEY_MAX + 2], small[32];
	struct error err = ERROR_INIT;
	const void *value;
	size_t len;
	int code;

	ck_ok(rendezvous_create(&r, &err), &err);
	ck_assert_int_eq(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), -ENOENT);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, one, &w1, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, two, &w2, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "c", on_key, three, &w3, &err), &err);
	rendezvous_unwait(w2);
	ck_ok(rendezvous_put(r, 1, 1, 1000, "a/b", "hello", 5, &err), &err);
	ck_assert_str_eq(one, "hello");
	ck_assert_str_eq(two, "");
	ck_ok(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), &err);
	ck_assert(len == 5 && memcmp(value, "hello", 5) == 0);
	ck_assert_int_eq(rendezvous_get(r, 2, 1, "a/b", &value, &len, &err), -ENOENT);

	/* A newer attempt: the older one's waiters hear of it, its keys are gone, it may not come back. */
	ck_ok(rendezvous_put(r, 1, 2, 1000, "d", "x", 1, &err), &err);
	ck_assert_str_eq(three, "gone");
	ck_assert_int_eq(rendezvous_get(r, 1, 2, "a/b", &value, &len, &err), -ENOENT);
	ck_assert_int_eq(rendezvous_put(r, 1, 1, 1000, "a/b", "late", 4, &err), -ESTALE);

	memset(key, 'k', sizeof(key));
	key[sizeof(key) - 1] = '\0';
	ck_assert_int_eq(rendezvous_put(r, 1, 2, 1000, key, "x", 1, &err), -EINVAL);
	ck_assert_int_eq(rendezvous_put(r, 1, 2, 1000, "big", key, 2000, &err), -ENOSPC);
	/* A key set again takes no more room; many small ones do, the empty ones too. */
	for (int i = 0; i < 100; i++)
		ck_ok(rendezvous_put(r, 1, 2, 1000, "same", key, 150, &err), &err);
	for (code = 0, len = 0; code == 0 && len < 100; len++) {
		snprintf(small, sizeof(small), "small-%zu", len);
		code = rendezvous_put(r, 1, 2, 1000, small, "", 0, &err);
	}
	ck_assert_int_eq(code, -ENOSPC);
	ck_assert_ptr_nonnull(strstr(err.message, "the rendezvous of run 1 is full"));
	ck_ok(rendezvous_wait(r, 1, 2, "never", on_key, three, &w3, &err), &err);
	three[0] = '\0';
	rendezvous_drop(r, 1);
	ck_assert_str_eq(three, "gone");
}
END_TEST

START_TEST(queue_order)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	struct run *r;

	for (int i = 1; i <= 50; i++) {
		r = make_run(1, 1);
		r->id = i * 2;
		ck_ok(queue_push(&q, r, &err), &err);
	}
	ck_assert_int_eq(queue_find(&q, 42)->id, 42);
	ck_assert_ptr_null(queue_find(&q, 43));
	r = queue_take(&q, 42);
	ck_assert_ptr_null(queue_find(&q, 42));
	ck_assert_uint_eq(q.count, 49);
	ck_assert_int_lt(queue_push(&q, r, &err), 0);
	run_free(r);
	queue_clear(&q);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cluster");
	TCase *c = tcase_create("cluster");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, all_slots_until_placed);
	tcase_add_test(c, one_rank_per_node);
	tcase_add_test(c, run_succeeds);
	tcase_add_test(c, run_fails_with_the_first_cause);
	tcase_add_test(c, run_fails_with_its_device);
	tcase_add_test(c, run_worker_says_why);
	tcase_add_test(c, run_is_cancelled);
	tcase_add_test(c, run_is_refused_or_lost);
	tcase_add_test(c, run_that_was_begun_is_not_queued_again);
	tcase_add_test(c, run_of_an_older_store_is_superseded);
	tcase_add_test(c, store_counts_epochs_and_numbers);
	tcase_add_loop_test(c, epoch_that_is_not_committed_is_undone, 0, 2);
	tcase_add_test(c, epoch_is_replaced_or_kept);
	tcase_add_test(c, store_survives);
	tcase_add_loop_test(c, cause_outlives_the_controller, 0, 8);
	tcase_add_test(c, store_of_the_first_layout);
	tcase_add_test(c, store_keeps_others_out);
	tcase_add_test(c, store_is_copied_live);
	tcase_add_test(c, store_many);
	tcase_add_test(c, members_come_and_go);
	tcase_add_test(c, members_outlive_a_stall);
	tcase_add_test(c, rendezvous_waits);
	tcase_add_test(c, queue_order);
	return unit_run(s);
}
