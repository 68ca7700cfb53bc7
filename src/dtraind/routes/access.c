/* SPDX-License-Identifier: Apache-2.0 */
/* Which run a request is about, and whether its caller may touch it. */
#include "dtraind/routes/access.h"

#include <errno.h>
#include <unistd.h>

#include "base/str.h"
#include "controller/runs.h"

bool caller_may(const struct http_caller *caller, int64_t uid)
{
	return caller->uid >= 0 && (caller->uid == uid || caller->uid == 0 || caller->uid == geteuid());
}

/* Both sides with their uids: the same user may have another one on the node that the call comes from. */
static void refuse(struct http_request *r, const struct run *run)
{
	const struct http_caller *caller = http_request_caller(r);
	const char *owner = run->user ? run->user : "?", *user = caller->user ? caller->user : "?";

	http_reply_error(
	    r, 403, "not-allowed",
	    "run %lld is of %s (uid %lld): only its owner and root may do this, and the caller is %s "
	    "(uid %lld)%s",
	    (long long)run->id, owner, (long long)run->uid, user, (long long)caller->uid,
	    str_eq(run->user, caller->user) ? "; a user needs the same uid on all nodes" : "");
}

const struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned)
{
	const char *text = http_request_capture(r, 0);
	struct error err = ERROR_INIT;
	const struct run *run = NULL;
	int64_t id;

	*owned = NULL;
	if (str_to_int64(text, 1, INT64_MAX, &id) < 0) {
		http_reply_error(r, 404, "no-such-run", "there is no run %s: runs have numbers", text);
		return NULL;
	}
	if (controller_find_run(c, id, &run, owned, &err) < 0) {
		if (err.code == -ENOENT)
			http_reply_error(r, 404, "no-such-run", "%s", err.message);
		else
			http_reply_error(r, 500, "store", "%s", err.message);
		return NULL;
	}
	if (own && !caller_may(http_request_caller(r), run->uid)) {
		refuse(r, run);
		run_free(*owned);
		*owned = NULL;
		return NULL;
	}
	return run;
}
