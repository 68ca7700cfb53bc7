/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a rank's log as a stream, and follows what is appended. */
#include "node/log_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	TAIL_MAX = 16 << 20,
	BLOCK_MAX = 64 << 10, /* a hole ends with a block of the file system */
};

struct log_reader {
	int fd;
	off_t offset;
	off_t begin; /* of the first data, behind a hole */
	bool follow, finished;
	size_t zeros; /* so many that come next may belong to a hole that was passed over */
	bool waiting; /* the last read gave -EAGAIN: a wakeup is due */
	sd_event_source *changes, *wake;
	log_wakeup_fn wakeup;
	void *context;
};

void log_reader_close(struct log_reader *reader)
{
	sd_event_source_disable_unref(reader->changes);
	sd_event_source_disable_unref(reader->wake);
	if (reader->fd >= 0)
		close(reader->fd);
	free(reader);
}

/* Where the last `lines` lines begin, as far as TAIL_MAX reaches back: the file is a user's, who may have
 * made a hole of a terabyte of it. A last line without its newline counts as one. */
static off_t find_tail(int fd, off_t size, int64_t lines)
{
	char buf[8192];
	off_t end = size;

	if (lines == 0)
		return size;
	while (end > 0 && size - end < TAIL_MAX) {
		size_t want = end < (off_t)sizeof buf ? (size_t)end : sizeof buf;
		ssize_t n = pread(fd, buf, want, end - want);

		if (n != (ssize_t)want)
			return 0;
		for (ssize_t i = n - 1; i >= 0; i--)
			if (buf[i] == '\n' && end - n + i + 1 < size && --lines == 0)
				return end - n + i + 1;
		end -= n;
	}
	return end;
}

static int on_wake(sd_event_source *source, void *context)
{
	struct log_reader *reader = context;

	reader->waiting = false;
	reader->wakeup(reader->context);
	return 0;
}

/* The reader may close itself in its wakeup; sd-event allows that within a callback. */
static int on_change(sd_event_source *source, const struct inotify_event *event, void *context)
{
	struct log_reader *reader = context;

	if (!reader->waiting)
		return 0;
	return on_wake(source, context);
}

int log_reader_open(sd_event *event, const char *path, int64_t tail, bool follow, log_wakeup_fn wakeup,
                    void *context, struct log_reader **out, struct error *err)
{
	_cleanup_(log_reader_closep) struct log_reader *reader = calloc(1, sizeof *reader);
	struct stat st;
	int r;

	if (!reader)
		return error_oom(err);
	reader->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (reader->fd < 0 || fstat(reader->fd, &st) < 0)
		return error_errno(err, -errno, "cannot read log %s", path);
	reader->follow = follow;
	reader->wakeup = wakeup;
	reader->context = context;
	if (tail >= 0)
		reader->offset = find_tail(reader->fd, st.st_size, tail);
	if (follow) {
		r = sd_event_add_inotify(event, &reader->changes, path, IN_MODIFY, on_change, reader);
		if (r >= 0)
			r = sd_event_add_defer(event, &reader->wake, on_wake, reader);
		if (r < 0)
			return error_errno(err, r, "cannot follow log %s", path);
		sd_event_source_set_enabled(reader->wake, SD_EVENT_OFF);
	}
	*out = steal_pointer(reader);
	return 0;
}

void log_reader_seek(struct log_reader *reader, int64_t offset)
{
	struct stat st;

	reader->offset = fstat(reader->fd, &st) == 0 && st.st_size >= offset ? offset : 0;
}

int64_t log_reader_position(const struct log_reader *reader)
{
	return reader->offset;
}

/* The oldest part of a log may be a hole (log_quota.h), and a user may have made one anywhere. */
static void pass_hole(struct log_reader *reader)
{
	off_t begin = lseek(reader->fd, 0, SEEK_DATA), data = lseek(reader->fd, reader->offset, SEEK_DATA);

	if (data <= reader->offset && begin <= reader->begin)
		return;
	reader->begin = MAX(reader->begin, begin);
	reader->offset = MAX(reader->offset, data);
	reader->zeros = BLOCK_MAX;
}

/* Of what was read behind a hole, zeros at the beginning are a part of it. Returns how much is left. */
static size_t drop_zeros(struct log_reader *reader, char *buf, size_t len)
{
	size_t n = 0;

	while (n < len && n < reader->zeros && buf[n] == '\0')
		n++;
	reader->zeros = n == len ? reader->zeros - n : 0;
	memmove(buf, buf + n, len - n);
	return len - n;
}

ssize_t log_reader_read(struct log_reader *reader, void *buf, size_t size)
{
	for (;;) {
		struct stat st;
		ssize_t n;

		pass_hole(reader);
		n = pread(reader->fd, buf, size, reader->offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n > 0) {
			reader->offset += n;
			n = (ssize_t)drop_zeros(reader, buf, (size_t)n);
			if (n == 0)
				continue;
			return n;
		}
		/* Cut short by its owner: from the start again. */
		if (fstat(reader->fd, &st) == 0 && st.st_size < reader->offset) {
			reader->offset = 0;
			continue;
		}
		if (!reader->follow || reader->finished)
			return 0;
		reader->waiting = true;
		return -EAGAIN;
	}
}

void log_reader_finish(struct log_reader *reader)
{
	reader->finished = true;
	if (reader->waiting && reader->wake)
		sd_event_source_set_enabled(reader->wake, SD_EVENT_ONESHOT);
}
