/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how a controller begins, and what it does with answers and submissions that come late or twice. */
#include <sqlite3.h>

#include "commit_bed.h"

/* ---- the beginning ---- */

static int create(struct bed *b, struct store *store, bool begun, struct controller **c, struct error *err)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct controller_options options = bed_options(b, hosts);

	options.store = store;
	options.begun = begun;
	return controller_create(&options, c, err);
}

/* Its store is the one in state_dir, where it is given none. */
START_TEST(a_controller_opens_its_store)
{
	struct bed b = {.dir = unit_tmpdir(), .now = 1000};
	_cleanup_free_ char *path = str_path_join(b.dir, "dtrain.db");
	struct controller *c = NULL;
	struct error err = ERROR_INIT;
	struct store *store;
	int64_t epoch;

	ck_ok(create(&b, NULL, false, &c, &err), &err);
	ck_assert_int_ge(controller_store_fd(c), 0);
	ck_assert_ptr_nonnull(controller_rendezvous(c));
	controller_destroy(c);
	ck_ok(store_open(path, &store, &err), &err);
	epoch = store_epoch(store);
	ck_assert_int_gt(epoch, 0);
	store_close(store);
	/* With each controller another epoch begins, unless that was done for it. */
	ck_ok(create(&b, NULL, false, &c, &err), &err);
	controller_destroy(c);
	ck_ok(store_open(path, &store, &err), &err);
	ck_assert_int_eq(store_epoch(store), epoch + 1);
	ck_ok(create(&b, store, true, &c, &err), &err);
	controller_destroy(c);
	ck_ok(store_open(path, &store, &err), &err);
	ck_assert_int_eq(store_epoch(store), epoch + 1);
	store_close(store);
	controller_destroy(NULL);
	file_remove_tree(b.dir, NULL);
	free(b.dir);
}
END_TEST

START_TEST(a_controller_that_cannot_begin_says_why)
{
	struct bed b = {.dir = unit_tmpdir(), .now = 1000};
	_cleanup_free_ char *path = str_path_join(b.dir, "dtrain.db"), *runs = str_path_join(b.dir, "runs"),
	                    *want = str_printf("cannot read %s: Not a directory", runs);
	struct controller *c = NULL;
	struct error err = ERROR_INIT;
	struct store *store;

	ck_ok(file_write_atomic(runs, "x", 1, 0600, &err), &err);
	ck_assert_int_eq(create(&b, NULL, false, &c, &err), -ENOTDIR);
	ck_assert_str_eq(err.message, want);
	ck_assert_ptr_null(c);
	/* The store is closed: another may have it. */
	ck_ok(store_open(path, &store, &err), &err);
	ck_assert_int_eq(create(&b, store, true, &c, &err), -ENOTDIR);
	ck_ok(store_open(path, &store, &err), &err);
	store_close(store);
	ck_assert_int_eq(unlink(runs), 0);
	ck_ok(
	    file_write_atomic(path, "this is no database, and long enough to be read as one", 54, 0600, &err),
	    &err);
	ck_fails(create(&b, NULL, false, &c, &err), &err, "dtrain.db");
	ck_assert_ptr_null(c);
	file_remove_tree(b.dir, NULL);
	free(b.dir);
}
END_TEST

static void note_flush(void *context)
{
	++*(int *)context;
}

START_TEST(each_flush_is_said)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct bed b = {.dir = unit_tmpdir(), .now = 1000};
	struct controller_options options = bed_options(&b, hosts);
	struct controller *c = NULL;
	struct error err = ERROR_INIT;
	int flushes = 0;

	options.flushed = note_flush;
	options.context = &flushes;
	ck_ok(controller_create(&options, &c, &err), &err);
	ck_assert_int_eq(flushes, 0);
	controller_run_timer(c, CONTROLLER_FLUSH);
	ck_assert_int_eq(flushes, 1);
	controller_destroy(c);
	file_remove_tree(b.dir, NULL);
	free(b.dir);
}
END_TEST

/* One run that cannot be read is no reason not to serve the others; what the store has of it is shown. */
START_TEST(a_run_that_cannot_be_read_is_left_out)
{
	_cleanup_free_ char *path = NULL;
	struct answer first, second;
	sqlite3 *db;
	struct bed b;

	bed_start(&b);
	path = str_path_join(b.dir, "dtrain.db");
	submit_and_commit(&b, &first);
	submit_and_commit(&b, &second);
	bed_close(&b);
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "UPDATE runs SET config = '{' WHERE id = 1", NULL, NULL, NULL),
	                 SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	b.starts[0] = '\0';
	bed_open(&b);
	ck_assert_uint_eq(controller_active_count(b.controller), 1);
	ck_assert_int_eq(controller_active_run(b.controller, 0)->id, 2);
	ck_assert_str_eq(b.starts, "n2:2.1 n1:2.1 ");
	ck_assert_int_eq(state_of(&b, 1), RUN_STARTING);
	bed_end(&b);
}
END_TEST

static void note_copy(void *context, int code, const struct error *err)
{
	*(int *)context = code;
}

START_TEST(a_copy_of_the_store_is_made)
{
	_cleanup_free_ char *path = NULL;
	struct store_backup *copy = NULL;
	struct error err = ERROR_INIT;
	int code = 1;
	struct stat st;
	struct bed b;

	bed_start(&b);
	path = str_path_join(b.dir, "copy.db");
	ck_ok(file_write_atomic(path, "", 0, 0600, &err), &err);
	ck_ok(controller_backup_begin(b.controller, path, note_copy, &code, &copy, &err), &err);
	while (code > 0) {
		held_store_await_done(b.store);
		turn(&b);
	}
	ck_assert_int_eq(code, 0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_gt(st.st_size, 0);
	store_backup_free(copy);
	bed_end(&b);
}
END_TEST

/* ---- answers that come late ---- */

/* The start reached the node, which has ended its part since: nothing is lost. */
START_TEST(a_start_that_is_given_up_after_its_end_is_not_waited_for)
{
	struct answer a;
	struct bed b;

	bed_start(&b);
	b.keeps_answer = true;
	submit_and_commit(&b, &a);
	ck_assert_ptr_nonnull(b.late);
	free(heartbeat(&b, "n2",
	               "{\"run\":1,\"attempt\":1,\"node\":\"n2\",\"state\":\"ended\",\"ranks\":[{"
	               "\"rank\":1,\"state\":\"exited\",\"exit_status\":0}]}"));
	b.late(b.late_context,
	       &(struct peer_result){.code = -EHOSTUNREACH, .message = "no answer within 30 s"});
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(state_of(&b, 1), RUN_STARTING);
	ck_assert_uint_eq(controller_active_run(b.controller, 0)->lost_count, 0);
	bed_end(&b);
}
END_TEST

/* A node that cannot be reached is asked to stop its part. What it said before its answer proves nothing. */
START_TEST(a_heartbeat_from_before_the_stop_does_not_end_the_wait)
{
	_cleanup_free_ char *ended = report(1, 1, "n1", 0, "ended");
	struct answer a;
	struct bed b;

	bed_start(&b);
	b.refusal = -EHOSTUNREACH;
	b.stopped = (struct peer_result){.instance = "x", .sequence = b.sequence + 3};
	submit_and_commit(&b, &a);
	ck_assert_ptr_nonnull(strstr(b.stops, "n2:1.1"));
	free(heartbeat(&b, "n1", ended));
	b.refusal = 0;
	for (int i = 2; i <= 4; i++) {
		b.now += 400;
		free(heartbeat(&b, "n2", ""));
		controller_reschedule(b.controller);
		turn(&b);
		commits_end(&b);
		ck_assert_int_eq(state_of(&b, 1), i < 4 ? RUN_QUEUED : RUN_STARTING);
	}
	ck_assert_int_eq(controller_active_run(b.controller, 0)->attempt, 2);
	bed_end(&b);
}
END_TEST

/* What a node has to know: our time, epoch and highest number, whose they are, and how long its lease is. */
START_TEST(the_answer_to_a_heartbeat_says_what_a_node_needs)
{
	static const char text[] = "{\"node\":\"n2\",\"instance\":\"y\",\"sequence\":1,\"version\":\"1\","
	                           "\"devices\":[],\"attempts\":[]}";
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct bed b = {.dir = unit_tmpdir(), .now = 1000};
	struct controller_options options = bed_options(&b, hosts);
	_cleanup_free_ char *path = str_path_join(b.dir, "dtrain.db");
	struct heartbeat_answer answer;
	struct heartbeat beat;
	struct controller *c = NULL;
	struct error err = ERROR_INIT;
	struct store *store;

	ck_ok(store_open(path, &store, &err), &err);
	options.store = store;
	options.lease = 40;
	options.node_timeout = 6;
	options.most_heartbeats = 1;
	ck_ok(controller_create(&options, &c, &err), &err);
	ck_ok(heartbeat_decode(json, &beat, &err), &err);
	ck_ok(controller_heartbeat(c, &beat, &answer, &err), &err);
	ck_assert_double_eq(answer.time, 1000);
	ck_assert_int_eq(answer.epoch, store_epoch(store));
	ck_assert_int_gt(answer.epoch, 0);
	ck_assert_int_eq(answer.highest_run, 0);
	ck_assert_double_eq(answer.lease, 40);
	ck_assert_double_eq(answer.interval, 2);
	ck_assert_str_eq(answer.cluster, store_cluster(store));
	ck_assert_int_eq(controller_find_node(c, "n2")->epoch, answer.epoch);
	heartbeat_answer_release(&answer);
	heartbeat_release(&beat);
	controller_destroy(c);
	file_remove_tree(b.dir, NULL);
	free(b.dir);
}
END_TEST

/* With another hosts file runs are placed anew, and ages are looked at. */
START_TEST(another_hosts_file_is_looked_at)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct error err = ERROR_INIT;
	struct bed b;

	bed_start(&b);
	ck_assert_double_lt(b.due[CONTROLLER_FLUSH], 0);
	ck_ok(controller_set_hosts(b.controller, hosts, 1, 1e6, &err), &err);
	ck_assert_double_ge(b.due[CONTROLLER_FLUSH], 0);
	ck_assert_double_eq(b.due[CONTROLLER_EXPIRY], 0);
	bed_end(&b);
}
END_TEST

/* Also where a node that has not reported comes before one that has in the new file. */
START_TEST(all_nodes_of_another_hosts_file_are_awaited)
{
	static const char turned[] = "n2 slots=1\nn1 slots=1\n";
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts(), *other = NULL;
	struct bed b = {.dir = unit_tmpdir(), .now = 1000};
	struct controller_options options = bed_options(&b, hosts);
	struct error err = ERROR_INIT;
	struct answer a;

	ck_ok(controller_create(&options, &b.controller, &err), &err);
	submit(&b, &a);
	free(heartbeat(&b, "n1", ""));
	ck_assert_uint_eq(controller_active_count(b.controller), 0);
	ck_ok(hosts_parse(turned, strlen(turned), "hosts", &other, &err), &err);
	ck_ok(controller_set_hosts(b.controller, other, 1, 1e6, &err), &err);
	free(heartbeat(&b, "n1", ""));
	ck_assert_uint_eq(controller_active_count(b.controller), 0);
	free(heartbeat(&b, "n2", ""));
	ck_assert_uint_eq(controller_active_count(b.controller), 1);
	controller_destroy(b.controller);
	file_remove_tree(b.dir, NULL);
	free(b.dir);
}
END_TEST

/* ---- submissions and lists ---- */

/* Keys are each user's own. */
START_TEST(two_users_may_have_the_same_key)
{
	struct answer first, second = {0};
	struct run *other = make_run("k1");
	struct error err = ERROR_INIT;
	struct submission *s;
	struct bed b;

	bed_start(&b);
	submit_with(&b, &first, "k1");
	other->uid = 7;
	ck_ok(controller_submit(b.controller, other, run_on_both, on_submitted, &second, &s, &err), &err);
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(first.count, 1);
	ck_assert_int_eq(first.id, 1);
	ck_assert_int_eq(second.count, 1);
	ck_assert_int_eq(second.id, 2);
	bed_end(&b);
}
END_TEST

static int stop_at_second(void *context, const struct run *r, struct error *err)
{
	return ++*(int *)context == 2 ? -ECANCELED : 0;
}

START_TEST(a_list_ends_where_it_is_refused)
{
	static const char *const sets[] = {"active", "all"};
	struct error err = ERROR_INIT;
	struct answer a;
	struct bed b;

	bed_start(&b);
	for (int i = 0; i < 3; i++)
		submit_and_commit(&b, &a);
	for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
		unsigned states = run_state_set(sets[i]);
		int n = 0;

		ck_assert_int_eq(controller_list_runs(b.controller,
		                                      &(struct run_query){.states = states, .limit = 9},
		                                      stop_at_second, &n, &err),
		                 -ECANCELED);
		ck_assert_int_eq(n, 2);
		n = 0;
		ck_ok(controller_list_runs(b.controller, &(struct run_query){.states = states, .limit = 2},
		                           count, &n, &err),
		      &err);
		ck_assert_int_eq(n, 2);
		n = 0;
		ck_ok(controller_list_runs(b.controller,
		                           &(struct run_query){.states = states, .before = 2, .limit = 9},
		                           count, &n, &err),
		      &err);
		ck_assert_int_eq(n, 1);
	}
	bed_end(&b);
}
END_TEST

static struct run *make_small(double limit)
{
	struct run *r = make_run(NULL);

	r->nodes_asked = (struct key_range){1, 1};
	r->nodes = 1;
	r->time_limit = limit;
	return r;
}

static void submit_small(struct bed *b, struct answer *a, double limit)
{
	struct error err = ERROR_INIT;
	struct submission *s;

	*a = (struct answer){0};
	ck_ok(controller_submit(b->controller, make_small(limit), run_on_both, on_submitted, a, &s, &err),
	      &err);
	turn(b);
	commits_end(b);
	ck_assert_int_eq(a->count, 1);
}

/* As where the store is of another version. */
START_TEST(a_run_that_is_not_understood_is_not_started)
{
	struct error err = ERROR_INIT;
	struct submission *s;
	struct answer a = {0};
	struct bed b;

	bed_start(&b);
	ck_ok(controller_submit(b.controller, make_run(NULL), "{\"task\":\"dance\"}", on_submitted, &a, &s,
	                        &err),
	      &err);
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(a.count, 1);
	ck_assert_str_eq(b.starts, "");
	ck_assert_int_eq(state_of(&b, a.id), RUN_FAILED);
	ck_assert_uint_eq(controller_active_count(b.controller), 0);
	bed_end(&b);
}
END_TEST

/* A timer is set for the first of several runs, whichever came first, and then for the next one. */
START_TEST(the_timer_of_limits_is_that_of_the_first_run)
{
	double limits[] = {_i == 0 ? 50 : 80, _i == 0 ? 80 : 50};
	struct answer a[2];
	struct bed b;

	bed_start(&b);
	for (int i = 0; i < 2; i++)
		submit_small(&b, &a[i], limits[i]);
	ck_assert_double_eq_tol(b.due[CONTROLLER_LIMIT], b.now + 50, 1e-9);
	b.now += 50;
	turn(&b);
	ck_assert_double_eq_tol(b.due[CONTROLLER_LIMIT], b.now + 30, 1e-9);
	ck_assert_int_eq(controller_active_run(b.controller, (size_t)_i)->state, RUN_STOPPING);
	ck_assert_int_eq(controller_active_run(b.controller, 1 - (size_t)_i)->state, RUN_STARTING);
	b.now += 30;
	turn(&b);
	ck_assert_double_lt(b.due[CONTROLLER_LIMIT], 0);
	bed_end(&b);
}
END_TEST

/* The same of runs that wait for the time of their next attempt. */
START_TEST(the_timer_of_retries_is_that_of_the_first_run)
{
	struct answer a[2];
	struct bed b;

	bed_start(&b);
	for (int i = 0; i < 2; i++) {
		submit_small(&b, &a[i], 0);
		((struct run *)controller_active_run(b.controller, (size_t)i))->retries.max_restarts = 9;
		((struct run *)controller_active_run(b.controller, (size_t)i))->retries.record.delays =
		    i == _i ? 2 : 4;
	}
	for (int i = 0; i < 2; i++) {
		const char *node = controller_active_run(b.controller, (size_t)i)->parts[0].node;
		_cleanup_free_ char *text =
		    str_printf("{\"run\":%d,\"attempt\":1,\"node\":\"%s\",\"state\":\"ended\",\"ranks\":[{"
		               "\"rank\":0,\"state\":\"exited\",\"exit_status\":1}]}",
		               i + 1, node);

		free(heartbeat(&b, node, text));
	}
	turn(&b);
	commits_end(&b);
	ck_assert_double_eq_tol(b.due[CONTROLLER_RETRY], b.now + 4, 1e-9);
	b.now += 4;
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(controller_active_run(b.controller, (size_t)_i)->state, RUN_STARTING);
	ck_assert_int_eq(controller_active_run(b.controller, 1 - (size_t)_i)->state, RUN_QUEUED);
	ck_assert_double_eq_tol(b.due[CONTROLLER_RETRY], b.now + 12, 1e-9);
	bed_end(&b);
}
END_TEST

/* Who no longer waits is taken out of the list, wherever it is; the others are called. */
START_TEST(a_waiter_may_go)
{
	struct waiter *waiters[4];
	int called[4] = {-1, -1, -1, -1};
	struct answer a;
	struct bed b;

	bed_start(&b);
	submit_and_commit(&b, &a);
	for (int i = 0; i < 4; i++)
		waiters[i] =
		    waiter_create(b.controller, 1, 1u << RUN_STOPPING, INT64_MAX, note_state, &called[i]);
	waiter_free(NULL);
	for (int i = 0; i < 4; i++)
		if (i != _i)
			waiter_free(waiters[i]);
	controller_cancel_run(b.controller, 1, "alice");
	turn(&b);
	commits_end(&b);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(called[i], i == _i ? RUN_STOPPING : -1);
	/* The end of the controller calls no waiter. */
	ck_assert_ptr_nonnull(waiter_create(b.controller, 1, 0, INT64_MAX, note_state, &called[0]));
	called[0] = -2;
	bed_end(&b);
	ck_assert_int_eq(called[0], -2);
}
END_TEST

/* ---- devices ---- */

/* The devices of a node change between two heartbeats; what is the same is no news. */
START_TEST(devices_that_change_are_looked_at)
{
	struct device_list list = {.devices = calloc(1, sizeof(*list.devices)), .count = 1};
	struct bed b;

	bed_start(&b);
	list.devices[0] = (struct device_info){
	    .node = strdup("n2"), .kind = DEVICE_KIND_CPU, .name = strdup("x"), .state = SLOT_FREE};
	controller_set_devices(b.controller, "n2", &list);
	ck_assert_uint_eq(list.count, 0);
	ck_assert_ptr_null(list.devices);
	ck_assert_double_lt(b.due[CONTROLLER_FLUSH], 0);
	list = (struct device_list){.devices = calloc(1, sizeof(*list.devices)), .count = 1};
	list.devices[0] = (struct device_info){.node = strdup("n2"),
	                                       .kind = DEVICE_KIND_CPU,
	                                       .name = strdup("x"),
	                                       .state = SLOT_DRAINED,
	                                       .reason = strdup("hot")};
	controller_set_devices(b.controller, "n2", &list);
	ck_assert_double_ge(b.due[CONTROLLER_FLUSH], 0);
	ck_assert_int_eq(controller_find_node(b.controller, "n2")->devices[0].state, SLOT_DRAINED);
	/* Of a node that is gone they are dropped. */
	list = (struct device_list){.devices = calloc(1, sizeof(*list.devices)), .count = 1};
	controller_set_devices(b.controller, "n9", &list);
	bed_end(&b);
}
END_TEST

/* A node is resumed while the commit of its drain is in progress, which then fails. */
START_TEST(a_drain_of_a_failed_commit_does_not_replace_a_newer_one)
{
	struct bed b;

	bed_start(&b);
	held_store_fail(b.held, 1);
	ck_assert_int_eq(controller_set_drained(b.controller, "n1", true, "an old fan"), 0);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", true, "an old fan"), 0);
	turn_held(&b);
	ck_assert_int_eq(controller_set_drained(b.controller, "n2", false, NULL), 0);
	commits_end(&b);
	ck_assert(held_store_is_drained(b.held, "n1"));
	ck_assert(!held_store_is_drained(b.held, "n2"));
	bed_end(&b);
}
END_TEST

static void note_commit(void *context, const struct error *err)
{
	*(int *)context = err ? err->code : 0;
}

/* Also where nothing has changed: what was changed before may be in a commit that has not ended. */
START_TEST(who_waits_for_a_commit_has_one)
{
	struct bed b;
	int begun, result = 1;

	bed_start(&b);
	begun = held_store_begun(b.held);
	ck_assert_ptr_nonnull(commit_waiter_create(b.controller, 0, note_commit, &result));
	turn(&b);
	commits_end(&b);
	ck_assert_int_eq(held_store_begun(b.held), begun + 1);
	ck_assert_int_eq(result, 0);
	bed_end(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("controller begin");
	TCase *tc = tcase_create("begin");

	tcase_add_test(tc, a_controller_opens_its_store);
	tcase_add_test(tc, a_controller_that_cannot_begin_says_why);
	tcase_add_test(tc, each_flush_is_said);
	tcase_add_test(tc, a_run_that_cannot_be_read_is_left_out);
	tcase_add_test(tc, a_copy_of_the_store_is_made);
	tcase_add_test(tc, a_start_that_is_given_up_after_its_end_is_not_waited_for);
	tcase_add_test(tc, a_heartbeat_from_before_the_stop_does_not_end_the_wait);
	tcase_add_test(tc, the_answer_to_a_heartbeat_says_what_a_node_needs);
	tcase_add_test(tc, another_hosts_file_is_looked_at);
	tcase_add_test(tc, all_nodes_of_another_hosts_file_are_awaited);
	tcase_add_test(tc, two_users_may_have_the_same_key);
	tcase_add_test(tc, a_list_ends_where_it_is_refused);
	tcase_add_loop_test(tc, the_timer_of_limits_is_that_of_the_first_run, 0, 2);
	tcase_add_loop_test(tc, the_timer_of_retries_is_that_of_the_first_run, 0, 2);
	tcase_add_loop_test(tc, a_waiter_may_go, 0, 4);
	tcase_add_test(tc, devices_that_change_are_looked_at);
	tcase_add_test(tc, a_drain_of_a_failed_commit_does_not_replace_a_newer_one);
	tcase_add_test(tc, a_run_that_is_not_understood_is_not_started);
	tcase_add_test(tc, who_waits_for_a_commit_has_one);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
