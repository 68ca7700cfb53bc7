/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for process 1 behind a socket of its own, and a unit of dtrain that it starts. For the one
 * source file of a program. */
#pragma once

#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/str.h"
#include "node/launch/cgroup.h"
#include "node/launch/unit_internal.h"

static const char MANAGER[] = "org.freedesktop.systemd1.Manager";

/* Served by a thread until it has listed its units, then in the event loop of the test. */
struct init {
	int listen_fd, refused; /* connections that are closed at once */
	sd_bus *bus;
	bool listed, has_unit;
	const char *start_error; /* of StartTransientUnit; NULL: it starts the unit */
	bool closes;             /* it closes the connection instead of an answer to that, */
	bool starts, tells;      /* after it has started the unit, and has sent a signal of it */
	bool late;               /* the time for the first answer runs out; `starts` as above */
	int start_calls;
	char names[5][64]; /* of the units that it lists */
	const char *state; /* of the system; NULL: it does not say */
	char killed[4][64];
	int kills;
	bool may_close; /* the connection with it need not be there at the end */
	bool spares;    /* the owner of the unit kills nothing at the end of its launcher */
	char *start;    /* the arguments of StartTransientUnit as text */
};

/* Check's fixtures have no other place. */
static struct init init;
static char *dir, *address;
static sd_event *event;
static struct units units;
static struct unit *unit;
static int exited, empty;
static bool started;
static char why[400], stopped[200];
static int stops, remains;

static void emit_removed(struct init *i)
{
	i->has_unit = false;
	ck_assert_int_ge(sd_bus_emit_signal(i->bus, "/org/freedesktop/systemd1", MANAGER, "UnitRemoved", "so",
	                                    unit->service, unit->path),
	                 0);
}

static void emit_active(struct init *i)
{
	ck_assert_int_ge(sd_bus_emit_signal(i->bus, unit->path, "org.freedesktop.DBus.Properties",
	                                    "PropertiesChanged", "sa{sv}as", "org.freedesktop.systemd1.Unit",
	                                    1, "ActiveState", "s", "active", 0),
	                 0);
}

static void emit_main_killed(struct init *i)
{
	ck_assert_int_ge(sd_bus_emit_signal(i->bus, unit->path, "org.freedesktop.DBus.Properties",
	                                    "PropertiesChanged", "sa{sv}as",
	                                    "org.freedesktop.systemd1.Service", 2, "ExecMainCode", "i",
	                                    CLD_KILLED, "ExecMainStatus", "i", SIGKILL, 0),
	                 0);
}

static int list(struct init *i, sd_bus_message *m)
{
	sd_bus_message *reply = NULL;
	int r = sd_bus_message_new_method_return(m, &reply);

	if (r >= 0)
		r = sd_bus_message_open_container(reply, SD_BUS_TYPE_ARRAY, "(ssssssouso)");
	for (size_t k = 0; r >= 0 && i->names[k][0]; k++)
		r = sd_bus_message_append(reply, "(ssssssouso)", i->names[k], "", "loaded", "active",
		                          "running", "", "/unit", 0, "", "/job");
	if (r >= 0)
		r = sd_bus_message_close_container(reply);
	if (r >= 0)
		r = sd_bus_send(i->bus, reply, NULL);
	sd_bus_message_unref(reply);
	i->listed = true;
	return r;
}

/* The rest of a message or of a container in it. */
static void describe(sd_bus_message *m, struct strbuf *text)
{
	union {
		const char *s;
		int i;
		uint64_t t;
		uint8_t y;
	} value;
	const char *contents;
	char type;

	while (sd_bus_message_peek_type(m, &type, &contents) > 0) {
		if (text->len > 0 && !strchr("([{<", text->data[text->len - 1]))
			strbuf_addc(text, ' ');
		if (strchr("arv", type)) {
			ck_assert_int_ge(sd_bus_message_enter_container(m, type, contents), 0);
			strbuf_addc(text, type == 'a' ? '[' : type == 'r' ? '(' : '<');
			describe(m, text);
			strbuf_addc(text, type == 'a' ? ']' : type == 'r' ? ')' : '>');
			ck_assert_int_ge(sd_bus_message_exit_container(m), 0);
			continue;
		}
		ck_assert_int_ge(sd_bus_message_read_basic(m, type, &value), 0);
		if (type == 's')
			strbuf_adds(text, value.s);
		else if (type == 't')
			strbuf_addf(text, "%llu", (unsigned long long)value.t);
		else if (type == 'y')
			strbuf_addf(text, "%d", value.y);
		else if (type == 'h')
			strbuf_adds(text, "descriptor");
		else
			strbuf_addf(text, "%d", value.i);
	}
}

static int on_call(sd_bus_message *m, void *context, sd_bus_error *error)
{
	struct init *i = context;
	const char *member = sd_bus_message_get_member(m), *name, *whom, *property;
	int signal;

	if (str_eq(member, "ListUnitsByPatterns"))
		return list(i, m);
	if (str_eq(member, "Get")) {
		ck_assert_int_ge(sd_bus_message_read(m, "ss", &name, &property), 0);
		ck_assert_str_eq(name, MANAGER);
		ck_assert_str_eq(property, "SystemState");
		return i->state ? sd_bus_reply_method_return(m, "v", "s", i->state)
		                : sd_bus_reply_method_errorf(m, SD_BUS_ERROR_FAILED, "no state");
	}
	if (str_eq(member, "StartTransientUnit")) {
		struct strbuf text = {0};

		describe(m, &text);
		free(i->start);
		i->start = strbuf_steal(&text);
		i->start_calls++;
	}
	if (str_eq(member, "StartTransientUnit") && i->start_error)
		return sd_bus_reply_method_errorf(m, "org.freedesktop.systemd1.Refused", "%s",
		                                  i->start_error);
	if (str_eq(member, "StartTransientUnit") && i->late) {
		i->late = false;
		i->has_unit = i->starts;
		return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_NO_REPLY, "timed out");
	}
	if (str_eq(member, "StartTransientUnit") && i->closes) {
		i->closes = false;
		i->has_unit = i->starts;
		if (i->tells)
			emit_active(i);
		sd_bus_flush(i->bus);
		sd_bus_close(i->bus);
		return 1;
	}
	if (str_eq(member, "StartTransientUnit")) {
		i->has_unit = true;
		return sd_bus_reply_method_return(m, "o", "/org/freedesktop/systemd1/job/1");
	}
	if (str_eq(member, "GetUnit") && !i->has_unit)
		return sd_bus_reply_method_errorf(m, "org.freedesktop.systemd1.NoSuchUnit", "no unit");
	if (str_eq(member, "GetUnit"))
		return sd_bus_reply_method_return(m, "o", unit->path);
	if (str_eq(member, "KillUnit")) {
		ck_assert_int_ge(sd_bus_message_read(m, "ssi", &name, &whom, &signal), 0);
		ck_assert_str_eq(whom, "all");
		ck_assert_int_eq(signal, SIGKILL);
		snprintf(i->killed[MIN(i->kills, 3)], sizeof(i->killed[0]), "%s", name);
		i->kills++;
		return sd_bus_reply_method_return(m, NULL);
	}
	return 0;
}

static int serve(struct init *i)
{
	sd_id128_t id = {{0}};
	int fd, r;

	while ((fd = accept4(i->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0 &&
	       i->refused-- > 0)
		close(fd);
	if (fd < 0)
		return -errno;
	if ((r = sd_bus_new(&i->bus)) < 0 || (r = sd_bus_set_fd(i->bus, fd, fd)) < 0 ||
	    (r = sd_bus_set_server(i->bus, true, id)) < 0 ||
	    (r = sd_bus_add_object(i->bus, NULL, "/org/freedesktop/systemd1", on_call, i)) < 0)
		return r;
	return sd_bus_start(i->bus);
}

/* The client connects again. */
static int on_connect(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct init *i = context;

	i->bus = sd_bus_close_unref(i->bus);
	ck_assert_int_ge(serve(i), 0);
	return sd_bus_attach_event(i->bus, event, 0);
}

static void *serve_list(void *context)
{
	struct init *i = context;
	int r = serve(i);

	while (r >= 0 && !i->listed) {
		r = sd_bus_process(i->bus, NULL);
		if (r == 0)
			r = sd_bus_wait(i->bus, UINT64_MAX);
	}
	return r < 0 ? i : NULL;
}

static void on_exited(void *context, const char *text, bool was_started)
{
	exited++;
	started = was_started;
	snprintf(why, sizeof(why), "%s", text);
	if (!init.spares)
		unit_kill(unit);
}

static void on_remaining(void *context)
{
	remains++;
}

static void on_stopped(void *context, const char *text)
{
	stops++;
	snprintf(stopped, sizeof(stopped), "%s", text);
}

static void on_empty(void *context)
{
	empty++;
}

static void open_units(void)
{
	struct error err = ERROR_INIT;
	pthread_t thread;
	void *failed;

	ck_assert_int_eq(pthread_create(&thread, NULL, serve_list, &init), 0);
	ck_ok(unit_systemd_open(&units, dir, &err), &err);
	ck_assert_int_eq(pthread_join(thread, &failed), 0);
	ck_assert_ptr_null(failed);
	ck_assert_int_ge(sd_bus_attach_event(init.bus, event, 0), 0);
	ck_assert_int_ge(sd_event_add_io(event, NULL, init.listen_fd, EPOLLIN, on_connect, &init), 0);
}

static const struct unit_owner owner = {
    .exited = on_exited, .stopped = on_stopped, .remaining = on_remaining, .empty = on_empty};

static int start_unit(struct error *err)
{
	const struct unit_identity identity = {1, 1, dir};
	const struct cgroup_limits limits = {.memory = UINT64_MAX, .tasks = UINT64_MAX};
	struct error why_not = ERROR_INIT;

	ck_ok(unit_new(&units, &identity, &owner, &unit, &why_not), &why_not);
	return unit_start(
	    unit, &(struct unit_start){.program = "/bin/true", .listen_fd = 0, .limits = &limits}, err);
}

static void start_running(void)
{
	struct error err = ERROR_INIT;

	ck_ok(start_unit(&err), &err);
	while (!init.has_unit)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
}

/* Until a number is reached, and what is under way then has been handled. */
static void run_until(const int *number, int value)
{
	while (*number < value)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	while (sd_event_run(event, 50000) > 0)
		if (*number > value + 10)
			return;
}

static void setup(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};

	memset(&init, 0, sizeof(init));
	memset(&units, 0, sizeof(units));
	unit = NULL;
	exited = empty = stops = remains = 0;
	dir = unit_tmpdir();
	snprintf(name.sun_path, sizeof(name.sun_path), "%s/private", dir);
	address = str_printf("unix:path=%s", name.sun_path);
	init.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(init.listen_fd, (struct sockaddr *)&name, sizeof(name)), 0);
	ck_assert_int_eq(listen(init.listen_fd, 8), 0);
	ck_assert_int_ge(sd_event_new(&event), 0);
	units = (struct units){.event = event, .method = &unit_systemd, .address = address};
}

static void teardown(void)
{
	/* A callback that fails ends the connection, which then is made again, at the cost of what was under
	 * way. */
	while (units.bus && sd_event_run(event, 0) > 0)
		;
	if (units.bus && !init.may_close)
		ck_assert_int_gt(sd_bus_is_open(units.bus), 0);
	unit_destroy(unit);
	unit_systemd_close(&units);
	sd_bus_close_unref(init.bus);
	free(init.start);
	close(init.listen_fd);
	sd_event_unref(event);
	free(address);
	file_remove_tree(dir, NULL);
	free(dir);
}
