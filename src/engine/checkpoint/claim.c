/* SPDX-License-Identifier: Apache-2.0 */
/* Takes, marks and checks the claim on an output directory. */
#include "engine/checkpoint/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lease_file.h"
#include "base/str.h"

#define EARLIER_MAX  64  /* runs that the file lists besides the last one */
#define RUN_TEXT_MAX 160 /* a run's number and its cluster */

/* The first line of the file, "ATTEMPT.EPOCH RUN CLUSTER", names the run that writes in the directory or was
 * the last to do so. The runs before it follow, the newest first. A line is "ATTEMPT RUN" where the cluster
 * is not known, and where a release wrote it that did not write clusters. */
struct mark {
	char text[8192];
	/* In text, with its cluster; "" where no run has marked the directory, or a run without a name. */
	const char *run;
	int64_t attempt, epoch;
	char *earlier; /* in text: the other lines */
};

static void read_mark(int fd, struct mark *m)
{
	ssize_t n = pread(fd, m->text, sizeof(m->text) - 1, 0);
	size_t line;
	char *end;

	m->text[MAX(n, 0)] = '\0';
	line = strcspn(m->text, "\n");
	m->earlier = m->text + line + (m->text[line] == '\n');
	m->text[line] = '\0';
	m->attempt = strtoll(m->text, &end, 10);
	m->epoch = *end == '.' ? strtoll(end + 1, &end, 10) : 0;
	m->run = *end == ' ' ? end + 1 : "";
}

/* The run as the file names it: "17 CLUSTER". Run 17 of another cluster is another run. */
static const char *run_text(const struct claim *c, char *buf, size_t size)
{
	bool cluster = c->cluster && *c->cluster;

	snprintf(buf, size, "%s%s%s", c->run ? c->run : "", cluster ? " " : "", cluster ? c->cluster : "");
	return buf;
}

/* The length of the run's number, which a message shows without the cluster. */
static int number_length(const struct mark *m)
{
	return (int)strcspn(m->run, " ");
}

/* Whether the run of a line is the run of the claim. A line without cluster and epoch may have been written
 * by a release that did not write them: a later attempt, started after an upgrade, finds such a line of its
 * own run, and then the number alone decides. A first attempt cannot find a line of its own run. */
static bool is_run(const struct claim *c, const char *run, size_t len, int64_t epoch)
{
	char buf[RUN_TEXT_MAX];
	const char *text = run_text(c, buf, sizeof(buf));

	if (strlen(text) == len && !memcmp(run, text, len))
		return true;
	return c->attempt > 1 && epoch == 0 && len > 0 && c->run && strlen(c->run) == len &&
	       !memcmp(run, c->run, len);
}

/* Whether one of the lines of `earlier` names the run of the claim. */
static bool wrote_earlier(const struct mark *m, const struct claim *c)
{
	for (const char *line = m->earlier; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		const char *name = line + strcspn(line, " \n");
		size_t len = strcspn(line, "\n") - (size_t)(name - line);
		const char *dot = memchr(line, '.', (size_t)(name - line));

		if (len > 1 && is_run(c, name + 1, len - 1, dot ? strtoll(dot + 1, NULL, 10) : 0))
			return true;
	}
	return false;
}

static char *claim_path(const struct claim *c)
{
	return str_path_join(c->directory, CLAIM_FILE);
}

static bool same_run(const struct claim *c, const struct mark *m)
{
	return is_run(c, m->run, strlen(m->run), m->epoch);
}

/* Whether the run of the claim has marked the directory in an attempt before this one. */
static bool is_earlier(const struct claim *c, const struct mark *m)
{
	return c->run && same_run(c, m) && m->epoch <= c->epoch && m->attempt < c->attempt;
}

static bool lock(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* Whether this attempt may resume from the files in the directory, and write there. */
static int check_mark(const struct claim *c, const struct mark *m, struct error *err)
{
	if (!c->run)
		return 0;
	if (same_run(c, m) && m->epoch > c->epoch)
		return error_set(
		    err, -ESTALE,
		    "output.dir %s belongs to this run as of epoch %lld of the cluster; this is %lld",
		    c->directory, (long long)m->epoch, (long long)c->epoch);
	if (same_run(c, m) && m->attempt > c->attempt)
		return error_set(err, -ESTALE,
		                 "output.dir %s belongs to attempt %lld of this run; this is %lld",
		                 c->directory, (long long)m->attempt, (long long)c->attempt);
	/* The files are now those of a newer run. This one must not resume from them, and must not write. */
	if (c->attempt > 1 && !same_run(c, m) && wrote_earlier(m, c))
		return error_set(
		    err, -ESTALE,
		    "output.dir %s belongs to run %.*s, which began to write there after this run did",
		    c->directory, number_length(m), m->run);
	return 0;
}

/* Opens the file again, since a network file system fetches its present contents only then. */
static int read_mark_now(const struct claim *c, struct mark *m, struct error *err)
{
	_cleanup_free_ char *path = claim_path(c);
	_cleanup_close_ int fd = -1;

	if (!path)
		return error_oom(err);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	read_mark(fd, m);
	return 0;
}

int claim_take(const struct claim *c, int *out, bool *ours, struct error *err)
{
	_cleanup_free_ char *path = claim_path(c);
	_cleanup_close_ int fd = -1;
	struct mark m;
	bool free_now;
	int r;

	if (!path)
		return error_oom(err);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	free_now = lock(fd);
	read_mark(fd, &m);
	if (!free_now && !is_earlier(c, &m))
		return error_set(err, -EBUSY, "output.dir %s is being written by %s%.*s; choose another",
		                 c->directory, *m.run ? "run " : "another run", number_length(&m), m.run);
	r = check_mark(c, &m, err);
	if (r < 0)
		return r;
	*ours = same_run(c, &m);
	*out = fd;
	fd = -1;
	return 0;
}

static void add_line(struct strbuf *text, int64_t attempt, int64_t epoch, const char *run)
{
	strbuf_addf(text, "%lld", (long long)attempt);
	if (epoch)
		strbuf_addf(text, ".%lld", (long long)epoch);
	strbuf_addf(text, " %s\n", run);
}

int claim_mark(const struct claim *c, int fd, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	struct mark m;
	char buf[RUN_TEXT_MAX];
	int lines = 0, r;
	ssize_t n;

	/* Where the file system has no locks, claim_take does not exclude other processes: one may have
	 * marked the directory since. */
	if ((r = read_mark_now(c, &m, err)) < 0 || (r = check_mark(c, &m, err)) < 0)
		return r;
	add_line(&text, c->attempt, c->epoch, run_text(c, buf, sizeof(buf)));
	if (*m.run && !same_run(c, &m))
		add_line(&text, m.attempt, m.epoch, m.run);
	for (char *rest = m.earlier, *line; lines < EARLIER_MAX && (line = strsep(&rest, "\n")) && *line;
	     lines++)
		strbuf_addf(&text, "%s\n", line);
	if (text.failed)
		return error_oom(err);
	/* The new text is written over the old one, and the length is set last. If the disk is full or the
	 * process ends in between, the first line is complete nevertheless. */
	n = pwrite(fd, text.data, text.len, 0);
	if (n >= 0 && (size_t)n < text.len)
		errno = ENOSPC;
	if (n < 0 || (size_t)n < text.len || ftruncate(fd, (off_t)text.len) < 0)
		return error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, c->directory);
	return fsync(fd) < 0 ? error_errno(err, -errno, "cannot write %s/" CLAIM_FILE, c->directory) : 0;
}

/* Only a file that is not there means that the lease has no end. */
static int check_lease(const struct claim *c, struct error *err)
{
	struct lease_end end;
	int r = c->lease ? lease_file_read(c->lease, &end) : -ENOENT;

	/* The service makes the file and then writes it: it may be read empty in between. */
	if (r == -EINVAL) {
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		r = lease_file_read(c->lease, &end);
	}
	if (r == -ENOENT || (r == 0 && clock_seconds(CLOCK_BOOTTIME) < end.until))
		return 0;
	if (r < 0)
		return error_set(err, -ESTALE,
		                 "output.dir %s: %s %s, so that it is not known whether the lease of this "
		                 "attempt has run out: nothing more is saved here",
		                 c->directory, c->lease,
		                 r == -ESTALE ? "is of an earlier boot of this node"
		                              : "cannot be read as the end of a lease");
	return error_set(
	    err, -ESTALE,
	    "output.dir %s: this node has not reached its controller for so long that the lease of "
	    "this attempt has run out: nothing more is saved here",
	    c->directory);
}

int claim_check(const struct claim *c, int fd, struct error *err)
{
	struct mark m;
	int r = check_lease(c, err);

	/* Where a process of an earlier attempt had the lock, it may have ended since. */
	if (fd >= 0)
		(void)lock(fd);
	if (r < 0 || (r = read_mark_now(c, &m, err)) < 0)
		return r;
	if (!same_run(c, &m) || m.attempt != c->attempt || m.epoch != c->epoch)
		return error_set(
		    err, -ESTALE,
		    "attempt %lld of run %.*s writes in output.dir %s now: nothing more is saved here",
		    (long long)m.attempt, *m.run ? number_length(&m) : 1, *m.run ? m.run : "?", c->directory);
	return 0;
}
