/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an estimate plans is what trainers allocate: models, batches, strategies and numbers of ranks drawn at
 * random (SEED=N repeats them), on the CPU engine.
 */
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "../engine/thread_comm.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/choose.h"
#include "engine/train/estimate.h"
#include "engine/train/trainer.h"

enum { CASES = 24, RANKS = 4 };

static uint64_t state;

static int draw(int from, int to)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return from + (int)((state >> 33) % (uint64_t)(to - from + 1));
}

struct drawn {
	struct model_config model;
	struct train_options options;
	int world_size, threads, row;
	char text[512];
};

static void draw_case(struct drawn *d)
{
	int kv = draw(1, 3), heads = kv * draw(1, 3), width = 16 * draw(1, 3), vocab = draw(40, 3000);
	struct error err = ERROR_INIT;

	snprintf(d->text, sizeof(d->text),
	         "{\"model_type\":\"%s\",\"hidden_size\":%d,\"intermediate_size\":%d,"
	         "\"num_hidden_layers\":%d,\"head_dim\":%d,\"num_attention_heads\":%d,"
	         "\"num_key_value_heads\":%d,\"vocab_size\":%d,\"tie_word_embeddings\":%s}",
	         draw(0, 1) ? "qwen3" : "llama", 8 * draw(2, 16), 8 * draw(2, 40), draw(1, 5), width, heads,
	         kv, vocab, draw(0, 1) ? "true" : "false");
	ck_ok(model_config_parse(d->text, strlen(d->text), "config.json", &d->model, &err), &err);
	train_options_default(&d->options);
	d->world_size = draw(1, RANKS);
	d->threads = draw(1, 2);
	d->row = draw(8, 200);
	d->options.micro_batch = draw(1, 4);
	d->options.accumulation = draw(1, 3);
	d->options.max_steps = 1;
	d->options.recompute = (enum model_recompute)draw(MODEL_KEEP_ALL, MODEL_RECOMPUTE_SELECTIVE);
	d->options.kept_blocks = draw(0, 2);
	d->options.kept_outputs = draw(0, 5);
	d->options.precision = draw(0, 1) ? DTYPE_BF16 : DTYPE_F32;
	d->options.fp8 = d->options.precision == DTYPE_BF16 && d->model.hidden % 16 == 0 &&
	                 d->model.intermediate % 16 == 0 && draw(0, 2) > 0;
	d->options.without_master = d->options.precision == DTYPE_BF16 && draw(0, 2) == 0;
	d->options.reduce_type = draw(0, 2) ? DTYPE_F32 : DTYPE_BF16;
	if (d->options.precision == DTYPE_BF16 && d->options.accumulation == 1 && draw(0, 1))
		d->options.gradient_type = DTYPE_BF16;
	d->options.prefetch = draw(0, 3);
	d->options.persist_below = draw(0, 2) ? 0 : 100;
	d->options.strategy = (enum shard_strategy)draw(SHARD_DDP, SHARD_HYBRID);
	d->options.shard_degree = d->world_size % 2 ? 1 : 2;
	if (d->world_size % 2 == 0 && kv % 2 == 0)
		d->options.sequence_degree = draw(1, 2);
}

struct rank {
	const struct drawn *d;
	struct comm *comm;
	int64_t bytes;
	struct error err;
};

static void *allocate(void *argument)
{
	struct rank *r = argument;
	_cleanup_(dataset_closep) struct dataset *data =
	    fake_dataset_whole(64, r->d->row, (int)r->d->model.vocab);
	_cleanup_json_ json_t *plan = NULL;
	struct device *dev = NULL;
	struct trainer *t = NULL;

	if (device_create(&(struct device_options){.threads = r->d->threads}, &dev, &r->err) == 0 &&
	    trainer_create(dev, r->comm, &r->d->model, &r->d->options, data, NULL, &t, &r->err) == 0 &&
	    trainer_plan_json(t, &plan, &r->err) == 0)
		r->bytes = json_get_int(plan, "total", 0);
	trainer_free(t);
	device_destroy(dev);
	return NULL;
}

START_TEST(the_estimate_is_the_run)
{
	const char *seed = getenv("SEED");

	state = seed ? strtoull(seed, NULL, 10) : (uint64_t)clock_realtime();
	printf("SEED=%llu\n", (unsigned long long)state);
	for (int i = 0; i < CASES; i++) {
		struct comm *comms[RANKS] = {NULL};
		struct rank ranks[RANKS] = {0};
		pthread_t threads[RANKS];
		struct hardware_set where = {.nodes = 1};
		struct error err = ERROR_INIT;
		struct estimate e;
		struct drawn d;

		draw_case(&d);
		ck_assert(hardware_find("cpu", &where.device));
		where.per_node = d.world_size;
		hardware_fill_cpu(&where.device, d.world_size, d.threads, 0);
		ck_ok(estimate_run(&(struct estimate_input){&d.model, &d.options, d.row, &where}, &e, &err),
		      &err);
		if (d.world_size > 1)
			thread_comm_create(d.world_size, comms);
		for (int r = 0; r < d.world_size; r++) {
			ranks[r] = (struct rank){.d = &d, .comm = comms[r]};
			pthread_create(&threads[r], NULL, allocate, &ranks[r]);
		}
		for (int r = 0; r < d.world_size; r++)
			pthread_join(threads[r], NULL);
		for (int r = 0; r < d.world_size; r++) {
			comm_destroy(comms[r]);
			ck_assert_msg(ranks[r].err.code == 0, "%s: %s", d.text, ranks[r].err.message);
			ck_assert_msg(ranks[r].bytes == (int64_t)e.plan,
			              "case %d: %s, %d ranks, %s: planned %lld bytes, rank %d has %lld", i,
			              d.text, d.world_size, estimate_strategy_name(d.options.strategy),
			              (long long)e.plan, r, (long long)ranks[r].bytes);
		}
	}
}
END_TEST

/* With train.recompute = "auto" a run keeps the outputs of norms and of the activation where there is room,
 * and with a way of its own none of them. */
START_TEST(outputs_are_chosen)
{
	static const char text[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":8192,"
	    "\"num_hidden_layers\":16,\"num_attention_heads\":32,"
	    "\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":128256,"
	    "\"tie_word_embeddings\":true}";
	struct train_options given;
	struct error err = ERROR_INIT;
	struct hardware_set where;
	struct model_config c;

	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	train_options_default(&given);
	given.micro_batch = 4;
	given.precision = DTYPE_BF16;
	ck_ok(hardware_parse("1xH100-80GB", &where, &err), &err);
	for (int automatic = 0; automatic < 2; automatic++)
		for (int row = 4096; row <= 32768; row *= 8) {
			struct train_options o = given;

			o.kept_outputs = 7;
			ck_ok(choose_plan(&(struct estimate_input){&c, &given, row, &where}, false, automatic,
			                  &o, &err),
			      &err);
			ck_assert_int_eq(o.kept_outputs, automatic && row == 4096 ? c.layers : 0);
			ck_assert_int_eq(o.recompute != MODEL_KEEP_ALL, automatic && row > 4096);
		}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("plan");
	TCase *tc = tcase_create("plan");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, the_estimate_is_the_run);
	tcase_add_test(tc, outputs_are_chosen);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
