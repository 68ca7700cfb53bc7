/* SPDX-License-Identifier: Apache-2.0 */
/* What users may have of a service. */
#include <errno.h>
#include <pwd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/submit.h"
#include "daemon_fixture.h"

static struct daemon_fixture f;

static void teardown(void)
{
	daemon_fixture_teardown(&f);
}

/* A user with limits: root has none. NULL: only the user of the test can ask, who has them. */
static const struct person *find_user(void)
{
	static struct person nobody;
	const struct passwd *pw = getpwnam("nobody");

	if (geteuid() != 0 || !pw)
		return NULL;
	nobody = (struct person){pw->pw_uid, pw->pw_gid, "nobody"};
	return &nobody;
}

static void refused(const struct person *who, int slots, int status, const char *words)
{
	_cleanup_free_ char *body =
	    str_printf("{\"config\":{\"task\":\"command\",\"command\":[\"true\"],"
	               "\"directory\":\"/\",\"resources\":{\"devices_per_node\":%d}}}",
	               slots);
	struct raw_request q = {.method = "POST", .target = "/v1/runs", .body = body};
	struct raw_answer a = daemon_ask(&f, who, &q);

	ck_assert_msg(a.status == status && strstr(a.body, words), "%d: %s", a.status, a.body);
	free(a.body);
}

START_TEST(a_user_has_limits)
{
	const struct person *user = find_user();
	struct raw_request cancel = {.method = "DELETE", .target = "/v1/runs/1"};
	_cleanup_json_ json_t *second = NULL;

	daemon_fixture_start(&f, &(struct daemon_setup){.more = "user_runs = 2; user_slots = 1;"});
	refused(user, 2, 409, "asks for 2 slots; the runs of a user may have 1 at once");
	ck_assert_int_eq(daemon_submit(&f, user, "sleep 1000", 1, 1), 1);
	daemon_await(&f, 1, "running");
	ck_assert_int_eq(daemon_submit(&f, user, "true", 1, 1), 2);
	refused(user, 1, 429, "\"too-many-runs\"");
	second = daemon_get(&f, user, "/v1/runs/2");
	ck_assert_str_eq(json_get_string(second, "state", ""), "queued");
	ck_assert_ptr_nonnull(strstr(json_get_string(second, "reason", ""), "they have 1 of 1 slots"));
	if (user) {
		ck_assert_int_eq(daemon_submit(&f, NULL, "true", 1, 1), 3);
		daemon_await(&f, 3, "succeeded");
	}
	free(daemon_ask(&f, user, &cancel).body);
	daemon_await(&f, 2, "succeeded");
}
END_TEST

/* What the file says at a HUP holds from then on, for runs that wait already, too. */
START_TEST(a_reload_changes_the_limits)
{
	const struct person *user = find_user();
	_cleanup_free_ char *text = NULL, *changed = NULL;
	char *at;

	daemon_fixture_start(&f, &(struct daemon_setup){.more = "user_runs = 2; user_slots = 1;"});
	ck_assert_int_eq(daemon_submit(&f, user, "exec sleep 1000", 1, 1), 1);
	ck_assert_int_eq(daemon_submit(&f, user, "true", 1, 1), 2);
	refused(user, 1, 429, "\"too-many-runs\"");
	ck_assert_int_eq(file_read(f.config, 0, &text, NULL, NULL), 0);
	at = strstr(text, "user_runs = 2; user_slots = 1;");
	ck_assert_ptr_nonnull(at);
	*at = '\0';
	changed = str_printf("%suser_runs = 1; user_slots = 2;", text);
	daemon_fixture_write(&f, "dtraind.conf", changed);
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	daemon_await(&f, 2, "succeeded");
	refused(user, 1, 429, "\"too-many-runs\"");
}
END_TEST

/* What etcd cannot hold; the store of one machine has no such limit. */
static bool too_large;

/* The same submission comes again before its run is on disk, and the first request is not answered by that.
 */
static bool repeated;
static submitted_fn submitted;

static void on_repeated(void *context, int64_t id, enum run_state state, const struct error *err)
{
	struct error again = ERROR_INIT;

	error_set(&again, -EALREADY, "it came again");
	submitted(context, id, state, &again);
}

int __real_controller_submit(struct controller *c, struct run *r, const char *config, submitted_fn done,
                             void *context, struct submission **out, struct error *err);
int __wrap_controller_submit(struct controller *c, struct run *r, const char *config, submitted_fn done,
                             void *context, struct submission **out, struct error *err);
int __wrap_controller_submit(struct controller *c, struct run *r, const char *config, submitted_fn done,
                             void *context, struct submission **out, struct error *err)
{
	submitted = done;
	if (!too_large)
		return __real_controller_submit(c, r, config, repeated ? on_repeated : done, context, out,
		                                err);
	run_free(r);
	return error_set(err, -E2BIG, "the run does not fit");
}

START_TEST(a_run_may_be_too_large_for_the_store)
{
	too_large = true; /* in the service, which is forked */
	daemon_fixture_start(&f, NULL);
	refused(NULL, 1, 413, "\"too-large\"");
	refused(NULL, 1, 413, "the run does not fit");
}
END_TEST

/* As whom the service takes itself to run, in memory that it shares with the test; -1: as it does. */
static volatile int *pretended;
static pid_t tester;

uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
	return pretended && *pretended >= 0 && getpid() != tester ? (uid_t)*pretended : __real_geteuid();
}

/* It can start programs as itself alone. */
START_TEST(a_service_of_an_ordinary_user_is_for_that_user)
{
	static const struct person other = {1, 1, "daemon"};
	const struct person *user = find_user();

	pretended = mmap(NULL, sizeof(*pretended), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*pretended = -1;
	tester = getpid();
	daemon_fixture_start(&f, NULL);
	if (!user) {
		printf("daemon_limits: only root can send requests as another user: not tested\n");
		return;
	}
	refused(user, 99, 409, "\"impossible\"");
	*pretended = (int)user->uid;
	refused(NULL, 1, 403,
	        "dtraind runs as an ordinary user here and can start programs as that user only");
	refused(&other, 1, 403, "dtraind runs as an ordinary user here");
	refused(user, 99, 409, "\"impossible\"");
	*pretended = -1;
}
END_TEST

START_TEST(a_submission_that_came_again_is_answered_there)
{
	repeated = true; /* in the service, which is forked */
	daemon_fixture_start(&f, NULL);
	refused(NULL, 1, 409, "\"repeated\"");
	refused(NULL, 1, 409, "it came again");
}
END_TEST

/* Posts a run with that line in its head, and returns its number. */
static int64_t post_with(const struct person *who, const char *header, int status, const char *code)
{
	static const char body[] =
	    "{\"config\":{\"task\":\"command\",\"command\":[\"true\"],\"directory\":\"/\"}}";
	struct raw_request q = {.method = "POST", .target = "/v1/runs", .header = header, .body = body};
	struct raw_answer a = daemon_ask(&f, who, &q);
	_cleanup_json_ json_t *json = json_loads(a.body, 0, NULL);
	int64_t id = json_get_int(json, "id", 0);

	ck_assert_msg(a.status == status && str_eq(a.code, code), "%s: %d %s: %s", header, a.status, a.code,
	              a.body);
	free(a.body);
	return id;
}

/* A key is one run of its user, also where the user has as many runs as it may have. */
START_TEST(a_submission_with_a_key_is_made_once)
{
	static const char key[] = "Dtrain-Key: 0_Az-9",
	                  long_key[] =
	                      "Dtrain-Key: 12345678901234567890123456789012345678901234567890123456789012345";
	const struct person *user = find_user();

	daemon_fixture_start(&f, &(struct daemon_setup){.more = "user_runs = 2;"});
	ck_assert_int_eq(daemon_submit(&f, user, "sleep 1000", 1, 2), 1);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(post_with(user, key, 201, ""), 2);
	post_with(user, "Dtrain-Key: other", 429, "too-many-runs");
	post_with(user, "Dtrain-Key: a.b", 400, "bad-key");
	post_with(user, long_key, 400, "bad-key");
	if (user)
		ck_assert_int_eq(post_with(NULL, key, 201, ""), 3);
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	ck_assert_int_eq(post_with(user, key, 201, ""), 2);
}
END_TEST

/* A rank that writes 8 MiB in lines of 100 bytes, and ends once it may. */
START_TEST(the_log_of_a_rank_has_a_quota)
{
	const struct person *user = find_user();
	_cleanup_free_ char *log = NULL, *script = NULL;
	struct raw_request all = {.method = "GET", .target = "/v1/runs/1/logs"};
	struct raw_request last = {.method = "GET", .target = "/v1/runs/1/logs?tail=2"};
	const char *at;
	struct raw_answer a;
	struct stat st;

	daemon_fixture_start(&f, &(struct daemon_setup){.more = "log_quota = 1;"});
	log = str_path_join(f.dir, "log/1/1/rank-0.log");
	script =
	    str_printf("seq -f '%%099.0f' 80000; until [ -e %s/go ]; do sleep 0.02; done; echo end", f.dir);
	daemon_submit(&f, user, script, 1, 1);
	daemon_await(&f, 1, "running");
	do {
		usleep(20000);
		ck_assert_int_eq(stat(log, &st), 0);
	} while (st.st_size < 8000000 || st.st_blocks * 512 > 1 << 20);
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	/* An answer in pieces, with their lengths between them. */
	a = daemon_ask(&f, user, &all);
	ck_assert_int_eq(a.status, 200);
	ck_assert_uint_eq(strlen(a.body), a.len);
	at = strstr(a.body, "[dtrain: ");
	ck_assert_msg(at && at - a.body < 20 && strstr(at, "log_quota is 1 MiB]\n"), "%.200s", a.body);
	ck_assert_uint_gt(a.len, 500000);
	ck_assert_uint_le(a.len, 1 << 20);
	free(a.body);
	a = daemon_ask(&f, user, &last);
	ck_assert_msg(strstr(a.body, "00080000\nend\n"), "%.300s", a.body);
	free(a.body);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon limits");
	TCase *c = tcase_create("daemon limits");

	tcase_set_timeout(c, 240);
	tcase_add_checked_fixture(c, NULL, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_user_has_limits);
	tcase_add_test(c, a_reload_changes_the_limits);
	tcase_add_test(c, a_run_may_be_too_large_for_the_store);
	tcase_add_test(c, a_submission_that_came_again_is_answered_there);
	tcase_add_test(c, a_service_of_an_ordinary_user_is_for_that_user);
	tcase_add_test(c, a_submission_with_a_key_is_made_once);
	tcase_add_test(c, the_log_of_a_rank_has_a_quota);
	return unit_run(s);
}
