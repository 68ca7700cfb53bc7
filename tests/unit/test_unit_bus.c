/* SPDX-License-Identifier: Apache-2.0 */
/* Units as services of systemd where the connection with process 1 or a call fails. */
#include "fake_init.h"

#include <stdarg.h>

/* ---- calls of sd-bus that fail ---- */

static _Thread_local int left; /* calls until one fails; 0: none does */
static bool refused;

static bool refuse(void)
{
	if (left == 0 || --left > 0)
		return false;
	refused = true;
	return true;
}

int __wrap_sd_bus_message_append(sd_bus_message *, const char *, ...);
int __wrap_sd_bus_message_append(sd_bus_message *m, const char *types, ...)
{
	va_list ap;
	int r;

	if (refuse())
		return -EIO;
	va_start(ap, types);
	r = sd_bus_message_appendv(m, types, ap);
	va_end(ap);
	return r;
}

#define DEFINE_REFUSED(NAME, PARAMETERS, ...)                                                                \
	int __real_##NAME PARAMETERS;                                                                        \
	int __wrap_##NAME PARAMETERS;                                                                        \
	int __wrap_##NAME PARAMETERS                                                                         \
	{                                                                                                    \
		return refuse() ? -EIO : __real_##NAME(__VA_ARGS__);                                         \
	}

DEFINE_REFUSED(sd_bus_message_new_method_call,
               (sd_bus * bus, sd_bus_message **m, const char *to, const char *path, const char *interface,
                const char *member),
               bus, m, to, path, interface, member)
DEFINE_REFUSED(sd_bus_message_open_container, (sd_bus_message * m, char type, const char *contents), m, type,
               contents)
DEFINE_REFUSED(sd_bus_message_close_container, (sd_bus_message * m), m)
DEFINE_REFUSED(sd_bus_message_append_array, (sd_bus_message * m, char type, const void *data, size_t size), m,
               type, data, size)
DEFINE_REFUSED(sd_bus_call_async,
               (sd_bus * bus, sd_bus_slot **slot, sd_bus_message *m, sd_bus_message_handler_t callback,
                void *context, uint64_t usec),
               bus, slot, m, callback, context, usec)

DEFINE_REFUSED(sd_bus_path_encode, (const char *prefix, const char *name, char **out), prefix, name, out)

START_TEST(a_unit_without_a_path_is_refused)
{
	const struct unit_identity identity = {1, 1, dir};
	struct error err = ERROR_INIT;

	open_units();
	left = 1;
	ck_assert_int_eq(unit_new(&units, &identity, &owner, &unit, &err), -EIO);
	ck_assert_ptr_nonnull(strstr(err.message, "dtrain-1-1"));
	left = 1;
	ck_assert_int_eq(
	    unit_find(&units, &identity, &(struct unit_names){.service = "x.service"}, &owner, &unit, &err),
	    -EIO);
	ck_assert_ptr_nonnull(strstr(err.message, "x.service"));
	ck_assert_ptr_null(unit);
	ck_assert_ptr_null(units.first);
}
END_TEST

START_TEST(a_start_that_cannot_be_described_is_refused)
{
	static const char *const devices[] = {"/dev/null", NULL};
	const struct unit_identity identity = {1, 1, dir};
	const struct cgroup_limits limits = {.memory = 5, .tasks = 6, .cpus = "0-1"};
	const struct unit_start start = {
	    .program = "/bin/true", .listen_fd = 0, .devices = devices, .limits = &limits, .user = "u"};
	struct error err = ERROR_INIT;
	int failures = 0;

	open_units();
	ck_ok(unit_new(&units, &identity, &owner, &unit, &err), &err);
	for (int n = 1;; n++) {
		int r;

		refused = false;
		left = n;
		r = unit_start(unit, &start, &err);
		left = 0;
		if (!refused) {
			ck_ok(r, &err);
			break;
		}
		failures++;
		ck_assert_int_eq(r, -EIO);
		ck_assert_ptr_nonnull(strstr(err.message, "cannot ask systemd to start dtrain-1-1"));
		ck_assert_ptr_null(unit->start);
		ck_assert(unit_is_empty(unit));
	}
	ck_assert_int_gt(failures, 30);
	while (!init.has_unit)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_ptr_nonnull(strstr(init.start, "(DeviceAllow <[(/dev/null rw)]>) (AllowedCPUs <[3]>)"));
}
END_TEST

/* ---- the connection ---- */

/* What is under way has been handled. */
static void run_all(void)
{
	while (sd_event_run(event, 50000) > 0)
		;
}

/* A daemon-reload removes units that are still there. */
START_TEST(a_unit_that_is_still_there_is_not_gone)
{
	open_units();
	start_running();
	emit_removed(&init);
	init.has_unit = true;
	run_all();
	ck_assert_int_eq(exited, 0);
	ck_assert(unit_is_watched(unit));
	/* Of another unit. */
	ck_assert_int_ge(sd_bus_emit_signal(init.bus, "/org/freedesktop/systemd1", MANAGER, "UnitRemoved",
	                                    "so", "x", "/org/freedesktop/systemd1/unit/x"),
	                 0);
	ck_assert_int_ge(sd_bus_emit_signal(init.bus, "/org/freedesktop/systemd1/unit/x",
	                                    "org.freedesktop.DBus.Properties", "PropertiesChanged",
	                                    "sa{sv}as", "org.freedesktop.systemd1.Service", 1, "ExecMainCode",
	                                    "i", CLD_EXITED, 0),
	                 0);
	run_all();
	ck_assert_int_eq(exited, 0);
	emit_removed(&init);
	run_until(&empty, 1);
	ck_assert(!unit_is_watched(unit));
	ck_assert_int_eq(exited, 1);
	ck_assert(started);
	/* It is gone: nothing is asked or killed any more. */
	unit_kill(unit);
	unit_disconnected(unit, false);
	run_all();
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
	ck_assert_int_eq(init.kills, 0);
}
END_TEST

/* systemd executes itself anew; what has ended meanwhile is noticed then. */
START_TEST(what_ends_while_systemd_is_away_is_noticed)
{
	open_units();
	start_running();
	init.has_unit = false;
	init.bus = sd_bus_close_unref(init.bus);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert(started);
	ck_assert_ptr_nonnull(strstr(why, " has ended"));
}
END_TEST

START_TEST(what_goes_on_while_systemd_is_away_goes_on)
{
	open_units();
	start_running();
	init.bus = sd_bus_close_unref(init.bus);
	while (!init.bus)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	run_all();
	ck_assert_int_eq(exited, 0);
	ck_assert(unit_is_watched(unit));
	emit_main_killed(&init);
	run_until(&init.kills, 1);
	ck_assert_int_eq(exited, 1);
}
END_TEST

/* Process 1 listens again some time after it has closed the connection. */
START_TEST(a_connection_that_is_refused_is_tried_again)
{
	_cleanup_free_ char *socket_path = str_path_join(dir, "private"), *away = str_path_join(dir, "away");

	open_units();
	start_running();
	ck_assert_int_eq(rename(socket_path, away), 0);
	init.bus = sd_bus_close_unref(init.bus);
	while (units.bus)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_int_eq(rename(away, socket_path), 0);
	while (!init.bus)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	run_all();
	ck_assert_int_eq(exited, 0);
	ck_assert(unit_is_watched(unit));
	emit_removed(&init);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
}
END_TEST

/* It was killed before it was known whether it had been started: it is not sent again. */
START_TEST(a_start_that_was_killed_is_not_sent_again)
{
	struct error err = ERROR_INIT;

	init.closes = true;
	open_units();
	ck_ok(start_unit(&err), &err);
	while (init.closes)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	unit_kill(unit);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert(!started);
	ck_assert(!init.has_unit);
	ck_assert_ptr_nonnull(strstr(why, "systemd has not started dtrain-1-1"));
}
END_TEST

/* The answer was lost with the connection; that it has been started, a signal has told, or process 1 tells
 * when it is there again. */
START_TEST(a_unit_that_was_there_is_not_started_again)
{
	struct error err = ERROR_INIT;

	init.closes = init.starts = true;
	init.tells = _i;
	open_units();
	ck_ok(start_unit(&err), &err);
	while (init.closes)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	if (init.tells) { /* it has ended meanwhile */
		init.has_unit = false;
	} else {
		while (!unit->seen)
			ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
		ck_assert_int_eq(exited, 0);
		emit_removed(&init);
	}
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert(started);
	ck_assert_ptr_nonnull(strstr(why, " has ended"));
	ck_assert_int_eq(init.start_calls, 1);
	ck_assert(!init.has_unit);
}
END_TEST

/* Whether it has started the unit, process 1 says when it is asked; if not, it is told once more. */
START_TEST(an_answer_may_not_come_in_time)
{
	struct error err = ERROR_INIT;

	init.late = true;
	init.starts = _i;
	open_units();
	ck_ok(start_unit(&err), &err);
	while (init.start_calls < 1 || !unit->seen)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	run_all();
	ck_assert_int_eq(init.start_calls, _i ? 1 : 2);
	ck_assert(init.has_unit);
	ck_assert(unit_is_watched(unit));
	ck_assert_int_eq(exited, 0);
}
END_TEST

START_TEST(without_a_connection_nothing_is_known)
{
	sd_bus *bus;
	struct error err = ERROR_INIT;

	open_units();
	start_running();
	bus = units.bus;
	units.bus = NULL;
	ck_assert(!unit_ask_stop(unit));
	unit_kill(unit);
	while (remains == 0)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_int_eq(init.kills, 0);
	ck_assert_int_eq(empty, 0);
	unit_destroy(unit);
	ck_assert_int_eq(start_unit(&err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "is not connected just now"));
	units.bus = bus;
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("unit_bus");
	TCase *tc = tcase_create("bus");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, a_start_that_cannot_be_described_is_refused);
	tcase_add_test(tc, a_unit_that_is_still_there_is_not_gone);
	tcase_add_test(tc, what_ends_while_systemd_is_away_is_noticed);
	tcase_add_test(tc, what_goes_on_while_systemd_is_away_goes_on);
	tcase_add_test(tc, a_connection_that_is_refused_is_tried_again);
	tcase_add_test(tc, a_start_that_was_killed_is_not_sent_again);
	tcase_add_test(tc, a_unit_without_a_path_is_refused);
	tcase_add_loop_test(tc, a_unit_that_was_there_is_not_started_again, 0, 2);
	tcase_add_loop_test(tc, an_answer_may_not_come_in_time, 0, 2);
	tcase_add_test(tc, without_a_connection_nothing_is_known);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
