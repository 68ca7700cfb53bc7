/* SPDX-License-Identifier: Apache-2.0 */
/* Work outside of the event loop, and user names that are looked up there. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/str.h"
#include "failing_memory.h"
#include "http/users.h"

/* Seconds by which the clocks are ahead. */
static atomic_int ahead;

int __real_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
	int r = __real_clock_gettime(id, out);

	out->tv_sec += ahead;
	return r;
}

static bool no_threads; /* no more of them can be started */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context)
{
	return no_threads ? EAGAIN : __real_pthread_create(thread, attributes, run, context);
}

/* The work of a thread in a test: it waits for `go` and counts its calls. */
struct job {
	sem_t go;
	atomic_int worked, released;
	int done, late; /* calls on the event loop: with data, and without */
};

static void job_work(void *data)
{
	struct job *j = *(struct job **)data;

	sem_wait(&j->go);
	j->worked++;
}

static void job_release(void *data)
{
	struct job *j = *(struct job **)data;

	free(data);
	j->released++;
}

static void job_done(void *context, void *data)
{
	struct job *j = context;

	if (data) {
		ck_assert_ptr_eq(*(struct job **)data, j);
		ck_assert_int_eq(j->worked, 1);
		j->done++;
	} else
		j->late++;
}

static struct background *job_start(sd_event *event, struct job *j, double deadline)
{
	struct job **data = malloc(sizeof(struct job *));
	struct background_task task = {deadline, job_work, job_done, j, job_release, data};
	struct background *b = NULL;
	struct error err = ERROR_INIT;

	*data = j;
	sem_init(&j->go, 0, 0);
	ck_ok(background_start(event, &task, &b, &err), &err);
	return b;
}

/* Runs the event loop until the number is reached. */
static void await(sd_event *event, const int *n, int value)
{
	double end = clock_monotonic() + 60;

	while (*n < value) {
		ck_assert(clock_monotonic() < end);
		ck_assert_int_ge(sd_event_run(event, 1000000), 0);
	}
}

START_TEST(work_is_handed_back_once)
{
	struct job j = {0};
	sd_event *event;

	ck_assert_int_ge(sd_event_new(&event), 0);
	job_start(event, &j, 60);
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_int_eq(j.done, 0);
	sem_post(&j.go);
	await(event, &j.done, 1);
	ck_assert_int_eq(j.released, 1);
	ck_assert_int_eq(j.late, 0);
	sd_event_unref(event);
}
END_TEST

START_TEST(work_beyond_its_deadline_is_handed_back_late)
{
	struct job j = {0};
	sd_event *event;

	ck_assert_int_ge(sd_event_new(&event), 0);
	job_start(event, &j, 0.01);
	await(event, &j.late, 1);
	ck_assert_int_eq(j.done, 0);
	ck_assert_int_eq(j.released, 0);
	sem_post(&j.go);
	await(event, &j.done, 1);
	ck_assert_int_eq(j.released, 1);
	ck_assert_int_eq(j.late, 1);
	sd_event_unref(event);
}
END_TEST

/* In a thread that goes on, and after it has ended. */
START_TEST(cancelled_work_is_not_handed_back)
{
	struct job j = {0};
	struct background *b;
	sd_event *event;
	double end = clock_monotonic() + 60;

	ck_assert_int_ge(sd_event_new(&event), 0);
	b = job_start(event, &j, 60);
	if (_i == 0)
		background_cancel(b);
	sem_post(&j.go);
	while (!j.worked)
		ck_assert(clock_monotonic() < end);
	if (_i == 1)
		background_cancel(b);
	while (!j.released)
		ck_assert(clock_monotonic() < end);
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_int_eq(j.done + j.late, 0);
	background_cancel(NULL);
	sd_event_unref(event);
}
END_TEST

/* A password database that answers when the test says so. */
static sem_t database;
static atomic_int asked;

static bool ask_database(uid_t uid, char *name)
{
	asked++;
	sem_wait(&database);
	sprintf(name, "user%d", (int)uid);
	return uid != 404;
}

static void count_change(void *context)
{
	++*(int *)context;
}

static struct users *start_users(sd_event **event, double deadline, double keep, int *changes)
{
	struct users_options options = {.deadline = deadline, .keep = keep, .look_up = ask_database};
	struct error err = ERROR_INIT;
	struct users *users;

	sem_init(&database, 0, 0);
	asked = 0;
	ck_assert_int_ge(sd_event_new(event), 0);
	ck_ok(users_create(*event, &options, count_change, changes, &users, &err), &err);
	return users;
}

START_TEST(a_name_is_looked_up_once)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name = "";

	for (int i = 0; i < 3; i++) {
		ck_assert(!users_find(users, 1000, &name));
		ck_assert(!users_find(users, 404, &name));
	}
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	ck_assert_int_eq(changes, 0);
	sem_post(&database);
	sem_post(&database);
	await(event, &changes, 2);
	/* Another thread that asks would have an answer now. */
	for (int i = 0; i < 4; i++)
		sem_post(&database);
	ck_assert_int_eq(sd_event_run(event, 200000), 0);
	for (int i = 0; i < 3; i++) {
		ck_assert(users_find(users, 1000, &name));
		ck_assert_str_eq(name, "user1000");
		ck_assert(users_find(users, 404, &name));
		ck_assert_ptr_null(name);
	}
	ck_assert_int_eq(asked, 2);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Requests do not wait for a database that does not answer, and only one thread waits for it; once it has
 * answered, the name is used. */
START_TEST(a_user_has_no_name_until_a_late_answer)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 0.01, 3600, &changes);
	const char *name = "";

	ck_assert(!users_find(users, 1000, &name));
	await(event, &changes, 1);
	ck_assert(users_find(users, 1000, &name));
	ck_assert_ptr_null(name);
	sem_post(&database);
	await(event, &changes, 2);
	ck_assert(users_find(users, 1000, &name));
	ck_assert_str_eq(name, "user1000");
	ck_assert_int_eq(asked, 1);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* A cached name is used while it is looked up again. */
START_TEST(an_old_name_is_looked_up_again)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name = "";

	ck_assert(!users_find(users, 1000, &name));
	sem_post(&database);
	await(event, &changes, 1);
	ahead = 3601;
	ck_assert(users_find(users, 1000, &name));
	ck_assert_str_eq(name, "user1000");
	sem_post(&database);
	ahead = 0;
	await(event, &changes, 2);
	ck_assert_int_eq(asked, 2);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Root's first group has root alone, without being named in it. */
START_TEST(members_of_a_group_are_administrators)
{
	static const struct {
		const char *group;
		bool admin;
	} cases[] = {
	    {"root", true}, {"nogroup", false}, {"no-such-group", false}, {"", false}, {NULL, false}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct users_options options = {.admin_group = cases[i].group};
		struct error err = ERROR_INIT;
		struct users *users;
		const char *name;
		sd_event *event;
		int changes = 0;

		ck_assert_int_ge(sd_event_new(&event), 0);
		ck_ok(users_create(event, &options, count_change, &changes, &users, &err), &err);
		ck_assert(!users_find(users, 0, &name));
		ck_assert(!users_is_admin(users, 0));
		await(event, &changes, 1);
		ck_assert(users_find(users, 0, &name));
		ck_assert_str_eq(name, "root");
		ck_assert_int_eq(users_is_admin(users, 0), cases[i].admin);
		ck_assert(!users_is_admin(users, 1));
		users_destroy(users);
		sd_event_unref(event);
	}
}
END_TEST

/* The end of the service does not wait for a look-up either. */
START_TEST(a_look_up_that_hangs_is_left_behind)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name;

	ck_assert(!users_find(users, 1000, &name));
	users_destroy(users);
	users_destroy(NULL);
	sd_event_unref(event);
	ck_assert_int_eq(changes, 0);
}
END_TEST

/* Many users: who is known is forgotten, who is waited for is not. */
START_TEST(who_called_long_ago_is_forgotten)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name;

	for (int i = 0; i < 20000; i++)
		sem_post(&database);
	for (uid_t uid = 1; uid <= 5000; uid++) {
		int before = changes;

		users_find(users, uid, &name);
		await(event, &changes, before + 1);
	}
	ck_assert(users_find(users, 5000, &name));
	ck_assert(!users_find(users, 1, &name));
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

static sem_t first_answer;

/* User 1 is looked up for as long as the test says. */
static bool ask_slowly_for_the_first(uid_t uid, char *name)
{
	asked++;
	if (uid == 1)
		sem_wait(&first_answer);
	sprintf(name, "user%d", (int)uid);
	return true;
}

/* 4096 users are kept: those who called last, and who is waited for. */
START_TEST(who_is_waited_for_or_calls_again_is_kept)
{
	struct users_options options = {.deadline = 60, .keep = 3600, .look_up = ask_slowly_for_the_first};
	struct error err = ERROR_INIT;
	struct users *users;
	const char *name;
	sd_event *event;
	int changes = 0;

	sem_init(&first_answer, 0, 0);
	asked = 0;
	ck_assert_int_ge(sd_event_new(&event), 0);
	ck_ok(users_create(event, &options, count_change, &changes, &users, &err), &err);
	ck_assert_int_eq(users_find(users, 1, &name), 0);
	for (uid_t uid = 2; uid <= 4200; uid++) {
		ck_assert_int_eq(users_find(users, uid, &name), 0);
		await(event, &changes, (int)uid - 1);
		if (uid == 4000)
			ck_assert_int_eq(users_find(users, 2, &name), 1);
	}
	sem_post(&first_answer);
	await(event, &changes, 4200);
	/* No one is forgotten for who is known already. */
	for (int i = 0; i < 200; i++)
		ck_assert_int_eq(users_find(users, 4200, &name), 1);
	ck_assert_int_eq(users_find(users, 1, &name), 1);
	ck_assert_str_eq(name, "user1");
	ck_assert_int_eq(users_find(users, 2, &name), 1);
	ck_assert_int_eq(users_find(users, 107, &name), 1);
	ck_assert_int_eq(asked, 4200);
	ck_assert_int_eq(users_find(users, 106, &name), 0);
	await(event, &changes, 4201);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* A user who is not found may have been added since: that is asked for again sooner than a name that is
 * known. */
START_TEST(who_was_not_found_is_looked_up_again_soon)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name;

	sem_post(&database);
	ck_assert_int_eq(users_find(users, 404, &name), 0);
	await(event, &changes, 1);
	sem_post(&database);
	ck_assert_int_eq(users_find(users, 1000, &name), 0);
	await(event, &changes, 2);
	ahead = 4;
	ck_assert_int_eq(users_find(users, 404, &name), 1);
	ahead = 3599;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ck_assert_int_eq(users_find(users, 404, &name), 1);
	ahead = 3601;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	sem_post(&database);
	sem_post(&database);
	await(event, &changes, 4);
	ahead = 0; /* Check measures how long the test has run */
	ck_assert_int_eq(asked, 4);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Who cannot be looked up just now is served without a name, and looked up again after some seconds. */
START_TEST(a_user_has_no_name_where_no_thread_can_be_started)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 3600, &changes);
	const char *name = "";

	no_threads = true;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ck_assert_ptr_null(name);
	no_threads = false;
	ahead = 4;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ahead = 0;
	ck_assert_int_eq(asked, 0);
	sem_post(&database);
	ahead = 6;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ck_assert_ptr_null(name);
	ahead = 0;
	await(event, &changes, 1);
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ck_assert_str_eq(name, "user1000");
	ck_assert_int_eq(asked, 1);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

static atomic_bool root_is_there;

static atomic_bool root_hangs;

static bool ask_for_root(uid_t uid, char *name)
{
	if (root_hangs)
		sem_wait(&database);
	strcpy(name, "root");
	return root_is_there;
}

/* With an hour of `keep`; 4000 has been looked up, and is one by the group of root. */
static struct users *start_administrator(sd_event **event, int *changes)
{
	struct users_options options = {
	    .deadline = 0.3, .keep = 3600, .look_up = ask_for_root, .admin_group = "root"};
	struct error err = ERROR_INIT;
	struct users *users;
	const char *name;

	sem_init(&database, 0, 0);
	root_is_there = true;
	root_hangs = false;
	ck_assert_int_ge(sd_event_new(event), 0);
	ck_ok(users_create(*event, &options, count_change, changes, &users, &err), &err);
	ck_assert_int_eq(users_find(users, 4000, &name), 0);
	await(*event, changes, 1);
	ck_assert(users_is_admin(users, 4000));
	return users;
}

/* The database may change: whoever loses the name loses the rights that it gives. */
START_TEST(a_user_who_is_removed_is_no_administrator_any_more)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_administrator(&event, &changes);
	const char *name;

	root_is_there = false;
	ahead = 3601; /* within a second time of that length it is what it was */
	ck_assert_int_eq(users_find(users, 4000, &name), 1);
	ck_assert_str_eq(name, "root");
	ck_assert(users_is_admin(users, 4000));
	ahead = 0;
	await(event, &changes, 2);
	ck_assert(!users_is_admin(users, 4000));
	ck_assert_int_eq(users_find(users, 4000, &name), 1);
	ck_assert_ptr_null(name);
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Who has not called for long is not what they were then. */
START_TEST(an_administrator_of_long_ago_is_looked_up_first)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_administrator(&event, &changes);
	const char *name;

	root_is_there = false;
	ahead = 7300;
	ck_assert_int_eq(users_find(users, 4000, &name), 0);
	ahead = 0;
	await(event, &changes, 2);
	ck_assert_int_eq(users_find(users, 4000, &name), 1);
	ck_assert_ptr_null(name);
	ck_assert(!users_is_admin(users, 4000));
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Where the database does not answer, no caller waits for longer than the deadline, and none is an
 * administrator. */
START_TEST(an_old_name_is_used_where_the_database_hangs)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_administrator(&event, &changes);
	const char *name;

	root_hangs = true;
	ahead = 7300;
	ck_assert_int_eq(users_find(users, 4000, &name), 0);
	await(event, &changes, 2);
	ck_assert_int_eq(users_find(users, 4000, &name), 1);
	ck_assert_str_eq(name, "root");
	ck_assert(!users_is_admin(users, 4000));
	/* Hours later it still does not answer. */
	ahead = 20000;
	ck_assert_int_eq(users_find(users, 4000, &name), 1);
	ck_assert(!users_is_admin(users, 4000));
	ahead = 0;
	sem_post(&database);
	await(event, &changes, 3);
	ck_assert(users_is_admin(users, 4000));
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

/* Whose name cannot be looked up is not taken for a user without one, and is looked up with the next call. */
START_TEST(a_look_up_without_memory_is_no_answer)
{
	bool refused = true;

	for (long n = 1; refused; n++) {
		int changes = 0, found;
		sd_event *event;
		struct users *users = start_users(&event, 60, 3600, &changes);
		const char *name = "someone else";

		memory_refused = false;
		memory_left = n;
		found = users_find(users, 1000, &name);
		memory_left = 0;
		refused = memory_refused;
		ck_assert_int_eq(found, refused ? -ENOMEM : 0);
		ck_assert_ptr_null(name);
		ck_assert_int_eq(users_find(users, 1000, &name), 0);
		sem_post(&database);
		memory_left = 1; /* of the event loop, which takes the answer */
		await(event, &changes, 1);
		memory_left = 0;
		ck_assert_int_eq(users_find(users, 1000, &name), 1);
		ck_assert_str_eq(name, "user1000");
		ck_assert_int_eq(asked, 1);
		users_destroy(users);
		sd_event_unref(event);
	}
}
END_TEST

/* A name that is known stays where it cannot be looked up again. */
START_TEST(a_name_outlives_a_look_up_without_memory)
{
	int changes = 0;
	sd_event *event;
	struct users *users = start_users(&event, 60, 1e-9, &changes);
	const char *name = "";

	ck_assert_int_eq(users_find(users, 1000, &name), 0);
	sem_post(&database);
	await(event, &changes, 1);
	memory_left = 1;
	ck_assert_int_eq(users_find(users, 1000, &name), 1);
	ck_assert_int_eq(memory_left, 0);
	ck_assert_str_eq(name, "user1000");
	users_destroy(users);
	sd_event_unref(event);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("users");
	TCase *c = tcase_create("users");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, work_is_handed_back_once);
	tcase_add_test(c, work_beyond_its_deadline_is_handed_back_late);
	tcase_add_loop_test(c, cancelled_work_is_not_handed_back, 0, 2);
	tcase_add_test(c, a_name_is_looked_up_once);
	tcase_add_test(c, a_user_has_no_name_until_a_late_answer);
	tcase_add_test(c, an_old_name_is_looked_up_again);
	tcase_add_test(c, a_look_up_without_memory_is_no_answer);
	tcase_add_test(c, a_name_outlives_a_look_up_without_memory);
	tcase_add_test(c, members_of_a_group_are_administrators);
	tcase_add_test(c, a_look_up_that_hangs_is_left_behind);
	tcase_add_test(c, who_called_long_ago_is_forgotten);
	tcase_add_test(c, who_is_waited_for_or_calls_again_is_kept);
	tcase_add_test(c, who_was_not_found_is_looked_up_again_soon);
	tcase_add_test(c, a_user_has_no_name_where_no_thread_can_be_started);
	tcase_add_test(c, a_user_who_is_removed_is_no_administrator_any_more);
	tcase_add_test(c, an_administrator_of_long_ago_is_looked_up_first);
	tcase_add_test(c, an_old_name_is_used_where_the_database_hangs);
	return unit_run(s);
}
