/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON lines in the output directory, each line with its step. */
#include "worker/step_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "wire/metrics.h"

/* Removes the lines of steps after `step` from the text, and returns the bytes that are left. The mark of a
 * checkpoint may follow lines of later steps, with which the training went on while it was written. */
static size_t keep_lines(char *text, size_t len, int64_t step)
{
	size_t kept = 0, n;

	for (size_t at = 0; at < len; at += n) {
		const char *end = memchr(text + at, '\n', len - at);
		_cleanup_json_ json_t *j = NULL;
		struct metrics_step of;

		n = end ? (size_t)(end + 1 - (text + at)) : len - at;
		/* A line without its newline was being written when the run died. */
		if (!end || json_parse(text + at, n - 1, "", &j, NULL) < 0 ||
		    metrics_step_decode(j, &of, NULL) < 0)
			break;
		if (of.step > step)
			continue;
		memmove(text + kept, text + at, n);
		kept += n;
	}
	return kept;
}

/* Renames the file of an earlier run to PATH.N, with the first N that is free, so that a new run does not
 * remove what it has measured. A file without `kept` is overwritten instead. */
static int set_aside(const char *path, const char *kept, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = file_read(path, 0, &text, &len, err);

	if (r < 0 || !strstr(text, kept))
		return r;
	for (int n = 1;; n++) {
		_cleanup_free_ char *free_name = str_printf("%s.%d", path, n);

		if (!free_name)
			return error_oom(err);
		if (file_exists(free_name))
			continue;
		return rename(path, free_name) < 0
		           ? error_errno(err, -errno, "cannot rename %s to %s", path, free_name)
		           : 0;
	}
}

int step_lines_open(const char *path, int64_t resumed_step, const char *kept, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	int fd, r = 0;

	if (resumed_step > 0 && file_exists(path)) {
		r = file_read(path, 0, &text, &len, err);
		if (r < 0)
			return r;
		len = keep_lines(text, len, resumed_step);
	} else if (file_exists(path) && (r = set_aside(path, kept, err)) < 0) {
		return r;
	}
	/* A new file: a process of an earlier attempt, on a machine that was paused, may still write to the
	 * old one. */
	if (file_exists(path) && (r = file_write_atomic(path, text ? text : "", len, 0666, err)) < 0)
		return r;
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	return fd < 0 ? error_errno(err, -errno, "cannot write %s", path) : fd;
}

/* By one write(), so that only a crash leaves an incomplete line. */
int step_lines_write(int fd, const char *path, const char *text, struct error *err)
{
	_cleanup_free_ char *line = text ? str_printf("%s\n", text) : NULL;

	if (!line)
		return error_oom(err);
	return file_write_all(fd, line, strlen(line), err) < 0 ? error_prefix(err, "%s", path) : 0;
}
