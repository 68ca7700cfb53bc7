/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

/* The last run's name, as much of it as a name may have; "" where there was none. */
static void read_mark(int fd, char *buf, size_t size)
{
	ssize_t n = pread(fd, buf, size - 1, 0);

	buf[MAX(n, 0)] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
}

int claim_take(const char *directory, const char *run, int *out, bool *ours, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, CLAIM_FILE);
	_cleanup_close_ int fd = -1;
	char mark[128];

	if (!path)
		return error_oom(err);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		read_mark(fd, mark, sizeof(mark));
		return error_set(err, -EBUSY, "output.dir %s is being written by %s%s; choose another",
		                 directory, *mark ? "run " : "another run", mark);
	}
	read_mark(fd, mark, sizeof(mark));
	*ours = !strcmp(mark, run ? run : "");
	*out = fd;
	fd = -1;
	return 0;
}

int claim_mark(int fd, const char *directory, const char *run, struct error *err)
{
	if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, directory);
	if (run && (file_write_all(fd, run, strlen(run), err) < 0 || file_write_all(fd, "\n", 1, err) < 0))
		return error_prefix(err, "%s/" CLAIM_FILE, directory);
	return fsync(fd) < 0 ? error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, directory) : 0;
}
