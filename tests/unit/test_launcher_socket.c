/* SPDX-License-Identifier: Apache-2.0 */
/* The lines between dtraind and dtrain-launch, whose end of the socket this file holds. */
#include "unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "node/launcher.h"

/* The end of each command. */
#define END ",\"version\":\"" DTRAIN_VERSION "\"}\n"

static char *dir;
static sd_event *event;
static struct launcher *launcher;
static int listener, peer; /* peer: as dtrain-launch has it */
static struct strbuf told; /* "running 4711\n", "closed\n" */

static void on_reported(void *context, struct launch_report *report)
{
	ck_assert_ptr_eq(context, &told);
	strbuf_addf(&told, "%s %d\n", attempt_states[report->state], (int)report->launcher);
}

static void on_closed(void *context)
{
	ck_assert_ptr_eq(context, &told);
	strbuf_adds(&told, "closed\n");
}

static struct launcher_owner owner(void)
{
	return (struct launcher_owner){event, 7, &told, on_reported, on_closed};
}

static void setup(void)
{
	struct launcher_owner o;
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&event), 0);
	strbuf_adds(&told, "");
	o = owner();
	ck_ok(launcher_listen(&o, dir, &listener, &launcher, &err), &err);
	peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	ck_assert_int_ge(peer, 0);
}

static void teardown(void)
{
	launcher_destroy(launcher);
	close(listener);
	close(peer);
	sd_event_unref(event);
	strbuf_free(&told);
	file_remove_tree(dir, NULL);
	free(dir);
}

static void say(const char *text)
{
	ck_assert_int_eq(send(peer, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void check_told(const char *want)
{
	while (told.len == 0 && *want)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_str_eq(told.data, want);
	strbuf_reset(&told);
	strbuf_adds(&told, "");
}

START_TEST(reports_are_lines)
{
	static const char running[] = "{\"state\":\"running\",\"launcher\":1,\"ranks\":[]}\n";

	say(running);
	check_told("running 1\n");
	/* Several at once, one in parts, and what is none of them. */
	say("{\"state\":\"starting\",\"launcher\":2,\"ranks\":[]}\nno JSON\n{}\n\n"
	    "{\"state\":\"stopping\",\"launcher\":3,\"ranks\":[]}\n{\"state\":\"run");
	check_told("starting 2\nstopping 3\n");
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	say("ning\",\"launcher\":4,\"ranks\":[]}\n{");
	check_told("running 4\n");
	say("\"state\":\"ended\",\"launcher\":5,\"ranks\":[]}\n");
	check_told("ended 5\n");
	ck_assert(launcher_is_connected(launcher));
	/* What came last counts before the end of the connection. */
	say(running);
	close(peer);
	peer = -1;
	check_told("running 1\nclosed\n");
	ck_assert(!launcher_is_connected(launcher));
}
END_TEST

/* Longer than what is read at once. */
START_TEST(a_report_may_be_long)
{
	_cleanup_free_ char *reason = malloc(100001), *line = NULL;

	memset(reason, 'x', 100000);
	reason[100000] = '\0';
	line = str_printf("{\"state\":\"running\",\"launcher\":6,\"ranks\":[],\"reason\":\"%s\"}\n", reason);
	say(line);
	check_told("running 6\n");
}
END_TEST

/* All that has been said, a line for each, and nothing twice. */
static void check_said(const char *want)
{
	size_t length = strlen(want);
	_cleanup_free_ char *text = calloc(length + 2, 1);
	size_t n = 0;

	while (n < length) {
		ssize_t r = recv(peer, text + n, length + 1 - n, 0);

		ck_assert_int_gt(r, 0);
		n += (size_t)r;
	}
	ck_assert_str_eq(text, want);
	ck_assert_int_eq(recv(peer, text, 1, MSG_DONTWAIT), -1);
}

START_TEST(commands_are_lines)
{
	launcher_stop(launcher, (struct stop_times){1.5, 2});
	check_said("{\"stop\":2.0,\"save\":1.5" END);
	launcher_stop(launcher, (struct stop_times){-1, -2});
	check_said("{\"stop\":0.0" END);
	launcher_acknowledge(launcher);
	check_said("{\"acknowledge\":true" END);
	launcher_confirm(launcher);
	launcher_acknowledge(launcher);
	check_said("{\"confirmed\":true" END "{\"acknowledge\":true" END);
}
END_TEST

/* What the socket does not hold is sent when there is room, in order. */
START_TEST(commands_wait_for_room)
{
	enum { COMMANDS = 20000 };
	char buf[8192];
	struct strbuf all = {0};
	int count = 0;

	for (int i = 0; i < COMMANDS; i++)
		launcher_stop(launcher, (struct stop_times){0, i});
	ck_assert_int_eq(fcntl(peer, F_SETFL, O_NONBLOCK), 0);
	for (bool done = false; !done;) {
		ssize_t n;

		ck_assert_int_ge(sd_event_run(event, 0), 0);
		while ((n = recv(peer, buf, sizeof(buf), 0)) > 0)
			strbuf_add(&all, buf, (size_t)n);
		done = all.len > 0 && strstr(all.data, "{\"stop\":19999.0" END);
	}
	for (char *rest = all.data, *line; (line = strsep(&rest, "\n")) && *line; count++) {
		snprintf(buf, sizeof(buf), "{\"stop\":%d.0" END, count);
		ck_assert_int_eq(strncmp(buf, line, strlen(line)), 0);
		ck_assert_uint_eq(strlen(buf), strlen(line) + 1);
	}
	ck_assert_int_eq(count, COMMANDS);
	/* Then it is quiet: there is nothing to wait for. */
	ck_assert_int_eq(sd_event_run(event, 0), 0);
	say("{\"state\":\"running\",\"launcher\":1,\"ranks\":[]}\n");
	check_told("running 1\n");
	strbuf_free(&all);
}
END_TEST

START_TEST(a_connection_can_be_made_again)
{
	close(peer);
	peer = -1;
	check_told("closed\n");
	launcher_acknowledge(launcher); /* no launcher is there */
	ck_assert_int_eq(launcher_reconnect(launcher), 0);
	ck_assert(launcher_is_connected(launcher));
	peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	say("{\"state\":\"running\",\"launcher\":1,\"ranks\":[]}\n");
	check_told("running 1\n");
	launcher_disconnect(launcher);
	ck_assert(!launcher_is_connected(launcher));
	check_told("");
	close(listener);
	listener = -1;
	ck_assert_int_eq(launcher_reconnect(launcher), -ECONNREFUSED);
	ck_assert(!launcher_is_connected(launcher));
	launcher_receive(launcher); /* there is nothing to take */
	check_told("");
	launcher_disconnect(launcher);
	/* And without one at all. */
	launcher_receive(NULL);
	launcher_disconnect(NULL);
	launcher_destroy(NULL);
	ck_assert(!launcher_is_connected(NULL));
}
END_TEST

START_TEST(what_has_arrived_can_be_taken_at_once)
{
	say("{\"state\":\"running\",\"launcher\":1,\"ranks\":[]}\n");
	launcher_receive(launcher);
	ck_assert_str_eq(told.data, "running 1\n");
}
END_TEST

/* A later service finds the socket by the directory, whose path may be longer than an address holds. */
START_TEST(a_later_service_connects)
{
	_cleanup_free_ char *deep = str_printf("%s/%0100d/%0100d", dir, 1, 2);
	struct launcher_owner o = owner();
	struct launcher *first, *second;
	struct error err = ERROR_INIT;
	int fd;

	ck_assert_int_eq(launcher_connect(&o, deep, &second, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.message, "/launch.sock: No such file or directory"));
	ck_ok(file_mkdirs(deep, 0755, &err), &err);
	ck_assert_int_eq(launcher_connect(&o, deep, &second, &err), -ENOENT);
	ck_ok(launcher_listen(&o, deep, &fd, &first, &err), &err);
	ck_assert_int_eq(launcher_listen(&o, deep, &fd, &second, &err), -EADDRINUSE);
	ck_ok(launcher_connect(&o, deep, &second, &err), &err);
	ck_assert(launcher_is_connected(second));
	launcher_confirm(second);
	launcher_destroy(first);
	close(peer);
	close(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
	peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	check_said("{\"confirmed\":true" END);
	launcher_destroy(second);
	close(fd);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("launcher_socket");
	TCase *tc = tcase_create("socket");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 10);
	tcase_add_test(tc, reports_are_lines);
	tcase_add_test(tc, a_report_may_be_long);
	tcase_add_test(tc, commands_are_lines);
	tcase_add_test(tc, commands_wait_for_room);
	tcase_add_test(tc, a_connection_can_be_made_again);
	tcase_add_test(tc, what_has_arrived_can_be_taken_at_once);
	tcase_add_test(tc, a_later_service_connects);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
