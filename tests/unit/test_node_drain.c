/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that reports errors is drained with a reason, until it is resumed. */
#include "node_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "node/gpu/idle.h"
#include "node/gpu/xid.h"

static struct fixture f;

static void setup(void)
{
	ck_assert_msg(dlopen("tests/unit/libfake-nvml.so", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
	fixture_prepare(&f, NULL);
	fixture_machine(&f, "temp=1\ntemp=1\n");
	fixture_create(&f);
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static void await(int slot, const char *state, const char *reason)
{
	_cleanup_json_ json_t *d = fixture_await_device(&f, slot, state);

	ck_assert_str_eq(json_get_string(d, "reason", ""), reason);
}

/* A reading that began now has been seen. */
static void await_reading(void)
{
	_cleanup_json_ json_t *d = fixture_device(&f, 1);
	double before = json_get_number(d, "read", 0);

	for (int i = 0; i < 2; i++)
		do {
			fixture_turn(&f);
			json_decref(d);
			d = fixture_device(&f, 1);
		} while (json_get_number(d, "read", 0) <= before && (before = json_get_number(d, "read", 0)));
}

static void resume(int slot)
{
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *d = NULL;

	ck_ok(node_resume(f.node, slot, &err), &err);
	d = fixture_device(&f, slot);
	ck_assert_str_eq(json_get_string(d, "state", ""), "free");
}

START_TEST(an_xid_of_the_device_drains_it)
{
	_cleanup_json_ json_t *both = fixture_shell(1, 2, "true"), *one = fixture_shell(2, 1, "true"),
	                      *d = NULL;
	double before = clock_realtime();
	struct error err = ERROR_INIT;

	fixture_gpu_event(&f, "1 79\n");
	await(1, "drained", "Xid 79: fell off the bus");
	ck_assert_int_eq(f.changes, 1);
	d = fixture_device(&f, 1);
	ck_assert_int_eq(json_get_int(json_object_get(d, "xid"), "code", 0), 79);
	ck_assert_double_ge(json_get_number(json_object_get(d, "xid"), "time", 0), before - 0.01);
	ck_assert_double_le(json_get_number(json_object_get(d, "xid"), "time", 0), clock_realtime() + 0.01);
	ck_assert_int_eq(node_free_slots(f.node), 1);
	ck_assert_int_eq(fixture_start(&f, both, &err), -EBUSY);
	ck_assert_str_eq(err.message, "slot 1, GPU 1 (GPU-1000), is drained: Xid 79: fell off the bus");
	ck_ok(fixture_start(&f, one, &err), &err);
	fixture_await(&f, 2, "ended");
	/* Neither a later error nor a restart replaces the reason. */
	fixture_gpu_event(&f, "1 45\n1 74\n");
	do {
		fixture_turn(&f);
		json_decref(d);
		d = fixture_device(&f, 1);
	} while (json_get_int(json_object_get(d, "xid"), "code", 0) != 74);
	fixture_restart(&f, false);
	await(1, "drained", "Xid 79: fell off the bus");
	resume(1);
	ck_ok(fixture_start(&f, both, &err), &err);
	fixture_await(&f, 1, "ended");
	fixture_restart(&f, false);
	json_decref(d);
	d = fixture_device(&f, 1);
	ck_assert_str_eq(json_get_string(d, "state", ""), "free");
}
END_TEST

/* It has no events of memory errors, and is listened to for the others. */
START_TEST(a_gpu_has_the_events_that_it_can_have)
{
	fixture_restart(&f, true);
	fixture_machine(&f, "events=8\n");
	fixture_create(&f);
	fixture_gpu_event(&f, "0 79\n");
	await(0, "drained", "Xid 79: fell off the bus");
}
END_TEST

/* NVIDIA's catalog: those after which a GPU is not to be used, of these those that say that its memory is
 * defective, and those that programs cause. The others only say something. */
START_TEST(each_xid_has_a_class)
{
	static const char catalog[][400] = {
	    " 46 48 54 61 62 63 64 74 79 92 94 95 109 110 119 120 136 140 143 144 145 146 147 148 149 150 "
	    "151 155 156 157 158 167 169 171 172 ",
	    " 8 11 13 25 31 32 39 40 41 60 68 69 70 71 72 75 76 77 80 82 83 84 85 86 87 88 89 96 97 98 99 "
	    "100 101 102 103 104 105 126 127 128 129 130 131 132 133 134 135 139 142 ",
	    " 48 63 94 95 140 156 171 172 ",
	};

	for (unsigned code = 0; code < 1000; code++) {
		_cleanup_free_ char *word = str_printf(" %u ", code);
		const struct xid *xid = xid_find(code);

		ck_assert_msg(xid->class == (strstr(catalog[0], word)   ? XID_DEVICE
		                             : strstr(catalog[1], word) ? XID_APPLICATION
		                                                        : XID_NOTICE),
		              "Xid %u", code);
		ck_assert_msg(xid->memory == (strstr(catalog[2], word) != NULL), "Xid %u", code);
	}
}
END_TEST

START_TEST(an_xid_of_a_program_does_not)
{
	_cleanup_json_ json_t *d = NULL;

	fixture_gpu_event(&f, "0 31\n");
	do {
		fixture_turn(&f);
		json_decref(d);
		d = fixture_device(&f, 0);
	} while (json_is_null(json_object_get(d, "xid")));
	ck_assert_str_eq(json_get_string(json_object_get(d, "xid"), "message", ""), "memory page fault");
	ck_assert_str_eq(json_get_string(d, "state", ""), "free");
	ck_assert_int_eq(f.changes, 0);
}
END_TEST

START_TEST(who_runs_on_it_is_told)
{
	_cleanup_json_ json_t *request = fixture_shell(1, 2, "exec sleep 1000");
	struct error err = ERROR_INIT;
	const json_t *report;

	ck_ok(fixture_start(&f, request, &err), &err);
	fixture_await(&f, 1, "running");
	fixture_gpu_event(&f, "1 95\n");
	await(1, "draining", "Xid 95: uncontained uncorrectable memory error");
	report = fixture_await(&f, 1, "running");
	ck_assert_uint_eq(json_array_size(json_object_get(report, "device_errors")), 1);
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(report, "device_errors"), 0)),
	                 "GPU 1 (GPU-1000) of n1: Xid 95: uncontained uncorrectable memory error");
	/* A restarted service has the same information. */
	fixture_restart(&f, false);
	report = fixture_await(&f, 1, "running");
	ck_assert_uint_eq(json_array_size(json_object_get(report, "device_errors")), 1);
	node_stop(f.node, 1, 1, 0, &err);
	report = fixture_await(&f, 1, "ended");
	ck_assert_uint_eq(json_array_size(json_object_get(report, "device_errors")), 1);
	await(1, "drained", "Xid 95: uncontained uncorrectable memory error");
	await(0, "free", "");
}
END_TEST

START_TEST(errors_that_are_counted)
{
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *d = NULL;

	/* Errors from before are not new. */
	fixture_machine(&f, "ecc=7\ntemp=1\n");
	await(0, "drained", "7 uncorrected memory errors (ECC)");
	resume(0);
	fixture_restart(&f, false);
	await_reading();
	await(0, "free", "");
	fixture_machine(&f, "ecc=8\ntemp=1\n");
	await(0, "drained", "1 uncorrected memory error (ECC)");
	resume(0);
	fixture_gpu_event(&f, "0 0\n");
	await(0, "drained", "uncorrectable memory error (double-bit ECC)");

	/* A row that waits for a reset: who gives it back has seen that, until it is another one. */
	fixture_machine(&f, "ecc=8\npending=1\n");
	await(1, "drained",
	      "a memory row or page waits to be retired: a reset of the GPU or a reboot does it");
	resume(1);
	fixture_restart(&f, false);
	await_reading();
	await(1, "free", "");
	fixture_machine(&f, "ecc=8\nfailed=1 pending=1\n");
	await(1, "drained", "a memory row could not be remapped");

	/* A lost GPU cannot be resumed as long as it is lost. */
	resume(1);
	fixture_machine(&f, "ecc=8\nfailed=1 pending=1 fault=15\n");
	await(1, "drained", "NVML error 15: GPU is lost");
	ck_assert_int_eq(node_resume(f.node, 1, &err), -EIO);
	ck_assert_str_eq(err.message,
	                 "GPU 1 (GPU-1000) of n1 cannot be given back: NVML error 15: GPU is lost");
	fixture_machine(&f, "ecc=8\nfailed=1 pending=1\n");
	await_reading();
	d = fixture_device(&f, 1);
	ck_assert_str_eq(json_get_string(d, "state", ""), "drained");
	resume(1);
	await_reading();
	await(1, "free", "");
}
END_TEST

/* A run ends; what the GPU then has in use, in MiB, is about what it was before, or not. */
START_TEST(memory_that_a_run_leaves_in_use)
{
	_cleanup_free_ char *go = fixture_path(&f, "go"),
	                    *script = str_printf("until [ -e %s ]; do sleep 0.02; done", go);
	_cleanup_json_ json_t *request = fixture_shell(7, 1, script);
	struct error err = ERROR_INIT;

	fixture_restart(&f, true);
	f.config->gpu_idle_timeout = 0.2;
	fixture_machine(&f, "used=700\ntemp=1\n");
	fixture_restart(&f, false);
	ck_ok(fixture_start(&f, request, &err), &err);
	fixture_await(&f, 7, "running");
	fixture_machine(&f, _i ? "used=900\ntemp=1\n" : "used=8700\ntemp=1\n");
	await_reading();
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	fixture_await(&f, 7, "ended");
	if (_i == 1) {
		for (int i = 0; i < 10; i++)
			await_reading();
		await(0, "free", "");
		return;
	}
	await(0, "drained", "7.8 GiB more of its memory are in use than before run 7, which ended 0.2 s ago");
	fixture_machine(&f, "used=700\ntemp=1\n");
	resume(0);
	await_reading();
	await(0, "free", "");
}
END_TEST

/* What a run has not given back is not idle for the one after it; each is given the whole time. */
START_TEST(memory_between_runs)
{
	struct gpu_idle idle = {.before = -1};
	const int64_t mib = 1 << 20;
	char reason[200];

	gpu_idle_leased(&idle, -1); /* never read */
	gpu_idle_released(&idle, 1, 0, 10);
	ck_assert(!gpu_idle_read(&idle, 9000 * mib, 100, 10, reason, sizeof(reason)));
	gpu_idle_leased(&idle, 500 * mib);
	gpu_idle_released(&idle, 2, 100, 10);
	ck_assert(!gpu_idle_read(&idle, 9000 * mib, 105, 10, reason, sizeof(reason)));
	gpu_idle_leased(&idle, 9000 * mib);
	gpu_idle_released(&idle, 3, 108, 10);
	ck_assert(!gpu_idle_read(&idle, 9000 * mib, 112, 10, reason, sizeof(reason)));
	ck_assert(!gpu_idle_read(&idle, -1, 120, 10, reason, sizeof(reason)));
	ck_assert(gpu_idle_read(&idle, 9000 * mib, 120, 10, reason, sizeof(reason)));
	ck_assert_ptr_nonnull(strstr(reason, "before run 3"));
	ck_assert(!gpu_idle_read(&idle, 9000 * mib, 121, 10, reason, sizeof(reason)));
	gpu_idle_released(&idle, 4, 130, 0); /* it is not looked at */
	ck_assert(!gpu_idle_read(&idle, 9000 * mib, 140, 0, reason, sizeof(reason)));
}
END_TEST

START_TEST(a_driver_that_does_not_answer)
{
	_cleanup_json_ json_t *d = NULL;
	struct error err = ERROR_INIT;
	bool refused;

	fixture_machine(&f, "temp=1\nhang=1\n");
	await(1, "drained", "hung: the driver does not answer");
	await(0, "free", "");
	ck_assert_int_eq(node_resume(f.node, 1, &err), -EIO);
	fixture_machine(&f, "temp=1\ntemp=2\n");
	do {
		fixture_turn(&f);
		json_decref(d);
		d = fixture_device(&f, 1);
		refused = json_get_int(d, "temperature", 0) != 2;
	} while (refused);
	resume(1);
}
END_TEST

/* The library is given back when the service ends, unless a call of the driver never returns. */
START_TEST(a_library_that_answers_is_given_back)
{
	int log = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
	char text[8192];
	ssize_t n;

	await(0, "free", "");
	ck_assert_int_ge(dup2(log, STDERR_FILENO), 0);
	fixture_restart(&f, false);
	ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
	close(saved);
	n = pread(log, text, sizeof(text) - 1, 0);
	ck_assert_int_ge(n, 0);
	text[n] = '\0';
	ck_assert_msg(!strstr(text, "NVML does not come back"), "%s", text);
	close(log);
}
END_TEST

START_TEST(a_lost_gpu_keeps_its_slot)
{
	_cleanup_json_ json_t *one = fixture_shell(1, 1, "true");
	struct error err = ERROR_INIT;

	fixture_machine(&f, "lost=15\ntemp=1\n");
	fixture_restart(&f, false);
	await(0, "drained", "GPU is lost");
	ck_assert_int_eq(fixture_start(&f, one, &err), -EBUSY);
	ck_assert_int_eq(node_resume(f.node, 0, &err), -EIO);
	await(1, "free", "");
}
END_TEST

START_TEST(by_hand)
{
	struct error err = ERROR_INIT;

	ck_ok(node_drain(f.node, 0, "its fan is loud", &err), &err);
	ck_ok(node_drain(f.node, 1, NULL, &err), &err);
	await(1, "drained", "by hand");
	fixture_restart(&f, false);
	await(0, "drained", "its fan is loud");
	/* An error of its own weighs more. */
	f.changes = 0;
	fixture_gpu_event(&f, "0 64\n");
	do
		fixture_turn(&f);
	while (f.changes == 0);
	await(0, "drained", "Xid 64: a memory row or page could not be retired");
	ck_ok(node_drain(f.node, 0, "its fan is loud", &err), &err);
	await(0, "drained", "Xid 64: a memory row or page could not be retired");
	resume(0);
	resume(1);
	resume(1);
	ck_assert_int_eq(node_drain(f.node, 2, NULL, &err), -ENOENT);
	ck_assert_int_eq(node_resume(f.node, -1, &err), -ENOENT);
}
END_TEST

/* It has no more room than a line of a table, and JSON cannot carry half of a character. */
START_TEST(a_long_reason_is_cut)
{
	char reason[300], want[256];
	struct error err = ERROR_INIT;

	memset(reason, 'x', 254);
	strcpy(reason + 254, "\xc3\xa4 and so on");
	memset(want, 'x', 254);
	strcpy(want + 254, "?");
	ck_ok(node_drain(f.node, 0, reason, &err), &err);
	await(0, "drained", want);
	ck_ok(node_drain(f.node, 1, "a \x1b[1mnew fan", &err), &err);
	await(1, "drained", "a ?[1mnew fan");
	fixture_restart(&f, false);
	await(0, "drained", want);
}
END_TEST

static void write_drains(const char *boot)
{
	_cleanup_free_ char *path = fixture_path(&f, "state/drained.json"), *text = NULL;
	struct error err = ERROR_INIT;

	text = str_printf("{\"boot\":\"%s\",\"devices\":["
	                  "{\"device\":\"GPU-0000\",\"reason\":\"Xid 48: x\",\"until_boot\":true},"
	                  "{\"device\":\"GPU-1000\",\"reason\":\"Xid 79: y\",\"until_boot\":false}]}",
	                  boot);
	fixture_restart(&f, true);
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	fixture_restart(&f, false);
}

START_TEST(a_reboot_heals_what_a_reset_heals)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char *boot = NULL;

	ck_ok(node_drain(f.node, 0, NULL, &err), &err); /* so that the directory is there */
	ck_ok(file_read("/proc/sys/kernel/random/boot_id", 0, &boot, NULL, &err), &err);
	write_drains(str_strip(boot));
	await(0, "drained", "Xid 48: x");
	await(1, "drained", "Xid 79: y");
	write_drains("another");
	await(0, "free", "");
	await(1, "drained", "Xid 79: y");
	/* Where the error is still there, the GPU is drained again before a run gets it. */
	fixture_restart(&f, true);
	fixture_machine(&f, "pending=1\ntemp=1\n");
	write_drains("another");
	await(0, "drained",
	      "a memory row or page waits to be retired: a reset of the GPU or a reboot does it");
}
END_TEST

START_TEST(an_instance_fails_alone)
{
	fixture_restart(&f, true);
	fixture_machine(&f, "mig=2\ntemp=1\n");
	fixture_restart(&f, false);
	fixture_gpu_event(&f, "0 94 8\n");
	await(1, "drained", "Xid 94: contained uncorrectable memory error");
	await(0, "free", "");
	fixture_gpu_event(&f, "0 95\n"); /* of the whole GPU */
	await(0, "drained", "Xid 95: uncontained uncorrectable memory error");
	await(2, "free", "");
	/* The MIG devices are taken away. */
	resume(1);
	fixture_machine(&f, "mig=1\ntemp=1\n");
	await(1, "drained", "it is not there any more: restart dtraind");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_drain");
	TCase *run = tcase_create("node");

	tcase_add_checked_fixture(run, setup, teardown);
	tcase_set_timeout(run, 60);
	tcase_add_test(run, an_xid_of_the_device_drains_it);
	tcase_add_test(run, an_xid_of_a_program_does_not);
	tcase_add_test(run, a_gpu_has_the_events_that_it_can_have);
	tcase_add_test(run, each_xid_has_a_class);
	tcase_add_test(run, who_runs_on_it_is_told);
	tcase_add_test(run, errors_that_are_counted);
	tcase_add_loop_test(run, memory_that_a_run_leaves_in_use, 0, 2);
	tcase_add_test(run, memory_between_runs);
	tcase_add_test(run, a_driver_that_does_not_answer);
	tcase_add_test(run, a_library_that_answers_is_given_back);
	tcase_add_test(run, a_lost_gpu_keeps_its_slot);
	tcase_add_test(run, by_hand);
	tcase_add_test(run, a_long_reason_is_cut);
	tcase_add_test(run, a_reboot_heals_what_a_reset_heals);
	tcase_add_test(run, an_instance_fails_alone);
	suite_add_tcase(suite, run);
	return unit_run(suite);
}
