/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain-keygen: for how long what it makes is valid, and how it is called. */
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <sys/stat.h>
#include <time.h>

#include "base/str.h"
#include "unit.h"

enum { DAY = 86400, SLACK = 3600 };

static char *dir;

static void setup(void)
{
	dir = unit_tmpdir();
	ck_assert_int_eq(chdir(dir), 0);
}

static void teardown(void)
{
	ck_assert_int_eq(chdir("/"), 0);
	file_remove_tree(dir, NULL);
	free(dir);
}

/* Both outputs. Owned by the caller. */
static char *keygen(const char *arguments, int *status)
{
	_cleanup_free_ char *line = str_printf("exec %s/dtrain-keygen %s 2>&1", BUILDDIR, arguments);
	FILE *pipe = popen(line, "re");
	char *text = calloc(1, 4096);

	ck_assert_ptr_nonnull(pipe);
	ck_assert_uint_lt(fread(text, 1, 4095, pipe), 4095);
	*status = pclose(pipe);
	ck_assert(WIFEXITED(*status));
	*status = WEXITSTATUS(*status);
	return text;
}

static void expect_validity(const char *path, int days)
{
	gnutls_datum_t data = {0};
	gnutls_x509_crt_t crt;
	time_t now = time(NULL);

	ck_assert_int_eq(gnutls_load_file(path, &data), 0);
	ck_assert_int_eq(gnutls_x509_crt_init(&crt), 0);
	ck_assert_int_eq(gnutls_x509_crt_import(crt, &data, GNUTLS_X509_FMT_PEM), 0);
	ck_assert_int_le(labs(gnutls_x509_crt_get_activation_time(crt) - (now - DAY)), SLACK);
	ck_assert_int_le(labs(gnutls_x509_crt_get_expiration_time(crt) - (now + (time_t)days * DAY)), SLACK);
	gnutls_x509_crt_deinit(crt);
	gnutls_free(data.data);
}

/* An authority lasts for twenty years, and a node's certificate for 825 days, unless an option says
 * otherwise. */
START_TEST(how_long_it_is_valid)
{
	static const struct {
		const char *arguments, *path;
		int days;
	} cases[] = {
	    {"make ca 0", "ca/ca.pem", 7300},         {"make ca 0 n1", "ca/nodes/n1.pem", 825},
	    {"make ca 30 n2", "ca/nodes/n2.pem", 30}, {"replace ca 1 n2", "ca/nodes/n2.pem", 1},
	    {"replace ca 400", "ca/ca.pem", 400},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		int status;
		_cleanup_free_ char *text = keygen(cases[i].arguments, &status);

		ck_assert_msg(status == 0, "%s: %s", cases[i].arguments, text);
		expect_validity(cases[i].path, cases[i].days);
	}
}
END_TEST

START_TEST(how_it_is_called)
{
	static const struct {
		const char *arguments;
		int status;
		const char *begin;
	} cases[] = {
	    {"", 2, "dtrain-keygen: \"dtrain keygen\" executes this program\n"},
	    {"make", 2, "dtrain-keygen: "},
	    {"remove key", 2, "dtrain-keygen: "},
	    {"make key", 0, "key: made; copy it to every node of the cluster\n"},
	    {"make key", EXIT_FAILURE, "dtrain: "},
	    {"replace key", 0, "key: made; "},
	    {"make ca 1048577", EXIT_FAILURE, "dtrain: 1048577: not a number of days\n"},
	    {"make ca -1", EXIT_FAILURE, "dtrain: -1: not a number of days\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		int status;
		_cleanup_free_ char *text = keygen(cases[i].arguments, &status);

		ck_assert_msg(status == cases[i].status && str_starts(text, cases[i].begin), "%s: %d: %s",
		              cases[i].arguments, status, text);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("make key");
	TCase *t = tcase_create("make key");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, how_long_it_is_valid);
	tcase_add_test(t, how_it_is_called);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
