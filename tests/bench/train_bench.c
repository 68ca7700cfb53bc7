/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_bench [key=value …]: tokens per second of the whole training step on made-up rows, over one process.
 * Keys: precision=fp32|bf16|fp16|fp8 threads=0 steps=6 warm=2 micro_batch=4 accumulation=1 length=512
 * layers=8 hidden=512 heads=8 kv=2 head_dim=hidden/heads intermediate=1408 vocab=6400 theta=1e6 recompute=0
 * outputs=0 (so many blocks keep the outputs of norms and of the activation; -1: all) masked=0 spread=0
 * master=1 gradients=fp32|bf16 choose=1 unfused=0 rows=64 documents=2 lora=0 (the rank of adapters on all
 * linear modules) family=llama, or config=FILE, a config.json (layers= still wins); teacher=FILE, a
 * config.json, too. Prints one JSON object. As in a run, a step is queued before the one in front of it has
 * ended, where the device runs behind the host; ahead=0: it is not. With profile=1 it then runs one more step
 * and prints the time of every operation (profile.h describes the format); with capture=1 one more step that
 * a profiler records.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../engine/fake_dataset.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/products.h"
#include "engine/train/trainer.h"
#include "profile.h"

static const char *argument(char **argv, const char *key, const char *fallback)
{
	size_t n = strlen(key);

	for (int i = 1; argv[i]; i++)
		if (strncmp(argv[i], key, n) == 0 && argv[i][n] == '=')
			return argv[i] + n + 1;
	return fallback;
}

static int number(char **argv, const char *key, int fallback)
{
	const char *s = argument(argv, key, NULL);

	return s ? atoi(s) : fallback;
}

static int config(char **argv, struct model_config *c, struct error *err)
{
	const char *file = argument(argv, "config", NULL);
	_cleanup_json_ json_t *o = NULL;
	_cleanup_free_ char *text = NULL;
	int r;

	if (file) {
		if ((r = json_read_file(file, &o, err)) < 0)
			return r;
		if (number(argv, "layers", 0) > 0)
			json_object_set_new(o, "num_hidden_layers", json_integer(number(argv, "layers", 0)));
		text = json_dumps(o, 0);
		return text ? model_config_parse(text, strlen(text), file, c, err) : error_oom(err);
	}
	text = str_printf(
	    "{\"model_type\":\"%s\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
	    "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
	    "\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5,\"rope_theta\":%s}",
	    argument(argv, "family", "llama"), number(argv, "hidden", 512),
	    number(argv, "intermediate", 1408), number(argv, "layers", 8), number(argv, "heads", 8),
	    number(argv, "kv", 2),
	    number(argv, "head_dim", number(argv, "hidden", 512) / number(argv, "heads", 8)),
	    number(argv, "vocab", 6400), argument(argv, "theta", "1e6"));
	return text ? model_config_parse(text, strlen(text), "bench", c, err) : error_oom(err);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Steps that are not timed. */
static int extra_steps(char **argv, struct trainer *t, struct device *dev, struct error *err)
{
	struct train_log log = {0};
	int r = 0;

	if (number(argv, "profile", 0)) {
		if ((r = profile_start(dev, err)) < 0 || (r = trainer_run_step(t, &log, err)) < 0 ||
		    (r = profile_stop(dev, stdout, err)) < 0)
			return r;
	}
	if (number(argv, "capture", 0)) {
		profile_capture(true);
		r = trainer_run_step(t, &log, err);
		profile_capture(false);
	}
	return r;
}

static int write_nothing(void *none, const char *text, struct error *err)
{
	return 0;
}

static void print_line(void *none, const char *message)
{
	fprintf(stderr, "%s\n", message);
}

/* The algorithms of products, as a worker has them chosen in a run that starts. */
static int choose_products(struct device *dev, const struct model_config *c, const struct train_options *o,
                           const struct dataset *data, struct error *err)
{
	const struct products_file file = {
	    .path = "/nonexistent/algorithms.json", .write = write_nothing, .notify = print_line};

	return products_choose(dev, NULL, "", c, o, dataset_max_row(data), &file, err);
}

static int run(char **argv, struct error *err)
{
	int steps = number(argv, "steps", 6), warm = number(argv, "warm", 2),
	    length = number(argv, "length", 512), documents = number(argv, "documents", 2);
	struct device_options device = {.threads = number(argv, "threads", 0),
	                                .unfused = number(argv, "unfused", 0)};
	struct model_init init = {.seed = 1, .std = 0.02}, taught;
	char *const all[] = {"all", NULL};
	_cleanup_free_ double *times = calloc((size_t)(warm + steps), sizeof(*times));
	double start = 0, used = 0, first, rate, flops, peak, operations, memory_before;
	const char *precision = argument(argv, "precision", "fp32");
	_cleanup_json_ json_t *plan = NULL;
	struct train_log log = {0};
	int64_t seen = 0, total;
	struct train_options o;
	struct model_config c, teacher;
	struct dataset *data;
	struct trainer *t;
	struct device *dev;
	struct rusage usage;
	int r;

	if (!times || steps < 1)
		return error_set(err, -EINVAL, "no steps");
	train_options_default(&o);
	o.micro_batch = number(argv, "micro_batch", 4);
	o.accumulation = number(argv, "accumulation", 1);
	o.fp8 = strcmp(precision, "fp8") == 0;
	o.precision = o.fp8 || strcmp(precision, "bf16") == 0 ? DTYPE_BF16
	              : strcmp(precision, "fp16") == 0        ? DTYPE_F16
	                                                      : DTYPE_F32;
	if (o.precision == DTYPE_F32 && strcmp(precision, "fp32") != 0)
		return error_set(err, -EINVAL, "precision=%s; expected fp32, bf16, fp16 or fp8", precision);
	o.gradient_type = strcmp(argument(argv, "gradients", "fp32"), "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
	o.recompute = number(argv, "recompute", 0);
	o.kept_outputs = number(argv, "outputs", 0);
	if (o.kept_outputs < 0)
		o.kept_outputs = INT_MAX;
	o.without_master = !number(argv, "master", 1);
	if (number(argv, "lora", 0) > 0)
		o.tuning = (struct model_tuning){
		    .kind = TUNE_LORA, .rank = number(argv, "lora", 0), .alpha = 32, .target = all};
	o.max_steps = warm + steps + 2;
	o.learning_rate = 3e-4;
	o.weight_decay = 0.1;
	first = clock_monotonic();
	memory_before = (double)profile_memory();
	if (argument(argv, "teacher", NULL)) {
		if ((r = model_config_read(argument(argv, "teacher", NULL), &teacher, err)) < 0)
			return r;
		taught = model_init_of(&teacher, 2, 0);
		o.distillation.teacher = &teacher;
		o.distillation.weight = 0.5;
		o.distillation.temperature = 2;
	}
	if ((r = train_options_check(&o, err)) < 0 || (r = config(argv, &c, err)) < 0 ||
	    (r = device_create(&device, &dev, err)) < 0)
		return r;
	if (o.fp8 && !device_supports_fp8(dev))
		return error_set(err, -EOPNOTSUPP, "%s has no fp8 arithmetic", device_describe(dev));
	data = documents == 1 ? fake_dataset_whole(number(argv, "rows", 64), length, (int32_t)c.vocab)
	                      : fake_dataset(number(argv, "rows", 64), length, number(argv, "spread", 0),
	                                     (int32_t)c.vocab, number(argv, "masked", 0));
	if ((number(argv, "choose", 1) && (r = choose_products(dev, &c, &o, data, err)) < 0) ||
	    (r = trainer_create(dev, NULL, &c, &o, data, NULL, &t, err)) < 0 ||
	    (r = trainer_plan_json(t, &plan, err)) < 0 ||
	    (r = trainer_load(t, model_init_fill, &init, err)) < 0 ||
	    (trainer_frozen_model(t) &&
	     (r = whole_model_load(trainer_frozen_model(t), model_init_fill, &taught, err)) < 0))
		return r;
	for (int s = 0; s < warm + steps; s++) {
		double begun = clock_monotonic();

		if (s == warm) {
			start = begun;
			used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
			seen = log.tokens;
		}
		r = trainer_run_step_ahead(t, number(argv, "ahead", 1) && s + 1 < warm + steps, &log, err);
		if (r < 0)
			return r;
		times[s] = clock_monotonic() - begun;
		if (s == 0)
			first = clock_monotonic() - first;
	}
	rate = (double)(log.tokens - seen) / (clock_monotonic() - start);
	used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - used;
	qsort(times + warm, (size_t)steps, sizeof(*times), compare);
	total = json_integer_value(json_object_get(plan, "total"));
	flops = model_config_flops(&c, length / documents);
	operations = rate * flops;
	peak = device_peak_flops(dev, o.precision);
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"device\":\"%s\",\"tokens_per_second\":%.1f,\"tokens_per_processor_second\":%.1f,"
	       "\"gflops\":%.1f,\"loss\":%.6f,\"seconds_per_"
	       "step\":%.4f,\"median_step\":%.5f,\"first_step\":%.2f,\"parameters\":%" PRId64
	       ",\"flops_per_token\":%.6g,\"mfu\":%.4f,\"plan_mib\":%.1f,\"before_mib\":%.1f,\"after_mib\":"
	       "%.1f,\"peak_mib\":%.0f}\n",
	       device_describe(dev), rate, (double)(log.tokens - seen) / used, operations / 1e9, log.loss,
	       (double)(log.tokens - seen) / rate / steps, times[warm + steps / 2], first,
	       model_config_parameters(&c), flops, peak > 0 ? operations / peak : 0,
	       (double)total / (1 << 20), memory_before / (1 << 20), (double)profile_memory() / (1 << 20),
	       (double)usage.ru_maxrss / 1024);
	fflush(stdout);
	r = extra_steps(argv, t, dev, err);
	trainer_free(t);
	dataset_close(data);
	device_destroy(dev);
	return r;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (run(argv, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	return 0;
}
