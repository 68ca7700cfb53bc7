/* SPDX-License-Identifier: Apache-2.0 */
/* Units as services of systemd, with a stand-in for process 1 behind a socket of its own. */
#include "fake_init.h"

/* As during a daemon-reexec. */
START_TEST(a_connection_that_is_closed_is_tried_again)
{
	init.refused = 2;
	open_units();
}
END_TEST

START_TEST(a_start_without_a_connection_may_be_tried_again)
{
	struct error err = ERROR_INIT;

	init.may_close = true;
	open_units();
	init.bus = sd_bus_close_unref(init.bus);
	ck_assert_int_eq(start_unit(&err), -EBUSY);
	ck_assert(unit_is_empty(unit));
}
END_TEST

/* It may have been sent just before systemd executed itself anew. */
START_TEST(a_start_that_did_not_arrive_is_sent_again)
{
	init.closes = true;
	open_units();
	start_running();
	ck_assert(!init.closes);
	ck_assert_int_eq(exited, 0);
	emit_main_killed(&init);
	run_until(&exited, 1);
	ck_assert(started);
}
END_TEST

START_TEST(a_start_that_systemd_refuses_says_why)
{
	struct error err = ERROR_INIT;

	init.start_error = "Path /srv/x does not refer to a device, and this text is about as long as one of "
	                   "systemd may be: it was cut where it had more than a hundred and some characters";
	open_units();
	ck_ok(start_unit(&err), &err);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
	ck_assert(!started);
	ck_assert_ptr_nonnull(strstr(why, init.start_error));
}
END_TEST

/* Its owner kills it at the end of its launcher, or, where the end of the attempt is on record, does not. */
START_TEST(a_unit_that_is_gone_is_reported_empty_once)
{
	init.spares = _i;
	open_units();
	start_running();
	emit_removed(&init);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
	ck_assert(started);
	ck_assert_int_eq(init.kills, 0);
}
END_TEST

/* A process that it has left is in uninterruptible sleep, say. */
START_TEST(the_end_of_the_launcher_does_not_wait_for_what_it_has_left)
{
	open_units();
	start_running();
	ck_assert_int_eq(remains, 0);
	emit_main_killed(&init);
	run_until(&init.kills, 1);
	ck_assert_str_eq(init.killed[0], unit->service);
	ck_assert_int_eq(remains, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_str_eq(why, "dtrain-launch was killed by SIGKILL");
	ck_assert_int_eq(empty, 0);
	emit_removed(&init);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
}
END_TEST

/* All that systemd is told of a service. */
START_TEST(a_service_has_these_properties)
{
	static const char *const devices[] = {"/dev/nvidia0", "/dev/kvm", NULL};
	const struct unit_identity identity = {17, 3, dir};
	const struct cgroup_limits limits = {.memory = 1 << 30, .tasks = 100, .cpus = "0-2,9,16"};
	const struct unit_start start = {.program = "/usr/libexec/dtrain/dtrain-launch",
	                                 .user = "alice",
	                                 .stop_seconds = _i ? 1e12 : 30.5,
	                                 .devices = _i ? NULL : devices,
	                                 .limits =
	                                     _i ? &(struct cgroup_limits){.memory = 1, .tasks = 2} : &limits};
	_cleanup_free_ char *want = NULL;
	struct error err = ERROR_INIT;

	open_units();
	ck_ok(unit_new(&units, &identity, &owner, &unit, &err), &err);
	ck_ok(unit_start(unit, &start, &err), &err);
	while (!init.has_unit)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	want = str_printf(
	    "dtrain-17-3%s.service fail [(Description <dtrain: run 17, attempt 3, of alice>) "
	    "(Slice <dtrain.slice>) (CollectMode <inactive-or-failed>) (Type <simple>) (KillMode <mixed>) "
	    "(StandardOutput <null>) (StandardError <journal>) (SyslogIdentifier <dtrain-launch>) "
	    "(OOMPolicy <continue>) (DevicePolicy <closed>) (TimeoutStopUSec <%s>) (TasksMax <%d>) "
	    "(MemoryMax <%d>) (LimitCORE <17179869184>) (LimitNOFILE <65536>) "
	    "(LimitMEMLOCK <18446744073709551615>) (CapabilityBoundingSet <%llu>) (OOMScoreAdjust <-900>) "
	    "(Delegate <1>) (After <[remote-fs.target network-online.target]>) "
	    "(StandardInputFileDescriptor <descriptor>) "
	    "(ExecStart <[(/usr/libexec/dtrain/dtrain-launch [dtrain-launch %s] 0)]>) (DeviceAllow "
	    "<[%s]>)%s] []",
	    units.suffix, _i ? "18446744073709551615" : "30500000", _i ? 2 : 100, _i ? 1 : 1 << 30,
	    0xfffffe40a9ace5ffULL, dir, _i ? "" : "(/dev/nvidia0 rw) (/dev/kvm rw)",
	    _i ? "" : " (AllowedCPUs <[7 2 1]>)");
	ck_assert_str_eq(init.start, want);
}
END_TEST

/* What systemd says of the service's end. %s is its name. */
static const struct {
	const char *result, *state;
	int code, status;
	const char *why;
} ends[] = {
    {"timeout", "failed", CLD_KILLED, SIGKILL, "%s was stopped, and its processes did not end in time"},
    {"oom-kill", "failed", CLD_KILLED, SIGKILL, "the kernel ended processes of %s for lack of memory"},
    {"exit-code", "failed", CLD_EXITED, 3, "dtrain-launch ended with exit status 3"},
    {"success", "inactive", CLD_EXITED, 0, "dtrain-launch ended with exit status 0"},
    {"signal", "failed", CLD_KILLED, SIGSEGV, "dtrain-launch was killed by SIGSEGV"},
    {"resources", "failed", 0, 0, "dtrain-launch is gone: %s has ended"},
    {"success", "inactive", 0, 0, "dtrain-launch is gone: %s has ended"},
    {"success", "deactivating", 0, 0, NULL},
};

START_TEST(the_end_of_a_service_says_why)
{
	_cleanup_free_ char *want = NULL;

	open_units();
	start_running();
	ck_assert_int_ge(sd_bus_emit_signal(init.bus, unit->path, "org.freedesktop.DBus.Properties",
	                                    "PropertiesChanged", "sa{sv}as",
	                                    "org.freedesktop.systemd1.Service", 5, "Result", "s",
	                                    ends[_i].result, "MemoryCurrent", "t", (uint64_t)7,
	                                    "ExecMainCode", "i", ends[_i].code, "ExecMainStatus", "i",
	                                    ends[_i].status, "ActiveState", "s", ends[_i].state, 0),
	                 0);
	if (!ends[_i].why) {
		while (sd_event_run(event, 50000) > 0)
			;
		ck_assert_int_eq(exited, 0);
		return;
	}
	run_until(&exited, 1);
	if (strchr(ends[_i].why, '%'))
		want = str_printf("%.*s%s%s", (int)strcspn(ends[_i].why, "%"), ends[_i].why, unit->service,
		                  strchr(ends[_i].why, '%') + 2);
	ck_assert_str_eq(why, want ? want : ends[_i].why);
	ck_assert(started);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 0);
}
END_TEST

/* A machine that shuts down ends all services: no administrator has stopped this one. */
START_TEST(who_stops_a_service_is_told_from_a_shutdown)
{
	static const char *const states[] = {"stopping", "running", "degraded", NULL};

	open_units();
	start_running();
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		_cleanup_free_ char *want = i == 0 ? strdup("") : str_printf("%s was stopped", unit->service);

		init.state = states[i];
		stops = 0;
		ck_assert(unit_ask_stop(unit));
		run_until(&stops, 1);
		ck_assert_int_eq(stops, 1);
		ck_assert_str_eq(stopped, want);
	}
}
END_TEST

/* Units of an earlier service: the one of an attempt that is found goes on, what no attempt has is killed,
 * and what other services have is left alone. */
START_TEST(units_of_an_earlier_service_are_found)
{
	static const char *const behind[] = {"-1", "-1", "-1-0", ""}; /* the number of the run */
	const bool listed = _i == 0;
	const struct unit_identity identity = {listed ? 1 : 9, 1, dir};
	struct unit_names names = {0};
	struct error err = ERROR_INIT;
	char suffix[16], service[64];

	snprintf(suffix, sizeof(suffix), "-%08x", (unsigned)hash_bytes(dir, strlen(dir), 0));
	for (int i = 0; i < 4; i++)
		snprintf(init.names[i], sizeof(init.names[i]), "dtrain-%d%s%s.service", i + 1, behind[i],
		         suffix);
	snprintf(service, sizeof(service), "dtrain-%d-1%s.service", listed ? 1 : 9, suffix);
	names.service = service;
	open_units();
	init.has_unit = listed;
	units.unreachable = true;
	ck_fails(unit_find(&units, &identity, &names, &owner, &unit, &err), &err,
	         "does not answer, so whether it still runs is not known");
	units.unreachable = false;
	ck_ok(unit_find(&units, &identity, &names, &owner, &unit, &err), &err);
	ck_assert_int_eq(unit_is_watched(unit), listed);
	ck_assert_str_eq(unit_names(unit).service, service);
	units_adopted(&units);
	run_until(&init.kills, listed ? 1 : 2);
	ck_assert_int_eq(init.kills, listed ? 1 : 2);
	ck_assert_str_eq(init.killed[init.kills - 1], init.names[1]);
	unit_disconnected(unit, false);
	ck_assert_int_eq(exited, !listed);
	unit_kill(unit);
	if (listed) {
		run_until(&init.kills, 2);
		ck_assert_str_eq(init.killed[1], service);
		ck_assert_int_eq(empty, 0);
		emit_removed(&init);
	}
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
	ck_assert(started);
	ck_assert_int_eq(remains, listed);
}
END_TEST

static int booted;

int __wrap_sd_booted(void);

int __wrap_sd_booted(void)
{
	return booted;
}

/* Units of an earlier service are sought wherever systemd is process 1, also where none are to be made. */
START_TEST(systemd_is_used_where_it_is_process_1)
{
	struct daemon_config config = {.runtime_dir = dir, .launch = (char *)"auto"};
	struct error err = ERROR_INIT;
	struct units *made = NULL;

	for (booted = 0; booted >= -ENOENT; booted -= ENOENT) { /* it is not, and that cannot be told */
		ck_ok(units_create(event, &config, &made, &err), &err);
		ck_assert_str_eq(units_method(made), "process");
		ck_assert(!made->bus && !made->unreachable);
		units_destroy(steal_pointer(made));
	}
	booted = 0;
	config.launch = (char *)"systemd";
	ck_fails(units_create(event, &config, &made, &err), &err,
	         "runs cannot be started by systemd: process 1 is not systemd");
	booted = 1;
	if (geteuid() != 0) {
		ck_fails(units_create(event, &config, &made, &err), &err, "dtraind does not run as root");
		return;
	}
	config.launch = (char *)"process";
	ck_ok(units_create(event, &config, &made, &err), &err);
	ck_assert_str_eq(units_method(made), "process");
	ck_assert(made->bus || made->unreachable);
	units_destroy(made);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("unit_systemd");
	TCase *tc = tcase_create("unit_systemd");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_connection_that_is_closed_is_tried_again);
	tcase_add_test(tc, a_start_without_a_connection_may_be_tried_again);
	tcase_add_test(tc, a_start_that_did_not_arrive_is_sent_again);
	tcase_add_test(tc, a_start_that_systemd_refuses_says_why);
	tcase_add_loop_test(tc, a_unit_that_is_gone_is_reported_empty_once, 0, 2);
	tcase_add_test(tc, the_end_of_the_launcher_does_not_wait_for_what_it_has_left);
	tcase_add_loop_test(tc, a_service_has_these_properties, 0, 2);
	tcase_add_loop_test(tc, the_end_of_a_service_says_why, 0, ARRAY_SIZE(ends));
	tcase_add_test(tc, who_stops_a_service_is_told_from_a_shutdown);
	tcase_add_loop_test(tc, units_of_an_earlier_service_are_found, 0, 2);
	tcase_add_test(tc, systemd_is_used_where_it_is_process_1);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
