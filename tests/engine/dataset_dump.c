/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset_dump TOKENIZER [KEY=VALUE …]: the rows of a dataset as JSON lines {"ids","targets","starts"}, the
 * training split first, a line "eval" between the two. chat_template=FILE: writes the Jinja source that would
 * be saved with a model. tests/engine/dataset_reference.py compares them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "engine/chat/jinja.h"
#include "engine/dataset/dataset.h"
#include "print_row.h"

static void print_rows(const struct dataset *data)
{
	struct dataset_row row;

	for (int64_t i = 0; i < dataset_rows(data); i++) {
		dataset_row(data, i, &row);
		print_row(&row);
		printf("\n");
	}
}

static void warn(void *context, const char *message)
{
	fprintf(stderr, "warning: %s\n", message);
}

static int parse_option(struct dataset_options *o, char *arg, const char **paths, const char **names)
{
	char *value = strchr(arg, '=');
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {{"packing", &o->packing},
	             {"cross_documents", &o->cross_documents},
	             {"train_on_prompt", &o->train_on_prompt},
	             {"mask_history", &o->mask_history},
	             {"efficient_eos", &o->efficient_eos}};
	const struct {
		const char *name;
		const char **text;
	} texts[] = {{"path", &paths[0]},
	             {"dataset", &names[0]},
	             {"dataset_dir", &o->dataset_dir},
	             {"format", &o->format},
	             {"columns", &o->columns_json},
	             {"tags", &o->tags_json},
	             {"template", &o->template_name},
	             {"system", &o->system},
	             {"tool_prompt", &o->tool_prompt},
	             {"cache_dir", &o->cache_dir}};

	if (!value)
		return -EINVAL;
	*value++ = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		if (str_eq(flags[i].name, arg)) {
			*flags[i].flag = str_eq(value, "true");
			return 0;
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		if (str_eq(texts[i].name, arg)) {
			*texts[i].text = value;
			return 0;
		}
	}
	if (str_eq(arg, "task"))
		o->task = str_eq(value, "pretrain") ? DATASET_PRETRAIN : DATASET_SFT;
	else if (str_eq(arg, "max_length"))
		o->max_length = atoi(value);
	else if (str_eq(arg, "max_samples"))
		o->max_samples = atoll(value);
	else if (str_eq(arg, "eval_fraction"))
		o->eval_fraction = atof(value);
	else
		return -EINVAL;
	return 0;
}

static int write_jinja(const struct dataset_options *o, const struct tokenizer *tok, const char *path,
                       struct error *err)
{
	_cleanup_(template_choice_clear) struct template_choice choice = {.source = TEMPLATE_NAMED};
	_cleanup_strbuf_ struct strbuf text = {0};
	const struct jinja_options how = {o->efficient_eos, o->mask_history};
	int r = template_choose(o->template_name, tok, &choice, err);

	if (o->system)
		choice.template.default_system = o->system;
	if (r < 0 || (r = jinja_write(&choice.template, tok, &how, &text, err)) < 0)
		return r;
	return file_write_atomic(path, text.data, text.len, 0644, err);
}

int main(int argc, char **argv)
{
	const char *chat_template = NULL;
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	_cleanup_(dataset_closep) struct dataset *train = NULL, *held_back = NULL;
	const char *paths[2] = {NULL}, *names[2] = {NULL};
	struct dataset_options o = {.task = DATASET_SFT,
	                            .paths = paths,
	                            .datasets = names,
	                            .max_length = 2048,
	                            .seed = 42,
	                            .warn = warn};
	struct error err = ERROR_INIT;
	double start;

	if (argc < 2)
		return 2;
	for (int i = 2; i < argc; i++) {
		if (str_starts(argv[i], "max_length=")) {
			o.max_length = atoi(argv[i] + strlen("max_length="));
			continue;
		}
		if (str_starts(argv[i], "chat_template=")) {
			chat_template = strchr(argv[i], '=') + 1;
			continue;
		}
		if (str_eq(argv[i], "task=pairs") || str_eq(argv[i], "task=labels")) {
			o.task = str_eq(argv[i], "task=pairs") ? DATASET_PAIRS : DATASET_LABELS;
			continue;
		}
		if (parse_option(&o, argv[i], paths, names) < 0) {
			fprintf(stderr, "error: %s: no such option\n", argv[i]);
			return 2;
		}
	}
	if (tokenizer_load(argv[1], &tok, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	if (chat_template && write_jinja(&o, tok, chat_template, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	start = clock_monotonic();
	if (dataset_open(&o, tok, &train, &held_back, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	fprintf(stderr, "%lld rows, %lld tokens, %lld examples in %.3f s\n", (long long)dataset_rows(train),
	        (long long)dataset_tokens(train), (long long)dataset_examples(train),
	        clock_monotonic() - start);
	print_rows(train);
	if (held_back) {
		puts("eval");
		print_rows(held_back);
	}
	return 0;
}
