/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups of attempts: made, entered by a fork, emptied by SIGKILL, and removed. */
#include "node/launch/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"

/* For how long a group is tried to be made while others remove its parent. */
enum { CREATE_SECONDS = 2 };

/* Whether a list that is separated by commas or spaces has this word. */
static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (; *list; list += strcspn(list, ", "), list += *list != '\0')
		if (strcspn(list, ", \n") == len && strncmp(list, word, len) == 0)
			return true;
	return false;
}

/* Where the version 2 hierarchy is mounted, or with a name that of this controller of version 1; owned by the
 * caller. A mount of a part of it is of no use. */
static char *find_mount(const char *controller)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/mountinfo", "re");
	_cleanup_free_ char *line = NULL;
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0) {
		char root[4096], point[4096];
		const char *type = strstr(line, " - "), *options = strrchr(line, ' ');

		if (type && str_starts(type, controller ? " - cgroup " : " - cgroup2 ") &&
		    (!controller || has_word(options + 1, controller)) &&
		    sscanf(line, "%*d %*d %*s %4095s %4095s", root, point) == 2 && str_eq(root, "/"))
			return strdup(point);
	}
	return NULL;
}

/* Our own group within it: "0::/system.slice/dtraind.service", "4:memory:/system.slice/dtraind.service". */
static char *find_own(const char *controller)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/cgroup", "re");
	_cleanup_free_ char *line = NULL;
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0) {
		char *controllers = strchr(line, ':'),
		     *path = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (controller ? has_word(controllers + 1, controller) : str_eq(line, "0:"))
			return strdup(path);
	}
	return NULL;
}

char *cgroup_find_base(const char *runtime_dir)
{
	_cleanup_free_ char *mount = find_mount(NULL), *own = find_own(NULL), *base = NULL;

	/* A path that climbs is outside of the namespace that we see. */
	if (!mount || !own || strstr(own, "/.."))
		return NULL;
	/* Two services on one machine, in one group, have different directories. */
	base = str_printf("%s%s/dtrain-%08x", mount, str_eq(own, "/") ? "" : own,
	                  (unsigned)hash_bytes(runtime_dir, strlen(runtime_dir), 0));
	if (!base || (mkdir(base, 0755) < 0 && errno != EEXIST))
		return NULL;
	rmdir(base);
	return steal_pointer(base);
}

int cgroup_create(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);
	const char *parent = copy ? dirname(copy) : NULL;
	double deadline = clock_monotonic() + CREATE_SECONDS;
	int r;

	if (!parent)
		return -ENOMEM;
	/* The guard of another attempt, which an earlier service has started, removes the parent where that
	 * is empty, also between these two calls. How often it wins is a matter of chance, so a number of
	 * tries is no bound. */
	do {
		r = mkdir(parent, 0755) < 0 && errno != EEXIST ? -errno : 0;
		if (r == 0)
			r = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
	} while (r == -ENOENT && clock_monotonic() < deadline);
	return r;
}

static int write_file(const char *path, const char *name, const char *text)
{
	_cleanup_free_ char *file = str_path_join(path, name);
	_cleanup_close_ int fd = file ? open(file, O_WRONLY | O_CLOEXEC) : -1;

	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* The controllers that the group of the service has, which are all that its groups can have; owned by the
 * caller. */
static char *read_controllers(const char *base)
{
	_cleanup_free_ char *file = str_printf("%s/../cgroup.controllers", base), *text = NULL;

	return file && file_read(file, 4096, &text, NULL, NULL) == 0 ? steal_pointer(text) : NULL;
}

/* A group and the one around it: of an attempt, and of all attempts of a service. */
struct groups {
	const char *path, *base;
	const char *controllers; /* that can be switched on for them, separated by spaces; NULL: not known */
};

static int limit_one(const struct groups *g, const char *controller, const char *name, const char *value)
{
	_cleanup_free_ char *on = str_printf("+%s", controller), *above = str_printf("%s/..", g->base);

	if (!on || !above)
		return -ENOMEM;
	/* A write that must fail holds up all of the machine's forks. */
	if (g->controllers && !has_word(g->controllers, controller))
		return -ENOTSUP;
	/* Its parent may have switched it on already. */
	if (write_file(g->path, name, value) == 0)
		return 0;
	/* From the group of the service down. It is refused where processes are in that itself, unless it is
	 * the root. */
	write_file(above, "cgroup.subtree_control", on);
	write_file(g->base, "cgroup.subtree_control", on);
	return write_file(g->path, name, value);
}

int cgroup_limit(const char *path, const struct cgroup_limits *limits)
{
	_cleanup_free_ char *copy = strdup(path), *controllers = NULL;
	struct groups groups = {.path = path};
	char number[24];
	int r = 0;

	if (!copy)
		return -ENOMEM;
	groups.base = dirname(copy);
	groups.controllers = controllers = read_controllers(groups.base);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)limits->memory);
	if (limits->memory != UINT64_MAX && limit_one(&groups, "memory", "memory.max", number) < 0)
		r = -ENOTSUP;
	snprintf(number, sizeof(number), "%llu", (unsigned long long)limits->tasks);
	if (limits->tasks != UINT64_MAX && limit_one(&groups, "pids", "pids.max", number) < 0)
		r = -ENOTSUP;
	if (limits->cpus && limit_one(&groups, "cpuset", "cpuset.cpus", limits->cpus) < 0)
		r = -ENOTSUP;
	return r;
}

int64_t cgroup_oom_kills(const char *file)
{
	_cleanup_free_ char *text = NULL;
	const char *line;
	long long n;

	if (!file || file_read(file, 4096, &text, NULL, NULL) < 0)
		return -1;
	line = strstr(text, "oom_kill ");
	return line && sscanf(line, "oom_kill %lld", &n) == 1 ? n : -1;
}

/* Of our own group, where it counts. */
static char *find_oom_file(const char *controller, const char *name)
{
	_cleanup_free_ char *mount = find_mount(controller), *own = mount ? find_own(controller) : NULL;
	_cleanup_free_ char *file =
	    own && !strstr(own, "/..") ? str_printf("%s%s/%s", mount, own, name) : NULL;

	return cgroup_oom_kills(file) >= 0 ? steal_pointer(file) : NULL;
}

char *cgroup_oom_file(void)
{
	char *file = find_oom_file(NULL, "memory.events");

	return file ? file : find_oom_file("memory", "memory.oom_control");
}

/* A process that moves into a group waits until all processors have passed a quiescent state, some 10 ms, and
 * no process of the machine can fork meanwhile. One that is born in it does not. */
static pid_t fork_into(const char *path)
{
	_cleanup_close_ int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct clone_args args = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)fd};

	return fd < 0 ? -1 : (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

pid_t cgroup_fork(const char *path)
{
	pid_t pid = path ? fork_into(path) : -1;

	if (pid >= 0)
		return pid;
	/* Linux before 5.7 has no such call, and some containers do not permit it. */
	pid = fork();
	if (pid == 0 && path)
		write_file(path, "cgroup.procs", "0");
	return pid;
}

static bool is_populated(const char *path)
{
	_cleanup_free_ char *file = str_path_join(path, "cgroup.events"), *text = NULL;

	return file && file_read(file, 4096, &text, NULL, NULL) == 0 && strstr(text, "populated 1");
}

static void kill_own(const char *path)
{
	_cleanup_free_ char *file = str_path_join(path, "cgroup.procs"), *text = NULL;
	char *save, *word;
	int64_t pid;

	if (!file || file_read(file, 0, &text, NULL, NULL) < 0)
		return;
	for (word = strtok_r(text, "\n", &save); word; word = strtok_r(NULL, "\n", &save))
		if (str_to_int64(word, 1, INT32_MAX, &pid) == 0)
			kill((pid_t)pid, SIGKILL);
}

static void remove_own(const char *path)
{
	rmdir(path);
}

/* For the group and all below it (a container of root's makes some), the innermost first. */
static void each_group(const char *path, void (*act)(const char *path))
{
	_cleanup_closedir_ DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		_cleanup_free_ char *below = NULL;

		if (entry->d_type != DT_DIR || str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		below = str_path_join(path, entry->d_name);
		if (below)
			each_group(below, act);
	}
	act(path);
}

int cgroup_kill(const char *path)
{
	if (!is_populated(path))
		return 0;
	/* Linux before 5.14 has no cgroup.kill: one by one, again until none is left. */
	if (write_file(path, "cgroup.kill", "1") < 0)
		each_group(path, kill_own);
	return is_populated(path);
}

void cgroup_remove(const char *path)
{
	each_group(path, remove_own);
}

void cgroup_remove_parent(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);

	if (copy)
		rmdir(dirname(copy));
}
