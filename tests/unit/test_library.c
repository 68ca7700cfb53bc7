/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries loaded at run time: the messages for missing, old and invalid ones. */
#include "engine/device/cuda/library.h"

#include <errno.h>

#include "base/str.h"
#include "unit.h"

#define FUNCTIONS(F) F(int, fake_twice, (int x), (x))

int fake_twice(int x);

LIBRARY_DEFINE(FUNCTIONS)

static int version(void *function)
{
	return ((int (*)(void))function)();
}

static const struct library fake = {.title = "Fake",
                                    .soname = "libdtrain-fake.so.2",
                                    .package = "libfake2",
                                    .minimum = 21902,
                                    .version_symbol = "fake_version",
                                    .version = version,
                                    .symbols = symbols,
                                    .symbol_count = ARRAY_SIZE(symbols)};

/* Loads the stand-in FLAVOUR ("" none) under the library's name from a directory of its own, the second of
 * two that are listed. */
static int load(const char *flavour, struct library_found *found, struct error *err)
{
	_cleanup_free_ char *directory = unit_tmpdir(), *here = getcwd(NULL, 0);
	_cleanup_free_ char *link = str_printf("%s/%s", directory, fake.soname);
	_cleanup_free_ char *target = str_printf("%s/tests/unit/libfake-%s.so", here, flavour);
	_cleanup_free_ char *list = str_printf("/nonexistent:%s", directory);
	int r;

	if (*flavour)
		ck_assert(symlink(target, link) == 0);
	ck_assert(setenv("DTRAIN_LIBRARY_PATH", list, 1) == 0);
	r = library_load(&fake, found, err);
	ck_assert(!file_remove_tree(directory, NULL));
	return r;
}

static void refused(const char *flavour, int want, const char *words)
{
	struct error err = ERROR_INIT;

	ck_assert_int_eq(load(flavour, NULL, &err), want);
	ck_assert_msg(strstr(err.message, words) != NULL, "%s", err.message);
	ck_assert_msg(strchr(err.message, '\n') == NULL, "%s", err.message);
	ck_assert(real.fake_twice == NULL);
}

START_TEST(absent)
{
	refused("", -ENOENT,
	        "libdtrain-fake.so.2 is not installed: Fake 2.19.2 or newer is needed: apt install libfake2");
}
END_TEST

START_TEST(too_old)
{
	refused("old", -ELIBBAD,
	        "/libdtrain-fake.so.2 is too old: it is Fake 2.19, 2.19.2 or newer is needed: apt install "
	        "libfake2");
}
END_TEST

START_TEST(not_what_it_seems)
{
	refused("lacks", -ELIBBAD, "/libdtrain-fake.so.2 (Fake 2.21.5) lacks fake_twice");
	refused("mute", -ELIBBAD, "/libdtrain-fake.so.2 does not say its version: Fake 2.19.2 or newer");
	refused("unresolved", -ELIBBAD, "libdtrain-fake.so.2 cannot be loaded: ");
	refused("unresolved", -ELIBBAD, "fake_absent");
}
END_TEST

START_TEST(broken_file)
{
	_cleanup_free_ char *directory = unit_tmpdir();
	_cleanup_free_ char *path = str_printf("%s/%s", directory, fake.soname);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, "no library", 10, 0644, &err), &err);
	setenv("DTRAIN_LIBRARY_PATH", directory, 1);
	ck_assert_int_eq(library_load(&fake, NULL, &err), -ELIBBAD);
	ck_assert_msg(strstr(err.message, "cannot be loaded") != NULL, "%s", err.message);
	ck_assert(!file_remove_tree(directory, NULL));
}
END_TEST

START_TEST(good)
{
	struct library_found found;
	struct error err = ERROR_INIT;
	char text[24];

	ck_ok(load("good", &found, &err), &err);
	ck_assert_int_eq(fake_twice(21), 42);
	ck_assert_int_eq(found.version, 22105);
	ck_assert_str_eq(library_version_text(found.version, text, sizeof(text)), "2.21.5");
	ck_assert_msg(strstr(found.path, "/libdtrain-fake.so.2") != NULL, "%s", found.path);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("library");
	TCase *tc = tcase_create("library");

	tcase_add_test(tc, absent);
	tcase_add_test(tc, too_old);
	tcase_add_test(tc, not_what_it_seems);
	tcase_add_test(tc, broken_file);
	tcase_add_test(tc, good);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
