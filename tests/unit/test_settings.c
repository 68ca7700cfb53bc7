/* SPDX-License-Identifier: Apache-2.0 */
/* dtraind.conf and the hosts file together: who this node is, and which node is the controller. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "dtraind/daemon.h"
#include "dtraind/heartbeat.h"
#include "failing_memory.h"
#include "http/authority.h"
#include "http/identity.h"
#include "unit.h"

/* ---- the event loop, which may take no more ---- */

static long sources_left; /* until one is refused; 0: none is */
static bool source_refused;

static bool refuses_source(void)
{
	if (sources_left == 0 || --sources_left > 0)
		return false;
	source_refused = true;
	return true;
}

#define DEFINE_REFUSING(NAME, PARAMETERS, ...)                                                               \
	int __real_sd_event_##NAME PARAMETERS;                                                               \
	int __wrap_sd_event_##NAME PARAMETERS;                                                               \
	int __wrap_sd_event_##NAME PARAMETERS                                                                \
	{                                                                                                    \
		return refuses_source() ? -ENOSPC : __real_sd_event_##NAME(__VA_ARGS__);                     \
	}

DEFINE_REFUSING(add_io,
                (sd_event * e, sd_event_source **s, int fd, uint32_t events, sd_event_io_handler_t f,
                 void *context),
                e, s, fd, events, f, context)
DEFINE_REFUSING(add_time,
                (sd_event * e, sd_event_source **s, clockid_t clock, uint64_t usec, uint64_t accuracy,
                 sd_event_time_handler_t f, void *context),
                e, s, clock, usec, accuracy, f, context)
DEFINE_REFUSING(add_time_relative,
                (sd_event * e, sd_event_source **s, clockid_t clock, uint64_t usec, uint64_t accuracy,
                 sd_event_time_handler_t f, void *context),
                e, s, clock, usec, accuracy, f, context)
DEFINE_REFUSING(add_defer, (sd_event * e, sd_event_source **s, sd_event_handler_t f, void *context), e, s, f,
                context)
DEFINE_REFUSING(add_signal,
                (sd_event * e, sd_event_source **s, int number, sd_event_signal_handler_t f, void *context),
                e, s, number, f, context)
DEFINE_REFUSING(source_set_priority, (sd_event_source * s, int64_t priority), s, priority)

/* ---- files ---- */

static char *dir;

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static char *write_text(const char *name, const char *text)
{
	char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0600, &err), &err);
	return path;
}

/* hosts NULL: there is no such file. */
static int read_settings(const char *lines, const char *hosts, struct settings **out, struct error *err)
{
	_cleanup_free_ char *text = str_printf("state_dir = \"%s\"; hosts_file = \"%s/hosts\"; cluster_key = "
	                                       "\"%s/cluster.pem\"; port = 700;\n%s",
	                                       dir, dir, dir, lines),
	                    *path = write_text("dtraind.conf", text),
	                    *hosts_path = str_path_join(dir, "hosts");

	unlink(hosts_path);
	if (hosts)
		free(write_text("hosts", hosts));
	return settings_read(path, out, err);
}

static void make_key(void)
{
	_cleanup_free_ char *path = str_path_join(dir, "cluster.pem");
	struct error err = ERROR_INIT;

	ck_ok(identity_make(path, true, &err), &err);
}

#define THREE "n1 slots=2 addr=10.0.0.1\nn2 slots=4 addr=10.0.0.2 port=800\nn3\n"

START_TEST(both_files_say_who_is_who)
{
	static const struct {
		const char *lines, *hosts;
		const char *name, *controller, *address;
		int port, controller_port, slots;
		bool cluster;
	} cases[] = {
	    {"node = \"n1\";", "n1 slots=2\n", "n1", "n1", "n1", 700, 700, 2, false},
	    /* The first host, unless another one is named. */
	    {"node = \"n2\";", THREE, "n2", "n1", "10.0.0.1", 800, 700, 4, true},
	    {"node = \"n1\"; controller = \"n2\";", THREE, "n1", "n2", "10.0.0.2", 700, 800, 2, true},
	    {"node = \"N1\"; controller = \"n3\";", THREE, "n1", "n3", "n3", 700, 700, 2, true},
	    {"node = \"n3\";", THREE, "n3", "n1", "10.0.0.1", 700, 700, 0, true},
	};

	make_key();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(settings_freep) struct settings *s = NULL;
		struct error err = ERROR_INIT;

		ck_ok(read_settings(cases[i].lines, cases[i].hosts, &s, &err), &err);
		ck_assert_str_eq(s->name, cases[i].name);
		ck_assert_str_eq(s->controller, cases[i].controller);
		ck_assert_str_eq(s->controller_address, cases[i].address);
		ck_assert_int_eq(s->port, cases[i].port);
		ck_assert_int_eq(s->controller_port, cases[i].controller_port);
		ck_assert_int_eq(s->hosts_slots, cases[i].slots);
		ck_assert_int_eq(s->cluster, cases[i].cluster);
		ck_assert(!s->alone);
	}
}
END_TEST

START_TEST(files_that_do_not_fit_together_are_refused)
{
	static const struct {
		const char *lines, *hosts, *words;
	} cases[] = {
	    {"node = \"n1\"; controller = \"n4\";", THREE, "controller = \"n4\": there is no such host"},
	    {"node = \"n4\";", THREE, "node \"n4\" of dtraind.conf is not among the hosts"},
	    {"node = \"n1\";", NULL, "hosts_file of dtraind.conf:"},
	    {"node = \"n1\";", "# nobody\n", "hosts_file of dtraind.conf:"},
	    {"node = \"n1\";", "n1 slots=x\n", "slots"},
	    {"node = \"n1\"; store = \"etcd:http://127.0.0.1:1\"; controllers = [\"n2\", \"n9\"];", THREE,
	     "controllers: there is no host \"n9\" in "},
	    {"nix = 1;", THREE, "nix"},
	    {"node = \"n1\";", THREE "n4 ssd submit\n",
	     "give each node a certificate (dtraind(8)), or remove submit"},
	    {"node = \"n1\"; certificate = \"/x\"; ca_file = \"/x\";", THREE, "certificate_key is missing"},
	};

	make_key();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct settings *s = NULL;
		struct error err = ERROR_INIT;

		ck_fails(read_settings(cases[i].lines, cases[i].hosts, &s, &err), &err, cases[i].words);
		ck_assert_ptr_null(s);
	}
}
END_TEST

START_TEST(a_cluster_needs_a_key)
{
	_cleanup_(settings_freep) struct settings *s = NULL;
	struct error err = ERROR_INIT;

	ck_fails(read_settings("node = \"n1\";", THREE, &s, &err), &err, "make one with dtrain keygen");
	make_key();
	ck_ok(read_settings("node = \"n1\";", THREE, &s, &err), &err);
}
END_TEST

/* Or a certificate of the node's own, which is read with the settings. */
START_TEST(a_node_may_have_a_certificate)
{
	_cleanup_free_ char *ca = str_path_join(dir, "ca"), *lines[2] = {NULL, NULL};
	struct validity v = {time(NULL) - 3600, time(NULL) + 3600};
	struct error err = ERROR_INIT;

	ck_ok(authority_make(ca, v, false, &err), &err);
	ck_ok(authority_make_node(ca, "n1", v, false, &err), &err);
	for (int i = 0; i < 2; i++)
		lines[i] = str_printf("node = \"n%d\"; certificate = \"%s/nodes/n1.pem\"; certificate_key = "
		                      "\"%s/nodes/n1.key\"; ca_file = \"%s/ca.pem\";",
		                      i + 1, ca, ca, ca);
	{
		_cleanup_(settings_freep) struct settings *s = NULL;

		ck_ok(read_settings(lines[0], THREE, &s, &err), &err);
		ck_assert_ptr_nonnull(s->identity);
	}
	{
		struct settings *s = NULL;

		ck_ok(read_settings(lines[0], THREE "n4 submit\n", &s, &err), &err);
		settings_free(steal_pointer(s));
		ck_fails(read_settings(lines[1], THREE, &s, &err), &err,
		         "is not the certificate of this node: n2 is not among its names");
	}
	free(lines[1]);
}
END_TEST

/* Without the default hosts file. */
static int read_alone(struct settings **out, struct error *err)
{
	_cleanup_free_ char *text = str_printf("state_dir = \"%s\"; node = \"n9\";", dir),
	                    *path = write_text("dtraind.conf", text);

	return settings_read(path, out, err);
}

/* A machine without a hosts file is a cluster of its own; but not one whose hosts file was lost. */
START_TEST(a_node_that_loses_its_hosts_file_does_not_go_on_alone)
{
	_cleanup_(settings_freep) struct settings *alone = NULL, *member = NULL, *again = NULL;
	struct error err = ERROR_INIT;

	if (access(SYSCONFDIR "/dtrain/hosts", F_OK) == 0) {
		printf("settings: this machine has " SYSCONFDIR "/dtrain/hosts: not tested\n");
		return;
	}
	ck_ok(read_alone(&alone, &err), &err);
	ck_assert(alone->alone && !alone->cluster);
	ck_assert_str_eq(alone->name, "n9");
	ck_assert_str_eq(alone->controller, "n9");
	ck_ok(settings_remember(alone, &err), &err);
	ck_ok(read_alone(&again, &err), &err);

	make_key();
	ck_ok(read_settings("node = \"n1\";", THREE, &member, &err), &err);
	ck_ok(settings_remember(member, &err), &err);
	ck_ok(settings_remember(member, &err), &err);
	ck_fails(read_alone(&(struct settings *){NULL}, &err), &err,
	         "this node is in a cluster, whose controller is n1: put the file back");
	/* A file that names this machine alone takes it out of the cluster. */
	settings_free(steal_pointer(member));
	ck_ok(read_settings("node = \"n1\";", "n1\n", &member, &err), &err);
	ck_ok(settings_remember(member, &err), &err);
	settings_free(steal_pointer(again));
	ck_ok(read_alone(&again, &err), &err);
}
END_TEST

/* Where it says the same already, nothing is written. */
START_TEST(a_record_is_written_once)
{
	_cleanup_(settings_freep) struct settings *member = NULL, *alone = NULL;
	_cleanup_free_ char *record = str_path_join(dir, "cluster"), *inside = str_path_join(record, "x");
	struct error err = ERROR_INIT;
	struct stat before, after;

	make_key();
	ck_ok(read_settings("node = \"n1\";", "n1\n", &alone, &err), &err);
	ck_ok(read_settings("node = \"n1\";", THREE, &member, &err), &err);
	ck_ok(settings_remember(member, &err), &err);
	ck_assert_int_eq(stat(record, &before), 0);
	ck_assert_uint_eq(before.st_mode & 0777, 0644);
	ck_ok(settings_remember(member, &err), &err);
	ck_assert_int_eq(stat(record, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_ok(settings_remember(alone, &err), &err);
	ck_assert(!file_exists(record));
	ck_ok(settings_remember(alone, &err), &err);
	/* Something else has its place. */
	ck_ok(file_mkdirs(inside, 0755, &err), &err);
	ck_assert_int_lt(settings_remember(member, &err), 0);
	ck_fails(settings_remember(alone, &err), &err, "cannot remove ");
}
END_TEST

struct written {
	int calls, code;
	struct settings *settings;
};

static void on_written(void *context, void *data)
{
	struct written *written = context;
	struct settings_reading *reading = data;

	ck_assert_ptr_nonnull(reading);
	written->calls++;
	written->code = reading->err.code;
	written->settings = steal_pointer(reading->settings);
}

/* Off the event loop the record goes to the place that is named, and the settings come back, also where it
 * cannot be written. */
START_TEST(the_record_is_written_off_the_event_loop)
{
	_cleanup_(settings_freep) struct settings *place = NULL;
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	struct error err = ERROR_INIT;

	make_key();
	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(read_settings("node = \"n1\";", THREE, &place, &err), &err);
	for (int fails = 0; fails < 2; fails++) {
		_cleanup_free_ char *record = str_path_join(place->config->state_dir, "cluster");
		struct written written = {0};
		struct settings *member = NULL;
		struct background *task;

		ck_ok(read_settings("node = \"n1\";", THREE, &member, &err), &err);
		if (fails) {
			ck_assert_int_eq(unlink(record), 0);
			ck_ok(file_mkdirs(record, 0755, &err), &err);
		}
		ck_ok(settings_remember_background(event, member, place->config, 60, on_written, &written,
		                                   &task, &err),
		      &err);
		while (!written.calls)
			ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
		ck_assert_int_eq(written.code < 0, fails);
		ck_assert_ptr_eq(written.settings, member);
		ck_assert(file_exists(record));
		settings_free(written.settings);
	}
}
END_TEST

/* Reads both files, and writes the record off the event loop. */
static int read_and_remember(void *context, struct error *err)
{
	_cleanup_(settings_freep) struct settings *s = NULL, *place = NULL;
	struct written written = {0};
	struct background *task;
	const char *path = context;
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	int r;

	ck_assert_int_ge(sd_event_new(&event), 0);
	if ((r = settings_read(path, &place, err)) < 0 || (r = settings_read(path, &s, err)) < 0 ||
	    (r = settings_remember_background(event, steal_pointer(s), place->config, 60, on_written,
	                                      &written, &task, err)) < 0)
		return r;
	while (!written.calls)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	settings_free(written.settings);
	return written.code;
}

static int read_in_background(void *context, struct error *err)
{
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	struct written written = {0};
	struct background *task;
	int r;

	ck_assert_int_ge(sd_event_new(&event), 0);
	r = settings_read_background(event, context, 60, on_written, &written, &task, err);
	if (r < 0)
		return r;
	while (!written.calls)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert(written.code < 0 || str_eq(written.settings->name, "n1"));
	settings_free(written.settings);
	return written.code;
}

START_TEST(memory_may_run_out_at_any_place)
{
	_cleanup_free_ char *path = str_path_join(dir, "dtraind.conf");
	_cleanup_(settings_freep) struct settings *s = NULL;
	struct error err = ERROR_INIT;

	make_key();
	ck_ok(read_settings("node = \"n1\";", THREE, &s, &err), &err);
	memory_runs_out(read_and_remember, path);
	memory_runs_out(read_in_background, path);
}
END_TEST

/* A service, and its end. Where memory was refused to what a service can do without, such as a cgroup, it has
 * all of its parts. */
static int create_service(void *context, struct error *err)
{
	struct daemon *d = NULL;
	int r = daemon_create(context, &d, err);

	memory_left = 0;
	if (r < 0) {
		ck_assert_ptr_null(d);
		return r;
	}
	ck_assert(d->settings && d->server && d->client && d->peer_client && d->node && d->controller &&
	          d->heartbeats && d->retention && d->logs && d->log_quotas && d->timers &&
	          d->tls_listening && http_unix_answers(d->settings->config->socket) && d->locks[0] >= 0 &&
	          d->locks[1] >= 0);
	daemon_destroy(d);
	return memory_refused ? -ENOMEM : 0;
}

/* A heartbeat that cannot be made is left out, and the next one is as any other. */
static int send_heartbeat(void *context, struct error *err)
{
	heartbeats_send(context);
	return memory_refused ? -ENOMEM : 0;
}

/* The files of a service of a cluster of two; the path is the caller's. */
static char *write_service(void)
{
	_cleanup_free_ char *lines = str_printf(
	    "node = \"n1\"; cpu_slots = 2; group = \"\"; listen = \"127.0.0.1\"; runtime_dir = \"%s/run\"; "
	    "log_dir = \"%s/log\"; socket = \"%s/sock\"; worker_dir = \"%s\";",
	    dir, dir, dir, dir);
	_cleanup_(settings_freep) struct settings *s = NULL;
	struct error err = ERROR_INIT;

	make_key();
	ck_ok(read_settings(lines, "n1 slots=2 port=29631\nn2\n", &s, &err), &err);
	return str_path_join(dir, "dtraind.conf");
}

START_TEST(memory_may_run_out_while_a_service_is_created)
{
	_cleanup_free_ char *path = write_service();
	struct daemon *d = NULL;
	struct error err = ERROR_INIT;

	memory_runs_out(create_service, path);
	ck_ok(daemon_create(path, &d, &err), &err);
	memory_runs_out(send_heartbeat, d->heartbeats);
	ck_assert(heartbeats_are_idle(d->heartbeats));
	daemon_destroy(d);
}
END_TEST

/* Whatever the event loop does not take, a service that lacks it is not created. */
START_TEST(a_service_has_all_of_its_sources)
{
	_cleanup_free_ char *path = write_service();

	for (long n = 1;; n++) {
		struct error err = ERROR_INIT;
		struct daemon *d = NULL;
		int r;

		mark_point();
		source_refused = false;
		sources_left = n;
		r = daemon_create(path, &d, &err);
		sources_left = 0;
		if (!source_refused) {
			ck_ok(r, &err);
			ck_assert_int_gt(n, 20);
			daemon_destroy(d);
			break;
		}
		ck_assert_msg(r == -ENOSPC, "source %ld: %d: %s", n, r, err.message);
		ck_assert_msg(strstr(err.message, "No space left on device"), "source %ld: %s", n,
		              err.message);
		ck_assert_ptr_null(d);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("settings");
	TCase *c = tcase_create("settings");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, both_files_say_who_is_who);
	tcase_add_test(c, memory_may_run_out_at_any_place);
	tcase_add_test(c, memory_may_run_out_while_a_service_is_created);
	tcase_add_test(c, a_record_is_written_once);
	tcase_add_test(c, a_service_has_all_of_its_sources);
	tcase_add_test(c, the_record_is_written_off_the_event_loop);
	tcase_add_test(c, files_that_do_not_fit_together_are_refused);
	tcase_add_test(c, a_cluster_needs_a_key);
	tcase_add_test(c, a_node_may_have_a_certificate);
	tcase_add_test(c, a_node_that_loses_its_hosts_file_does_not_go_on_alone);
	return unit_run(s);
}
