/* SPDX-License-Identifier: Apache-2.0 */
/* The loop over the emulated GPU: a step begins before the sums of the one before it are read, and nothing
 * else of a step waits for the device. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "../engine/fake_dataset.h"
#include "engine/train/internal.h"
#include "engine/train/trainer.h"
#include "unit.h"

enum { STEPS = 9, SAVE = 4, EVAL = 3 };

struct run {
	struct train_options o;
	double losses[STEPS], norms[STEPS];
	int begun, steps, evaluations, saves, ask_at;
	int64_t saved, waited[STEPS + 1]; /* waits of the host until step i had been reported */
	bool ahead[STEPS + 1], stopped;
	float weight;
	struct error err;
};

static bool should_stop(void *context)
{
	struct run *run = context;

	return ++run->begun == run->ask_at;
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct run *run = context;

	ck_assert_int_eq(log->step, ++run->steps);
	run->losses[log->step - 1] = log->loss;
	run->norms[log->step - 1] = log->grad_norm;
	run->ahead[log->step] = run->begun > log->step;
	run->waited[log->step] = simt_waits(false) + simt_waits(true);
	run->evaluations += log->has_eval;
	return 0;
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	struct run *run = context;

	ck_assert_int_eq(step, run->begun);
	run->saves++;
	run->saved = step;
	run->stopped = stopped;
	return 0;
}

enum how { LOOP, ALONE, AHEAD };

/* LOOP: the result of trainer_run; else each step by itself, or as the benchmarks have them. */
static int train(struct run *run, enum how how)
{
	static const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":48,"
	                           "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_"
	                           "heads\":1,\"vocab_size\":40,\"tie_word_embeddings\":false}";
	_cleanup_(dataset_closep) struct dataset *data = fake_dataset(8, 9, 4, 40, true);
	struct train_callbacks cb = {run, on_log, NULL, on_save, should_stop};
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct model_config c;
	struct device *dev;
	struct trainer *t;
	int r = 0;

	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &run->o, data, data, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	for (int s = 0; s < STEPS && how != LOOP; s++) {
		struct train_log log;

		if (how == ALONE)
			ck_ok(trainer_run_step(t, &log, &err), &err);
		else
			ck_ok(trainer_run_step_ahead(t, s + 1 < STEPS, &log, &err), &err);
		ck_assert_int_eq(log.step, s + 1);
		run->ahead[s + 1] = t->begun > t->step;
		run->losses[s] = log.loss;
		run->norms[s] = log.grad_norm;
	}
	if (how == LOOP)
		r = trainer_run(t, &cb, &run->err);
	if (r >= 0)
		ck_ok(trainer_read(t, STATE_WEIGHTS, &trainer_layout(t)->parameter[0], 0, 1, &run->weight,
		                   &err),
		      &err);
	trainer_free(t);
	device_destroy(dev);
	return r;
}

static struct run new_run(void)
{
	struct run run = {.err = ERROR_INIT};

	train_options_default(&run.o);
	run.o.max_steps = STEPS;
	run.o.log_steps = 1;
	run.o.learning_rate = 1e-2;
	return run;
}

START_TEST(it_begins_before_the_sums_are_read)
{
	struct run alone = new_run(), run = new_run();

	run.o.save_steps = SAVE;
	run.o.eval_steps = EVAL;
	train(&alone, ALONE);
	ck_assert_int_eq(train(&run, LOOP), 0);
	ck_assert_int_eq(run.steps, STEPS);
	for (int s = 1; s <= STEPS; s++) {
		ck_assert_double_eq(run.losses[s - 1], alone.losses[s - 1]);
		ck_assert_double_eq(run.norms[s - 1], alone.norms[s - 1]);
		/* But where a checkpoint or an evaluation comes between. */
		ck_assert_int_eq(run.ahead[s], s % SAVE != 0 && s % EVAL != 0 && s < STEPS);
	}
	ck_assert_float_eq(run.weight, alone.weight);
	ck_assert_int_eq(run.evaluations, STEPS / EVAL);
	ck_assert_int_eq(run.saves, STEPS / SAVE);
}
END_TEST

/* As the benchmarks have them, which so measure what a run does. */
START_TEST(steps_of_a_benchmark_begin_so_too)
{
	struct run alone = new_run(), run = new_run();

	train(&alone, ALONE);
	train(&run, AHEAD);
	for (int s = 1; s <= STEPS; s++) {
		ck_assert_double_eq(run.losses[s - 1], alone.losses[s - 1]);
		ck_assert_double_eq(run.norms[s - 1], alone.norms[s - 1]);
		ck_assert(!alone.ahead[s]);
		ck_assert_int_eq(run.ahead[s], s < STEPS);
	}
	ck_assert_float_eq(run.weight, alone.weight);
}
END_TEST

/* That is for the event behind the sums. The last step has an evaluation behind it. */
START_TEST(the_host_waits_once_a_step)
{
	struct run run = new_run();

	run.o.accumulation = 1 + _i;
	ck_assert_int_eq(train(&run, LOOP), 0);
	for (int s = 2; s < STEPS; s++)
		ck_assert_int_eq(run.waited[s] - run.waited[s - 1], 1);
}
END_TEST

/* The next step is in work when the flag is read, and is the last. */
START_TEST(it_stops_behind_what_has_begun)
{
	struct run run = new_run();

	run.ask_at = 3;
	ck_assert_int_eq(train(&run, LOOP), 1);
	ck_assert_int_eq(run.steps, 4);
	ck_assert_int_eq(run.saved, 4);
	ck_assert(run.saves == 1 && run.stopped);
}
END_TEST

/* Of fp16 the host has to know whether a step overflowed before it begins the next. */
START_TEST(fp16_does_not_run_ahead)
{
	struct run run = new_run();

	run.o.precision = DTYPE_F16;
	ck_assert_int_eq(train(&run, LOOP), 0);
	for (int s = 1; s <= STEPS; s++)
		ck_assert(!run.ahead[s]);
}
END_TEST

/* The step behind that one is in work already; nothing of either is saved. */
START_TEST(not_finite_saves_nothing)
{
	struct run run = new_run();

	run.o.learning_rate = 1e36;
	run.o.save_steps = SAVE;
	ck_assert_int_eq(train(&run, LOOP), -EDOM);
	ck_assert_msg(strstr(run.err.message, "step 2: ") == run.err.message, "%s", run.err.message);
	ck_assert_int_eq(run.steps, 1);
	ck_assert_int_eq(run.saves, 0);
}
END_TEST

/* Small writes leave from memory of the engine, which the host need not wait for until all of it is used. */
START_TEST(writes_do_not_wait_for_the_device)
{
	enum { BYTES = 64 << 10, WRITES = 160 }; /* 10 MiB */
	static char data[BYTES], got[BYTES];
	struct error err = ERROR_INIT;
	struct device *dev;
	int64_t waits, streams;
	char *memory;

	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(device_alloc(dev, (size_t)BYTES * WRITES, (void **)&memory, &err), &err);
	ck_ok(device_synchronize(dev, &err), &err);
	waits = simt_waits(false);
	streams = simt_waits(true);
	for (int i = 0; i < WRITES; i++) {
		memset(data, i, sizeof(data));
		ck_ok(device_write(dev, memory + (size_t)i * BYTES, data, BYTES, &err), &err);
	}
	/* Once for each half that is turned to, of 2 MiB, and for what left from there alone. */
	ck_assert_int_eq(simt_waits(false) - waits, 4);
	ck_assert_int_eq(simt_waits(true) - streams, 0);
	for (int i = 0; i < WRITES; i++) {
		memset(data, i, sizeof(data));
		ck_ok(device_read(dev, got, memory + (size_t)i * BYTES, BYTES, &err), &err);
		ck_assert(!memcmp(got, data, sizeof(got)));
	}
	device_free(dev, memory);
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ahead");
	TCase *tc = tcase_create("ahead");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, it_begins_before_the_sums_are_read);
	tcase_add_test(tc, steps_of_a_benchmark_begin_so_too);
	tcase_add_loop_test(tc, the_host_waits_once_a_step, 0, 2);
	tcase_add_test(tc, it_stops_behind_what_has_begun);
	tcase_add_test(tc, fp16_does_not_run_ahead);
	tcase_add_test(tc, not_finite_saves_nothing);
	tcase_add_test(tc, writes_do_not_wait_for_the_device);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
