/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a worker say where memory, threads or the space on a disk are used up, one after the
 * other. The connection to the service is a stand-in. */
#include <fcntl.h>
#include <math.h>

#include "base/str.h"
#include "base/thread.h"
#include "engine/checkpoint/tfevents.h"
#include "failing_memory.h"
#include "http/local.h"
#include "text_files.h"
#include "worker/metrics.h"
#include "worker/prompts.h"
#include "worker/service_client.h"

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

/* ---- prompts ---- */

static int read_prompts(void *path, struct error *err)
{
	_cleanup_(prompts_free) struct prompts p = {0};
	int r = prompts_read(path, &p, err);

	if (r == 0)
		ck_assert_uint_eq(p.n, 2);
	return r;
}

START_TEST(without_memory_there_are_no_prompts)
{
	_cleanup_free_ char *text = in_dir("a.txt"), *json = in_dir("a.jsonl");

	write_text("a.txt", "one\n\ntwo\n", 0644);
	write_text("a.jsonl", "{\"prompt\":\"one\"}\n{\"prompt\":\"two\"}\n", 0644);
	memory_runs_out(read_prompts, text);
	memory_runs_out(read_prompts, json);
}
END_TEST

/* ---- metrics ---- */

static int writes_left; /* until one fails; 0: none does */
static bool write_refused;

static bool write_fails(struct error *err)
{
	if (writes_left == 0 || --writes_left > 0)
		return false;
	write_refused = true;
	error_set(err, -ENOSPC, "the disk is full");
	return true;
}

int __real_file_write_all(int fd, const void *data, size_t len, struct error *err);
int __wrap_file_write_all(int fd, const void *data, size_t len, struct error *err);
int __wrap_file_write_all(int fd, const void *data, size_t len, struct error *err)
{
	return write_fails(err) ? -ENOSPC : __real_file_write_all(fd, data, len, err);
}

/* The directory as an earlier run has left it, each time. */
static void leave_metrics(void)
{
	long left = memory_left;
	struct error err = ERROR_INIT;

	memory_left = 0;
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_ok(file_mkdirs(dir, 0755, &err), &err);
	write_text("metrics.jsonl", "{\"step\":5,\"loss\":1.5}\n", 0644);
	write_text("metrics.jsonl.1", "{\"step\":4,\"loss\":2.5}\n", 0644);
	memory_left = left;
}

/* A report with all that there can be, and marks. */
static int write_metrics(void *resumed, struct error *err)
{
	static const struct preference_metric values[] = {{"rewards", 1}}, eval_values[] = {{"rewards", 2}};
	const struct metrics_extra extra = {1, values, eval_values};
	const struct metrics_report report = {.step = 6,
	                                      .steps = 9,
	                                      .loss = 1,
	                                      .learning_rate = 1e-4,
	                                      .loss_scale = 8,
	                                      .eval_loss = 2,
	                                      .slowest_rank = -1};
	const struct metrics_mark mark = {.event = (char *)"resume", .step = 5};
	_cleanup_(metrics_closep) struct metrics *m = NULL;
	int writes = writes_left, r;

	writes_left = 0;
	leave_metrics();
	writes_left = writes;
	r = metrics_open(dir, *(const int *)resumed, true, &m, err);
	if (r == 0)
		r = metrics_event(m, &mark, "resumed", err);
	if (r == 0)
		r = metrics_text(m, 5, 0, "run", "all of it", err);
	return r < 0 ? r : metrics_write(m, &report, &extra, err);
}

/* The standard input stays open: no descriptor is closed that was not opened. */
START_TEST(without_memory_there_are_no_metrics)
{
	int steps[] = {0, 5}, input = open("/dev/null", O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(dup2(input, STDIN_FILENO), 0);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		memory_runs_out(write_metrics, &steps[i]);
		ck_assert_int_ge(fcntl(STDIN_FILENO, F_GETFD), 0);
	}
	close(input);
}
END_TEST

START_TEST(a_full_disk_is_noticed_at_each_write)
{
	_cleanup_free_ char *path = in_dir("metrics.jsonl"), *runs = in_dir("runs");
	int resumed = 5, named = 0;

	for (int n = 1;; n++) {
		struct error err = ERROR_INIT;
		int r;

		write_refused = false;
		writes_left = n;
		r = write_metrics(&resumed, &err);
		if (!write_refused) {
			ck_ok(r, &err);
			/* Nothing is written after a failure. */
			ck_assert_int_eq(writes_left, 1);
			break;
		}
		ck_assert_int_eq(writes_left, 0);
		ck_assert_int_eq(r, -ENOSPC);
		named += str_starts(err.message, path);
		ck_assert_msg(str_starts(err.message, path) || str_starts(err.message, runs), "%s",
		              err.message);
		ck_assert_msg(str_ends(err.message, ": the disk is full"), "%s", err.message);
	}
	ck_assert_int_eq(named, 2);
}
END_TEST

/* ---- the service ---- */

static struct {
	char calls[500]; /* "METHOD KEY=BODY " each */
	int code, status, open;
	int threads, threads_left; /* started; until one cannot be started, 0: each can */
} service;

/* Unlimited memory for the stand-in itself. */
static void *own_memory(const void *content, size_t size)
{
	long left = memory_left;
	void *p;

	memory_left = 0;
	p = malloc(size);
	ck_assert_ptr_nonnull(p);
	memcpy(p, content, size);
	memory_left = left;
	return p;
}

int http_local_open(const char *socket, struct http_local **out, struct error *err)
{
	*out = own_memory("", 1);
	service.open++;
	return 0;
}

void http_local_close(struct http_local *l)
{
	service.open--;
	free(l);
}

int http_local_bytes(struct http_local *l, const char *method, const char *target, const char *type,
                     const void *body, size_t len, double timeout, int *status, char **answer,
                     size_t *answer_len, struct error *err)
{
	const char *key = strstr(target, "rendezvous/");
	size_t used = strlen(service.calls);

	key = key ? strchr(key, '/') + 1 : target;
	snprintf(service.calls + used, sizeof(service.calls) - used, "%s %.*s=%.*s ", method,
	         (int)strcspn(key, "?"), key, (int)len, body ? (const char *)body : "");
	if (service.code < 0)
		return error_set(err, service.code, "no answer");
	*status = service.status;
	*answer = own_memory("answer", 7);
	*answer_len = 6;
	return 0;
}

int __real_thread_start(pthread_t *out, void *(*run)(void *), void *context);
int __wrap_thread_start(pthread_t *out, void *(*run)(void *), void *context);
int __wrap_thread_start(pthread_t *out, void *(*run)(void *), void *context)
{
	if (service.threads_left > 0 && --service.threads_left == 0)
		return -EAGAIN;
	service.threads++;
	return __real_thread_start(out, run, context);
}

static const struct environment env = {
    .world_size = 2, .rank = 1, .run_id = "7", .attempt = 2, .socket = "/x"};

static void setup_service(void)
{
	setup();
	memset(&service, 0, sizeof(service));
	service.status = 200;
}

static int use_store(void *environment, struct error *err)
{
	_cleanup_(service_client_destroyp) struct service_client *s = NULL;
	_cleanup_free_ char *data = NULL;
	const struct kv_store *store;
	size_t len;
	int r = service_client_create(environment, &s, err);

	if (r < 0)
		return r;
	store = service_client_store(s);
	if ((r = store->put(store->context, "a/0", "answer", 6, err)) < 0 ||
	    (r = store->put(store->context, "a/1", "second", 6, err)) < 0 ||
	    (r = store->put(store->context, "a/0", "answer", 6, err)) < 0 ||
	    (r = store->get(store->context, "a/0", 0, (void **)&data, &len, err)) < 0)
		return r;
	ck_assert_uint_eq(len, 6);
	ck_assert_str_eq(data, "answer");
	return 0;
}

START_TEST(without_memory_there_is_no_key)
{
	struct environment files = env;

	memory_runs_out(use_store, (void *)&env);
	ck_assert_int_eq(service.open, 0);
	files.socket = NULL;
	files.rendezvous_dir = dir;
	memory_runs_out(use_store, &files);
}
END_TEST

/* One thread keeps all keys of a rank, and one sends the reports of rank 0. */
START_TEST(keys_need_a_thread)
{
	struct environment first = env;
	struct error err = ERROR_INIT;
	struct service_client *s;
	const struct kv_store *store;

	ck_ok(use_store((void *)&env, &err), &err);
	ck_assert_int_eq(service.threads, 1);
	ck_assert_str_eq(service.calls, "PUT a/0=answer PUT a/1=second PUT a/0=answer GET a/0= ");
	ck_assert_int_eq(service.open, 0);
	first.rank = 0;
	ck_ok(use_store(&first, &err), &err);
	ck_assert_int_eq(service.threads, 3);
	service.threads_left = 1;
	ck_assert_int_eq(service_client_create(&first, &s, &err), -EAGAIN);
	ck_assert_str_eq(err.message, "cannot start a thread: Resource temporarily unavailable");
	/* The next put tries it again. */
	ck_ok(service_client_create(&env, &s, &err), &err);
	store = service_client_store(s);
	service.threads_left = 1;
	ck_assert_int_eq(store->put(store->context, "a/0", "x", 1, &err), -EAGAIN);
	ck_assert_str_eq(err.message, "cannot start a thread: Resource temporarily unavailable");
	ck_ok(store->put(store->context, "a/0", "x", 1, &err), &err);
	ck_assert_int_eq(service.threads, 4);
	service_client_destroy(s);
	ck_assert_int_eq(service.open, 0);
}
END_TEST

/* A user who may not call the service does not wait for it, and no thread keeps a key that was not put. */
START_TEST(a_service_that_may_not_be_called_is_an_error_at_once)
{
	struct error err = ERROR_INIT;
	struct service_client *s;
	const struct kv_store *store;
	void *data = NULL;
	size_t len;

	ck_ok(service_client_create(&env, &s, &err), &err);
	store = service_client_store(s);
	service.code = -EACCES;
	ck_assert_int_eq(store->put(store->context, "a/0", "x", 1, &err), -EACCES);
	ck_assert_str_eq(err.message, "no answer");
	ck_assert_int_eq(store->get(store->context, "a/0", 60000, &data, &len, &err), -EACCES);
	ck_assert_ptr_null(data);
	ck_assert_int_eq(service.threads, 0);
	ck_assert_int_eq(service.open, 0);
	ck_assert_str_eq(service.calls, "PUT a/0=x GET a/0= ");
	service_client_destroy(s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker failures");
	TCase *t = tcase_create("files"), *s = tcase_create("service");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, without_memory_there_are_no_prompts);
	tcase_add_test(t, without_memory_there_are_no_metrics);
	tcase_add_test(t, a_full_disk_is_noticed_at_each_write);
	suite_add_tcase(suite, t);
	tcase_add_checked_fixture(s, setup_service, teardown);
	tcase_add_test(s, without_memory_there_is_no_key);
	tcase_add_test(s, keys_need_a_thread);
	tcase_add_test(s, a_service_that_may_not_be_called_is_an_error_at_once);
	suite_add_tcase(suite, s);
	return unit_run(suite);
}
