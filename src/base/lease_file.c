/* SPDX-License-Identifier: Apache-2.0 */
/* The file with the end of a lease: "UNTIL ENDING BOOT", a line that is always equally long. */
#include "base/lease_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/boot_id.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

enum { LINE_SIZE = 128 };

int lease_file_write(const char *path, const struct lease_end *end, struct error *err)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	char boot[BOOT_ID_SIZE], line[LINE_SIZE];
	int r;

	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	boot_id_read(boot);
	snprintf(line, sizeof(line), "%019.6f %013.6f %s\n", end->until, end->ending, boot);
	r = file_write_all(fd, line, strlen(line), err);
	if (r < 0)
		return error_prefix(err, "%s", path);
	return ftruncate(fd, (off_t)strlen(line)) < 0 ? error_errno(err, -errno, "cannot write %s", path) : 0;
}

int lease_file_read(const char *path, struct lease_end *end)
{
	char boot[BOOT_ID_SIZE], *until, *ending, *of, *rest;
	_cleanup_free_ char *text = NULL;
	int r = file_read(path, LINE_SIZE, &text, NULL, NULL);

	if (r < 0)
		return r == -ENOENT ? r : -EINVAL;
	rest = str_strip(text);
	until = strsep(&rest, " ");
	ending = strsep(&rest, " ");
	of = strsep(&rest, " ");
	if (!ending || rest || str_to_double(until, &end->until) < 0 ||
	    str_to_double(ending, &end->ending) < 0 || end->until <= 0 || end->ending < 0)
		return -EINVAL;
	boot_id_read(boot);
	return str_eq(of ? of : "", boot) ? 0 : -ESTALE;
}
