/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain check: reads a run file, and looks at what it names as far as that can be seen from here: the model,
 * the tokenizer, the data, the template, the directories it writes to, the program. What only the nodes can
 * tell is named.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/estimate.h"
#include "dtrain/model_words.h"
#include "dtrain/options.h"
#include "dtrain/output_dir.h"
#include "dtrain/run_request.h"
#include "engine/chat/template.h"
#include "engine/chat/tool_calls.h"
#include "engine/checkpoint/adapter_start.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/merge.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/dataset/convert.h"
#include "engine/dataset/detect.h"
#include "engine/dataset/source.h"
#include "engine/model/layout.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/plan.h"
#include "options/options.h"

enum { FILES_SHOWN = 8, EXAMPLES_READ = 10000 };

struct check {
	const struct run_config *c;
	const char *where; /* the run file */
	bool quiet;
	int wrong;
	int64_t vocab_size; /* of the model that is trained; 0: none, or it could not be read */
};

static void print_good(const struct check *k, const char *label, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void print_good(const struct check *k, const char *label, const char *fmt, ...)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	va_list ap;

	va_start(ap, fmt);
	strbuf_addv(&text, fmt, ap);
	va_end(ap);
	if (!k->quiet && text.data)
		printf("%-10s  %s\n", label, str_make_plain(text.data));
}

/* key: NULL where the message names it. */
static void print_wrong(struct check *k, const char *key, const struct error *err)
{
	client_fail(0, "%s: %s%s%s", k->where, key ? key : "", key ? ": " : "", err->message);
	k->wrong++;
}

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The weights are those that config.json describes. */
static int check_weights(const char *path, const struct model_config *model, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	int r;

	if ((r = safetensors_open(path, &st, err)) < 0 || (r = model_layout_create(model, &layout, err)) < 0)
		return r;
	return parameters_check_start(layout, st, path, err);
}

/* Whether the model can be divided among the ranks as the run file says; how many these are is known from
 * here unless the run takes all devices of its nodes. */
static int check_division(const struct run_config *c, const struct model_config *model, int64_t ranks,
                          struct error *err)
{
	_cleanup_(plan_freep) struct plan *plan = NULL;
	struct train_options o;
	int r;

	r = options_train(c, &o, err);
	return r < 0 ? r : plan_create(NULL, NULL, 0, (int)ranks, model, &o, 1, &plan, err);
}

static int check_divisions(const struct run_config *c, const struct model_config *model, struct error *err)
{
	struct key_range nodes = c->resources.nodes;
	int r = 0;

	if (!run_task_trains(c->task) || c->resources.devices_per_node < 1)
		return 0;
	for (int64_t n = nodes.low; r == 0 && n <= nodes.high; n++)
		r = check_division(c, model, n * c->resources.devices_per_node, err);
	return r;
}

/* What is trained of the model, and the adapter that the run goes on from. */
static void check_tuning(struct check *k, const struct model_config *model)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(peft_adapter_closep) struct peft_adapter *adapter = NULL;
	const char *from = k->c->lora.from;
	struct error err = ERROR_INIT;
	struct train_options o;
	char count[32];

	if (options_train(k->c, &o, &err) < 0 || o.tuning.kind == TUNE_ALL)
		return;
	if (model_layout_create_tuned(model, &o.tuning, &layout, &err) < 0 ||
	    (from && adapter_open(from, &o.tuning, layout, &adapter, &err) < 0)) {
		print_wrong(k, NULL, &err);
		return;
	}
	print_good(k, "trained", "%s parameters%s%s", str_millions(count, sizeof(count), layout->trained),
	           from ? ", from the adapter in " : "", from ? from : "");
}

static void check_model(struct check *k)
{
	const char *path = k->c->model.path ? k->c->model.path : k->c->model.init;
	const char *key = k->c->model.path ? "model.path" : "model.init";
	struct error err = ERROR_INIT;
	struct model_config model;
	int64_t row = options_row_tokens(k->c);
	char size[120];
	int r = 0, before;

	if (k->c->model.path && file_exists(path) && !is_directory(path))
		r = error_set(&err, -ENOTDIR, "%s is not a directory", path);
	if (r < 0 || (r = model_config_read(path, &model, &err)) < 0 ||
	    (r = options_choose_head(k->c, &model, path, &err)) < 0 ||
	    (k->c->model.path && (r = check_weights(path, &model, &err)) < 0))
		print_wrong(k, key, &err);
	else
		print_good(k, "model", "%s: %s, %d layers, %s%s%s", path, model.family, model.layers,
		           model_size_words(size, sizeof(size), &model),
		           !k->c->model.path ? ", from random weights"
		           : model.new_head  ? ", with a new score head"
		                             : "",
		           model.multimodal
		               ? ", the language model of a multimodal one, whose other parts stay as "
		                 "they are"
		               : "");
	if (r < 0)
		return;
	before = k->wrong;
	if (run_task_trains(k->c->task)) {
		k->vocab_size = model.vocab;
		if (row > k->c->data.max_length && row > model.max_positions)
			print_good(k, "warning",
			           "data.max_length and %s.max_new_tokens are %lld together, but the model's "
			           "max_position_embeddings is %lld: completions of long prompts are cut off "
			           "before they have %s.max_new_tokens",
			           run_task_name(k->c->task), (long long)row, (long long)model.max_positions,
			           run_task_name(k->c->task));
		else if (k->c->data.max_length > model.max_positions)
			print_good(k, "warning",
			           "data.max_length is %lld, but the model's max_position_embeddings is "
			           "%lld",
			           (long long)k->c->data.max_length, (long long)model.max_positions);
		if (model.dropout > 0)
			print_good(k, "warning",
			           "the dropout of %g in config.json is not applied: only lora.dropout is",
			           model.dropout);
		check_tuning(k, &model);
	}
	if (k->wrong == before && check_divisions(k->c, &model, &err) < 0)
		print_wrong(k, "parallel", &err);
}

/* The adapter belongs to the model, which is looked at as check_model does; a head that is tied to the
 * embedding may have an adapter of its own. */
static void check_adapter(struct check *k)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_(merged_model_closep) struct merged_model *merged = NULL;
	const char *path = k->c->generate.adapter;
	struct error err = ERROR_INIT, ignored;
	struct model_config model;

	/* A model that is not there was reported already. */
	if (model_config_read(k->c->model.path, &model, &ignored) < 0)
		return;
	model.tied = false;
	if (model_layout_create(&model, &layout, &ignored) < 0 ||
	    safetensors_open(k->c->model.path, &st, &ignored) < 0)
		return;
	if (merged_model_open(path, layout, st, &merged, &err) < 0)
		print_wrong(k, "generate.adapter", &err);
	else
		print_good(k, "adapter", "%s: fits the model", path);
}

/* The reference has the shape of the model. */
static void check_reference(struct check *k, const char *key, const char *path)
{
	struct model_config model;
	struct error err = ERROR_INIT;
	int r = is_directory(path) ? 0 : error_set(&err, -ENOTDIR, "%s is not a directory", path);

	if (r < 0 ||
	    (r = model_config_read(k->c->model.path ? k->c->model.path : k->c->model.init, &model, &err)) <
	        0 ||
	    (r = check_weights(path, &model, &err)) < 0)
		print_wrong(k, key, &err);
	else
		print_good(k, "reference", "%s", path);
}

/* Whether an id means the same to the teacher; it may be without a tokenizer. */
static int compare_tokenizers(struct check *k, struct tokenizer *tok, const struct model_config *teacher,
                              struct error *err)
{
	const char *path = options_other_path(k->c);
	_cleanup_free_ char *own = run_config_tokenizer(k->c);
	_cleanup_(tokenizer_freep) struct tokenizer *other = NULL;
	struct error ignored = ERROR_INIT;
	int32_t added;
	int r;

	if (!own)
		return error_oom(err);
	if ((r = tokenizer_limit(tok, own, teacher->vocab, err)) < 0 ||
	    tokenizer_load(path, &other, &ignored) < 0)
		return r;
	r = tokenizer_compare(tok, other, &added, err);
	if (r == 0 && added >= 0)
		print_good(k, "warning", "the added token %d is \"%s\" in %s, and \"%s\" in %s", added,
		           tokenizer_id_to_token(other, added), path, tokenizer_id_to_token(tok, added), own);
	return r;
}

/* A teacher, or a reward model that gives rewards: of any shape, with its weights. */
static void check_other(struct check *k, struct tokenizer *tok)
{
	const char *path = options_other_path(k->c), *key = options_other_key(k->c);
	int64_t row = options_row_tokens(k->c);
	struct train_options o;
	struct model_config model;
	struct error err = ERROR_INIT;
	char size[120];

	if (options_other_model(k->c, &model, &o, &err) < 0) {
		print_wrong(k, NULL, &err);
		return;
	}
	if (options_other_length(k->c, &model, &err) < 0 || check_weights(path, &model, &err) < 0 ||
	    (tok && compare_tokenizers(k, tok, &model, &err) < 0)) {
		print_wrong(k, key, &err);
		return;
	}
	print_good(k, run_task_rewards(k->c->task) ? "rewards" : "teacher", "%s: %s, %d layers, %s", path,
	           model.family, model.layers, model_size_words(size, sizeof(size), &model));
	if (row > model.max_positions)
		print_good(k, "warning",
		           "rows may have %lld tokens, but max_position_embeddings of %s is %lld",
		           (long long)row, key, (long long)model.max_positions);
}

static struct tokenizer *check_tokenizer(struct check *k)
{
	_cleanup_free_ char *path = run_config_tokenizer(k->c);
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;
	const char *key = k->c->model.tokenizer                          ? "model.tokenizer"
	                  : path && str_eq(path, k->c->generate.adapter) ? "generate.adapter"
	                  : k->c->model.path                             ? "model.path"
	                                                                 : "model.init";

	/* A model that is not there was reported already. */
	if (str_eq(path, k->c->model.path) && !is_directory(path))
		return NULL;
	if (!path || tokenizer_load(path, &tok, &err) < 0) {
		print_wrong(k, key, &err);
		return NULL;
	}
	if (k->vocab_size > 0 && tokenizer_limit(tok, path, k->vocab_size, &err) < 0)
		print_wrong(k, key, &err);
	else
		print_good(k, "tokenizer", "%s: %lld tokens", path, (long long)tokenizer_vocab_size(tok));
	return tok;
}

static void check_template(struct check *k, const struct tokenizer *tok)
{
	const char *name = k->c->data.template_;
	_cleanup_(template_choice_clear) struct template_choice choice = {.source = TEMPLATE_NAMED};
	const struct template *named;
	struct error err = ERROR_INIT;
	int r;

	if (!tok && !name)
		return;
	r = tok ? template_choose(name, tok, &choice, &err) : template_find(name, &named, &err);
	if (r < 0)
		print_wrong(k, "data.template", &err);
	else if (tok)
		print_good(k, "template", "%s (%s)", choice.template.name, choice.reason);
	else
		print_good(k, "template", "%s", named->name);
}

static void check_tool_prompt(struct check *k)
{
	_cleanup_free_ char *before = NULL, *after = NULL;
	struct error err = ERROR_INIT;

	if (!k->c->data.tool_prompt)
		return;
	if (tools_read_words(k->c->data.tool_prompt, &before, &after, &err) < 0)
		print_wrong(k, "data.tool_prompt", &err);
	else
		print_good(k, "tools", "described by %s", k->c->data.tool_prompt);
}

/* What the first examples of all files are. */
struct examples {
	int64_t read, skipped,
	    kinds[2];       /* kinds: of answers with a label, not desirable and desirable ones */
	struct error first; /* why the first of them is skipped */
};

/* Preferences, example by example, as far as that takes no time. False: the file cannot be read. */
static bool count_examples(struct check *k, const struct source *s, struct examples *all)
{
	_cleanup_(records_closep) struct records *file = NULL;
	enum dataset_task task = options_dataset_task(k->c->task);
	struct error err = ERROR_INIT;
	struct record record;
	int r = records_open(s->path, source_record_kind(s), &file, &err);

	for (int64_t n = 0; r == 0 && n < EXAMPLES_READ; n++) {
		_cleanup_free_ char *where = NULL;
		struct example e = {0};

		r = records_next(file, &record, &err);
		if (r <= 0)
			break;
		r = 0;
		where = str_printf("%s:%lld", s->path, (long long)record.line);
		if (example_convert(s, task, record.data, record.len, where ? where : s->path, &e,
		                    all->skipped ? NULL : &all->first) < 0)
			all->skipped++;
		else
			all->kinds[e.desirable]++;
		all->read++;
		example_clear(&e);
	}
	if (r < 0)
		print_wrong(k, "data", &err);
	return r == 0;
}

/* Which examples will be skipped, and whether answers with a label are of both kinds: of the data as a whole,
 * since a file may well have one kind only. */
static void check_examples(struct check *k, const struct source_list *list)
{
	struct examples all = {0};

	for (size_t i = 0; i < list->count; i++)
		if (!count_examples(k, &list->items[i], &all))
			return;
	if (all.read == 0)
		return;
	if (all.skipped == all.read) {
		print_wrong(k, "data", &all.first);
		return;
	}
	if (all.skipped > 0)
		print_good(k, "warning", "%lld of the first %lld examples are skipped: %s",
		           (long long)all.skipped, (long long)all.read, all.first.message);
	if (options_dataset_task(k->c->task) == DATASET_LABELS && (all.kinds[0] == 0 || all.kinds[1] == 0))
		print_good(
		    k, "warning",
		    "the label of each of the first %lld examples is %s; kto learns from answers of both "
		    "kinds",
		    (long long)all.read, all.kinds[1] ? "true" : "false");
}

static void check_data(struct check *k)
{
	const struct dataset_options options = {
	    .task = options_dataset_task(k->c->task),
	    .paths = (const char *const *)k->c->data.path,
	    .dataset_dir = k->c->data.dataset_dir,
	    .datasets = (const char *const *)k->c->data.dataset,
	    .format = k->c->data.format,
	    .columns_json = k->c->data.columns,
	    .tags_json = k->c->data.tags,
	    .kept_columns = (const char *const *)run_config_policy(k->c)->columns,
	};
	struct source_list list = {0};
	struct error err = ERROR_INIT;
	size_t empty = 0;

	if (source_list_resolve(&options, &list, &err) < 0 || dataset_detect(&options, &list, &err) < 0) {
		/* The names of columns and tags are of all files. */
		print_wrong(k,
		            str_starts(err.message, "data: ") ? NULL
		            : k->c->data.path                 ? "data.path"
		                                              : "data.dataset",
		            &err);
		source_list_free(&list);
		return;
	}
	for (size_t i = 0; i < list.count; i++)
		empty += list.items[i].format == FORMAT_AUTO;
	if (empty == list.count) {
		error_set(&err, -ENODATA, "%s%s: there are no examples in %s", list.items[0].path,
		          empty > 1 ? " and the other files" : "", empty > 1 ? "them" : "it");
		print_wrong(k, "data", &err);
		source_list_free(&list);
		return;
	}
	for (size_t i = 0; i < list.count && i < FILES_SHOWN; i++)
		print_good(k, "data", "%s: %s", list.items[i].path,
		           list.items[i].format == FORMAT_AUTO ? "empty"
		                                               : source_format_name(list.items[i].format));
	if (list.count > FILES_SHOWN)
		print_good(k, "data", "and %zu more files", list.count - FILES_SHOWN);
	if (run_task_prefers(k->c->task) || run_task_rewards(k->c->task))
		check_examples(k, &list);
	source_list_free(&list);
}

/* What a run is certain to warn of, though it can be done. */
static void check_steps(struct check *k)
{
	int64_t steps = k->c->train.max_steps, warmup = k->c->train.warmup_steps;

	if (steps > 0 && warmup > steps)
		print_good(k, "warning",
		           "train.warmup_steps is %lld, but the run has %lld steps: the learning rate never "
		           "reaches its highest value",
		           (long long)warmup, (long long)steps);
}

/* The directory itself, or the nearest above it that is there. */
static void check_output(struct check *k)
{
	_cleanup_free_ char *path = str_path_join(k->c->directory, k->c->output.dir), *checkpoint = NULL;
	struct error err = ERROR_INIT;
	char *slash;

	while (path && !file_exists(path) && (slash = strrchr(path, '/')) && slash > path)
		*slash = '\0';
	if (!path)
		error_oom(&err);
	else if (!is_directory(path))
		error_set(&err, -ENOTDIR, "%s is not a directory", path);
	else if (access(path, W_OK | X_OK) < 0)
		error_errno(&err, -errno, "cannot write to %s", path);
	if (err.code < 0)
		print_wrong(k, "output.dir", &err);
	else if (output_dir_check(k->c, &checkpoint, &err) < 0)
		print_wrong(k, NULL, &err);
	else
		print_good(k, "output", "%s: can be written%s%s", k->c->output.dir,
		           checkpoint ? "; the run goes on from " : "",
		           checkpoint ? strrchr(checkpoint, '/') + 1 : "");
}

/* Where the worker puts a file without a name. The directory has to be there: were it made, a disk that is
 * not mounted would fill the one above it. */
static void check_offload(struct check *k)
{
	const char *path = k->c->parallel.offload_dir;
	struct error err = ERROR_INIT;

	if (!file_exists(path))
		error_errno(&err, -ENOENT, "%s", path);
	else if (!is_directory(path))
		error_set(&err, -ENOTDIR, "%s is not a directory", path);
	else if (access(path, W_OK | X_OK) < 0)
		error_errno(&err, -errno, "cannot write to %s", path);
	if (err.code < 0) {
		struct error because = err;

		error_set(
		    &err, because.code,
		    "%s; name a directory that you can write to on each node, or leave the key out: what is "
		    "offloaded then stays in host memory",
		    because.message);
		print_wrong(k, "parallel.offload_dir", &err);
	} else {
		print_good(k, "offload", "%s: can be written", path);
	}
}

/* A directory passes access(X_OK), too. */
static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EACCES;
	return access(path, X_OK) < 0 ? -errno : 0;
}

static void check_program(struct check *k, const char *key, const char *program)
{
	const char *search = getenv("PATH") ?: "/usr/bin:/bin";
	_cleanup_free_ char *copy = NULL, *found = NULL;
	struct error err = ERROR_INIT;
	char *rest, *part;
	int r;

	for (char **e = k->c->environment; e && *e; e++)
		if (str_starts(*e, "PATH="))
			search = *e + strlen("PATH=");
	if (strchr(program, '/')) {
		r = check_executable(program);
		if (r < 0)
			error_errno(&err, r, "cannot execute %s%s", program,
			            is_directory(program) ? ", a directory" : "");
	} else {
		rest = copy = strdup(search);
		while (!found && (part = strsep(&rest, ":"))) {
			found = str_path_join(*part ? part : ".", program);
			if (found && check_executable(found) < 0)
				free(steal_pointer(found));
		}
		if (!found)
			error_set(&err, -ENOENT, "no program %s in PATH (%s)", program, search);
	}
	if (err.code < 0)
		print_wrong(k, key, &err);
	else
		print_good(k, "program", "%s", found ? found : program);
}

/* What gives completions their rewards, and what they are not to leave. */
static void check_policy(struct check *k)
{
	const struct run_policy *p = run_config_policy(k->c);
	char key[32];

	snprintf(key, sizeof(key), "%s.reference", run_task_name(k->c->task));
	if (p->reference)
		check_reference(k, key, p->reference);
	snprintf(key, sizeof(key), "%s.reward", run_task_name(k->c->task));
	if (p->reward)
		check_program(k, key, p->reward[0]);
}

static void check_all(struct check *k)
{
	bool trains = run_task_trains(k->c->task), chats = trains && k->c->task != RUN_PRETRAIN;
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;

	/* All names are seen from there. */
	if (chdir(k->c->directory) < 0) {
		error_errno(&err, -errno, "%s", k->c->directory);
		print_wrong(k, "directory", &err);
		return;
	}
	if (k->c->task == RUN_COMMAND) {
		check_program(k, "command", k->c->command[0]);
		return;
	}
	check_model(k);
	if (k->c->task == RUN_GENERATE && k->c->generate.adapter)
		check_adapter(k);
	tok = check_tokenizer(k);
	if (chats || k->c->generate.chat)
		check_template(k, tok);
	if (chats)
		check_tool_prompt(k);
	if (k->c->preference.reference)
		check_reference(k, "preference.reference", k->c->preference.reference);
	if (run_task_rewards(k->c->task))
		check_policy(k);
	if (options_other_path(k->c))
		check_other(k, tok);
	if (trains) {
		check_steps(k);
		check_data(k);
		check_output(k);
		if (k->c->parallel.offload_dir)
			check_offload(k);
	}
	tokenizer_freep(&tok);
}

static void print_unchecked(const struct check *k)
{
	printf("not checked: %s\n",
	       run_task_trains(k->c->task)
	           ? "that the files are equal on all nodes, each example of the data, and "
	             "that the cluster has devices with enough memory"
	       : k->c->task == RUN_GENERATE
	           ? "that the model is on the node that runs it, and that its device has enough memory"
	           : "that the program is the same on all nodes, and that the cluster has the devices");
}

int cmd_check(struct client *client, int argc, char **argv)
{
	struct option_list set = {0};
	bool json = false;
	const struct option_spec options[] = {
	    {'s', "set", OPTION_LIST, &set, "KEY=VALUE", "override a key of the run file; again for more"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print the run as it would be submitted"},
	};
	const struct usage usage = {"check",
	                            "RUN_FILE",
	                            "Reads a run file, looks at what it names, and says what is wrong",
	                            "Model, tokenizer, data, template, directories and program are "
	                            "looked at as they are on this machine.",
	                            options,
	                            ARRAY_SIZE(options),
	                            1,
	                            1};
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	_cleanup_json_ json_t *config = NULL;
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status == OPTIONS_DONE) {
		struct check k = {.where = argv[first], .quiet = json};

		status = 0;
		if (run_request_file(argv[first], set.items, NULL, &config, &err) < 0 ||
		    run_config_from_json(config, &c, &err) < 0) {
			status = client_fail(STATUS_USAGE, "%s", err.message);
		} else {
			k.c = c;
			check_all(&k);
			k.wrong += estimate_refuse_fp8(client, c) != 0;
			status = k.wrong ? EXIT_FAILURE : EXIT_SUCCESS;
			if (json)
				client_print_json(config);
			else if (!k.wrong)
				printf("%s: fine\n", k.where);
			if (!json)
				print_unchecked(&k);
		}
	}
	option_list_release(&set);
	return status;
}
