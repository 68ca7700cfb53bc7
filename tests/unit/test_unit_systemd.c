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
	bool closes;             /* it closes the connection instead of an answer to that */
	char names[5][64];       /* of the units that it lists */
	const char *state;       /* of the system; NULL: it does not say */
	char killed[4][64];
	int kills;
	char *start; /* the arguments of StartTransientUnit as text */
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
	tcase_add_test(tc, a_unit_that_is_gone_is_reported_empty_once);
	tcase_add_test(tc, the_end_of_the_launcher_does_not_wait_for_what_it_has_left);
	tcase_add_loop_test(tc, a_service_has_these_properties, 0, 2);
	tcase_add_loop_test(tc, the_end_of_a_service_says_why, 0, ARRAY_SIZE(ends));
	tcase_add_test(tc, who_stops_a_service_is_told_from_a_shutdown);
	tcase_add_loop_test(tc, units_of_an_earlier_service_are_found, 0, 2);
	tcase_add_test(tc, systemd_is_used_where_it_is_process_1);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
