/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of strategies: which are tried, and that each kind of training can be. */
#include "unit.h"

#include <pthread.h>
#include <string.h>

#include "../engine/fake_dataset.h"
#include "../engine/thread_comm.h"
#include "base/str.h"
#include "engine/train/choose.h"
#include "engine/train/trial.h"

enum { RANKS = 2, STRATEGIES = 5 };

static void parse_model(struct model_config *c)
{
	static const char text[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":64,"
	    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
	    "\"vocab_size\":60,\"tie_word_embeddings\":false}";
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(text, strlen(text), "config.json", c, &err), &err);
}

/* ---- which are tried ---- */

static bool leaves_a_twentieth(const struct estimate *e)
{
	return e->total <= e->available - e->available / 20;
}

static void check_rivals(const char *devices, double within, bool recompute, enum shard_offload offload)
{
	static const char text[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":8192,"
	    "\"num_hidden_layers\":16,\"num_attention_heads\":32,"
	    "\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":128256,"
	    "\"tie_word_embeddings\":true}";
	struct estimate rivals[CHOICES_MAX];
	struct train_options given, best;
	struct error err = ERROR_INIT;
	struct hardware_set where;
	struct model_config c;
	bool seen[STRATEGIES] = {false};
	int n;

	ck_ok(model_config_parse(text, strlen(text), "config.json", &c, &err), &err);
	train_options_default(&given);
	given.micro_batch = 4;
	given.precision = DTYPE_BF16;
	given.shard_degree = 8;
	given.offload = offload;
	best = given;
	ck_ok(hardware_parse(devices, &where, &err), &err);
	ck_ok(choose_plan(&(struct estimate_input){&c, &given, 4096, &where}, true, recompute, &best, &err),
	      &err);
	n = choose_rivals(&(struct estimate_input){&c, &given, 4096, &where}, recompute, within, rivals,
	                  &err);
	ck_assert_msg(n >= 1, "%s: %s", devices, err.message);
	ck_assert_int_eq(rivals[0].strategy, best.strategy);
	ck_assert_int_eq(rivals[0].recompute, best.recompute);
	ck_assert_int_eq(rivals[0].outputs, best.kept_outputs);
	for (int i = 0; i < n; i++) {
		struct train_options taken = given;

		ck_assert(!seen[rivals[i].strategy] && rivals[i].fits);
		seen[rivals[i].strategy] = true;
		ck_assert(i == 0 || rivals[i].cost.step <= within * rivals[0].cost.step);
		ck_assert(i < 2 || rivals[i].cost.step >= rivals[i - 1].cost.step);
		ck_assert(n == 1 || leaves_a_twentieth(&rivals[i]));
		ck_assert(rivals[i].host <= rivals[0].host);
		choose_take(&rivals[i], &taken);
		ck_assert_int_eq(taken.strategy, rivals[i].strategy);
		ck_assert_int_eq(taken.recompute, rivals[i].recompute);
		ck_assert_int_eq(taken.kept_blocks, rivals[i].kept);
		ck_assert_int_eq(taken.kept_outputs, rivals[i].outputs);
	}
	/* Nothing else is that fast, or it takes more memory. */
	for (int strategy = 0; strategy < STRATEGIES && leaves_a_twentieth(&rivals[0]); strategy++) {
		struct train_options o = given;
		struct estimate_input in = {&c, &o, 4096, &where};
		struct estimate e;

		if (seen[strategy] || (strategy == SHARD_HYBRID && where.nodes == 1) ||
		    (strategy != SHARD_DDP && where.nodes * where.per_node == 1))
			continue;
		o.strategy = (enum shard_strategy)strategy;
		ck_ok(choose_plan(&in, false, recompute, &o, &err), &err);
		ck_ok(estimate_run(&in, &e, &err), &err);
		ck_assert_msg(!leaves_a_twentieth(&e) || e.host > rivals[0].host ||
		                  e.cost.step > within * rivals[0].cost.step,
		              "%s: %s within %g", devices, estimate_strategy_name(e.strategy), within);
	}
}

START_TEST(rivals_are_about_as_fast)
{
	static const char *const devices[] = {"1xH100-80GB", "8xH100-80GB", "4x8xH100-80GB"};
	static const double within[] = {0.5, 1.02, 1.2, 10};

	for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
		for (size_t k = 0; k < ARRAY_SIZE(within); k++)
			for (int j = 0; j < 4; j++)
				check_rivals(devices[i], within[k], j & 1,
				             j & 2 ? SHARD_OFFLOAD_OPTIMIZER : SHARD_OFFLOAD_NONE);
}
END_TEST

/* ---- trials ---- */

struct trial {
	struct comm *comm;
	struct train_options o;
	const struct dataset *train;
	double seconds[STRATEGIES];
	struct error err;
};

/* Every strategy, with one device and one communicator, as a run has it. */
static void *try_all(void *argument)
{
	struct trial *t = argument;
	struct device *dev = NULL;
	struct model_config c;
	int r;

	parse_model(&c);
	if (t->o.preference.kind == PREFERENCE_REWARD)
		model_config_set_scores(&c);
	r = device_create(&(struct device_options){.threads = 1}, &dev, &t->err);
	for (int s = 0; s < STRATEGIES && r == 0; s++) {
		if (t->o.offload == SHARD_OFFLOAD_ALL && s < SHARD_ZERO3)
			continue;
		t->o.strategy = (enum shard_strategy)s;
		r = trial_run(dev, t->comm, &c, &t->o, t->train, t->train, &t->seconds[s], &t->err);
	}
	/* The communicator is as it was. */
	if (r == 0)
		comm_wait(t->comm, comm_barrier(t->comm), &t->err);
	device_destroy(dev);
	return NULL;
}

static void check_trials(const char *what, const struct train_options *o, const struct dataset *train)
{
	struct comm *comms[RANKS] = {NULL};
	struct trial trials[RANKS];
	pthread_t threads[RANKS];

	thread_comm_create(RANKS, comms);
	for (int r = 0; r < RANKS; r++) {
		trials[r] = (struct trial){.comm = comms[r], .o = *o, .train = train};
		pthread_create(&threads[r], NULL, try_all, &trials[r]);
	}
	for (int r = 0; r < RANKS; r++) {
		pthread_join(threads[r], NULL);
		comm_destroy(comms[r]);
	}
	for (int r = 0; r < RANKS; r++)
		ck_assert_msg(trials[r].err.code == 0, "%s, rank %d: %s", what, r, trials[r].err.message);
	for (int s = 0; s < STRATEGIES; s++) {
		if (o->offload == SHARD_OFFLOAD_ALL && s < SHARD_ZERO3)
			continue;
		ck_assert_msg(trials[0].seconds[s] > 0, "%s, %s", what,
		              shard_strategy_name((enum shard_strategy)s));
		ck_assert_double_eq(trials[0].seconds[s], trials[1].seconds[s]);
	}
}

static void change(struct train_options *o, size_t i)
{
	static char *all[] = {"all", NULL};
	const struct model_tuning lora = {
	    .kind = TUNE_LORA, .rank = 2, .alpha = 4, .dora = true, .target = all};

	o->accumulation = i % 2 ? 2 : 1;
	switch (i) {
	case 1: /* The first steps of a run with such a loss scale overflow. */
		o->precision = DTYPE_F16;
		o->scaler.power = 32;
		break;
	case 2: /* A rate of which weights are soon infinite. */
		o->optimizer = OPTIMIZER_SGD;
		o->learning_rate = o->embedding_rate = 1e30;
		o->clip = 0;
		break;
	case 3:
		o->precision = DTYPE_BF16;
		o->tuning = lora;
		o->quantize = SHARD_NF4;
		break;
	case 4:
		o->offload = SHARD_OFFLOAD_ALL;
		break;
	case 5:
		o->optimizer = OPTIMIZER_MUON;
		o->recompute = MODEL_RECOMPUTE_BLOCK;
		break;
	case 6: /* Steps after which a run saves and evaluates. */
		o->save_steps = o->eval_steps = 1;
		o->max_steps = 1;
		break;
	case 7:
		o->tuning = (struct model_tuning){.kind = TUNE_SOME, .layers = 1};
		o->optimizer = OPTIMIZER_ADAFACTOR;
		break;
	case 8:
		o->optimizer = OPTIMIZER_ADAMW_8BIT;
		o->preference.kind = PREFERENCE_REWARD;
		break;
	case 9:
		o->preference.kind = PREFERENCE_DPO;
		o->preference.loss = PREFERENCE_IPO;
		break;
	case 10:
		o->preference.kind = PREFERENCE_KTO;
		break;
	case 11:
		o->preference.kind = PREFERENCE_ORPO;
		break;
	case 12:
		o->offload = SHARD_OFFLOAD_OPTIMIZER;
		o->offload_dir = ".";
		break;
	default:
		break;
	}
}

START_TEST(each_kind_of_training_can_be_tried)
{
	_cleanup_(dataset_closep) struct dataset *train = fake_dataset(40, 12, 8, 60, true);

	for (size_t i = 0; i < 13; i++) {
		_cleanup_free_ char *what = str_printf("case %zu", i);
		struct train_options o;

		train_options_default(&o);
		o.micro_batch = 2;
		o.shard_degree = 2;
		change(&o, i);
		check_trials(what, &o, train);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("trial");
	TCase *tc = tcase_create("trial");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, rivals_are_about_as_fast);
	tcase_add_test(tc, each_kind_of_training_can_be_tried);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
