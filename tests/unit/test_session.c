/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of PAM: which functions of libpam are called in which order. The library is a stand-in. */
#include "unit.h"

#include <dlfcn.h>
#include <string.h>

#include "base/str.h"
#include "node/launch/session.h"

/* ---- libpam ---- */

enum { CONV_ERR = 19, SILENT = 0x8000 };

struct conversation {
	int (*ask)(int count, const void *messages, void *answers, void *context);
	void *context;
};

static struct strbuf trace;
static const char *missing; /* a function that it does not have; "": the library is missing */
static int start_code, account_code, open_code;
static char *dir;
static int pam; /* its address is the handle */

static int start(const char *service, const char *user, const struct conversation *c, const char *directory,
                 void **handle)
{
	ck_assert_str_eq(service, "dtrain");
	ck_assert_str_eq(user, "ann");
	ck_assert_str_eq(directory, dir);
	ck_assert_int_eq(c->ask(1, NULL, NULL, c->context), CONV_ERR);
	strbuf_adds(&trace, "start ");
	*handle = start_code ? (void *)1 : &pam; /* it may be anything after a failure */
	return start_code;
}

static int account(void *handle, int flags)
{
	ck_assert_ptr_eq(handle, &pam);
	ck_assert_int_eq(flags, SILENT);
	strbuf_adds(&trace, "account ");
	return account_code;
}

static int open_session(void *handle, int flags)
{
	ck_assert_ptr_eq(handle, &pam);
	ck_assert_int_eq(flags, SILENT);
	strbuf_adds(&trace, "open ");
	return open_code;
}

static int close_session(void *handle, int flags)
{
	ck_assert_ptr_eq(handle, &pam);
	ck_assert_int_eq(flags, SILENT);
	strbuf_adds(&trace, "close ");
	return 0;
}

static int end(void *handle, int status)
{
	ck_assert_ptr_eq(handle, &pam);
	ck_assert_int_eq(status, 0);
	strbuf_adds(&trace, "end ");
	return 0;
}

static const char *describe(void *handle, int code)
{
	ck_assert_ptr_eq(handle, &pam);
	return code == 7 ? "Permission denied" : code == 13 ? "User account has expired" : "?";
}

static const struct {
	const char *name;
	void *function;
} functions[] = {
    {"pam_start_confdir", start},         {"pam_acct_mgmt", account}, {"pam_open_session", open_session},
    {"pam_close_session", close_session}, {"pam_end", end},           {"pam_strerror", describe},
};

void *__wrap_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags)
{
	ck_assert_str_eq(file, "libpam.so.0");
	strbuf_adds(&trace, "load ");
	return missing && !*missing ? NULL : &pam;
}

void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name)
{
	ck_assert_ptr_eq(library, &pam);
	for (size_t i = 0; i < ARRAY_SIZE(functions); i++)
		if (str_eq(functions[i].name, name) && !(missing && str_eq(name, missing)))
			return functions[i].function;
	return NULL;
}

char *__wrap_dlerror(void);
char *__wrap_dlerror(void)
{
	return (char *)"no such library";
}

/* ---- tests ---- */

static void setup(void)
{
	_cleanup_free_ char *file = NULL;
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	file = str_path_join(dir, "dtrain");
	ck_ok(file_write_atomic(file, "", 0, 0644, &err), &err);
	trace = (struct strbuf){0};
	strbuf_adds(&trace, "");
	missing = NULL;
	start_code = account_code = open_code = 0;
}

static void teardown(void)
{
	strbuf_free(&trace);
	file_remove_tree(dir, NULL);
	free(dir);
}

START_TEST(a_session_is_opened_and_closed)
{
	struct session *s = NULL;
	struct error err = ERROR_INIT;

	ck_ok(session_open(dir, "ann", &s, &err), &err);
	ck_assert_ptr_nonnull(s);
	ck_assert_str_eq(trace.data, "load start account open ");
	session_close(s);
	ck_assert_str_eq(trace.data, "load start account open close end ");
	session_close(NULL);
}
END_TEST

/* A site that has no such file wants no session. */
START_TEST(without_its_file_there_is_none)
{
	_cleanup_free_ char *file = str_path_join(dir, "dtrain");
	struct session *s = (struct session *)1;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(unlink(file), 0);
	ck_ok(session_open(dir, "ann", &s, &err), &err);
	ck_assert_ptr_null(s);
	ck_assert_str_eq(trace.data, "");
}
END_TEST

static void check_refused(int code, const char *words, const char *want)
{
	struct session *s = (struct session *)1;
	struct error err = ERROR_INIT;

	strbuf_reset(&trace);
	ck_assert_int_eq(session_open(dir, "ann", &s, &err), code);
	ck_assert_msg(strstr(err.message, words), "%s", err.message);
	ck_assert_ptr_null(s);
	ck_assert_str_eq(trace.data, want);
}

START_TEST(a_library_may_lack_something)
{
	missing = "";
	check_refused(-ENOENT, "/etc/pam.d/dtrain is there, but libpam cannot be loaded: no such library",
	              "load ");
	for (size_t i = 0; i < ARRAY_SIZE(functions); i++) {
		_cleanup_free_ char *words =
		    str_printf("libpam has no %s: Linux-PAM 1.4 or newer is needed", functions[i].name);

		missing = functions[i].name;
		check_refused(-ENOENT, words, "load ");
	}
}
END_TEST

START_TEST(a_session_may_be_refused)
{
	_cleanup_free_ char *words = str_printf("PAM cannot be used, as %s/dtrain has it (status 4)", dir);

	start_code = 4;
	check_refused(-EACCES, words, "load start ");
	start_code = 0;
	account_code = 13;
	check_refused(-EACCES,
	              "PAM opens no session for ann, as /etc/pam.d/dtrain has it: User account has expired",
	              "load start account end ");
	account_code = 0;
	open_code = 7;
	check_refused(-EACCES, "PAM opens no session for ann, as /etc/pam.d/dtrain has it: Permission denied",
	              "load start account open end ");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("session");
	TCase *tc = tcase_create("session");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_session_is_opened_and_closed);
	tcase_add_test(tc, without_its_file_there_is_none);
	tcase_add_test(tc, a_library_may_lack_something);
	tcase_add_test(tc, a_session_may_be_refused);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
