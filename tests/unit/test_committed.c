/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a command that waits for its commit, with stand-ins for the request and for the commit: it is
 * given once, by whichever of the commit and the end of the connection comes first. */
#include <string.h>

#include "base/cleanup.h"
#include "controller/commit.h"
#include "dtraind/routes/committed.h"
#include "unit.h"

/* Only their addresses are passed on. */
static const int places[3];
static struct controller *const controller = (struct controller *)&places[0];
static struct http_request *const request = (struct http_request *)&places[1];
static struct commit_waiter *const waiter = (struct commit_waiter *)&places[2];

static void (*committed)(void *context, const struct error *err);
static void (*closed)(void *context);
static void *committed_context, *closed_context;
static int waiters_freed, replies, status;
static char code[32], message[300];
static const json_t *answer;
static bool no_memory;

struct commit_waiter *__wrap_commit_waiter_create(struct controller *c, int64_t run,
                                                  void (*done)(void *context, const struct error *err),
                                                  void *context);
void __wrap_commit_waiter_free(struct commit_waiter *w);
void __wrap_http_request_on_close(struct http_request *r, void (*fn)(void *context), void *context);
void __wrap_http_reply_json(struct http_request *r, int reply_status, json_t *json);
void __wrap_http_reply_error(struct http_request *r, int reply_status, const char *reply_code,
                             const char *format, ...);

struct commit_waiter *__wrap_commit_waiter_create(struct controller *c, int64_t run,
                                                  void (*done)(void *context, const struct error *err),
                                                  void *context)
{
	ck_assert_ptr_eq(c, controller);
	ck_assert_int_eq(run, 7);
	committed = done;
	committed_context = context;
	return no_memory ? NULL : waiter;
}

void __wrap_commit_waiter_free(struct commit_waiter *w)
{
	ck_assert_ptr_eq(w, waiter);
	waiters_freed++;
}

void __wrap_http_request_on_close(struct http_request *r, void (*fn)(void *context), void *context)
{
	ck_assert_ptr_eq(r, request);
	closed = fn;
	closed_context = context;
}

void __wrap_http_reply_json(struct http_request *r, int reply_status, json_t *json)
{
	ck_assert_ptr_eq(r, request);
	replies++;
	status = reply_status;
	answer = json;
	json_decref(json);
}

void __wrap_http_reply_error(struct http_request *r, int reply_status, const char *reply_code,
                             const char *format, ...)
{
	va_list args;

	ck_assert_ptr_eq(r, request);
	replies++;
	status = reply_status;
	snprintf(code, sizeof(code), "%s", reply_code);
	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
}

/* The caller has the second of two references. */
static json_t *begin(void)
{
	json_t *json = json_pack("{s:i}", "id", 7);

	reply_when_committed(controller, request, 7, 202, json_incref(json));
	return json;
}

static void ck_released(json_t *json)
{
	ck_assert_uint_eq(json->refcount, 1);
	json_decref(json);
}

START_TEST(a_commit_is_answered)
{
	json_t *json = begin();

	ck_assert_int_eq(replies, 0);
	ck_assert_ptr_nonnull(closed);
	ck_assert_uint_eq(json->refcount, 2);
	committed(committed_context, NULL);
	ck_assert_int_eq(replies, 1);
	ck_assert_int_eq(status, 202);
	ck_assert_ptr_eq(answer, json);
	ck_assert_ptr_null(closed);
	ck_assert_int_eq(waiters_freed, 0); /* it has freed itself */
	ck_released(json);
}
END_TEST

START_TEST(a_commit_that_fails_is_an_error)
{
	json_t *json = begin();
	struct error err = ERROR_INIT;

	error_set(&err, -ENOSPC, "the disk is full");
	committed(committed_context, &err);
	ck_assert_int_eq(replies, 1);
	ck_assert_int_eq(status, 500);
	ck_assert_str_eq(code, "store");
	ck_assert_ptr_eq(strstr(message, "the store cannot be written: the disk is full; "), message);
	ck_assert_ptr_null(closed);
	ck_released(json);
}
END_TEST

START_TEST(who_has_gone_is_not_answered)
{
	json_t *json = begin();

	closed(closed_context);
	ck_assert_int_eq(waiters_freed, 1);
	ck_assert_int_eq(replies, 0);
	ck_released(json);
}
END_TEST

START_TEST(without_memory_nothing_waits)
{
	json_t *json;

	no_memory = true;
	json = begin();
	ck_assert_int_eq(replies, 1);
	ck_assert_int_eq(status, 500);
	ck_assert_str_eq(code, "out-of-memory");
	ck_assert_ptr_null(closed);
	ck_released(json);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("committed");
	TCase *tc = tcase_create("committed");

	tcase_add_test(tc, a_commit_is_answered);
	tcase_add_test(tc, a_commit_that_fails_is_an_error);
	tcase_add_test(tc, who_has_gone_is_not_answered);
	tcase_add_test(tc, without_memory_nothing_waits);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
