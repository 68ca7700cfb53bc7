/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, ends and restored stores of a service, and the effect on the runs on its node. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "dtraind/daemon.h"
#include "dtraind/shutdown.h"

static struct daemon_fixture f;

static void setup(void)
{
	daemon_fixture_start(&f, NULL);
}

static void teardown(void)
{
	daemon_fixture_teardown(&f);
}

static json_t *get_run(int64_t run)
{
	_cleanup_free_ char *target = str_printf("/v1/runs/%lld", (long long)run);

	return daemon_get(&f, NULL, target);
}

static void reason_is(int64_t run, const char *words)
{
	_cleanup_json_ json_t *r = get_run(run);

	ck_assert_msg(strstr(json_get_string(r, "reason", ""), words), "run %lld: %s, not %s", (long long)run,
	              json_get_string(r, "reason", ""), words);
}

START_TEST(a_second_service_is_refused_the_directories)
{
	struct daemon *d = NULL;
	struct error err = ERROR_INIT;

	/* By the lock, before it has touched anything: the store and the socket would refuse it later. */
	ck_assert_int_eq(daemon_create(f.config, &d, &err), -EBUSY);
	ck_assert_msg(strstr(err.message, "runtime_dir"), "%s", err.message);
	ck_assert_ptr_null(d);
	/* The first service is not affected. */
	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 1, "succeeded");
}
END_TEST

/* Creates a service next to the first one, in directories of its own but for what the case says. */
static int create_other(const char *runtime, const char *state, const char *log, const char *socket, int port,
                        struct daemon **out, struct error *err)
{
	_cleanup_free_ char *config = str_path_join(f.dir, "other.conf"),
	                    *text = str_printf("node = \"n1\"; hosts_file = \"%s/others\"; cluster_key = "
	                                       "\"%s/cluster.pem\"; group = \"\"; cpu_slots = 2; listen = "
	                                       "\"127.0.0.1\"; port = %d; runtime_dir = \"%s/%s\"; "
	                                       "state_dir = \"%s/%s\"; log_dir = \"%s/%s\"; socket = "
	                                       "\"%s/%s\";\n",
	                                       f.dir, f.dir, port, f.dir, runtime, f.dir, state, f.dir, log,
	                                       f.dir, socket);

	daemon_fixture_write(&f, "other.conf", text);
	return daemon_create(config, out, err);
}

#define TWO "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.2\n"

/* Each part of the set-up may fail; then nothing is left of the service, which could be created again. */
START_TEST(a_service_that_cannot_be_set_up_is_not_created)
{
	static const struct {
		const char *runtime, *state, *log, *socket, *hosts;
		int code;
		const char *words;
	} cases[] = {
	    {"r", "s", "l", "t/sock", "n2 slots=2\n", -ENOENT, "node \"n1\" of dtraind.conf"},
	    {"hosts/x", "s", "l", "t/sock", TWO, -ENOTDIR, "runtime_dir: cannot make directory"},
	    {"r", "hosts/x", "l", "t/sock", TWO, -ENOTDIR, "state_dir: cannot make directory"},
	    {"r", "s", "hosts/x", "t/sock", TWO, -ENOTDIR, "cannot make directory"},
	    {"r", "s", "l", "hosts/sock", TWO, -ENOTDIR, "cannot make directory"},
	    {"r", "taken", "l", "t/sock", TWO, -EINVAL, "dtrain.db: not a regular file"},
	    {"r", "spoiled", "l", "t/sock", TWO, -ENOTDIR, "spoiled/runs: Not a directory"},
	    {"r", "s", "l", "t/sock", TWO, -EADDRINUSE, "127.0.0.1"},
	    {"r", "s", "l", "dtraind.sock", "n1 slots=2\n", -EADDRINUSE, "another dtraind answers there"},
	};
	_cleanup_free_ char *taken = str_path_join(f.dir, "taken/dtrain.db"),
	                    *spoiled = str_path_join(f.dir, "spoiled");
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	int port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct daemon *d = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(taken, 0755, &err), &err);
	ck_ok(file_mkdirs(spoiled, 0755, &err), &err);
	daemon_fixture_write(&f, "spoiled/runs", "");
	ck_assert_int_eq(bind(port, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(listen(port, 1), 0);
	ck_assert_int_eq(getsockname(port, (struct sockaddr *)&sin, &len), 0);
	ck_assert_int_eq(dup2(port, STDIN_FILENO), STDIN_FILENO);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct error why = ERROR_INIT;

		daemon_fixture_write(&f, "others", cases[i].hosts);
		ck_assert_int_eq(create_other(cases[i].runtime, cases[i].state, cases[i].log, cases[i].socket,
		                              ntohs(sin.sin_port), &d, &why),
		                 cases[i].code);
		ck_assert_msg(strstr(why.message, cases[i].words), "%s, not %s", why.message, cases[i].words);
		ck_assert_ptr_null(d);
		/* It closes what it has opened. */
		ck_assert_int_ge(fcntl(STDIN_FILENO, F_GETFD), 0);
	}
	close(port);
	ck_ok(create_other("r", "s", "l", "t/sock", f.port, &d, &err), &err);
	daemon_destroy(d);
}
END_TEST

/* And says on its standard output what it has ended. */
static void end_runs(const char *words)
{
	_cleanup_free_ char *path = str_path_join(f.dir, "stdout"), *text = NULL;
	struct error err = ERROR_INIT;
	int before = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), r;

	fflush(stdout);
	ck_assert_int_eq(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
	r = shutdown_end_runs(f.config, &err);
	fflush(stdout);
	dup2(before, STDOUT_FILENO);
	close(before);
	close(fd);
	ck_ok(r, &err);
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, words);
}

START_TEST(all_runs_of_a_node_are_ended_by_its_service)
{
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	daemon_await(&f, 1, "running");
	end_runs("1 run on this node ended\n");
	daemon_await(&f, 1, "failed");
	reason_is(1, "node n1 was shut down");
	/* Nothing starts here until the service does. */
	daemon_submit(&f, NULL, "true", 1, 1);
	{
		_cleanup_json_ json_t *r = get_run(2);

		ck_assert_str_eq(json_get_string(r, "state", ""), "queued");
	}
	end_runs(""); /* there is nothing to end */
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	daemon_await(&f, 2, "succeeded");
}
END_TEST

START_TEST(runs_are_ended_where_no_service_runs)
{
	daemon_submit(&f, NULL, "exec sleep 60", 1, 1);
	daemon_await(&f, 1, "running");
	daemon_submit(&f, NULL, "exec sleep 60", 1, 1);
	daemon_await(&f, 2, "running");
	daemon_fixture_stop(&f);
	end_runs("2 runs on this node ended\n");
	daemon_fixture_again(&f);
	daemon_await(&f, 1, "failed");
	daemon_await(&f, 2, "failed");
	daemon_submit(&f, NULL, "true", 1, 2);
	daemon_await(&f, 3, "succeeded");
}
END_TEST

/* It has lost its socket: no other process may end the runs that it has. */
START_TEST(runs_are_not_ended_beside_their_service)
{
	struct error err = ERROR_INIT;

	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	daemon_await(&f, 1, "running");
	ck_assert_int_eq(unlink(f.socket), 0);
	ck_assert_int_eq(shutdown_end_runs(f.config, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "runs with runtime_dir = "));
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	daemon_await(&f, 1, "running");
}
END_TEST

START_TEST(runs_cannot_be_ended_by_a_file_that_is_not_there)
{
	_cleanup_free_ char *path = str_path_join(f.dir, "nix.conf");
	struct error err = ERROR_INIT;

	ck_fails(shutdown_end_runs(path, &err), &err, "nix.conf");
}
END_TEST

static void copy_file(const char *from, const char *to)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_read(from, 0, &text, &len, &err), &err);
	ck_ok(file_write_atomic(to, text, len, 0600, &err), &err);
}

static json_t *foreign_of_n1(void)
{
	_cleanup_json_ json_t *nodes = daemon_get(&f, NULL, "/v1/nodes");

	return json_incref(json_object_get(json_array_get(json_object_get(nodes, "nodes"), 0), "foreign"));
}

/* The store is from before run 2, which is running: run 2 is not ended, and neither its number nor its slots
 * are used again. */
START_TEST(a_restored_store_leaves_alone_what_it_does_not_know)
{
	_cleanup_free_ char *db = str_path_join(f.dir, "state/dtrain.db"),
	                    *old = str_path_join(f.dir, "old.db");
	struct raw_request end = {.method = "POST", .target = "/v1/nodes/n1/cancel-foreign?run=2"},
	                   nothing = {.method = "POST", .target = "/v1/nodes/n1/cancel-foreign?run=7"};
	struct raw_answer a;
	int64_t next;

	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 1, "succeeded");
	daemon_fixture_stop(&f);
	copy_file(db, old);
	daemon_fixture_again(&f);
	ck_assert_int_eq(daemon_submit(&f, NULL, "exec sleep 60", 1, 2), 2);
	daemon_await(&f, 2, "running");
	daemon_fixture_stop(&f);
	copy_file(old, db);
	daemon_fixture_again(&f);
	{
		_cleanup_json_ json_t *foreign = foreign_of_n1();

		ck_assert_uint_eq(json_array_size(foreign), 1);
		ck_assert_int_eq(json_get_int(json_array_get(foreign, 0), "run", 0), 2);
		ck_assert_str_eq(json_get_string(json_array_get(foreign, 0), "state", ""), "running");
	}
	next = daemon_submit(&f, NULL, "true", 1, 1);
	ck_assert_int_gt(next, 2);
	reason_is(next, "waits for 1 node with 1 free CPU slot");
	a = daemon_ask(&f, NULL, &nothing);
	ck_assert_int_eq(a.status, 404);
	free(a.body);
	a = daemon_ask(&f, NULL, &end);
	ck_assert_msg(a.status == 202, "%d: %s", a.status, a.body);
	free(a.body);
	daemon_await(&f, next, "succeeded");
	/* The next heartbeat reports that nothing is left. */
	for (size_t left = 1; left > 0; usleep(20000)) {
		_cleanup_json_ json_t *foreign = foreign_of_n1();

		left = json_array_size(foreign);
	}
}
END_TEST

/* A run that waits in the restored store was started meanwhile: it is not executed a second time. */
START_TEST(a_run_started_after_the_copy_is_not_started_again)
{
	_cleanup_free_ char *db = str_path_join(f.dir, "state/dtrain.db"),
	                    *old = str_path_join(f.dir, "old.db");
	struct raw_request drain = {.method = "POST", .target = "/v1/nodes/n1/drain"},
	                   resume = {.method = "POST", .target = "/v1/nodes/n1/resume"};
	_cleanup_json_ json_t *r = NULL;

	free(daemon_ask(&f, NULL, &drain).body);
	ck_assert_int_eq(daemon_submit(&f, NULL, "exec sleep 60", 1, 2), 1);
	daemon_fixture_stop(&f);
	copy_file(db, old);
	daemon_fixture_again(&f);
	free(daemon_ask(&f, NULL, &resume).body);
	daemon_await(&f, 1, "running");
	daemon_fixture_stop(&f);
	copy_file(old, db);
	daemon_fixture_again(&f);
	daemon_await(&f, 1, "failed");
	reason_is(1, "attempt 1 was started on node n1");
	r = get_run(1);
	ck_assert_int_eq(json_get_int(r, "attempt", -1), 0);
	ck_ok(shutdown_end_runs(f.config, &(struct error)ERROR_INIT), &(struct error)ERROR_INIT);
}
END_TEST

static void expect_log(const char *target, const char *text)
{
	struct raw_answer a = daemon_ask(&f, NULL, &(struct raw_request){.method = "GET", .target = target});

	ck_assert_msg(a.status == 200 && strstr(a.body, text), "%s: %d: %s", target, a.status, a.body);
	free(a.body);
}

static void ck_node(const char *name)
{
	_cleanup_json_ json_t *nodes = daemon_get(&f, NULL, "/v1/nodes");

	ck_assert_str_eq(json_get_string(json_array_get(json_object_get(nodes, "nodes"), 0), "name", ""),
	                 name);
}

/* A run goes on, and one that has ended has its log still. */
START_TEST(a_node_may_be_spelt_in_another_way)
{
	struct raw_request cancel = {.method = "DELETE", .target = "/v1/runs/2"};

	daemon_submit(&f, NULL, "echo first", 1, 1);
	daemon_await(&f, 1, "succeeded");
	daemon_submit(&f, NULL, "echo second; exec sleep 60", 1, 1);
	daemon_await(&f, 2, "running");
	daemon_fixture_stop(&f);
	daemon_fixture_write(&f, "hosts", "N1 slots=2 addr=127.0.0.1\n");
	daemon_fixture_again(&f);
	/* Nothing starts before the node has reported what it has. */
	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 3, "succeeded");
	daemon_await(&f, 2, "running");
	ck_node("N1");
	expect_log("/v1/runs/1/logs", "first\n");
	expect_log("/v1/runs/2/logs", "second\n");
	free(daemon_ask(&f, NULL, &cancel).body);
	daemon_await(&f, 2, "cancelled");
	daemon_submit(&f, NULL, "true", 1, 2);
	daemon_await(&f, 4, "succeeded");
}
END_TEST

/* What it has is not the part that was placed on a node of the earlier name, and is stopped. */
START_TEST(a_run_does_not_go_on_under_another_name)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	daemon_submit(&f, NULL, "exec sleep 60", 1, 1);
	daemon_await(&f, 1, "running");
	daemon_fixture_stop(&f);
	daemon_fixture_write(&f, "hosts", "n9 slots=2 addr=127.0.0.1\n");
	ck_ok(file_read(f.config, 0, &text, &len, &err), &err);
	for (char *at = text; (at = strstr(at, "\"n1\"")); at++)
		at[2] = '9';
	daemon_fixture_write(&f, "dtraind.conf", text);
	daemon_fixture_again(&f);
	daemon_await(&f, 1, "failed");
	reason_is(1, "node n1 is down: removed from the hosts file");
	daemon_submit(&f, NULL, "true", 1, 2);
	daemon_await(&f, 2, "succeeded");
	ck_node("n9");
}
END_TEST

/* A file system that does not answer: the start hangs before it is an attempt, on the controller's own
 * node. */
START_TEST(a_start_that_hangs_is_cancelled)
{
	static const char script[] = "#!/bin/sh\nexec sleep 1000\n";
	_cleanup_free_ char *cwd = getcwd(NULL, 0), *dir = str_path_join(f.dir, "libexec"),
	                    *launcher = str_path_join(f.dir, "libexec/dtrain-launch"),
	                    *was = str_printf("worker_dir = \"%s\";", cwd), *text = NULL, *changed = NULL;
	struct error err = ERROR_INIT;
	const char *at;
	size_t len;

	ck_ok(file_mkdirs(dir, 0755, &err), &err);
	ck_ok(file_write_atomic(launcher, script, strlen(script), 0755, &err), &err);
	daemon_fixture_stop(&f);
	ck_ok(file_read(f.config, 0, &text, &len, &err), &err);
	at = strstr(text, was);
	ck_assert_ptr_nonnull(at);
	changed = str_printf("%.*sworker_dir = \"%s\";%s", (int)(at - text), text, dir, at + strlen(was));
	daemon_fixture_write(&f, "dtraind.conf", changed);
	daemon_fixture_again(&f);
	/* The second one has both slots: the first gave its slot back. */
	for (int run = 1; run <= 2; run++) {
		_cleanup_free_ char *target = str_printf("/v1/runs/%d", run);
		struct raw_request cancel = {.method = "DELETE", .target = target};
		struct raw_answer a;

		ck_assert_int_eq(daemon_submit(&f, NULL, "true", 1, run), run);
		daemon_await(&f, run, "starting");
		a = daemon_ask(&f, NULL, &cancel);
		ck_assert_msg(a.status / 100 == 2, "%d: %s", a.status, a.body);
		free(a.body);
		daemon_await(&f, run, "cancelled");
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon life");
	TCase *c = tcase_create("daemon life");

	tcase_set_timeout(c, 120);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_second_service_is_refused_the_directories);
	tcase_add_test(c, a_service_that_cannot_be_set_up_is_not_created);
	tcase_add_test(c, all_runs_of_a_node_are_ended_by_its_service);
	tcase_add_test(c, runs_are_ended_where_no_service_runs);
	tcase_add_test(c, runs_are_not_ended_beside_their_service);
	tcase_add_test(c, runs_cannot_be_ended_by_a_file_that_is_not_there);
	tcase_add_test(c, a_restored_store_leaves_alone_what_it_does_not_know);
	tcase_add_test(c, a_run_started_after_the_copy_is_not_started_again);
	tcase_add_test(c, a_node_may_be_spelt_in_another_way);
	tcase_add_test(c, a_run_does_not_go_on_under_another_name);
	tcase_add_test(c, a_start_that_hangs_is_cancelled);
	return unit_run(s);
}
