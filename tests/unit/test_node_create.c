/* SPDX-License-Identifier: Apache-2.0 */
/* What a node makes when it is created, and what it says where it cannot. */
#include "node_fixture.h"

#include <string.h>
#include <sys/stat.h>

#include "base/str.h"

static struct fixture f; /* Check's fixtures have no other place */

static void setup(void)
{
	fixture_prepare(&f, "");
}

static void teardown(void)
{
	fixture_teardown(&f);
}

static mode_t mode_of(const char *name)
{
	_cleanup_free_ char *path = fixture_path(&f, name);
	struct stat st;

	ck_assert_msg(stat(path, &st) == 0, "%s is not there", name);
	ck_assert(S_ISDIR(st.st_mode));
	return st.st_mode & 0777;
}

/* Users pass through to the directories of their attempts, and list none of them; the logs that are theirs
 * they find. */
START_TEST(directories_are_made)
{
	umask(022);
	fixture_create(&f);
	ck_assert_int_eq(mode_of("run/attempts"), 0711);
	ck_assert_int_eq(mode_of("log"), 0755);
	mode_of("state/started");
}
END_TEST

/* A file is in the way of each of them. */
START_TEST(a_node_without_its_directories_is_not_created)
{
	static const char *const names[] = {"run", "log", "state"};
	char **const directories[] = {&f.config->runtime_dir, &f.config->log_dir, &f.config->state_dir};
	const struct node_callbacks callbacks = {0};
	_cleanup_free_ char *file = fixture_path(&f, "file");
	struct error err = ERROR_INIT;
	int r;

	ck_ok(file_write_atomic(file, "", 0, 0644, &err), &err);
	free(*directories[_i]);
	*directories[_i] = str_path_join(file, names[_i]);
	r = node_create(f.event, f.config, "n1", 0, &callbacks, &f.node, &err);
	ck_assert_int_eq(r, -ENOTDIR);
	ck_assert_msg(strstr(err.message, *directories[_i]), "%s", err.message);
	ck_assert_ptr_null(f.node);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_create");
	TCase *tc = tcase_create("create");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, directories_are_made);
	tcase_add_loop_test(tc, a_node_without_its_directories_is_not_created, 0, 3);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
