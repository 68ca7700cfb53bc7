/* SPDX-License-Identifier: Apache-2.0 */
/* The knowledge of a node about clusters, after a restart of its service and with damaged files. */
#include "failing_memory.h"
#include "node/clusters.h"
#include "unit.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

struct place {
	sd_event *event;
	char *dir, *state, *logs;
	struct clusters *clusters;
};

static struct place place; /* Check's fixtures have no other place */

static void restart(void)
{
	struct error err = ERROR_INIT;

	clusters_close(place.clusters);
	place.clusters = NULL;
	ck_ok(clusters_open(place.event, place.state, place.logs, &place.clusters, &err), &err);
}

static void setup(void)
{
	memset(&place, 0, sizeof place);
	ck_assert_int_ge(sd_event_new(&place.event), 0);
	place.dir = unit_tmpdir();
	place.state = str_path_join(place.dir, "state");
	place.logs = str_path_join(place.dir, "log");
	restart();
}

static void teardown(void)
{
	clusters_close(place.clusters);
	sd_event_unref(place.event);
	file_remove_tree(place.dir, NULL);
	free(place.dir);
	free(place.state);
	free(place.logs);
}

static void learn(int epoch, int highest)
{
	struct error err = ERROR_INIT;

	ck_ok(clusters_learn(place.clusters, "a1", epoch, highest, &err), &err);
}

static void check_known(int epoch, int highest)
{
	struct known_clusters known;
	struct error err = ERROR_INIT;

	ck_ok(clusters_describe(place.clusters, &known, &err), &err);
	ck_assert_int_eq(known.highest_run, highest);
	known_clusters_release(&known);
	ck_ok(clusters_check(place.clusters, "a1", epoch, &err), &err);
	ck_assert_int_eq(clusters_check(place.clusters, "a1", epoch - 1, &err), epoch ? -ESTALE : 0);
}

static char *state_path(const char *name)
{
	return str_path_join(place.state, name);
}

static void damage(const char *name, const char *text)
{
	_cleanup_free_ char *path = state_path(name);
	struct error err = ERROR_INIT;

	restart(); /* what was learned is on disk */
	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

/* The files as after a crash of the machine. */
START_TEST(damaged_files_are_as_missing_ones)
{
	static const char *const texts[] = {"", "{\"clu", "[]", "\xff",
	                                    "{\"clusters\":[7,{},{\"id\":\"\"}]}"};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		struct known_clusters known;
		struct error err = ERROR_INIT;
		int epoch = 10 + (int)i, run = 60 + (int)i;

		learn(epoch, run);
		damage("clusters.json", texts[i]);
		restart();
		ck_ok(clusters_describe(place.clusters, &known, &err), &err);
		ck_assert_uint_eq(known.cluster_count, 0);
		known_clusters_release(&known);
		check_known(0, run);
		learn(epoch, run);
		damage("highest_run", texts[i]);
		restart();
		check_known(epoch, run);
		damage("clusters.json", texts[i]);
		restart();
		check_known(0, 0);
		learn(epoch, run);
		restart();
		check_known(epoch, run);
	}
}
END_TEST

/* What is synced is not put at risk by each new run: that file stays as it is. */
START_TEST(a_new_run_does_not_rewrite_the_epochs)
{
	_cleanup_free_ char *path = state_path("clusters.json");
	struct stat before, after;

	learn(4, 57);
	restart();
	ck_assert_int_eq(stat(path, &before), 0);
	learn(4, 58);
	restart();
	ck_assert_int_eq(stat(path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_assert_int_eq(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
	ck_assert_int_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
	check_known(4, 58);
	learn(5, 58);
	restart();
	check_known(5, 58);
}
END_TEST

/* Where state_dir is new, the logs still say which numbers were given. */
START_TEST(directories_of_logs_count_as_runs)
{
	static const char *const names[] = {"57", "8", "0", "x99", "99x", "-5"};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ char *path = str_path_join(place.logs, names[i]);

		ck_ok(file_mkdirs(path, 0755, &err), &err);
	}
	restart();
	check_known(0, 57);
	learn(1, 60);
	restart();
	check_known(1, 60);
	learn(1, 12);
	check_known(1, 60);
}
END_TEST

/* The one that was heard longest ago makes room. */
START_TEST(so_many_clusters_are_known)
{
	_cleanup_(known_clusters_release) struct known_clusters known;
	struct error err = ERROR_INIT;
	char id[16];

	for (int i = 0; i < 40; i++) {
		snprintf(id, sizeof id, "c%d", i);
		ck_ok(clusters_learn(place.clusters, id, 10 + i, 0, &err), &err);
		/* c0 is heard again and again. */
		ck_ok(clusters_learn(place.clusters, "c0", 10 + i, 0, &err), &err);
	}
	restart();
	ck_ok(clusters_describe(place.clusters, &known, &err), &err);
	ck_assert_uint_gt(known.cluster_count, 8);
	ck_assert_uint_lt(known.cluster_count, 40);
	ck_assert_str_eq(known.clusters[known.cluster_count - 1].id, "c0");
	ck_assert_int_eq(known.clusters[known.cluster_count - 1].epoch, 49);
	ck_assert_str_eq(known.clusters[known.cluster_count - 2].id, "c39");
	ck_assert_int_eq(clusters_check(place.clusters, "c39", 48, &err), -ESTALE);
	ck_ok(clusters_check(place.clusters, "c1", 1, &err), &err); /* it is not known any more */
}
END_TEST

/* One without a name, or with one that is too long, is none. */
START_TEST(a_cluster_has_a_name)
{
	_cleanup_free_ char *path = state_path("clusters.json"), *text = NULL;
	char longest[CLUSTER_ID_MAX + 1], longer[CLUSTER_ID_MAX + 2];
	struct known_clusters known;
	struct error err = ERROR_INIT;

	memset(longest, 'a', sizeof(longest));
	memset(longer, 'a', sizeof(longer));
	longest[CLUSTER_ID_MAX] = longer[CLUSTER_ID_MAX + 1] = '\0';
	ck_assert_int_eq(clusters_learn(place.clusters, longer, 4, 57, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, "at most 64 characters"));
	ck_ok(clusters_describe(place.clusters, &known, &err), &err);
	ck_assert_uint_eq(known.cluster_count, 0);
	ck_assert_int_eq(known.highest_run, 0);
	known_clusters_release(&known);
	ck_ok(clusters_learn(place.clusters, longest, 4, 57, &err), &err);
	ck_ok(clusters_learn(place.clusters, "", 9, 58, &err), &err);
	restart();
	text = str_printf(
	    "{\"highest_run\":60,\"clusters\":[{\"id\":\"\",\"epoch\":7},{\"id\":\"%s\",\"epoch\":8},"
	    "{\"id\":\"%s\",\"epoch\":9}]}",
	    longer, longest);
	for (int edited = 0; edited < 2; edited++) {
		if (edited)
			ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
		restart();
		ck_ok(clusters_describe(place.clusters, &known, &err), &err);
		ck_assert_uint_eq(known.cluster_count, 1);
		ck_assert_str_eq(known.clusters[0].id, longest);
		ck_assert_int_eq(known.clusters[0].epoch, edited ? 9 : 4);
		ck_assert_int_eq(known.highest_run, edited ? 60 : 58);
		known_clusters_release(&known);
	}
}
END_TEST

/* It is known nevertheless, and written as soon as that is possible. */
START_TEST(what_cannot_be_written_is_written_later)
{
	_cleanup_free_ char *runs = state_path("highest_run"), *epochs = state_path("clusters.json"),
	                    *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(place.state, "", 0, 0644, &err), &err); /* in place of the directory */
	learn(4, 57);
	check_known(4, 57);
	while (sd_event_run(place.event, 50000) > 0)
		;
	ck_assert_int_eq(unlink(place.state), 0);
	learn(4, 57);
	ck_ok(file_read(runs, 0, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "0000000000000000057\n");
	/* The file of the epochs is written off the event loop. */
	while (!file_exists(epochs)) {
		learn(4, 57);
		ck_assert_int_ge(sd_event_run(place.event, 10000), 0);
	}
	restart();
	check_known(4, 57);
}
END_TEST

/* The number is not written to a file that a link names. */
START_TEST(no_link_is_followed)
{
	_cleanup_free_ char *runs = state_path("highest_run"), *other = str_path_join(place.dir, "other");
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(place.state, 0755, &err), &err);
	ck_assert_int_eq(symlink(other, runs), 0);
	learn(4, 57);
	check_known(4, 57);
	ck_assert(!file_exists(other));
}
END_TEST

static int open_again(void *context, struct error *err)
{
	_cleanup_(clusters_closep) struct clusters *c = NULL;
	struct known_clusters known;
	int r;

	(void)context;
	if ((r = clusters_open(place.event, place.state, place.logs, &c, err)) < 0 ||
	    (r = clusters_describe(c, &known, err)) < 0)
		return r;
	ck_assert_int_eq(known.highest_run, 57);
	known_clusters_release(&known);
	return 0;
}

START_TEST(memory_may_run_out_at_any_place)
{
	learn(4, 57);
	memory_runs_out(open_again, NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("clusters of a node");
	TCase *tc = tcase_create("clusters");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, memory_may_run_out_at_any_place);
	tcase_add_test(tc, a_cluster_has_a_name);
	tcase_add_test(tc, what_cannot_be_written_is_written_later);
	tcase_add_test(tc, no_link_is_followed);
	tcase_add_test(tc, directories_of_logs_count_as_runs);
	tcase_add_test(tc, so_many_clusters_are_known);
	tcase_add_test(tc, damaged_files_are_as_missing_ones);
	tcase_add_test(tc, a_new_run_does_not_rewrite_the_epochs);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
