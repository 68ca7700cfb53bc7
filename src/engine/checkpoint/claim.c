/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

/* The file's only line: "ATTEMPT RUN". */
struct mark {
	char text[160];
	const char *run; /* in text; "" where nobody has marked it, or a run without a name */
	int64_t attempt;
};

static void read_mark(int fd, struct mark *m)
{
	ssize_t n = pread(fd, m->text, sizeof(m->text) - 1, 0);
	char *end;

	m->text[MAX(n, 0)] = '\0';
	m->text[strcspn(m->text, "\n")] = '\0';
	m->attempt = strtoll(m->text, &end, 10);
	m->run = *end == ' ' ? end + 1 : "";
}

static char *claim_path(const struct claim *c)
{
	return str_path_join(c->directory, CLAIM_FILE);
}

static bool same_run(const struct claim *c, const struct mark *m)
{
	return !strcmp(m->run, c->run ? c->run : "");
}

int claim_take(const struct claim *c, int *out, bool *ours, struct error *err)
{
	_cleanup_free_ char *path = claim_path(c);
	_cleanup_close_ int fd = -1;
	struct mark m;

	if (!path)
		return error_oom(err);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		read_mark(fd, &m);
		return error_set(err, -EBUSY, "output.dir %s is being written by %s%s; choose another",
		                 c->directory, *m.run ? "run " : "another run", m.run);
	}
	read_mark(fd, &m);
	if (c->run && same_run(c, &m) && m.attempt > c->attempt)
		return error_set(err, -ESTALE,
		                 "output.dir %s belongs to attempt %lld of this run; this is %lld",
		                 c->directory, (long long)m.attempt, (long long)c->attempt);
	*ours = same_run(c, &m);
	*out = fd;
	fd = -1;
	return 0;
}

int claim_mark(const struct claim *c, int fd, struct error *err)
{
	_cleanup_free_ char *line = str_printf("%lld %s\n", (long long)c->attempt, c->run ? c->run : "");

	if (!line)
		return error_oom(err);
	if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, c->directory);
	if (file_write_all(fd, line, strlen(line), err) < 0)
		return error_prefix(err, "%s/" CLAIM_FILE, c->directory);
	return fsync(fd) < 0 ? error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, c->directory) : 0;
}

int claim_check(const struct claim *c, struct error *err)
{
	_cleanup_free_ char *path = claim_path(c);
	_cleanup_close_ int fd = -1;
	struct mark m;

	if (!path)
		return error_oom(err);
	/* Opened anew: that is when a network file system looks at what is there now. */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	read_mark(fd, &m);
	if (!same_run(c, &m) || m.attempt != c->attempt)
		return error_set(
		    err, -ESTALE,
		    "attempt %lld of run %s writes in output.dir %s now: nothing more is saved here",
		    (long long)m.attempt, *m.run ? m.run : "?", c->directory);
	return 0;
}
