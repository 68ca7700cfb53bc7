/* SPDX-License-Identifier: Apache-2.0 */
/* Steps a small model's weights by an optimizer with made-up gradients, and writes all of it for
 * optimizers.py, which does the same with PyTorch: optimizer_dump KIND RANKS STEPS NESTEROV INTERMEDIATE
 * DIRECTORY. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/optim/optimizer.h"
#include "thread_comm.h"

static const char config[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"tie_word_embeddings\":false}";

static struct {
	enum optimizer_kind kind;
	int ranks, steps;
	bool nesterov;
	struct model_layout *layout;
	FILE *initial, *gradients, *final;
} run;

struct rank {
	int rank;
	struct comm *comm;
	pthread_t thread;
};

static void must(int r, const struct error *err)
{
	if (r >= 0)
		return;
	fprintf(stderr, "optimizer_dump: %s\n", err->message);
	exit(1);
}

static float made_up(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* Weights and gradients of all parameters: a function of what they are for. Norms are about 1. */
static void fill(float *out, const struct model_parameter *p, int step)
{
	uint64_t state = (uint64_t)(p - run.layout->parameter) * 1000 + (uint64_t)step;

	for (int i = 0; i < 8; i++)
		made_up(&state);
	for (int64_t i = 0; i < p->count; i++) {
		float x = made_up(&state);

		/* Rows of different sizes, so that factors have something to tell apart. */
		out[i] = step > 0    ? x * 0.02f * (float)(1 + i / p->shape[1] % 5)
		         : p->matrix ? x * 0.1f
		                     : 1 + x * 0.1f;
	}
}

static void write_all(FILE *file, int step)
{
	for (int i = 0; i < run.layout->parameters; i++) {
		const struct model_parameter *p = &run.layout->parameter[i];
		_cleanup_free_ float *x = malloc((size_t)p->count * sizeof(*x));

		fill(x, p, step);
		fwrite(x, sizeof(*x), (size_t)p->count, file);
	}
}

/* The rank's share of a gradient, whose shares of all ranks add up to the whole. */
static void fill_gradients(struct device *dev, struct shard *s, int step, int rank)
{
	struct error err = ERROR_INIT;
	float share = (float)(rank + 1) / (float)(run.ranks * (run.ranks + 1) / 2);

	for (int u = 0; u < s->units; u++)
		device_zero(dev, s->unit[u].gradients, (size_t)s->unit[u].padded * sizeof(float));
	for (int i = 0; i < run.layout->parameters; i++) {
		const struct model_parameter *p = &run.layout->parameter[i];
		_cleanup_free_ float *g = malloc((size_t)p->count * sizeof(*g));

		fill(g, p, step);
		for (int64_t k = 0; k < p->count; k++)
			g[k] *= share;
		must(device_write(dev, (float *)s->unit[p->unit].gradients + p->offset, g,
		                  (size_t)p->count * sizeof(*g), &err),
		     &err);
	}
}

static void *run_rank(void *context)
{
	struct rank *me = context;
	struct error err = ERROR_INIT;
	struct arena arena = {0};
	struct optimizer *optimizer;
	struct device *dev;
	struct shard *s;
	double *sum;
	float *clip;
	void *memory;

	must(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	must(device_reserve_scratch(dev, 64 << 20, &err), &err);
	must(shard_create(dev, me->comm,
	                  &(struct shard_options){.rank = me->rank,
	                                          .world_size = run.ranks,
	                                          .strategy = run.ranks > 1 ? SHARD_ZERO1 : SHARD_DDP,
	                                          .type = DTYPE_F32},
	                  run.layout, &s, &err),
	     &err);
	must(optimizer_create(run.kind, true, DTYPE_F32, run.layout, s, &optimizer, &err), &err);
	for (int pass = 0; pass < 2; pass++) {
		shard_place_buffers(s, &arena, NULL);
		optimizer_place_buffers(optimizer, &arena);
		sum = arena_take(&arena, BUFFER_SCRATCH, sizeof(*sum), "sum");
		clip = arena_take(&arena, BUFFER_SCRATCH, 2 * sizeof(*clip), "clip");
		if (pass == 0) {
			must(device_alloc(dev, arena.used, &memory, &err), &err);
			arena_bind(&arena, memory);
		}
	}
	must(shard_connect(s, &err), &err);
	for (int i = 0; i < run.layout->parameters; i++) {
		const struct model_parameter *p = &run.layout->parameter[i];

		_cleanup_free_ float *w = malloc((size_t)p->count * sizeof(*w));

		fill(w, p, 0);
		must(device_write(dev, (float *)s->unit[p->unit].weights + p->offset, w,
		                  (size_t)p->count * sizeof(*w), &err),
		     &err);
	}
	for (int step = 1; step <= run.steps; step++) {
		/* The rate changes, as a schedule would have it. */
		struct optimizer_options o = {.learning_rate = 1e-2 * (1 - 0.5 * step / run.steps),
		                              .embedding_rate = 0.5,
		                              .beta1 = 0.9,
		                              .beta2 = 0.99,
		                              .epsilon = 1e-8,
		                              .weight_decay = 0.1,
		                              .momentum = 0.9,
		                              .nesterov = run.nesterov,
		                              .clip = 1,
		                              .loss_scale = 1,
		                              .step = step};
		struct optimizer_work work = {sum, &clip[0], &clip[1]};

		fill_gradients(dev, s, step, me->rank);
		shard_micro_step(s, true, true);
		for (int u = s->units - 1; u >= 0; u--)
			shard_gradients(s, u);
		must(optimizer_step(optimizer, &o, &work, &err), &err);
		must(shard_settle(s, &err), &err);
	}
	for (int i = 0; i < run.layout->parameters && me->rank == 0; i++) {
		const struct model_parameter *p = &run.layout->parameter[i];

		_cleanup_free_ float *w = malloc((size_t)p->count * sizeof(*w));

		must(device_read(dev, w, (float *)s->unit[p->unit].weights + p->offset,
		                 (size_t)p->count * sizeof(*w), &err),
		     &err);
		fwrite(w, sizeof(*w), (size_t)p->count, run.final);
	}
	optimizer_free(optimizer);
	shard_free(s);
	arena_free(&arena);
	device_free(dev, memory);
	device_destroy(dev);
	return NULL;
}

static FILE *create(const char *directory, const char *name)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	FILE *file = fopen(path, "w");

	if (!file) {
		perror(path);
		exit(1);
	}
	return file;
}

int main(int argc, char **argv)
{
	struct comm *comms[8] = {NULL};
	struct rank ranks[8];
	struct error err = ERROR_INIT;
	struct model_config c;

	if (argc != 7 || optimizer_parse(argv[1], &run.kind) < 0) {
		fprintf(stderr, "usage: optimizer_dump KIND RANKS STEPS NESTEROV INTERMEDIATE DIRECTORY\n");
		return 2;
	}
	run.ranks = atoi(argv[2]);
	run.steps = atoi(argv[3]);
	run.nesterov = atoi(argv[4]);
	must(model_config_parse(config, strlen(config), "config", &c, &err), &err);
	c.intermediate = atoi(argv[5]);
	must(model_layout_create(&c, &run.layout, &err), &err);
	run.initial = create(argv[6], "initial");
	run.gradients = create(argv[6], "gradients");
	run.final = create(argv[6], "final");
	write_all(run.initial, 0);
	for (int step = 1; step <= run.steps; step++)
		write_all(run.gradients, step);
	for (int i = 0; i < run.layout->parameters; i++) {
		const struct model_parameter *p = &run.layout->parameter[i];

		printf("%s %lld %lld %d %d\n", p->name, (long long)p->shape[0], (long long)p->shape[1],
		       p->matrix,
		       p->unit == 0                       ? 0
		       : p->unit == run.layout->units - 1 ? 2
		                                          : 1);
	}
	if (run.ranks > 1)
		thread_comm_create(run.ranks, comms);
	for (int r = 0; r < run.ranks; r++) {
		ranks[r] = (struct rank){.rank = r, .comm = comms[r]};
		pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
	}
	for (int r = 0; r < run.ranks; r++) {
		pthread_join(ranks[r].thread, NULL);
		if (comms[r])
			comm_destroy(comms[r]);
	}
	model_layout_free(run.layout);
	return fclose(run.initial) || fclose(run.gradients) || fclose(run.final);
}
