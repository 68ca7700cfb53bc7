/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.jsonl of a run: its lines, and which of them are there after a restart. */
#include "unit.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "worker/metrics.h"

static void check_steps(const char *path, const int *steps, size_t n, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	char *line, *save = NULL;
	size_t i = 0;

	ck_ok(file_read(path, 0, &text, NULL, err), err);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), i++) {
		_cleanup_json_ json_t *j = NULL;

		ck_ok(json_parse(line, strlen(line), "line", &j, err), err);
		if (json_object_get(j, "event")) {
			i--;
			continue;
		}
		ck_assert_int_eq(json_get_int(j, "step", -1), steps[i]);
		ck_assert(json_get_number(j, "loss", 0) == 1.0 / 3);
	}
	ck_assert_uint_eq(i, n);
}

START_TEST(metrics_of_a_resumed_run_have_no_line_twice)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "metrics.jsonl"), *text = NULL;
	struct metrics_report rec = {.steps = 9, .loss = 1.0 / 3, .learning_rate = 1e-4, .eval_loss = NAN};
	struct error err = ERROR_INIT;
	struct metrics *m;
	size_t len;

	ck_ok(metrics_open(dir, 0, true, &m, &err), &err);
	ck_ok(metrics_event(
	          m,
	          &(struct metrics_mark){
	              .event = (char *)"start", .time = 12.3456, .attempt = 2, .from = (char *)"a\"b"},
	          "begun", &err),
	      &err);
	for (rec.step = 1; rec.step <= 6; rec.step++) {
		ck_ok(metrics_write(m, &rec, NULL, &err), &err);
		if (rec.step == 3)
			ck_ok(metrics_event(m,
			                    &(struct metrics_mark){.event = (char *)"checkpoint", .step = 3},
			                    "saved", &err),
			      &err);
	}
	metrics_close(m);
	/* The last line is cut in the middle, as by a crash. */
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_int_eq(truncate(path, len - 5), 0);
	ck_ok(metrics_open(dir, 6, false, &m, &err), &err);
	metrics_close(m);
	check_steps(path, (int[]){1, 2, 3, 4, 5}, 5, &err);
	ck_ok(metrics_open(dir, 3, true, &m, &err), &err);
	rec.step = 4;
	rec.eval_loss = 2;
	ck_ok(metrics_write(m, &rec, NULL, &err), &err);
	metrics_close(m);
	check_steps(path, (int[]){1, 2, 3, 4}, 4, &err);
	/* Marks are removed with their steps. */
	free(steal_pointer(text));
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert(str_starts(
	    text, "{\"event\":\"start\",\"step\":0,\"time\":12.346,\"attempt\":2,\"from\":\"a\\\"b\"}\n"));
	ck_assert_ptr_nonnull(
	    strstr(text, "{\"event\":\"checkpoint\",\"step\":3,\"time\":0.0}\n{\"step\":4"));
	ck_ok(metrics_open(dir, 2, false, &m, &err), &err);
	metrics_close(m);
	free(steal_pointer(text));
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_ptr_null(strstr(text, "checkpoint"));
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* A checkpoint that is written while the training goes on is marked after later steps. */
START_TEST(the_mark_of_a_checkpoint_stays)
{
	static const char begun[] = "{\"event\":\"checkpoint\",\"step\":2,";
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "metrics.jsonl"), *text = NULL;
	struct metrics_report rec = {.steps = 9, .loss = 1.0 / 3, .learning_rate = 1e-4, .eval_loss = NAN};
	struct metrics_mark mark = {.event = (char *)"checkpoint", .step = 2};
	struct error err = ERROR_INIT;
	struct metrics *m;
	size_t len;

	ck_ok(metrics_open(dir, 0, false, &m, &err), &err);
	for (rec.step = 1; rec.step <= 3; rec.step++)
		ck_ok(metrics_write(m, &rec, NULL, &err), &err);
	ck_ok(metrics_event(m, &mark, "", &err), &err);
	ck_ok(metrics_write(m, &rec, NULL, &err), &err);
	metrics_close(m);
	ck_ok(metrics_open(dir, 2, false, &m, &err), &err);
	metrics_close(m);
	check_steps(path, (int[]){1, 2}, 2, &err);
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_ptr_nonnull(strstr(text, begun));
	free(steal_pointer(text));
	ck_ok(metrics_open(dir, 1, false, &m, &err), &err);
	metrics_close(m);
	ck_ok(file_read(path, 0, &text, &len, &err), &err);
	ck_assert_ptr_null(strstr(text, begun));
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* The process of an earlier attempt goes on, on a machine that was paused: its lines are in no file that has
 * a name. */
START_TEST(an_earlier_attempt_writes_to_a_file_of_its_own)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "metrics.jsonl");
	struct metrics_report rec = {.steps = 9, .loss = 1.0 / 3, .learning_rate = 1e-4, .eval_loss = NAN};
	struct error err = ERROR_INIT;
	struct metrics *paused, *next;

	for (int resumed = 1; resumed >= 0; resumed--) {
		ck_ok(metrics_open(dir, 0, false, &paused, &err), &err);
		for (rec.step = 1; rec.step <= 2; rec.step++)
			ck_ok(metrics_write(paused, &rec, NULL, &err), &err);
		ck_ok(metrics_open(dir, resumed, false, &next, &err), &err);
		rec.step = 3;
		ck_ok(metrics_write(paused, &rec, NULL, &err), &err);
		rec.step = resumed + 1;
		ck_ok(metrics_write(next, &rec, NULL, &err), &err);
		metrics_close(paused);
		metrics_close(next);
		check_steps(path, (int[]){1, 2}, resumed + 1, &err);
	}
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* Two runs in the directory of one that ended before its first checkpoint: nothing is lost. */
START_TEST(metrics_of_an_earlier_run_are_kept)
{
	_cleanup_free_ char *dir = unit_tmpdir();
	struct metrics_report rec = {.steps = 9, .loss = 1.0 / 3, .learning_rate = 1e-4, .eval_loss = NAN};
	struct error err = ERROR_INIT;
	struct metrics *m;

	/* A file without measurements is written again. */
	for (int run = 0; run < 4; run++) {
		ck_ok(metrics_open(dir, 0, false, &m, &err), &err);
		ck_ok(metrics_event(m, &(struct metrics_mark){.event = (char *)"start", .time = 1}, "", &err),
		      &err);
		rec.step = run;
		if (run)
			ck_ok(metrics_write(m, &rec, NULL, &err), &err);
		metrics_close(m);
	}
	for (int run = 1; run < 4; run++) {
		_cleanup_free_ char *path = run < 3 ? str_printf("%s/metrics.jsonl.%d", dir, run)
		                                    : str_path_join(dir, "metrics.jsonl");
		_cleanup_free_ char *text = NULL;
		size_t len;

		ck_ok(file_read(path, 0, &text, &len, &err), &err);
		ck_assert(str_starts(text, "{\"event\":\"start\""));
		check_steps(path, (int[]){run}, 1, &err);
	}
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* Unknown values are left out, and a line with the longest numbers is complete. */
START_TEST(a_line_of_metrics_holds_everything)
{
	struct metrics_report rec = {
	    .step = INT64_MAX,
	    .steps = INT64_MAX,
	    .epoch = -2.2250738585072014e-308,
	    .loss = -2.2250738585072014e-308,
	    .learning_rate = -2.2250738585072014e-308,
	    .grad_norm = -2.2250738585072014e-308,
	    .tokens = INT64_MAX,
	    .tokens_per_second = -1.7976931348623157e+308,
	    .eta_seconds = -1.7976931348623157e+308,
	    .eval_loss = 709.7,
	    .time = -1.7976931348623157e+308,
	    .step_seconds = 1e300,
	    .compute_seconds = 1e300,
	    .communication_seconds = 1e300,
	    .data_seconds = 1e300,
	    .memory_bytes = INT64_MAX,
	    .device_memory_bytes = INT64_MAX,
	    .slowest_rank = INT32_MAX,
	    .slowest_node =
	        (char *)"a \"node\\ with\na name of more than sixty-four characters, which are the most",
	    .slowest_seconds = 1e300};
	_cleanup_json_ json_t *all = NULL, *few = NULL;
	struct error err = ERROR_INIT;
	_cleanup_free_ char *line = NULL;

	line = metrics_line(&rec, NULL);
	ck_ok(json_parse(line, strlen(line), "line", &all, &err), &err);
	ck_assert_int_eq(json_get_int(all, "memory_bytes", 0), INT64_MAX);
	ck_assert(str_starts(json_get_string(all, "slowest_node", ""), "a \"node\\ with\na name"));
	ck_assert_double_eq_tol(json_get_number(all, "eval_perplexity", 0) / exp(709.7), 1, 1e-9);
	rec = (struct metrics_report){
	    .eval_loss = NAN, .communication_seconds = NAN, .compute_seconds = NAN, .slowest_rank = -1};
	free(line);
	line = metrics_line(&rec, NULL);
	ck_ok(json_parse(line, strlen(line), "line", &few, &err), &err);
	ck_assert_ptr_nonnull(json_object_get(few, "data_seconds"));
	for (size_t i = 0; i < 7; i++)
		ck_assert_ptr_null(json_object_get(
		    few, ((const char *const[]){"compute_seconds", "communication_seconds", "slowest_rank",
		                                "slowest_node", "memory_bytes", "eval_loss",
		                                "eval_perplexity"})[i]));
}
END_TEST

/* All files of TensorBoard in the directory, one behind the other. */
static void read_events(const char *dir, struct strbuf *out)
{
	_cleanup_free_ char *runs = str_path_join(dir, "runs");
	DIR *list = opendir(runs);
	const struct dirent *entry;

	ck_assert_ptr_nonnull(list);
	while ((entry = readdir(list))) {
		_cleanup_free_ char *path = str_path_join(runs, entry->d_name), *data = NULL;
		size_t len;

		if (entry->d_name[0] != '.' && file_read(path, 0, &data, &len, NULL) == 0)
			strbuf_add(out, data, len);
	}
	closedir(list);
}

static bool has_tag(const struct strbuf *events, const char *tag)
{
	return events->len && memmem(events->data, events->len, tag, strlen(tag));
}

static const char *const always[] = {"train/loss",       "train/learning_rate", "train/grad_norm",
                                     "train/epoch",      "train/tokens",        "perf/tokens_per_second",
                                     "perf/step_seconds"};
static const char *const sometimes[] = {
    "train/loss_scale",     "train/skipped_steps",  "perf/memory_bytes", "perf/device_memory_bytes",
    "perf/slowest_rank",    "perf/slowest_seconds", "eval/loss",         "train/rewards/margins",
    "eval/rewards/margins", "eval/accuracy"};

/* A preference task has numbers of its own, and no perplexity; what is not known is left out: without an
 * evaluation, and of an evaluation that has no loss. */
START_TEST(a_report_has_the_numbers_of_its_task)
{
	static const struct preference_metric values[] = {{"rewards/margins", 0.5}, {"accuracy", NAN}},
	                                      evaluated[] = {{"rewards/margins", 0.25}, {"accuracy", 0.75}};
	struct metrics_report rec = {
	    .step = 3, .steps = 9, .loss = 0.5, .eval_loss = NAN, .slowest_rank = -1};
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "metrics.jsonl");

	for (int evaluates = 0; evaluates < 3; evaluates++) {
		const struct metrics_extra extra = {2, values, evaluates ? evaluated : NULL};
		_cleanup_strbuf_ struct strbuf events = {0};
		_cleanup_free_ char *line = NULL;
		_cleanup_json_ json_t *j = NULL;
		struct error err = ERROR_INIT;
		struct metrics *m;

		if (evaluates)
			rec = (struct metrics_report){.step = 3,
			                              .steps = 9,
			                              .loss = 0.5,
			                              .eval_loss = evaluates == 1 ? 0.25 : NAN,
			                              .slowest_rank = 0,
			                              .slowest_seconds = 1,
			                              .loss_scale = 4,
			                              .memory_bytes = 1,
			                              .device_memory_bytes = 1};
		ck_ok(metrics_open(dir, 0, true, &m, &err), &err);
		ck_ok(metrics_write(m, &rec, &extra, &err), &err);
		metrics_close(m);
		ck_ok(file_read(path, 0, &line, NULL, &err), &err);
		j = json_loads(line, 0, NULL);
		ck_assert_double_eq(json_get_number(j, "rewards/margins", 0), 0.5);
		ck_assert_ptr_null(json_object_get(j, "accuracy"));
		ck_assert_ptr_null(json_object_get(j, "eval_perplexity"));
		ck_assert_double_eq(json_get_number(j, "eval_rewards/margins", 0), evaluates ? 0.25 : 0);
		ck_assert_double_eq(json_get_number(j, "eval_accuracy", 0), evaluates ? 0.75 : 0);
		ck_assert_int_eq(json_object_get(j, "slowest_seconds") != NULL, evaluates > 0);
		ck_assert_int_eq(json_object_get(j, "eval_loss") != NULL, evaluates == 1);
		read_events(dir, &events);
		for (size_t i = 0; i < ARRAY_SIZE(always); i++)
			ck_assert_msg(has_tag(&events, always[i]), "%s", always[i]);
		for (size_t i = 0; i < ARRAY_SIZE(sometimes); i++)
			ck_assert_msg(has_tag(&events, sometimes[i]) ==
			                  (str_eq(sometimes[i], "eval/loss")
			                       ? evaluates == 1
			                       : evaluates || str_eq(sometimes[i], "train/rewards/margins")),
			              "%s", sometimes[i]);
		ck_assert(!has_tag(&events, "train/accuracy"));
		ck_assert(!has_tag(&events, "eval/perplexity"));
		ck_ok(file_remove_tree(dir, &err), &err);
		ck_assert_int_eq(mkdir(dir, 0700), 0);
	}
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* Of tokens: e to the loss, where that is a number. */
START_TEST(a_loss_of_tokens_has_a_perplexity)
{
	const struct metrics_extra none = {0, NULL, NULL};
	static const struct {
		double loss, perplexity;
	} cases[] = {{0, 1}, {2, 7.389056}, {NAN, 0}, {1000, 0}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct metrics_report rec = {.eval_loss = cases[i].loss, .slowest_rank = -1};
		_cleanup_free_ char *line = metrics_line(&rec, &none);
		_cleanup_json_ json_t *j = json_loads(line, 0, NULL);

		ck_assert_double_eq(json_get_number(j, "eval_perplexity", 0), cases[i].perplexity);
	}
}
END_TEST

/* The digits that are measured. */
START_TEST(times_are_rounded)
{
	struct metrics_report rec = {.tokens_per_second = 12.345,
	                             .eta_seconds = 5.678,
	                             .time = 1.23456,
	                             .step_seconds = 0.12345678,
	                             .compute_seconds = 0.22345678,
	                             .communication_seconds = 0.32345678,
	                             .data_seconds = 0.42345678,
	                             .slowest_rank = 2,
	                             .slowest_seconds = 0.52345678,
	                             .eval_loss = NAN,
	                             .loss = 1.23456789};
	static const struct {
		const char *name;
		double value;
	} want[] = {
	    {"tokens_per_second", 12.3}, {"eta_seconds", 5.7},          {"time", 1.235},
	    {"step_seconds", 0.123457},  {"compute_seconds", 0.223457}, {"communication_seconds", 0.323457},
	    {"data_seconds", 0.423457},  {"slowest_seconds", 0.523457}, {"loss", 1.23456789}};
	_cleanup_free_ char *line = metrics_line(&rec, NULL);
	_cleanup_json_ json_t *j = json_loads(line, 0, NULL);

	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		ck_assert_msg(json_get_number(j, want[i].name, 0) == want[i].value, "%s: %s", want[i].name,
		              line);
}
END_TEST

START_TEST(what_cannot_be_written_is_named)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "metrics.jsonl");
	struct error err = ERROR_INIT;
	struct metrics *m;

	ck_fails(metrics_open("/nowhere", 0, false, &m, &err), &err,
	         "cannot write /nowhere/metrics.jsonl: No such file or directory");
	ck_fails(metrics_open("/nowhere", 5, false, &m, &err), &err,
	         "cannot write /nowhere/metrics.jsonl: No such file or directory");
	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_fails(metrics_open(dir, 0, false, &m, &err), &err, "cannot read ");
	ck_fails(metrics_open(dir, 5, false, &m, &err), &err, "cannot read ");
	ck_assert_int_eq(rmdir(path), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("metrics");
	TCase *t = tcase_create("metrics");

	tcase_add_test(t, metrics_of_a_resumed_run_have_no_line_twice);
	tcase_add_test(t, the_mark_of_a_checkpoint_stays);
	tcase_add_test(t, an_earlier_attempt_writes_to_a_file_of_its_own);
	tcase_add_test(t, metrics_of_an_earlier_run_are_kept);
	tcase_add_test(t, a_line_of_metrics_holds_everything);
	tcase_add_test(t, a_report_has_the_numbers_of_its_task);
	tcase_add_test(t, a_loss_of_tokens_has_a_perplexity);
	tcase_add_test(t, times_are_rounded);
	tcase_add_test(t, what_cannot_be_written_is_named);
	suite_add_tcase(s, t);
	return unit_run(s);
}
