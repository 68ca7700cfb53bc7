/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that a stand-in for NVML reports: their slots, their description, and the environment of ranks on
 * them. */
#include "node_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "node/gpu/affinity.h"
#include "node/gpu/devices.h"
#include "node/gpu/nvml.h"

/* By its path; from then on its name finds it, as it does the driver's. */
static void load_driver(const char *path)
{
	ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
}

static struct fixture f;

static void setup(void)
{
	load_driver("tests/unit/libfake-nvml.so");
	fixture_prepare(&f, NULL);
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

	load_driver("tests/unit/libfake-nvml.so");
	ck_ok(daemon_config_parse("slot_threads = 5;", "test", &config, &err), &err);
	unsetenv("CUDA_VISIBLE_DEVICES");
	ck_ok(devices_find(config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 4); /* the lost GPU keeps its index */
	ck_assert_str_eq(devices.list[2].fault, "GPU is lost");
	ck_assert_str_eq(devices.list[2].uuid, "");
	ck_assert_int_eq(devices.list[3].index, 3);
	ck_assert_str_eq(devices.list[3].uuid, "GPU-3000");
	ck_assert_str_eq(devices.list[0].name, "NVIDIA H200");
	ck_assert_uint_eq(devices.list[0].memory, 141ULL << 30);
	ck_assert_int_eq(devices.list[0].threads, 5);
	ck_assert_str_eq(devices.driver, "580.65.06");
	ck_assert_str_eq(devices.cuda, "13.0");
	devices_release(&devices);

	ck_ok(devices_find(config, 2, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 2);
	devices_release(&devices);
	ck_fails(devices_find(config, 8, &devices, &err), &err,
	         "the hosts file says slots=8, but this machine shows 4 GPUs");

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

/* A GPU that is not for this service, or not there, gives no slot, and the others keep their numbers; any
 * other error of its driver is a fault of the GPU. */
START_TEST(a_gpu_that_is_not_ours_gives_no_slot)
{
	static const struct {
		int code;
		bool fault;
	} cases[] = {{NVML_INVALID_ARGUMENT, false}, {NVML_NOT_SUPPORTED, true},
	             {NVML_NO_PERMISSION, false},    {NVML_NOT_FOUND, false},
	             {NVML_IRQ_ISSUE, true},         {NVML_GPU_IS_LOST, true},
	             {NVML_RESET_REQUIRED, true},    {NVML_OPERATING_SYSTEM, false}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *gpus = str_printf("temp=50\nlost=%d\ntemp=60\n", cases[i].code);
		struct devices devices;
		struct error err = ERROR_INIT;

		fixture_machine(&f, gpus);
		ck_ok(devices_find(f.config, 0, &devices, &err), &err);
		ck_assert_uint_eq(devices.count, cases[i].fault ? 3 : 2);
		ck_assert_int_eq(devices.list[0].index, 0);
		ck_assert_int_eq(devices.list[devices.count - 1].index, 2);
		ck_assert_int_eq(*devices.list[1].fault != '\0', cases[i].fault);
		devices_release(&devices);
	}
}
END_TEST

/* For instance after an upgrade: the library is new, the kernel module is old. */
START_TEST(a_driver_that_does_not_start)
{
	_cleanup_json_ json_t *d = NULL, *q = fixture_shell(1, 1, "true");
	struct error err = ERROR_INIT;
	struct devices devices;

	setenv("FAKE_NVML_INIT", "9", 1); /* no driver, so perhaps no GPU */
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_assert(!devices.list[0].gpu);
	devices_release(&devices);
	setenv("FAKE_NVML_INIT", "18", 1);
	ck_ok(devices_find(f.config, 4, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 4);
	ck_assert(devices.list[3].gpu);
	devices_release(&devices);
	fixture_create(&f);
	d = fixture_device(&f, 0);
	ck_assert_str_eq(json_get_string(d, "state", ""), "drained");
	ck_assert_str_eq(json_get_string(d, "reason", ""), "NVML does not start: error 18, Some error");
	ck_assert_int_eq(fixture_start(&f, q, &err), -EBUSY);
	unsetenv("FAKE_NVML_INIT");
}
END_TEST

static char *rank_log(int run, int count, int rank, const char *script)
{
	_cleanup_json_ json_t *request = fixture_shell(run, count, script);
	struct error err = ERROR_INIT;

	ck_ok(fixture_start(&f, request, &err), &err);
	fixture_await(&f, run, "ended");
	return fixture_log(&f, run, rank);
}

START_TEST(ranks_see_the_leased_gpus)
{
	_cleanup_free_ char *log = NULL, *log_one = NULL;

	setenv("CUDA_VISIBLE_DEVICES", "3,0", 1);
	fixture_machine(&f, "\n\n\n\n");
	fixture_create(&f);
	log = rank_log(
	    1, 2, 1,
	    "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $LOCAL_RANK $DTRAIN_DEVICE $OMP_NUM_THREADS");
	ck_assert_str_eq(log, "3,0 PCI_BUS_ID 1 1 1\n");
	log_one = rank_log(2, 1, 0, "echo $CUDA_VISIBLE_DEVICES ${OMP_NUM_THREADS-unset}");
	ck_assert_str_eq(log_one, "3 unset\n");
}
END_TEST

/* One rank on several GPUs has them all, in the order of the request, and all of them are leased. */
START_TEST(one_rank_has_several_gpus)
{
	_cleanup_json_ json_t *q = fixture_shell(1, 1,
	                                         "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK $DTRAIN_DEVICE "
	                                         "$DTRAIN_SLOT $DTRAIN_SLOTS ${OMP_NUM_THREADS-unset}");
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;

	setenv("CUDA_VISIBLE_DEVICES", "3,0,1", 1);
	fixture_machine(&f, "\n\n\n\n");
	fixture_create(&f);
	json_object_set_new(json_array_get(json_object_get(q, "ranks"), 0), "slots",
	                    json_pack("[i, i]", 1, 2));
	ck_ok(fixture_start(&f, q, &err), &err);
	ck_assert_int_eq(node_free_slots(f.node), 1);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "0,1 0 0 1 1,2 unset\n");
	ck_assert_int_eq(node_free_slots(f.node), 3);
}
END_TEST

START_TEST(gpus_need_their_engine)
{
	_cleanup_json_ json_t *q = fixture_shell(1, 1, ":");
	struct error err = ERROR_INIT;

	json_object_set_new(json_object_get(q, "config"), "task", json_string("sft"));
	fixture_create(&f);
	fixture_launcher(&f, NULL);
	ck_fails(fixture_start(&f, q, &err), &err,
	         "GPU slots need dtrain-engine-cuda, which is not installed here");
	ck_fails(fixture_start(&f, q, &err), &err, "dtrain-worker-cuda): apt install dtrain-engine-cuda");
}
END_TEST

/* With a lost GPU the numbers of CUDA and NVML may differ. */
START_TEST(names_that_cannot_mislead)
{
	_cleanup_free_ char *log = NULL;

	setenv("CUDA_VISIBLE_DEVICES", "3,0", 1);
	fixture_create(&f);
	log = rank_log(1, 2, 1, "echo $CUDA_VISIBLE_DEVICES $DTRAIN_DEVICE");
	ck_assert_str_eq(log, "GPU-3000,GPU-0000 1\n");
}
END_TEST

START_TEST(what_nvml_says_is_shown)
{
	_cleanup_json_ json_t *d = NULL;

	fixture_machine(&f, "used=1024 util=97 temp=64 power=512345 limit=700000 ecc=3 numa=1\nnuma=0\n");
	fixture_create(&f);
	d = fixture_device(&f, 0);
	ck_assert_str_eq(json_get_string(d, "kind", ""), "gpu");
	ck_assert_str_eq(json_get_string(d, "state", ""), "free");
	ck_assert_int_eq(json_get_int(d, "gpu", -1), 0);
	ck_assert_int_eq(json_get_int(d, "memory_used", -1), 1 << 30);
	ck_assert_int_eq(json_get_int(d, "utilization", -1), 97);
	ck_assert_int_eq(json_get_int(d, "temperature", -1), 64);
	ck_assert_double_eq_tol(json_get_number(d, "power", -1), 512.3, 1e-9);
	ck_assert_double_eq_tol(json_get_number(d, "power_limit", -1), 700, 1e-9);
	ck_assert_int_eq(json_get_int(d, "ecc_errors", -1), 3);
	ck_assert_str_eq(json_get_string(d, "pci", ""), "0000:1b:00.0");
	ck_assert_int_eq(json_get_int(d, "numa", -1), 1);
	ck_assert(json_is_null(json_object_get(d, "mig")));
	ck_assert(json_is_null(json_object_get(d, "xid")));
	ck_assert(json_is_null(json_object_get(d, "reason")));
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(d, "links"), 1)), "SYS");
	/* And what it says later. A reading that was under way may have the one and not yet the other. */
	fixture_machine(&f, "used=2048 temp=70\nnuma=0\n");
	while (json_get_int(d, "temperature", -1) != 70 || json_get_int(d, "memory_used", -1) != 2LL << 30) {
		fixture_turn(&f);
		json_decref(d);
		d = fixture_device(&f, 0);
	}
}
END_TEST

START_TEST(an_old_driver_says_less)
{
	static const char *const unknown[] = {"utilization", "temperature", "power",
	                                      "ecc_errors",  "pci",         "xid"};
	_cleanup_json_ json_t *d = NULL;
	_cleanup_free_ char *log = NULL;

	load_driver("tests/unit/libfake-nvml-old.so");
	fixture_prepare(&f, NULL);
	fixture_machine(&f, "used=1024\nused=0\n");
	fixture_create(&f);
	d = fixture_device(&f, 0);
	ck_assert_str_eq(json_get_string(d, "uuid", ""), "GPU-0000");
	ck_assert_int_eq(json_get_int(d, "memory_used", -1), 1 << 30);
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
		ck_assert_msg(json_is_null(json_object_get(d, unknown[i])), "%s", unknown[i]);
	ck_assert(json_is_null(json_array_get(json_object_get(d, "links"), 1)));
	log = rank_log(1, 1, 0, "echo $CUDA_VISIBLE_DEVICES");
	ck_assert_str_eq(log, "0\n");
	fixture_teardown(&f);
}
END_TEST

START_TEST(links_are_named_as_nvidia_smi_does)
{
	/* Two with NVLinks of their own, two at a switch; one PCIe switch, one bridge, two sockets. */
	static const char machine[] = "nv=1:4 pix=0\n"
	                              "nv=0:4 pix=0\n"
	                              "sw=18 pix=1 phb=0\n"
	                              "sw=12 pix=2 phb=1\n"
	                              "pix=1 phb=0\n"
	                              "numa=1\n"
	                              "pix=2 phb=1\n";
	static const char *const want[7][7] = {
	    {"X", "NV4", "PHB", "NODE", "PHB", "SYS", "NODE"},
	    {"NV4", "X", "PHB", "NODE", "PHB", "SYS", "NODE"},
	    {"PHB", "PHB", "X", "NV12", "PIX", "SYS", "NODE"},
	    {"NODE", "NODE", "NV12", "X", "NODE", "SYS", "PIX"},
	    {"PHB", "PHB", "PIX", "NODE", "X", "SYS", "NODE"},
	    {"SYS", "SYS", "SYS", "SYS", "SYS", "X", "SYS"},
	    {"NODE", "NODE", "NODE", "PIX", "NODE", "SYS", "X"},
	};
	struct devices devices;
	struct error err = ERROR_INIT;

	fixture_machine(&f, machine);
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	for (size_t i = 0; i < 7; i++)
		for (size_t k = 0; k < 7; k++)
			ck_assert_msg(str_eq(devices.links[i * 7 + k], want[i][k]), "%zu to %zu: %s, not %s",
			              i, k, devices.links[i * 7 + k], want[i][k]);
	devices_release(&devices);
}
END_TEST

START_TEST(mig_devices_are_slots)
{
	_cleanup_json_ json_t *d = NULL;
	_cleanup_free_ char *log = NULL, *log_whole = NULL, *script = NULL;
	struct error err = ERROR_INIT;
	struct devices devices;

	fixture_machine(&f, "temp=50\nmig=2 temp=60 util=80\ntemp=70\n");
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 4);
	ck_assert_str_eq(devices.links[1 * 4 + 2], "MIG");
	devices_release(&devices);
	/* A GPU's number stands for its parts, a UUID for one of them. */
	setenv("CUDA_VISIBLE_DEVICES", "1,MIG-1", 1);
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 2);
	devices_release(&devices);
	setenv("CUDA_VISIBLE_DEVICES", "MIG-1001,0", 1);
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 2);
	ck_assert_str_eq(devices.list[0].uuid, "MIG-1001");
	devices_release(&devices);
	unsetenv("CUDA_VISIBLE_DEVICES");

	fixture_create(&f);
	d = fixture_device(&f, 2);
	ck_assert_str_eq(json_get_string(d, "uuid", ""), "MIG-1001");
	ck_assert_str_eq(json_get_string(d, "name", ""), "NVIDIA H200 MIG 1g.18gb");
	ck_assert_int_eq(json_get_int(d, "memory", 0), 18LL << 30);
	ck_assert_int_eq(json_get_int(d, "temperature", -1), 60); /* the whole GPU's */
	ck_assert(json_is_null(json_object_get(d, "utilization")));
	ck_assert_int_eq(json_get_int(json_object_get(d, "mig"), "gpu_instance", -1), 8);
	ck_assert_int_eq(json_get_int(d, "gpu", -1), 1);
	/* Each such rank sees its own and no other; the ranks on whole GPUs see those. */
	log = rank_log(1, 4, 2, "echo $CUDA_VISIBLE_DEVICES $DTRAIN_DEVICE $DTRAIN_SLOT $DTRAIN_SLOTS");
	ck_assert_str_eq(log, "MIG-1001 0 2 0,1,2,3\n");
	log_whole = fixture_log(&f, 1, 3);
	ck_assert_str_eq(log_whole, "GPU-0000,GPU-2000 1 3 0,1,2,3\n");
}
END_TEST

/* The list of what was found grows. */
START_TEST(many_mig_devices)
{
	struct error err = ERROR_INIT;
	struct devices devices;

	fixture_machine(&f, "mig=7\nmig=7\nmig=7\nmig=7\nmig=7\nmig=7\n");
	ck_ok(devices_find(f.config, 0, &devices, &err), &err);
	ck_assert_uint_eq(devices.count, 42);
	for (size_t i = 0; i < devices.count; i++) {
		_cleanup_free_ char *uuid = str_printf("MIG-%zu00%zu", i / 7, i % 7);

		ck_assert_str_eq(devices.list[i].uuid, uuid);
	}
	devices_release(&devices);
}
END_TEST

START_TEST(ranks_stay_near_their_gpu)
{
	_cleanup_free_ char *log = NULL, *machine = NULL, *list = NULL, *want = NULL;
	cpu_set_t allowed, one;
	int cpu = 0;

	ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	if (cpu >= 31)
		return; /* more than the fake's line can say */
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	list = affinity_format(&one);
	machine = str_printf("cpus=%d\n", 1 << cpu);
	fixture_machine(&f, machine);
	fixture_create(&f);
	log = rank_log(1, 1, 0, "grep Cpus_allowed_list /proc/self/status");
	want = str_printf("Cpus_allowed_list:\t%s\n", list);
	ck_assert_str_eq(log, want);
}
END_TEST

/* CPUs that this machine does not have: each counts as a core. */
START_TEST(cores_are_shared_by_the_ranks_near_them)
{
	struct node_device list[4] = {{.gpu = true}, {.gpu = true}, {.gpu = true}, {.gpu = true}};
	const struct devices devices = {.list = list, .count = 4};
	const struct {
		const char *allowed, *want;
		size_t count, which;
		int slots[4], threads;
	} cases[] = {
	    {"800-931", "800-807", 1, 0, {0}, 0},
	    {"800-931", "800-803", 2, 0, {0, 1}, 0},
	    {"800-931", "804-807", 2, 1, {0, 1}, 0},
	    {"800-931", "800-807", 2, 0, {0, 2}, 0}, /* the other one is elsewhere */
	    {"800-931", "920-923", 4, 2, {0, 1, 2, 3}, 0},
	    {"801,803,805", "801,803", 2, 0, {1, 0}, 0},
	    {"801,803,805", "805", 2, 1, {1, 0}, 0},
	    {"801", "801", 2, 1, {1, 0}, 0},         /* fewer cores than ranks */
	    {"800-931", "800-807", 2, 0, {0, 1}, 6}, /* more threads than the share */
	    {"0-7", NULL, 1, 0, {0}, 0},             /* none of them may be used */
	};

	ck_assert_int_eq(affinity_parse("800-807", &list[0].cpus), 0);
	list[1].cpus = list[0].cpus;
	ck_assert_int_eq(affinity_parse("920-927", &list[2].cpus), 0);
	list[3].cpus = list[2].cpus;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cpu_set_t allowed, got, want;
		bool some;

		ck_assert_int_eq(affinity_parse(cases[i].allowed, &allowed), 0);
		some = affinity_share(&devices, cases[i].slots, cases[i].count, cases[i].which,
		                      cases[i].threads, &allowed, &got);
		ck_assert_int_eq(some, cases[i].want != NULL);
		if (!some)
			continue;
		ck_assert_int_eq(affinity_parse(cases[i].want, &want), 0);
		ck_assert_msg(CPU_EQUAL(&got, &want), "case %zu: %s", i, affinity_format(&got));
	}
	ck_assert_int_eq(affinity_parse("1-", &list[0].cpus), -EINVAL);
	ck_assert_int_eq(affinity_parse("9999", &list[0].cpus), -EINVAL);
	ck_assert_int_eq(affinity_parse("3-1", &list[0].cpus), -EINVAL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_gpu");
	TCase *find = tcase_create("devices"), *run = tcase_create("node");

	tcase_add_test(find, gpus_are_slots);
	tcase_add_test(find, an_old_driver_says_less);
	tcase_add_test(find, cores_are_shared_by_the_ranks_near_them);
	tcase_set_timeout(find, 60);
	suite_add_tcase(suite, find);
	tcase_add_checked_fixture(run, setup, teardown);
	tcase_set_timeout(run, 60);
	tcase_add_test(run, ranks_see_the_leased_gpus);
	tcase_add_test(run, one_rank_has_several_gpus);
	tcase_add_test(run, gpus_need_their_engine);
	tcase_add_test(run, a_driver_that_does_not_start);
	tcase_add_test(run, names_that_cannot_mislead);
	tcase_add_test(run, what_nvml_says_is_shown);
	tcase_add_test(run, links_are_named_as_nvidia_smi_does);
	tcase_add_test(run, mig_devices_are_slots);
	tcase_add_test(run, many_mig_devices);
	tcase_add_test(run, a_gpu_that_is_not_ours_gives_no_slot);
	tcase_add_test(run, ranks_stay_near_their_gpu);
	suite_add_tcase(suite, run);
	return unit_run(suite);
}
