/* SPDX-License-Identifier: Apache-2.0 */
/* From a run file to the options of the engine's parts: every key arrives where it takes effect. */
#include "options/options.h"

#include <sys/stat.h>

#include "base/str.h"
#include "options/precision_names.h"
#include "unit.h"
#include "worker/saver_options.h"

static const char pretrain[] = "task = \"pretrain\"; model = { init = \"m\"; }; data = { path = \"d\"; };\n"
                               "output = { dir = \"o\"; };\n",
                  sft[] = "task = \"sft\"; model = { path = \"m\"; }; data = { path = \"d\"; };\n"
                          "output = { dir = \"o\"; };\n";

static struct run_config *config(const char *text, const char *const *overrides)
{
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;

	ck_ok(run_config_parse(text, "a run", overrides, &c, &err), &err);
	return c;
}

#define config_of(text, ...) config(text, (const char *const[]){__VA_ARGS__, NULL})

static struct train_options options_of(struct run_config *c)
{
	struct error err = ERROR_INIT;
	struct train_options o;

	ck_ok(options_train(c, &o, &err), &err);
	return o;
}

START_TEST(numbers_of_the_training)
{
	_cleanup_(run_config_freep) struct run_config *c = config_of(
	    pretrain, "train.epochs=3.5", "train.max_steps=17", "train.micro_batch=2", "train.accumulation=3",
	    "train.learning_rate=2e-3", "train.min_learning_rate=1e-5", "train.schedule=wsd",
	    "train.warmup_ratio=0.05", "train.warmup_steps=6", "train.decay_ratio=0.3",
	    "train.weight_decay=0.07", "train.beta1=0.8", "train.beta2=0.95", "train.epsilon=1e-6",
	    "train.embedding_learning_rate=4e-3", "train.scale_lr=sqrt", "train.decay_all=true",
	    "train.clip=0.5", "train.shuffle=false", "train.seed=99", "output.log_steps=5",
	    "output.save_steps=8", "train.eval_steps=4", "data.eval_fraction=0.1", "parallel.prefetch=3",
	    "parallel.persist_below=1000", "train.precision=fp16", "train.loss_scale_power=12",
	    "train.loss_scale_window=70", "train.hysteresis=4", "train.consecutive_hysteresis=true",
	    "train.min_loss_scale=2", "parallel.strategy=hybrid", "parallel.shard_degree=2",
	    "resources.devices_per_node=4", "parallel.reduce_type=bf16", "parallel.sequence_degree=4");
	struct train_options o = options_of(c);

	ck_assert_double_eq(o.epochs, 3.5);
	ck_assert_int_eq(o.max_steps, 17);
	ck_assert_int_eq(o.micro_batch, 2);
	ck_assert_int_eq(o.accumulation, 3);
	ck_assert_double_eq(o.learning_rate, 2e-3);
	ck_assert_double_eq(o.min_learning_rate, 1e-5);
	ck_assert_int_eq(o.schedule, SCHEDULE_WSD);
	ck_assert_double_eq(o.warmup_ratio, 0.05);
	ck_assert_int_eq(o.warmup_steps, 6);
	ck_assert_double_eq(o.decay_ratio, 0.3);
	ck_assert_double_eq(o.weight_decay, 0.07);
	ck_assert_double_eq(o.beta1, 0.8);
	ck_assert_double_eq(o.beta2, 0.95);
	ck_assert_double_eq(o.epsilon, 1e-6);
	ck_assert_double_eq(o.embedding_rate, 4e-3);
	ck_assert_int_eq(o.scale_rate, TRAIN_SCALE_SQRT);
	ck_assert(o.decay_all && !o.shuffle);
	ck_assert_double_eq(o.clip, 0.5);
	ck_assert_uint_eq(o.seed, 99);
	ck_assert_int_eq(o.log_steps, 5);
	ck_assert_int_eq(o.save_steps, 8);
	ck_assert_int_eq(o.eval_steps, 4);
	ck_assert_int_eq(o.prefetch, 3);
	ck_assert_int_eq(o.persist_below, 1000);
	ck_assert_int_eq(o.precision, DTYPE_F16);
	ck_assert(!o.fp8 && !o.without_master);
	ck_assert_double_eq(o.scaler.fixed, 0);
	ck_assert_int_eq(o.scaler.power, 12);
	ck_assert_int_eq(o.scaler.window, 70);
	ck_assert_int_eq(o.scaler.hysteresis, 4);
	ck_assert(o.scaler.consecutive);
	ck_assert_double_eq(o.scaler.least, 2);
	ck_assert_int_eq(o.strategy, SHARD_HYBRID);
	ck_assert_int_eq(o.shard_degree, 2);
	ck_assert_int_eq(o.sequence_degree, 4);
	ck_assert_int_eq(o.reduce_type, DTYPE_BF16);
	ck_assert_int_eq(o.gradient_type, DTYPE_F32);
	ck_assert_int_eq(o.tuning.kind, TUNE_ALL);
	ck_assert_int_eq(o.offload, SHARD_OFFLOAD_NONE);
	ck_assert_ptr_null(o.offload_dir);
	ck_assert_int_eq(o.preference.kind, PREFERENCE_NONE);
}
END_TEST

START_TEST(names_of_the_training)
{
	static const struct {
		const char *key, *other;
		size_t at;
		int value;
	} cases[] = {
#define FIELD(name) offsetof(struct train_options, name)
	    {"train.schedule=linear", "", FIELD(schedule), SCHEDULE_LINEAR},
	    {"train.schedule=cosine", "", FIELD(schedule), SCHEDULE_COSINE},
	    {"train.schedule=constant", "", FIELD(schedule), SCHEDULE_CONSTANT},
	    {"train.optimizer=adamw", "", FIELD(optimizer), OPTIMIZER_ADAMW},
	    {"train.optimizer=lion", "", FIELD(optimizer), OPTIMIZER_LION},
	    {"train.optimizer=sgd", "", FIELD(optimizer), OPTIMIZER_SGD},
	    {"train.scale_lr=none", "", FIELD(scale_rate), TRAIN_SCALE_NONE},
	    {"train.scale_lr=linear", "", FIELD(scale_rate), TRAIN_SCALE_LINEAR},
	    {"train.precision=fp32", "", FIELD(precision), DTYPE_F32},
	    {"train.precision=bf16", "", FIELD(precision), DTYPE_BF16},
	    {"train.precision=auto", "", FIELD(precision), DTYPE_BF16},
	    {"train.precision=fp8", "", FIELD(precision), DTYPE_BF16},
	    {"train.recompute=none", "", FIELD(recompute), MODEL_KEEP_ALL},
	    {"train.recompute=selective", "", FIELD(recompute), MODEL_RECOMPUTE_SELECTIVE},
	    {"train.recompute=full", "", FIELD(recompute), MODEL_RECOMPUTE_BLOCK},
	    {"train.recompute=auto", "", FIELD(recompute), MODEL_KEEP_ALL},
	    {"parallel.strategy=ddp", "", FIELD(strategy), SHARD_DDP},
	    {"parallel.strategy=zero2", "", FIELD(strategy), SHARD_ZERO2},
	    {"parallel.strategy=zero3", "", FIELD(strategy), SHARD_ZERO3},
	    /* Decided later; all is offloaded by zero3 alone. */
	    {"parallel.strategy=auto", "parallel.offload=all", FIELD(strategy), SHARD_ZERO3},
	    {"parallel.strategy=zero1", "parallel.offload=optimizer", FIELD(offload),
	     SHARD_OFFLOAD_OPTIMIZER},
	    {"parallel.strategy=zero3", "parallel.offload=all", FIELD(offload), SHARD_OFFLOAD_ALL},
	    {"train.gradient_type=bf16", "train.precision=bf16", FIELD(gradient_type), DTYPE_BF16},
	    {"parallel.shard_degree=0", "resources.devices_per_node=3", FIELD(shard_degree), 3},
#undef FIELD
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(run_config_freep) struct run_config *c =
		    config_of(pretrain, cases[i].key, *cases[i].other ? cases[i].other : NULL);
		struct train_options o = options_of(c);

		ck_assert_msg(*(const int *)((const char *)&o + cases[i].at) == cases[i].value, "%s: %d",
		              cases[i].key, *(const int *)((const char *)&o + cases[i].at));
	}
}
END_TEST

START_TEST(what_is_there_or_not)
{
	_cleanup_(run_config_freep) struct run_config
	    *fp8 = config_of(pretrain, "train.precision=fp8"),
	    *none = config_of(pretrain, "train.master=none", "train.precision=bf16"),
	    *fixed = config_of(pretrain, "train.loss_scale=128", "train.precision=fp16"),
	    *momentum =
	        config_of(pretrain, "train.optimizer=sgd", "train.momentum=0.7", "train.nesterov=true"),
	    *plain = config_of(pretrain, "parallel.strategy=ddp"),
	    *smooth = config_of(sft, "train.label_smoothing=0.1", "train.neftune_alpha=5"),
	    *dft = config_of(pretrain, "train.loss=dft"),
	    *disk = config_of(pretrain, "parallel.offload=optimizer", "parallel.offload_dir=/disk"),
	    *front = config_of(pretrain, "output.background=false", "output.save_steps=3"),
	    *back = config_of(pretrain, "output.save_steps=3");
	struct train_options o = options_of(fp8);

	ck_assert(o.fp8 && !o.without_master && !o.copies_state);
	o = options_of(none);
	ck_assert(!o.fp8 && o.without_master);
	ck_assert_double_eq(options_of(fixed).scaler.fixed, 128);
	o = options_of(momentum);
	ck_assert(o.nesterov && o.momentum == 0.7);
	ck_assert(!options_of(plain).nesterov && !options_of(plain).decay_all && options_of(plain).shuffle);
	o = options_of(plain);
	ck_assert(!o.dft && o.label_smoothing == 0 && o.neftune_alpha == 0);
	o = options_of(smooth);
	ck_assert(!o.dft && o.label_smoothing == 0.1 && o.neftune_alpha == 5);
	ck_assert(options_of(dft).dft);
	ck_assert_str_eq(options_of(disk).offload_dir, "/disk");
	ck_assert(!options_of(front).copies_state && options_of(back).copies_state);
	ck_assert(options_strategy_is_auto(fp8) && !options_strategy_is_auto(plain));
	ck_assert(!options_recompute_is_auto(plain));
}
END_TEST

START_TEST(what_is_chosen_later_is_known)
{
	_cleanup_(run_config_freep) struct run_config *recompute =
	                                                  config_of(pretrain, "train.recompute=auto"),
	                                              *own = config_of(pretrain, "train.attention=own"),
	                                              *cudnn = config_of(pretrain, "train.attention=cudnn");

	ck_assert(options_recompute_is_auto(recompute));
	ck_assert_int_eq(options_attention(recompute), DEVICE_ATTENTION_AUTO);
	ck_assert_int_eq(options_attention(own), DEVICE_ATTENTION_OWN);
	ck_assert_int_eq(options_attention(cudnn), DEVICE_ATTENTION_CUDNN);
}
END_TEST

START_TEST(what_is_trained_of_a_model)
{
	_cleanup_(run_config_freep) struct run_config
	    *lora = config_of(sft, "lora.rank=6", "lora.alpha=10", "lora.rslora=true", "lora.dropout=0.2",
	                      "lora.pissa_iterations=9", "lora.target=q_proj", "lora.modules_to_save=norm",
	                      "lora.plus_ratio=16", "lora.quantize=nf4_double"),
	    *few = config_of(sft, "lora.rank=5", "lora.dora=true"),
	    *pissa = config_of(sft, "lora.rank=5", "lora.init=pissa"),
	    *some = config_of(sft, "train.freeze_trainable_layers=-2", "train.freeze_trainable_modules=mlp",
	                      "train.freeze_extra_modules=norm");
	struct train_options o = options_of(lora);

	ck_assert_int_eq(o.tuning.kind, TUNE_LORA);
	ck_assert_int_eq(o.tuning.rank, 6);
	ck_assert_double_eq(o.tuning.alpha, 10);
	ck_assert_double_eq(o.tuning.dropout, 0.2);
	ck_assert(o.tuning.rslora && !o.tuning.dora);
	ck_assert_int_eq(o.tuning.init, LORA_INIT_DEFAULT);
	ck_assert_int_eq(o.tuning.pissa_iterations, 9);
	ck_assert_str_eq(o.tuning.target[0], "q_proj");
	ck_assert_ptr_null(o.tuning.target[1]);
	ck_assert_str_eq(o.tuning.saved[0], "norm");
	ck_assert_double_eq(o.plus_ratio, 16);
	ck_assert_int_eq(o.quantize, SHARD_NF4_DOUBLE);
	/* Twice the rank, and all matrices. */
	o = options_of(few);
	ck_assert_double_eq(o.tuning.alpha, 10);
	ck_assert(o.tuning.dora && !o.tuning.rslora);
	ck_assert_str_eq(o.tuning.target[0], "all");
	ck_assert_ptr_null(o.tuning.target[1]);
	ck_assert_ptr_null(o.tuning.saved);
	ck_assert_int_eq(o.quantize, SHARD_QUANTIZE_NONE);
	ck_assert_int_eq(options_of(pissa).tuning.init, LORA_INIT_PISSA);
	o = options_of(some);
	ck_assert_int_eq(o.tuning.kind, TUNE_SOME);
	ck_assert_int_eq(o.tuning.layers, -2);
	ck_assert_str_eq(o.tuning.modules[0], "mlp");
	ck_assert_str_eq(o.tuning.extra[0], "norm");
}
END_TEST

START_TEST(preferences)
{
	static const struct {
		const char *task;
		enum preference_kind kind;
		enum dataset_task rows;
	} tasks[] = {
	    {"task=pretrain", PREFERENCE_NONE, DATASET_PRETRAIN},
	    {"task=sft", PREFERENCE_NONE, DATASET_SFT},
	    {"task=dpo", PREFERENCE_DPO, DATASET_PAIRS},
	    {"task=orpo", PREFERENCE_ORPO, DATASET_PAIRS},
	    {"task=simpo", PREFERENCE_SIMPO, DATASET_PAIRS},
	    {"task=kto", PREFERENCE_KTO, DATASET_LABELS},
	    {"task=reward", PREFERENCE_REWARD, DATASET_PAIRS},
	};
	_cleanup_(run_config_freep) struct run_config *
	    ipo = config_of(sft, "task=dpo", "preference.loss=ipo", "preference.beta=0.3"),
	   *hinge = config_of(sft, "task=dpo", "preference.loss=hinge"),
	   *smooth = config_of(sft, "task=dpo", "preference.label_smoothing=0.1"),
	   *simpo = config_of(sft, "task=simpo", "preference.gamma=0.8"),
	   *kto =
	       config_of(sft, "task=kto", "preference.desirable_weight=2", "preference.undesirable_weight=3"),
	   *reward = config_of(sft, "task=reward", "preference.center_rewards_coefficient=0.01");
	struct dataset_options d;

	for (size_t i = 0; i < ARRAY_SIZE(tasks); i++) {
		_cleanup_(run_config_freep) struct run_config *c = config_of(sft, tasks[i].task);

		ck_assert_int_eq(options_of(c).preference.kind, tasks[i].kind);
		ck_assert_int_eq(options_dataset_task(c->task), tasks[i].rows);
		options_dataset(c, "cache", &d);
		ck_assert_int_eq(d.task, tasks[i].rows);
		ck_assert_int_eq(d.margins, tasks[i].kind == PREFERENCE_REWARD);
	}
	ck_assert_int_eq(options_of(ipo).preference.loss, PREFERENCE_IPO);
	ck_assert_double_eq(options_of(ipo).preference.beta, 0.3);
	ck_assert_int_eq(options_of(ipo).preference.pad, -1);
	ck_assert_int_eq(options_of(hinge).preference.loss, PREFERENCE_HINGE);
	ck_assert_int_eq(options_of(smooth).preference.loss, PREFERENCE_SIGMOID);
	ck_assert_double_eq(options_of(smooth).preference.label_smoothing, 0.1);
	ck_assert_double_eq(options_of(simpo).preference.gamma, 0.8);
	ck_assert_double_eq(options_of(kto).preference.desirable_weight, 2);
	ck_assert_double_eq(options_of(kto).preference.undesirable_weight, 3);
	ck_assert_double_eq(options_of(reward).preference.center, 0.01);
}
END_TEST

static const char grpo[] = "task = \"grpo\"; model = { path = \"m\"; }; data = { path = \"d\"; };\n"
                           "output = { dir = \"o\"; }; train = { accumulation = 8; };\n"
                           "grpo = { reward = [\"r\"]; };\n";

START_TEST(rewards)
{
	const struct model_config wide = {.max_positions = 1000}, narrow = {.max_positions = 60};
	_cleanup_(run_config_freep) struct run_config
	    *plain = config_of(grpo, "data.max_length=100"),
	    *all = config_of(grpo, "grpo.generations=4", "grpo.max_new_tokens=77", "grpo.sequences=3",
	                     "grpo.temperature=0.7", "grpo.top_k=9", "grpo.top_p=0.8", "grpo.min_p=0.05",
	                     "grpo.beta=0.04", "grpo.epsilon=0.1", "grpo.epsilon_high=0.3",
	                     "grpo.iterations=2", "grpo.mini_batches=3", "grpo.truncation_penalty=0.5",
	                     "grpo.loss=grpo", "grpo.scale=batch", "grpo.level=sequence",
	                     "grpo.mask_truncated=true", "data.max_length=100"),
	    *other = config_of(sft, "data.max_length=100");
	struct policy_options p = options_of(plain).policy;
	struct dataset_options d;

	/* The defaults of a run are those of the engine. */
	ck_assert_int_eq(p.generations, 8);
	ck_assert_int_eq(p.max_tokens, 256);
	ck_assert_int_eq(p.sequences, 0);
	ck_assert(p.temperature == 1 && p.top_k == 0 && p.top_p == 1 && p.min_p == 0 && p.beta == 0);
	ck_assert(p.epsilon[0] == 0.2 && p.epsilon[1] == 0.2);
	ck_assert(p.iterations == 1 && p.mini_batches == 1);
	ck_assert_int_eq(p.loss, POLICY_DAPO);
	ck_assert_int_eq(p.scale, POLICY_SCALE_GROUP);
	ck_assert(!p.of_sequences && !p.mask_unfinished);
	p = options_of(all).policy;
	ck_assert_int_eq(p.generations, 4);
	ck_assert_int_eq(p.max_tokens, 77);
	ck_assert_int_eq(p.sequences, 3);
	ck_assert_int_eq(p.top_k, 9);
	ck_assert(p.temperature == 0.7 && p.top_p == 0.8 && p.min_p == 0.05 && p.beta == 0.04);
	ck_assert(p.epsilon[0] == 0.1 && p.epsilon[1] == 0.3);
	ck_assert_int_eq(p.iterations, 2);
	ck_assert(p.mini_batches == 3 && p.truncation_penalty == 0.5);
	ck_assert_int_eq(p.loss, POLICY_GRPO);
	ck_assert_int_eq(p.scale, POLICY_SCALE_BATCH);
	ck_assert(p.of_sequences && p.mask_unfinished);
	/* Rows are prompts, and completions come behind them. */
	options_dataset(plain, "cache", &d);
	ck_assert_int_eq(d.task, DATASET_PROMPTS);
	ck_assert(!d.packing && !d.margins);
	ck_assert_int_eq(options_longest_row(plain, &wide), 356);
	ck_assert_int_eq(options_longest_row(all, &wide), 177);
	/* Completions end where the model's positions do, rows of other tasks may be longer. */
	ck_assert_int_eq(options_longest_row(all, &narrow), 60);
	ck_assert_int_eq(options_longest_row(other, &narrow), 100);
	ck_assert_int_eq(options_of(other).policy.generations, 0);
	ck_assert_int_eq(options_of(plain).preference.kind, PREFERENCE_NONE);
}
END_TEST

START_TEST(names_of_rewards)
{
	static const struct {
		const char *key;
		enum policy_loss loss;
		enum policy_scale scale;
		double high; /* of the ratio */
	} cases[] = {
	    {"grpo.loss=grpo", POLICY_GRPO, POLICY_SCALE_GROUP, 0.1},
	    {"grpo.loss=dapo", POLICY_DAPO, POLICY_SCALE_GROUP, 0.1},
	    {"grpo.loss=dr_grpo", POLICY_DR_GRPO, POLICY_SCALE_GROUP, 0.1},
	    {"grpo.loss=cispo", POLICY_CISPO, POLICY_SCALE_GROUP, 5},
	    {"grpo.scale=group", POLICY_DAPO, POLICY_SCALE_GROUP, 0.1},
	    {"grpo.scale=batch", POLICY_DAPO, POLICY_SCALE_BATCH, 0.1},
	    {"grpo.scale=none", POLICY_DAPO, POLICY_SCALE_NONE, 0.1},
	    {"grpo.epsilon_high=0.28", POLICY_DAPO, POLICY_SCALE_GROUP, 0.28},
	};
	_cleanup_(run_config_freep) struct run_config *c =
	    config_of(grpo, "grpo.loss=cispo", "grpo.epsilon_high=2");

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(run_config_freep) struct run_config *one =
		    config_of(grpo, cases[i].key, "grpo.epsilon=0.1");
		struct policy_options p = options_of(one).policy;

		mark_point();
		ck_assert_int_eq(p.loss, cases[i].loss);
		ck_assert_int_eq(p.scale, cases[i].scale);
		ck_assert_double_eq(p.epsilon[0], 0.1);
		ck_assert_double_eq(p.epsilon[1], cases[i].high);
	}
	ck_assert_double_eq(options_of(c).policy.epsilon[1], 2);
}
END_TEST

static const char ppo[] = "task = \"ppo\"; model = { path = \"m\"; }; data = { path = \"d\"; };\n"
                          "output = { dir = \"o\"; }; ppo = { reward = [\"r\"]; };\n";

START_TEST(values)
{
	const struct model_config wide = {.max_positions = 1000};
	_cleanup_(run_config_freep) struct run_config *plain = config_of(ppo, "data.max_length=100"),
	                                              *all = config_of(
	                                                  ppo, "ppo.gamma=0.9", "ppo.lambda=0.8",
	                                                  "ppo.value_weight=0.7", "ppo.value_epsilon=0.6",
	                                                  "ppo.value_learning_rate=0.5", "ppo.epsilon=0.4",
	                                                  "ppo.beta=0.3", "ppo.iterations=2",
	                                                  "ppo.reward_model=/r"),
	                                              *other = config_of(grpo, "grpo.beta=0.2");
	struct train_options o = options_of(plain);
	struct policy_options engine;

	/* The defaults of a run are those of the engine, but for those that the engine has for grpo. */
	policy_options_default(&engine);
	ck_assert_int_eq(o.policy.loss, POLICY_PPO);
	ck_assert(o.policy.generations == 1 && o.policy.iterations == 4 && o.policy.beta == 0.05);
	ck_assert(o.policy.gamma == engine.gamma && o.policy.lambda == engine.lambda);
	ck_assert(o.policy.value_weight == engine.value_weight &&
	          o.policy.value_epsilon == engine.value_epsilon);
	ck_assert(o.value_rate == 0);
	ck_assert_int_eq(options_dataset_task(plain->task), DATASET_PROMPTS);
	ck_assert_int_eq(options_longest_row(plain, &wide), 356);
	o = options_of(all);
	ck_assert(o.policy.gamma == 0.9 && o.policy.lambda == 0.8 && o.policy.value_weight == 0.7);
	ck_assert(o.policy.value_epsilon == 0.6 && o.value_rate == 0.5);
	ck_assert(o.policy.epsilon[0] == 0.4 && o.policy.epsilon[1] == 0.4 && o.policy.beta == 0.3);
	ck_assert_int_eq(o.policy.iterations, 2);
	ck_assert_str_eq(options_other_path(all), "/r");
	ck_assert_str_eq(options_other_key(all), "ppo.reward_model");
	ck_assert(options_of(other).policy.loss == POLICY_DAPO && options_of(other).value_rate == 0);
}
END_TEST

START_TEST(the_data)
{
	_cleanup_(run_config_freep) struct run_config *c = config_of(
	    sft, "data.path=a,b", "data.dataset_dir=info", "data.format=alpaca", "data.template=llama3",
	    "data.system=be kind", "data.tool_prompt=tools.txt", "data.max_length=100", "data.packing=true",
	    "data.cross_documents=true", "data.max_samples=12", "data.eval_fraction=0.1", "train.seed=5");
	_cleanup_(run_config_freep) struct run_config *flags =
	    config_of(sft, "data.train_on_prompt=true", "data.efficient_eos=true");
	_cleanup_(run_config_freep) struct run_config *history = config_of(sft, "data.mask_history=true");
	struct dataset_options d;

	options_dataset(c, "cache", &d);
	ck_assert_str_eq(d.paths[1], "b");
	ck_assert_ptr_null(d.datasets);
	ck_assert_str_eq(d.dataset_dir, "info");
	ck_assert_str_eq(d.format, "alpaca");
	ck_assert_str_eq(d.template_name, "llama3");
	ck_assert_str_eq(d.system, "be kind");
	ck_assert_str_eq(d.tool_prompt, "tools.txt");
	ck_assert_int_eq(d.max_length, 100);
	ck_assert(d.packing && d.cross_documents && !d.train_on_prompt && !d.mask_history &&
	          !d.efficient_eos);
	ck_assert_int_eq(d.max_samples, 12);
	ck_assert_double_eq(d.eval_fraction, 0.1);
	ck_assert_uint_eq(d.seed, 5);
	ck_assert_str_eq(d.cache_dir, "cache");
	options_dataset(flags, NULL, &d);
	ck_assert(!d.packing && !d.cross_documents && d.train_on_prompt && !d.mask_history &&
	          d.efficient_eos);
	ck_assert_ptr_null(d.cache_dir);
	options_dataset(history, NULL, &d);
	ck_assert(d.mask_history && !d.train_on_prompt && !d.efficient_eos);
}
END_TEST

START_TEST(the_files_of_a_model)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *file = str_path_join(dir, "my.json"),
	                    *in = str_path_join(dir, "config.json");
	_cleanup_free_ char *init = str_printf("model.init=%s", dir),
	                    *named = str_printf("model.init=%s", file);
	_cleanup_(run_config_freep) struct run_config *directory = config_of(pretrain, init),
	                                              *one = config_of(pretrain, named),
	                                              *path = config_of(sft, "model.path=/absent"),
	                                              *apart = config_of(sft, "model.tokenizer=/t");
	const struct run_config *configs[] = {directory, one, path};
	const char *const want[] = {in, file, "/absent/config.json"};

	for (size_t i = 0; i < ARRAY_SIZE(configs); i++) {
		_cleanup_free_ char *is = options_config(configs[i]);

		ck_assert_str_eq(is, want[i]);
	}
	{
		_cleanup_free_ char *own = options_tokenizer(path), *other = options_tokenizer(apart);

		ck_assert_str_eq(own, "/absent");
		ck_assert_str_eq(other, "/t");
	}
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(names_of_precisions)
{
	enum dtype type = DTYPE_F16;

	ck_assert(precision_parse("auto", &type) && type == DTYPE_F16);
	ck_assert(!precision_parse("fp8", &type) && type == DTYPE_F16);
	ck_assert(!precision_parse("fp64", &type) && type == DTYPE_F16);
	ck_assert(precision_parse("fp32", &type) && type == DTYPE_F32);
	ck_assert(precision_is_fp8("fp8") && !precision_is_fp8("fp16") && !precision_is_fp8(NULL));
	ck_assert_str_eq(precision_name(DTYPE_F16), "fp16");
	ck_assert_str_eq(precision_name(DTYPE_BF16), "bf16");
	ck_assert_str_eq(precision_name((enum dtype)77), "?");
}
END_TEST

START_TEST(what_the_engine_refuses)
{
	_cleanup_(run_config_freep) struct run_config *c = config_of(pretrain, "train.precision=fp32");
	struct error err = ERROR_INIT;
	struct train_options o;
	static const struct {
		size_t at;
		const char *words;
	} names[] = {
#define KEY(name) offsetof(struct run_config, name)
	    {KEY(train.schedule), "train.schedule: nonsense is not known"},
	    {KEY(train.optimizer), "train.optimizer: nonsense is not known"},
	    {KEY(lora.init), "lora.init: nonsense is not known"},
	    {KEY(lora.quantize), "lora.quantize: nonsense is not known"},
	    {KEY(parallel.strategy), "parallel.strategy: nonsense is not known"},
	    {KEY(parallel.offload), "parallel.offload: nonsense is not known"},
#undef KEY
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char **key = (char **)((char *)c + names[i].at), *was = *key;

		*key = (char *)"nonsense";
		ck_fails(options_train(c, &o, &err), &err, names[i].words);
		*key = was;
	}
	c->train.micro_batch = 0;
	ck_fails(options_train(c, &o, &err), &err, "micro_batch and accumulation have to be at least 1");
}
END_TEST

START_TEST(the_saver)
{
	const struct environment env = {.rank = 2,
	                                .world_size = 5,
	                                .attempt = 3,
	                                .epoch = 8,
	                                .checkpoint = 40,
	                                .run_id = "12",
	                                .lease = "/lease",
	                                .cluster = "c",
	                                .checkpoint_node = "n4",
	                                .node = "n9"};
	_cleanup_(run_config_freep) struct run_config *c =
	    config_of(sft, "output.keep=4", "output.overwrite=true", "output.gather=true",
	              "output.background=false", "output.max_shard_mb=7", "output.log_steps=3",
	              "output.save_steps=6", "train.eval_steps=9", "data.eval_fraction=0.1", "train.epochs=2",
	              "train.micro_batch=4", "train.seed=11", "parallel.timeout=30", "output.resume=never");
	_cleanup_(run_config_freep) struct run_config *must = config_of(sft, "output.resume=must"),
	                                              *plain = config_of(pretrain, "train.seed=1");
	struct saver_options o;

	options_saver(c, &env, "config", "tokenizer", &o);
	ck_assert_str_eq(o.claim.directory, "o");
	ck_assert_str_eq(o.claim.run, "12");
	ck_assert_int_eq(o.claim.attempt, 3);
	ck_assert_str_eq(o.claim.cluster, "c");
	ck_assert_int_eq(o.claim.epoch, 8);
	ck_assert_str_eq(o.claim.lease, "/lease");
	ck_assert_int_eq(o.rank, 2);
	ck_assert_int_eq(o.world_size, 5);
	ck_assert_str_eq(o.node, "n9");
	ck_assert_double_eq(o.timeout_s, 30);
	ck_assert(!o.background && o.gather && o.overwrite);
	ck_assert_int_eq(o.resume, SAVER_RESUME_NEVER);
	ck_assert_int_eq(o.known_step, 40);
	ck_assert_str_eq(o.known_node, "n4");
	ck_assert_int_eq(o.keep, 4);
	ck_assert_uint_eq(o.max_shard_bytes, 7000000);
	ck_assert_str_eq(o.config, "config");
	ck_assert_str_eq(o.source, "m");
	ck_assert_str_eq(o.tokenizer, "tokenizer");
	ck_assert_double_eq(o.epochs, 2);
	ck_assert_int_eq(o.micro_batch, 4);
	ck_assert_int_eq(o.log_steps, 3);
	ck_assert_int_eq(o.eval_steps, 9);
	ck_assert_int_eq(o.save_steps, 6);
	ck_assert_uint_eq(o.seed, 11);
	options_saver(must, &env, "config", "tokenizer", &o);
	ck_assert_int_eq(o.resume, SAVER_RESUME_MUST);
	ck_assert(o.background && !o.gather && !o.overwrite);
	options_saver(plain, &env, "config", "tokenizer", &o);
	ck_assert_int_eq(o.resume, SAVER_RESUME_AUTO);
	ck_assert_ptr_null(o.source);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("options");
	TCase *t = tcase_create("options");

	tcase_add_test(t, numbers_of_the_training);
	tcase_add_test(t, names_of_the_training);
	tcase_add_test(t, what_is_there_or_not);
	tcase_add_test(t, what_is_chosen_later_is_known);
	tcase_add_test(t, what_is_trained_of_a_model);
	tcase_add_test(t, preferences);
	tcase_add_test(t, rewards);
	tcase_add_test(t, names_of_rewards);
	tcase_add_test(t, the_data);
	tcase_add_test(t, values);
	tcase_add_test(t, the_files_of_a_model);
	tcase_add_test(t, names_of_precisions);
	tcase_add_test(t, what_the_engine_refuses);
	tcase_add_test(t, the_saver);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
