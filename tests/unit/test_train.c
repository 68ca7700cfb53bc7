/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer over a small model and made-up rows: schedules, splits over ranks, resume, and
 * what is refused. */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "../engine/thread_comm.h"
#include "base/json.h"
#include "engine/train/plan.h"
#include "engine/train/trainer.h"
#include "trainer_state.h"

#define STEPS 6
/* The naive device supports only fp32. */
#ifdef NAIVE
#define RESUME_PRECISION DTYPE_F32
#else
#define RESUME_PRECISION (_i >= 6 ? DTYPE_F16 : _i >= 2 ? DTYPE_BF16 : DTYPE_F32)
#endif
#define RESUME_WITHOUT_MASTER (_i == 4 || _i == 5)

static const char *const model_text =
    "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,\"head_"
    "dim\":16,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"tie_word_embeddings\":true}";

static void model(struct model_config *c)
{
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(model_text, strlen(model_text), "config.json", c, &err), &err);
}

static void options(struct train_options *o, int micro_batch, int accumulation)
{
	train_options_default(o);
	o->micro_batch = micro_batch;
	o->accumulation = accumulation;
	o->max_steps = STEPS;
	o->learning_rate = 1e-2;
	o->weight_decay = 0.1;
	o->warmup_steps = 2;
	o->log_steps = 1;
	o->save_steps = 3;
}

START_TEST(schedules_as_transformers)
{
	struct schedule s = {.peak = 1, .steps = 10, .warmup = 2, .decay = 4};
	/* transformers.get_{linear,cosine}_schedule_with_warmup(optimizer, 2, 10) and
	 * get_wsd_schedule(optimizer, 2, 4, num_training_steps=10), factors of steps 0 … 10. */
	static const double want[3][11] = {
	    {0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0},
	    {0, 0.5, 1, 0.9619397662556434, 0.8535533905932737, 0.6913417161825449, 0.5, 0.3086582838174552,
	     0.14644660940672627, 0.03806023374435663, 0},
	    {0, 0.5, 1, 1, 1, 1, 1, 0.8535533905932737, 0.5, 0.14644660940672627, 0}};
	static const enum schedule_kind kinds[3] = {SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD};

	for (int k = 0; k < 3; k++) {
		s.kind = kinds[k];
		for (int i = 0; i <= 10; i++)
			ck_assert_double_eq_tol(schedule_rate(&s, i), want[k][i], 1e-15);
	}
	s.kind = SCHEDULE_CONSTANT;
	ck_assert_double_eq(schedule_rate(&s, 1), 0.5);
	ck_assert_double_eq(schedule_rate(&s, 9), 1);
	s = (struct schedule){.kind = SCHEDULE_COSINE, .peak = 1e-3, .floor = 1e-4, .steps = 10};
	ck_assert_double_eq_tol(schedule_rate(&s, 0), 1e-3, 1e-18);
	ck_assert_double_eq_tol(schedule_rate(&s, 10), 1e-4, 1e-18);
	ck_assert_double_eq_tol(schedule_rate(&s, 5), 5.5e-4, 1e-15);
}
END_TEST

/* One rank of a run: its losses and final weights. */
struct rank_run {
	struct comm *comm;
	struct train_options o;
	const struct dataset *train, *eval;
	double losses[STEPS], norms[STEPS], eval_loss;
	float *weights;
	int64_t steps, evaluated; /* the last ones */
	int intermediate;         /* 0: that of the model */
	/* Resume: save at `stop`, or start from what another saved. */
	int64_t stop, start;
	float *state[3];
	struct loss_scaler scaler; /* at the end, or of the state */
	int saves, result;
};

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct rank_run *r = context;

	r->losses[log->step - 1] = log->loss;
	r->norms[log->step - 1] = log->grad_norm;
	r->steps = log->step;
	if (log->has_eval) {
		r->eval_loss = log->eval_loss;
		r->evaluated = log->step;
	}
	return 0;
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	((struct rank_run *)context)->saves++;
	return 0;
}

static bool should_stop(void *context)
{
	struct rank_run *r = context;

	/* Asked during step `stop`, by the first rank alone. */
	return r->stop > 0 && r->steps == r->stop - 1 && (!r->comm || comm_rank(r->comm) == 0);
}

static void *run_rank(void *context)
{
	struct rank_run *r = context;
	struct train_callbacks callbacks = {
	    .context = r, .on_log = on_log, .on_save = on_save, .should_stop = should_stop};
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct model_config c;
	struct trainer *t;
	struct device *dev;

	model(&c);
	if (r->intermediate)
		c.intermediate = r->intermediate;
	if (r->o.preference.kind == PREFERENCE_REWARD)
		model_config_set_scores(&c);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, r->comm, &c, &r->o, r->train, r->eval, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	ck_ok(trainer_compute_reference(t, &err), &err);
	if (r->start) {
		trainer_state_write(t, r->state, r->start);
		trainer_set_loss_scaler(t, &r->scaler);
	}
	ck_ok(r->result = trainer_run(t, &callbacks, &err), &err);
	if (r->result == 1)
		for (int s = 0; s < 3; s++)
			r->state[s] = trainer_state_read(t, (enum parameter_state)s);
	r->weights = trainer_state_read(t, STATE_WEIGHTS);
	if (trainer_loss_scaler(t))
		r->scaler = *trainer_loss_scaler(t);
	trainer_free(t);
	device_destroy(dev);
	return NULL;
}

/* Runs world_size ranks of the same run; the caller checks runs[0] and frees all with done(). */
static void run_all(struct rank_run *runs, int world_size)
{
	struct comm *comms[8] = {NULL};
	pthread_t threads[8];

	if (world_size == 1) {
		run_rank(runs);
		return;
	}
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
	for (int r = 0; r < world_size; r++) {
		free(runs[r].weights);
		for (int s = 0; s < 3 && runs[r].result == 1; s++)
			free(runs[r].state[s]);
	}
}

/* It makes no difference how 8 rows are divided into micro-steps and ranks. 21 rows also leave a short last
 * step, in which the last of four ranks has no rows. */
START_TEST(any_split_gives_the_same_losses)
{
	static const struct {
		int world_size, micro_batch, accumulation;
		enum shard_strategy strategy;
		bool recompute;
	} splits[] = {{1, 4, 2, SHARD_DDP, false},  {1, 2, 4, SHARD_DDP, true},
	              {2, 4, 1, SHARD_DDP, false},  {2, 1, 4, SHARD_ZERO1, false},
	              {4, 1, 2, SHARD_DDP, false},  {4, 2, 1, SHARD_ZERO1, true},
	              {2, 4, 1, SHARD_ZERO1, false}};
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	_cleanup_(dataset_closep) struct dataset *eval = fake_dataset(5, 12, 8, 50, false);
	struct rank_run whole = {.train = train, .eval = eval};

	options(&whole.o, 8, 1);
	run_all(&whole, 1);
	ck_assert_double_gt(whole.losses[0], 3);
	ck_assert_double_lt(whole.losses[STEPS - 1], whole.losses[0] - 0.05);
	ck_assert_double_gt(whole.norms[0], 0);
	ck_assert_int_eq(whole.saves, 1);
	for (size_t i = 0; i < ARRAY_SIZE(splits); i++) {
		struct rank_run runs[8] = {{.train = train, .eval = eval}};

		options(&runs[0].o, splits[i].micro_batch, splits[i].accumulation);
		runs[0].o.strategy = splits[i].strategy;
		runs[0].o.recompute = splits[i].recompute;
		run_all(runs, splits[i].world_size);
		for (int s = 0; s < STEPS; s++) {
			ck_assert_double_eq_tol(runs[0].losses[s], whole.losses[s], 2e-6);
			ck_assert_double_eq_tol(runs[0].norms[s], whole.norms[s], 2e-5);
			for (int r = 1; r < splits[i].world_size; r++)
				ck_assert_double_eq(runs[r].losses[s], runs[0].losses[s]);
		}
		ck_assert_double_eq_tol(runs[0].eval_loss, whole.eval_loss, 2e-5);
		done(runs, splits[i].world_size);
	}
	done(&whole, 1);
}
END_TEST

/* Two documents that are packed into one row give the same losses as in two rows: neither sees the other. */
/* The same of the tasks of preferences; KTO's estimate of the divergence is that of a micro-step of all
 * ranks. */
START_TEST(any_split_prefers_alike)
{
	static const enum preference_kind kinds[] = {PREFERENCE_DPO, PREFERENCE_ORPO, PREFERENCE_SIMPO,
	                                             PREFERENCE_KTO, PREFERENCE_REWARD};
	static const struct {
		int world_size, micro_batch, accumulation;
		enum shard_strategy strategy;
	} splits[] = {
	    {1, 2, 4, SHARD_DDP}, {4, 1, 2, SHARD_DDP}, {2, 4, 1, SHARD_ZERO1}, {4, 2, 1, SHARD_DDP}};
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, false);
	_cleanup_(dataset_closep) struct dataset *eval = fake_dataset(5, 12, 8, 50, false);
	struct rank_run whole = {.train = train, .eval = eval};

	options(&whole.o, 8, 1);
	whole.o.preference.kind = kinds[_i];
	whole.o.weight_decay = 0;
	run_all(&whole, 1);
	ck_assert_double_lt(whole.losses[2], whole.losses[0]);
	/* Before the first step the model is its own reference: it prefers nothing, and diverges in nothing.
	 */
	if (kinds[_i] == PREFERENCE_DPO)
		ck_assert_double_eq_tol(whole.losses[0], log(2), 1e-5);
	if (kinds[_i] == PREFERENCE_KTO)
		ck_assert_double_eq_tol(whole.losses[0], 0.5, 1e-5);
	for (size_t i = 0; i < ARRAY_SIZE(splits); i++) {
		struct rank_run runs[8] = {{.train = train, .eval = eval}};

		if (kinds[_i] == PREFERENCE_KTO && splits[i].accumulation > 1)
			continue;
		runs[0].o = whole.o;
		runs[0].o.micro_batch = splits[i].micro_batch;
		runs[0].o.accumulation = splits[i].accumulation;
		runs[0].o.strategy = splits[i].strategy;
		runs[0].o.kept_outputs = (int)i;
		run_all(runs, splits[i].world_size);
		for (int s = 0; s < STEPS; s++) {
			ck_assert_double_eq_tol(runs[0].losses[s], whole.losses[s], 1e-5);
			ck_assert_double_eq_tol(runs[0].norms[s], whole.norms[s], 1e-4);
			for (int r = 1; r < splits[i].world_size; r++)
				ck_assert_double_eq(runs[r].losses[s], runs[0].losses[s]);
		}
		ck_assert_double_eq_tol(runs[0].eval_loss, whole.eval_loss, 1e-4);
		done(runs, splits[i].world_size);
	}
	done(&whole, 1);
}
END_TEST

START_TEST(packed_documents_are_apart)
{
	_cleanup_(dataset_closep) struct dataset *packed = fake_dataset(8, 9, 8, 50, false);
	_cleanup_(dataset_closep) struct dataset *rows = fake_dataset_unpacked(packed);
	struct rank_run together = {.train = packed, .eval = packed}, apart = {.train = rows, .eval = rows};

	ck_assert_int_eq(dataset_rows(rows), 16);
	options(&together.o, 2, 1);
	together.o.shuffle = false;
	apart.o = together.o;
	apart.o.micro_batch = 4;
	run_all(&together, 1);
	run_all(&apart, 1);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq_tol(together.losses[s], apart.losses[s], 2e-6);
		ck_assert_double_eq_tol(together.norms[s], apart.norms[s], 2e-5);
	}
	ck_assert_double_eq_tol(together.eval_loss, apart.eval_loss, 2e-6);
	done(&together, 1);
	done(&apart, 1);
}
END_TEST

/* The noise on a row of two documents is that of all its tokens: less by the root of two than on each of them
 * as a row of its own. */
START_TEST(packed_rows_have_their_noise)
{
	_cleanup_(dataset_closep) struct dataset *packed = fake_dataset(8, 10, 0, 50, false);
	_cleanup_(dataset_closep) struct dataset *rows = fake_dataset_unpacked(packed);
	struct rank_run together = {.train = packed}, less = {.train = packed}, apart = {.train = rows};

	options(&together.o, 2, 1);
	together.o.shuffle = false;
	less.o = apart.o = together.o;
	apart.o.micro_batch = 4;
	apart.o.neftune_alpha = less.o.neftune_alpha = 5;
	together.o.neftune_alpha = 5 * sqrt(2);
	run_all(&together, 1);
	run_all(&less, 1);
	run_all(&apart, 1);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq_tol(together.losses[s], apart.losses[s], 2e-6);
		ck_assert(fabs(less.losses[s] - apart.losses[s]) > 1e-4);
	}
	done(&together, 1);
	done(&less, 1);
	done(&apart, 1);
}
END_TEST

/* The weights after one step with that decay. */
static float *step_with_decay(const struct dataset *train, double decay, bool all)
{
	struct rank_run run = {.train = train};

	options(&run.o, 4, 1);
	run.o.max_steps = 1;
	run.o.warmup_steps = 0;
	run.o.schedule = SCHEDULE_CONSTANT;
	run.o.weight_decay = decay;
	run.o.decay_all = all;
	run_all(&run, 1);
	return run.weights;
}

/* Only matrices decay, unless decay_all is set. */
START_TEST(norms_do_not_decay)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(4, 9, 8, 50, true);
	_cleanup_free_ float *none = step_with_decay(train, 0, false),
	                     *some = step_with_decay(train, 0.5, false),
	                     *all = step_with_decay(train, 0.5, true);
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;
	int64_t at = 0;

	model(&c);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	for (int i = 0; i < l->parameters; at += l->parameter[i++].count) {
		size_t bytes = (size_t)l->parameter[i].count * sizeof(*none);

		ck_assert_msg((memcmp(none + at, some + at, bytes) != 0) == l->parameter[i].matrix, "%s",
		              l->parameter[i].name);
		ck_assert_msg(memcmp(none + at, all + at, bytes) != 0, "%s", l->parameter[i].name);
	}
}
END_TEST

/* Where a unit begins among all elements does not depend on the ranks and the strategy, which decide the
 * padding: the rounding of a weight is drawn by its place. */
START_TEST(padding_moves_no_unit)
{
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;
	bool padded = false;

	model(&c);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	for (int world_size = 1; world_size <= 8; world_size *= 2) {
		for (int strategy = SHARD_DDP; strategy <= SHARD_HYBRID; strategy++) {
			struct shard_options o = {.world_size = world_size,
			                          .strategy = (enum shard_strategy)strategy,
			                          .degree = world_size,
			                          .type = DTYPE_BF16,
			                          .without_master = true,
			                          .prefetch = 1};
			_cleanup_(shard_freep) struct shard *s = NULL;
			int64_t base = 0;

			ck_ok(shard_create(NULL, NULL, &o, l, &s, &err), &err);
			for (int u = 0; u < s->units; u++) {
				ck_assert_int_eq(s->unit[u].base, base);
				base += l->unit[u].count;
				padded = padded || (u + 1 < s->units && s->unit[u].padded > s->unit[u].count);
			}
		}
	}
	ck_assert(padded);
}
END_TEST

/* One rank's gradients of a unit, whose padding is what activations have left there. */
static void *reduce_padding(void *context)
{
	struct comm *comm = context;
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	_cleanup_(shard_freep) struct shard *s = NULL;
	struct error err = ERROR_INIT;
	struct shard_options o;
	struct shard_unit *u;
	struct model_config c;
	struct device *dev;
	float *host;

	model(&c);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	o = (struct shard_options){
	    .rank = comm_rank(comm), .world_size = 2, .strategy = SHARD_ZERO1, .type = DTYPE_F32};
	ck_ok(shard_create(dev, comm, &o, l, &s, &err), &err);
	u = &s->unit[s->units - 1]; /* the last norm: less than a shard for each */
	ck_assert_int_gt(u->padded, u->count);
	host = malloc((size_t)u->padded * sizeof(*host));
	for (int64_t i = 0; i < u->padded; i++)
		host[i] = 1;
	ck_ok(device_alloc(dev, (size_t)u->padded * sizeof(*host), (void **)&u->gradients, &err), &err);
	ck_ok(device_write(dev, u->gradients, host, (size_t)u->padded * sizeof(*host), &err), &err);
	shard_micro_step(s, true, true);
	shard_gradients(s, s->units - 1);
	ck_ok(shard_wait_gradients(s, s->units - 1, &err), &err);
	ck_ok(device_read(dev, host, u->gradients, (size_t)u->padded * sizeof(*host), &err), &err);
	for (int64_t i = u->first; i < u->first + u->own; i++)
		ck_assert_float_eq(host[i], i < u->count ? 2 : 0);
	free(host);
	device_free(dev, u->gradients);
	device_destroy(dev);
	return NULL;
}

START_TEST(padding_is_no_gradient)
{
	struct comm *comms[2];
	pthread_t threads[2];

	thread_comm_create(2, comms);
	for (int r = 0; r < 2; r++)
		pthread_create(&threads[r], NULL, reduce_padding, comms[r]);
	for (int r = 0; r < 2; r++) {
		pthread_join(threads[r], NULL);
		comm_destroy(comms[r]);
	}
}
END_TEST

/* A run that is stopped after a step and resumed from the saved state gives the same bits. */
static void check_resume(const struct train_options *o, int intermediate, int world_size, int stop)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run whole[8] = {{.train = train, .o = *o, .intermediate = intermediate}}, first[8],
	                second[8];
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;

	model(&c);
	if (intermediate)
		c.intermediate = intermediate;
	ck_ok(model_layout_create(&c, &l, &err), &err);
	first[0] = whole[0];
	first[0].stop = stop;
	run_all(whole, world_size);
	run_all(first, world_size);
	for (int r = 0; r < world_size; r++) {
		ck_assert_int_eq(first[r].result, 1);
		ck_assert_int_eq(first[r].steps, stop);
	}
	second[0] = whole[0];
	second[0].start = stop;
	for (int s = 0; s < 3; s++)
		second[0].state[s] = first[0].state[s];
	second[0].scaler = first[0].scaler;
	run_all(second, world_size);
	ck_assert_int_eq(second[0].scaler.skipped, whole[0].scaler.skipped);
	ck_assert_double_eq(second[0].scaler.scale, whole[0].scaler.scale);
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq(s < stop ? first[0].losses[s] : second[0].losses[s], whole[0].losses[s]);
	ck_assert_mem_eq(second[0].weights, whole[0].weights, (size_t)l->elements * sizeof(float));
	done(whole, world_size);
	done(second, world_size);
	done(first, world_size);
}

/* A run that is stopped where it saves evaluates there, as one that goes on; elsewhere it does not. */
START_TEST(a_stopped_run_evaluates_where_it_saves)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	_cleanup_(dataset_closep) struct dataset *eval = fake_dataset(5, 12, 8, 50, true);

	for (int stop = 2; stop <= 3; stop++) {
		struct rank_run run = {.train = train, .eval = eval, .stop = stop};

		options(&run.o, 8, 1);
		run.o.save_steps = 2;
		run.eval_loss = -1;
		run_all(&run, 1);
		ck_assert_int_eq(run.result, 1);
		ck_assert_int_eq(run.steps, stop);
		ck_assert_int_eq(run.saves, stop == 2 ? 1 : 2);
		ck_assert(run.eval_loss > 0);
		ck_assert_int_eq(run.evaluated, 2);
		done(&run, 1);
	}
}
END_TEST

START_TEST(resume_is_bitwise)
{
	struct train_options o;

	options(&o, 2, 2);
	o.precision = RESUME_PRECISION;
	o.without_master = RESUME_WITHOUT_MASTER;
	o.scaler.power = 25; /* overflows in the first steps */
	check_resume(&o, 0, 1 + _i % 2, 2 + _i % 4);
}
END_TEST

#ifndef NAIVE
/* Without an overflow the losses are those of fp32, but for roundings that are an eighth of bf16's; a scale
 * that changes in between, by powers of two, changes only what would have been subnormal. */
START_TEST(fp16_learns_what_fp32_does)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run fp32 = {.train = train}, bf16 = {.train = train}, fp16 = {.train = train};

	options(&fp32.o, 2, 2);
	bf16.o = fp16.o = fp32.o;
	bf16.o.precision = DTYPE_BF16;
	fp16.o.precision = DTYPE_F16;
	fp16.o.scaler.power = 10;
	fp16.o.scaler.window = 2;
	run_all(&fp32, 1);
	run_all(&bf16, 1);
	run_all(&fp16, 1);
	ck_assert_double_lt(fp16.losses[STEPS - 1], fp16.losses[0] - 0.05);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq_tol(fp16.losses[s], fp32.losses[s], 2e-3);
		ck_assert_double_eq_tol(fp16.losses[s], bf16.losses[s], 1e-2);
		ck_assert_double_eq_tol(fp16.norms[s], fp32.norms[s], 1e-2 * fp32.norms[s]);
	}
	ck_assert_int_eq(fp16.scaler.skipped, 0);
	ck_assert_double_eq(fp16.scaler.scale, 4096);
	done(&fp32, 1);
	done(&bf16, 1);
	done(&fp16, 1);
}
END_TEST

/* Weights and moments of which this rank has a part: its elements, the others 0. */
static float *held_state(struct trainer *t)
{
	const struct model_layout *l = trainer_layout(t);
	float *out = calloc(3 * (size_t)l->elements, sizeof(float)), *at = out;
	struct error err = ERROR_INIT;

	for (int which = 0; which < 3; which++)
		for (int i = 0; i < l->parameters; at += l->parameter[i++].count) {
			int64_t first, n = trainer_held(t, &l->parameter[i], &first);

			if (n > 0)
				ck_ok(trainer_read(t, (enum parameter_state)which, &l->parameter[i], first, n,
				                   at + first, &err),
				      &err);
		}
	return out;
}

static void *run_overflows(void *context)
{
	struct rank_run *r = context;
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	double scale = 0x1p40;
	struct model_config c;
	struct train_log log;
	struct trainer *t;
	struct device *dev;

	model(&c);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, r->comm, &c, &r->o, r->train, NULL, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	for (int64_t step = 0; step < r->o.max_steps; step++) {
		float *before = held_state(t), *after;
		size_t bytes = 3 * (size_t)trainer_layout(t)->elements * sizeof(float);
		int64_t done = step - trainer_loss_scaler(t)->skipped;
		bool skipped;

		ck_ok(trainer_run_step(t, &log, &err), &err);
		after = held_state(t);
		ck_assert_double_eq(log.loss_scale, scale);
		skipped = isnan(log.grad_norm);
		ck_assert_int_eq(log.skipped, step + 1 - done - !skipped);
		ck_assert_int_eq(memcmp(before, after, bytes) == 0, skipped);
		/* The schedule's step is that of the steps that were done: two steps of warm-up here. */
		ck_assert_double_eq_tol(log.learning_rate,
		                        done < 2 ? (double)done / 2 * r->o.learning_rate : r->o.learning_rate,
		                        1e-12);
		/* The first overflow is forgiven. */
		if (skipped && step > 0)
			scale /= 2;
		free(before);
		free(after);
	}
	r->steps = trainer_loss_scaler(t)->skipped;
	r->losses[0] = log.loss;
	trainer_free(t);
	device_destroy(dev);
	return NULL;
}

static void check_overflows(struct rank_run *runs, int world_size)
{
	struct comm *comms[8] = {NULL};
	pthread_t threads[8];

	runs[0].o.precision = DTYPE_F16;
	runs[0].o.scaler.power = 40;
	runs[0].o.max_steps = 40;
	runs[0].o.schedule = SCHEDULE_CONSTANT;
	if (world_size > 1)
		thread_comm_create(world_size, comms);
	for (int r = 0; r < world_size; r++) {
		runs[r] = runs[0];
		runs[r].comm = comms[r];
		pthread_create(&threads[r], NULL, run_overflows, &runs[r]);
	}
	for (int r = 0; r < world_size; r++)
		pthread_join(threads[r], NULL);
	for (int r = 0; r < world_size; r++) {
		comm_destroy(comms[r]);
		ck_assert_int_eq(runs[r].steps, runs[0].steps);
		ck_assert_double_eq(runs[r].losses[0], runs[0].losses[0]);
	}
	ck_assert_int_gt(runs[0].steps, 5);
	ck_assert_int_lt(runs[0].steps, 35);
}

/* A loss scale of 2^40 overflows until it has been halved often enough, on all ranks alike. */
START_TEST(an_overflow_changes_nothing)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run runs[8] = {{.train = train}};

	options(&runs[0].o, 1, 1 + _i % 2);
	runs[0].o.strategy = (enum shard_strategy)(_i / 2);
	check_overflows(runs, 2);
}
END_TEST

/* Rates at which each of them learns something in six steps. */
static void optimizer_options(struct train_options *o, enum optimizer_kind kind)
{
	static const double rates[OPTIMIZERS] = {1e-2, 1e-1, 1e-3, 1e-2, 10, 1e-1, 1e-2, 1e-2, 1e-3};

	options(o, 2, 2);
	o->optimizer = kind;
	o->learning_rate = rates[kind];
	o->nesterov = kind == OPTIMIZER_MUON;
}

START_TEST(each_optimizer_skips_an_overflow)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run runs[8] = {{.train = train}};

	optimizer_options(&runs[0].o, (enum optimizer_kind)_i);
	check_overflows(runs, 1);
}
END_TEST

START_TEST(each_optimizer_resumes_to_the_bit)
{
	struct train_options o;

	optimizer_options(&o, _i / 2);
	o.precision = _i % 2 ? DTYPE_BF16 : DTYPE_F32;
	check_resume(&o, 0, 1, 3);
	/* Matrices of one row and of one column. */
	check_resume(&o, 1, 1, 3);
}
END_TEST

/* Whole on one rank, or a third of each step on each of three. */
START_TEST(each_optimizer_steps_shards_alike)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(24, 9, 8, 50, true);
	static const enum shard_strategy strategies[] = {SHARD_ZERO1, SHARD_ZERO2, SHARD_ZERO3};
	struct rank_run whole = {.train = train}, shards[8] = {{.train = train}};

	optimizer_options(&whole.o, _i / 3);
	whole.o.accumulation = 6;
	shards[0].o = whole.o;
	shards[0].o.accumulation = 2;
	shards[0].o.strategy = strategies[_i % 3];
	run_all(&whole, 1);
	run_all(shards, 3);
	ck_assert_double_lt(whole.losses[STEPS - 1], whole.losses[0] - 0.01);
	/* Blocks of 8-bit moments begin with each rank's part. */
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq_tol(shards[0].losses[s], whole.losses[s],
		                        whole.o.optimizer >= OPTIMIZER_ADAMW_8BIT ? 0.1 : 1e-4);
	done(&whole, 1);
	done(shards, 3);
}
END_TEST

/* Moments of 8 bits learn nearly what those of 32 bits do. */
START_TEST(moments_of_8_bits_suffice)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(24, 9, 8, 50, true);
	struct rank_run wide = {.train = train}, narrow = {.train = train};

	optimizer_options(&wide.o, _i ? OPTIMIZER_LION : OPTIMIZER_ADAMW);
	narrow.o = wide.o;
	narrow.o.optimizer = _i ? OPTIMIZER_LION_8BIT : OPTIMIZER_ADAMW_8BIT;
	run_all(&wide, 1);
	run_all(&narrow, 1);
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq_tol(narrow.losses[s], wide.losses[s], 0.02 * wide.losses[s]);
	done(&wide, 1);
	done(&narrow, 1);
}
END_TEST

/* A batch of 4 rows: the rates are 4 times, or twice, what they say. */
START_TEST(rates_follow_the_batch)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	static const double factors[] = {1, 4, 2};
	struct rank_run want = {.train = train}, got = {.train = train};

	options(&want.o, 2, 2);
	want.o.min_learning_rate = 1e-3;
	got.o = want.o;
	got.o.scale_rate = (enum train_scale_rate)_i;
	want.o.learning_rate *= factors[_i];
	want.o.min_learning_rate *= factors[_i];
	run_all(&want, 1);
	run_all(&got, 1);
	for (int s = 0; s < STEPS; s++)
		ck_assert_double_eq(got.losses[s], want.losses[s]);
	done(&want, 1);
	done(&got, 1);
}
END_TEST

/* The embedding alone stands still where its rate is next to nothing. */
START_TEST(embedding_has_a_rate_of_its_own)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct rank_run run = {.train = train};
	struct error err = ERROR_INIT;
	struct model_config c;
	const float *at;

	model(&c);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	options(&run.o, 2, 2);
	run.o.weight_decay = 0;
	run.o.embedding_rate = 1e-12;
	run_all(&run, 1);
	at = run.weights;
	for (int i = 0; i < l->parameters; at += l->parameter[i++].count) {
		struct model_init init = {.seed = 1, .std = 0.1};
		_cleanup_free_ float *was = malloc((size_t)l->parameter[i].count * sizeof(*was));
		double most = 0;

		ck_ok(model_init_fill(&init, &l->parameter[i], 0, l->parameter[i].count, was, &err), &err);
		for (int64_t k = 0; k < l->parameter[i].count; k++)
			most = fmax(most, fabs((double)at[k] - (double)was[k]));
		if (l->parameter[i].unit == 0)
			ck_assert_double_lt(most, 1e-8);
		else
			ck_assert_double_gt(most, 1e-3);
	}
	done(&run, 1);
}
END_TEST

/* Weights without a master copy: whole on each of two ranks, or half of their steps on each, the same bits;
 * one rank adds the gradients up in another order, no more. */
START_TEST(ranks_round_alike)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct rank_run one = {.train = train}, ddp[8] = {{.train = train}}, zero1[8];

	options(&one.o, 4, 1);
	one.o.precision = DTYPE_BF16;
	one.o.without_master = true;
	ddp[0].o = one.o;
	ddp[0].o.micro_batch = 2;
	zero1[0] = ddp[0];
	zero1[0].o.strategy = SHARD_ZERO1;
	run_all(&one, 1);
	run_all(ddp, 2);
	run_all(zero1, 2);
	for (int s = 0; s < STEPS; s++) {
		ck_assert_double_eq(ddp[0].losses[s], zero1[0].losses[s]);
		ck_assert_double_eq(ddp[0].losses[s], ddp[1].losses[s]);
		ck_assert_double_eq_tol(ddp[0].losses[s], one.losses[s], 3e-3);
	}
	done(&one, 1);
	done(ddp, 2);
	done(zero1, 2);
}
END_TEST

/* At a learning rate whose steps bf16 cannot show: a master copy, none and rounding stochastically, and none
 * with rounding to the nearest, which is made here of a master copy that loses its low bits
 * after each step. */
static double loss_after(int steps, bool without_master, bool nearest)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(8, 9, 8, 50, true);
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;
	struct train_log log;
	struct trainer *t;
	struct device *dev;

	model(&c);
	options(&o, 8, 1);
	o.max_steps = steps;
	o.precision = DTYPE_BF16;
	o.without_master = without_master;
	o.learning_rate = 1e-4;
	o.schedule = SCHEDULE_CONSTANT;
	o.weight_decay = 0;
	o.warmup_steps = 0;
	o.shuffle = false;
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	for (int s = 1; s <= steps; s++) {
		float *state[3] = {NULL};

		ck_ok(trainer_run_step(t, &log, &err), &err);
		for (int k = 0; k < 3 && nearest; k++)
			state[k] = trainer_state_read(t, (enum parameter_state)k);
		for (int64_t i = 0; i < trainer_layout(t)->elements && nearest; i++)
			state[0][i] = bf16_to_float(bf16_from_float(state[0][i]));
		if (nearest)
			trainer_state_write(t, state, s);
		for (int k = 0; k < 3; k++)
			free(state[k]);
	}
	trainer_free(t);
	device_destroy(dev);
	return log.loss;
}

START_TEST(small_steps_are_kept)
{
	double start = loss_after(1, false, false), master = loss_after(150, false, false);
	double lot = loss_after(150, true, false), nearest = loss_after(150, false, true);

	printf("loss %.4f; after 150 small steps %.4f with a master copy, %.4f without, %.4f rounded to the "
	       "nearest\n",
	       start, master, lot, nearest);
	fflush(stdout);
	ck_assert_double_lt(fabs(lot - master), 0.1 * (start - master));
	ck_assert_double_gt(nearest - master, 0.3 * (start - master));
}
END_TEST
#endif

START_TEST(steps_and_epochs)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;
	struct trainer *t;
	struct device *dev;
	json_t *plan, *buffer;
	int64_t sum = 0;
	size_t i;

	model(&c);
	options(&o, 2, 2);
	o.max_steps = 0;
	o.epochs = 2.5;
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), &err);
	ck_assert_int_eq(trainer_steps_per_epoch(t), 6);
	ck_assert_int_eq(trainer_total_steps(t), 15);
	ck_ok(trainer_plan_json(t, &plan, &err), &err);
	json_array_foreach(json_object_get(plan, "buffers"), i, buffer)
	{
		sum += (json_get_int(buffer, "bytes", 0) + 255) / 256 * 256;
	}
	ck_assert_int_le(json_get_int(plan, "total", 0), sum);
	ck_assert_int_gt(json_get_int(json_object_get(plan, "classes"), "optimizer", 0), 0);
	ck_fails(trainer_set_step(t, 16, &err), &err, "of a run of 15 steps");
	json_decref(plan);
	trainer_free(t);
	o.micro_batch = 0;
	ck_fails(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), &err, "micro_batch");
	device_destroy(dev);
}
END_TEST

/* A run that goes on with another batch ends with its epochs, and its schedule with its last step. */
START_TEST(another_batch_goes_on)
{
	static const struct {
		int micro_batch;
		int64_t step, examples, steps, seen;
		double rate; /* of the step that is next, of 1 at the first */
	} cases[] = {
	    {4, 3, 12, 15, 12, 12 / 15.0}, /* the same batch: 6 steps an epoch */
	    {4, 6, 21, 15, 21, 9 / 15.0},  /* the same, after a short step */
	    {8, 3, 12, 3 + 2 + 3 + 2, 12,
	     7 / 8.0}, /* 9 rows are left of the epoch, then 3 steps, then 1.5 rounded up */
	    {1, 3, 12, 3 + 9 + 21 + 11, 12, 41 / 53.0},
	    {1, 12, 43, 12 + 10, 43, 10 / 53.0}, /* in the last epoch, of which half is to be seen */
	    {4, 40, 60, 40, 60, 0},              /* beyond the end */
	};
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct train_log log;
	struct model_config c;
	struct trainer *t;
	struct device *dev;

	model(&c);
	options(&o, cases[_i].micro_batch, 1);
	o.max_steps = 0;
	o.epochs = 2.5;
	o.warmup_steps = 0;
	o.learning_rate = 1;
	o.schedule = SCHEDULE_LINEAR;
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	trainer_set_origin(t, cases[_i].step, cases[_i].examples);
	ck_assert_int_eq(trainer_total_steps(t), cases[_i].steps);
	ck_ok(trainer_set_step(t, cases[_i].step, &err), &err);
	ck_assert_int_eq(trainer_examples(t), cases[_i].seen);
	if (cases[_i].step < cases[_i].steps) {
		ck_ok(trainer_run_step(t, &log, &err), &err);
		ck_assert_double_eq_tol(log.learning_rate, cases[_i].rate, 1e-12);
		ck_assert_double_gt(log.epoch, (double)cases[_i].seen / 21 - 0.1);
	}
	trainer_free(t);
	device_destroy(dev);
}
END_TEST

/* The plan can be made without a device and for any number of ranks, as `estimate` does. */
START_TEST(plan_needs_no_device)
{
	_cleanup_(plan_freep) struct plan *ddp = NULL, *zero1 = NULL, *half = NULL;
	_cleanup_(plan_freep) struct plan *with = NULL, *without = NULL, *noisy = NULL;
	int64_t saved;
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;

	model(&c);
	options(&o, 2, 2);
	ck_ok(plan_create(NULL, NULL, 0, 8, &c, &o, 4096, &ddp, &err), &err);
	o.strategy = SHARD_ZERO1;
	ck_ok(plan_create(NULL, NULL, 7, 8, &c, &o, 4096, &zero1, &err), &err);
	o.recompute = true;
	ck_ok(plan_create(NULL, NULL, 7, 8, &c, &o, 4096, &half, &err), &err);
	ck_assert_int_gt(arena_total(&ddp->arena), arena_total(&zero1->arena));
	ck_assert_int_gt(arena_total(&zero1->arena), arena_total(&half->arena));
	/* bf16: 2 bytes of weights and 4 of gradients a parameter, 8 of moments, and 4 that can be spared. */
	o.recompute = false;
	o.precision = DTYPE_BF16;
	o.strategy = SHARD_DDP;
	ck_ok(plan_create(NULL, NULL, 0, 8, &c, &o, 4096, &with, &err), &err);
	o.without_master = true;
	ck_ok(plan_create(NULL, NULL, 0, 8, &c, &o, 4096, &without, &err), &err);
	saved = (int64_t)(arena_total(&with->arena) - arena_total(&without->arena));
	ck_assert_int_ge(saved, 4 * with->layout->elements);
	ck_assert_int_le(saved, 4 * with->layout->elements + with->layout->units * 1024);
	o.precision = DTYPE_F32;
	ck_fails(train_options_check(&o, &err), &err, "only bf16 weights");
	o.without_master = false;
	o.dft = true;
	o.label_smoothing = 0.1;
	ck_fails(train_options_check(&o, &err), &err, "DFT has no label smoothing");
	o.dft = false;
	o.preference.kind = PREFERENCE_DPO;
	ck_fails(train_options_check(&o, &err), &err, "label_smoothing and dft are for pretraining");
	o.preference.kind = PREFERENCE_NONE;
	o.label_smoothing = 1;
	ck_fails(train_options_check(&o, &err), &err, "label_smoothing from 0 to below 1");
	/* None of these needs memory. */
	o.precision = DTYPE_BF16;
	o.label_smoothing = 0.1;
	o.neftune_alpha = 5;
	ck_ok(plan_create(NULL, NULL, 0, 8, &c, &o, 4096, &noisy, &err), &err);
	ck_assert_uint_eq(arena_total(&noisy->arena), arena_total(&with->arena));
	o.without_master = true;
	o.precision = DTYPE_BF16;
	o.micro_batch = INT32_MAX;
	ck_fails(plan_create(NULL, NULL, 7, 8, &c, &o, 4096, &half, &err), &err, "more than a step can hold");
}
END_TEST

static int fill_nan(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = NAN;
	return 0;
}

/* A loss that becomes infinite or NaN ends the run with an error that says so. */
START_TEST(not_finite_is_an_error)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(21, 9, 8, 50, true);
	struct train_callbacks callbacks = {0};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;
	struct trainer *t;
	struct device *dev;

	model(&c);
	options(&o, 2, 2);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &o, train, NULL, &t, &err), &err);
	ck_ok(trainer_load(t, fill_nan, NULL, &err), &err);
	ck_fails(trainer_run(t, &callbacks, &err), &err, "are not finite");
	trainer_free(t);
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("train");
	TCase *c = tcase_create("train");

	tcase_set_timeout(c, 300);
	tcase_add_test(c, schedules_as_transformers);
	tcase_add_test(c, steps_and_epochs);
	tcase_add_loop_test(c, another_batch_goes_on, 0, 6);
	tcase_add_test(c, any_split_gives_the_same_losses);
	tcase_add_test(c, packed_rows_have_their_noise);
	tcase_add_loop_test(c, any_split_prefers_alike, 0, 5);
	tcase_add_test(c, packed_documents_are_apart);
	tcase_add_test(c, norms_do_not_decay);
	tcase_add_test(c, padding_moves_no_unit);
	tcase_add_test(c, padding_is_no_gradient);
	tcase_add_test(c, a_stopped_run_evaluates_where_it_saves);
#ifdef NAIVE
	tcase_add_loop_test(c, resume_is_bitwise, 0, 4);
#else
	tcase_add_loop_test(c, resume_is_bitwise, 0, 9);
	tcase_add_test(c, fp16_learns_what_fp32_does);
	tcase_add_loop_test(c, an_overflow_changes_nothing, 0, 8);
	tcase_add_loop_test(c, each_optimizer_skips_an_overflow, 0, OPTIMIZERS);
	tcase_add_test(c, ranks_round_alike);
	tcase_add_test(c, small_steps_are_kept);
	tcase_add_loop_test(c, each_optimizer_resumes_to_the_bit, 2, 2 * OPTIMIZERS);
	tcase_add_loop_test(c, each_optimizer_steps_shards_alike, 0, 3 * OPTIMIZERS);
	tcase_add_loop_test(c, moments_of_8_bits_suffice, 0, 2);
	tcase_add_loop_test(c, rates_follow_the_batch, 0, 3);
	tcase_add_test(c, embedding_has_a_rate_of_its_own);
#endif
	tcase_add_test(c, plan_needs_no_device);
	tcase_add_test(c, not_finite_is_an_error);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
