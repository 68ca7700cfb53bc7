/* SPDX-License-Identifier: Apache-2.0 */
/* What an attempt has for itself alone on a node, and what is left of it: temporary files, core files,
 * limits. */
#include "node_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "failing_memory.h"
#include "node/launch/session.h"
#include "node/limits.h"
#include "node/tmp_dirs.h"

static struct fixture f; /* Check's fixtures have no other place */

static void setup(void)
{
	fixture_setup(&f);
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static void start(json_t *request)
{
	struct error err = ERROR_INIT;

	ck_ok(fixture_start(&f, request, &err), &err);
	json_decref(request);
}

/* The log of rank 0 of a run of this script. */
static char *log_of(int run, json_t *request)
{
	start(request);
	fixture_await(&f, run, "ended");
	return fixture_log(&f, run, 0);
}

static json_t *set(json_t *request, const char *key, json_t *value)
{
	json_object_set_new(json_object_get(request, "config"), key, value);
	return request;
}

static char *tmp_of(int run)
{
	return str_printf("%s/state/tmp/%d.1", f.dir, run);
}

static void await_removal(const char *path)
{
	while (file_exists(path))
		fixture_turn(&f);
}

START_TEST(each_attempt_has_temporary_files_of_its_own)
{
	_cleanup_free_ char *log = log_of(
	                        1, fixture_shell(
	                               1, 1,
	                               "echo $TMPDIR; stat -c '%a %u' $TMPDIR; ls -A $TMPDIR; cd $TMPDIR; "
	                               "mkdir -p a/b; echo x >a/b/c; ln -s / root; chmod 000 a/b; "
	                               "stat -c %a $TMPDIR/..")),
	                    *tmp = tmp_of(1), *want = str_printf("%s\n700 %d\n711\n", tmp, (int)geteuid());

	ck_assert_str_eq(log, want);
	/* Before the end was reported. */
	ck_assert(!file_exists(tmp));
	ck_assert(file_exists("/etc/passwd"));
}
END_TEST

/* What an earlier cluster has left under the same name is no part of it. */
START_TEST(it_begins_empty)
{
	_cleanup_free_ char *tmp = tmp_of(1), *old = str_printf("%s/old", tmp), *log = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(old, 0755, &err), &err);
	log = log_of(1, fixture_shell(1, 1, "ls -A $TMPDIR; stat -c %a $TMPDIR"));
	ck_assert_str_eq(log, "700\n");
}
END_TEST

START_TEST(a_tmpdir_that_the_run_names_counts)
{
	_cleanup_free_ char *log = log_of(
	    1, set(fixture_shell(1, 1, "echo $TMPDIR"), "environment", json_pack("[s]", "TMPDIR=/scratch")));

	ck_assert_str_eq(log, "/scratch\n");
}
END_TEST

static pid_t parent_of(pid_t pid)
{
	_cleanup_free_ char *path = str_printf("/proc/%d/stat", (int)pid), *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return atoi(strrchr(text, ')') + 3);
}

/* Nothing of the attempt is left that could remove its files; at the second, the service was away, too. */
START_TEST(the_service_removes_what_the_launcher_could_not)
{
	_cleanup_free_ char *tmp = tmp_of(1),
	                    *script = str_printf("echo x >$TMPDIR/x; echo $$ >%s/rank; sleep 1000", f.dir),
	                    *text = NULL;
	pid_t rank, launcher;

	start(fixture_shell(1, 1, script));
	text = fixture_await_file(&f, "rank");
	rank = atoi(text);
	launcher = parent_of(rank);
	if (_i)
		fixture_restart(&f, true);
	kill(parent_of(launcher), SIGKILL);
	kill(launcher, SIGKILL);
	kill(rank, SIGKILL);
	if (_i)
		fixture_restart(&f, false);
	fixture_await(&f, 1, "ended");
	await_removal(tmp);
}
END_TEST

/* As after a restart of the machine. Other files in the directory are not the service's. */
START_TEST(strays_are_removed_when_the_service_starts)
{
	_cleanup_free_ char *stray = str_printf("%s/state/tmp/77.1/a", f.dir),
	                    *tmp = str_printf("%s/state/tmp/77.1", f.dir), *own = tmp_of(1);
	static const char *const others[] = {"77.1.keep", "77", "0.1", "77.0", "-1.1", "x.1"};
	struct error err = ERROR_INIT;

	start(fixture_shell(1, 1, "echo $TMPDIR; sleep 1000"));
	fixture_await(&f, 1, "running");
	fixture_restart(&f, true);
	ck_ok(file_mkdirs(stray, 0755, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		_cleanup_free_ char *other = str_printf("%s/state/tmp/%s", f.dir, others[i]);

		ck_ok(file_mkdirs(other, 0755, &err), &err);
	}
	fixture_restart(&f, false);
	await_removal(tmp);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		_cleanup_free_ char *other = str_printf("%s/state/tmp/%s", f.dir, others[i]);

		ck_assert_msg(file_exists(other), "%s", other);
	}
	ck_assert(file_exists(own));
}
END_TEST

/* What could not be begun is left as it is, and may be asked for again; one removal of two may still be under
 * way when the service ends. */
START_TEST(a_removal_without_memory_is_not_begun)
{
	_cleanup_free_ char *path = tmp_of(5), *second = tmp_of(6), *inner = str_path_join(path, "a/b");
	_cleanup_(tmp_dirs_closep) struct tmp_dirs *dirs = NULL;
	struct daemon_config config = {.state_dir = str_path_join(f.dir, "state")};
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	struct error err = ERROR_INIT;
	bool refused = true;

	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(tmp_dirs_open(event, &config, &dirs, &err), &err);
	ck_ok(file_mkdirs(inner, 0755, &err), &err);
	ck_ok(file_mkdirs(second, 0755, &err), &err);
	for (long n = 1; refused; n++) {
		memory_refused = false;
		memory_left = n;
		tmp_dirs_remove(dirs, 5, 1);
		memory_left = 0;
		refused = memory_refused;
		ck_assert(!refused || file_exists(inner));
	}
	tmp_dirs_remove(dirs, 6, 1);
	tmp_dirs_remove(dirs, 7, 1); /* has none */
	while (file_exists(path) || file_exists(second))
		ck_assert_int_ge(sd_event_run(event, 10000), 0);
	free(config.state_dir);
}
END_TEST

/* Whichever of several removals ends first. */
START_TEST(several_removals_end_one_by_one)
{
	_cleanup_free_ char *small = tmp_of(5), *large = tmp_of(6);
	_cleanup_(tmp_dirs_closep) struct tmp_dirs *dirs = NULL;
	struct daemon_config config = {.state_dir = str_path_join(f.dir, "state")};
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(tmp_dirs_open(event, &config, &dirs, &err), &err);
	ck_ok(file_mkdirs(small, 0755, &err), &err);
	for (int i = 0; i < 2000; i++) {
		_cleanup_free_ char *inner = str_printf("%s/%d", large, i);

		ck_ok(file_mkdirs(inner, 0755, &err), &err);
	}
	tmp_dirs_remove(dirs, 5, 1);
	tmp_dirs_remove(dirs, 6, 1);
	while (file_exists(small) || file_exists(large))
		ck_assert_int_ge(sd_event_run(event, 10000), 0);
	/* The last event of each. */
	while (sd_event_run(event, 10000) > 0)
		;
	free(config.state_dir);
}
END_TEST

/* The hard limit, too: a program cannot raise it. */
START_TEST(there_are_core_files_only_where_the_run_asks)
{
	_cleanup_free_ char *log = NULL;
	struct rlimit limit;

	ck_assert_int_eq(getrlimit(RLIMIT_CORE, &limit), 0);
	if (limit.rlim_max == 0)
		return;
	if (!_i) {
		log = log_of(1, fixture_shell(1, 1, "ulimit -Sc; ulimit -Hc"));
		ck_assert_str_eq(log, "0\n0\n");
		return;
	}
	log = log_of(
	    1,
	    set(fixture_shell(
	            1, 1,
	            "test \"$(ulimit -Sc)\" = \"$(ulimit -Hc)\" && test \"$(ulimit -c)\" != 0 && echo yes"),
	        "resources", json_pack("{s:b}", "core_files", true)));
	ck_assert_str_eq(log, "yes\n");
}
END_TEST

START_TEST(limits_follow_the_slots)
{
	struct daemon_config config = {.slot_memory = 2, .slot_tasks = 100};
	struct cgroup_limits limits = limits_of(&config, 3);
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	ck_assert_uint_eq(limits.memory, (uint64_t)6 << 30);
	ck_assert_uint_eq(limits.tasks, 300);
	config.slot_tasks = 1;
	ck_assert_uint_eq(limits_of(&config, 3).tasks, 3);
	config = (struct daemon_config){0};
	limits = limits_of(&config, 3);
	ck_assert_uint_lt(limits.memory, machine);
	ck_assert_uint_gt(limits.memory, machine / 2);
	ck_assert_uint_eq(limits.tasks, UINT64_MAX);
}
END_TEST

/* A group whose files can be seen: what is switched on, and what is written. */
START_TEST(limits_of_a_group_are_written)
{
	const struct {
		const char *name, *content;
	} files[] = {
	    {"base/run/memory.max", "123"}, {"base/run/pids.max", "45"}, {"base/run/cpuset.cpus", "0-1"}};
	_cleanup_free_ char *group = fixture_path(&f, "base/run");
	struct cgroup_limits limits = {123, 45, "0-1"};
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(group, 0755, &err), &err);
	ck_assert_int_eq(cgroup_limit(group, &limits), -ENOTSUP);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		_cleanup_free_ char *path = fixture_path(&f, files[i].name);

		ck_ok(file_write_atomic(path, "", 0, 0644, &err), &err);
	}
	ck_assert_int_eq(cgroup_limit(group, &limits), 0);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		_cleanup_free_ char *path = fixture_path(&f, files[i].name), *text = NULL;

		ck_ok(file_read(path, 0, &text, NULL, &err), &err);
		ck_assert_str_eq(text, files[i].content);
	}
	limits = (struct cgroup_limits){UINT64_MAX, UINT64_MAX, NULL};
	ck_assert_int_eq(cgroup_limit("/nowhere", &limits), 0);
}
END_TEST

/* Of controllers that the service's own group has not, nothing is written: the kernel holds up all forks of
 * the machine for a write that it then refuses. */
START_TEST(controllers_that_are_not_there_are_left_alone)
{
	const struct {
		const char *controllers;
		int result;
		const char *memory, *on;
	} cases[] = {{"cpu io\n", -ENOTSUP, "", ""},
	             {"memory_of_another\n", -ENOTSUP, "", ""},
	             {"cpu memory\n", 0, "123", ""},
	             {"memory\n", 0, "123", ""}};
	_cleanup_free_ char *group = fixture_path(&f, "base/run"),
	                    *has = fixture_path(&f, "cgroup.controllers");
	_cleanup_free_ char *limit = fixture_path(&f, "base/run/memory.max"), *text = NULL, *switched = NULL;
	_cleanup_free_ char *on = fixture_path(&f, "cgroup.subtree_control");
	const struct cgroup_limits limits = {123, UINT64_MAX, NULL};
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(group, 0755, &err), &err);
	ck_ok(file_write_atomic(has, cases[_i].controllers, strlen(cases[_i].controllers), 0644, &err), &err);
	ck_ok(file_write_atomic(limit, "", 0, 0644, &err), &err);
	ck_ok(file_write_atomic(on, "", 0, 0644, &err), &err);
	ck_assert_int_eq(cgroup_limit(group, &limits), cases[_i].result);
	ck_ok(file_read(limit, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, cases[_i].memory);
	ck_ok(file_read(on, 0, &switched, NULL, &err), &err);
	ck_assert_str_eq(switched, cases[_i].on);
}
END_TEST

/* The parent of both has it, but has not switched it on: that is asked for, from above. */
START_TEST(controllers_that_are_there_are_switched_on)
{
	_cleanup_free_ char *group = fixture_path(&f, "base/run"),
	                    *has = fixture_path(&f, "cgroup.controllers");
	_cleanup_free_ char *on = fixture_path(&f, "cgroup.subtree_control"), *text = NULL;
	const struct cgroup_limits limits = {123, UINT64_MAX, NULL};
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(group, 0755, &err), &err);
	ck_ok(file_write_atomic(has, "memory pids\n", 12, 0644, &err), &err);
	ck_ok(file_write_atomic(on, "", 0, 0644, &err), &err);
	ck_assert_int_eq(cgroup_limit(group, &limits), -ENOTSUP); /* no file memory.max comes of it here */
	ck_ok(file_read(on, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "+memory");
}
END_TEST

/* Limits of a session of PAM, in a process of its own: 0, or an error's code. */
static int limits_of_session(const char *directory, struct error *err)
{
	struct session *session = NULL;
	int r = session_open(directory, "root", &session, err), files = 0;
	struct rlimit limit;

	if (r == 0 && session && getrlimit(RLIMIT_NOFILE, &limit) == 0)
		files = (int)limit.rlim_max;
	session_close(session);
	return r < 0 ? r : files;
}

START_TEST(a_session_has_the_limits_of_pam)
{
	_cleanup_free_ char *service = fixture_path(&f, "pam/dtrain"),
	                    *conf = fixture_path(&f, "limits.conf"), *directory = fixture_path(&f, "pam"),
	                    *text = NULL;
	static const char limits[] = "root hard nofile 77\nroot soft nofile 77\n",
	                  deny[] = "account required pam_deny.so\n";
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(directory, 0755, &err), &err);
	ck_assert_int_eq(limits_of_session(directory, &err), 0); /* no such service: there is no session */
	if (!file_exists("/etc/pam.d") || geteuid() != 0)
		return;
	text = str_printf("account required pam_permit.so\nsession required pam_limits.so conf=%s\n", conf);
	ck_ok(file_write_atomic(conf, limits, strlen(limits), 0644, &err), &err);
	ck_ok(file_write_atomic(service, text, strlen(text), 0644, &err), &err);
	ck_assert_int_eq(limits_of_session(directory, &err), 77);
	ck_ok(file_write_atomic(service, deny, strlen(deny), 0644, &err), &err);
	ck_assert_int_eq(limits_of_session(directory, &err), -EACCES);
	ck_assert_ptr_nonnull(strstr(err.message, "PAM opens no session for root"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_isolation");
	TCase *tc = tcase_create("isolation");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, each_attempt_has_temporary_files_of_its_own);
	tcase_add_test(tc, it_begins_empty);
	tcase_add_test(tc, a_tmpdir_that_the_run_names_counts);
	tcase_add_test(tc, a_removal_without_memory_is_not_begun);
	tcase_add_test(tc, several_removals_end_one_by_one);
	tcase_add_loop_test(tc, the_service_removes_what_the_launcher_could_not, 0, 2);
	tcase_add_test(tc, strays_are_removed_when_the_service_starts);
	tcase_add_loop_test(tc, there_are_core_files_only_where_the_run_asks, 0, 2);
	tcase_add_test(tc, limits_follow_the_slots);
	tcase_add_test(tc, limits_of_a_group_are_written);
	tcase_add_loop_test(tc, controllers_that_are_not_there_are_left_alone, 0, 4);
	tcase_add_test(tc, controllers_that_are_there_are_switched_on);
	tcase_add_test(tc, a_session_has_the_limits_of_pam);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
