/* SPDX-License-Identifier: Apache-2.0 */
/* How the service sees dtrain-launch end, with this program in its place: test_launcher DIRECTORY. */
#include "node/launch/unit.h"
#include "node/launcher.h"
#include "unit.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "node/launch/launch.h"

enum { STATUS = 7 }; /* with which the stand-in exits */

/* Exits when its directory has a file "exit", or at the first acknowledgement; other commands are ignored.
 * With a file "close" it goes on without the connection, as the guard of a launcher that was killed does
 * while processes are left. */
static int stand_in(const char *dir)
{
	_cleanup_free_ char *leave = str_path_join(dir, "exit"), *only_close = str_path_join(dir, "close");
	int fd = accept(LAUNCH_SOCKET_FD, NULL, NULL);
	char buf[4096];
	size_t n = 0;

	while (fd >= 0 && !file_exists(leave)) {
		ssize_t r = recv(fd, buf + n, sizeof(buf) - 1 - n, 0);
		char *end;

		if (r <= 0)
			return STATUS + 1;
		if (file_exists(only_close)) {
			close(fd);
			pause();
		}
		n += (size_t)r;
		buf[n] = '\0';
		while ((end = strchr(buf, '\n'))) {
			_cleanup_json_ json_t *json = json_loadb(buf, (size_t)(end - buf), 0, NULL);
			struct launch_command command = {0};
			struct error err = ERROR_INIT;

			if (launch_command_decode(json, &command, &err) < 0)
				return STATUS + 2;
			if (command.acknowledge)
				return STATUS;
			n -= (size_t)(end + 1 - buf);
			memmove(buf, end + 1, n + 1);
		}
	}
	return STATUS;
}

struct seen {
	char *dir;
	sd_event *event;
	struct daemon_config config;
	struct units *units;
	struct unit *unit;
	struct launcher *launcher;
	int exited, empty, closed;
	char why[200];
};

static struct seen seen; /* Check's fixtures have no other place */

static void on_reported(void *context, struct launch_report *report)
{
}

static void on_exited(void *context, const char *why, bool started)
{
	struct seen *s = context;

	s->exited++;
	snprintf(s->why, sizeof(s->why), "%s", why);
}

static void on_closed(void *context)
{
	((struct seen *)context)->closed++;
}

static void on_remaining(void *context)
{
}

static void on_empty(void *context)
{
	((struct seen *)context)->empty++;
}

static void setup(void)
{
	const struct unit_owner unit_owner = {
	    .context = &seen, .exited = on_exited, .remaining = on_remaining, .empty = on_empty};
	struct launcher_owner owner = {NULL, 1, &seen, on_reported, on_closed};
	struct unit_identity identity = {1, 1, NULL};
	const struct cgroup_limits limits = {UINT64_MAX, UINT64_MAX, NULL};
	_cleanup_close_ int listen_fd = -1;
	struct error err = ERROR_INIT;

	memset(&seen, 0, sizeof(seen));
	seen.dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&seen.event), 0);
	owner.event = seen.event;
	identity.dir = seen.dir;
	seen.config.launch = (char *)"process";
	seen.config.socket = seen.config.runtime_dir = seen.dir;
	ck_ok(units_create(seen.event, &seen.config, &seen.units, &err), &err);
	ck_ok(unit_new(seen.units, &identity, &unit_owner, &seen.unit, &err), &err);
	ck_ok(launcher_listen(&owner, seen.dir, &listen_fd, &seen.launcher, &err), &err);
	ck_ok(unit_start(seen.unit,
	                 &(struct unit_start){
	                     .program = "/proc/self/exe", .listen_fd = listen_fd, .limits = &limits},
	                 &err),
	      &err);
}

static void teardown(void)
{
	launcher_destroy(seen.launcher);
	unit_destroy(seen.unit);
	units_destroy(seen.units);
	sd_event_unref(seen.event);
	file_remove_tree(seen.dir, NULL);
	free(seen.dir);
}

static void run_until_gone(void)
{
	while (launcher_is_connected(seen.launcher) || !unit_is_empty(seen.unit))
		ck_assert_int_ge(sd_event_run(seen.event, UINT64_MAX), 0);
}

START_TEST(an_acknowledged_launcher_leaves_an_empty_unit)
{
	launcher_acknowledge(seen.launcher);
	run_until_gone();
	ck_assert_int_eq(seen.exited, 1);
	ck_assert_int_eq(seen.empty, 1);
	ck_assert_int_eq(seen.closed, 1);
}
END_TEST

START_TEST(one_that_ends_by_itself_says_how)
{
	_cleanup_free_ char *leave = str_path_join(seen.dir, "exit");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(leave, "", 0, 0644, &err), &err);
	launcher_stop(seen.launcher, (struct stop_times){0, 1}); /* wakes it */
	run_until_gone();
	ck_assert_int_eq(seen.exited, 1);
	ck_assert_str_eq(seen.why, "dtrain-launch ended with exit status 7");
}
END_TEST

START_TEST(a_guard_that_does_not_end_does_not_hide_the_end_of_the_launcher)
{
	_cleanup_free_ char *only_close = str_path_join(seen.dir, "close");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(only_close, "", 0, 0644, &err), &err);
	launcher_stop(seen.launcher, (struct stop_times){0, 1}); /* wakes it */
	while (!seen.closed)
		ck_assert_int_ge(sd_event_run(seen.event, UINT64_MAX), 0);
	unit_disconnected(seen.unit, false);
	while (!seen.exited)
		ck_assert_int_ge(sd_event_run(seen.event, UINT64_MAX), 0);
	ck_assert_str_eq(seen.why, "dtrain-launch was killed, and processes that it has left do not die");
	ck_assert_int_eq(seen.empty, 0);
	unit_kill(seen.unit);
	run_until_gone();
	ck_assert_int_eq(seen.exited, 1);
	ck_assert_int_eq(seen.empty, 1);
}
END_TEST

/* Starts the real one for a description (NULL: there is none); its exit status, and what it says. */
static int launch(const char *description, char **said)
{
	_cleanup_free_ char *path = str_path_join(seen.dir, "launch.json"),
	                    *file = str_path_join(seen.dir, "said");
	struct error err = ERROR_INIT;
	pid_t child;
	int status;

	unlink(path);
	if (description)
		ck_ok(file_write_atomic(path, description, strlen(description), 0600, &err), &err);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		if (!freopen(file, "w", stderr))
			_exit(99);
		execl("./dtrain-launch", "dtrain-launch", seen.dir, NULL);
		_exit(98);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_ok(file_read(file, 0, said, NULL, &err), &err);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(what_cannot_be_launched_is_refused)
{
#define RANKS(LOG)                                                                                           \
	"{\"uid\":0,\"gid\":0,\"groups\":[],\"argv\":[\"true\"],\"ranks\":[{\"rank\":0,\"slot\":0,"          \
	"\"environment\":[],\"log\":\"/dev/null\"},{\"rank\":1,\"slot\":1,\"environment\":[],\"log\":\"" LOG \
	"\"}]}"
	static const struct {
		const char *description, *words;
	} cases[] = {
	    {NULL, "launch.json: No such file or directory"},
	    {"{", "not valid JSON"},
	    {"{\"uid\":0}", "missing"},
	    {RANKS("/nonexistent/log"), "cannot open the log /nonexistent/log: No such file"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *said = NULL;
		int status = launch(cases[i].description, &said);

		ck_assert_msg(strstr(said, cases[i].words), "%s, not %s", said, cases[i].words);
		ck_assert_int_eq(status, 1);
	}
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite;
	TCase *tc;

	if (argc == 2)
		return stand_in(argv[1]);
	suite = suite_create("launcher");
	tc = tcase_create("launcher");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, an_acknowledged_launcher_leaves_an_empty_unit);
	tcase_add_test(tc, what_cannot_be_launched_is_refused);
	tcase_add_test(tc, a_guard_that_does_not_end_does_not_hide_the_end_of_the_launcher);
	tcase_add_test(tc, one_that_ends_by_itself_says_how);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
