/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units as transient services of systemd, by calls to process 1 over its private socket: it is there without
 * a message bus, also while the machine shuts down. All calls but the list at the start are asynchronous.
 *
 *     StartTransientUnit   the service runs
 *     PropertiesChanged    dtrain-launch, its main process, has ended; the unit is inactive, or has failed
 *     UnitRemoved          its control group is empty
 *
 * systemd keeps a unit as long as a process is in its control group, and with CollectMode it keeps none
 * without: a unit that process 1 does not know is empty. UnitRemoved also comes at a daemon-reload, so
 * process 1 is asked whether the unit is really gone; likewise after a daemon-reexec, which closes the
 * connection.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/str.h"
#include "node/launch/unit_internal.h"

/* Microseconds: for the list at the start; until the next try to connect; between two KILLs. */
enum { LIST_USEC = 5 * 1000 * 1000, RECONNECT_USEC = 100 * 1000, KILL_AGAIN_USEC = 500 * 1000 };

static struct unit *find_path(struct units *units, const char *path)
{
	struct unit *unit = units->first;

	while (unit && (!unit->path || !str_eq(unit->path, path)))
		unit = unit->next;
	return unit;
}

/* ---- the end of a unit ---- */

static const char *why_exited(const struct unit *unit, char *buf, size_t size)
{
	if (str_eq(unit->result, "timeout"))
		snprintf(buf, size, "%s was stopped, and its processes did not end in time", unit->service);
	else if (str_eq(unit->result, "oom-kill"))
		snprintf(buf, size, "the kernel ended processes of %s for lack of memory", unit->service);
	else if (unit->exit_code == CLD_EXITED)
		snprintf(buf, size, "dtrain-launch ended with exit status %d", unit->exit_status);
	else if (unit->exit_code)
		snprintf(buf, size, "dtrain-launch was killed by SIG%s",
		         sigabbrev_np(unit->exit_status) ?: "?");
	else
		snprintf(buf, size, "dtrain-launch is gone: %s has ended", unit->service);
	return buf;
}

static void report_exit(struct unit *unit)
{
	char why[200];

	if (unit->seen)
		why_exited(unit, why, sizeof(why));
	else
		snprintf(why, sizeof(why), "systemd has not started %s", unit->service);
	unit_report_exit(unit, why, unit->seen);
}

static void take_gone(struct unit *unit)
{
	if (unit->gone)
		return;
	unit->gone = true;
	report_exit(unit);
	unit_report_empty(unit);
}

static void restart(struct unit *unit);

static int on_queried(sd_bus_message *message, void *context, sd_bus_error *error)
{
	struct unit *unit = context;
	const sd_bus_error *failed = sd_bus_message_get_error(message);

	unit->query = sd_bus_slot_unref(unit->query);
	if (failed && str_eq(failed->name, "org.freedesktop.systemd1.NoSuchUnit")) {
		if (unit->start && !unit->seen && !unit->killing)
			restart(unit);
		else
			take_gone(unit);
	} else if (!failed) {
		unit->seen = true;
		/* By now the properties of the service are here. */
		if (unit->ended)
			report_exit(unit);
	}
	return 0;
}

/* Whether process 1 still has the unit. A new query replaces one that is under way: only the answer to the
 * newest tells the state after what has happened. */
static void query_unit(struct unit *unit)
{
	if (unit->gone || unit->empty || !unit->units->bus)
		return;
	unit->query = sd_bus_slot_unref(unit->query);
	if (sd_bus_call_method_async(unit->units->bus, &unit->query, UNIT_BUS_NAME, UNIT_MANAGER_PATH,
	                             UNIT_MANAGER, "GetUnit", on_queried, unit, "s", unit->service) < 0)
		log_debug("%s: cannot ask systemd for it", unit->service);
}

static int on_unit_removed(sd_bus_message *message, void *context, sd_bus_error *error)
{
	const char *name, *path;
	struct unit *unit;

	if (sd_bus_message_read(message, "so", &name, &path) < 0)
		return 0;
	unit = find_path(context, path);
	if (unit)
		query_unit(unit);
	return 0;
}

/* One entry of the changed properties; others are skipped. */
static int take_property(struct unit *unit, sd_bus_message *message)
{
	const char *name, *text;
	int r = sd_bus_message_read(message, "s", &name);

	if (r < 0)
		return r;
	if (str_eq(name, "ActiveState")) {
		r = sd_bus_message_read(message, "v", "s", &text);
		unit->ended = r >= 0 && (str_eq(text, "inactive") || str_eq(text, "failed"));
	} else if (str_eq(name, "Result")) {
		r = sd_bus_message_read(message, "v", "s", &text);
		if (r >= 0)
			snprintf(unit->result, sizeof(unit->result), "%s", text);
	} else if (str_eq(name, "ExecMainCode")) {
		r = sd_bus_message_read(message, "v", "i", &unit->exit_code);
	} else if (str_eq(name, "ExecMainStatus")) {
		r = sd_bus_message_read(message, "v", "i", &unit->exit_status);
	} else {
		r = sd_bus_message_skip(message, "v");
	}
	return r;
}

static int on_properties(sd_bus_message *message, void *context, sd_bus_error *error)
{
	struct unit *unit = find_path(context, sd_bus_message_get_path(message));
	int r;

	if (!unit || sd_bus_message_skip(message, "s") < 0 ||
	    sd_bus_message_enter_container(message, SD_BUS_TYPE_ARRAY, "{sv}") < 0)
		return 0;
	unit->seen = true;
	while ((r = sd_bus_message_enter_container(message, SD_BUS_TYPE_DICT_ENTRY, "sv")) > 0)
		if (take_property(unit, message) < 0 || sd_bus_message_exit_container(message) < 0)
			return 0;
	/* The properties of the service follow those of the unit. Both come while a process is left that does
	 * not die. */
	if (unit->exit_code)
		report_exit(unit);
	if (unit->ended)
		query_unit(unit);
	return 0;
}

/* ---- the connection ---- */

static int connect_bus(struct units *units, struct error *err);

static int on_reconnect(sd_event_source *source, uint64_t usec, void *context)
{
	struct units *units = context;
	struct error err = ERROR_INIT;

	units->bus = sd_bus_close_unref(units->bus);
	if (connect_bus(units, &err) < 0 ||
	    sd_bus_attach_event(units->bus, units->event, SD_EVENT_PRIORITY_NORMAL) < 0) {
		sd_event_source_set_time_relative(source, RECONNECT_USEC);
		sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
		return 0;
	}
	for (struct unit *unit = units->first; unit; unit = unit->next)
		if (unit->service)
			query_unit(unit);
	return 0;
}

/* A daemon-reexec. */
static int on_disconnected(sd_bus_message *message, void *context, sd_bus_error *error)
{
	struct units *units = context;

	sd_event_source_set_time_relative(units->reconnect, RECONNECT_USEC);
	sd_event_source_set_enabled(units->reconnect, SD_EVENT_ONESHOT);
	return 0;
}

static int connect_bus(struct units *units, struct error *err)
{
	static const struct {
		const char *path, *interface, *member;
		sd_bus_message_handler_t handler;
	} signals[] = {
	    {NULL, "org.freedesktop.DBus.Properties", "PropertiesChanged", on_properties},
	    {UNIT_MANAGER_PATH, UNIT_MANAGER, "UnitRemoved", on_unit_removed},
	    {"/org/freedesktop/DBus/Local", "org.freedesktop.DBus.Local", "Disconnected", on_disconnected},
	};
	sd_bus *bus = NULL;
	int r = sd_bus_new(&bus);

	if (r >= 0)
		r = sd_bus_set_address(bus, units->address);
	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(signals); i++)
		r = sd_bus_match_signal(bus, NULL, NULL, signals[i].path, signals[i].interface,
		                        signals[i].member, signals[i].handler, units);
	if (r >= 0)
		r = sd_bus_start(bus);
	if (r < 0) {
		sd_bus_unref(bus);
		return error_errno(err, r, "cannot connect with systemd");
	}
	units->bus = bus;
	return 0;
}

/* Is it one of this service? */
static bool is_own_name(const struct units *units, const char *name)
{
	long long run, attempt;
	int used = 0;

	return sscanf(name, "dtrain-%lld-%lld%n", &run, &attempt, &used) == 2 && used > 0 &&
	       str_starts(name + used, units->suffix) &&
	       str_eq(name + used + strlen(units->suffix), ".service");
}

static int take_list(struct units *units, sd_bus_message *reply)
{
	const char *name;
	size_t count = 0;
	int r = sd_bus_message_enter_container(reply, SD_BUS_TYPE_ARRAY, "(ssssssouso)");

	while (r >= 0 && (r = sd_bus_message_enter_container(reply, SD_BUS_TYPE_STRUCT, "ssssssouso")) > 0) {
		char **grown;

		if ((r = sd_bus_message_read(reply, "s", &name)) < 0 ||
		    (r = sd_bus_message_skip(reply, "sssssouso")) < 0 ||
		    (r = sd_bus_message_exit_container(reply)) < 0)
			return r;
		if (!is_own_name(units, name))
			continue;
		grown = reallocarray(units->listed, count + 2, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		units->listed = grown;
		grown[count] = strdup(name);
		if (!grown[count])
			return -ENOMEM;
		grown[++count] = NULL;
	}
	return r;
}

static int list_units(struct units *units, uint64_t timeout_usec, struct error *err)
{
	sd_bus_error error = SD_BUS_ERROR_NULL;
	sd_bus_message *message = NULL, *reply = NULL;
	int r = sd_bus_message_new_method_call(units->bus, &message, UNIT_BUS_NAME, UNIT_MANAGER_PATH,
	                                       UNIT_MANAGER, "ListUnitsByPatterns");

	if (r >= 0)
		r = sd_bus_message_append(message, "asas", 0, 1, "dtrain-*.service");
	if (r >= 0)
		r = sd_bus_call(units->bus, message, timeout_usec, &error, &reply);
	if (r >= 0)
		r = take_list(units, reply);
	if (r < 0)
		error_set(err, r, "systemd does not list its units: %s",
		          error.message ? error.message : strerror(-r));
	sd_bus_error_free(&error);
	sd_bus_message_unref(message);
	sd_bus_message_unref(reply);
	return r < 0 ? r : 0;
}

static uint64_t now_usec(void)
{
	return (uint64_t)(clock_monotonic() * 1e6);
}

/* For so long systemd may be executing itself anew, or be busy. */
static int connect_and_list(struct units *units, struct error *err)
{
	const uint64_t deadline = now_usec() + LIST_USEC;

	for (;;) {
		struct error why = ERROR_INIT;
		int r = connect_bus(units, &why);
		uint64_t now = now_usec();

		if (r == 0)
			r = list_units(units, MAX(deadline, now + RECONNECT_USEC) - now, &why);
		if (r == 0)
			return 0;
		units->bus = sd_bus_close_unref(units->bus);
		str_list_free(steal_pointer(units->listed));
		if (now_usec() + RECONNECT_USEC > deadline)
			return error_set(err, r, "%s", why.message);
		usleep(RECONNECT_USEC);
	}
}

int unit_systemd_open(struct units *units, const char *runtime_dir, struct error *err)
{
	int r;

	/* Two services on one machine have different directories. */
	if (!str_eq(runtime_dir, RUNSTATEDIR "/dtrain"))
		snprintf(units->suffix, sizeof(units->suffix), "-%08x",
		         (unsigned)hash_bytes(runtime_dir, strlen(runtime_dir), 0));
	r = connect_and_list(units, err);
	if (r < 0)
		return r;
	r = sd_event_add_time_relative(units->event, &units->reconnect, CLOCK_MONOTONIC, 0, 1000,
	                               on_reconnect, units);
	if (r >= 0)
		r = sd_event_source_set_enabled(units->reconnect, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_bus_attach_event(units->bus, units->event, SD_EVENT_PRIORITY_NORMAL);
	return r < 0 ? error_errno(err, r, "event loop") : 0;
}

void unit_systemd_close(struct units *units)
{
	sd_event_source_disable_unref(units->reconnect);
	/* A start that was just asked for is on its way. */
	sd_bus_flush_close_unref(units->bus);
	str_list_free(units->listed);
}

void unit_systemd_kill_others(struct units *units)
{
	for (char **name = units->listed; name && *name; name++) {
		struct unit *unit = units->first;

		while (unit && (!unit->service || !str_eq(unit->service, *name)))
			unit = unit->next;
		if (unit)
			continue;
		log_warn("%s is of no attempt that is known here: it is killed", *name);
		sd_bus_call_method_async(units->bus, NULL, UNIT_BUS_NAME, UNIT_MANAGER_PATH, UNIT_MANAGER,
		                         "KillUnit", NULL, NULL, "ssi", *name, "all", SIGKILL);
	}
}

/* ---- a unit ---- */

static int set_path(struct unit *unit, struct error *err)
{
	int r = sd_bus_path_encode("/org/freedesktop/systemd1/unit", unit->service, &unit->path);

	return r < 0 ? error_errno(err, r, "%s", unit->service) : 0;
}

static int prepare(struct unit *unit, struct error *err)
{
	unit->service = str_printf("dtrain-%lld-%lld%s.service", (long long)unit->identity.run,
	                           (long long)unit->identity.attempt, unit->units->suffix);
	return unit->service ? set_path(unit, err) : error_oom(err);
}

static int find(struct unit *unit, struct error *err)
{
	char **name = unit->units->listed;

	if (unit->units->unreachable)
		return error_set(
		    err, -EHOSTUNREACH,
		    "systemd, which has started %s, does not answer, so whether it still runs is "
		    "not known",
		    unit->service);
	unit->seen = true;
	while (name && *name && !str_eq(*name, unit->service))
		name++;
	unit->gone = !name || !*name;
	return set_path(unit, err);
}

static int on_started(sd_bus_message *message, void *context, sd_bus_error *error)
{
	struct unit *unit = context;
	const sd_bus_error *failed = sd_bus_message_get_error(message);
	char why[300];

	unit->call = sd_bus_slot_unref(unit->call);
	if (!failed) {
		unit->start = sd_bus_message_unref(unit->start);
		unit->seen = true;
		return 0;
	}
	/* Without an answer it may have been started: process 1 says when it is there again. */
	if (sd_bus_is_open(unit->units->bus) <= 0 || sd_bus_error_has_name(failed, SD_BUS_ERROR_NO_REPLY)) {
		query_unit(unit);
		return 0;
	}
	snprintf(why, sizeof(why), "systemd cannot start %s: %s", unit->service,
	         failed->message ? failed->message : failed->name);
	unit->start = sd_bus_message_unref(unit->start);
	unit_report_exit(unit, why, false);
	take_gone(unit);
	return 0;
}

/* systemd executes itself anew. */
static bool is_disconnect(int r)
{
	return r == -ENOTCONN || r == -ECONNRESET || r == -EPIPE || r == -ESHUTDOWN;
}

static int call_start(struct unit *unit)
{
	unit->call = sd_bus_slot_unref(unit->call);
	return sd_bus_call_async(unit->units->bus, &unit->call, unit->start, on_started, unit, 0);
}

/* The connection was closed, and systemd does not have the unit: the call did not arrive, since dtrain-launch
 * does not exit before its report has been answered. */
static void restart(struct unit *unit)
{
	int r = call_start(unit);

	if (r >= 0 || is_disconnect(r))
		return;
	unit->start = sd_bus_message_unref(unit->start);
	take_gone(unit);
}

static int start(struct unit *unit, const struct unit_start *start, struct error *err)
{
	int r = unit->units->bus ? unit_systemd_describe(unit, start, &unit->start) : -ENOTCONN;

	if (r >= 0)
		r = call_start(unit);
	if (r < 0)
		unit->start = sd_bus_message_unref(unit->start);
	if (is_disconnect(r))
		return error_set(err, -EBUSY, "systemd, which has to start %s, is not connected just now",
		                 unit->service);
	return r < 0 ? error_errno(err, r, "cannot ask systemd to start %s", unit->service) : 0;
}

static bool is_watched(const struct unit *unit)
{
	return !unit->gone;
}

static void disconnected(struct unit *unit, bool reconnected)
{
	if (!unit->gone)
		return;
	report_exit(unit);
	if (!unit->killing)
		unit_report_empty(unit);
}

static bool kill_unit(struct unit *unit)
{
	if (unit->gone)
		return false;
	if (unit->units->bus)
		sd_bus_call_method_async(unit->units->bus, NULL, UNIT_BUS_NAME, UNIT_MANAGER_PATH,
		                         UNIT_MANAGER, "KillUnit", NULL, NULL, "ssi", unit->service, "all",
		                         SIGKILL);
	query_unit(unit);
	return true;
}

static int on_state(sd_bus_message *message, void *context, sd_bus_error *error)
{
	struct unit *unit = context;
	const char *state = "";
	char why[200];

	unit->state = sd_bus_slot_unref(unit->state);
	if (sd_bus_message_get_error(message) || sd_bus_message_read(message, "v", "s", &state) < 0)
		state = "";
	if (str_eq(state, "stopping"))
		why[0] = '\0';
	else
		snprintf(why, sizeof(why), "%s was stopped", unit->service);
	unit->owner.stopped(unit->owner.context, why);
	return 0;
}

static bool ask_stop(struct unit *unit)
{
	unit->state = sd_bus_slot_unref(unit->state);
	return unit->units->bus &&
	       sd_bus_call_method_async(unit->units->bus, &unit->state, UNIT_BUS_NAME, UNIT_MANAGER_PATH,
	                                "org.freedesktop.DBus.Properties", "Get", on_state, unit, "ss",
	                                UNIT_MANAGER, "SystemState") >= 0;
}

static void remove_unit(struct unit *unit)
{
}

static void release(struct unit *unit)
{
	sd_bus_message_unref(unit->start);
	sd_bus_slot_unref(unit->call);
	sd_bus_slot_unref(unit->query);
	sd_bus_slot_unref(unit->state);
}

const struct unit_method unit_systemd = {
    .name = "systemd",
    .prepare = prepare,
    .find = find,
    .start = start,
    .is_watched = is_watched,
    .disconnected = disconnected,
    .kill = kill_unit,
    .kill_usec = KILL_AGAIN_USEC,
    .ask_stop = ask_stop,
    .remove = remove_unit,
    .release = release,
};
