/* SPDX-License-Identifier: Apache-2.0 */
/* The oldest part of a log becomes a hole. */
#include "node/log_quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { LINE_MAX_BYTES = 64 << 10 }; /* a longer line is cut in its middle */

/* Where the first line begins at or after `offset`. */
static off_t next_line(int fd, off_t offset)
{
	char buf[4096];

	for (off_t at = offset - 1; at < offset + LINE_MAX_BYTES;) {
		ssize_t n = pread(fd, buf, sizeof(buf), at);
		const char *end = n > 0 ? memchr(buf, '\n', (size_t)n) : NULL;

		if (end)
			return at + (end - buf) + 1;
		if (n <= 0)
			break;
		at += n;
	}
	return offset;
}

int log_quota_apply(const char *path, int64_t quota, int64_t *removed, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char notice[200];
	struct stat st;
	off_t end;
	int len;

	*removed = 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return error_errno(err, -errno, "cannot shorten log %s", path);
	if (!S_ISREG(st.st_mode) || st.st_nlink > 1 || (int64_t)st.st_blocks * 512 <= quota)
		return 0;
	/* More than is too much, so that this happens once for many lines. */
	end = st.st_size - quota / 4 * 3;
	end = end > (off_t)sizeof(notice) ? next_line(fd, end) : 0;
	len = snprintf(notice, sizeof(notice),
	               "[dtrain: %lld bytes before this line were removed: log_quota is %g MiB]\n",
	               (long long)end, (double)quota / (1 << 20));
	if (end < (off_t)sizeof(notice))
		return 0;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end) < 0)
		return error_errno(err, -errno, "cannot remove the oldest part of log %s", path);
	*removed = end;
	return pwrite(fd, notice, (size_t)len, end - len) == len
	           ? 0
	           : error_errno(err, -EIO, "cannot write to log %s", path);
}
