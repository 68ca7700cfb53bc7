/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the system fail at each place of what a node does: each time that is reported, and no process is
 * left. */
#include "failing_calls.h"
#include "node_makers.h"

#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "node/attempt_files.h"
#include "node/gpu/watch.h"
#include "node/launch/launch.h"
#include "node/launch/preflight.h"
#include "node/launch/run_user.h"
#include "node/launch/start_record.h"
#include "node/launch/unit.h"
#include "node/log_quota.h"
#include "node/preflight_process.h"
#include "node/request.h"
#include "node/run_files.h"

static struct fixture f; /* Check's fixtures have no other place */

static void setup(void)
{
	fixture_prepare(&f, "");
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static void check_no_child(void)
{
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_int_eq(errno, ECHILD);
}

START_TEST(event_sources_are_made)
{
	static const char calls[] = " sd_event_add_time sd_event_add_time_relative sd_event_add_defer ";

	calls_fail_in_turn(
	    make_spare, &f,
	    " sd_event_add_time_relative sd_event_source_set_enabled sd_event_source_set_priority ");
	calls_fail_in_turn(make_starts, &f, calls);
	calls_fail_in_turn(make_lease, &f, " sd_event_add_time sd_event_source_set_enabled ");
	calls_fail_in_turn(make_attempts, &f, calls);
}
END_TEST

START_TEST(a_log_is_followed)
{
	_cleanup_free_ char *path = fixture_path(&f, "log");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, "x\n", 2, 0644, &err), &err);
	calls_fail_in_turn(make_log_reader, &f, " open fstat sd_event_add_inotify sd_event_add_defer ");
}
END_TEST

static int shorten_log(void *context, struct error *err)
{
	_cleanup_free_ char *text = malloc(64 << 10);
	int64_t removed;
	int r;

	memset(text, 'x', 64 << 10);
	for (size_t i = 99; i < 64 << 10; i += 100)
		text[i] = '\n';
	calls_counted = " none ";
	file_write_atomic(context, text, 64 << 10, 0644, NULL);
	calls_counted = " open fstat fallocate pwrite ";
	r = log_quota_apply(context, 16 << 10, &removed, err);
	if (r == 0)
		ck_assert_int_gt(removed, 48 << 10);
	return r;
}

START_TEST(a_log_is_shortened)
{
	_cleanup_free_ char *path = fixture_path(&f, "log");

	calls_fail_in_turn(shorten_log, path, " open fstat fallocate pwrite ");
}
END_TEST

static int prune(void *context, struct error *err)
{
	const struct run_files_plan plan = {.directories = {f.dir, f.dir}, .runs = 1};
	struct prune_answer answer;
	int r = run_files_prune(&plan, &answer, err);

	prune_answer_release(&answer);
	return r;
}

START_TEST(old_files_are_looked_for)
{
	calls_fail_in_turn(prune, NULL, " opendir ");
}
END_TEST

START_TEST(a_launcher_is_listened_to)
{
	calls_fail_in_turn(make_launcher, &f, " open socket bind connect listen sd_event_add_io ");
}
END_TEST

static int record_start(void *context, struct error *err)
{
	int64_t slots[] = {0};

	return start_record_make(context, &(struct start_record){.slots = slots, .slot_count = 1}, err);
}

static int make_spares(void *context, struct error *err)
{
	return start_record_make_spares(f.dir, err);
}

START_TEST(a_start_is_recorded)
{
	_cleanup_free_ char *path = fixture_path(&f, "7.1.0.");

	calls_fail_in_turn(record_start, path, " open write fsync ");
	calls_fail_in_turn(make_spares, NULL, " open ");
}
END_TEST

static int write_file(void *context, struct error *err)
{
	_cleanup_json_ json_t *json = json_object();

	return attempt_file_write(f.dir, "x.json", json, geteuid(), 0640, err);
}

START_TEST(a_file_of_an_attempt_is_written)
{
	_cleanup_free_ char *path = fixture_path(&f, "x.json");
	struct stat st;

	calls_fail_in_turn(write_file, NULL, " open write fchmod rename ");
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0640);
}
END_TEST

struct preparation {
	struct request *request;
	struct request_place place;
	struct run_user *user;
};

static int make_files(void *context, struct error *err)
{
	const struct preparation *p = context;
	struct launch_description launch = {0};
	int r = attempt_files_make(p->place.dir, p->request, &p->place, p->user, (struct unit_names){0},
	                           (struct stop_times){1, 2}, &launch, err);

	launch_description_release(&launch);
	return r;
}

START_TEST(the_files_of_an_attempt_are_made)
{
	_cleanup_json_ json_t *json = fixture_shell(7, 2, "true");
	_cleanup_free_ char *dir = fixture_path(&f, "7.1");
	struct preparation p = {0};
	struct start_request start;
	struct devices devices;
	struct error err = ERROR_INIT;

	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_ok(start_request_decode(json, &start, &err), &err);
	ck_ok(request_new(&start, &p.request, &err), &err);
	ck_ok(run_user_find(p.request->user, p.request->uid, &p.user, &err), &err);
	p.place = (struct request_place){
	    .config = f.config, .node = "n1", .dir = dir, .logs = f.config->log_dir, .devices = &devices};
	calls_fail_in_turn(make_files, &p,
	                   geteuid() == 0 ? " unlink open mkdir fchown fchmod write rename "
	                                  : " unlink open mkdir fchmod write rename ");
	request_free(p.request);
	run_user_free(p.user);
	devices_release(&devices);
}
END_TEST

static void on_looked(void *context, const struct run_user *user, const struct error *err)
{
	ck_abort_msg("it was cancelled");
}

static int look(void *context, struct error *err)
{
	const struct preflight_request what = {.user = (char *)"u", .program = (char *)"true"};
	struct preflight_call *call;
	int r = preflight_start(f.event, NULL, "/bin/true", &what, 20, on_looked, NULL, &call, err);

	if (r == 0)
		preflight_cancel(call);
	return r;
}

START_TEST(a_preflight_is_started)
{
	calls_fail_in_turn(look, NULL,
	                   " memfd_create write socketpair posix_spawn pidfd_open sd_event_add_io "
	                   "sd_event_add_time_relative ");
	while (waitpid(-1, NULL, WNOHANG) != -1) /* those that had begun are reaped by the event loop */
		fixture_turn(&f);
}
END_TEST

static int start_process(void *context, struct error *err)
{
	struct preflight_process process;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC, 0);
	int r = preflight_process_start(f.event, "/bin/sleep", fd, &process, err);

	close(fd);
	if (r < 0) {
		check_no_child();
		return r;
	}
	preflight_process_kill(&process);
	ck_assert_int_gt(waitpid(-1, NULL, 0), 0);
	return 0;
}

START_TEST(a_process_that_cannot_be_watched_is_ended)
{
	calls_fail_in_turn(start_process, NULL, " socketpair posix_spawn pidfd_open sd_event_add_io ");
}
END_TEST

static void on_exited(void *context, const char *why, bool started)
{
}

static void on_empty(void *context)
{
}

static int start_unit(void *context, struct error *err)
{
	const struct unit_identity identity = {7, 1, f.dir};
	const struct unit_owner owner = {.exited = on_exited, .empty = on_empty};
	const struct cgroup_limits limits = {UINT64_MAX, UINT64_MAX, NULL};
	struct unit *unit;
	int r;

	ck_ok(unit_new(context, &identity, &owner, &unit, err), err);
	r = unit_start(unit, &(struct unit_start){.program = "/bin/true", .listen_fd = 0, .limits = &limits},
	               err);
	if (r < 0) {
		ck_assert(!unit_is_watched(unit));
		ck_assert(unit_is_empty(unit));
		check_no_child();
	} else {
		ck_assert(unit_is_watched(unit));
		ck_assert(!unit_is_empty(unit));
		while (!unit_is_empty(unit))
			ck_assert_int_ge(sd_event_run(f.event, UINT64_MAX), 0);
		ck_assert(!unit_is_watched(unit));
	}
	unit_destroy(unit);
	return r;
}

START_TEST(a_launcher_that_cannot_be_watched_is_ended)
{
	struct units *units;
	struct error err = ERROR_INIT;

	free(f.config->launch);
	f.config->launch = strdup("process");
	ck_ok(units_create(f.event, f.config, &units, &err), &err);
	calls_fail_in_turn(start_unit, units, " posix_spawn pidfd_open sd_event_add_io ");
	units_destroy(units);
}
END_TEST

static int start_rank(void *context, struct error *err)
{
	char *argv[] = {(char *)"true", NULL}, *environment[] = {(char *)"PATH=/usr/bin:/bin", NULL};
	const struct launch_user user = {.uid = geteuid(), .directory = "/", .argv = argv};
	struct launch_rank rank = {
	    .rank = 4, .log_fd = open("/dev/null", O_RDWR | O_CLOEXEC, 0), .exec_fd = -1, .pidfd = -1};
	int status, r;

	rank.environment = environment;
	r = launch_rank_start(&rank, &user, err);
	if (r < 0) {
		ck_assert_int_eq(rank.pid, 0);
		ck_assert_int_eq(rank.exec_fd, -1);
		ck_assert(str_starts(err->message, "rank 4: "));
	} else {
		ck_assert_int_eq(waitpid(rank.pid, &status, 0), rank.pid);
		launch_rank_exited(&rank, &user, status, 0, false);
		ck_assert_int_eq(rank.exit_status, 0);
	}
	launch_rank_release(&rank);
	return r;
}

START_TEST(a_rank_is_started)
{
	calls_fail_in_turn(start_rank, NULL, " pipe2 fork ");
}
END_TEST

static int read_nothing(void *handle, struct nvml_memory *memory)
{
	return NVML_NOT_SUPPORTED;
}

static int watch_gpus(void *context, struct error *err)
{
	struct nvml nvml = {.memory = read_nothing};
	struct node_device device = {.gpu = true, .handle = &nvml, .parent = &nvml};
	const struct devices devices = {.list = &device, .count = 1, .nvml = &nvml};
	const struct gpu_watch_options options = {.interval = 1000, .call_timeout = 1000};
	struct gpu_watch *watch;
	int r = gpu_watch_start(f.event, &devices, &options, &watch, err);

	if (r == 0)
		ck_assert(gpu_watch_stop(watch));
	return r;
}

START_TEST(gpus_are_watched)
{
	calls_fail_in_turn(
	    watch_gpus, NULL,
	    " sd_event_add_io sd_event_source_set_priority sd_event_add_time_relative pthread_create ");
}
END_TEST

static void on_report(void *context, const struct report *report)
{
}

static int make_node(void *context, struct error *err)
{
	const struct node_callbacks callbacks = {NULL, on_report, NULL};
	struct node *node;
	int r = node_create(f.event, f.config, "n1", 0, &callbacks, &node, err);

	if (r == 0)
		node_destroy(node);
	return r;
}

START_TEST(a_node_is_made)
{
	calls_fail_in_turn(make_slots, &f, " eventfd sd_event_add_io ");
	calls_fail_in_turn(
	    make_node, NULL,
	    " eventfd sd_event_add_io sd_event_add_time sd_event_add_time_relative sd_event_add_defer ");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_failures");
	TCase *tc = tcase_create("failures");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, event_sources_are_made);
	tcase_add_test(tc, a_log_is_followed);
	tcase_add_test(tc, a_log_is_shortened);
	tcase_add_test(tc, old_files_are_looked_for);
	tcase_add_test(tc, a_launcher_is_listened_to);
	tcase_add_test(tc, a_start_is_recorded);
	tcase_add_test(tc, a_file_of_an_attempt_is_written);
	tcase_add_test(tc, the_files_of_an_attempt_are_made);
	tcase_add_test(tc, a_preflight_is_started);
	tcase_add_test(tc, a_process_that_cannot_be_watched_is_ended);
	tcase_add_test(tc, a_launcher_that_cannot_be_watched_is_ended);
	tcase_add_test(tc, a_rank_is_started);
	tcase_add_test(tc, gpus_are_watched);
	tcase_add_test(tc, a_node_is_made);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
