/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and removes the directory for temporary files of an attempt. */
#include "node/launch/tmp_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

/* Where an empty directory of this user waits for their next attempt (start_record.h says why); owned by the
 * caller. It is never given to another user: they could have kept a watch on it. */
static char *spare_path(const char *path, uid_t uid)
{
	_cleanup_free_ char *copy = strdup(path);

	return copy ? str_printf("%s/.spare-%u", dirname(copy), (unsigned)uid) : NULL;
}

/* To the user, or back to root. Only root can give files away. */
static int give(const char *path, uid_t uid, gid_t gid)
{
	return geteuid() == 0 ? lchown(path, uid, gid) : 0;
}

static bool use_spare(const char *path, uid_t uid, gid_t gid)
{
	_cleanup_free_ char *spare = spare_path(path, uid);

	if (!spare || rename(spare, path) < 0)
		return false;
	if (give(path, uid, gid) == 0)
		return true;
	rmdir(path);
	return false;
}

int tmp_dir_make(const char *path, uid_t uid, gid_t gid, struct error *err)
{
	int r = file_remove_tree(path, err);

	if (r < 0 || use_spare(path, uid, gid))
		return r;
	if (mkdir(path, 0700) < 0 || give(path, uid, gid) < 0)
		return error_errno(err, -errno, "cannot make %s for temporary files", path);
	return 0;
}

static bool is_empty(const char *path)
{
	_cleanup_closedir_ DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			return false;
	return dir;
}

/* The directory becomes the spare one of its user, where there is nothing in it: no file, and no list of
 * access rights that the user has set. It is root's meanwhile, so that nothing comes into it. */
static bool keep_spare(const char *path, uid_t uid)
{
	_cleanup_free_ char *spare = spare_path(path, uid);

	return spare && give(path, 0, 0) == 0 && chmod(path, 0700) == 0 && is_empty(path) &&
	       llistxattr(path, NULL, 0) == 0 && rename(path, spare) == 0;
}

pid_t tmp_dir_remove(const char *path, uid_t uid)
{
	struct stat st;
	sigset_t none;
	pid_t pid;

	/* An empty one, as most are, needs no process. */
	if (lstat(path, &st) < 0 || (S_ISDIR(st.st_mode) && (keep_spare(path, uid) || rmdir(path) == 0)))
		return 0;
	pid = fork();
	if (pid == 0) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		_exit(file_remove_tree(path, NULL) < 0);
	}
	return pid < 0 ? 0 : pid;
}
