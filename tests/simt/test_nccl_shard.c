/* SPDX-License-Identifier: Apache-2.0 */
/* Every strategy over the emulated GPU and the stand-in for NCCL, whose collectives end later than they are
 * queued: two ranks have the losses of ddp. */
#include <math.h>
#include <nccl.h>
#include <pthread.h>

#include "../engine/fake_dataset.h"
#include "base/str.h"
#include "engine/train/trainer.h"
#include "engine/train/trial.h"
#include "kv_store.h"
#include "unit.h"

enum { STEPS = 5 };

struct rank_run {
	const char *directory, *group;
	int rank;
	struct train_options o;
	const struct dataset *data;
	double losses[STEPS];
	float weight; /* the last of the parameters, gathered */
	/* By trainer_run: how many steps have begun, and at which of them this rank asks to stop. */
	bool loop;
	int begun, ask_at;
	int64_t steps;
	int vocab;  /* of a tied embedding; 0: untied */
	int keys;   /* heads of them; 0: one */
	bool tries; /* first each strategy, in trials */
};

static bool should_stop(void *context)
{
	struct rank_run *r = context;

	return ++r->begun == r->ask_at;
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct rank_run *r = context;

	r->losses[log->step - 1] = log->loss;
	r->steps = log->step;
	return 0;
}

static void *run_rank(void *context)
{
	_cleanup_free_ char *text = NULL;
	struct rank_run *r = context;
	const struct kv_store store = kv_store_in(r->directory);
	struct comm_options co = {
	    .rank = r->rank, .world_size = 2, .timeout_s = 60, .store = &store, .group = r->group};
	struct model_init init = {.seed = 1, .std = 0.1};
	const struct model_parameter *last;
	struct parameter_access access;
	struct error err = ERROR_INIT;
	struct model_config c;
	struct trainer *t;
	struct device *dev;
	struct comm *comm;

	text = str_printf(
	    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":"
	    "2,\"head_dim\":16,\"num_attention_heads\":2,\"num_key_value_heads\":%d,\"vocab_size\":%d,"
	    "\"tie_word_embeddings\":%s}",
	    r->keys ? r->keys : 1, r->vocab ? r->vocab : 40, r->vocab ? "true" : "false");
	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(comm_create(dev, &co, &comm, &err), &err);
	simt_late_streams(1); /* of transfers */
	for (int s = SHARD_DDP; s <= SHARD_HYBRID && r->tries; s++) {
		struct train_options o = r->o;
		double seconds = 0;

		/* Of both ranks: the next one begins only with this rank. */
		ck_assert_int_eq(simt_nccl_allocated(), 0);
		o.strategy = (enum shard_strategy)s;
		ck_ok(trial_run(dev, comm, &c, &o, r->data, r->data, &seconds, &err), &err);
		ck_assert_double_gt(seconds, 0);
	}
	ck_ok(trainer_create(dev, comm, &c, &r->o, r->data, r->data, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	if (r->loop) {
		struct train_callbacks cb = {.context = r, .on_log = on_log, .should_stop = should_stop};

		ck_assert(trainer_run(t, &cb, &err) >= 0);
	}
	for (int s = 0; s < STEPS && !r->loop; s++) {
		struct train_log log;
		double loss;

		ck_ok(trainer_run_step(t, &log, &err), &err);
		r->losses[s] = log.loss;
		if (s == 1)
			ck_ok(trainer_evaluate(t, &loss, NULL, &err), &err);
	}
	access = trainer_access(t);
	last = &access.layout->parameter[access.layout->parameters - 1];
	ck_ok(access.gather(access.context, STATE_WEIGHTS, last, last->count - 1, 1, &r->weight, &err), &err);
	ck_ok(comm_wait(comm, comm_barrier(comm), &err), &err);
	ck_ok(comm_flush(comm, &err), &err);
	trainer_free(t);
	comm_destroy(comm);
	device_destroy(dev);
	return NULL;
}

/* What the ranks of the tests have in common. */
static struct rank_run a_run(enum shard_strategy strategy, int accumulation)
{
	struct rank_run r = {.group = "test"};

	train_options_default(&r.o);
	r.o.max_steps = STEPS;
	r.o.log_steps = 1;
	r.o.learning_rate = 1e-2;
	r.o.accumulation = accumulation;
	r.o.strategy = strategy;
	r.o.shard_degree = 2;
	return r;
}

/* 7 rows: the last step of an epoch has none for the second rank, which alone asks to stop. */
static void run_two(struct rank_run ranks[2], const struct rank_run *run)
{
	_cleanup_(dataset_closep) struct dataset *data = fake_dataset(7, 6, 5, 40, true);
	_cleanup_free_ char *directory = unit_tmpdir();
	pthread_t threads[2];

	for (int r = 0; r < 2; r++) {
		ranks[r] = *run;
		ranks[r].rank = r;
		ranks[r].directory = directory;
		ranks[r].data = data;
		ranks[r].ask_at = r == 1 ? run->ask_at : 0;
		pthread_create(&threads[r], NULL, run_rank, &ranks[r]);
	}
	for (int r = 0; r < 2; r++)
		pthread_join(threads[r], NULL);
	ck_assert(!file_remove_tree(directory, NULL));
}

/* ask_at: see rank_run; < 0: each step by itself. */
static void run_loop(struct rank_run ranks[2], enum shard_strategy strategy, int accumulation,
                     enum dtype wire, enum shard_offload offload, int ask_at)
{
	struct rank_run run = a_run(strategy, accumulation);

	run.o.reduce_type = wire;
	run.o.offload = offload;
	run.loop = ask_at >= 0;
	run.ask_at = ask_at;
	run_two(ranks, &run);
}

static void run_both(struct rank_run ranks[2], enum shard_strategy strategy, int accumulation,
                     enum dtype wire, enum shard_offload offload)
{
	run_loop(ranks, strategy, accumulation, wire, offload, -1);
}

/* A step begins before the sums of the one before it are read; the ranks stop after the same one. With
 * symmetric windows, of which the stand-in sees to it that all ranks have their buffers at the same place. */
START_TEST(the_loop_has_the_same_losses)
{
	enum shard_strategy strategy = (enum shard_strategy)_i;
	struct rank_run alone[2], ranks[2];

	run_both(alone, strategy, 1, DTYPE_F32, SHARD_OFFLOAD_NONE);
	simt_nccl_windows(1, -1);
	run_loop(ranks, strategy, 1, DTYPE_F32, SHARD_OFFLOAD_NONE, 0);
	for (int step = 0; step < STEPS; step++)
		ck_assert_double_eq(ranks[0].losses[step], alone[0].losses[step]);
	ck_assert_float_eq(ranks[0].weight, alone[0].weight);
	run_loop(ranks, strategy, 1, DTYPE_F32, SHARD_OFFLOAD_NONE, 2);
	for (int r = 0; r < 2; r++)
		ck_assert(ranks[r].steps == 3 && ranks[r].begun == 3);
}
END_TEST

/* What they have allocated, and registered with NCCL, is not there any more: the run is as without them. */
START_TEST(trials_leave_nothing_behind)
{
	_cleanup_(dataset_closep) struct dataset *data = fake_dataset(7, 6, 5, 40, true);
	struct rank_run ranks[2][2];

	if (_i)
		simt_nccl_windows(1, -1);
	for (int tries = 0; tries < 2; tries++) {
		_cleanup_free_ char *directory = unit_tmpdir();
		pthread_t threads[2];

		for (int r = 0; r < 2; r++) {
			struct rank_run *run = &ranks[tries][r];

			*run = (struct rank_run){
			    .directory = directory, .group = "test", .rank = r, .data = data, .tries = tries};
			train_options_default(&run->o);
			run->o.max_steps = STEPS;
			run->o.strategy = SHARD_ZERO3;
			run->o.shard_degree = 2;
			pthread_create(&threads[r], NULL, run_rank, run);
		}
		for (int r = 0; r < 2; r++)
			pthread_join(threads[r], NULL);
		ck_assert(!file_remove_tree(directory, NULL));
	}
	for (int step = 0; step < STEPS; step++)
		ck_assert_double_eq(ranks[0][0].losses[step], ranks[1][0].losses[step]);
	ck_assert_float_eq(ranks[0][0].weight, ranks[1][0].weight);
}
END_TEST

/* gradients: of the blocks; wire: in which they are summed. */
static void run_tied(struct rank_run ranks[2], enum shard_strategy strategy, int accumulation,
                     enum dtype precision, enum dtype gradients, enum dtype wire)
{
	struct rank_run run = a_run(strategy, accumulation);

	run.vocab = 800;
	run.o.precision = precision;
	run.o.gradient_type = gradients;
	run.o.reduce_type = wire;
	run.o.shard_degree = 1;
	run.loop = true;
	run_two(ranks, &run);
}

/* With ddp the rows of a tied embedding's gradients are gathered, and added behind the sum of what the head
 * has written; with zero1 both are summed at the end. */
START_TEST(rows_of_a_tied_embedding)
{
	enum dtype precision = _i % 2 ? DTYPE_BF16 : DTYPE_F32;
	struct rank_run ddp[2], zero1[2];

	run_tied(zero1, SHARD_ZERO1, 1 + _i / 2, precision, DTYPE_F32, DTYPE_F32);
	run_tied(ddp, SHARD_DDP, 1 + _i / 2, precision, DTYPE_F32, DTYPE_F32);
	for (int step = 0; step < STEPS; step++) {
		ck_assert_double_eq_tol(ddp[0].losses[step], zero1[0].losses[step], _i % 2 ? 1e-2 : 1e-5);
		ck_assert_double_eq(ddp[0].losses[step], ddp[1].losses[step]);
	}
	ck_assert_float_eq(ddp[0].weight, ddp[1].weight);
	ck_assert_double_lt(ddp[0].losses[STEPS - 1], ddp[0].losses[0]);
}
END_TEST

/* The blocks' gradients in bf16: with each strategy, and sums in fp32 and bf16, within the rounding of those
 * in fp32. hybrid has replicas alone. */
START_TEST(gradients_in_bf16)
{
	struct rank_run exact[2], ranks[2];

	run_tied(exact, SHARD_DDP, 1, DTYPE_BF16, DTYPE_F32, DTYPE_F32);
	for (int s = SHARD_DDP; s <= SHARD_HYBRID; s++) {
		run_tied(ranks, (enum shard_strategy)s, 1, DTYPE_BF16, DTYPE_BF16,
		         _i ? DTYPE_BF16 : DTYPE_F32);
		for (int step = 0; step < STEPS; step++) {
			ck_assert_double_eq_tol(ranks[0].losses[step], exact[0].losses[step], 2e-2);
			ck_assert_double_eq(ranks[0].losses[step], ranks[1].losses[step]);
		}
		ck_assert_float_eq(ranks[0].weight, ranks[1].weight);
	}
}
END_TEST

START_TEST(losses_are_those_of_ddp)
{
	int accumulation = 1 + _i % 2;
	struct rank_run ddp[2], ranks[2];

	run_both(ddp, SHARD_DDP, accumulation, DTYPE_F32, SHARD_OFFLOAD_NONE);
	ck_assert_double_lt(ddp[0].losses[STEPS - 1], ddp[0].losses[0]);
	for (int s = SHARD_ZERO1; s <= SHARD_HYBRID; s++) {
		run_both(ranks, (enum shard_strategy)s, accumulation, DTYPE_F32, SHARD_OFFLOAD_NONE);
		for (int step = 0; step < STEPS; step++) {
			ck_assert_double_eq_tol(ranks[0].losses[step], ddp[0].losses[step], 1e-5);
			ck_assert_double_eq(ranks[0].losses[step], ranks[1].losses[step]);
		}
		ck_assert_float_eq_tol(ranks[0].weight, ddp[0].weight, 1e-5f);
		ck_assert_float_eq(ranks[0].weight, ranks[1].weight);
	}
	run_both(ranks, SHARD_ZERO3, accumulation, DTYPE_BF16, SHARD_OFFLOAD_NONE);
	for (int step = 0; step < STEPS; step++)
		ck_assert_double_eq_tol(ranks[0].losses[step], ddp[0].losses[step], 1e-2);
}
END_TEST

/* Two ranks share the rows that each of two had one of. Its communicator is another than that of gathers and
 * sums, which go on meanwhile; with symmetric windows, too. */
START_TEST(ranks_share_sequences)
{
	enum shard_strategy strategy = (enum shard_strategy)_i;
	struct rank_run run = a_run(strategy, 2), apart[2], ranks[2];

	run.keys = 2;
	run.loop = true;
	run_two(apart, &run);
	simt_nccl_windows(_i % 2, -1);
	run.o.sequence_degree = 2;
	run.o.micro_batch = 2;
	run_two(ranks, &run);
	for (int step = 0; step < STEPS; step++) {
		ck_assert_double_eq_tol(ranks[0].losses[step], apart[0].losses[step], 1e-5);
		ck_assert_double_eq(ranks[0].losses[step], ranks[1].losses[step]);
	}
	ck_assert_float_eq_tol(ranks[0].weight, apart[0].weight, 1e-5f);
	ck_assert_float_eq(ranks[0].weight, ranks[1].weight);
	ck_assert_double_lt(ranks[0].losses[STEPS - 1], ranks[0].losses[0]);
}
END_TEST

/* One slot: the gradients of a unit come to the place of its weights, and the next unit after their sum. Only
 * places differ, and the bits do not. */
START_TEST(gradients_replace_weights)
{
	for (int s = SHARD_ZERO3; s <= SHARD_HYBRID; s++) {
		struct rank_run run = a_run((enum shard_strategy)s, 1 + _i % 2), beside[2], ranks[2];

		run.loop = true;
		run.o.precision = _i / 2 ? DTYPE_BF16 : DTYPE_F32;
		run_two(beside, &run);
		run.o.prefetch = 0;
		run_two(ranks, &run);
		for (int step = 0; step < STEPS; step++)
			ck_assert_double_eq(ranks[0].losses[step], beside[0].losses[step]);
		ck_assert_float_eq(ranks[0].weight, beside[0].weight);
		ck_assert_float_eq(ranks[1].weight, beside[0].weight);
	}
}
END_TEST

/* The last gradients of a step start together with its sums, where one communicator has both, as here: of two
 * ranks two collectives a step. Of a tied embedding's gradients under ddp the rows are the last; the head's
 * part is not held back. */
START_TEST(the_sums_start_with_the_last_gradients)
{
	int before = simt_nccl_grouped();
	struct rank_run ranks[2];

	if (_i > SHARD_HYBRID)
		run_tied(ranks, SHARD_DDP, 2, DTYPE_F32, DTYPE_F32, DTYPE_F32);
	else
		run_both(ranks, (enum shard_strategy)_i, 2, DTYPE_F32, SHARD_OFFLOAD_NONE);
	ck_assert_int_eq(simt_nccl_grouped() - before, 2 * 2 * STEPS);
}
END_TEST

/* The host steps with the CPU engine's kernels, whose bits are those of the GPU's. Transfers are carried out
 * when something waits for them and not before. */
START_TEST(offload_has_the_same_bits)
{
	struct rank_run without[2], ranks[2];
	int accumulation = 1 + _i % 2;
	enum shard_strategy strategy = (enum shard_strategy)_i;

	run_both(without, strategy, accumulation, DTYPE_F32, SHARD_OFFLOAD_NONE);
	for (int offload = SHARD_OFFLOAD_OPTIMIZER; offload <= SHARD_OFFLOAD_ALL; offload++) {
		if (offload == SHARD_OFFLOAD_ALL && strategy < SHARD_ZERO3)
			continue;
		run_both(ranks, strategy, accumulation, DTYPE_F32, (enum shard_offload)offload);
		for (int step = 0; step < STEPS; step++)
			ck_assert_double_eq(ranks[0].losses[step], without[0].losses[step]);
		ck_assert_float_eq(ranks[0].weight, without[0].weight);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("nccl shard");
	TCase *c = tcase_create("nccl shard");

	tcase_set_timeout(c, 120);
	tcase_add_loop_test(c, losses_are_those_of_ddp, 0, 2);
	tcase_add_loop_test(c, the_loop_has_the_same_losses, SHARD_DDP, SHARD_HYBRID + 1);
	tcase_add_loop_test(c, trials_leave_nothing_behind, 0, 2);
	tcase_add_loop_test(c, rows_of_a_tied_embedding, 0, 4);
	tcase_add_loop_test(c, gradients_in_bf16, 0, 2);
	tcase_add_loop_test(c, gradients_replace_weights, 0, 4);
	tcase_add_loop_test(c, ranks_share_sequences, SHARD_DDP, SHARD_HYBRID + 1);
	tcase_add_loop_test(c, the_sums_start_with_the_last_gradients, SHARD_DDP, SHARD_HYBRID + 2);
	tcase_add_loop_test(c, offload_has_the_same_bits, SHARD_DDP, SHARD_HYBRID + 1);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
