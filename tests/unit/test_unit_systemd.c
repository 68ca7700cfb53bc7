/* SPDX-License-Identifier: Apache-2.0 */
/* Units as services of systemd, with a stand-in for process 1 behind a socket of its own. */
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
	bool closes;             /* it closes the connection instead of an answer to that */
	int kills;
};

/* Check's fixtures have no other place. */
static struct init init;
static char *dir, *address;
static sd_event *event;
static struct units units;
static struct unit *unit;
static int exited, empty;
static bool started;
static char why[400];

static void emit_removed(struct init *i)
{
	i->has_unit = false;
	ck_assert_int_ge(sd_bus_emit_signal(i->bus, "/org/freedesktop/systemd1", MANAGER, "UnitRemoved", "so",
	                                    unit->service, unit->path),
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

static int on_call(sd_bus_message *m, void *context, sd_bus_error *error)
{
	struct init *i = context;
	const char *member = sd_bus_message_get_member(m);

	if (str_eq(member, "ListUnitsByPatterns")) {
		sd_bus_message *reply = NULL;
		int r = sd_bus_message_new_method_return(m, &reply);

		if (r >= 0)
			r = sd_bus_message_append(reply, "a(ssssssouso)", 0);
		if (r >= 0)
			r = sd_bus_send(i->bus, reply, NULL);
		sd_bus_message_unref(reply);
		i->listed = true;
		return r;
	}
	if (str_eq(member, "StartTransientUnit") && i->start_error)
		return sd_bus_reply_method_errorf(m, "org.freedesktop.systemd1.Refused", "%s",
		                                  i->start_error);
	if (str_eq(member, "StartTransientUnit") && i->closes) {
		i->closes = false;
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
	unit_kill(unit);
}

static void on_remaining(void *context)
{
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

static int start_unit(struct error *err)
{
	const struct unit_owner owner = {.exited = on_exited, .remaining = on_remaining, .empty = on_empty};
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
	exited = empty = 0;
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
	unit_destroy(unit);
	unit_systemd_close(&units);
	sd_bus_close_unref(init.bus);
	close(init.listen_fd);
	sd_event_unref(event);
	free(address);
	file_remove_tree(dir, NULL);
	free(dir);
}

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

START_TEST(a_unit_that_is_gone_is_reported_empty_once)
{
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
	emit_main_killed(&init);
	run_until(&init.kills, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_str_eq(why, "dtrain-launch was killed by SIGKILL");
	ck_assert_int_eq(empty, 0);
	emit_removed(&init);
	run_until(&empty, 1);
	ck_assert_int_eq(exited, 1);
	ck_assert_int_eq(empty, 1);
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
	tcase_add_test(tc, a_unit_that_is_gone_is_reported_empty_once);
	tcase_add_test(tc, the_end_of_the_launcher_does_not_wait_for_what_it_has_left);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
