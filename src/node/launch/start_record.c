/* SPDX-License-Identifier: Apache-2.0 */
/* Records of started attempts: made from spare files, and made spare again. */
#include "node/launch/start_record.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

/* A run takes the file of the run that was so many numbers before it, so that nothing has to know which spare
 * files there are. */
enum { SPARES = 64 };

static char *numbered_path(const char *directory, int number)
{
	return str_printf("%s/.spare-%d", directory, number);
}

int start_record_make_spares(const char *directory, struct error *err)
{
	for (int i = 0; i < SPARES; i++) {
		_cleanup_free_ char *path = numbered_path(directory, i);
		_cleanup_close_ int fd =
		    path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

		if (fd < 0)
			return path ? error_errno(err, -errno, "cannot make %s", path) : error_oom(err);
	}
	return 0;
}

/* The spare file of a record, state_dir/started/RUN.…; owned by the caller. */
static char *spare_path(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);
	const char *slash = strrchr(path, '/');
	long long run = strtoll(slash ? slash + 1 : path, NULL, 10);

	return copy ? numbered_path(dirname(copy), (int)(run % SPARES)) : NULL;
}

int start_record_make(const char *path, const struct start_record *content, struct error *err)
{
	_cleanup_free_ char *copy = strdup(path), *spare = spare_path(path), *text = NULL;
	_cleanup_json_ json_t *json = content ? start_record_encode(content) : NULL;
	_cleanup_close_ int fd = -1;
	int r;

	text = content ? json_to_string(json) : strdup("");
	if (!copy || !spare || !text)
		return error_oom(err);
	rename(spare, path); /* where there is one */
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "cannot record the start in %s", path);
	r = file_write_all(fd, text, strlen(text), err);
	if (r < 0)
		return error_prefix(err, "cannot record the start in %s", path);
	/* After a power failure the name is what counts: one sync, of the directory. */
	return file_sync_directory(dirname(copy), err);
}

void start_record_forget(const char *path)
{
	_cleanup_free_ char *spare = spare_path(path);

	/* What was recorded must not pass for the next one's, of which the name alone may be on disk. */
	if (!spare || truncate(path, 0) < 0 || rename(path, spare) < 0)
		unlink(path);
}
