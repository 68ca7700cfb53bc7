/* SPDX-License-Identifier: Apache-2.0 */
/* Memory runs out at each place of what a node does: each time that is reported, nothing is left half done,
 * and under sanitizers nothing is lost. */
#include "failing_memory.h"
#include "node_makers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "node/attempt_files.h"
#include "node/clusters.h"
#include "node/gpu/affinity.h"
#include "node/gpu/device_files.h"
#include "node/gpu/devices.h"
#include "node/gpu/drains.h"
#include "node/launch/preflight.h"
#include "node/launch/run_user.h"
#include "node/launch/start_record.h"
#include "node/launch/unit.h"
#include "node/request.h"
#include "node/run_files.h"
#include "node/slots.h"
#include "node/started.h"
#include "node/stopped.h"
#include "node/tmp_dirs.h"

static struct fixture f; /* Check's fixtures have no other place */
static char *path;       /* of a file within f.dir */
static struct devices devices;
static struct request *request;
static struct request_place place;
static struct run_user *user;

static void setup(void)
{
	fixture_prepare(&f, "");
	path = fixture_path(&f, "file");
	devices = (struct devices){0};
	request = NULL;
	user = NULL;
}

static void teardown(void)
{
	if (request)
		request_free(request);
	run_user_free(user);
	devices_release(&devices);
	free(path);
	fixture_teardown(&f);
}

/* A request, and all that is needed to describe or start it. */
static void make_request(void)
{
	_cleanup_json_ json_t *json = fixture_shell(7, 2, "true");
	struct start_request start;
	struct error err = ERROR_INIT;

	json_object_set_new(json, "cluster", json_string("c1"));
	json_object_set_new(json, "epoch", json_integer(3));
	json_object_set_new(json_object_get(json, "config"), "environment", json_pack("[s]", "MINE=1"));
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_ok(start_request_decode(json, &start, &err), &err);
	ck_ok(request_new(&start, &request, &err), &err);
	ck_ok(run_user_find(request->user, request->uid, &user, &err), &err);
	place = (struct request_place){
	    .config = f.config, .node = "n1", .dir = path, .logs = f.config->log_dir, .devices = &devices};
}

static int find_devices(void *context, struct error *err)
{
	struct devices found;
	int r = devices_find(f.config, 0, &found, err);

	if (r < 0) {
		ck_assert_ptr_null(found.list);
		ck_assert_ptr_null(found.links);
		return r;
	}
	ck_assert_uint_eq(found.count, 2);
	devices_release(&found);
	return 0;
}

START_TEST(devices_are_found)
{
	memory_fails_in_turn(find_devices, NULL, true);
}
END_TEST

static int find_gpus(void *context, struct error *err)
{
	struct devices found = {.nvml = context};
	int r = gpus_find(context, &found.list, &found.count, err);

	if (r < 0) {
		ck_assert_ptr_null(found.list);
		return r;
	}
	ck_assert_uint_eq(found.count, 22);
	r = gpus_connect(&found, err);
	if (r == 0)
		ck_assert_str_eq(found.links[20], "PIX");
	free(found.list);
	free(found.links);
	return r;
}

START_TEST(gpus_are_found)
{
	char fault[160];
	struct nvml *nvml;

	ck_assert_msg(dlopen("tests/unit/libfake-nvml.so", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
	fixture_machine(&f, "temp=1\nmig=7\nmig=7\nmig=7\n");
	setenv("FAKE_NVML_INIT", "9", 1);
	nvml = (struct nvml *)1;
	nvml_open(&nvml, fault, sizeof(fault));
	ck_assert_ptr_null(nvml);
	ck_assert_str_eq(fault, "");
	unsetenv("FAKE_NVML_INIT");
	nvml_open(&nvml, fault, sizeof(fault));
	ck_assert_ptr_nonnull(nvml);
	memory_runs_out(find_gpus, nvml);
	nvml_close(nvml);
}
END_TEST

static int copy_request(void *context, struct error *err)
{
	struct request *copy;
	struct start_request start = {0};
	int r = start_request_decode(context, &start, err);

	if (r == 0)
		r = request_new(&start, &copy, err);
	if (r < 0)
		return r;
	ck_assert_int_eq(copy->run, 7);
	ck_assert_uint_eq(copy->rank_count, 2);
	ck_assert_uint_eq(copy->slot_count, 2);
	request_free(copy);
	return 0;
}

START_TEST(a_request_is_taken)
{
	_cleanup_json_ json_t *json = fixture_shell(7, 2, "true");

	memory_runs_out(copy_request, json);
}
END_TEST

static int find_user(void *context, struct error *err)
{
	struct run_user *found;
	int r = run_user_find(request->user, request->uid, &found, err);

	if (r < 0)
		return r;
	run_user_free(found);
	return 0;
}

/* A variable that there is no memory for must not be missing from it without an error. */
static void check_environment(char *const *environment)
{
	static const char *const wanted[] = {"TMPDIR=/", "TORCHELASTIC_ERROR_FILE=/", "DTRAIN_SLOTS=0,1",
	                                     "CUDA_VISIBLE_DEVICES=", "MINE=1"};
	size_t found = 0;

	for (; *environment; environment++)
		for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
			found += str_starts(*environment, wanted[i]);
	ck_assert_uint_eq(found, ARRAY_SIZE(wanted));
}

static int describe_launch(void *context, struct error *err)
{
	struct launch_description launch;
	int r = request_describe_launch(request, &place, user, &launch, err);

	if (r == 0) {
		ck_assert_uint_eq(launch.rank_count, 2);
		ck_assert_uint_eq(launch.group_count, user->group_count);
		ck_assert_ptr_nonnull(launch.tmp_dir);
		ck_assert_ptr_nonnull(launch.lease);
		check_environment(launch.ranks[1].environment);
		ck_assert_ptr_nonnull(launch.ranks[1].log);
		ck_assert_ptr_nonnull(launch.ranks[1].error_file);
	}
	launch_description_release(&launch);
	return r;
}

static int make_files(void *context, struct error *err)
{
	struct launch_description launch = {0};
	int r = attempt_files_make(path, request, &place, user, (struct unit_names){"group", NULL, "oom"},
	                           (struct stop_times){1, 2}, &launch, err);

	if (r == 0) {
		ck_assert_str_eq(launch.cgroup, "group");
		ck_assert_str_eq(launch.oom_file, "oom");
		ck_assert_ptr_nonnull(launch.record);
		ck_assert_ptr_nonnull(launch.started);
	}
	launch_description_release(&launch);
	return r;
}

static int read_launch(void *context, struct error *err)
{
	struct launch_description launch;
	int r = attempt_files_read_launch(path, &launch, err);

	launch_description_release(&launch);
	return r;
}

START_TEST(an_attempt_is_described)
{
	make_request();
	memory_runs_out(find_user, NULL);
	memory_fails_in_turn(describe_launch, NULL, true);
	memory_fails_in_turn(make_files, NULL, true);
	memory_runs_out(read_launch, NULL);
}
END_TEST

static int find_log(void *context, struct error *err)
{
	_cleanup_free_ char *log = NULL;
	int r = attempt_files_log(f.config->log_dir, 7, *(int *)context, 1, &log, err);

	if (r < 0)
		ck_assert_ptr_null(log);
	else
		ck_assert_ptr_nonnull(strstr(log, "/7/3/"));
	return r;
}

START_TEST(a_log_is_found)
{
	_cleanup_free_ char *logs = str_printf("%s/7/3", f.config->log_dir), *log = request_log_path(logs, 1);
	int attempt = 3;
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(logs, 0755, &err), &err);
	ck_ok(file_write_atomic(log, "", 0, 0600, &err), &err);
	memory_runs_out(find_log, &attempt);
}
END_TEST

static int open_drains(void *context, struct error *err)
{
	struct drains *drains;
	int r = drains_open(f.event, f.config->state_dir, &drains, err);

	if (r < 0)
		return r;
	ck_assert_ptr_nonnull(drains_find(drains, "GPU-0000"));
	drains_close(drains);
	return 0;
}

static int set_drain(void *context, struct error *err)
{
	static int count;
	struct drain drain = {.reason = "loud"};

	snprintf(drain.key, sizeof(drain.key), "GPU-%d", count++);
	return drains_set(context, &drain, err);
}

START_TEST(drains_are_kept)
{
	_cleanup_free_ char *file = str_path_join(f.config->state_dir, "drained.json");
	static const char text[] =
	    "{\"boot\":\"x\",\"devices\":[{\"device\":\"GPU-0000\",\"reason\":\"y\"}]}";
	_cleanup_(drains_closep) struct drains *drains = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(f.config->state_dir, 0755, &err), &err);
	ck_ok(file_write_atomic(file, text, strlen(text), 0644, &err), &err);
	memory_runs_out(open_drains, NULL);
	ck_ok(drains_open(f.event, f.config->state_dir, &drains, &err), &err);
	memory_runs_out(set_drain, drains);
}
END_TEST

static int describe_clusters(void *context, struct error *err)
{
	struct known_clusters known;
	int r = clusters_describe(context, &known, err);

	if (r < 0)
		return r;
	ck_assert_uint_eq(known.cluster_count, 2);
	ck_assert_str_eq(known.clusters[0].id, "a1");
	ck_assert_int_eq(known.clusters[0].epoch, 4);
	ck_assert_str_eq(known.clusters[1].id, "a2");
	known_clusters_release(&known);
	return 0;
}

START_TEST(clusters_are_described)
{
	_cleanup_(clusters_closep) struct clusters *clusters = NULL;
	struct error err = ERROR_INIT;

	ck_ok(clusters_open(f.event, f.config->state_dir, f.config->log_dir, &clusters, &err), &err);
	ck_ok(clusters_learn(clusters, "a1", 4, 1, &err), &err);
	ck_ok(clusters_learn(clusters, "a2", 5, 1, &err), &err);
	memory_runs_out(describe_clusters, clusters);
}
END_TEST

static int describe_slot(void *context, struct error *err)
{
	struct device_info info;
	int r = slots_describe(context, 1, 0, &info, err);

	if (r < 0)
		return r;
	ck_assert_str_eq(info.node, "n1");
	ck_assert_ptr_nonnull(info.name);
	device_info_release(&info);
	return 0;
}

START_TEST(slots_are_made)
{
	struct slots *slots;
	struct error err = ERROR_INIT;

	memory_fails_in_turn(make_slots, &f, true);
	ck_ok(slots_create(f.event, f.config, "n1", 0, &idle_slots, &slots, &err), &err);
	memory_runs_out(describe_slot, slots);
	slots_destroy(slots);
}
END_TEST

static int describe_gpu(void *context, struct error *err)
{
	struct device_info info;
	int r = slots_describe(context, 1, 0, &info, err);

	if (r < 0)
		return r;
	ck_assert_str_eq(info.uuid, "MIG-1000");
	ck_assert_str_eq(info.reason, "its fan is loud");
	ck_assert_str_eq(info.gpu_info->driver, "580.65.06");
	ck_assert_str_eq(info.gpu_info->cuda, "13.0");
	ck_assert_str_eq(info.gpu_info->pci, "0000:1c:00.0");
	ck_assert_str_eq(info.gpu_info->links[2], "MIG");
	ck_assert_int_eq(info.gpu_info->mig->gpu_instance, 7);
	device_info_release(&info);
	return 0;
}

START_TEST(gpus_are_described)
{
	struct slots *slots;
	struct error err = ERROR_INIT;

	ck_assert_msg(dlopen("tests/unit/libfake-nvml.so", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
	unsetenv("CUDA_VISIBLE_DEVICES");
	fixture_machine(&f, "temp=1\nmig=2\n");
	ck_ok(slots_create(f.event, f.config, "n1", 0, &idle_slots, &slots, &err), &err);
	ck_ok(slots_drain(slots, 1, "its fan is loud", &err), &err);
	memory_runs_out(describe_gpu, slots);
	slots_destroy(slots);
}
END_TEST

static int list_files(void *context, struct error *err)
{
	char **list =
	    device_files(f.dir, &devices, (const int[]){0, 1}, 2, (char *[]){(char *)"/dev/*", NULL});

	if (!list)
		return -ENOMEM;
	str_list_free(list);
	return 0;
}

START_TEST(device_files_are_listed)
{
	make_request();
	memory_runs_out(list_files, NULL);
}
END_TEST

static int take_record(void *context, struct request *found, struct error *err)
{
	ck_assert_int_eq(found->run, 7);
	request_free(found);
	++*(int *)context;
	return 0;
}

static int make_record(void *context, struct error *err)
{
	_cleanup_free_ char *record = started_path(f.config->state_dir, request);
	struct start_record *content = started_describe(request, (struct unit_names){"group", NULL, NULL});
	int r = record && content ? start_record_make(record, content, err) : -ENOMEM;

	if (content) {
		start_record_release(content);
		free(content);
	}
	return r;
}

static int make_records(void *context, struct error *err)
{
	return started_make_directory(f.config->state_dir, err);
}

START_TEST(starts_are_recorded)
{
	struct error err = ERROR_INIT;
	int count = 0;

	make_request();
	memory_runs_out(make_records, NULL);
	memory_runs_out(make_record, NULL);
	ck_ok(started_each(f.config->state_dir, take_record, &count, &err), &err);
	ck_assert_int_eq(count, 1);
}
END_TEST

static int add_stopped(void *context, struct error *err)
{
	struct stopped stopped = {0};
	int r = stopped_add(&stopped, "c1", 3, 7, 1, err);

	ck_assert_int_eq(stopped_has(&stopped, "c1", 3, 7, 1), r == 0);
	stopped_release(&stopped);
	return r;
}

static int open_tmp_dirs(void *context, struct error *err)
{
	struct tmp_dirs *dirs;
	int r = tmp_dirs_open(f.event, f.config, &dirs, err);

	if (r == 0)
		tmp_dirs_close(dirs);
	return r;
}

static int make_unit(void *context, struct error *err)
{
	const struct unit_identity identity = {7, 1, f.dir};
	const struct unit_owner owner = {0};
	struct unit *unit;
	int r = unit_find(context, &identity, &(struct unit_names){"/nonexistent/group", NULL, NULL}, &owner,
	                  &unit, err);

	if (r < 0)
		return r;
	ck_assert_str_eq(unit_names(unit).cgroup, "/nonexistent/group");
	unit_destroy(unit);
	return 0;
}

START_TEST(small_things_are_made)
{
	_cleanup_free_ char *log = fixture_path(&f, "log");
	struct units *units;
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(log, "", 0, 0644, &err), &err);
	memory_runs_out(add_stopped, NULL);
	memory_runs_out(open_tmp_dirs, NULL);
	memory_runs_out(make_lease, &f);
	memory_runs_out(make_attempts, &f);
	memory_runs_out(make_spare, &f);
	memory_fails_in_turn(make_starts, &f, true);
	memory_runs_out(make_log_reader, &f);
	memory_runs_out(make_launcher, &f);
	free(f.config->launch);
	f.config->launch = strdup("process");
	ck_ok(units_create(f.event, f.config, &units, &err), &err);
	memory_runs_out(make_unit, units);
	units_destroy(units);
}
END_TEST

static int prune(void *context, struct error *err)
{
	const struct run_files_plan plan = {.directories = {f.config->log_dir}, .runs = 1, .dry_run = true};
	struct prune_answer answer;
	int r = run_files_prune(&plan, &answer, err);

	if (r < 0) {
		ck_assert_ptr_null(answer.runs);
		return r;
	}
	ck_assert_uint_eq(answer.run_count, 2);
	ck_assert_int_eq(answer.kept, 1);
	prune_answer_release(&answer);
	return 0;
}

START_TEST(old_files_are_found)
{
	struct error err = ERROR_INIT;

	for (int i = 1; i <= 3; i++) {
		_cleanup_free_ char *run = str_printf("%s/%d", f.config->log_dir, i);

		ck_ok(file_mkdirs(run, 0755, &err), &err);
	}
	memory_runs_out(prune, NULL);
}
END_TEST

static int list_devices(void *context, struct error *err)
{
	struct device_list list;
	int r = node_devices(f.node, &list, err);

	if (r < 0)
		return r;
	ck_assert_uint_eq(list.count, 2);
	device_list_release(&list);
	return 0;
}

START_TEST(a_node_lists_its_devices)
{
	fixture_create(&f);
	memory_runs_out(list_devices, NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_memory");
	TCase *tc = tcase_create("memory");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, devices_are_found);
	tcase_add_test(tc, gpus_are_found);
	tcase_add_test(tc, a_request_is_taken);
	tcase_add_test(tc, an_attempt_is_described);
	tcase_add_test(tc, a_log_is_found);
	tcase_add_test(tc, drains_are_kept);
	tcase_add_test(tc, clusters_are_described);
	tcase_add_test(tc, slots_are_made);
	tcase_add_test(tc, gpus_are_described);
	tcase_add_test(tc, device_files_are_listed);
	tcase_add_test(tc, starts_are_recorded);
	tcase_add_test(tc, small_things_are_made);
	tcase_add_test(tc, old_files_are_found);
	tcase_add_test(tc, a_node_lists_its_devices);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
