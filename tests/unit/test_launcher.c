/* SPDX-License-Identifier: Apache-2.0 */
/* How the service sees dtrain-launch end, with this program in its place: test_launcher DIRECTORY. */
#include "node/launcher.h"
#include "unit.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "node/launch/launch.h"

enum { STATUS = 7 }; /* with which the stand-in exits */

/* Exits when its directory has a file "exit", or at the first acknowledgement; other commands are ignored. */
static int stand_in(const char *dir)
{
	_cleanup_free_ char *leave = str_path_join(dir, "exit");
	int fd = accept(LAUNCH_SOCKET_FD, NULL, NULL);
	char buf[4096];
	size_t n = 0;

	while (fd >= 0 && !file_exists(leave)) {
		ssize_t r = recv(fd, buf + n, sizeof(buf) - 1 - n, 0);
		char *end;

		if (r <= 0)
			return STATUS + 1;
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
	struct launcher *launcher;
	int lost, closed;
	char why[200];
};

static struct seen seen; /* Check's fixtures have no other place */

static void on_reported(void *context, struct launch_report *report)
{
}

static void on_lost(void *context, const char *why)
{
	struct seen *s = context;

	s->lost++;
	snprintf(s->why, sizeof(s->why), "%s", why);
}

static void on_closed(void *context)
{
	((struct seen *)context)->closed++;
}

static void setup(void)
{
	struct launcher_owner owner = {NULL, 1, &seen, on_reported, on_lost, on_closed};
	struct error err = ERROR_INIT;

	memset(&seen, 0, sizeof(seen));
	seen.dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&seen.event), 0);
	owner.event = seen.event;
	ck_ok(launcher_start(&owner, seen.dir, "/proc/self/exe", &seen.launcher, &err), &err);
}

static void teardown(void)
{
	launcher_destroy(seen.launcher);
	sd_event_unref(seen.event);
	file_remove_tree(seen.dir, NULL);
	free(seen.dir);
}

static void run_until_gone(void)
{
	while (!launcher_is_gone(seen.launcher))
		ck_assert_int_ge(sd_event_run(seen.event, UINT64_MAX), 0);
}

START_TEST(an_acknowledged_launcher_is_not_lost)
{
	launcher_acknowledge(seen.launcher);
	run_until_gone();
	ck_assert_msg(seen.lost == 0, "%s", seen.why);
	ck_assert_int_ge(seen.closed, 1);
}
END_TEST

START_TEST(one_that_ends_by_itself_is_lost)
{
	_cleanup_free_ char *leave = str_path_join(seen.dir, "exit");
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(leave, "", 0, 0644, &err), &err);
	launcher_stop(seen.launcher, 1); /* wakes it */
	run_until_gone();
	ck_assert_int_eq(seen.lost, 1);
	ck_assert_str_eq(seen.why, "dtrain-launch ended with exit status 7");
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
	tcase_add_test(tc, an_acknowledged_launcher_is_not_lost);
	tcase_add_test(tc, one_that_ends_by_itself_is_lost);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
