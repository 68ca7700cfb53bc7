/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of the training process: which task it does, where, and how it ends. The tasks, the signals and
 * the service are stand-ins. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "unit.h"
#include "worker/service_client.h"
#include "worker/stop.h"
#include "worker/tasks.h"

/* ---- what main.c calls ---- */

static struct {
	char done[200];                                     /* the task and its directory */
	int code;                                           /* of the task */
	char told[sizeof(((struct error *)NULL)->message)]; /* the service */
} seen;

static int do_task(const char *name, struct error *err)
{
	_cleanup_free_ char *cwd = getcwd(NULL, 0);

	snprintf(seen.done, sizeof(seen.done), "%s in %s", name, cwd);
	if (seen.code < 0) {
		error_set(err, seen.code, "no memory");
		*strchr(err->message, ' ') = '\n';
	}
	return seen.code;
}

int train_task(const struct run_config *c, const struct environment *env, struct service_client *service,
               struct error *err)
{
	ck_assert_ptr_eq(service, (struct service_client *)&seen);
	return do_task("train", err);
}

int generate_task(const struct run_config *c, const struct environment *env, struct error *err)
{
	return do_task("generate", err);
}

void stop_init(void)
{
}

int stop_exit_status(void)
{
	return 143;
}

int service_client_create(const struct environment *env, struct service_client **out, struct error *err)
{
	*out = (struct service_client *)&seen;
	return 0;
}

void service_client_destroy(struct service_client *service)
{
}

void service_client_error(struct service_client *service, const struct error *err)
{
	snprintf(seen.told, sizeof(seen.told), "%s", err->message);
}

/* ---- tests ---- */

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "c.json");
	clearenv();
	setenv("DTRAIN_CONFIG", path, 1);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
	free(path);
}

/* %s: a directory. */
static int work(const char *config, const char *where)
{
	_cleanup_free_ char *directory = str_path_join(dir, where), *text = NULL;
	const char *at = strstr(config, "%s");
	struct error err = ERROR_INIT;

	text = at ? str_printf("%.*s%s%s", (int)(at - config), config, directory, at + 2) : strdup(config);
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	return worker_main();
}

#define GENERATE                                                                                             \
	"{\"task\":\"generate\",\"directory\":\"%s\",\"model\":{\"path\":\"m\"},\"generate\":{\"prompt\":"   \
	"\"a\"}}"
#define TRAIN                                                                                                \
	"{\"task\":\"sft\",\"directory\":\"%s\",\"model\":{\"path\":\"m\"},\"data\":{\"path\":\"d\"},"       \
	"\"output\":{\"dir\":\"o\"}}"

START_TEST(a_task_is_done_in_the_directory_of_its_run)
{
	_cleanup_free_ char *train = str_printf("train in %s", dir),
	                    *generate = str_printf("generate in %s", dir);

	ck_assert_int_eq(work(TRAIN, ""), 0);
	ck_assert_str_eq(seen.done, train);
	ck_assert_int_eq(work(GENERATE, ""), 0);
	ck_assert_str_eq(seen.done, generate);
	ck_assert_str_eq(seen.told, "");
}
END_TEST

START_TEST(a_task_may_end_by_a_signal)
{
	seen.code = 1;
	ck_assert_int_eq(work(TRAIN, ""), 143);
	ck_assert_str_eq(seen.told, "");
}
END_TEST

START_TEST(an_error_is_told_in_a_line)
{
	seen.code = -ENOMEM;
	ck_assert_int_eq(work(TRAIN, ""), 1);
	ck_assert_str_eq(seen.told, "no memory");
}
END_TEST

START_TEST(a_directory_that_is_not_there_is_an_error)
{
	_cleanup_free_ char *want =
	    str_printf("cannot use the working directory %s/none: No such file or directory", dir);

	ck_assert_int_eq(work(TRAIN, "none"), 1);
	ck_assert_str_eq(seen.done, "");
	ck_assert_str_eq(seen.told, want);
}
END_TEST

START_TEST(what_a_worker_cannot_do)
{
	ck_assert_int_eq(work("{\"task\":\"command\",\"command\":[\"true\"],\"directory\":\"/\"}", ""), 1);
	ck_assert_str_eq(seen.told, "a command is not run by the native worker");
	ck_assert_int_eq(work("{\"task\":1}", ""), 1);
	ck_assert_msg(str_starts(seen.told, path), "%s", seen.told);
	ck_assert_str_eq(seen.done, "");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("worker main");
	TCase *t = tcase_create("worker main");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_task_is_done_in_the_directory_of_its_run);
	tcase_add_test(t, a_task_may_end_by_a_signal);
	tcase_add_test(t, an_error_is_told_in_a_line);
	tcase_add_test(t, a_directory_that_is_not_there_is_an_error);
	tcase_add_test(t, what_a_worker_cannot_do);
	suite_add_tcase(s, t);
	return unit_run(s);
}
