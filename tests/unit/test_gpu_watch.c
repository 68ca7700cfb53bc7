/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that watch GPUs, with a driver that this file is. */
#include "unit.h"

#include <pthread.h>
#include <string.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "node/gpu/watch.h"

/* ---- the driver ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waits, reads[4]; /* of each device's memory */
static int hangs;           /* reads of this device do not return; -1: all do */
static struct nvml_event events[600];
static size_t event_count, event_next;
static int wait_code; /* instead of an event, once */
static unsigned long long types[4], registered[4];
static int types_code, register_code, set_code, sets, unknown_uuids;
static char gpus[4]; /* their addresses are handles */

static size_t gpu_of(const void *handle)
{
	return (size_t)((const char *)handle - gpus);
}

static int get_memory(void *handle, struct nvml_memory *memory)
{
	pthread_mutex_lock(&lock);
	reads[gpu_of(handle)]++;
	pthread_cond_broadcast(&changed);
	while (hangs == (int)gpu_of(handle))
		pthread_cond_wait(&changed, &lock);
	*memory = (struct nvml_memory){.used = 1000 + gpu_of(handle)};
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

static int get_uuid(void *handle, char *uuid, unsigned size)
{
	snprintf(uuid, size, "U-%zu", gpu_of(handle) % 2);
	return unknown_uuids ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
}

static int event_set(void **set)
{
	sets++;
	*set = &sets;
	return set_code;
}

static int event_set_free(void *set)
{
	ck_assert_ptr_eq(set, &sets);
	pthread_mutex_lock(&lock);
	sets--;
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

static int event_types(void *handle, unsigned long long *out)
{
	*out = types[gpu_of(handle)];
	return types_code;
}

static int event_register(void *handle, unsigned long long wanted, void *set)
{
	ck_assert_uint_eq(registered[gpu_of(handle)], 0); /* each once */
	registered[gpu_of(handle)] = wanted;
	return register_code;
}

static int event_wait(void *set, struct nvml_event *event, unsigned milliseconds)
{
	const struct timespec pause = {0, 1000000};
	int code = NVML_TIMEOUT;

	pthread_mutex_lock(&lock);
	waits++;
	if (wait_code != 0) {
		code = wait_code;
		wait_code = 0;
	} else if (event_next < event_count) {
		*event = events[event_next++];
		code = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	if (code == NVML_TIMEOUT)
		nanosleep(&pause, NULL);
	return code;
}

static struct nvml nvml = {.memory = get_memory,
                           .uuid = get_uuid,
                           .event_set = event_set,
                           .event_set_free = event_set_free,
                           .event_types = event_types,
                           .event_register = event_register,
                           .event_wait = event_wait};

/* ---- the owner ---- */

static sd_event *event;
static struct node_device list[4];
static struct devices devices;
static struct gpu_watch *watch;
static struct strbuf told; /* "xid 79 of 1\n" */
static int readings[4];
static int64_t used[4];

/* Without the lines of readings. */
static void on_reading(void *context, size_t device, const struct gpu_reading *reading)
{
	ck_assert_ptr_eq(context, &told);
	readings[device]++;
	used[device] = reading->memory_used;
}

static void on_xid(void *context, size_t device, unsigned long long code, double time)
{
	ck_assert_double_le(time, clock_realtime() + 0.01);
	ck_assert_double_ge(time, clock_realtime() - 100);
	strbuf_addf(context, "xid %llu of %zu\n", code, device);
}

static void on_memory_error(void *context, size_t device)
{
	strbuf_addf(context, "memory of %zu\n", device);
}

static void on_hung(void *context, size_t device, bool hung)
{
	strbuf_addf(context, "%zu %s\n", device, hung ? "hangs" : "is back");
}

static void setup(void)
{
	memset(list, 0, sizeof(list));
	for (size_t i = 0; i < 2; i++) {
		list[i] = (struct node_device){
		    .gpu = true, .index = (int)i, .handle = &gpus[i], .parent = &gpus[i]};
		snprintf(list[i].uuid, sizeof(list[i].uuid), "U-%zu", i);
		types[i] = 0x1f;
	}
	hangs = -1;
	devices = (struct devices){.list = list, .count = 2, .nvml = &nvml};
	told = (struct strbuf){0};
	ck_assert_int_ge(sd_event_new(&event), 0);
	watch = NULL;
}

static void start_with(double interval, double call_timeout)
{
	const struct gpu_watch_options options = {interval, call_timeout,    &told,  on_reading,
	                                          on_xid,   on_memory_error, on_hung};
	struct error err = ERROR_INIT;

	ck_ok(gpu_watch_start(event, &devices, &options, &watch, &err), &err);
}

static void start(void)
{
	start_with(1000, 1000);
}

static void teardown(void)
{
	if (watch)
		ck_assert(gpu_watch_stop(watch));
	ck_assert_int_eq(sets, 0);
	sd_event_unref(event);
	strbuf_free(&told);
}

static void turn(void)
{
	ck_assert_int_ge(sd_event_run(event, 10000), 0);
}

static void await_reading(size_t device, int count)
{
	while (readings[device] < count)
		turn();
}

/* The driver has this to tell. */
static void tell(size_t gpu, unsigned long long xid, unsigned gpu_instance, unsigned compute_instance)
{
	pthread_mutex_lock(&lock);
	events[event_count++] =
	    (struct nvml_event){&gpus[gpu], xid ? NVML_EVENT_XID : NVML_EVENT_DOUBLE_BIT_ECC, xid,
	                        gpu_instance, compute_instance};
	pthread_mutex_unlock(&lock);
}

/* A last event, of device 0, ends what is awaited. */
static void check_told(const char *want)
{
	tell(0, 7777, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	while (!told.data || !strstr(told.data, "7777"))
		turn();
	*strstr(told.data, "xid 7777") = '\0';
	ck_assert_str_eq(told.data, want);
	told.len = 0;
	told.data[0] = '\0';
}

START_TEST(each_gpu_is_read)
{
	list[2].gpu = true; /* it could not be spoken to from the start */
	list[3] = (struct node_device){.gpu = true, .handle = &gpus[3], .parent = &gpus[3]};
	devices.count = 4;
	start_with(0.01, 1000);
	await_reading(3, 3);
	await_reading(0, 3);
	ck_assert_int_eq(used[0], 1000);
	ck_assert_int_eq(used[1], 1001);
	ck_assert_int_eq(used[3], 1003);
	ck_assert_int_eq(readings[2], 0);
	ck_assert_uint_eq(told.len, 0);
}
END_TEST

/* Between two readings is the interval, unless an event says that there is something to read. */
START_TEST(an_event_has_all_read_at_once)
{
	start();
	await_reading(1, 1);
	tell(1, 79, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	await_reading(1, 2);
	await_reading(0, 2);
	ck_assert_str_eq(told.data, "xid 79 of 1\n");
	tell(0, 0, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	await_reading(0, 3);
	ck_assert_str_eq(told.data, "xid 79 of 1\nmemory of 0\n");
	for (int i = 0; i < 5; i++)
		turn();
	ck_assert_int_le(readings[0], 3);
}
END_TEST

/* As "a GPU is lost", which does not say which. */
START_TEST(an_error_of_the_wait_has_all_read_at_once)
{
	start();
	await_reading(1, 1);
	pthread_mutex_lock(&lock);
	wait_code = NVML_GPU_IS_LOST;
	pthread_mutex_unlock(&lock);
	await_reading(1, 2);
	ck_assert_uint_eq(told.len, 0);
}
END_TEST

START_TEST(an_event_is_of_the_devices_that_it_names)
{
	/* Two parts of GPU 0, one of GPU 1 without instances, GPU 1 itself. */
	list[0] = (struct node_device){.gpu = true,
	                               .handle = &gpus[2],
	                               .parent = &gpus[0],
	                               .mig = true,
	                               .gpu_instance = 7,
	                               .compute_instance = 0};
	list[1] = list[0];
	list[1].gpu_instance = 8;
	list[1].compute_instance = 1;
	list[2] = list[0];
	list[2].parent = &gpus[1];
	list[2].gpu_instance = list[2].compute_instance = NVML_NO_INSTANCE;
	list[3] = (struct node_device){.gpu = true, .handle = &gpus[1], .parent = &gpus[1]};
	devices.count = 4;
	types[0] = types[1] = 0x1f;
	start();
	tell(0, 1, 7, 0);
	tell(0, 2, 8, 1);
	tell(0, 3, 8, 0);
	tell(0, 4, 8, NVML_NO_INSTANCE);
	tell(0, 5, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	tell(0, 6, 9, 0);
	tell(1, 7, 7, 0);
	tell(1, 8, NVML_NO_INSTANCE, 1);
	check_told("xid 1 of 0\nxid 2 of 1\nxid 4 of 1\nxid 5 of 0\nxid 5 of 1\nxid 7 of 2\nxid 7 of 3\n"
	           "xid 8 of 2\nxid 8 of 3\n");
}
END_TEST

/* A handle that no device has: the UUID says which GPU it is, where it is known. */
START_TEST(an_unknown_handle_is_found_by_its_uuid)
{
	list[2].gpu = true; /* one without a handle and UUID is none of them */
	devices.count = 3;
	start();
	tell(3, 1, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	tell(2, 2, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	check_told("xid 1 of 1\nxid 2 of 0\n");
	unknown_uuids = 1;
	tell(3, 3, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	check_told("");
}
END_TEST

/* So many are kept until the loop comes to them; more are dropped. */
START_TEST(too_many_events_are_dropped)
{
	int lines = 0;

	for (int i = 0; i < 300; i++)
		tell(1, 1, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	start();
	for (bool all = false; !all; usleep(1000)) {
		pthread_mutex_lock(&lock);
		all = event_next == event_count;
		pthread_mutex_unlock(&lock);
	}
	await_reading(1, 1);
	tell(0, 7777, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	while (!strstr(told.data, "7777"))
		turn();
	for (const char *p = told.data; *p; p++)
		lines += *p == '\n';
	ck_assert_int_ge(lines, 256);
	ck_assert_int_le(lines, 258);
}
END_TEST

START_TEST(each_gpu_is_registered_once)
{
	list[2] = list[1]; /* another part of it */
	devices.count = 3;
	types[0] = NVML_EVENT_XID | 0x100;
	types[1] = 0x1f;
	start();
	check_told("");
	ck_assert_uint_eq(registered[0], NVML_EVENT_XID);
	ck_assert_uint_eq(registered[1], NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC);
	ck_assert_int_eq(sets, 1);
}
END_TEST

/* Where it is not known which it has, all are wanted; one that has none of them is left out. */
START_TEST(a_gpu_may_have_no_events)
{
	types[0] = 0x1f;
	types[1] = 0x100;
	if (_i == 0) {
		types_code = NVML_NOT_SUPPORTED;
	} else if (_i == 1) {
		nvml.event_types = NULL;
	}
	start();
	check_told("");
	ck_assert_uint_eq(registered[0], 0xa);
	ck_assert_uint_eq(registered[1], _i == 2 ? 0 : 0xa);
}
END_TEST

/* Then the counters alone tell of errors, and the set is given back. */
START_TEST(a_driver_may_have_no_events)
{
	if (_i == 0)
		register_code = NVML_NOT_SUPPORTED;
	else if (_i == 1)
		types[0] = types[1] = 0;
	else if (_i == 2)
		set_code = NVML_NOT_SUPPORTED;
	else if (_i == 3)
		nvml.event_wait = NULL;
	else if (_i == 4)
		nvml.event_register = NULL;
	else if (_i == 5)
		nvml.event_set = NULL;
	else
		nvml.event_set_free = NULL;
	start_with(0.01, 1000);
	await_reading(0, 2);
	ck_assert(gpu_watch_stop(watch));
	watch = NULL;
	sets -= _i == 2; /* it was not made */
	ck_assert_int_eq(sets, 0);
	ck_assert_int_eq(waits, 0);
	if (_i > 1)
		ck_assert_uint_eq(registered[0], 0);
}
END_TEST

START_TEST(a_call_that_does_not_return_is_told)
{
	hangs = 1;
	start_with(0.01, 0.02);
	while (!told.len)
		turn();
	ck_assert_str_eq(told.data, "1 hangs\n");
	ck_assert_int_eq(readings[1], 0);
	for (int i = 0; i < 20; i++)
		turn();
	ck_assert_str_eq(told.data, "1 hangs\n");
	pthread_mutex_lock(&lock);
	hangs = -1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	await_reading(1, 1);
	ck_assert_str_eq(told.data, "1 hangs\n1 is back\n");
	await_reading(1, 3);
	/* Once for each time. */
	for (const char *rest = told.data; *rest && !str_eq(rest, "1 hangs\n");
	     rest += strlen("1 hangs\n1 is back\n"))
		ck_assert_msg(str_starts(rest, "1 hangs\n1 is back\n"), "%s", told.data);
}
END_TEST

/* A GPU that has fallen off the bus may hold up the readings: its error is told all the same. */
START_TEST(an_event_is_told_while_a_call_does_not_return)
{
	hangs = 0;
	start();
	for (bool begun = false; !begun; usleep(1000)) {
		pthread_mutex_lock(&lock);
		begun = reads[0] > 0;
		pthread_mutex_unlock(&lock);
	}
	tell(1, 79, NVML_NO_INSTANCE, NVML_NO_INSTANCE);
	while (!told.len)
		turn();
	ck_assert_str_eq(told.data, "xid 79 of 1\n");
	ck_assert_int_eq(readings[0] + readings[1], 0);
	pthread_mutex_lock(&lock);
	hangs = -1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	await_reading(1, 1);
}
END_TEST

/* ---- the end ---- */

static bool expire; /* a thread is not waited for */
static int detached;

int __real_pthread_clockjoin_np(pthread_t, void **, clockid_t, const struct timespec *);
int __wrap_pthread_clockjoin_np(pthread_t, void **, clockid_t, const struct timespec *);
int __wrap_pthread_clockjoin_np(pthread_t thread, void **result, clockid_t clock,
                                const struct timespec *until)
{
	ck_assert_int_eq(clock, CLOCK_MONOTONIC);
	ck_assert_double_ge((double)until->tv_sec + (double)until->tv_nsec / 1e9, clock_monotonic() + 1);
	return expire ? ETIMEDOUT : __real_pthread_clockjoin_np(thread, result, clock, until);
}

int __real_pthread_detach(pthread_t);
int __wrap_pthread_detach(pthread_t);
int __wrap_pthread_detach(pthread_t thread)
{
	detached++;
	return __real_pthread_detach(thread);
}

/* The thread is left alone, and frees what it shares with us when the call returns. */
START_TEST(a_thread_that_does_not_end_is_left)
{
	hangs = 0;
	start();
	/* Both threads: the one that listens has its set then. */
	for (bool begun = false; !begun; usleep(1000)) {
		pthread_mutex_lock(&lock);
		begun = reads[0] > 0 && waits > 0;
		pthread_mutex_unlock(&lock);
	}
	expire = true;
	ck_assert(!gpu_watch_stop(watch));
	watch = NULL;
	ck_assert_int_eq(detached, 2);
	pthread_mutex_lock(&lock);
	hangs = -1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	for (bool freed = false; !freed; usleep(1000)) {
		pthread_mutex_lock(&lock);
		freed = sets == 0;
		pthread_mutex_unlock(&lock);
	}
	ck_assert_int_eq(reads[1], 0); /* none is begun after the end */
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gpu_watch");
	TCase *tc = tcase_create("watch");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, each_gpu_is_read);
	tcase_add_test(tc, an_event_has_all_read_at_once);
	tcase_add_test(tc, an_error_of_the_wait_has_all_read_at_once);
	tcase_add_test(tc, an_event_is_of_the_devices_that_it_names);
	tcase_add_test(tc, an_unknown_handle_is_found_by_its_uuid);
	tcase_add_test(tc, too_many_events_are_dropped);
	tcase_add_test(tc, each_gpu_is_registered_once);
	tcase_add_loop_test(tc, a_gpu_may_have_no_events, 0, 3);
	tcase_add_loop_test(tc, a_driver_may_have_no_events, 0, 7);
	tcase_add_test(tc, a_call_that_does_not_return_is_told);
	tcase_add_test(tc, an_event_is_told_while_a_call_does_not_return);
	tcase_add_test(tc, a_thread_that_does_not_end_is_left);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
