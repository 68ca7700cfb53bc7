/* SPDX-License-Identifier: Apache-2.0 */
/* Training in fp8: with every strategy, with recompute and accumulation, of adapters, resumed; compared with
 * bf16. What a product computes is compared in test_device_fp8.c, and with PyTorch in tests/engine/fp8.py. */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "../engine/thread_comm.h"
#include "engine/train/trainer.h"
#include "trainer_state.h"

#define STEPS 6
#define MANY  120

static const char *const model_text =
    "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,\"head_"
    "dim\":16,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"tie_word_embeddings\":true}";

/* Weights that were made fp8 by any rank: they alone have codes of both kinds in E4M3. */
static int made;
void __real_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src);
void __wrap_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src);
void __wrap_device_fp8_quantize(struct device *dev, const struct device_fp8 *q, const void *src)
{
	if (q->format == FP8_E4M3 && q->codes && q->turned)
		__atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
	__real_device_fp8_quantize(dev, q, src);
}

/* One rank of a run. */
struct rank_run {
	struct comm *comm;
	struct train_options o;
	const struct dataset *train;
	int64_t from, to;
	double losses[MANY], norms[MANY], eval;
	float *state[3], *start[3]; /* at the end; to start from */
};

static void options(struct train_options *o, int micro_batch, int accumulation)
{
	train_options_default(o);
	o->micro_batch = micro_batch;
	o->accumulation = accumulation;
	o->max_steps = STEPS;
	o->learning_rate = 1e-2;
	o->warmup_steps = 2;
	o->precision = DTYPE_BF16;
	o->fp8 = true;
}

static void model(struct model_config *c)
{
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(model_text, strlen(model_text), "config.json", c, &err), &err);
}

/* Random weights; magnitudes (DoRA) are about the lengths of the rows. */
static int fill(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                struct error *err)
{
	for (int64_t i = 0; i < n && p->part == PART_MAGNITUDE; i++)
		out[i] = 0.6f;
	return p->part == PART_MAGNITUDE ? 0 : model_init_fill(context, p, first, n, out, err);
}

static void *run_rank(void *context)
{
	struct rank_run *r = context;
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct model_config c;
	struct train_log log;
	struct trainer *t;
	struct device *dev;

	model(&c);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, r->comm, &c, &r->o, r->train, r->train, &t, &err), &err);
	ck_ok(trainer_load(t, fill, &init, &err), &err);
	if (r->start[0])
		trainer_state_write(t, r->start, r->from);
	for (int64_t s = r->from; s < (r->to ? r->to : r->o.max_steps); s++) {
		ck_ok(trainer_run_step(t, &log, &err), &err);
		r->losses[s] = log.loss;
		r->norms[s] = log.grad_norm;
	}
	ck_ok(trainer_evaluate(t, &r->eval, NULL, &err), &err);
	for (int s = 0; s < 3 && r->o.tuning.kind == TUNE_ALL; s++)
		r->state[s] = trainer_state_read(t, (enum parameter_state)s);
	trainer_free(t);
	device_destroy(dev);
	return NULL;
}

static void run_all(struct rank_run *runs, int world_size)
{
	struct comm *comms[4] = {NULL};
	pthread_t threads[4];

	if (world_size > 1)
		thread_comm_create(world_size, comms);
	for (int r = 0; r < world_size; r++) {
		runs[r] = runs[0];
		runs[r].comm = comms[r];
	}
	for (int r = 0; r < world_size; r++)
		pthread_create(&threads[r], NULL, run_rank, &runs[r]);
	for (int r = 0; r < world_size; r++) {
		pthread_join(threads[r], NULL);
		comm_destroy(comms[r]);
	}
}

static void done(struct rank_run *runs, int world_size)
{
	for (int r = 0; r < world_size; r++)
		for (int s = 0; s < 3; s++)
			free(runs[r].state[s]);
}

static void check_same_losses(const struct rank_run *a, const struct rank_run *b)
{
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq(a->losses[s], b->losses[s]);
	ck_assert_double_eq(a->eval, b->eval);
}

static void check_same(const struct rank_run *a, const struct rank_run *b)
{
	check_same_losses(a, b);
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq(a->norms[s], b->norms[s]);
}

/* Where weights are sharded the codes are made of what was gathered: the same ones. */
START_TEST(every_strategy_has_the_losses_of_ddp)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run ddp[4] = {{.train = train}};

	options(&ddp[0].o, 2, 1 + _i);
	/* A norm is the sum of what each rank has of the gradients: its last bits are not those of ddp, and
	 * clipping would bring them into the weights. */
	ddp[0].o.clip = 0;
	run_all(ddp, 2);
	ck_assert_double_lt(ddp[0].losses[STEPS - 1], ddp[0].losses[0] - 0.05);
	for (int strategy = SHARD_ZERO1; strategy <= SHARD_HYBRID; strategy++) {
		struct rank_run runs[4] = {{.train = train, .o = ddp[0].o}};

		runs[0].o.strategy = (enum shard_strategy)strategy;
		runs[0].o.shard_degree = 2;
		run_all(runs, 2);
		for (int s = 0; s < STEPS; s++) {
			ck_assert_double_eq_tol(runs[0].losses[s], ddp[0].losses[s], 2e-3);
			ck_assert_double_eq_tol(runs[0].norms[s], ddp[0].norms[s], 2e-2 * ddp[0].norms[s]);
		}
		/* One micro-step's gradients are summed in the same order everywhere. */
		if (_i == 0)
			check_same_losses(&runs[0], &ddp[0]);
		for (int s = 0; _i == 0 && s < STEPS; s++)
			ck_assert_double_eq_tol(runs[0].norms[s], ddp[0].norms[s], 1e-6 * ddp[0].norms[s]);
		check_same(&runs[1], &runs[0]);
		done(runs, 2);
	}
	done(ddp, 2);
}
END_TEST

/* Blocks of which some compute q, k and v as one product, and others one by one since a part of them is
 * trained, have one memory for the codes of a block's weights where these are sharded. */
START_TEST(blocks_that_divide_their_products_in_other_ways)
{
	static char *const modules[] = {"k_proj", NULL};
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(24, 9, 8, 50, true);
	struct rank_run ddp[4] = {{.train = train}}, runs[4];

	options(&ddp[0].o, 2, 3);
	ddp[0].o.clip = 0;
	ddp[0].o.tuning = (struct model_tuning){.kind = TUNE_SOME, .layers = 1, .modules = modules};
	runs[0] = ddp[0];
	runs[0].o.strategy = SHARD_ZERO3;
	run_all(ddp, 2);
	run_all(runs, 2);
	/* Gradients of several micro-steps are summed in another order. */
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq_tol(runs[0].losses[s], ddp[0].losses[s], 1e-4);
		ck_assert_double_eq_tol(runs[0].norms[s], ddp[0].norms[s], 1e-3 * ddp[0].norms[s]);
	}
	ck_assert_double_eq_tol(runs[0].eval, ddp[0].eval, 1e-4);
	done(ddp, 2);
	done(runs, 2);
}
END_TEST

START_TEST(recompute_has_the_same_bits)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run kept = {.train = train}, offloaded;

	options(&kept.o, 2, 2);
	run_all(&kept, 1);
	for (int way = MODEL_RECOMPUTE_BLOCK; way <= MODEL_RECOMPUTE_SELECTIVE; way++) {
		struct rank_run again = {.train = train, .o = kept.o};

		again.o.recompute = (enum model_recompute)way;
		run_all(&again, 1);
		check_same(&again, &kept);
		done(&again, 1);
	}
	offloaded = (struct rank_run){.train = train, .o = kept.o};
	offloaded.o.offload = SHARD_OFFLOAD_ALL;
	offloaded.o.strategy = SHARD_ZERO3;
	run_all(&offloaded, 1);
	check_same(&offloaded, &kept);
	done(&offloaded, 1);
	done(&kept, 1);
}
END_TEST

START_TEST(resume_is_bitwise)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	int ranks = 1 + _i % 2;
	struct rank_run whole[4] = {{.train = train}}, first[4], second[4];

	options(&whole[0].o, 2, 2);
	whole[0].o.without_master = _i / 2;
	first[0] = whole[0];
	first[0].to = 3;
	run_all(whole, ranks);
	run_all(first, ranks);
	second[0] = whole[0];
	second[0].from = 3;
	memcpy(second[0].start, first[0].state, sizeof(second[0].start));
	run_all(second, ranks);
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq(s < 3 ? first[0].losses[s] : second[0].losses[s], whole[0].losses[s]);
	ck_assert_double_eq(second[0].eval, whole[0].eval);
	done(whole, ranks);
	done(first, ranks);
	done(second, ranks);
}
END_TEST

/* Codes of weights are made once a step, and for an evaluation at the end; of one block at a time, for each
 * pass over it. */
START_TEST(weights_are_made_fp8_once_a_step)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(32, 9, 8, 50, true);
	struct rank_run run = {.train = train};
	const int matrices = 2 * 4; /* of both blocks */

	options(&run.o, 2, 4);
	made = 0;
	run_all(&run, 1);
	ck_assert_int_eq(made, (STEPS + 1) * matrices);
	done(&run, 1);
	made = 0;
	run.o.strategy = SHARD_ZERO3;
	run_all(&run, 1);
	/* The last block's are still there for its backward pass, and the first one's for the next
	 * micro-step.
	 */
	ck_assert_int_gt(made, (STEPS + 1) * matrices);
	ck_assert_int_le(made, (STEPS * 4 * 2 + 16) * matrices);
	done(&run, 1);
}
END_TEST

/* The products with the frozen weights are in fp8, those of the adapters in bf16. */
START_TEST(adapters_learn)
{
	static char *all[] = {"all", NULL};
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run fp8 = {.train = train}, bf16;

	options(&fp8.o, 4, 1);
	/* The faster it learns, the more of a code that is rounded the other way is seen steps later. */
	fp8.o.learning_rate = 2e-3;
	fp8.o.max_steps = 20;
	fp8.o.tuning = (struct model_tuning){.kind = TUNE_LORA,
	                                     .rank = 4,
	                                     .alpha = 8,
	                                     .dropout = _i == 1 ? 0.1 : 0,
	                                     .dora = _i == 2,
	                                     .target = all};
	bf16 = (struct rank_run){.train = train, .o = fp8.o};
	bf16.o.fp8 = false;
	run_all(&fp8, 1);
	ck_assert_int_gt(made, 0);
	run_all(&bf16, 1);
	ck_assert_double_lt(fp8.losses[19], fp8.losses[0] - 0.02);
	for (int s = 0; s < 20; s++)
		ck_assert_double_eq_tol(fp8.losses[s], bf16.losses[s], 0.01 * bf16.losses[s]);
	ck_assert_double_ne(fp8.losses[10], bf16.losses[10]);
	done(&fp8, 1);
	done(&bf16, 1);
}
END_TEST

START_TEST(losses_are_those_of_bf16)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(400, 9, 8, 50, true);
	struct rank_run fp8 = {.train = train}, bf16;
	double sum = 0, want = 0, worst = 0;

	options(&fp8.o, 4, 1);
	fp8.o.max_steps = MANY;
	fp8.o.learning_rate = 3e-3;
	bf16 = (struct rank_run){.train = train, .o = fp8.o};
	bf16.o.fp8 = false;
	run_all(&fp8, 1);
	run_all(&bf16, 1);
	for (int s = 0; s < MANY; s++) {
		sum += fp8.losses[s];
		want += bf16.losses[s];
		worst = fmax(worst, fabs(fp8.losses[s] / bf16.losses[s] - 1));
	}
	printf("fp8: mean loss %.5f of %d steps, bf16 %.5f; largest difference of a step %.3f %%, of the "
	       "evaluation "
	       "%.3f %%\n",
	       sum / MANY, MANY, want / MANY, 100 * worst, 100 * fabs(fp8.eval / bf16.eval - 1));
	ck_assert_double_eq_tol(sum, want, 0.005 * want);
	ck_assert_double_eq_tol(fp8.eval, bf16.eval, 0.005 * bf16.eval);
	ck_assert_double_lt(fp8.losses[MANY - 1], fp8.losses[0] - 0.1);
	ck_assert_double_gt(worst, 0);
	done(&fp8, 1);
	done(&bf16, 1);
}
END_TEST

START_TEST(what_is_not_computed_is_refused)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(8, 9, 8, 50, true);
	struct error err = ERROR_INIT;
	struct train_options o;
	struct trainer *t = NULL;
	struct model_config c;
	struct device *dev;

	model(&c);
	options(&o, 2, 1);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	c.intermediate = 40;
	ck_assert_int_eq(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), -EINVAL);
	ck_assert_ptr_nonnull(
	    strstr(err.message, "multiples of 16, but the intermediate size of the model is 40"));
	model(&c);
	o.quantize = SHARD_NF4;
	ck_assert_int_eq(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.message, "not with weights in 4 bits"));
	o.quantize = SHARD_QUANTIZE_NONE;
	o.precision = DTYPE_F16;
	ck_assert_int_eq(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), -EINVAL);
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fp8");
	TCase *t = tcase_create("fp8");

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, every_strategy_has_the_losses_of_ddp, 0, 2);
	tcase_add_test(t, blocks_that_divide_their_products_in_other_ways);
	tcase_add_test(t, recompute_has_the_same_bits);
	tcase_add_loop_test(t, resume_is_bitwise, 0, 4);
	tcase_add_test(t, weights_are_made_fp8_once_a_step);
	tcase_add_loop_test(t, adapters_learn, 0, 3);
	tcase_add_test(t, losses_are_those_of_bf16);
	tcase_add_test(t, what_is_not_computed_is_refused);
	suite_add_tcase(s, t);
	return unit_run(s);
}
