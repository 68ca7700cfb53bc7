/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and removes the directory for temporary files of an attempt. */
#include "node/launch/tmp_dir.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

int tmp_dir_make(const char *path, uid_t uid, gid_t gid, struct error *err)
{
	int r = file_remove_tree(path, err);

	if (r < 0)
		return r;
	if (mkdir(path, 0700) < 0 || (geteuid() == 0 && lchown(path, uid, gid) < 0))
		return error_errno(err, -errno, "cannot make %s for temporary files", path);
	return 0;
}

pid_t tmp_dir_remove(const char *path)
{
	struct stat st;
	sigset_t none;
	pid_t pid;

	/* An empty one, as most are, needs no process. */
	if (rmdir(path) == 0 || lstat(path, &st) < 0)
		return 0;
	pid = fork();
	if (pid == 0) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		_exit(file_remove_tree(path, NULL) < 0);
	}
	return pid < 0 ? 0 : pid;
}
