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
static int give(int fd, uid_t uid, gid_t gid)
{
	return geteuid() == 0 ? fchown(fd, uid, gid) : 0;
}

/* Never through a link: a site may have chosen a directory in which users can write, too. */
static int open_directory(const char *path)
{
	return path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* As keep_spare has left it, which another user cannot make. */
static bool is_spare(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700;
}

static bool use_spare(const char *path, uid_t uid, gid_t gid)
{
	_cleanup_free_ char *spare = spare_path(path, uid);
	_cleanup_close_ int fd = open_directory(spare);

	if (fd < 0 || !is_spare(fd) || rename(spare, path) < 0)
		return false;
	if (give(fd, uid, gid) == 0)
		return true;
	rmdir(path);
	return false;
}

int tmp_dir_make(const char *path, uid_t uid, gid_t gid, struct error *err)
{
	int r = file_remove_tree(path, err);

	if (r < 0 || use_spare(path, uid, gid))
		return r;
	if (mkdir(path, 0700) < 0 || (geteuid() == 0 && lchown(path, uid, gid) < 0))
		return error_errno(err, -errno, "cannot make %s for temporary files", path);
	return 0;
}

/* Takes fd. */
static bool is_empty(int fd)
{
	_cleanup_closedir_ DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		close(fd);
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
	int fd = open_directory(path);

	if (fd < 0)
		return false;
	if (give(fd, 0, 0) < 0 || fchmod(fd, 0700) < 0 || flistxattr(fd, NULL, 0) != 0) {
		close(fd);
		return false;
	}
	return is_empty(fd) && spare && rename(path, spare) == 0;
}

pid_t tmp_dir_remove(const char *path, uid_t uid)
{
	struct stat st;
	sigset_t none;
	pid_t pid;

	/* An empty one, as most are, needs no process. */
	if (keep_spare(path, uid) || rmdir(path) == 0 || lstat(path, &st) < 0)
		return 0;
	pid = fork();
	if (pid == 0) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		_exit(file_remove_tree(path, NULL) < 0);
	}
	return pid < 0 ? 0 : pid;
}
