/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer behind the next forward pass. The emulator carries its operations out when something waits
 * for them and not before, so that what lacks a wait reads the state before the step. */
#include <cuda_runtime_api.h>

#include "../engine/fake_dataset.h"
#include "base/str.h"
#include "engine/train/trainer.h"
#include "unit.h"

enum { STEPS = 4, BROKEN_OFF = 2 };

static const struct kind {
	enum optimizer_kind optimizer;
	enum dtype precision;
	bool without_master, tied;
	int accumulation, rank;
} kinds[] = {
    {OPTIMIZER_ADAMW, DTYPE_F32, false, false, 1, 0}, {OPTIMIZER_ADAMW, DTYPE_BF16, false, true, 1, 0},
    {OPTIMIZER_ADAMW, DTYPE_BF16, true, false, 2, 0}, {OPTIMIZER_SGD, DTYPE_F32, false, true, 2, 0},
    {OPTIMIZER_LION, DTYPE_BF16, false, false, 1, 0}, {OPTIMIZER_ADAMW, DTYPE_BF16, false, true, 1, 4},
    {OPTIMIZER_ADAMW, DTYPE_F16, false, false, 1, 0},
};

struct run {
	struct device *dev;
	struct trainer *t;
	struct dataset *data;
	double losses[STEPS], norms[STEPS], evaluated;
};

static void start(struct run *run, const struct kind *k)
{
	static char *const all[] = {(char *)"all", NULL};
	_cleanup_free_ char *text = str_printf(
	    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
	    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":40,\"tie_word_embeddings\":%"
	    "s}",
	    k->tied ? "true" : "false");
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;

	*run = (struct run){.data = fake_dataset(8, 9, 4, 40, true)};
	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	train_options_default(&o);
	o.max_steps = STEPS;
	o.learning_rate = 1e-2;
	o.momentum = 0.9;
	o.optimizer = k->optimizer;
	o.precision = k->precision;
	o.without_master = k->without_master;
	o.accumulation = k->accumulation;
	if (k->rank > 0) {
		o.tuning.kind = TUNE_LORA;
		o.tuning.rank = k->rank;
		o.tuning.alpha = k->rank;
		o.tuning.target = all;
	}
	ck_ok(device_create(NULL, &run->dev, &err), &err);
	ck_ok(trainer_create(run->dev, NULL, &c, &o, run->data, run->data, &run->t, &err), &err);
	ck_ok(trainer_load(run->t, model_init_fill, &init, &err), &err);
}

static void end(struct run *run)
{
	trainer_free(run->t);
	device_destroy(run->dev);
	dataset_close(run->data);
}

/* wait: nothing is left under way after a step, since the host reads a weight. */
static void steps(struct run *run, int from, int to, bool wait)
{
	const struct model_layout *layout = trainer_layout(run->t);
	struct error err = ERROR_INIT;
	struct train_log log;
	float first;

	for (int s = from; s < to; s++) {
		ck_ok(trainer_run_step(run->t, &log, &err), &err);
		run->losses[s] = log.loss;
		run->norms[s] = log.grad_norm;
		if (wait)
			ck_ok(trainer_read(run->t, STATE_WEIGHTS, &layout->parameter[0], 0, 1, &first, &err),
			      &err);
	}
}

/* All weights and moments. */
static float *state(struct run *run, int64_t *n)
{
	const struct model_layout *layout = trainer_layout(run->t);
	struct error err = ERROR_INIT;
	float *all;

	*n = 0;
	for (int i = 0; i < layout->parameters; i++)
		*n += 3 * layout->parameter[i].count;
	all = malloc((size_t)*n * sizeof(*all));
	ck_assert_ptr_nonnull(all);
	for (int i = 0, at = 0; i < 3 * layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i / 3];

		ck_ok(trainer_read(run->t, (enum parameter_state)(i % 3), p, 0, p->count, all + at, &err),
		      &err);
		at += (int)p->count;
	}
	return all;
}

static void give(struct run *run, const float *all)
{
	const struct model_layout *layout = trainer_layout(run->t);
	struct error err = ERROR_INIT;

	for (int i = 0; i < 3 * layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i / 3];

		ck_ok(trainer_write(run->t, (enum parameter_state)(i % 3), p, 0, p->count, all, &err), &err);
		all += p->count;
	}
	ck_ok(trainer_set_step(run->t, BROKEN_OFF, &err), &err);
}

static void expect_same(const struct run *run, const struct run *other)
{
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq(run->losses[s], other->losses[s]);
		ck_assert_double_eq(run->norms[s], other->norms[s]);
	}
}

START_TEST(the_same_bits)
{
	struct run waits, goes_on, resumed;
	struct error err = ERROR_INIT;
	float *want, *got;
	int64_t n;

	start(&waits, &kinds[_i]);
	steps(&waits, 0, STEPS, true);
	ck_ok(trainer_evaluate(waits.t, &waits.evaluated, NULL, &err), &err);
	want = state(&waits, &n);
	ck_assert_double_ne(waits.losses[0], waits.losses[1]);

	start(&goes_on, &kinds[_i]);
	steps(&goes_on, 0, STEPS, false);
	expect_same(&goes_on, &waits);
	ck_ok(trainer_evaluate(goes_on.t, &goes_on.evaluated, NULL, &err), &err);
	ck_assert_double_eq(goes_on.evaluated, waits.evaluated);
	got = state(&goes_on, &n);
	ck_assert(!memcmp(got, want, (size_t)n * sizeof(*got)));
	free(got);
	end(&goes_on);

	/* Broken off after a step, without an evaluation between, and gone on with by another process. */
	start(&goes_on, &kinds[_i]);
	steps(&goes_on, 0, BROKEN_OFF, false);
	got = state(&goes_on, &n);
	start(&resumed, &kinds[_i]);
	if (trainer_loss_scaler(goes_on.t))
		trainer_set_loss_scaler(resumed.t, trainer_loss_scaler(goes_on.t));
	give(&resumed, got);
	free(got);
	memcpy(resumed.losses, goes_on.losses, sizeof(resumed.losses));
	memcpy(resumed.norms, goes_on.norms, sizeof(resumed.norms));
	end(&goes_on);
	steps(&resumed, BROKEN_OFF, STEPS, false);
	expect_same(&resumed, &waits);
	got = state(&resumed, &n);
	ck_assert(!memcmp(got, want, (size_t)n * sizeof(*got)));
	free(got);
	free(want);
	end(&resumed);
	end(&waits);
}
END_TEST

/* What makes a missing wait visible. */
START_TEST(it_comes_late)
{
	const float weight = 2, gradient = 1, zero = 0;
	struct device_adamw h = {.learning_rate = 0.5, .beta1 = 0.9, .beta2 = 0.99, .step = 1};
	struct device_event *done;
	struct error err = ERROR_INIT;
	struct device *dev;
	float *memory, got;

	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(device_alloc(dev, 1024, (void **)&memory, &err), &err);
	ck_ok(device_event_create(dev, &done, &err), &err);
	ck_ok(device_write(dev, memory, &weight, sizeof(weight), &err), &err);
	ck_ok(device_write(dev, memory + 64, &gradient, sizeof(gradient), &err), &err);
	device_aside_begin(dev);
	device_adamw(dev, memory, NULL, DTYPE_F32, memory + 64, DTYPE_F32, memory + 128, memory + 192, 1,
	             NULL, &h);
	device_aside_end(dev, done);
	ck_ok(device_read(dev, &got, memory, sizeof(got), &err), &err);
	ck_assert_float_eq(got, weight);
	device_event_wait(dev, done);
	ck_ok(device_read(dev, &got, memory, sizeof(got), &err), &err);
	ck_assert_float_eq(got, 1.5f);

	/* The compute stream's earlier work is read, whatever it does later; device_synchronize ends all. */
	device_aside_begin(dev);
	device_adamw(dev, memory, NULL, DTYPE_F32, memory + 64, DTYPE_F32, memory + 128, memory + 192, 1,
	             NULL, &h);
	device_aside_end(dev, done);
	ck_ok(device_synchronize(dev, &err), &err);
	ck_ok(device_read(dev, &got, memory, sizeof(got), &err), &err);
	ck_assert_float_lt(got, 1.5f);
	ck_ok(device_write(dev, memory, &zero, sizeof(zero), &err), &err);
	device_event_destroy(done);
	device_free(dev, memory);
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("aside");
	TCase *tc = tcase_create("aside");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, it_comes_late);
	tcase_add_loop_test(tc, the_same_bits, 0, (int)ARRAY_SIZE(kinds));
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
