/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain backup: a copy of the controller's store, as the service streams it, into a file that is there as a
 * whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "http/local.h"

static int write_piece(void *context, const char *data, size_t len, struct error *err)
{
	return file_write_all(*(int *)context, data, len, err);
}

/* Everything up to the rename; the temporary name is the caller's to remove. */
static int fetch(struct client *client, int fd, struct error *err)
{
	int r;

	if ((r = http_local_open(client->socket, &client->http, err)) < 0 ||
	    (r = http_local_stream(client->http, "GET", "/v1/backup", write_piece, &fd, err)) < 0)
		return r;
	return fsync(fd) < 0 ? error_errno(err, -errno, "cannot write the copy") : 0;
}

int cmd_backup(struct client *client, int argc, char **argv)
{
	const struct usage usage = {"backup",
	                            "FILE",
	                            "Copies the controller's store, while the service runs, into FILE",
	                            "For administrators: the store holds the variables of all users.\n"
	                            "FILE is replaced as a whole. dtraind(8) says how to restore it.",
	                            NULL,
	                            0,
	                            1,
	                            1};
	_cleanup_free_ char *tmp = NULL, *directory = NULL;
	_cleanup_close_ int fd = -1;
	struct error err = ERROR_INIT;
	struct stat st;
	int first, r, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (lstat(argv[first], &st) == 0 && !S_ISREG(st.st_mode))
		return client_fail(EXIT_FAILURE, "cannot replace %s: not a regular file", argv[first]);
	tmp = str_printf("%s.XXXXXX", argv[first]);
	directory = strdup(argv[first]);
	if (!tmp || !directory)
		return client_fail(EXIT_FAILURE, "out of memory");
	fd = mkostemp(tmp, O_CLOEXEC); /* mode 0600 */
	if (fd < 0)
		return client_fail(EXIT_FAILURE, "cannot write %s: %s", argv[first], strerror(errno));
	r = fetch(client, fd, &err);
	if (r == 0 && rename(tmp, argv[first]) < 0)
		r = error_errno(&err, -errno, "cannot write %s", argv[first]);
	if (r == 0)
		return file_sync_directory(dirname(directory), &err) < 0
		           ? client_fail(EXIT_FAILURE, "%s", err.message)
		           : 0;
	unlink(tmp);
	return client_fail(r == -EREMOTEIO || client->http ? EXIT_FAILURE : STATUS_UNREACHABLE, "%s",
	                   err.message);
}
