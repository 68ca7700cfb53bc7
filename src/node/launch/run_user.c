/* SPDX-License-Identifier: Apache-2.0 */
/* The user of a run: looked up on this machine, and handed to dtrain-launch. */
#include "node/launch/run_user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"

void run_user_free(struct run_user *user)
{
	if (!user)
		return;
	free(user->name);
	free(user->home);
	free(user->shell);
	free(user->groups);
	free(user);
}

int run_user_find(const char *name, uid_t uid, struct run_user **out, struct error *err)
{
	_cleanup_(run_user_freep) struct run_user *user = calloc(1, sizeof *user);
	_cleanup_free_ char *buf = malloc(65536);
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
	/* getgrouplist says how many there are where the room does not do. */
	for (;;) {
		int have = count;
		gid_t *groups = realloc(user->groups, count * sizeof *groups);

		if (!groups || !user->name || !user->home || !user->shell)
			return error_oom(err);
		user->groups = groups;
		if (getgrouplist(name, entry.pw_gid, groups, &count) >= 0)
			break;
		if (count <= have)
			count = have * 2;
	}
	user->group_count = count;
	*out = steal_pointer(user);
	return 0;
}

json_t *run_user_to_json(const struct run_user *user)
{
	json_t *groups = json_array();

	for (int i = 0; i < user->group_count; i++)
		json_array_append_new(groups, json_integer(user->groups[i]));
	return json_pack("{s:s,s:s,s:s,s:I,s:I,s:o,s:b}", "name", user->name, "home", user->home, "shell",
	                 user->shell, "uid", (json_int_t)user->uid, "gid", (json_int_t)user->gid, "groups",
	                 groups, "change", user->change);
}

int run_user_from_json(const json_t *json, struct run_user **out, struct error *err)
{
	_cleanup_(run_user_freep) struct run_user *user = calloc(1, sizeof *user);
	const json_t *groups = json_object_get(json, "groups");
	const char *name, *home, *shell;
	int64_t uid, gid;

	if (!user)
		return error_oom(err);
	if (json_need_string(json, "name", "user", &name, err) < 0 ||
	    json_need_string(json, "home", "user", &home, err) < 0 ||
	    json_need_string(json, "shell", "user", &shell, err) < 0 ||
	    json_need_int(json, "uid", "user", 0, (uid_t)-2, &uid, err) < 0 ||
	    json_need_int(json, "gid", "user", 0, (gid_t)-2, &gid, err) < 0)
		return -EINVAL;
	user->name = strdup(name);
	user->home = strdup(home);
	user->shell = strdup(shell);
	user->uid = uid;
	user->gid = gid;
	user->change = json_get_bool(json, "change", false);
	user->groups = calloc(json_array_size(groups) + 1, sizeof *user->groups);
	if (!user->name || !user->home || !user->shell || !user->groups)
		return error_oom(err);
	for (size_t i = 0; i < json_array_size(groups); i++)
		user->groups[user->group_count++] = json_integer_value(json_array_get(groups, i));
	*out = steal_pointer(user);
	return 0;
}
