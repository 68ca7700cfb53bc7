/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_strategies [--ranks 2] [--rounds 3] [--steps 6] [--accumulation 1] [--layers 8] [--hidden 512]
 * [--vocab 6400] [--tokens 1024] [--bf16 0] [--prefetch 1]: tokens per second of whole training steps under
 * each strategy, over that many processes of one thread and UCX. The strategies take turns; the median of the
 * steps of all rounds counts, since others may share the machine, and is compared with ddp's. Also the bytes
 * of a rank's weights, gradients and optimizer state, and of its slots.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../engine/fake_dataset.h"
#include "../unit/kv_store.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/trainer.h"

enum { ROUNDS_MAX = 32, STEPS_MAX = 64, STRATEGIES = SHARD_HYBRID };

enum number { RANKS, ROUNDS, STEPS, ACCUMULATION, LAYERS, HIDDEN, VOCAB, TOKENS, PREFETCH, BF16, NUMBERS };
static const char *const number_names[NUMBERS] = {"ranks",  "rounds", "steps",  "accumulation", "layers",
                                                  "hidden", "vocab",  "tokens", "prefetch",     "bf16"};

/* Shared with the ranks. */
struct bench {
	int n[NUMBERS];
	char directory[64];
	enum shard_strategy strategy;
	double step[STEPS_MAX], waited[STEPS_MAX]; /* rank 0's seconds */
	int64_t tokens;                            /* of a step, all ranks */
	int64_t held, slots;
};

static int make_config(const struct bench *b, struct model_config *c, struct error *err)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
	    "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":64,\"vocab_size\":%d,"
	    "\"tie_word_embeddings\":false}",
	    b->n[HIDDEN], b->n[HIDDEN] * 11 / 4, b->n[LAYERS], b->n[HIDDEN] / 64, b->n[HIDDEN] / 64,
	    b->n[VOCAB]);

	return text ? model_config_parse(text, strlen(text), "bench", c, err) : error_oom(err);
}

/* Two steps warm the caches. Steps follow each other as in a run. */
static int measure(struct bench *b, struct trainer *t, bool first, struct error *err)
{
	struct train_log log = {0};
	int r;

	for (int s = -2; s < b->n[STEPS]; s++) {
		if ((r = trainer_run_step_ahead(t, s + 1 < b->n[STEPS], &log, err)) < 0)
			return r;
		if (!first || s < 0)
			continue;
		b->step[s] = log.step_seconds;
		b->waited[s] = log.communication_seconds;
		b->tokens = log.step_tokens;
	}
	return 0;
}

static int run_rank(struct bench *b, int rank)
{
	const struct kv_store store = kv_store_in(b->directory);
	struct comm_options co = {
	    .rank = rank, .world_size = b->n[RANKS], .timeout_s = 60, .store = &store, .group = "bench"};
	struct model_init init = {.seed = 1, .std = 0.02};
	_cleanup_json_ json_t *plan = NULL;
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;
	struct dataset *data;
	struct trainer *t;
	struct device *dev;
	struct comm *comm;
	const json_t *classes;

	train_options_default(&o);
	o.accumulation = b->n[ACCUMULATION];
	o.precision = b->n[BF16] ? DTYPE_BF16 : DTYPE_F32;
	o.prefetch = b->n[PREFETCH];
	o.strategy = b->strategy;
	o.max_steps = 1000;
	if (make_config(b, &c, &err) < 0 ||
	    device_create(&(struct device_options){.threads = 1}, &dev, &err) < 0 ||
	    comm_create(dev, &co, &comm, &err) < 0)
		goto fail;
	data = fake_dataset_whole(64, b->n[TOKENS], b->n[VOCAB]);
	if (trainer_create(dev, comm, &c, &o, data, NULL, &t, &err) < 0 ||
	    trainer_plan_json(t, &plan, &err) < 0 || trainer_load(t, model_init_fill, &init, &err) < 0 ||
	    measure(b, t, rank == 0, &err) < 0)
		goto fail;
	classes = json_object_get(plan, "classes");
	if (rank == 0) {
		b->held = json_get_int(classes, "weights", 0) + json_get_int(classes, "gradients", 0) +
		          json_get_int(classes, "optimizer", 0);
		b->slots = json_get_int(classes, "slots", 0);
	}
	if (comm_wait(comm, comm_barrier(comm), &err) < 0)
		goto fail;
	trainer_free(t);
	comm_destroy(comm);
	dataset_close(data);
	device_destroy(dev);
	return 0;
fail:
	fprintf(stderr, "error: rank %d: %s\n", rank, err.message);
	return 1;
}

static int run_strategy(struct bench *b)
{
	struct error err = ERROR_INIT;
	int failed = 0, status;

	strcpy(b->directory, "/tmp/dtrain-bench-XXXXXX");
	if (!mkdtemp(b->directory))
		return -errno;
	for (int r = 0; r < b->n[RANKS]; r++)
		if (!fork())
			_exit(run_rank(b, r));
	for (int r = 0; r < b->n[RANKS]; r++) {
		wait(&status);
		failed |= status;
	}
	file_remove_tree(b->directory, &err);
	return failed ? -1 : 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct bench *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static const int defaults[NUMBERS] = {2, 3, 6, 1, 8, 512, 6400, 1024, 1, 0};
	struct option longs[NUMBERS + 1] = {{0}};
	static double step[STRATEGIES][ROUNDS_MAX * STEPS_MAX], waited[STRATEGIES][ROUNDS_MAX * STEPS_MAX];
	int64_t held[STRATEGIES], slots[STRATEGIES];
	int c, all;

	memcpy(b->n, defaults, sizeof(defaults));
	for (int i = 0; i < NUMBERS; i++)
		longs[i] = (struct option){number_names[i], required_argument, NULL, i};
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c >= NUMBERS)
			return 2;
		b->n[c] = atoi(optarg);
	}
	if (b->n[RANKS] < 2 || b->n[RANKS] > 16 || b->n[ROUNDS] < 1 || b->n[ROUNDS] > ROUNDS_MAX ||
	    b->n[STEPS] < 1 || b->n[STEPS] > STEPS_MAX || b->n[HIDDEN] % 64) {
		fprintf(stderr, "error: 2 to 16 ranks, 1 to %d rounds, hidden a multiple of 64\n",
		        ROUNDS_MAX);
		return 2;
	}
	for (int round = 0; round < b->n[ROUNDS]; round++)
		for (int s = 0; s < STRATEGIES; s++) {
			b->strategy = (enum shard_strategy)s;
			if (run_strategy(b) < 0)
				return 1;
			memcpy(step[s] + round * b->n[STEPS], b->step, (size_t)b->n[STEPS] * sizeof(double));
			memcpy(waited[s] + round * b->n[STEPS], b->waited,
			       (size_t)b->n[STEPS] * sizeof(double));
			held[s] = b->held;
			slots[s] = b->slots;
		}
	all = b->n[ROUNDS] * b->n[STEPS];
	printf("%-8s %10s %7s %16s %18s %10s\n", "", "tokens/s", "of ddp", "waiting, ms/step",
	       "parameters, MiB", "slots, MiB");
	for (int s = 0; s < STRATEGIES; s++) {
		qsort(step[s], (size_t)all, sizeof(double), compare);
		qsort(waited[s], (size_t)all, sizeof(double), compare);
		printf("%-8s %10.0f %7.3f %16.1f %9.1f (%5.3f) %10.1f\n",
		       shard_strategy_name((enum shard_strategy)s), (double)b->tokens / step[s][all / 2],
		       step[0][all / 2] / step[s][all / 2], waited[s][all / 2] * 1e3,
		       (double)held[s] / (1 << 20), (double)held[s] / (double)held[0],
		       (double)slots[s] / (1 << 20));
	}
	return 0;
}
