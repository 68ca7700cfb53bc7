/* SPDX-License-Identifier: Apache-2.0 */
/* Which run a request is about, and whether its caller may touch it. */
#include "dtraind/routes/access.h"

#include <errno.h>
#include <unistd.h>

#include "base/str.h"
#include "controller/runs.h"
#include "dtraind/daemon.h"

bool caller_may(const struct http_caller *caller, int64_t uid)
{
	return caller->uid >= 0 &&
	       (caller->uid == uid || caller->uid == 0 || caller->uid == geteuid() || caller->admin);
}

bool caller_may_run(const struct http_caller *caller, const struct run *run)
{
	bool another = run->user && caller->user && !str_eq(run->user, caller->user);

	return caller_may(caller, another ? -1 : run->uid);
}

/* Both sides with name and uid: the same user may have another one of them on the node that the call comes
 * from. */
static void refuse(struct http_request *r, const struct run *run)
{
	const struct http_caller *caller = http_request_caller(r);
	const char *owner = run->user ? run->user : "?", *user = caller->user ? caller->user : "?";

	http_reply_error(r, 403, "not-allowed",
	                 "run %lld is of %s (uid %lld): only its owner and administrators may do this, and "
	                 "the caller is %s (uid %lld)%s",
	                 (long long)run->id, owner, (long long)run->uid, user, (long long)caller->uid,
	                 str_eq(run->user, caller->user) ? "; a user needs the same uid on all nodes"
	                 : run->uid == caller->uid       ? "; a uid needs the same name on all nodes"
	                                                 : "");
}

void reply_not_taken(struct http_request *r, const char *code, const struct error *err)
{
	bool memory = err->code == -ENOMEM;

	http_reply_error(r, memory ? 500 : 400, memory ? "out-of-memory" : code, "%s", err->message);
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
	if (own && !caller_may_run(http_request_caller(r), run)) {
		refuse(r, run);
		run_free(*owned);
		*owned = NULL;
		return NULL;
	}
	return run;
}

static bool has_rank(struct daemon *d, struct http_request *r, const char *node)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *run;
	int64_t id;

	if (str_to_int64(http_request_capture(r, 0), 1, INT64_MAX, &id) < 0 ||
	    controller_find_run(d->controller, id, &run, &owned, NULL) < 0)
		return false;
	for (size_t i = 0; i < run->rank_count; i++)
		if (str_eq_host(run->ranks[i].node, node))
			return true;
	for (size_t i = 0; i < run->lost_count; i++)
		if (str_eq_host(run->lost[i].record.node, node))
			return true;
	return false;
}

bool refuse_forwarded(struct daemon *d, struct http_request *r, bool by_rank)
{
	const struct http_caller *caller = http_request_caller(r);
	const struct hosts *hosts = d->settings->hosts;
	const struct host *host = caller->node ? hosts_find(hosts, caller->node) : NULL;

	if (!hosts->restricts_users || !caller->peer || caller->uid < 0 || (host && host->submit) ||
	    (by_rank && host && has_rank(d, r, host->name)))
		return false;
	http_reply_error(r, 403, "not-allowed",
	                 "node %s is not marked with submit in the hosts file of %s: the controller takes "
	                 "this from the users of marked hosts only",
	                 host ? host->name : "?", d->settings->name);
	return true;
}
