/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as NVML tells of them, from a library that stands in for the driver's. */
#include "node_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "node/devices.h"

/* By its path; from then on its name finds it, as it does the driver's. */
static void load_driver(void)
{
	ck_assert_msg(dlopen("tests/unit/libfake-nvml.so", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
}

static struct fixture f;

static void setup(void)
{
	load_driver();
	fixture_setup_on(&f, "3,0");
}

static void teardown(void)
{
	fixture_teardown(&f);
}

START_TEST(gpus_are_slots)
{
	struct daemon_config *config;
	struct devices devices;
	struct error err = ERROR_INIT;

	load_driver();
	ck_ok(daemon_config_parse("slot_threads = 5;", "test", &config, &err), &err);
	unsetenv("CUDA_VISIBLE_DEVICES");
	ck_ok(devices_find(config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 3); /* the lost one is left out, and indices stay */
	ck_assert_int_eq(devices.list[2].index, 3);
	ck_assert_str_eq(devices.list[2].uuid, "GPU-3000");
	ck_assert_str_eq(devices.list[0].name, "NVIDIA H200");
	ck_assert_uint_eq(devices.list[0].memory, 141ULL << 30);
	ck_assert_int_eq(devices.list[0].threads, 5);
	devices_release(&devices);

	ck_ok(devices_find(config, 2, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 2);
	devices_release(&devices);
	ck_fails(devices_find(config, 8, &devices, &err), &err,
	         "the hosts file says slots=8, but this machine shows 3 GPUs");

	setenv("CUDA_VISIBLE_DEVICES", "GPU-1", 1);
	ck_ok(devices_find(config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 1);
	ck_assert_int_eq(devices.list[0].index, 1);
	devices_release(&devices);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	ck_ok(devices_find(config, 0, &devices, &err), &err);
	ck_assert(!devices.list[0].gpu);
	devices_release(&devices);
	daemon_config_free(config);
}
END_TEST

START_TEST(ranks_see_the_leased_gpus)
{
	_cleanup_json_ json_t *both =
	    fixture_shell(1, 2, "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $LOCAL_RANK $OMP_NUM_THREADS");
	_cleanup_json_ json_t *one =
	    fixture_shell(2, 1, "echo $CUDA_VISIBLE_DEVICES ${OMP_NUM_THREADS-unset}");
	_cleanup_json_ json_t *devices = node_devices(f.node);
	_cleanup_free_ char *log = NULL, *log_one = NULL;
	struct error err = ERROR_INIT;

	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "kind", ""), "gpu");
	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "uuid", ""), "GPU-3000");
	ck_ok(node_start(f.node, both, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 1);
	ck_assert_str_eq(log, "3,0 PCI_BUS_ID 1 1\n");
	ck_ok(node_start(f.node, one, &err), &err);
	fixture_await(&f, 2, "ended");
	log_one = fixture_log(&f, 2, 0);
	ck_assert_str_eq(log_one, "3 unset\n");
}
END_TEST

START_TEST(gpus_need_their_engine)
{
	_cleanup_json_ json_t *q = fixture_shell(1, 1, ":");
	struct error err = ERROR_INIT;

	json_object_set_new(json_object_get(q, "config"), "task", json_string("sft"));
	f.config->worker_dir[0] = '!';
	ck_fails(node_start(f.node, q, &err), &err,
	         "GPU slots need dtrain-engine-cuda, which is not installed here");
	ck_fails(node_start(f.node, q, &err), &err, "dtrain-worker-cuda): apt install dtrain-engine-cuda");
	f.config->worker_dir[0] = '/';
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_gpu");
	TCase *find = tcase_create("devices"), *run = tcase_create("ranks");

	tcase_add_test(find, gpus_are_slots);
	suite_add_tcase(suite, find);
	tcase_add_checked_fixture(run, setup, teardown);
	tcase_set_timeout(run, 60);
	tcase_add_test(run, ranks_see_the_leased_gpus);
	tcase_add_test(run, gpus_need_their_engine);
	suite_add_tcase(suite, run);
	return unit_run(suite);
}
