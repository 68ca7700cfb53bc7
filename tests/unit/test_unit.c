/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of how units are made, and their life with a method that this file is. */
#include "unit.h"

#include <string.h>
#include <systemd/sd-event.h>

#include "base/str.h"
#include "node/launch/unit_internal.h"

static char *dir;
static sd_event *event;
static struct strbuf trace;
static int code, kills; /* what a call returns; KILLs that find processes */
static bool watched, asks, destroys;
static struct unit *unit;

static void add(const char *word)
{
	strbuf_addf(&trace, "%s ", word);
}

static void check_trace(const char *want)
{
	ck_assert_str_eq(trace.data, want);
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
}

/* ---- the method ---- */

static int prepare(struct unit *u, struct error *err)
{
	add("prepare");
	return code < 0 ? error_set(err, code, "no names") : 0;
}

static int start(struct unit *u, const struct unit_start *s, struct error *err)
{
	add("start");
	return code < 0 ? error_set(err, code, "no start") : 0;
}

static bool is_watched(const struct unit *u)
{
	return watched;
}

static void disconnected(struct unit *u, bool reconnected)
{
	add(reconnected ? "reconnected" : "disconnected");
}

static bool kill_once(struct unit *u)
{
	add("kill");
	return kills-- > 0;
}

static bool ask_stop(struct unit *u)
{
	add("ask");
	return asks;
}

static void remove_unit(struct unit *u)
{
	add("remove");
}

static void release(struct unit *u)
{
	add("release");
}

static const struct unit_method method = {.name = "fake",
                                          .prepare = prepare,
                                          .start = start,
                                          .is_watched = is_watched,
                                          .disconnected = disconnected,
                                          .kill = kill_once,
                                          .kill_usec = 1000,
                                          .ask_stop = ask_stop,
                                          .remove = remove_unit,
                                          .release = release};

/* ---- the owner ---- */

static void on_exited(void *context, const char *why, bool started)
{
	ck_assert_ptr_eq(context, &trace);
	strbuf_addf(&trace, "exited(%s%s) ", why, started ? "" : ", not started");
}

static void on_remaining(void *context)
{
	add("remaining");
}

static void on_empty(void *context)
{
	add("empty");
	if (destroys) {
		unit_destroy(unit);
		unit = NULL;
	}
}

static const struct unit_owner owner = {
    .context = &trace, .exited = on_exited, .remaining = on_remaining, .empty = on_empty};
static struct units units;

static void setup(void)
{
	dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&event), 0);
	trace = (struct strbuf){0};
	strbuf_adds(&trace, "");
	units = (struct units){
	    .event = event, .method = &method, .cgroups = strdup("/groups"), .oom_file = strdup("/oom")};
	unit = NULL;
}

static void teardown(void)
{
	unit_destroy(unit);
	free(units.cgroups);
	free(units.oom_file);
	sd_event_unref(event);
	strbuf_free(&trace);
	file_remove_tree(dir, NULL);
	free(dir);
}

static const struct unit_identity identity = {7, 1, "/run/attempts/7.1"};

static void make(void)
{
	struct error err = ERROR_INIT;

	ck_ok(unit_new(&units, &identity, &owner, &unit, &err), &err);
	check_trace("prepare ");
}

static void make_started(void)
{
	struct error err = ERROR_INIT;

	make();
	ck_ok(unit_start(unit, &(struct unit_start){0}, &err), &err);
	check_trace("start ");
}

START_TEST(a_unit_is_started)
{
	struct error err = ERROR_INIT;

	make();
	ck_assert(unit_is_empty(unit));
	ck_assert_ptr_eq(units.first, unit);
	code = -EBUSY;
	ck_assert_int_eq(unit_start(unit, &(struct unit_start){0}, &err), -EBUSY);
	ck_assert_str_eq(err.message, "no start");
	ck_assert(unit_is_empty(unit));
	check_trace("start ");
	unit_cancel(unit);
	check_trace("remove ");
	unit_cancel(NULL);
	code = 0;
	ck_ok(unit_start(unit, &(struct unit_start){0}, &err), &err);
	ck_assert(!unit_is_empty(unit));
	check_trace("start ");
	unit_destroy(unit);
	check_trace("release ");
	ck_assert_ptr_null(units.first);
	code = -EIO;
	unit = NULL;
	ck_assert_int_eq(unit_new(&units, &identity, &owner, &unit, &err), -EIO);
	ck_assert_str_eq(err.message, "no names");
	ck_assert_ptr_null(unit);
	check_trace("prepare release ");
	ck_assert_ptr_null(units.first);
}
END_TEST

START_TEST(units_are_listed)
{
	struct unit *list[3];
	struct error err = ERROR_INIT;

	for (int i = 0; i < 3; i++)
		ck_ok(unit_new(&units, &identity, &owner, &list[i], &err), &err);
	unit_destroy(list[1]);
	ck_assert_ptr_eq(units.first, list[2]);
	ck_assert_ptr_eq(list[2]->next, list[0]);
	ck_assert_ptr_null(list[0]->next);
	unit_destroy(list[0]);
	ck_assert_ptr_null(list[2]->next);
	unit_destroy(list[2]);
	unit_destroy(NULL);
	ck_assert_ptr_null(units.first);
}
END_TEST

START_TEST(calls_go_to_the_method)
{
	make_started();
	for (int i = 0; i < 2; i++) {
		watched = asks = i;
		ck_assert_int_eq(unit_is_watched(unit), i);
		ck_assert_int_eq(unit_ask_stop(unit), i);
		check_trace("ask ");
		unit_disconnected(unit, i);
		check_trace(i ? "reconnected " : "disconnected ");
	}
	ck_assert_int_eq(unit->launcher, 0);
	ck_assert(!unit->seen);
	unit_set_launcher(unit, 0);
	ck_assert(unit->seen);
	unit_set_launcher(unit, 4711);
	ck_assert_int_eq(unit->launcher, 4711);
	unit_set_launcher(unit, 0);
	ck_assert_int_eq(unit->launcher, 4711);
	unit_report_exit(unit, "a", true);
	unit_report_exit(unit, "b", false);
	check_trace("exited(a) ");
	ck_assert_int_eq(unit->launcher, 0);
	unit_disconnected(unit, true); /* it is known to have ended */
	check_trace("");
}
END_TEST

START_TEST(an_empty_unit_has_no_connection)
{
	make();
	unit_disconnected(unit, true);
	unit_kill(unit);
	ck_assert_int_eq(sd_event_run(event, 0), 0);
	check_trace("");
	unit_report_exit(unit, "a", false);
	check_trace("exited(a, not started) ");
	unit_report_empty(unit);
	check_trace("");
}
END_TEST

/* From the event loop, again until none is left. */
START_TEST(a_unit_is_killed_until_it_is_empty)
{
	make_started();
	kills = _i;
	destroys = _i == 2;
	unit_kill(unit);
	unit_kill(unit);
	check_trace("");
	while (unit && !unit_is_empty(unit))
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	check_trace(_i == 0   ? "kill remove empty "
	            : _i == 1 ? "kill remaining kill remove empty "
	                      : "kill remaining kill kill remove empty release ");
	ck_assert_int_eq(sd_event_run(event, 5000), 0);
	check_trace("");
	if (unit) {
		unit_report_empty(unit);
		unit_kill(unit);
		ck_assert_int_eq(sd_event_run(event, 5000), 0);
		check_trace("");
	}
}
END_TEST

START_TEST(a_unit_has_names)
{
	struct unit_names names;
	struct error err = ERROR_INIT;

	make();
	unit->cgroup = strdup("/groups/7.1");
	names = unit_names(unit);
	ck_assert_str_eq(names.cgroup, "/groups/7.1");
	ck_assert_ptr_null(names.service);
	ck_assert_str_eq(names.oom_file, "/oom");
	unit->service = strdup("x.service"); /* its own group counts */
	names = unit_names(unit);
	ck_assert_str_eq(names.service, "x.service");
	ck_assert_ptr_null(names.oom_file);
	unit_destroy(unit);
	/* By these it is found again; without any, by its directory. */
	ck_ok(unit_find(&units, &identity, &(struct unit_names){.cgroup = "/old/7.1"}, &owner, &unit, &err),
	      &err);
	ck_assert_ptr_eq(unit->method, &unit_process);
	ck_assert_str_eq(unit->cgroup, "/old/7.1");
	ck_assert(!unit_is_empty(unit));
	unit_destroy(unit);
	ck_ok(unit_find(&units, &identity, &(struct unit_names){0}, &owner, &unit, &err), &err);
	ck_assert_str_eq(unit->cgroup, "/groups/7.1");
	unit_destroy(unit);
	free(units.cgroups);
	units.cgroups = NULL;
	ck_ok(unit_find(&units, &identity, &(struct unit_names){0}, &owner, &unit, &err), &err);
	ck_assert_ptr_null(unit->cgroup);
	unit_destroy(unit);
	ck_ok(unit_find(&units, &identity, &(struct unit_names){.service = "x.service"}, &owner, &unit, &err),
	      &err);
	ck_assert_ptr_eq(unit->method, &unit_systemd);
	ck_assert_str_eq(unit->service, "x.service");
	ck_assert_ptr_null(unit->cgroup);
	unit_destroy(unit);
	unit = NULL;
	units.unreachable = true;
	ck_assert_int_eq(
	    unit_find(&units, &identity, &(struct unit_names){.service = "x.service"}, &owner, &unit, &err),
	    -EHOSTUNREACH);
	ck_assert_ptr_nonnull(strstr(err.message, "x.service"));
	ck_assert_ptr_null(unit);
	ck_assert_ptr_null(units.first);
}
END_TEST

/* ---- the choice ---- */

static int booted, opened, open_code;
static uid_t uid;

int __wrap_sd_booted(void);
int __wrap_sd_booted(void)
{
	return booted;
}

uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
	return uid;
}

int __wrap_unit_systemd_open(struct units *u, const char *runtime_dir, struct error *err);
int __wrap_unit_systemd_open(struct units *u, const char *runtime_dir, struct error *err)
{
	opened++;
	ck_assert_str_eq(runtime_dir, dir);
	return open_code < 0 ? error_set(err, open_code, "it is busy") : 0;
}

START_TEST(how_units_are_made_is_chosen)
{
	static const struct {
		const char *launch;
		uid_t uid;
		int booted, code;
		const char *method, *error; /* one of both */
		int opened;
	} cases[] = {
	    {"auto", 0, 1, 0, "systemd", NULL, 1},
	    {"systemd", 0, 1, 0, "systemd", NULL, 1},
	    {"process", 0, 1, 0, "process", NULL, 1},
	    {"process", 0, 1, -EIO, "process", NULL, 1},
	    {"auto", 0, 1, -EIO, NULL, "runs cannot be started by systemd: it is busy", 1},
	    {"systemd", 0, 1, -EIO, NULL, "runs cannot be started by systemd: it is busy", 1},
	    {"auto", 0, 0, 0, "process", NULL, 0},
	    {"auto", 0, -5, 0, "process", NULL, 0},
	    {"auto", 1000, 1, 0, "process", NULL, 0},
	    {"process", 1000, 1, 0, "process", NULL, 0},
	    {"systemd", 0, 0, 0, NULL, "runs cannot be started by systemd: process 1 is not systemd", 0},
	    {"systemd", 1000, 1, 0, NULL, "runs cannot be started by systemd: dtraind does not run as root",
	     0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct daemon_config config = {.launch = (char *)cases[i].launch, .runtime_dir = dir};
		struct units *made = NULL;
		struct error err = ERROR_INIT;
		int r;

		uid = cases[i].uid;
		booted = cases[i].booted;
		open_code = cases[i].code;
		opened = 0;
		r = units_create(event, &config, &made, &err);
		ck_assert_int_eq(opened, cases[i].opened);
		if (cases[i].error) {
			ck_assert_int_eq(r, cases[i].code < 0 ? cases[i].code : -ENOTSUP);
			ck_assert_str_eq(err.message, cases[i].error);
			ck_assert_ptr_null(made);
			continue;
		}
		ck_ok(r, &err);
		ck_assert_str_eq(units_method(made), cases[i].method);
		ck_assert_int_eq(made->unreachable, cases[i].code < 0);
		ck_assert_ptr_eq(made->event, event);
		units_adopted(made);
		units_destroy(made);
	}
	units_destroy(NULL);
}
END_TEST

/* It is there again with the next attempt. Where attempts go on, it stays. */
START_TEST(the_group_of_all_attempts_goes_with_the_service)
{
	const struct daemon_config config = {.launch = (char *)"process", .runtime_dir = dir};
	_cleanup_free_ char *base = str_path_join(dir, "base"), *group = str_path_join(base, "7.1");

	uid = 1000;
	booted = 0;
	for (int goes_on = 0; goes_on < 3; goes_on++) {
		struct units *made = NULL;
		struct error err = ERROR_INIT;

		ck_ok(units_create(event, &config, &made, &err), &err);
		free(made->cgroups);
		made->cgroups = goes_on < 2 ? strdup(base) : NULL;
		ck_ok(file_mkdirs(goes_on ? group : base, 0755, &err), &err);
		units_destroy(made);
		ck_assert_int_eq(file_exists(base), goes_on > 0);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("unit");
	TCase *tc = tcase_create("unit");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_unit_is_started);
	tcase_add_test(tc, units_are_listed);
	tcase_add_test(tc, calls_go_to_the_method);
	tcase_add_test(tc, an_empty_unit_has_no_connection);
	tcase_add_loop_test(tc, a_unit_is_killed_until_it_is_empty, 0, 3);
	tcase_add_test(tc, a_unit_has_names);
	tcase_add_test(tc, how_units_are_made_is_chosen);
	tcase_add_test(tc, the_group_of_all_attempts_goes_with_the_service);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
