/* SPDX-License-Identifier: Apache-2.0 */
/* The example run files: each can be read, the files that it names are in the package or in the comment at
 * its top, and all examples of its data are used. tests/cluster/test_examples runs them. */
#include <dirent.h>

#include "base/file.h"
#include "base/str.h"
#include "config/run.h"
#include "engine/chat/template.h"
#include "engine/dataset/dataset.h"
#include "unit.h"

#include "stub_tokenizer.h"

#define EXAMPLES SRCDIR "/etc/examples"

static int run_files(const struct dirent *e)
{
	return str_ends(e->d_name, ".conf");
}

static int all_files(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/* It is in the directory of the run file, or the comment at its top has its name. */
static bool shipped(const char *name)
{
	_cleanup_free_ char *path = str_path_join(EXAMPLES, name);

	return file_exists(path);
}

static void check_named(const char *file, const char *head, const char *name)
{
	if (name && !shipped(name))
		ck_assert_msg(strstr(head, name), "%s: %s is neither shipped nor mentioned at the top", file,
		              name);
}

static void fail_on_skipped(void *context, const char *message)
{
	ck_assert_msg(!str_starts(message, "skipped"), "%s: %s", (const char *)context, message);
}

/* With a warm-up the first step has a rate of 0, so that a run of two or three steps would teach little. */
static void check_steps(const char *file, const struct run_config *c, int64_t rows)
{
	int64_t ranks = c->resources.nodes.low * c->resources.devices_per_node;
	double batch = (double)(c->train.micro_batch * c->train.accumulation * ranks);
	double steps = (double)rows / batch * c->train.epochs;

	/* A batch is of completions, of which each prompt has some. */
	if (run_task_rewards(c->task))
		steps *= (double)(run_config_policy(c)->generations * run_config_policy(c)->iterations);
	ck_assert_msg(steps >= 8, "%s: only %.1f steps", file, steps);
}

/* Paths are seen from the directory of the examples. */
static void check_data(const char *file, const struct run_config *c)
{
	struct dataset_options o = {
	    .task = c->task == RUN_KTO          ? DATASET_LABELS
	            : run_task_prefers(c->task) ? DATASET_PAIRS
	            : run_task_rewards(c->task) ? DATASET_PROMPTS
	                                        : DATASET_SFT,
	    .paths = (const char *const *)c->data.path,
	    .dataset_dir = c->data.dataset_dir,
	    .datasets = (const char *const *)c->data.dataset,
	    .format = c->data.format,
	    .columns_json = c->data.columns,
	    .tags_json = c->data.tags,
	    .template_name = c->data.template_,
	    .system = c->data.system,
	    .max_length = 4096,
	    .eval_fraction = c->data.eval_fraction,
	    .warn = fail_on_skipped,
	    .warn_context = (void *)file,
	};
	_cleanup_(dataset_closep) struct dataset *train = NULL, *eval = NULL;
	const struct template *template;
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};

	ck_ok(template_find(c->data.template_, &template, &err), &err);
	ck_assert_msg(!template->default_system, "%s: template %s speaks of another model", file,
	              template->name);
	ck_ok(dataset_open(&o, &tok, &train, &eval, &err), &err);
	ck_assert_msg(!eval == !(c->data.eval_fraction > 0), "%s: what is held out makes no row", file);
	check_steps(file, c, dataset_rows(train));
}

START_TEST(run_files_can_be_used_as_they_are)
{
	_cleanup_free_ struct dirent **names = NULL;
	int n = scandir(EXAMPLES, &names, run_files, alphasort);

	ck_assert_int_ge(n, 6);
	ck_assert_int_eq(chdir(EXAMPLES), 0);
	for (int i = 0; i < n; i++) {
		_cleanup_(run_config_freep) struct run_config *c = NULL;
		_cleanup_free_ char *text = NULL;
		const char *file = names[i]->d_name;
		struct error err = ERROR_INIT;
		char *end;
		bool all = true;

		ck_ok(run_config_read(file, NULL, &c, &err), &err);
		ck_ok(file_read(file, 0, &text, NULL, &err), &err);
		end = strstr(text, "\nname");
		ck_assert_msg(text[0] == '#' && end, "%s: a comment, then the name", file);
		*end = '\0';
		check_named(file, text, c->model.path);
		check_named(file, text, c->model.init);
		check_named(file, text, c->model.tokenizer);
		for (char **p = c->data.path; p && *p; p++) {
			check_named(file, text, *p);
			all = all && shipped(*p);
		}
		if (c->data.dataset_dir)
			ck_assert_msg(shipped("dataset_info.json"), "%s", file);
		if (c->task == RUN_COMMAND)
			check_named(file, text, c->command[1]);
		for (char **p = run_config_policy(c)->reward; p && *p; p++)
			check_named(file, text, *p);
		if (c->task != RUN_PRETRAIN && run_task_trains(c->task) && all)
			check_data(file, c);
		free(names[i]);
	}
}
END_TEST

/* All of them are in the package: in the list of etc/etc.am. */
START_TEST(all_are_shipped)
{
	_cleanup_free_ struct dirent **names = NULL;
	_cleanup_free_ char *list = NULL;
	struct error err = ERROR_INIT;
	int n = scandir(EXAMPLES, &names, all_files, alphasort);

	ck_assert_int_gt(n, 0);
	ck_ok(file_read(SRCDIR "/etc/etc.am", 0, &list, NULL, &err), &err);
	for (int i = 0; i < n; i++) {
		_cleanup_free_ char *entry = str_printf("\tetc/examples/%s", names[i]->d_name);
		const char *at = strstr(list, entry);

		ck_assert_msg(at && strchr(" \n", at[strlen(entry)]), "%s is not in etc/etc.am",
		              names[i]->d_name);
		free(names[i]);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("examples");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, run_files_can_be_used_as_they_are);
	tcase_add_test(tc, all_are_shipped);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
