/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Following a run: each change of the run is awaited, and once an attempt is running its log is read to the
 * end.
 *
 *   queued --(reason on stderr)--> starting --> running --(log on stdout)--> queued again, or ended
 *
 * A short attempt may be over before it was seen running: then its log is read after the end, or while the
 * run is queued again.
 */
#include "dtrain/follow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/stream.h"

struct follow {
	struct client *client;
	int64_t id;
	int rank;
	int64_t attempt;  /* whose log was read, 0: none */
	char *waits;      /* the reason that was printed last */
	bool open_line;   /* the log so far does not end with a newline */
	struct error err; /* why the newest log could not be read */
};

int follow_print(void *context, const char *data, size_t len, struct error *err)
{
	if (fwrite(data, 1, len, stdout) != len || fflush(stdout) != 0)
		return error_errno(err, -EIO, "cannot write the output");
	return 0;
}

static int print_log(void *context, const char *data, size_t len, struct error *err)
{
	struct follow *f = context;

	if (len > 0)
		f->open_line = data[len - 1] != '\n';
	return follow_print(NULL, data, len, err);
}

/* What comes after the log on stderr begins a line, where stdout is the same terminal or file. */
static void end_line(struct follow *f)
{
	struct stat out, err;

	if (f->open_line && fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
	    out.st_dev == err.st_dev && out.st_ino == err.st_ino)
		fputc('\n', stderr);
	f->open_line = false;
}

static void print_reason(struct follow *f, const struct run_view *run)
{
	const char *reason = run->reason;

	if (!reason || !*reason || str_eq(reason, f->waits))
		return;
	free(f->waits);
	f->waits = strdup(reason);
	client_fail(0, "run %lld is queued: %.*s", (long long)f->id, (int)strcspn(reason, "\n"), reason);
}

/* Of the newest attempt, unless it was read already. The exit status of a failure to write the output. */
static int read_log(struct follow *f, const struct run_view *run)
{
	int64_t attempt = run->attempt;
	const struct stream_request request = {.run = f->id,
	                                       .rank = f->rank,
	                                       .attempt = attempt,
	                                       .tail = -1,
	                                       .follow = true,
	                                       .piece = print_log,
	                                       .context = f};
	bool begun;
	int status;

	if (attempt <= f->attempt || run->rank_count == 0)
		return 0;
	f->err = (struct error){0};
	status = stream_read(f->client, &request, &begun, &f->err);
	end_line(f);
	/* A service that was away before the first byte is asked again after the next change of the run. */
	if (status != STATUS_UNREACHABLE || begun)
		f->attempt = attempt;
	if (ferror(stdout))
		return client_fail(EXIT_FAILURE, "%s", f->err.message);
	return 0;
}

static int follow(struct follow *f, struct run_view *run, json_t **raw)
{
	int64_t version = 0;

	for (;;) {
		int status = client_wait_run(f->client, f->id, true, version, run, raw);

		if (status != 0)
			return status;
		version = run->version;
		/* Also of an attempt that has failed before it was seen running, and after which the run is
		 * queued again. */
		if (run->state != RUN_STARTING)
			status = read_log(f, run);
		if (status == 0 && run->state == RUN_QUEUED)
			print_reason(f, run);
		if (status != 0 || run_view_final(run))
			return status;
		run_view_release(run);
		if (raw)
			json_decref(steal_pointer(*raw));
	}
}

int follow_run(struct client *client, int64_t id, int rank, struct run_view *run, json_t **raw)
{
	struct follow f = {.client = client, .id = id, .rank = rank};
	int status = follow(&f, run, raw);

	if (status == 0 && f.err.code && run->state == RUN_SUCCEEDED)
		client_fail(0, "the log could not be read to its end: %s", f.err.message);
	free(f.waits);
	return status;
}
