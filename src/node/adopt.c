/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts of an earlier dtraind: their directories first, then the records of starts that have none. */
#include "node/adopt.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "node/started.h"

struct adoption {
	const struct attempt_owner *owner;
	const char *attempts_dir;
	struct attempts *attempts;
};

/* Whether this error says nothing about the attempt, whose ranks may be running. */
static bool says_nothing(int code)
{
	return code == -EHOSTUNREACH || code == -ENOMEM || code == -EMFILE || code == -ENFILE || code == -EIO;
}

static int adopt_directories(const struct adoption *a, struct error *err)
{
	struct dirent **list;
	int n = scandir(a->attempts_dir, &list, NULL, versionsort), r = 0;

	if (n < 0)
		return error_errno(err, -errno, "cannot read %s", a->attempts_dir);
	for (int i = 0; i < n; i++) {
		_cleanup_free_ char *dir = str_path_join(a->attempts_dir, list[i]->d_name);
		struct error why = ERROR_INIT;
		struct attempt *attempt;

		if (r == 0 && !dir)
			r = error_oom(err);
		if (list[i]->d_name[0] != '.' && r == 0) {
			int code = attempt_adopt(a->owner, dir, &attempt, &why);

			if (code == 0) {
				r = attempts_add(a->attempts, attempt, 0, err);
				if (r < 0)
					attempt_free(attempt);
			} else if (says_nothing(code)) {
				r = error_set(err, code, "%s: %s", dir, why.message);
			} else {
				/* Half made when dtraind was killed: nothing can run there yet. */
				log_warn("%s is left out: %s", dir, why.message);
				file_remove_tree(dir, NULL);
			}
		}
		free(list[i]);
	}
	free(list);
	return r;
}

/* A record of a start without the attempt that it is of. */
static int adopt_record(void *context, struct request *request, struct error *err)
{
	_cleanup_(request_freep) struct request *q = request;
	const struct adoption *a = context;
	_cleanup_free_ char *dir =
	    str_printf("%s/%lld.%lld", a->attempts_dir, (long long)q->run, (long long)q->attempt);
	struct attempt *attempt;
	int r;

	if (attempts_find(a->attempts, q->run, q->attempt))
		return 0;
	if (!dir)
		return error_oom(err);
	r = attempt_lost(a->owner, dir, q, &attempt, err);
	if (r < 0)
		return r;
	q = NULL;
	return attempts_add(a->attempts, attempt, 0, err);
}

int adopt_attempts(const struct attempt_owner *owner, const char *attempts_dir, const char *state_dir,
                   struct attempts *attempts, struct error *err)
{
	struct adoption a = {owner, attempts_dir, attempts};
	int r = adopt_directories(&a, err);

	return r < 0 ? r : started_each(state_dir, adopt_record, &a, err);
}
