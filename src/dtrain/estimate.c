/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain estimate: plans a run as a worker would, for each strategy, and prints the memory of a rank, whether
 * it fits, and how fast it will be. Nothing is computed on a device, and no service is needed but for the
 * devices of the cluster.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/estimate.h"
#include "dtrain/model_words.h"
#include "dtrain/options.h"
#include "dtrain/rates_file.h"
#include "dtrain/run_request.h"
#include "dtrain/table.h"
#include "engine/checkpoint/adapter_start.h"
#include "engine/checkpoint/hf.h"
#include "engine/train/estimate.h"
#include "engine/train/scale.h"
#include "options/options.h"
#include "options/precision_names.h"
#include "wire/node_view.h"

enum { GPUS_OF_A_NODE = 8 };

struct subject {
	struct run_config *config;
	struct model_config model, other; /* other: a teacher, or a reward model that gives rewards */
	struct train_options options;
	struct hardware_set where;
	struct rates *rates; /* measured on such a device; NULL: none */
	char devices[96];    /* in words */
};

static void subject_release(struct subject *s)
{
	run_config_freep(&s->config);
	free(s->rates);
}

/* ---- the devices ---- */

/* As many as the run asks for, where --devices gives no number. */
static void count_ranks(struct subject *s, int per_node)
{
	if (s->where.nodes > 0)
		return;
	s->where.nodes = (int)s->config->resources.nodes.high;
	s->where.per_node = (int)s->config->resources.devices_per_node;
	if (s->where.per_node == 0)
		s->where.per_node = per_node;
}

/* A node may have GPUs or CPU slots; those that the run would get. */
static bool is_wanted(const struct subject *s, const struct device_list *list, const struct device_info *d)
{
	bool gpus = false;

	for (size_t i = 0; i < list->count; i++)
		gpus = gpus || list->devices[i].kind == DEVICE_KIND_GPU;
	if (!str_eq(s->config->resources.kind, "auto"))
		gpus = str_eq(s->config->resources.kind, "gpu");
	return d->kind == (gpus ? DEVICE_KIND_GPU : DEVICE_KIND_CPU);
}

/* The cluster's device of the least memory, or of the most, that the run could get: each rank's plan is the
 * same. */
static int from_list(struct subject *s, const struct device_list *list, bool most, struct error *err)
{
	const struct device_info *least = NULL;
	const struct hardware *known = NULL;
	int on_node = 0;

	for (size_t i = 0; i < list->count; i++)
		if (is_wanted(s, list, &list->devices[i]) &&
		    (!least || (most ? list->devices[i].memory > least->memory
		                     : list->devices[i].memory < least->memory)))
			least = &list->devices[i];
	if (!least)
		return error_set(err, -ENODEV, "the cluster has no such device (resources.kind = \"%s\")",
		                 s->config->resources.kind);
	for (size_t i = 0; i < list->count; i++)
		on_node +=
		    is_wanted(s, list, &list->devices[i]) && str_eq(list->devices[i].node, least->node);
	s->where = (struct hardware_set){0};
	count_ranks(s, on_node);
	if (least->kind == DEVICE_KIND_CPU) {
		hardware_find("cpu", &s->where.device);
		hardware_fill_cpu(&s->where.device, MIN(s->where.per_node, on_node),
		                  s->config->resources.threads ? (int)s->config->resources.threads
		                                               : (int)least->threads,
		                  on_node * (int)least->threads);
	} else if ((known = hardware_by_board(least->name, least->memory))) {
		s->where.device = *known;
	} else {
		return error_set(err, -ENODEV,
		                 "%s: the rates of this device are not known; name a similar one with "
		                 "--devices",
		                 least->name);
	}
	s->where.device.memory = known ? hardware_usable(known, least->memory) : least->memory;
	/* The slots of a CPU share its memory, and those that the run leaves leave theirs. */
	if (least->kind == DEVICE_KIND_CPU)
		s->where.device.memory = least->memory * on_node / MIN(s->where.per_node, on_node);
	snprintf(s->devices, sizeof(s->devices), "%.60s of the cluster", least->name);
	return 0;
}

int estimate_refuse_fp8(struct client *client, const struct run_config *config)
{
	_cleanup_(device_list_release) struct device_list list = {0};
	_cleanup_json_ json_t *answer = NULL;
	struct subject s = {.config = (struct run_config *)(uintptr_t)config};
	const struct hardware *known = NULL;
	struct error err = ERROR_INIT;
	int status;

	if (!run_task_trains(config->task) || !precision_is_fp8(config->train.precision) ||
	    client_try(client, "GET", "/v1/devices", NULL, &status, &answer, &err) < 0 || status != 200 ||
	    device_list_decode(answer, &list, &err) < 0)
		return 0;
	for (size_t i = 0; i < list.count; i++) {
		const struct device_info *d = &list.devices[i];
		const struct hardware *h =
		    d->kind == DEVICE_KIND_GPU ? hardware_by_board(d->name, d->memory) : NULL;

		/* A CPU emulates it, and what is not known may have it. */
		if (is_wanted(&s, &list, d) && (!h || h->fp8 > 0))
			return 0;
		known = h ? h : known;
	}
	return known
	           ? client_fail(
	                 EXIT_FAILURE,
	                 "train.precision: \"fp8\": no GPU of the cluster has fp8 arithmetic (%s): it needs "
	                 "compute capability 8.9 (Ada, Hopper) or newer; bf16 works",
	                 known->name)
	           : 0;
}

/* 0, or the exit status after the error was printed; quiet: -1 where no service answers, and nothing said. */
static int from_cluster(struct client *client, struct subject *s, bool quiet, bool most)
{
	_cleanup_(device_list_release) struct device_list list = {0};
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	int status;

	if (quiet) {
		if (client_try(client, "GET", "/v1/devices", NULL, &status, &answer, &err) < 0 ||
		    status != 200)
			return -1;
	} else if ((status = client_json(client, "GET", "/v1/devices", NULL, &answer)) != 0) {
		return status;
	}
	if (device_list_decode(answer, &list, &err) < 0 || from_list(s, &list, most, &err) < 0)
		return quiet ? -1 : client_fail(EXIT_FAILURE, "%s", err.message);
	return 0;
}

/* 0, or the exit status after the error was printed. */
static int find_devices(struct client *client, struct subject *s, const char *devices)
{
	struct error err = ERROR_INIT;
	int status;

	if (!devices || str_eq(devices, "cluster")) {
		status = from_cluster(client, s, !devices, false);
		if (status >= 0)
			return status;
		devices = "cpu";
	}
	if (hardware_parse(devices, &s->where, &err) < 0)
		return client_fail(STATUS_USAGE, "%s", err.message);
	if (s->where.device.sizing.engine == DEVICE_ENGINE_CPU) {
		count_ranks(s, 1);
		hardware_fill_cpu(&s->where.device, s->where.per_node, (int)s->config->resources.threads, 0);
		snprintf(s->devices, sizeof(s->devices), "CPU slots of this machine");
	} else {
		count_ranks(s, GPUS_OF_A_NODE);
		snprintf(s->devices, sizeof(s->devices), "%s", s->where.device.name);
	}
	return 0;
}

/* ---- the run ---- */

static int read_subject(struct subject *s, const char *path, const char *const *overrides, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *model = NULL;
	int r;

	if ((r = run_request_file(path, overrides, NULL, &json, err)) < 0 ||
	    (r = run_config_from_json(json, &s->config, err)) < 0)
		return r;
	if (!run_task_trains(s->config->task))
		return error_set(err, -EINVAL, "%s: task = \"%s\" is not planned: only training is", path,
		                 run_task_name(s->config->task));
	/* All names are seen from there. */
	if (chdir(s->config->directory) < 0)
		return error_errno(err, -errno, "%s", s->config->directory);
	model = options_config(s->config);
	if (!model)
		return error_oom(err);
	if ((r = model_config_read(model, &s->model, err)) < 0 ||
	    (r = options_choose_head(s->config, &s->model, model, err)) < 0)
		return r;
	r = options_train(s->config, &s->options, err);
	return r < 0 ? r : options_other_model(s->config, &s->other, &s->options, err);
}

/* "auto" is bf16 where the devices multiply it. */
static void choose_precision(struct subject *s)
{
	if (str_eq(s->config->train.precision, "auto"))
		s->options.precision = s->where.device.bf16 > 0 ? DTYPE_BF16 : DTYPE_F32;
}

/* ---- what is printed ---- */

static const char *seconds(char *buf, size_t size, double s)
{
	if (s < 1)
		snprintf(buf, size, s < 0.1 ? "%.2f ms" : "%.0f ms", s * 1000);
	else
		snprintf(buf, size, s < 100 ? "%.2f s" : "%.0f s", s);
	return buf;
}

static const char *large(char *buf, size_t size, double n)
{
	const char *const units[] = {"", " k", " M", " G"};
	size_t i = 0;

	for (; n >= 10000 && i < ARRAY_SIZE(units) - 1; i++)
		n /= 1000;
	snprintf(buf, size, n < 10 ? "%.2f%s" : n < 100 ? "%.1f%s" : "%.0f%s", n, units[i]);
	return buf;
}

static void print_model(const char *what, const struct model_config *m)
{
	char size[120];

	printf("%-7s  %s, %d layers, %s\n", what, m->family, m->layers,
	       model_size_words(size, sizeof(size), m));
}

static void print_models(const struct subject *s)
{
	print_model("model", &s->model);
	if (s->options.distillation.teacher)
		print_model("teacher", &s->other);
	if (s->options.policy.reward_model)
		print_model("rewards", &s->other);
}

static void print_head(const struct subject *s, const struct estimate_list *list)
{
	int ranks = s->where.nodes * s->where.per_node;
	int degree = train_sequence_degree(&s->options);
	char memory[32], nodes[48], count[48], rows[48], steps[48], each[48] = "a rank";

	print_models(s);
	printf("devices  %s of %d, %s each; %s\n", str_count(nodes, sizeof(nodes), s->where.nodes, "node"),
	       s->where.per_node, str_bytes(memory, sizeof(memory), (uint64_t)s->where.device.memory),
	       s->devices);
	if (degree > 1)
		snprintf(each, sizeof(each), "for each %d ranks", degree);
	printf("step     %s, %s of %lld tokens %s, %s: %lld tokens in %s\n",
	       str_count(count, sizeof(count), ranks, "rank"),
	       str_count(rows, sizeof(rows), s->options.micro_batch, "row"),
	       (long long)options_longest_row(s->config, &s->model), each,
	       str_count(steps, sizeof(steps), s->options.accumulation, "micro-step"),
	       (long long)list->all[0].cost.tokens,
	       s->options.fp8 ? "fp8" : precision_name(s->options.precision));
}

static void print_rates(const struct subject *s)
{
	char note[160];

	if (s->rates && *rates_version_note(s->rates, note, sizeof(note)))
		printf("rates    measured on %s\n         %s\n\n", s->rates->device, note);
	else if (s->rates)
		printf("rates    measured on %s\n\n", s->rates->device);
	else
		printf("rates    from the table of devices; dtrain estimate --measure measures this "
		       "machine's\n\n");
}

static void print_table(const struct estimate_list *list)
{
	const char *const header[] = {"STRATEGY", "RECOMPUTE", "MEMORY", "FITS", "STEP", "TOKENS/S", "MFU"};
	struct table table;
	char text[32];

	table_begin(&table, ARRAY_SIZE(header), header);
	for (size_t i = 0; i < list->count; i++) {
		const struct estimate *e = &list->all[i];

		table_add_text(&table, estimate_strategy_name(e->strategy));
		table_add_text(&table, estimate_recompute_text(text, sizeof(text), e));
		table_add_text(&table, str_bytes(text, sizeof(text), e->total));
		table_add_text(&table, estimate_fits_text(e));
		table_add_text(&table, e->cost.step > 0 ? seconds(text, sizeof(text), e->cost.step) : "");
		table_add(&table, "%s",
		          e->cost.step > 0 ? large(text, sizeof(text), e->cost.tokens_per_second) : "");
		if (e->cost.mfu > 0)
			table_add(&table, "%.1f%%", 100 * e->cost.mfu);
		else
			table_add_text(&table, "");
	}
	table_print(&table);
}

static void print_memory(const struct estimate *e)
{
	char text[32];

	printf("\nmemory of a rank, %s, recompute %s:\n", estimate_strategy_name(e->strategy),
	       estimate_recompute_text(text, sizeof(text), e));
	for (int i = 0; i < BUFFER_CLASSES; i++)
		if (e->bytes[i])
			printf("  %-12s %s\n", estimate_class_name(i),
			       str_bytes(text, sizeof(text), e->bytes[i]));
	printf("  %-12s %s\n", "plan", str_bytes(text, sizeof(text), e->plan));
	printf("  %-12s %s\n", "outside", str_bytes(text, sizeof(text), e->outside));
	if (e->host)
		printf("  %-12s %s\n", "host", str_bytes(text, sizeof(text), e->host));
	if (e->disk)
		printf("  %-12s %s\n", "disk", str_bytes(text, sizeof(text), e->disk));
	printf("  %-12s %s", "peak", str_bytes(text, sizeof(text), e->total));
	printf(" of %s\n", str_bytes(text, sizeof(text), e->available));
}

static void print_choice(const struct estimate_input *in, const struct estimate_list *list)
{
	const struct estimate *least = estimate_best(list, -1, -1);
	struct error err = ERROR_INIT;
	char needs[32], has[32], way[32];

	if (list->choice >= 0) {
		const struct estimate *e = &list->all[list->choice];

		printf("\nfastest that fits: parallel.strategy = \"%s\", train.recompute = \"%s\"\n",
		       estimate_strategy_name(e->strategy), estimate_recompute_key(e));
		return;
	}
	if (estimate_check(in, &err) < 0)
		printf("\nnothing fits: %s\n", err.message);
	else
		printf("\nnothing fits: the least, %s with recompute %s, takes %s of %s\n",
		       estimate_strategy_name(least->strategy),
		       estimate_recompute_text(way, sizeof(way), least),
		       str_bytes(needs, sizeof(needs), least->total),
		       str_bytes(has, sizeof(has), least->available));
}

/* The plan that the run would have. */
static const struct estimate *run_of(const struct subject *s, const struct estimate_list *list)
{
	return estimate_best(list, options_strategy_is_auto(s->config) ? -1 : (int)s->options.strategy,
	                     options_recompute_is_auto(s->config) ? -1 : (int)s->options.recompute);
}

static int print_estimate(const struct subject *s, const struct estimate_list *list, bool json)
{
	_cleanup_json_ json_t *out = NULL;
	struct estimate_input in = {&s->model, &s->options, options_longest_row(s->config, &s->model),
	                            &s->where};
	struct error err = ERROR_INIT;

	if (json) {
		if (estimate_to_json(&in, list, &out, &err) < 0)
			return client_fail(EXIT_FAILURE, "%s", err.message);
		return client_print_json(out);
	}
	print_head(s, list);
	print_rates(s);
	print_table(list);
	print_memory(run_of(s, list));
	print_choice(&in, list);
	return EXIT_SUCCESS;
}

/* ---- more and more devices ---- */

static void print_scale(const struct subject *s, const struct scale_point points[SCALE_POINTS])
{
	const char *const header[] = {"DEVICES",  "STRATEGY",  "RECOMPUTE", "FITS",    "FORWARD",
	                              "BACKWARD", "OPTIMIZER", "COMM",      "EXPOSED", "STEP",
	                              "TOKENS/S", "MFU",       "EFFICIENCY"};
	struct table table;
	char text[32];

	print_models(s);
	printf("devices  %s, %d to a node\n", s->devices, s->where.per_node);
	print_rates(s);
	table_begin(&table, ARRAY_SIZE(header), header);
	for (int i = 0; i < SCALE_POINTS; i++) {
		const struct estimate *e = &points[i].e;
		const double times[] = {e->cost.forward + e->cost.head,
		                        e->cost.backward + e->cost.recompute,
		                        e->cost.optimizer,
		                        e->cost.communication,
		                        e->cost.exposed,
		                        e->cost.step};

		if (!points[i].possible)
			continue;
		table_add(&table, "%d", points[i].nodes * points[i].per_node);
		table_add_text(&table, estimate_strategy_name(e->strategy));
		table_add_text(&table, estimate_recompute_text(text, sizeof(text), e));
		table_add_text(&table, estimate_fits_text(e));
		for (size_t t = 0; t < ARRAY_SIZE(times); t++)
			table_add_text(&table, seconds(text, sizeof(text), MAX(times[t], 0)));
		table_add(&table, "%s", large(text, sizeof(text), e->cost.tokens_per_second));
		table_add(&table, "%.1f%%", 100 * e->cost.mfu);
		table_add(&table, "%.1f%%", 100 * points[i].efficiency);
	}
	table_print(&table);
}

static int scale(const struct subject *s, const struct estimate_input *in, bool json)
{
	_cleanup_free_ struct scale_point *points = calloc(SCALE_POINTS, sizeof(*points));
	_cleanup_json_ json_t *out = NULL;
	struct error err = ERROR_INIT;

	if (!points)
		return client_fail(EXIT_FAILURE, "out of memory");
	if (scale_run(in, options_strategy_is_auto(s->config) ? -1 : (int)s->options.strategy,
	              options_recompute_is_auto(s->config) ? -1 : (int)s->options.recompute, points,
	              &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (!json) {
		print_scale(s, points);
		return EXIT_SUCCESS;
	}
	if (scale_to_json(in, points, &out, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	return client_print_json(out);
}

/* 0, or the exit status after the error was printed. */
static int measure(bool alone)
{
	_cleanup_free_ char *path = NULL;
	struct error err = ERROR_INIT;

	if (rates_file_measure(&path, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (alone)
		printf("%s: written; estimates for such devices use it\n", path);
	return 0;
}

static int estimate(struct client *client, struct subject *s, const char *devices, bool scales, bool json)
{
	struct estimate_input in = {&s->model, &s->options, options_longest_row(s->config, &s->model),
	                            &s->where};
	struct estimate_list list;
	struct hardware named;
	struct error err = ERROR_INIT;
	int status = find_devices(client, s, devices);

	if (status != 0)
		return status;
	if (hardware_read_rates(&s->where.device, &s->rates, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	s->where.device.rates = s->rates;
	choose_precision(s);
	/* A name alone: full nodes. */
	if (scales && devices && hardware_find(devices, &named) && named.sizing.engine == DEVICE_ENGINE_CUDA)
		s->where.per_node = GPUS_OF_A_NODE;
	if (s->config->parallel.shard_degree == 0)
		s->options.shard_degree = s->where.per_node;
	if (scales)
		return scale(s, &in, json);
	if (estimate_list(&in, &list, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	return print_estimate(s, &list, json);
}

int cmd_estimate(struct client *client, int argc, char **argv)
{
	_cleanup_(subject_release) struct subject s = {0};
	struct option_list set = {0};
	const char *devices = NULL;
	bool json = false, measures = false, scales = false;
	const struct option_spec options[] = {
	    {'d', "devices", OPTION_STRING, &devices, "DEVICES",
	     "8xH100-80GB, 128x8xH100-80GB (nodes, devices of each), cpu or cluster"},
	    {'s', "set", OPTION_LIST, &set, "KEY=VALUE", "override a key of the run file; again for more"},
	    {0, "measure", OPTION_FLAG, &measures, NULL,
	     "first measure this machine's device: two minutes, in which it should do nothing else"},
	    {0, "scale", OPTION_FLAG, &scales, NULL, "the step on 1, 2, 4 ... 1,024 such devices"},
	    {0, "json", OPTION_FLAG, &json, NULL, "print JSON"},
	};
	const struct usage usage = {"estimate",
	                            "[RUN_FILE]",
	                            "Plans a run: the memory of each rank, whether it fits, and its speed",
	                            "Without --devices: the cluster's, or CPU slots of this machine where no "
	                            "service answers.",
	                            options,
	                            ARRAY_SIZE(options),
	                            0,
	                            1};
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status == OPTIONS_DONE) {
		bool run = first < argc;

		status = run || measures ? 0 : client_fail(STATUS_USAGE, "estimate: RUN_FILE is missing");
		if (status == 0 && run && read_subject(&s, argv[first], set.items, &err) < 0)
			status = client_fail(STATUS_USAGE, "%s", err.message);
		if (status == 0 && measures)
			status = measure(!run);
		if (status == 0 && run)
			status = estimate(client, &s, devices, scales, json);
	}
	option_list_release(&set);
	return status;
}

/* From where the client stands the paths of the run mean the same. */
static bool is_seen_from_here(const struct run_config *c)
{
	const char *model = c->model.path ? c->model.path : c->model.init;
	_cleanup_free_ char *here = getcwd(NULL, 0);

	return model && (model[0] == '/' || str_eq(here, c->directory));
}

static void take(struct subject *s, const struct estimate *e)
{
	s->options.strategy = e->strategy;
	s->options.recompute = e->recompute;
	s->options.kept_blocks = e->kept;
	s->options.kept_outputs = e->outputs;
}

/* What the run's adapter, or what of the model it trains, says of itself: -EINVAL, and so on, where the run
 * could only fail. */
static int check_tuning(const struct subject *s, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(peft_adapter_closep) struct peft_adapter *adapter = NULL;
	const char *from = s->config->lora.from;
	_cleanup_free_ char *path = from ? str_path_join(s->config->directory, from) : NULL;
	int r = model_layout_create_tuned(&s->model, &s->options.tuning, &layout, err);

	/* Where only the nodes have it, they check it. */
	if (r < 0 || !path || !file_exists(path))
		return r;
	return adapter_open(path, &s->options.tuning, layout, &adapter, err);
}

/* Where only the nodes have it, they look for it. */
static int take_other(struct subject *s, struct error *err)
{
	char **key = s->config->task == RUN_GRPO  ? &s->config->grpo.reward_model
	             : s->config->task == RUN_PPO ? &s->config->ppo.reward_model
	                                          : &s->config->distillation.teacher;
	char *path = *key ? str_path_join(s->config->directory, *key) : NULL;

	if (*key && !path)
		return error_oom(err);
	if (!path || !file_exists(path)) {
		free(path);
		return 0;
	}
	free(*key);
	*key = path;
	return options_other_model(s->config, &s->other, &s->options, err);
}

int estimate_refuse(struct client *client, const json_t *config)
{
	_cleanup_(subject_release) struct subject s = {0};
	/* Rows may turn out short: what one token takes is certain. */
	struct estimate_input in = {&s.model, &s.options, 1, &s.where};
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	_cleanup_free_ char *model = NULL;
	struct error err = ERROR_INIT;
	int r;

	if (!list || run_config_from_json(config, &s.config, &err) < 0 || !run_task_trains(s.config->task))
		return 0;
	if ((r = estimate_refuse_fp8(client, s.config)) != 0)
		return r;
	if (!is_seen_from_here(s.config))
		return 0;
	model = options_config(s.config);
	if (!model || !file_exists(model))
		return 0;
	if (model_config_read(model, &s.model, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (options_choose_head(s.config, &s.model, model, &err) < 0 ||
	    options_train(s.config, &s.options, &err) < 0)
		return 0;
	if (take_other(&s, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (s.options.tuning.kind != TUNE_ALL && check_tuning(&s, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (from_cluster(client, &s, true, true) != 0)
		return 0;
	choose_precision(&s);
	if (s.config->parallel.shard_degree == 0)
		s.options.shard_degree = s.where.per_node;
	if ((options_strategy_is_auto(s.config) || options_recompute_is_auto(s.config)) &&
	    estimate_list(&in, list, &err) == 0)
		take(&s, run_of(&s, list));
	r = estimate_check(&in, &err);
	if (r == -EINVAL) /* these ranks, or this model, cannot be divided so */
		return client_fail(EXIT_FAILURE, "%s", err.message);
	if (r != -ENOMEM)
		return 0;
	return client_fail(EXIT_FAILURE,
	                   "weights, gradients and optimizer state alone do not fit: %s (dtrain estimate)",
	                   err.message);
}
