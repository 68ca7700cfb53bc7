/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of user names, filled by look-ups in threads: one at a time for each user.
 *
 *   unknown --users_find--> looked up --answer, or deadline--> known --users_find after `keep`--> known, and
 *   looked up once more --answer--> known
 *
 * What is known of a user who has not called for twice `keep` is not used before the user is looked up again.
 * Where that takes longer than the deadline, the name is used, and the user is no administrator.
 */
#include "http/users.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

/* Users at a time; the one that has not called for the longest time is forgotten. */
enum { USERS_MAX = 4096 };

static const double RETRY_SECONDS = 5.0; /* after which one that was not found is looked up again */

struct look_up {
	uid_t uid;
	bool (*look_up)(uid_t uid, char *name);
	bool found, admin;
	char name[USERS_NAME_SIZE], admin_group[USERS_NAME_SIZE];
};

struct user {
	struct users *users;
	struct user *next; /* who called last comes first */
	uid_t uid;
	bool known, admin;
	bool late;                  /* the look-up that is under way has exceeded its deadline */
	double fresh;               /* monotonic: until then it is not looked up again */
	char name[USERS_NAME_SIZE]; /* "": none */
	struct background *look_up;
};

struct users {
	sd_event *event;
	struct users_options options; /* admin_group is below */
	char admin_group[USERS_NAME_SIZE];
	void (*changed)(void *context);
	void *context;
	struct user *list;
	size_t count;
};

enum { ENTRY_SIZE = 16384, GROUP_SIZE = 1 << 20 }; /* of the database; a group has its members' names */

static bool look_up_name(uid_t uid, char *name)
{
	struct passwd pw, *found = NULL;
	_cleanup_free_ char *buf = malloc(ENTRY_SIZE);

	if (!buf || getpwuid_r(uid, &pw, buf, ENTRY_SIZE, &found) != 0 || !found ||
	    strlen(found->pw_name) >= USERS_NAME_SIZE)
		return false;
	strcpy(name, found->pw_name);
	return true;
}

static bool find_group(const char *name, gid_t *gid)
{
	struct group group, *found = NULL;
	_cleanup_free_ char *buf = malloc(GROUP_SIZE);

	if (!buf || getgrnam_r(name, &group, buf, GROUP_SIZE, &found) != 0 || !found)
		return false;
	*gid = found->gr_gid;
	return true;
}

/* By the groups that a new login of the user would have. */
static bool is_member(const char *user, gid_t group)
{
	struct passwd pw, *found = NULL;
	_cleanup_free_ char *buf = malloc(ENTRY_SIZE);
	_cleanup_free_ gid_t *list = NULL;
	int count = 0;

	if (!buf || getpwnam_r(user, &pw, buf, ENTRY_SIZE, &found) != 0 || !found)
		return false;
	getgrouplist(user, found->pw_gid, NULL, &count);
	list = calloc((size_t)count + 1, sizeof(*list));
	if (!list || getgrouplist(user, found->pw_gid, list, &count) < 0)
		return false;
	for (int i = 0; i < count; i++)
		if (list[i] == group)
			return true;
	return false;
}

static void work(void *data)
{
	struct look_up *l = data;
	gid_t group;

	l->found = l->look_up(l->uid, l->name);
	l->admin =
	    l->found && l->admin_group[0] && find_group(l->admin_group, &group) && is_member(l->name, group);
}

static bool is_outdated(const struct user *u)
{
	return clock_monotonic() >= u->fresh + u->users->options.keep;
}

/* What was known before stays good, too. */
static void set_known(struct user *u, double seconds)
{
	u->known = true;
	u->fresh = clock_monotonic() + seconds;
}

/* There is no answer yet. A name of long ago is better than none, but the rights may be gone. */
static void keep_known(struct user *u)
{
	if (u->known && is_outdated(u))
		u->admin = false;
	set_known(u, RETRY_SECONDS);
}

static void on_looked_up(void *context, void *data)
{
	struct user *u = context;
	const struct look_up *l = data;

	if (l) {
		u->look_up = NULL;
		snprintf(u->name, sizeof(u->name), "%s", l->found ? l->name : "");
		u->admin = l->admin;
		set_known(u, l->found ? u->users->options.keep : RETRY_SECONDS);
	} else {
		log_warn("the password database has not said within %g s who has the uid %lld",
		         u->users->options.deadline, (long long)u->uid);
		u->late = true;
		keep_known(u);
	}
	u->users->changed(u->users->context);
}

/* -ENOMEM, where nothing is known of the user. */
static int start_look_up(struct user *u)
{
	struct look_up *l = calloc(1, sizeof(*l));
	struct error err = ERROR_INIT;
	struct background_task task = {.deadline = u->users->options.deadline,
	                               .work = work,
	                               .done = on_looked_up,
	                               .context = u,
	                               .release = free,
	                               .data = l};
	int r;

	u->late = false;
	if (l) {
		l->uid = u->uid;
		l->look_up = u->users->options.look_up;
		strcpy(l->admin_group, u->users->admin_group);
	}
	r = l ? background_start(u->users->event, &task, &u->look_up, &err) : error_oom(&err);
	if (r < 0)
		log_err("cannot look up who has the uid %lld: %s", (long long)u->uid, err.message);
	if (r == -ENOMEM && !u->known)
		return r;
	if (r < 0)
		keep_known(u);
	return 0;
}

static void user_free(struct user *u)
{
	background_cancel(u->look_up);
	free(u);
}

static struct user *find(struct users *users, uid_t uid)
{
	struct user **at = &users->list, *u;

	while (*at && (*at)->uid != uid)
		at = &(*at)->next;
	u = *at;
	if (u)
		*at = u->next;
	else {
		u = calloc(1, sizeof(*u));
		if (!u)
			return NULL;
		u->users = users;
		u->uid = uid;
		users->count++;
	}
	u->next = users->list;
	users->list = u;
	return u;
}

/* Who is waited for stays. */
static void forget_last(struct users *users)
{
	struct user **at = NULL, *u;

	for (struct user **p = &users->list; *p; p = &(*p)->next)
		if (!(*p)->look_up)
			at = p;
	if (!at || *at == users->list)
		return;
	u = *at;
	*at = u->next;
	users->count--;
	user_free(u);
}

int users_find(struct users *users, uid_t uid, const char **name)
{
	struct user *u = find(users, uid);
	int r = 0;

	*name = NULL;
	if (!u)
		return -ENOMEM;
	if (users->count > USERS_MAX)
		forget_last(users);
	if (!u->look_up && (!u->known || clock_monotonic() >= u->fresh))
		r = start_look_up(u);
	*name = u->name[0] ? u->name : NULL;
	return r < 0 ? r : u->known && !(u->look_up && !u->late && is_outdated(u));
}

bool users_is_admin(const struct users *users, uid_t uid)
{
	for (const struct user *u = users->list; u; u = u->next)
		if (u->uid == uid)
			return u->admin;
	return false;
}

int users_create(sd_event *event, const struct users_options *options, void (*changed)(void *context),
                 void *context, struct users **out, struct error *err)
{
	struct users *u = calloc(1, sizeof(*u));

	if (!u)
		return error_oom(err);
	u->event = sd_event_ref(event);
	if (options)
		u->options = *options;
	if (u->options.admin_group)
		snprintf(u->admin_group, sizeof(u->admin_group), "%s", u->options.admin_group);
	if (u->options.deadline == 0)
		u->options.deadline = 10;
	if (u->options.keep == 0)
		u->options.keep = 60;
	if (!u->options.look_up)
		u->options.look_up = look_up_name;
	u->changed = changed;
	u->context = context;
	*out = u;
	return 0;
}

void users_destroy(struct users *users)
{
	struct user *next;

	if (!users)
		return;
	for (struct user *u = users->list; u; u = next) {
		next = u->next;
		user_free(u);
	}
	sd_event_unref(users->event);
	free(users);
}
