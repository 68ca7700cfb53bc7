/* SPDX-License-Identifier: Apache-2.0 */
/* Small parts of the node, each by itself: lists of CPUs, what was stopped, the lease, ports, processes,
 * control groups, records of starts, and old files. */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lease_file.h"
#include "base/str.h"
#include "config/daemon.h"
#include "node/gpu/affinity.h"
#include "node/launch/cgroup.h"
#include "node/launch/processes.h"
#include "node/launch/start_record.h"
#include "node/lease.h"
#include "node/ports.h"
#include "node/request.h"
#include "node/run_files.h"
#include "node/started.h"
#include "node/stopped.h"

static char *dir;
static double fake_clock; /* of CLOCK_BOOTTIME; 0: the real one */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_BOOTTIME || fake_clock <= 0)
		return __real_clock_gettime(clock, now);
	*now = (struct timespec){(time_t)fake_clock,
	                         (long)((fake_clock - (double)(time_t)fake_clock) * 1e9 + 0.5)};
	return 0;
}

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static char *path_of(const char *name)
{
	return str_path_join(dir, name);
}

static void put(const char *name, const char *text)
{
	_cleanup_free_ char *path = path_of(name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

static void check_file(const char *name, const char *want)
{
	_cleanup_free_ char *path = path_of(name), *text = NULL;

	if (want) {
		ck_assert_msg(file_read(path, 0, &text, NULL, NULL) == 0, "%s is missing", name);
		ck_assert_str_eq(text, want);
	} else {
		ck_assert_msg(access(path, F_OK) < 0, "%s is there", name);
	}
}

static void make(const char *name)
{
	_cleanup_free_ char *path = path_of(name);
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(path, 0755, &err), &err);
}

START_TEST(lists_of_cpus)
{
	static const char *const good[] = {"0", "0-1", "0-3,5", "7,9-11,1022-1023", "63-64"};
	static const char *const bad[] = {"x",  "1-",  "1-x", "3-1", "1024", "0-1024",
	                                  "1x", "1 2", ",1",  "-",   "1,x"};
	cpu_set_t cpus;

	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		_cleanup_free_ char *text = NULL;

		ck_assert_int_eq(affinity_parse(good[i], &cpus), 0);
		text = affinity_format(&cpus);
		ck_assert_str_eq(text, good[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		ck_assert_msg(affinity_parse(bad[i], &cpus) == -EINVAL, "%s", bad[i]);
	ck_assert_int_eq(affinity_parse("2-2", &cpus), 0);
	ck_assert_int_eq(CPU_COUNT(&cpus), 1);
	ck_assert_int_eq(affinity_parse("", &cpus), 0);
	ck_assert_int_eq(CPU_COUNT(&cpus), 0);
	/* What was in the set before is not. */
	CPU_SET(3, &cpus);
	affinity_numa_cpus(-1, &cpus);
	ck_assert_int_eq(CPU_COUNT(&cpus), 0);
	CPU_SET(3, &cpus);
	affinity_numa_cpus(32000, &cpus);
	ck_assert_int_eq(CPU_COUNT(&cpus), 0);
	ck_assert_int_eq(affinity_pci_numa(""), -1);
	ck_assert_int_eq(affinity_pci_numa("ffff:ff:1f.7"), -1);
}
END_TEST

static void add_stopped(struct stopped *s, const char *cluster, int epoch, int run, int attempt)
{
	struct error err = ERROR_INIT;

	ck_ok(stopped_add(s, cluster, epoch, run, attempt, &err), &err);
}

START_TEST(what_was_stopped_is_remembered_for_a_while)
{
	struct stopped s = {0};

	fake_clock = 1000;
	add_stopped(&s, "c", 5, 7, 2);
	ck_assert(stopped_has(&s, "c", 5, 7, 2));
	ck_assert(stopped_has(&s, "c", 4, 7, 2)); /* an older controller knows no better */
	ck_assert(!stopped_has(&s, "c", 6, 7, 2));
	ck_assert(!stopped_has(&s, "d", 5, 7, 2));
	ck_assert(!stopped_has(&s, "c", 5, 8, 2));
	ck_assert(!stopped_has(&s, "c", 5, 7, 3));
	add_stopped(&s, "c", 5, 7, 2);
	ck_assert_uint_eq(s.count, 1);
	fake_clock = 1001;
	add_stopped(&s, "c", 5, 8, 1);
	fake_clock = 1500;
	add_stopped(&s, "c", 5, 9, 1);
	fake_clock = 1900;
	add_stopped(&s, "c", 5, 10, 1);
	ck_assert_uint_eq(s.count, 4);
	fake_clock = 1902;
	add_stopped(&s, "c", 5, 11, 1);
	ck_assert_uint_eq(s.count, 3);
	ck_assert(!stopped_has(&s, "c", 5, 7, 2));
	ck_assert(!stopped_has(&s, "c", 5, 8, 1));
	for (int run = 9; run <= 11; run++)
		ck_assert(stopped_has(&s, "c", 5, run, 1));
	fake_clock = 5000;
	add_stopped(&s, "c", 5, 12, 1);
	ck_assert_uint_eq(s.count, 1);
	stopped_release(&s);
	ck_assert_uint_eq(s.count, 0);
	ck_assert(!stopped_has(&s, "c", 5, 12, 1));
}
END_TEST

static int endings;
static double ending_seconds;

static void on_ending(void *context, double seconds)
{
	ck_assert_ptr_eq(context, &endings);
	endings++;
	ending_seconds = seconds;
}

START_TEST(a_lease_has_an_end)
{
	_cleanup_(lease_destroyp) struct lease *l = NULL;
	sd_event *event;
	double real = clock_seconds(CLOCK_BOOTTIME);
	struct lease_end end;
	struct error err = ERROR_INIT;

	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(lease_create(event, dir, on_ending, &endings, &l, &err), &err);
	fake_clock = 100;
	ck_assert(!lease_is_known(l));
	ck_assert(!lease_is_ending(l));
	ck_assert(str_ends(lease_path(l), "/lease"));
	lease_save(l);
	check_file("lease", NULL);
	lease_renew(l, 100, 30); /* the last third, */
	ck_assert(lease_is_known(l));
	fake_clock = 119.9;
	ck_assert(!lease_is_ending(l));
	fake_clock = 120;
	ck_assert(lease_is_ending(l));
	lease_save(l);
	ck_assert_int_eq(lease_file_read(lease_path(l), &end), 0);
	ck_assert_double_eq_tol(end.until, 130, 1e-6);
	ck_assert_double_eq_tol(end.ending, 10, 1e-6);
	lease_renew(l, 99, 1000); /* an older answer says nothing, */
	ck_assert(lease_is_ending(l));
	lease_renew(l, 100, 60); /* and at most ten seconds */
	fake_clock = 149.9;
	ck_assert(!lease_is_ending(l));
	fake_clock = 150;
	ck_assert(lease_is_ending(l));
	/* No limit: there is nothing to write. */
	lease_renew(l, 101, 0);
	ck_assert(lease_is_known(l));
	ck_assert(!lease_is_ending(l));
	lease_save(l);
	check_file("lease", NULL);
	ck_assert_int_eq(sd_event_run(event, 0), 0);

	/* The timer is early by this clock, and set again; the call comes once for each end. */
	fake_clock = real - 1;
	lease_renew(l, real - 0.3, 0.6);
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_int_eq(endings, 0);
	fake_clock = real + 0.2;
	while (endings == 0)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_double_eq_tol(ending_seconds, 0.1, 1e-6);
	lease_renew(l, real - 0.25, 0.6);
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_int_eq(endings, 1);
	fake_clock = real - 0.3;
	lease_renew(l, real - 0.24, 0.9);
	fake_clock = real + 100;
	for (int i = 0; endings == 1 && i < 1000; i++)
		ck_assert_int_ge(sd_event_run(event, 10000), 0);
	ck_assert_int_eq(endings, 2);
	ck_assert_double_eq(ending_seconds, 0);
	l = (lease_destroy(l), NULL);
	sd_event_unref(event);
}
END_TEST

/* It may have been renewed, or the event loop may be early: the end is that of the lease. */
START_TEST(a_lease_ends_not_before_its_time)
{
	_cleanup_(lease_destroyp) struct lease *l = NULL;
	sd_event *event;
	struct error err = ERROR_INIT;

	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(lease_create(event, dir, on_ending, &endings, &l, &err), &err);
	endings = 0;
	/* By the clock of the machine that has been long ago. */
	fake_clock = 100;
	lease_renew(l, 100, 30);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(sd_event_run(event, UINT64_MAX), 1);
	ck_assert_int_eq(endings, 0);
	fake_clock = 121;
	ck_assert_int_eq(sd_event_run(event, UINT64_MAX), 1);
	ck_assert_int_eq(endings, 1);
	ck_assert_double_eq_tol(ending_seconds, 9, 1e-6);
	ck_assert_int_eq(sd_event_run(event, 0), 0);
	ck_assert_int_eq(endings, 1);
	fake_clock = 0;
	lease_destroy(steal_pointer(l));
	sd_event_unref(event);
}
END_TEST

START_TEST(a_lease_is_found_again)
{
	_cleanup_(lease_destroyp) struct lease *l = NULL;
	_cleanup_free_ char *path = path_of("lease");
	sd_event *event;
	struct error err = ERROR_INIT;

	ck_assert_int_ge(sd_event_new(&event), 0);
	fake_clock = 100;
	ck_ok(lease_file_write(path, &(struct lease_end){130, 10}, &err), &err);
	ck_ok(lease_create(event, dir, on_ending, &endings, &l, &err), &err);
	ck_assert(!lease_is_known(l));
	lease_load(l);
	ck_assert(lease_is_known(l));
	ck_assert(!lease_is_ending(l));
	fake_clock = 121;
	ck_assert(lease_is_ending(l));
	lease_destroy(l);
	/* What is no lease is none. */
	put("lease", "x");
	ck_ok(lease_create(event, dir, on_ending, &endings, &l, &err), &err);
	lease_load(l);
	ck_assert(!lease_is_known(l));
	check_file("lease", "x");
	sd_event_unref(event);
}
END_TEST

/* A socket on this port, or on any. */
static int occupy(int *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	*port = ntohs(address.sin_port);
	return fd;
}

START_TEST(a_free_port_is_found)
{
	struct daemon_config config = {.port_range = (char *)"a-b"};
	struct ports ports = {0};
	struct error err = ERROR_INIT;
	int port = 0, next, fd, other, seen[3] = {0};

	ck_assert_int_gt(ports_free(&ports, &config, "n1", &err), 0);
	fd = occupy(&port);
	config.port_low = config.port_high = port;
	ck_assert_int_eq(ports_free(&ports, &config, "n1", &err), -EADDRINUSE);
	ck_assert_ptr_nonnull(strstr(err.message, "no port of port_range a-b is free on node n1"));
	close(fd);
	ck_assert_int_eq(ports_free(&ports, &config, "n1", &err), port);
	/* One of three is in use: the others come in turn. */
	for (port = 20000; port < 60000; port += 3) {
		int low = port, middle = port + 1, high = port + 2, a = occupy(&low), b = occupy(&high);

		other = occupy(&middle);
		if (a >= 0)
			close(a);
		if (b >= 0)
			close(b);
		if (a >= 0 && b >= 0 && other >= 0)
			break;
		if (other >= 0)
			close(other);
	}
	config.port_low = port;
	config.port_high = port + 2;
	for (int i = 0; i < 6; i++) {
		next = ports_free(&ports, &config, "n1", &err);
		ck_assert_int_ge(next, port);
		ck_assert_int_le(next, port + 2);
		seen[next - port]++;
	}
	ck_assert_int_eq(seen[1], 0);
	ck_assert_int_ge(seen[0], 2);
	ck_assert_int_ge(seen[2], 2);
	close(other);
}
END_TEST

/* ---- processes ---- */

static int pipes[2];

/* A child, in a session of its own where that is asked for, that waits until it is killed. */
static pid_t fork_waiting(bool session, const char *name, bool below)
{
	char byte;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (session)
			setsid();
		if (name)
			prctl(PR_SET_NAME, name);
		if (below && fork() == 0)
			prctl(PR_SET_NAME, "below");
		else if (write(pipes[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
	return pid;
}

static bool is_zombie(pid_t pid)
{
	_cleanup_free_ char *path = str_printf("/proc/%d/stat", (int)pid), *text = NULL;

	return file_read(path, 0, &text, NULL, NULL) == 0 && strstr(text, ") Z ");
}

START_TEST(descendants_are_found)
{
	pid_t child, first = 0;
	int left = 0;

	ck_assert_int_eq(pipe(pipes), 0);
	ck_assert_int_eq(processes_signal_descendants(getpid(), 0, &first), 0);
	ck_assert_int_eq(first, 0);
	child = fork_waiting(true, ") S 1 1 1 (", true);
	ck_assert_int_eq(processes_signal_descendants(getpid(), 0, &first), 2);
	ck_assert_int_gt(first, 1);
	ck_assert_int_eq(processes_signal_descendants(child, 0, NULL), 1);
	/* Nothing was sent. */
	ck_assert_int_eq(waitpid(child, NULL, WNOHANG), 0);
	/* What has ended does not count, nor does it hide what is below it. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	while (!is_zombie(child))
		usleep(1000);
	ck_assert_int_eq(processes_signal_descendants(getpid(), SIGKILL, &first), 1);
	ck_assert_int_ne(first, child);
	while (waitpid(-1, NULL, 0) > 0)
		left++;
	ck_assert_int_eq(left, 2);
}
END_TEST

static pid_t spared;

static bool spare(void *context, pid_t pid)
{
	ck_assert_ptr_eq(context, &spared);
	return pid == spared;
}

START_TEST(orphans_are_those_of_other_sessions)
{
	pid_t own, foreign, other;
	int left = 0;

	ck_assert_int_eq(pipe(pipes), 0);
	own = fork_waiting(false, NULL, false);
	foreign = fork_waiting(true, NULL, true);
	other = fork_waiting(true, NULL, true);
	ck_assert_int_eq(processes_signal_orphans(spare, &spared, 0), 4);
	spared = other;
	ck_assert_int_eq(processes_signal_orphans(spare, &spared, 0), 2);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	ck_assert_int_eq(processes_signal_orphans(spare, &spared, SIGKILL), 2);
	while (!is_zombie(foreign))
		usleep(1000);
	/* It is reaped with the next look; what was below it ends in its own time. */
	while (processes_signal_orphans(spare, &spared, SIGKILL) > 0 || kill(foreign, 0) == 0)
		usleep(1000);
	ck_assert(kill(own, 0) == 0);
	ck_assert(kill(other, 0) == 0);
	ck_assert_int_eq(processes_signal_descendants(other, 0, NULL), 1);
	ck_assert_int_eq(processes_signal_descendants(getpid(), SIGKILL, NULL), 3);
	while (waitpid(-1, NULL, 0) > 0)
		left++;
	ck_assert_int_ge(left, 3);
}
END_TEST

START_TEST(a_process_is_described)
{
	_cleanup_free_ char *want = NULL;
	char buf[100];
	pid_t child;

	ck_assert_int_eq(pipe(pipes), 0);
	child = fork_waiting(false, "a\nb) c", false);
	want = str_printf("a?b) c (pid %d)", (int)child);
	ck_assert_str_eq(processes_describe(child, buf, sizeof(buf)), want);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	free(want);
	want = str_printf("? (pid %d)", (int)child);
	ck_assert_str_eq(processes_describe(child, buf, sizeof(buf)), want);
	ck_assert_int_ge(processes_oom_kills(), 0);
}
END_TEST

/* ---- control groups: directories with files of these names ---- */

START_TEST(kills_for_lack_of_memory_are_counted)
{
	static const struct {
		const char *text;
		int kills;
	} cases[] = {{"low 0\nhigh 0\nmax 3\noom 2\noom_kill 5\n", 5},
	             {"oom_kill 0\n", 0},
	             {"oom_kill x\n", -1},
	             {"low 0\n", -1},
	             {"", -1}};
	_cleanup_free_ char *path = path_of("memory.events");

	ck_assert_int_eq(cgroup_oom_kills(NULL), -1);
	ck_assert_int_eq(cgroup_oom_kills(path), -1);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		put("memory.events", cases[i].text);
		ck_assert_int_eq(cgroup_oom_kills(path), cases[i].kills);
	}
}
END_TEST

START_TEST(a_group_is_made_with_the_one_above)
{
	_cleanup_free_ char *path = path_of("base/7.1"), *beyond = path_of("base/file/7.2");
	struct stat st;

	ck_assert_int_eq(cgroup_create(path), 0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert(S_ISDIR(st.st_mode));
	ck_assert_int_eq(cgroup_create(path), 0);
	put("base/file", "");
	ck_assert_int_eq(cgroup_create(beyond), -ENOTDIR);
	/* Removed with what is below it, and the one above where that is empty. */
	make("base/7.1/a/b");
	cgroup_remove(path);
	check_file("base/7.1", NULL);
	cgroup_remove_parent(path);
	{
		_cleanup_free_ char *base = path_of("base"), *file = path_of("base/file");

		ck_assert_int_eq(stat(base, &st), 0);
		ck_assert_int_eq(unlink(file), 0);
		cgroup_remove_parent(path);
		ck_assert_int_eq(stat(base, &st), -1);
	}
}
END_TEST

START_TEST(a_group_is_killed)
{
	_cleanup_free_ char *path = path_of("g"), *pid = NULL;
	pid_t children[2];
	int status;

	/* One that is empty, or not there, is left alone. */
	ck_assert_int_eq(cgroup_kill(path), 0);
	make("g/below");
	put("g/cgroup.events", "populated 0\nfrozen 0\n");
	put("g/cgroup.kill", "");
	ck_assert_int_eq(cgroup_kill(path), 0);
	check_file("g/cgroup.kill", "");
	put("g/cgroup.events", "populated 1\nfrozen 0\n");
	ck_assert_int_ne(cgroup_kill(path), 0);
	check_file("g/cgroup.kill", "1");
	/* Without that file each process is, also those of groups below. */
	pid = path_of("g/cgroup.kill");
	ck_assert_int_eq(unlink(pid), 0);
	ck_assert_int_eq(pipe(pipes), 0);
	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *text = NULL;

		children[i] = fork_waiting(false, NULL, false);
		text = str_printf("0\n%d\nx\n", (int)children[i]);
		put(i ? "g/below/cgroup.procs" : "g/cgroup.procs", text);
	}
	ck_assert_int_ne(cgroup_kill(path), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
		ck_assert_int_eq(WTERMSIG(status), SIGKILL);
	}
}
END_TEST

/* A directory that is no control group cannot be forked into. */
START_TEST(a_fork_enters_a_group)
{
	_cleanup_free_ char *path = path_of("g");
	pid_t child;
	int status;

	make("g");
	put("g/cgroup.procs", "");
	for (int i = 0; i < 2; i++) {
		child = cgroup_fork(i ? NULL : path);
		ck_assert_int_ge(child, 0);
		if (child == 0)
			_exit(7);
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		ck_assert_int_eq(WEXITSTATUS(status), 7);
	}
	check_file("g/cgroup.procs", "0");
}
END_TEST

/* ---- records of starts ---- */

static int wanted_code, visits;
static char visited[400];

static int visit(void *context, struct request *q, struct error *err)
{
	ck_assert_ptr_eq(context, &visits);
	ck_assert_str_eq(q->user, ""); /* a record does not say it */
	visits++;
	snprintf(visited + strlen(visited), sizeof(visited) - strlen(visited),
	         "%lld.%lld.%lld.%s:%s:%s:%d:%zu:%d ", (long long)q->run, (long long)q->attempt,
	         (long long)q->epoch, q->cluster, q->cgroup ? q->cgroup : "-", q->service ? q->service : "-",
	         (int)q->uid, q->slot_count, q->slot_count ? q->slots[q->slot_count - 1] : -1);
	request_free(q);
	return wanted_code < 0 ? error_set(err, wanted_code, "enough") : 0;
}

START_TEST(records_of_starts_are_read)
{
	struct error err = ERROR_INIT;

	ck_ok(started_each(dir, visit, &visits, &err), &err); /* there is no directory yet */
	put("started", "");
	ck_assert_int_eq(started_each(dir, visit, &visits, &err), -ENOTDIR);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot read "));
	{
		_cleanup_free_ char *path = path_of("started");

		ck_assert_int_eq(unlink(path), 0);
	}
	ck_ok(started_make_directory(dir, &err), &err);
	ck_ok(started_each(dir, visit, &visits, &err), &err);
	ck_assert_int_eq(visits, 0);
	put("started/7.2.3.c1", "{\"uid\":5,\"slots\":[1,4],\"cgroup\":\"/g\"}");
	put("started/junk", "");
	put("started/7.2.3", "");
	ck_ok(started_each(dir, visit, &visits, &err), &err);
	ck_assert_str_eq(visited, "7.2.3.c1:/g:-:5:2:4 ");
	/* A power failure has left nothing but its name. */
	put("started/7.2.3.c1", "");
	visited[0] = '\0';
	ck_ok(started_each(dir, visit, &visits, &err), &err);
	ck_assert_str_eq(visited, "7.2.3.c1:-:-:-1:0:-1 ");
	put("started/7.2.3.c1", "{\"uid\":5,\"slots\":[],\"service\":\"s\"}");
	visited[0] = '\0';
	ck_ok(started_each(dir, visit, &visits, &err), &err);
	ck_assert_str_eq(visited, "7.2.3.c1:-:s:5:0:-1 ");
	put("started/8.1.0.", "");
	wanted_code = -EIO;
	visits = 0;
	ck_assert_int_eq(started_each(dir, visit, &visits, &err), -EIO);
	ck_assert_str_eq(err.message, "enough");
	ck_assert_int_eq(visits, 1);
}
END_TEST

/* It is renamed from a file that is there already, and back. */
START_TEST(a_record_is_a_spare_file)
{
	_cleanup_free_ char *started = path_of("started"), *path = path_of("started/71.1.0.c"),
	                    *spare_file = path_of("started/.spare-7"), *other = path_of("other/71.1.0.c");
	int64_t slots[] = {3};
	const struct start_record content = {.uid = 5, .slots = slots, .slot_count = 1};
	struct error err = ERROR_INIT;
	struct stat before, after;

	ck_ok(started_make_directory(dir, &err), &err);
	ck_assert_int_eq(stat(spare_file, &before), 0);
	ck_ok(start_record_make(path, &content, &err), &err);
	ck_assert_int_eq(stat(path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	check_file("started/.spare-7", NULL);
	ck_assert_int_gt(after.st_size, 0);
	start_record_forget(path);
	check_file("started/71.1.0.c", NULL);
	check_file("started/.spare-7", "");
	/* Without content, and without a spare one. */
	make("other");
	ck_ok(start_record_make(other, NULL, &err), &err);
	check_file("other/71.1.0.c", "");
	start_record_forget(other);
	check_file("other/71.1.0.c", NULL);
	start_record_forget(other);
	/* Longer than before: the old end does not stay. */
	put("started/71.1.0.c",
	    "a text that is longer than all that is written there, so that an end of it would stay");
	ck_assert_int_eq(unlink(spare_file), 0);
	ck_ok(start_record_make(path, &content, &err), &err);
	ck_assert_int_eq(stat(path, &before), 0);
	ck_assert_int_eq(before.st_size, after.st_size);
}
END_TEST

/* ---- old files ---- */

static void make_run(const char *name, double days)
{
	_cleanup_free_ char *path = path_of(name), *file = str_path_join(path, "1/0.log");
	struct timespec times[2] = {{0, UTIME_OMIT}, {(time_t)(1e6 - days * 86400), 0}};
	_cleanup_free_ char *attempt = str_path_join(path, "1");
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(attempt, 0755, &err), &err);
	ck_ok(file_write_atomic(file, "x", 1, 0644, &err), &err);
	ck_assert_int_eq(utimensat(AT_FDCWD, file, times, 0), 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, attempt, times, 0), 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* The runs that go, as "3 5 ". */
static char *prune(struct run_files_plan plan, int kept)
{
	_cleanup_free_ char *logs = path_of("logs"), *metrics = path_of("metrics");
	struct prune_answer answer;
	struct strbuf text = {0};
	struct error err = ERROR_INIT;

	plan.directories[0] = logs;
	plan.directories[1] = metrics;
	plan.now = 1e6;
	ck_ok(run_files_prune(&plan, &answer, &err), &err);
	ck_assert_int_eq(answer.kept, kept);
	ck_assert_ptr_null(answer.error);
	strbuf_adds(&text, "");
	for (size_t i = 0; i < answer.run_count; i++) {
		strbuf_addf(&text, "%lld ", (long long)answer.runs[i].run);
		ck_assert_int_gt(answer.runs[i].bytes, 0);
	}
	prune_answer_release(&answer);
	return strbuf_steal(&text);
}

static void check_pruned(struct run_files_plan plan, int kept, const char *want)
{
	_cleanup_free_ char *text = prune(plan, kept);

	ck_assert_str_eq(text, want);
}

START_TEST(old_files_go)
{
	static const int64_t in_use[] = {4, 1};

	make_run("logs/1", 9);
	make_run("logs/2", 7);
	make_run("logs/10", 3);
	make_run("logs/4", 5);
	make_run("metrics/4", 8); /* the newest file of a run counts */
	make_run("metrics/7", 2);
	make_run("logs/x", 9);
	make_run("logs/0", 9);
	check_pruned((struct run_files_plan){.dry_run = true}, 5, "");
	check_pruned((struct run_files_plan){.runs = 2, .dry_run = true}, 2, "1 2 4 ");
	check_pruned((struct run_files_plan){.runs = 5, .dry_run = true}, 5, "");
	check_pruned((struct run_files_plan){.days = 5, .dry_run = true}, 3, "1 2 ");
	check_pruned((struct run_files_plan){.days = 4.9, .dry_run = true}, 2, "1 2 4 ");
	check_pruned((struct run_files_plan){.days = 2.5, .runs = 1, .dry_run = true}, 0, "1 2 4 7 10 ");
	check_pruned((struct run_files_plan){.runs = 1, .in_use = in_use, .in_use_count = 2, .dry_run = true},
	             3, "2 7 ");
	check_file("logs/1/1/0.log", "x");
	check_pruned((struct run_files_plan){.runs = 1, .in_use = in_use, .in_use_count = 2}, 3, "2 7 ");
	check_file("logs/2", NULL);
	check_file("metrics/7", NULL);
	check_file("logs/1/1/0.log", "x");
	check_file("metrics/4/1/0.log", "x");
	check_pruned((struct run_files_plan){.runs = 1}, 1, "1 4 ");
	check_file("logs/4", NULL);
	check_file("metrics/4", NULL);
	check_file("logs/x/1/0.log", "x");
	check_file("logs/0/1/0.log", "x");
	check_file("logs/10/1/0.log", "x");
}
END_TEST

/* The bytes are those of the files of a run, three levels deep; a link is not followed. */
START_TEST(files_of_a_run_are_measured)
{
	_cleanup_free_ char *logs = path_of("logs"), *link = path_of("logs/3/1/link"), *big = malloc(100000);
	const struct run_files_plan plan = {.directories = {logs}, .days = 1, .now = 1e12, .dry_run = true};
	struct prune_answer answer;
	struct error err = ERROR_INIT;
	int64_t bytes[2];

	memset(big, 'x', 99999);
	big[99999] = '\0';
	put("elsewhere", big);
	for (int i = 0; i < 2; i++) {
		make("logs/3/1/deep");
		if (i == 1) {
			put("logs/3/1/0.log", big);
			put("logs/3/1/deep/0.log", big);
			ck_assert_int_eq(symlink("../../../elsewhere", link), 0);
		}
		ck_ok(run_files_prune(&plan, &answer, &err), &err);
		ck_assert_uint_eq(answer.run_count, 1);
		ck_assert_int_eq(answer.runs[0].run, 3);
		bytes[i] = answer.runs[0].bytes;
		prune_answer_release(&answer);
	}
	ck_ok(run_files_prune(&(struct run_files_plan){.directories = {logs}, .days = 1, .now = 1e12},
	                      &answer, &err),
	      &err);
	ck_assert_ptr_null(answer.error);
	prune_answer_release(&answer);
	check_file("logs/3", NULL);
	ck_assert_int_ge(bytes[1] - bytes[0], 99999);
	ck_assert_int_lt(bytes[1] - bytes[0], 190000);
	/* What is no directory is an error, one that is not there is not. */
	ck_assert_int_eq(
	    run_files_prune(&(struct run_files_plan){.directories = {"/dev/null"}}, &answer, &err), -ENOTDIR);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot read /dev/null"));
	ck_ok(run_files_prune(&(struct run_files_plan){.directories = {"/nonexistent"}}, &answer, &err),
	      &err);
	ck_assert_uint_eq(answer.run_count, 0);
	prune_answer_release(&answer);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_parts");
	TCase *tc = tcase_create("parts");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, lists_of_cpus);
	tcase_add_test(tc, what_was_stopped_is_remembered_for_a_while);
	tcase_add_test(tc, a_lease_has_an_end);
	tcase_add_test(tc, a_lease_ends_not_before_its_time);
	tcase_add_test(tc, a_lease_is_found_again);
	tcase_add_test(tc, a_free_port_is_found);
	tcase_add_test(tc, descendants_are_found);
	tcase_add_test(tc, orphans_are_those_of_other_sessions);
	tcase_add_test(tc, a_process_is_described);
	tcase_add_test(tc, kills_for_lack_of_memory_are_counted);
	tcase_add_test(tc, a_group_is_made_with_the_one_above);
	tcase_add_test(tc, a_group_is_killed);
	tcase_add_test(tc, a_fork_enters_a_group);
	tcase_add_test(tc, records_of_starts_are_read);
	tcase_add_test(tc, a_record_is_a_spare_file);
	tcase_add_test(tc, old_files_go);
	tcase_add_test(tc, files_of_a_run_are_measured);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
