/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_bench [key=value …]: tokens per second of the whole training step on made-up rows, over one process.
 * Keys: precision=fp32|bf16 threads=0 steps=6 warm=2 micro_batch=4 accumulation=1 length=512 layers=8
 * hidden=512 heads=8 kv=2 intermediate=1408 vocab=6400 recompute=0 masked=0 spread=0
 * rows=64 family=llama. Prints one JSON
 * object.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../engine/fake_dataset.h"
#include "base/clock.h"
#include "base/str.h"
#include "engine/train/trainer.h"

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
	_cleanup_free_ char *text = str_printf(
	    "{\"model_type\":\"%s\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
	    "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
	    "\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5,\"rope_theta\":1e6}",
	    argument(argv, "family", "llama"), number(argv, "hidden", 512),
	    number(argv, "intermediate", 1408), number(argv, "layers", 8), number(argv, "heads", 8),
	    number(argv, "kv", 2), number(argv, "hidden", 512) / number(argv, "heads", 8),
	    number(argv, "vocab", 6400));

	return text ? model_config_parse(text, strlen(text), "bench", c, err) : error_oom(err);
}

static int run(char **argv, struct error *err)
{
	int steps = number(argv, "steps", 6), warm = number(argv, "warm", 2),
	    length = number(argv, "length", 512);
	struct device_options device = {.threads = number(argv, "threads", 0)};
	struct model_init init = {.seed = 1, .std = 0.02};
	double start = 0, seconds, flops, rate;
	struct train_log log = {0};
	int64_t seen = 0;
	struct train_options o;
	struct model_config c;
	struct dataset *data;
	struct trainer *t;
	struct device *dev;
	struct rusage usage;
	int r;

	train_options_default(&o);
	o.micro_batch = number(argv, "micro_batch", 4);
	o.accumulation = number(argv, "accumulation", 1);
	o.precision = strcmp(argument(argv, "precision", "fp32"), "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
	o.recompute = number(argv, "recompute", 0);
	o.max_steps = warm + steps;
	o.learning_rate = 3e-4;
	o.weight_decay = 0.1;
	if ((r = config(argv, &c, err)) < 0 || (r = device_create(&device, &dev, err)) < 0)
		return r;
	data = fake_dataset(number(argv, "rows", 64), length, number(argv, "spread", 0), (int32_t)c.vocab,
	                    number(argv, "masked", 0));
	if ((r = trainer_create(dev, NULL, &c, &o, data, NULL, &t, err)) < 0 ||
	    (r = trainer_load(t, model_init_fill, &init, err)) < 0)
		return r;
	for (int s = 0; s < warm + steps; s++) {
		if (s == warm) {
			start = clock_monotonic();
			seen = log.tokens;
		}
		if ((r = trainer_run_step(t, &log, err)) < 0)
			return r;
	}
	seconds = clock_monotonic() - start;
	rate = (double)(log.tokens - seen) / seconds;
	flops = rate * model_config_flops(&c, length / 2); /* documents of half a row */
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"device\":\"%s\",\"tokens_per_second\":%.1f,\"gflops\":%.1f,\"loss\":%.6f,\"seconds_per_"
	       "step\":%.4f,"
	       "\"peak_mib\":%.0f}\n",
	       device_describe(dev), rate, flops / 1e9, log.loss, seconds / steps,
	       (double)usage.ru_maxrss / 1024);
	trainer_free(t);
	dataset_close(data);
	device_destroy(dev);
	return 0;
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
