/* SPDX-License-Identifier: Apache-2.0 */
/* Every strategy against ddp: losses, weights, the state of parameters in parts, and the memory of the plan.
 */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "../engine/thread_comm.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/plan.h"
#include "engine/train/trainer.h"

enum { STEPS = 30, RANKS = 4 };

static void model(struct model_config *c, bool tied)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"model_type\":\"%s\",\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
	    "\"head_"
	    "dim\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":50,\"tie_word_"
	    "embeddings\":%s}",
	    tied ? "qwen3" : "llama", tied ? "true" : "false");
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(text, strlen(text), "config.json", c, &err), &err);
}

/* What the ranks of a run have in common, and what each of them ends with. */
struct run {
	int world_size;
	bool tied;
	struct train_options o;
	const struct dataset *train, *eval;
	float *const *state; /* from which it starts after step `start` */
	int64_t start;
};

struct rank_run {
	const struct run *run;
	struct comm *comm;
	double losses[STEPS], norms[STEPS], eval_loss;
	float *weights, *moments[2]; /* gathered, on rank 0 */
	int64_t held;                /* elements of all parameters */
	int replica, replicas;
	size_t total, noted; /* of the plan: bytes, and those that are not in the arena */
};

static void options(struct train_options *o, enum shard_strategy strategy, int accumulation)
{
	train_options_default(o);
	o->micro_batch = 1;
	o->accumulation = accumulation;
	o->max_steps = STEPS;
	o->learning_rate = 2e-3;
	o->weight_decay = 0.1;
	o->warmup_steps = 2;
	o->log_steps = 1;
	o->strategy = strategy;
	o->shard_degree = 2;
	o->persist_below = 0;
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct rank_run *r = context;

	r->losses[log->step - 1] = log->loss;
	r->norms[log->step - 1] = log->grad_norm;
	if (log->has_eval)
		r->eval_loss = log->eval_loss;
	return 0;
}

/* All elements of a kind of state, on rank 0; the other ranks take part. In pieces that fit no shard. */
static float *gather(const struct parameter_access *a, enum parameter_state which, bool wanted)
{
	const struct model_layout *l = a->layout;
	float *out = wanted ? malloc((size_t)l->elements * sizeof(float)) : NULL;
	struct error err = ERROR_INIT;
	int64_t done = 0;

	for (int i = 0; i < l->parameters; i++)
		for (int64_t first = 0, n; first < l->parameter[i].count; first += n, done += n) {
			n = MIN(l->parameter[i].count - first, 700);
			ck_ok(a->gather(a->context, which, &l->parameter[i], first, n,
			                out ? out + done : NULL, &err),
			      &err);
		}
	return out;
}

static void restore(struct trainer *t, float *const *state, int64_t step)
{
	const struct parameter_access a = trainer_access(t);
	struct error err = ERROR_INIT;

	for (int s = 0; s < 3; s++) {
		const float *at = state[s];

		for (int i = 0; i < a.layout->parameters; at += a.layout->parameter[i++].count)
			ck_ok(a.write(a.context, (enum parameter_state)s, &a.layout->parameter[i], 0,
			              a.layout->parameter[i].count, at, &err),
			      &err);
	}
	ck_ok(trainer_set_step(t, step, &err), &err);
}

static void end_rank(struct rank_run *r, struct trainer *t, bool first)
{
	const struct parameter_access a = trainer_access(t);
	_cleanup_json_ json_t *plan = NULL;
	struct error err = ERROR_INIT;
	json_t *buffer;
	size_t i;

	for (int p = 0; p < a.layout->parameters; p++) {
		int64_t at, n = a.held(a.context, &a.layout->parameter[p], &at);
		_cleanup_free_ float *part = malloc((size_t)n * sizeof(float) + 1);

		ck_assert_int_ge(at, 0);
		ck_assert_int_le(at + n, a.layout->parameter[p].count);
		ck_ok(a.read(a.context, STATE_WEIGHTS, &a.layout->parameter[p], at, n, part, &err), &err);
		r->held += n;
	}
	r->replica = a.replica;
	r->replicas = a.replicas;
	r->weights = gather(&a, STATE_WEIGHTS, first);
	r->moments[0] = gather(&a, STATE_MOMENT1, first);
	r->moments[1] = gather(&a, STATE_MOMENT2, first);
	ck_ok(trainer_plan_json(t, &plan, &err), &err);
	r->total = (size_t)json_get_int(plan, "total", 0);
	json_array_foreach(json_object_get(plan, "buffers"), i, buffer)
	{
		if (!json_object_get(buffer, "offset"))
			r->noted += (size_t)json_get_int(buffer, "bytes", 0);
	}
}

static void *run_rank(void *context)
{
	struct rank_run *r = context;
	const struct run *run = r->run;
	struct train_callbacks callbacks = {.context = r, .on_log = on_log};
	struct model_init init = {.seed = 1, .std = 0.1};
	struct error err = ERROR_INIT;
	struct model_config c;
	struct trainer *t;
	struct device *dev;

	model(&c, run->tied);
	ck_ok(device_create(&(struct device_options){.threads = 1}, &dev, &err), &err);
	ck_ok(trainer_create(dev, r->comm, &c, &run->o, run->train, run->eval, &t, &err), &err);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	if (run->state)
		restore(t, run->state, run->start);
	ck_ok(trainer_run(t, &callbacks, &err), &err);
	end_rank(r, t, !r->comm || comm_rank(r->comm) == 0);
	trainer_free(t);
	device_destroy(dev);
	return NULL;
}

static struct rank_run *run_all(const struct run *run)
{
	struct rank_run *ranks = calloc((size_t)run->world_size, sizeof(*ranks));
	struct comm *comms[RANKS] = {NULL};
	pthread_t threads[RANKS];

	if (run->world_size > 1)
		thread_comm_create(run->world_size, comms);
	for (int r = 0; r < run->world_size; r++) {
		ranks[r] = (struct rank_run){.run = run, .comm = comms[r]};
		pthread_create(&threads[r], NULL, run_rank, &ranks[r]);
	}
	for (int r = 0; r < run->world_size; r++) {
		pthread_join(threads[r], NULL);
		comm_destroy(comms[r]);
	}
	return ranks;
}

static void done(struct rank_run *ranks)
{
	free(ranks->weights);
	free(ranks->moments[0]);
	free(ranks->moments[1]);
	free(ranks);
}

static int64_t elements(bool tied)
{
	_cleanup_(model_layout_freep) struct model_layout *l = NULL;
	struct error err = ERROR_INIT;
	struct model_config c;

	model(&c, tied);
	ck_ok(model_layout_create(&c, &l, &err), &err);
	return l->elements;
}

static const char *const names[] = {"ddp", "zero1", "zero2", "zero3", "hybrid"};

static void compare(const struct run *run, const struct rank_run *ranks, const struct rank_run *ddp)
{
	bool fp32 = run->o.precision == DTYPE_F32;
	int64_t n = elements(run->tied), held = 0;
	_cleanup_free_ char *what =
	    str_printf("%s, %d ranks, %s, accumulation %d, recompute %d, prefetch %d", names[run->o.strategy],
	               run->world_size, fp32 ? "fp32" : "bf16", (int)run->o.accumulation, run->o.recompute,
	               run->o.prefetch);

	for (int s = 0; s < STEPS; s++) {
		double tolerance = fp32 ? 1e-5 : 2e-2;

		ck_assert_msg(fabs(ranks[0].losses[s] - ddp[0].losses[s]) < tolerance,
		              "%s: step %d: loss %.8f, not %.8f", what, s + 1, ranks[0].losses[s],
		              ddp[0].losses[s]);
		for (int r = 1; r < run->world_size; r++)
			ck_assert_double_eq(ranks[r].losses[s], ranks[0].losses[s]);
	}
	ck_assert_msg(fabs(ranks[0].norms[0] - ddp[0].norms[0]) < (fp32 ? 1e-5 : 1e-3) * ddp[0].norms[0],
	              "%s: norm %.8f, not %.8f", what, ranks[0].norms[0], ddp[0].norms[0]);
	ck_assert_msg(fabs(ranks[0].eval_loss - ddp[0].eval_loss) < (fp32 ? 1e-5 : 2e-2),
	              "%s: evaluation %.8f, not %.8f", what, ranks[0].eval_loss, ddp[0].eval_loss);
	for (int64_t i = 0; i < n && fp32; i++)
		ck_assert_msg(fabsf(ranks[0].weights[i] - ddp[0].weights[i]) < 1e-4f,
		              "%s: weight %d: %g, not %g", what, (int)i, (double)ranks[0].weights[i],
		              (double)ddp[0].weights[i]);
	for (int r = 0; r < run->world_size; r++)
		if (ranks[r].replica == 0)
			held += ranks[r].held;
	ck_assert_int_eq(held, n);
}

/* 22 rows of 9 to 17 tokens in two documents each: the last step of an epoch has no rows for some ranks, in
 * some of its micro-steps. */
static void compare_all(struct run *run)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(22, 9, 8, 50, true);
	_cleanup_(dataset_closep) struct dataset *eval = fake_dataset(5, 12, 8, 50, false);
	struct rank_run *ddp;

	run->train = train;
	run->eval = eval;
	run->o.strategy = SHARD_DDP;
	ddp = run_all(run);
	ck_assert_double_lt(ddp[0].losses[STEPS - 1], ddp[0].losses[0] - 0.1);
	for (int s = SHARD_ZERO1; s <= SHARD_HYBRID; s++) {
		struct rank_run *ranks;

		if (s == SHARD_HYBRID)
			continue;
		run->o.strategy = (enum shard_strategy)s;
		ranks = run_all(run);
		compare(run, ranks, ddp);
		done(ranks);
	}
	done(ddp);
}

START_TEST(losses_are_those_of_ddp)
{
	struct run run = {.world_size = 1 + _i % RANKS, .tied = _i / RANKS % 2};

	for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
		options(&run.o, SHARD_DDP, accumulation);
		run.o.recompute = (_i + accumulation / 2) % 2;
		compare_all(&run);
		run.o.recompute = !run.o.recompute;
		run.o.precision = DTYPE_BF16;
		compare_all(&run);
	}
}
END_TEST

/* Slots for one unit, and for more than there are; and units that stay whole. */
START_TEST(any_number_of_slots)
{
	struct run run = {.world_size = 2, .tied = _i % 2};

	options(&run.o, SHARD_DDP, 2);
	for (run.o.prefetch = 0; run.o.prefetch < 8; run.o.prefetch += 3)
		compare_all(&run);
	run.o.prefetch = 1;
	run.o.persist_below = 2000; /* the head's unit of a tied model; embedding and head of the other */
	compare_all(&run);
	run.o.persist_below = 1000000;
	compare_all(&run);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("shard");
	TCase *c = tcase_create("shard");

	tcase_set_timeout(c, 120);
	tcase_add_loop_test(c, losses_are_those_of_ddp, 0, 2 * RANKS);
	tcase_add_loop_test(c, any_number_of_slots, 0, 2);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
