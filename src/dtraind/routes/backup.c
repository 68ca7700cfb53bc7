/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /v1/backup: a consistent copy of the live store. The store's thread copies it into a private file in
 * state_dir; the file, which has no name by then, is streamed to the caller. Nothing is written to a path
 * that a client names.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"
#include "cluster/store.h"
#include "controller/controller.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"

#define BACKUP_PREFIX "backup."

enum {
	CHUNK = 256 << 10,     /* read at a time, */
	BUFFERED_MAX = 1 << 20 /* until so much waits for the caller */
};

struct backup {
	struct daemon *daemon;
	struct http_request *request;
	struct http_stream *stream; /* once the copy is complete */
	struct store_backup *copy;
	char *path; /* of the copy while it grows; NULL: it has no name any more */
	int fd;
};

static void backup_free(struct backup *b)
{
	store_backup_free(b->copy);
	if (b->path)
		unlink(b->path);
	if (b->fd >= 0)
		close(b->fd);
	free(b->path);
	free(b);
}

static void on_closed(void *context)
{
	struct backup *b = context;

	b->daemon->backup = false;
	backup_free(b);
}

static void fail(struct backup *b, const char *message)
{
	struct http_request *r = b->request;

	log_err("backup: %s", message);
	http_request_on_close(r, NULL, NULL);
	on_closed(b);
	http_reply_error(r, 500, "store", "%s", message);
}

/* As much of the copy as the caller takes for now. */
static void stream_copy(void *context)
{
	struct backup *b = context;
	_cleanup_free_ char *chunk = malloc(CHUNK);
	ssize_t n = chunk ? 1 : -1;

	while (n > 0 && http_stream_pending(b->stream) < BUFFERED_MAX) {
		n = read(b->fd, chunk, CHUNK);
		if (n > 0)
			http_stream_write(b->stream, chunk, n);
	}
	if (n > 0)
		return;
	/* The end of the stream is the end of the request, and frees b. */
	if (n == 0)
		http_stream_end(b->stream);
	else
		http_stream_abort(b->stream);
}

static void on_copied(void *context, int code, const struct error *err)
{
	struct backup *b = context;

	if (code < 0) {
		fail(b, err->message);
		return;
	}
	store_backup_free(steal_pointer(b->copy));
	unlink(b->path);
	free(steal_pointer(b->path));
	b->stream = http_reply_stream(b->request, 200, "application/vnd.sqlite3");
	http_stream_on_drain(b->stream, stream_copy, b);
	stream_copy(b);
}

static int backup_begin(struct daemon *d, struct http_request *r, struct error *err)
{
	struct backup *b = calloc(1, sizeof(*b));
	int code;

	if (!b)
		return error_oom(err);
	b->daemon = d;
	b->request = r;
	b->fd = -1;
	b->path = str_printf("%s/" BACKUP_PREFIX "XXXXXX", d->settings->config->state_dir);
	if (b->path)
		b->fd = mkostemp(b->path, O_CLOEXEC);
	if (b->fd < 0) {
		code = error_errno(err, b->path ? -errno : -ENOMEM, "cannot make a file in %s",
		                   d->settings->config->state_dir);
		free(steal_pointer(b->path));
	} else
		code = controller_backup_begin(d->controller, b->path, on_copied, b, &b->copy, err);
	if (code < 0) {
		backup_free(b);
		return code;
	}
	d->backup = true;
	http_request_on_close(r, on_closed, b);
	return 0;
}

void backup_remove_leftovers(const char *state_dir)
{
	_cleanup_closedir_ DIR *dir = opendir(state_dir);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (str_starts(entry->d_name, BACKUP_PREFIX))
			unlinkat(dirfd(dir), entry->d_name, 0);
}

void route_backup(void *context, struct http_request *r)
{
	struct daemon *d = context;
	struct error err = ERROR_INIT;

	if (!caller_may(http_request_caller(r), 0))
		http_reply_error(r, 403, "not-allowed",
		                 "only administrators may copy the store: it holds the "
		                 "variables of all users");
	else if (d->backup)
		http_reply_error(r, 409, "busy", "the store is being copied already");
	else if (backup_begin(d, r, &err) < 0) {
		log_err("backup: %s", err.message);
		http_reply_error(r, 500, "store", "%s", err.message);
	}
}
