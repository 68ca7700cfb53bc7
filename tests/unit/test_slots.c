/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a node with GPUs whose readings and events this file makes up. */
#include "unit.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

#include "base/clock.h"
#include "base/str.h"
#include "node/gpu/watch.h"
#include "node/gpu/xid.h"
#include "node/slots.h"

static char *dir;
static sd_event *event;
static struct daemon_config config;
static struct slots *slots;
static struct strbuf told;             /* "fault 1 TEXT\n", "changed\n" */
static struct gpu_watch_options watch; /* of the last start */
static struct gpu_reading first[3];    /* as gpu_read has them */
static int watch_code, reads, stops, closes;
static bool returns = true, mig;
static struct nvml *library; /* of the last list of devices */

int __wrap_gpu_watch_start(sd_event *, const struct devices *, const struct gpu_watch_options *,
                           struct gpu_watch **, struct error *);
int __wrap_gpu_watch_start(sd_event *e, const struct devices *devices,
                           const struct gpu_watch_options *options, struct gpu_watch **out, struct error *err)
{
	watch = *options;
	*out = (struct gpu_watch *)&watch;
	return watch_code < 0 ? error_set(err, watch_code, "no threads") : 0;
}

bool __wrap_gpu_watch_stop(struct gpu_watch *w);
bool __wrap_gpu_watch_stop(struct gpu_watch *w)
{
	ck_assert_ptr_eq(w, &watch);
	stops++;
	return returns;
}

void __wrap_gpu_read(const struct nvml *, const struct node_device *, struct gpu_reading *);
void __wrap_gpu_read(const struct nvml *nvml, const struct node_device *d, struct gpu_reading *out)
{
	*out = first[d->index];
	reads++;
}

static const char *get_error(int code)
{
	return code == NVML_GPU_IS_LOST ? "GPU is lost" : "some error";
}

static int shut_down(void)
{
	closes++;
	return 0;
}

/* GPU 2 was broken from the start. */
static bool nameless; /* device 0 has no UUID, and device 1 is a CPU slot */

int __wrap_devices_find(const struct daemon_config *, int, struct devices *, struct error *);
int __wrap_devices_find(const struct daemon_config *c, int hosts_slots, struct devices *out,
                        struct error *err)
{
	*out = (struct devices){.list = calloc(3, sizeof(*out->list)),
	                        .count = 3,
	                        .links = calloc(9, sizeof(*out->links)),
	                        .nvml = calloc(1, sizeof(*out->nvml)),
	                        .driver = "580",
	                        .cuda = "13.0"};
	library = out->nvml;
	library->error = get_error;
	library->shutdown = shut_down;
	library->library = dlopen(NULL, RTLD_NOW); /* given back with it */
	for (int i = 0; i < 3; i++) {
		struct node_device *d = &out->list[i];

		*d = (struct node_device){.gpu = true,
		                          .index = i,
		                          .memory = 1000,
		                          .threads = 4 + i,
		                          .numa = i - 1,
		                          .handle = i < 2 ? out : NULL,
		                          .parent = i < 2 ? out : NULL,
		                          .mig = mig && i == 1,
		                          .gpu_instance = 7,
		                          .compute_instance = 2};
		snprintf(d->name, sizeof(d->name), "H200");
		if (i < 2)
			snprintf(d->uuid, sizeof(d->uuid), "U-%d", i);
		else
			snprintf(d->fault, sizeof(d->fault), "GPU is lost");
		strcpy(d->pci, "0000:00:00.0");
		d->pci[6] = (char)('0' + i);
		for (int k = 0; k < 3; k++)
			memcpy(out->links[i * 3 + k],
			       (const char[]){'L', (char)('0' + i), (char)('0' + k), 0}, 4);
	}
	if (nameless) {
		out->list[0].uuid[0] = out->list[1].uuid[0] = '\0';
		out->list[1].gpu = false;
		out->list[1].handle = NULL;
	}
	return 0;
}

static void on_fault(void *context, int slot, const char *text)
{
	strbuf_addf(context, "fault %d %s\n", slot, text);
}

static void on_changed(void *context)
{
	strbuf_adds(context, "changed\n");
}

static int create(struct error *err)
{
	const struct slots_callbacks callbacks = {&told, on_fault, on_changed};

	return slots_create(event, &config, "n1", 0, &callbacks, &slots, err);
}

static void restart(void)
{
	struct error err = ERROR_INIT;

	if (slots)
		slots_destroy(slots);
	slots = NULL;
	ck_ok(create(&err), &err);
}

/* A reading without anything wrong. */
static struct gpu_reading reading(void)
{
	return (struct gpu_reading){.time = 1000,
	                            .memory_used = 500,
	                            .utilization = 81,
	                            .temperature = 55,
	                            .power = 400149,
	                            .power_limit = 700050,
	                            .ecc_errors = 5,
	                            .retirement_pending = 0,
	                            .retirement_failed = 0};
}

static void setup(void)
{
	dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&event), 0);
	config = (struct daemon_config){
	    .state_dir = dir, .heartbeat = 3, .node_timeout = 10, .gpu_idle_timeout = 0};
	told = (struct strbuf){0};
	strbuf_adds(&told, "");
	for (int i = 0; i < 3; i++)
		first[i] = reading();
	restart();
}

static void teardown(void)
{
	if (slots)
		slots_destroy(slots);
	sd_event_unref(event);
	strbuf_free(&told);
	file_remove_tree(dir, NULL);
	free(dir);
}

static void check_told(const char *want)
{
	ck_assert_str_eq(told.data, want);
	strbuf_reset(&told);
	strbuf_adds(&told, "");
}

static void read_slot(int i, struct gpu_reading r)
{
	watch.reading(watch.context, (size_t)i, &r);
}

static void resume(int i)
{
	struct error err = ERROR_INIT;

	ck_ok(slots_resume(slots, i, &err), &err);
	ck_assert_ptr_null(slots_drained(slots, i));
	check_told("changed\n");
}

static void check_drained(int i, const char *reason)
{
	_cleanup_free_ char *want =
	    str_printf("fault %d GPU %d (U-%d) of n1: %s\nchanged\n", i, i, i, reason);
	char text[300];

	ck_assert_str_eq(slots_drained(slots, i), reason);
	check_told(want);
	ck_assert_ptr_eq(slots_fault(slots, i, text, sizeof(text)), text);
	ck_assert_ptr_nonnull(strstr(want, text));
}

START_TEST(slots_are_described)
{
	struct device_info info;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(slots_count(slots), 3);
	ck_assert_int_eq(reads, 2);
	ck_assert_double_eq(watch.interval, 3);
	ck_assert_double_eq(watch.call_timeout, 60);
	ck_ok(slots_describe(slots, 1, 0, &info, &err), &err);
	ck_assert_str_eq(info.node, "n1");
	ck_assert_int_eq(info.index, 1);
	ck_assert_int_eq(info.kind, DEVICE_KIND_GPU);
	ck_assert_str_eq(info.name, "H200");
	ck_assert_str_eq(info.uuid, "U-1");
	ck_assert_int_eq(info.memory, 1000);
	ck_assert_int_eq(info.threads, 5);
	ck_assert_int_eq(info.state, SLOT_FREE);
	ck_assert_int_eq(info.run, 0);
	ck_assert_ptr_null(info.reason);
	ck_assert_int_eq(info.gpu_info->gpu, 1);
	ck_assert_int_eq(info.gpu_info->numa, 0);
	ck_assert_double_eq(info.gpu_info->read, 1000);
	ck_assert_int_eq(info.gpu_info->memory_used, 500);
	ck_assert_int_eq(info.gpu_info->utilization, 81);
	ck_assert_int_eq(info.gpu_info->temperature, 55);
	ck_assert_double_eq_tol(info.gpu_info->power, 400.1, 1e-9);
	ck_assert_double_eq_tol(info.gpu_info->power_limit, 700.1, 1e-9);
	ck_assert_int_eq(info.gpu_info->ecc_errors, 5);
	ck_assert_ptr_null(info.gpu_info->xid);
	ck_assert_ptr_null(info.gpu_info->mig);
	ck_assert_str_eq(info.gpu_info->pci, "0000:01:00.0");
	ck_assert_str_eq(info.gpu_info->driver, "580");
	ck_assert_str_eq(info.gpu_info->cuda, "13.0");
	for (int k = 0; k < 3; k++) {
		_cleanup_free_ char *link = str_printf("L1%d", k);

		ck_assert_str_eq(info.gpu_info->links[k], link);
	}
	ck_assert_ptr_null(info.gpu_info->links[3]);
	device_info_release(&info);
	ck_ok(slots_describe(slots, 0, 9, &info, &err), &err);
	ck_assert_int_eq(info.state, SLOT_LEASED);
	ck_assert_int_eq(info.run, 9);
	ck_assert_int_eq(info.gpu_info->numa, -1);
	device_info_release(&info);
	/* The broken one was not read: nothing of it is known. */
	ck_ok(slots_describe(slots, 2, 9, &info, &err), &err);
	ck_assert_int_eq(info.state, SLOT_DRAINING);
	ck_assert_str_eq(info.reason, "GPU is lost");
	ck_assert_ptr_null(info.uuid);
	ck_assert_double_eq(info.gpu_info->read, 0);
	ck_assert_int_eq(info.gpu_info->memory_used, -1);
	ck_assert_int_eq(info.gpu_info->utilization, -1);
	ck_assert_int_eq(info.gpu_info->temperature, -1);
	ck_assert_double_eq(info.gpu_info->power, -1);
	ck_assert_double_eq(info.gpu_info->power_limit, -1);
	ck_assert_int_eq(info.gpu_info->ecc_errors, -1);
	device_info_release(&info);
	mig = true;
	restart();
	watch.xid(watch.context, 1, 31, 77.5);
	ck_ok(slots_describe(slots, 1, 0, &info, &err), &err);
	ck_assert_int_eq(info.gpu_info->mig->gpu_instance, 7);
	ck_assert_int_eq(info.gpu_info->mig->compute_instance, 2);
	ck_assert_int_eq(info.gpu_info->xid->code, 31);
	ck_assert_double_eq(info.gpu_info->xid->time, 77.5);
	ck_assert_str_eq(info.gpu_info->xid->message, xid_find(31)->text);
	ck_assert_int_eq(info.state, SLOT_FREE);
	device_info_release(&info);
	check_told("");
}
END_TEST

START_TEST(a_broken_gpu_stays_drained)
{
	struct error err = ERROR_INIT;
	char text[300];

	ck_assert_str_eq(slots_drained(slots, 2), "GPU is lost");
	ck_assert_str_eq(slots_fault(slots, 2, text, sizeof(text)), "GPU 2 of n1: GPU is lost");
	ck_assert_int_eq(slots_resume(slots, 2, &err), -EIO);
	ck_assert_str_eq(err.message,
	                 "GPU 2 of n1: GPU is lost: it cannot be given back before dtraind is restarted and "
	                 "finds it well");
	ck_ok(slots_drain(slots, 2, "by me", &err), &err);
	ck_assert_str_eq(slots_drained(slots, 2), "GPU is lost");
	check_told("");
}
END_TEST

START_TEST(a_slot_has_a_number)
{
	static const int wrong[] = {-1, 3};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_free_ char *want =
		    str_printf("node n1 has no slot %d; there are 3, counted from 0", wrong[i]);

		ck_assert_int_eq(slots_drain(slots, wrong[i], "x", &err), -ENOENT);
		ck_assert_str_eq(err.message, want);
		ck_assert_int_eq(slots_resume(slots, wrong[i], &err), -ENOENT);
		ck_assert_str_eq(err.message, want);
	}
	ck_ok(slots_resume(slots, 0, &err), &err); /* nothing to do */
	check_told("");
}
END_TEST

START_TEST(errors_of_the_device_drain_it)
{
	char text[300];

	watch.xid(watch.context, 0, 79, 5);
	check_drained(0, "Xid 79: fell off the bus");
	/* The first reason stays, and it is not reported again. */
	watch.xid(watch.context, 0, 74, 6);
	watch.memory_error(watch.context, 0);
	check_told("");
	ck_assert_str_eq(slots_drained(slots, 0), "Xid 79: fell off the bus");
	resume(0);
	ck_assert_ptr_null(slots_fault(slots, 0, text, sizeof(text)));
	watch.memory_error(watch.context, 0);
	check_drained(0, "uncorrectable memory error (double-bit ECC)");
	ck_assert_ptr_null(slots_drained(slots, 1));
}
END_TEST

static void change_boot(void)
{
	_cleanup_free_ char *path = str_path_join(dir, "drained.json"), *text = NULL;
	struct error err = ERROR_INIT;
	char *boot;

	slots_destroy(slots);
	slots = NULL;
	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	boot = strstr(text, "\"boot\":\"");
	ck_assert_ptr_nonnull(boot);
	boot[8] = boot[8] == '0' ? '1' : '0';
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	ck_ok(create(&err), &err);
}

/* What a reboot heals does not outlive it, unless another error came meanwhile that it does not heal. */
START_TEST(drains_have_their_time)
{
	watch.xid(watch.context, 0, 48, 5);
	watch.xid(watch.context, 1, 48, 5);
	watch.xid(watch.context, 1, 79, 6);
	restart();
	ck_assert_str_eq(slots_drained(slots, 0), "Xid 48: uncorrectable memory error (double-bit ECC)");
	change_boot();
	ck_assert_ptr_null(slots_drained(slots, 0));
	ck_assert_str_eq(slots_drained(slots, 1), "Xid 48: uncorrectable memory error (double-bit ECC)");
}
END_TEST

START_TEST(a_hand_weighs_less_than_an_error)
{
	struct error err = ERROR_INIT;
	char text[300];

	ck_ok(slots_drain(slots, 0, "its fan\x01is loud", &err), &err);
	check_told("changed\n");
	ck_assert_str_eq(slots_drained(slots, 0), "its fan?is loud");
	ck_assert_ptr_null(slots_fault(slots, 0, text, sizeof(text)));
	ck_ok(slots_drain(slots, 0, "", &err), &err);
	check_told("changed\n");
	ck_assert_str_eq(slots_drained(slots, 0), "by hand");
	watch.memory_error(watch.context, 0);
	check_drained(0, "uncorrectable memory error (double-bit ECC)");
	ck_ok(slots_drain(slots, 0, "its fan", &err), &err);
	check_told("");
	ck_assert_str_eq(slots_drained(slots, 0), "uncorrectable memory error (double-bit ECC)");
	resume(0);
	ck_ok(slots_drain(slots, 0, NULL, &err), &err);
	check_told("changed\n");
	restart();
	ck_assert_str_eq(slots_drained(slots, 0), "by hand");
}
END_TEST

START_TEST(counters_of_errors_are_compared)
{
	struct gpu_reading r = reading();

	read_slot(0, r);
	check_told("");
	r.ecc_errors = 6;
	read_slot(0, r);
	check_drained(0, "1 uncorrected memory error (ECC)");
	resume(0);
	read_slot(0, r);
	r.ecc_errors = 8;
	read_slot(0, r);
	check_drained(0, "2 uncorrected memory errors (ECC)");
	resume(0);
	/* What is not known is not compared, nor is a counter that begins anew. */
	r.ecc_errors = -1;
	read_slot(0, r);
	r.ecc_errors = 9;
	read_slot(0, r);
	r.ecc_errors = 2;
	read_slot(0, r);
	check_told("");
	/* While the GPU does not answer, the counter stays what it was. */
	read_slot(0, (struct gpu_reading){.time = 1, .fault = NVML_GPU_IS_LOST, .ecc_errors = -1});
	check_drained(0, "NVML error 15: GPU is lost");
	r.ecc_errors = 2;
	read_slot(0, r);
	resume(0);
	read_slot(0, r);
	check_told("");
}
END_TEST

/* Errors from before the service are not new. */
START_TEST(the_first_reading_is_no_change)
{
	first[0].ecc_errors = 50;
	restart();
	check_told("");
	first[0].ecc_errors = -1;
	restart();
	read_slot(0, reading());
	check_told("");
}
END_TEST

START_TEST(retired_memory_drains_until_it_is_accepted)
{
	struct gpu_reading r = reading();
	static const char pending[] =
	    "a memory row or page waits to be retired: a reset of the GPU or a reboot does it";
	static const char failed[] = "a memory row could not be remapped";

	r.retirement_pending = 1;
	read_slot(0, r);
	check_drained(0, pending);
	read_slot(0, r);
	check_told("");
	resume(0);
	read_slot(0, r);
	check_told("");
	/* Accepted, it drains no more, also after a restart; the other condition does. */
	first[0].retirement_pending = 1;
	restart();
	check_told("");
	r.retirement_failed = 1;
	read_slot(0, r);
	check_drained(0, failed);
	resume(0);
	first[0].retirement_failed = 1;
	restart();
	check_told("");
	/* Another drain does not forget what was accepted. */
	watch.xid(watch.context, 0, 79, 5);
	check_drained(0, "Xid 79: fell off the bus");
	restart();
	ck_assert_str_eq(slots_drained(slots, 0), "Xid 79: fell off the bus");
	resume(0);
	restart();
	check_told("");
	{
		struct error err = ERROR_INIT;

		ck_ok(slots_drain(slots, 0, "x", &err), &err);
	}
	check_told("changed\n");
	restart();
	check_told("");
	ck_assert_str_eq(slots_drained(slots, 0), "x");
	/* A reboot retires what was waiting: if it waits again, that is new. */
	resume(0);
	change_boot();
	check_drained(0, pending);
}
END_TEST

/* One that is not known is no condition, and what was known stays known while a GPU does not answer. */
START_TEST(retirement_may_not_be_known)
{
	struct gpu_reading r = reading();

	r.retirement_pending = r.retirement_failed = -1;
	read_slot(0, r);
	check_told("");
	r.retirement_pending = 1;
	read_slot(0, r);
	ck_assert_ptr_nonnull(slots_drained(slots, 0));
	check_drained(0, "a memory row or page waits to be retired: a reset of the GPU or a reboot does it");
	resume(0);
	read_slot(
	    0,
	    (struct gpu_reading){
	        .time = 1, .fault = 99, .ecc_errors = -1, .retirement_pending = -1, .retirement_failed = -1});
	check_drained(0, "NVML error 99: some error");
	read_slot(0, r);
	resume(0);
	read_slot(0, r);
	check_told("");
}
END_TEST

START_TEST(a_gpu_that_does_not_answer_cannot_be_given_back)
{
	struct gpu_reading lost = reading();
	struct error err = ERROR_INIT;

	lost.fault = NVML_NOT_FOUND;
	read_slot(1, lost);
	check_drained(1, "it is not there any more: restart dtraind");
	read_slot(1, lost);
	check_told("");
	ck_assert_int_eq(slots_resume(slots, 1, &err), -EIO);
	ck_assert_str_eq(err.message,
	                 "GPU 1 (U-1) of n1 cannot be given back: it is not there any more: restart dtraind");
	read_slot(1, reading());
	ck_assert_ptr_nonnull(slots_drained(slots, 1));
	resume(1);
	watch.hung(watch.context, 1, true);
	check_drained(1, "hung: the driver does not answer");
	ck_assert_int_eq(slots_resume(slots, 1, &err), -EIO);
	ck_assert_str_eq(err.message, "GPU 1 (U-1) of n1 cannot be given back: the driver does not answer");
	watch.hung(watch.context, 1, false);
	check_told("");
	resume(1);
}
END_TEST

START_TEST(memory_that_a_run_leaves_drains)
{
	struct gpu_reading r = reading();

	config.gpu_idle_timeout = 1e-9;
	r.memory_used = (int64_t)1 << 30;
	read_slot(0, r);
	slots_leased(slots, 0);
	r.memory_used = (int64_t)3 << 30;
	read_slot(0, r);
	check_told("");
	slots_released(slots, 0, 9);
	read_slot(0, r);
	check_drained(0, "2.0 GiB more of its memory are in use than before run 9, which ended 1e-09 s ago");
	resume(0);
	/* Without a reading before, it is not known. */
	first[1].time = 0;
	restart();
	slots_leased(slots, 1);
	slots_released(slots, 1, 9);
	read_slot(1, r);
	check_told("");
}
END_TEST

START_TEST(a_watch_is_needed)
{
	struct error err = ERROR_INIT;

	slots_destroy(slots);
	slots = NULL;
	ck_assert_int_eq(stops, 1);
	ck_assert_int_eq(closes, 1);
	watch_code = -EAGAIN;
	ck_assert_int_eq(create(&err), -EAGAIN);
	ck_assert_str_eq(err.message, "no threads");
	watch_code = 0;
	/* A library in which a call hangs stays open. */
	ck_ok(create(&err), &err);
	closes = 0;
	returns = false;
	slots_destroy(slots);
	slots = NULL;
	ck_assert_int_eq(closes, 0);
	dlclose(library->library);
	free(library);
}
END_TEST

static int written_code = 1;

static void on_written(void *context, int code, const char *message)
{
	written_code = code;
}

START_TEST(drains_can_be_awaited)
{
	_cleanup_free_ char *path = str_path_join(dir, "drained.json");
	struct error err = ERROR_INIT;
	struct stat st;

	ck_ok(slots_drain(slots, 0, "x", &err), &err);
	ck_ok(slots_wait_drains(slots, on_written, NULL, &err), &err);
	while (written_code == 1)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_int_eq(written_code, 0);
	ck_assert_int_eq(stat(path, &st), 0);
}
END_TEST

START_TEST(damaged_drains_keep_the_node_from_starting)
{
	static const char *const texts[] = {"{", "{\"devices\":[{\"reason\":\"x\"}]}"};
	_cleanup_free_ char *path = str_path_join(dir, "drained.json");
	struct error err = ERROR_INIT;

	slots_destroy(slots);
	slots = NULL;
	ck_ok(file_write_atomic(path, texts[_i], strlen(texts[_i]), 0644, &err), &err);
	ck_assert_int_eq(create(&err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, path));
}
END_TEST

/* A device without a UUID is known by its kind and its number, also to a later service. */
START_TEST(a_drain_is_of_one_device)
{
	static const char text[] =
	    "{\"devices\":[{\"device\":\"cpu-0\",\"reason\":\"a\"},{\"device\":\"gpu-0\",\"reason\":\"loud\","
	    "\"by_hand\":true},"
	    "{\"device\":\"gpu-1\",\"reason\":\"b\"},{\"device\":\"U-0\",\"reason\":\"c\"},"
	    "{\"device\":\"cpu-1\",\"reason\":\"quiet\",\"by_hand\":true}]}";
	_cleanup_free_ char *path = str_path_join(dir, "drained.json");
	struct error err = ERROR_INIT;

	slots_destroy(slots);
	slots = NULL;
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	nameless = true;
	ck_ok(create(&err), &err);
	ck_assert_str_eq(slots_drained(slots, 0), "loud");
	ck_assert_str_eq(slots_drained(slots, 1), "quiet");
	ck_ok(slots_resume(slots, 1, &err), &err);
	ck_assert_ptr_null(slots_drained(slots, 1));
	ck_assert_str_eq(slots_drained(slots, 0), "loud");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("slots");
	TCase *tc = tcase_create("slots");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, slots_are_described);
	tcase_add_test(tc, a_broken_gpu_stays_drained);
	tcase_add_test(tc, a_slot_has_a_number);
	tcase_add_test(tc, errors_of_the_device_drain_it);
	tcase_add_test(tc, drains_have_their_time);
	tcase_add_test(tc, a_hand_weighs_less_than_an_error);
	tcase_add_test(tc, counters_of_errors_are_compared);
	tcase_add_test(tc, the_first_reading_is_no_change);
	tcase_add_test(tc, retired_memory_drains_until_it_is_accepted);
	tcase_add_test(tc, retirement_may_not_be_known);
	tcase_add_test(tc, a_gpu_that_does_not_answer_cannot_be_given_back);
	tcase_add_test(tc, memory_that_a_run_leaves_drains);
	tcase_add_test(tc, a_watch_is_needed);
	tcase_add_test(tc, drains_can_be_awaited);
	tcase_add_test(tc, a_drain_is_of_one_device);
	tcase_add_loop_test(tc, damaged_drains_keep_the_node_from_starting, 0, 2);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
