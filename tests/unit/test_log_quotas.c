/* SPDX-License-Identifier: Apache-2.0 */
/* When the logs of this node are looked at, and what is said of them. The node, its logs and the times of the
 * event loop are stand-ins. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "base/log.h"
#include "base/str.h"
#include "dtraind/log_quotas.h"
#include "node/attempt_files.h"
#include "node/log_quota.h"
#include "quick_timer.h"
#include "unit.h"

/* ---- what log_quotas.c calls ---- */

static struct report reports[2];
static struct rank_report ranks[2][2];
static size_t report_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for what the thread writes */
static struct strbuf applied;                            /* "logs/7.1.0 3145728, " */
static int apply_code, applications;
static bool held; /* the thread stays in log_quota_apply() */
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;

static int warnings;     /* in the log */
static char warned[256]; /* the last warning */
static bool hurry;       /* the deadline of a pass comes at once */

const struct report *node_attempt(const struct node *n, size_t i)
{
	return i < report_count ? &reports[i] : NULL;
}

int attempt_files_log(const char *log_dir, int64_t run, int64_t attempt, int rank, char **path,
                      struct error *err)
{
	if (run == 404)
		return -ENOENT;
	*path = str_printf("%s/%d.%d.%d", log_dir, (int)run, (int)attempt, rank);
	return 0;
}

int log_quota_apply(const char *path, int64_t quota, int64_t *removed, struct error *err)
{
	int code;

	pthread_mutex_lock(&lock);
	strbuf_addf(&applied, "%s %lld, ", path, (long long)quota);
	applications++;
	while (held)
		pthread_cond_wait(&let_go, &lock);
	code = apply_code;
	pthread_mutex_unlock(&lock);
	return code < 0 ? error_set(err, code, "%s has no holes", path) : 0;
}

void log_write(int level, const char *fields, const char *fmt, ...)
{
	va_list ap;

	if (level > LOG_WARNING)
		return;
	va_start(ap, fmt);
	vsnprintf(warned, sizeof(warned), fmt, ap);
	va_end(ap);
	warnings++;
}

/* A second of the timer takes a millisecond. */
static uint64_t scale(uint64_t usec)
{
	ck_assert(usec == 1000000 || usec == 60000000);
	return usec == 1000000 || hurry ? usec / 1000 : usec;
}

/* ---- the service ---- */

static struct daemon_config config;
static struct settings settings = {.config = &config};
static struct daemon service = {.settings = &settings};
static struct log_quotas *quotas;

static void setup(void)
{
	struct error err = ERROR_INIT;

	config = (struct daemon_config){.log_dir = "logs", .log_quota = 3};
	for (int i = 0; i < 2; i++) {
		ranks[i][0].rank = 2 * i;
		ranks[i][1].rank = 2 * i + 1;
	}
	reports[0] = (struct report){
	    .run = 7, .attempt = 1, .state = ATTEMPT_ENDED, .ranks = ranks[0], .rank_count = 2};
	reports[1] = (struct report){.run = 8, .attempt = 3, .ranks = ranks[1], .rank_count = 1};
	report_count = 2;
	quick_timer.scale = scale;
	ck_assert_int_ge(sd_event_new(&service.event), 0);
	ck_ok(log_quotas_create(&service, &quotas, &err), &err);
}

static void hold(bool on)
{
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

static void set_code(int code)
{
	pthread_mutex_lock(&lock);
	apply_code = code;
	pthread_mutex_unlock(&lock);
}

static void teardown(void)
{
	log_quotas_destroy(quotas);
	sd_event_unref(service.event);
}

static void turn(void)
{
	ck_assert_int_ge(sd_event_run(service.event, UINT64_MAX), 0);
}

static int count(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = applications;
	pthread_mutex_unlock(&lock);
	return n;
}

/* Runs the loop until so many logs have been looked at. */
static void await_count(int n)
{
	while (count() < n)
		turn();
}

static void await_ticks(int n)
{
	for (int end = quick_timer.again + n; quick_timer.again < end;)
		turn();
}

/* Until two more passes have ended, the last of which began after this call. */
static void await_passes(int logs)
{
	await_count(count() + 3 * logs);
}

/* Those of attempts that have ended, too; again and again. */
START_TEST(the_logs_of_all_ranks_are_looked_at)
{
	static const char pass[] = "logs/7.1.0 3145728, logs/7.1.1 3145728, logs/8.3.2 3145728, ";

	await_count(7);
	pthread_mutex_lock(&lock);
	ck_assert(strncmp(applied.data, pass, strlen(pass)) == 0);
	ck_assert(strncmp(applied.data + strlen(pass), pass, strlen(pass)) == 0);
	ck_assert_int_eq(warnings, 0);
	pthread_mutex_unlock(&lock);
}
END_TEST

START_TEST(more_ranks_than_fit_at_first_are_looked_at)
{
	struct rank_report many[100] = {0};
	_cleanup_strbuf_ struct strbuf want = {0};

	for (int i = 0; i < 100; i++) {
		many[i].rank = i;
		strbuf_addf(&want, "logs/9.1.%d 3145728, ", i);
	}
	reports[0] = (struct report){.run = 9, .attempt = 1, .ranks = many, .rank_count = 100};
	report_count = 1;
	await_count(101);
	pthread_mutex_lock(&lock);
	ck_assert(strncmp(applied.data, want.data, want.len) == 0);
	pthread_mutex_unlock(&lock);
}
END_TEST

/* The files of the service may be read again. */
START_TEST(without_a_quota_no_log_is_looked_at)
{
	config.log_quota = 0;
	await_ticks(5);
	ck_assert_int_eq(count(), 0);
	config.log_quota = 1;
	await_count(1);
	pthread_mutex_lock(&lock);
	ck_assert_ptr_nonnull(strstr(applied.data, " 1048576, "));
	pthread_mutex_unlock(&lock);
}
END_TEST

START_TEST(where_nothing_runs_nothing_is_begun)
{
	report_count = 0;
	await_ticks(5);
	ck_assert_int_eq(count(), 0);
	ck_assert_int_eq(warnings, 0);
	report_count = 1;
	await_count(2);
}
END_TEST

/* A file system that hangs has one thread waiting for it. */
START_TEST(one_pass_is_under_way_at_a_time)
{
	hurry = true;
	hold(true);
	await_count(1);
	while (warnings == 0)
		turn();
	ck_assert_ptr_nonnull(strstr(warned, "takes longer than 60 s"));
	await_ticks(10);
	ck_assert_int_eq(count(), 1);
	ck_assert_int_eq(warnings, 1);
	hurry = false;
	hold(false);
	await_count(4); /* of the next one */
	ck_assert_int_eq(warnings, 1);
}
END_TEST

START_TEST(a_failure_is_told_once_until_all_is_well)
{
	apply_code = -EOPNOTSUPP;
	await_passes(3);
	ck_assert_int_eq(warnings, 1);
	ck_assert_str_eq(warned, "a log is larger than log_quota: logs/7.1.0 has no holes");
	set_code(0);
	await_passes(3);
	ck_assert_int_eq(warnings, 1);
	set_code(-EIO);
	await_passes(3);
	ck_assert_int_eq(warnings, 2);
}
END_TEST

/* A log that was removed meanwhile, and one that is not there at all. */
START_TEST(a_log_that_is_gone_is_no_failure)
{
	reports[0].run = 404;
	apply_code = -ENOENT;
	await_passes(1);
	ck_assert_int_eq(warnings, 0);
	pthread_mutex_lock(&lock);
	ck_assert_ptr_null(strstr(applied.data, "7.1"));
	ck_assert_ptr_null(strstr(applied.data, "404"));
	pthread_mutex_unlock(&lock);
}
END_TEST

START_TEST(the_end_does_not_wait_for_a_pass)
{
	hold(true);
	await_count(1);
	log_quotas_destroy(quotas);
	quotas = NULL;
	set_code(-EIO);
	hold(false);
	while (count() < 3)
		usleep(1000);
	/* Its result reaches no caller. */
	ck_assert_int_eq(sd_event_run(service.event, 50000), 0);
	ck_assert_int_eq(warnings, 0);
	log_quotas_destroy(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log quotas");
	TCase *c = tcase_create("log quotas");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, the_logs_of_all_ranks_are_looked_at);
	tcase_add_test(c, more_ranks_than_fit_at_first_are_looked_at);
	tcase_add_test(c, without_a_quota_no_log_is_looked_at);
	tcase_add_test(c, where_nothing_runs_nothing_is_begun);
	tcase_add_test(c, one_pass_is_under_way_at_a_time);
	tcase_add_test(c, a_failure_is_told_once_until_all_is_well);
	tcase_add_test(c, a_log_that_is_gone_is_no_failure);
	tcase_add_test(c, the_end_does_not_wait_for_a_pass);
	return unit_run(s);
}
