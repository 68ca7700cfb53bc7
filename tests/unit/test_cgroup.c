/* SPDX-License-Identifier: Apache-2.0 */
/* Which control groups this process may use. /proc/self/mountinfo and /proc/self/cgroup are what the test
 * says, and the hierarchies that they name are directories of the test. */
#include "failing_memory.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "node/launch/cgroup.h"

static char *dir;
static int vanishing;  /* how often a parent goes before the group is made in it; -1: always */
static double skipped; /* seconds by which each look at the clock moves it */

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
	_cleanup_free_ char *own = NULL;

	if (!str_starts(path, "/proc/self/"))
		return __real_fopen(path, mode);
	own = str_path_join(dir, path + strlen("/proc/self/"));
	return __real_fopen(own, mode);
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	_cleanup_free_ char *parent = strdup(path);

	if (vanishing && str_ends(path, "/7.1")) {
		vanishing -= vanishing > 0;
		*strrchr(parent, '/') = '\0';
		ck_assert_int_eq(rmdir(parent), 0);
	}
	return __real_mkdir(path, mode);
}

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	static double ahead;
	int r = __real_clock_gettime(clock, now);

	if (skipped > 0)
		now->tv_sec += (time_t)(ahead += skipped);
	return r;
}

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static void put(const char *name, const char *text)
{
	_cleanup_free_ char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

static void make(const char *name)
{
	_cleanup_free_ char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(path, 0755, &err), &err);
}

static bool exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0;
}

/* The lines of mountinfo: each part of a line is ROOT, the directory of the test in which it is mounted, and
 * what is behind the dash. Ends with NULL. */
static void mounts(const char *root, ...)
{
	struct strbuf text = {0};
	va_list ap;

	strbuf_addf(&text, "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n");
	va_start(ap, root);
	for (; root; root = va_arg(ap, const char *)) {
		const char *point = va_arg(ap, const char *), *rest = va_arg(ap, const char *);

		strbuf_addf(&text, "30 21 0:26 %s %s/%s rw,nosuid shared:4 - %s\n", root, dir, point, rest);
	}
	va_end(ap);
	put("mountinfo", text.data);
	strbuf_free(&text);
}

static const char V2[] = "cgroup2 cgroup2 rw,nsdelegate";

/* want: the directory of the test in which the group is; NULL: there is none. The last word is a function of
 * the directory of the service. */
static void check_base(const char *want)
{
	_cleanup_free_ char *base = cgroup_find_base("/run/dtrain"), *other = cgroup_find_base("/run/other"),
	                    *above = want ? str_path_join(dir, want) : NULL;
	unsigned number;
	int used = 0;

	if (!want) {
		ck_assert_msg(!base, "%s", base);
		return;
	}
	ck_assert_ptr_nonnull(base);
	ck_assert_msg(str_starts(base, above), "%s is not in %s", base, above);
	ck_assert_msg(sscanf(base + strlen(above), "/dtrain-%8x%n", &number, &used) == 1 &&
	                  used == (int)strlen("/dtrain-12345678") && !base[strlen(above) + used],
	              "%s", base);
	ck_assert_ptr_nonnull(other);
	ck_assert_str_ne(base, other);
	/* It is made with the first group. */
	ck_assert(!exists(base));
}

START_TEST(groups_are_made_within_the_own_one)
{
	mounts("/", "v1", "cgroup cgroup rw,memory", "/", "v2", V2, NULL);
	put("cgroup", "4:memory:/x.service\n0::/y.slice/y.service\n");
	make("v1/x.service");
	make("v2/y.slice/y.service");
	check_base("v2/y.slice/y.service");
	/* The root of the hierarchy has no name. */
	put("cgroup", "0::/\n");
	check_base("v2");
	/* Of several mounts that of all of it counts. */
	mounts("/part", "v1", V2, "/", "v2", V2, NULL);
	check_base("v2");
}
END_TEST

START_TEST(where_no_group_can_be_made_there_is_no_base)
{
	make("v2/y.service");
	make("y.service");
	check_base(NULL); /* no /proc */
	mounts("/", "v2", V2, NULL);
	check_base(NULL);
	put("cgroup", "4:memory:/y.service\n10:cpu:/y.service\njunk\n0\n");
	check_base(NULL);
	put("cgroup", "0::/y.service\n");
	check_base("v2/y.service");
	put("cgroup", "0::/../y.service\n"); /* outside of what this process sees */
	check_base(NULL);
	put("cgroup", "0::/..\n");
	check_base(NULL);
	put("cgroup", "0::/gone.service\n");
	check_base(NULL);
	put("cgroup", "0::/y.service\n");
	mounts("/part", "v2", V2, NULL);
	check_base(NULL);
	mounts("/", "v2", "cgroup cgroup rw,name=systemd", NULL);
	check_base(NULL);
}
END_TEST

/* Groups of an earlier service with this directory are in it. */
START_TEST(a_base_that_is_there_is_kept)
{
	_cleanup_free_ char *base = NULL, *again = NULL, *group = NULL;

	mounts("/", "v2", V2, NULL);
	put("cgroup", "0::/\n");
	make("v2");
	base = cgroup_find_base("/run/dtrain");
	ck_assert_ptr_nonnull(base);
	group = str_path_join(base, "7.1");
	ck_assert_int_eq(cgroup_create(group), 0);
	again = cgroup_find_base("/run/dtrain");
	ck_assert_ptr_nonnull(again);
	ck_assert_str_eq(again, base);
	ck_assert(exists(group));
}
END_TEST

/* want: the file of the test; NULL: none. */
static void check_oom_file(const char *want)
{
	_cleanup_free_ char *file = cgroup_oom_file(), *path = want ? str_path_join(dir, want) : NULL;

	if (want) {
		ck_assert_ptr_nonnull(file);
		ck_assert_str_eq(file, path);
	} else {
		ck_assert_msg(!file, "%s", file);
	}
}

START_TEST(the_file_that_counts_kills_is_that_of_the_own_group)
{
	make("v2/y");
	make("v1/x");
	make("cpu/x");
	check_oom_file(NULL);
	mounts("/", "cpu", "cgroup cgroup rw,cpu,memoryless", "/", "v1", "cgroup cgroup rw,hugetlb,memory",
	       "/", "v2", V2, NULL);
	put("cgroup", "5:cpu,memoryless:/z\n4:hugetlb,memory:/x\n0::/y\n");
	check_oom_file(NULL);
	put("v2/y/memory.events", "low 0\noom_kill 3\n");
	check_oom_file("v2/y/memory.events");
	put("v1/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
	check_oom_file("v2/y/memory.events");
	/* That of version 1, where the group of version 2 counts none. */
	put("v2/y/memory.events", "low 0\n");
	check_oom_file("v1/x/memory.oom_control");
	put("cgroup", "4:hugetlb,memory:/x\n");
	check_oom_file("v1/x/memory.oom_control");
	put("cgroup", "4:hugetlb,memory:/../x\n0::/../y\n");
	check_oom_file(NULL);
	put("cgroup", "4:hugetlb:/x\n");
	check_oom_file(NULL);
	put("cgroup", "4:memory,hugetlb:/x\n");
	mounts("/", "v1", "cgroup cgroup rw,memoryless", NULL);
	check_oom_file(NULL);
	mounts("/", "v1", "cgroup cgroup rw,memory", NULL);
	check_oom_file("v1/x/memory.oom_control");
	/* Linux before 4.13 counts none. */
	put("v1/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n");
	check_oom_file(NULL);
}
END_TEST

/* The guard of an attempt that ends removes the parent where that is empty. */
START_TEST(a_group_is_made_again_where_its_parent_has_gone)
{
	_cleanup_free_ char *group = str_path_join(dir, "base/7.1"),
	                    *beyond = str_path_join(dir, "no/base/7.1");

	vanishing = 5;
	ck_assert_int_eq(cgroup_create(group), 0);
	ck_assert_int_eq(vanishing, 0);
	ck_assert(exists(group));
	ck_assert_int_eq(rmdir(group), 0);
	vanishing = -1;
	skipped = 1;
	ck_assert_int_eq(cgroup_create(group), -ENOENT);
	vanishing = 0;
	ck_assert_int_eq(cgroup_create(beyond), -ENOENT);
	skipped = 0;
}
END_TEST

/* The file of a limit is of the group, or of none. */
START_TEST(memory_may_run_out)
{
	_cleanup_free_ char *group = str_path_join(dir, "base/7.1"),
	                    *limit = str_path_join(group, "memory.max");
	const struct cgroup_limits limits = {.memory = 5, .tasks = UINT64_MAX};
	int r = 0, tries = 0;

	memory_left = 1;
	ck_assert_int_eq(cgroup_create(group), -ENOMEM);
	ck_assert_int_eq(cgroup_create(group), 0);
	put("base/7.1/memory.max", "");
	memory_refused = true;
	for (long n = 1; memory_refused; n++) {
		memory_refused = false;
		memory_left = n;
		r = cgroup_limit(group, &limits);
		memory_left = 0;
		ck_assert_msg(r == 0 || r == -ENOTSUP || (r == -ENOMEM && n == 1), "allocation %ld: %d", n,
		              r);
		ck_assert(r < 0 || n > 1);
		tries++;
	}
	ck_assert_int_eq(r, 0);
	ck_assert_int_gt(tries, 4);
	ck_assert(exists(limit));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cgroup");
	TCase *tc = tcase_create("cgroup");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, groups_are_made_within_the_own_one);
	tcase_add_test(tc, where_no_group_can_be_made_there_is_no_base);
	tcase_add_test(tc, a_base_that_is_there_is_kept);
	tcase_add_test(tc, the_file_that_counts_kills_is_that_of_the_own_group);
	tcase_add_test(tc, a_group_is_made_again_where_its_parent_has_gone);
	tcase_add_test(tc, memory_may_run_out);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
