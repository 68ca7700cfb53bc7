/* SPDX-License-Identifier: Apache-2.0 */
#include "node/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "base/str.h"

enum { LOG_SPACE = 16 << 20 };

void run_user_free(struct run_user *user)
{
	free(user->name);
	free(user->home);
	free(user->shell);
	free(user->groups);
	free(user);
}

int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err)
{
	_cleanup_(run_user_freep) struct run_user *user = calloc(1, sizeof *user);
	_cleanup_free_ char *buf = malloc(65536);
	struct passwd entry, *found = NULL;
	int r, count = 64;

	if (!user || !buf)
		return error_oom(err);
	r = getpwnam_r(name, &entry, buf, 65536, &found);
	if (!found && r != 0 && r != ENOENT)
		return error_errno(err, -r, "cannot look up user '%s'", name);
	if (!found)
		return error_set(err, -EPERM, "no user '%s' (uid %u)", name, (unsigned)uid);
	if (entry.pw_uid != uid)
		return error_set(err, -EPERM, "user '%s' has uid %u here, but %u where the run was submitted",
		                 name, (unsigned)entry.pw_uid, (unsigned)uid);
	user->uid = uid;
	user->gid = entry.pw_gid;
	user->change = geteuid() == 0;
	if (!user->change && uid != geteuid())
		return error_set(err, -EPERM,
		                 "dtraind does not run as root here and cannot start programs as '%s'", name);
	user->name = strdup(name);
	user->home = strdup(entry.pw_dir && *entry.pw_dir ? entry.pw_dir : "/");
	user->shell = strdup(entry.pw_shell && *entry.pw_shell ? entry.pw_shell : "/bin/sh");
	/* getgrouplist says how many there are where the room does not do. */
	for (;;) {
		int have = count;
		gid_t *groups = realloc(user->groups, count * sizeof *groups);

		if (!groups || !user->name || !user->home || !user->shell)
			return error_oom(err);
		user->groups = groups;
		if (getgrouplist(name, entry.pw_gid, groups, &count) >= 0)
			break;
		if (count <= have)
			count = have * 2;
	}
	user->group_count = count;
	*out = steal_pointer(user);
	return 0;
}

/*
 * The file system sees this thread as the user between enter and leave. Raw calls: glibc's setgroups() would
 * change every thread. Leaving cannot fail for root; if it does, going on with the wrong rights is worse.
 */
struct disguise {
	gid_t *groups;
	int count;
	bool on;
};

static int disguise_enter(struct disguise *d, const struct run_user *user, struct error *err)
{
	if (!user->change)
		return 0;
	d->count = getgroups(0, NULL);
	d->groups = calloc(d->count + 1, sizeof *d->groups);
	if (!d->groups)
		return error_oom(err);
	d->count = getgroups(d->count, d->groups);
	if (syscall(SYS_setgroups, (size_t)user->group_count, user->groups) < 0)
		return error_errno(err, -errno, "setgroups");
	setfsgid(user->gid);
	setfsuid(user->uid);
	d->on = true;
	return 0;
}

static void disguise_leave(struct disguise *d)
{
	if (d->on) {
		setfsuid(geteuid());
		setfsgid(getegid());
		if (syscall(SYS_setgroups, (size_t)d->count, d->groups) < 0 ||
		    (uid_t)setfsuid(-1) != geteuid())
			abort();
	}
	free(d->groups);
}

/* access() with the file system ids. */
static int may(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, AT_EACCESS) < 0 ? -errno : 0;
}

static int check_directory(const struct preflight *p, struct error *err)
{
	struct stat st;
	int r;

	if (p->directory[0] != '/')
		return error_set(err, -EINVAL, "directory %s is not an absolute path", p->directory);
	if (stat(p->directory, &st) < 0)
		return error_errno(err, -errno, "directory %s", p->directory);
	if (!S_ISDIR(st.st_mode))
		return error_set(err, -ENOTDIR, "directory %s is not a directory", p->directory);
	r = may(p->directory, X_OK);
	return r < 0 ? error_errno(err, r, "%s cannot enter directory %s", p->user->name, p->directory) : 0;
}

static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? may(path, X_OK) : -EACCES;
}

static int check_program(const struct preflight *p, struct error *err)
{
	_cleanup_free_ char *copy = strdup(p->path ? p->path : "/usr/bin:/bin");
	char *rest = copy, *part;
	int r = -ENOENT;

	if (!copy)
		return error_oom(err);
	if (!p->program[0])
		return error_set(err, -EINVAL, "the command is empty");
	if (strchr(p->program, '/')) {
		_cleanup_free_ char *path = str_path_join(p->directory, p->program);

		r = path ? check_executable(path) : -ENOMEM;
		if (r == -ENOENT && p->engine)
			return error_set(
			    err, r,
			    "%s slots need dtrain-engine-%s, which is not installed here (no %s): "
			    "apt install dtrain-engine-%s",
			    str_eq(p->engine, "cuda") ? "GPU" : "CPU", p->engine, path, p->engine);
		return r < 0 ? error_errno(err, r, "cannot execute %s", path ? path : p->program) : 0;
	}
	while ((part = strsep(&rest, ":"))) {
		_cleanup_free_ char *in = str_path_join(p->directory, *part ? part : ".");
		_cleanup_free_ char *path = in ? str_path_join(in, p->program) : NULL;
		int found = path ? check_executable(path) : -ENOMEM;

		if (found == 0)
			return 0;
		if (found != -ENOENT && found != -ENOTDIR && r == -ENOENT)
			r = found;
	}
	if (r != -ENOENT)
		return error_errno(err, r, "cannot execute %s", p->program);
	return error_set(err, r, "no program %s in PATH (%s)", p->program,
	                 p->path ? p->path : "/usr/bin:/bin");
}

/* The directory itself, or the nearest above it that is there, has to be writable. */
static int check_output(const struct preflight *p, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(p->directory, p->output_dir);
	struct stat st;
	int r;

	if (!path)
		return error_oom(err);
	while (stat(path, &st) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT)
			return error_errno(err, -errno, "output.dir %s", path);
		if (!slash || slash == path) {
			path[slash == path] = '\0';
			break;
		}
		*slash = '\0';
	}
	r = may(path, W_OK | X_OK);
	if (r == 0 && stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
		r = -ENOTDIR;
	return r < 0 ? error_errno(err, r, "output.dir %s: %s cannot write to %s", p->output_dir,
	                           p->user->name, path)
	             : 0;
}

static int check_as_user(const struct preflight *p, struct error *err)
{
	int r = check_directory(p, err);

	if (r == 0)
		r = check_program(p, err);
	if (r == 0 && p->model) {
		_cleanup_free_ char *path = str_path_join(p->directory, p->model);

		r = path ? may(path, R_OK) : -ENOMEM;
		if (r < 0)
			error_errno(err, r, "model %s", path ? path : p->model);
	}
	if (r == 0 && p->output_dir)
		r = check_output(p, err);
	return r;
}

int preflight_check(const struct preflight *what, struct error *err)
{
	struct disguise disguise = {0};
	struct statvfs disk;
	int r;

	r = disguise_enter(&disguise, what->user, err);
	if (r == 0)
		r = check_as_user(what, err);
	disguise_leave(&disguise);
	if (r < 0)
		return r;
	if (statvfs(what->log_dir, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < LOG_SPACE) {
		char text[16];

		return error_set(err, -ENOSPC, "only %s free for logs in %s",
		                 str_bytes(text, sizeof text, (uint64_t)disk.f_bavail * disk.f_frsize),
		                 what->log_dir);
	}
	return 0;
}
