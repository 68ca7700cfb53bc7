/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run: looked up on this machine, and handed to dtrain-launch. */
#include "node/launch/run_user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void run_user_free(struct run_user *user)
{
	if (!user)
		return;
	run_user_release(user);
	free(user);
}

int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err)
{
	_cleanup_(run_user_freep) struct run_user *user = calloc(1, sizeof *user);
	_cleanup_free_ char *buf = malloc(65536);
	_cleanup_free_ gid_t *groups = NULL;
	struct passwd entry, *found = NULL;
	int r, count = 64;

	if (!user || !buf)
		return error_oom(err);
	r = getpwnam_r(name, &entry, buf, 65536, &found);
	if (!found && r != 0 && r != ENOENT)
		return error_errno(err, -r, "cannot look up user '%s'", name);
	if (!found)
		return error_set(err, -EPERM, "no user '%s' (uid %u)", name, (unsigned)uid);
	if (entry.pw_uid != uid)
		return error_set(err, -EPERM, "user '%s' has uid %u here, but %u where the run was submitted",
		                 name, (unsigned)entry.pw_uid, (unsigned)uid);
	user->uid = uid;
	user->gid = entry.pw_gid;
	user->change = geteuid() == 0;
	if (!user->change && uid != geteuid())
		return error_set(err, -EPERM,
		                 "dtraind does not run as root here and cannot start programs as '%s'", name);
	user->name = strdup(name);
	user->home = strdup(entry.pw_dir && *entry.pw_dir ? entry.pw_dir : "/");
	user->shell = strdup(entry.pw_shell && *entry.pw_shell ? entry.pw_shell : "/bin/sh");
	if (!user->name || !user->home || !user->shell)
		return error_oom(err);
	/* getgrouplist returns the count where the room is too small. */
	for (;;) {
		int have = count;
		gid_t *room = realloc(groups, count * sizeof(*groups));

		if (!room)
			return error_oom(err);
		groups = room;
		if (getgrouplist(name, entry.pw_gid, groups, &count) >= 0)
			break;
		if (count <= have)
			count = have * 2;
	}
	user->groups = calloc(count + 1, sizeof(*user->groups));
	if (!user->groups)
		return error_oom(err);
	for (int i = 0; i < count; i++)
		user->groups[i] = groups[i];
	user->group_count = count;
	*out = steal_pointer(user);
	return 0;
}
