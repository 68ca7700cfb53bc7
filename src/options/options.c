/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a run's config into the options of the engine's parts. */
#include "options/options.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/hf.h"
#include "options/precision_names.h"

/* The highest ratio of CISPO where a run says nothing. */
#define CISPO_HIGHEST 5

enum dataset_task options_dataset_task(enum run_task task)
{
	return task == RUN_KTO          ? DATASET_LABELS
	       : run_task_prefers(task) ? DATASET_PAIRS
	       : run_task_rewards(task) ? DATASET_PROMPTS
	       : task == RUN_SFT        ? DATASET_SFT
	                                : DATASET_PRETRAIN;
}

static void read_preference(const struct run_config *c, struct preference_options *out)
{
	static const enum preference_kind kinds[] = {
	    [RUN_DPO] = PREFERENCE_DPO, [RUN_ORPO] = PREFERENCE_ORPO,     [RUN_SIMPO] = PREFERENCE_SIMPO,
	    [RUN_KTO] = PREFERENCE_KTO, [RUN_REWARD] = PREFERENCE_REWARD, [RUN_COMMAND] = PREFERENCE_NONE};

	*out = (struct preference_options){.kind = kinds[c->task],
	                                   .loss = str_eq(c->preference.loss, "ipo")     ? PREFERENCE_IPO
	                                           : str_eq(c->preference.loss, "hinge") ? PREFERENCE_HINGE
	                                                                                 : PREFERENCE_SIGMOID,
	                                   .beta = c->preference.beta,
	                                   .gamma = c->preference.gamma,
	                                   .center = c->preference.center_rewards_coefficient,
	                                   .pad = -1,
	                                   .label_smoothing = c->preference.label_smoothing,
	                                   .desirable_weight = c->preference.desirable_weight,
	                                   .undesirable_weight = c->preference.undesirable_weight};
}

static enum policy_loss policy_loss(const struct run_config *c)
{
	return c->task == RUN_PPO                ? POLICY_PPO
	       : str_eq(c->grpo.loss, "cispo")   ? POLICY_CISPO
	       : str_eq(c->grpo.loss, "grpo")    ? POLICY_GRPO
	       : str_eq(c->grpo.loss, "dr_grpo") ? POLICY_DR_GRPO
	                                         : POLICY_DAPO;
}

static void read_policy(const struct run_config *c, struct policy_options *out)
{
	const struct run_policy *p = run_config_policy(c);
	enum policy_loss loss = policy_loss(c);

	if (!run_task_rewards(c->task))
		return;
	*out = (struct policy_options){.generations = (int)p->generations,
	                               .max_tokens = p->max_new_tokens,
	                               .sequences = (int)p->sequences,
	                               .temperature = p->temperature,
	                               .top_k = p->top_k,
	                               .top_p = p->top_p,
	                               .min_p = p->min_p,
	                               .beta = p->beta,
	                               .epsilon = {p->epsilon, p->epsilon_high > 0    ? p->epsilon_high
	                                                       : loss == POLICY_CISPO ? CISPO_HIGHEST
	                                                                              : p->epsilon},
	                               .iterations = (int)p->iterations,
	                               .mini_batches = (int)p->mini_batches,
	                               .loss = loss,
	                               .scale = str_eq(p->scale, "batch")  ? POLICY_SCALE_BATCH
	                                        : str_eq(p->scale, "none") ? POLICY_SCALE_NONE
	                                                                   : POLICY_SCALE_GROUP,
	                               .of_sequences = str_eq(p->level, "sequence"),
	                               .mask_unfinished = p->mask_truncated,
	                               .truncation_penalty = p->truncation_penalty,
	                               .gamma = p->gamma,
	                               .lambda = p->lambda,
	                               .value_weight = p->value_weight,
	                               .value_epsilon = p->value_epsilon};
}

void options_dataset(const struct run_config *c, const char *cache_dir, struct dataset_options *out)
{
	*out = (struct dataset_options){
	    .task = options_dataset_task(c->task),
	    .paths = (const char *const *)c->data.path,
	    .dataset_dir = c->data.dataset_dir,
	    .datasets = (const char *const *)c->data.dataset,
	    .format = c->data.format,
	    .columns_json = c->data.columns,
	    .tags_json = c->data.tags,
	    .template_name = c->data.template_,
	    .system = c->data.system,
	    .tool_prompt = c->data.tool_prompt,
	    .max_length = c->data.max_length,
	    .packing = c->data.packing,
	    .cross_documents = c->data.cross_documents,
	    .train_on_prompt = c->data.train_on_prompt,
	    .mask_history = c->data.mask_history,
	    .efficient_eos = c->data.efficient_eos,
	    .margins = c->task == RUN_REWARD,
	    .kept_columns = (const char *const *)run_config_policy(c)->columns,
	    .max_samples = c->data.max_samples,
	    .eval_fraction = c->data.eval_fraction,
	    .seed = c->train.seed,
	    .cache_dir = cache_dir,
	};
}

enum device_attention_choice options_attention(const struct run_config *c)
{
	return str_eq(c->train.attention, "own")     ? DEVICE_ATTENTION_OWN
	       : str_eq(c->train.attention, "cudnn") ? DEVICE_ATTENTION_CUDNN
	                                             : DEVICE_ATTENTION_AUTO;
}

bool options_strategy_is_auto(const struct run_config *c)
{
	return str_eq(c->parallel.strategy, "auto");
}

bool options_recompute_is_auto(const struct run_config *c)
{
	return str_eq(c->train.recompute, "auto");
}

static const char *const all_modules[] = {"all", NULL};

int options_train(const struct run_config *c, struct train_options *out, struct error *err)
{
	train_options_default(out);
	read_preference(c, &out->preference);
	read_policy(c, &out->policy);
	out->epochs = c->train.epochs;
	out->max_steps = c->train.max_steps;
	out->micro_batch = c->train.micro_batch;
	out->accumulation = c->train.accumulation;
	out->learning_rate = c->train.learning_rate;
	out->min_learning_rate = c->train.min_learning_rate;
	if (schedule_kind_parse(c->train.schedule, &out->schedule) < 0)
		return error_set(err, -EINVAL, "train.schedule: %s is not known", c->train.schedule);
	out->warmup_ratio = c->train.warmup_ratio;
	out->warmup_steps = c->train.warmup_steps;
	out->decay_ratio = c->train.decay_ratio;
	out->weight_decay = c->train.weight_decay;
	out->beta1 = c->train.beta1;
	out->beta2 = c->train.beta2;
	out->epsilon = c->train.epsilon;
	out->momentum = c->train.momentum;
	out->nesterov = c->train.nesterov;
	out->embedding_rate = c->train.embedding_learning_rate;
	out->value_rate = c->task == RUN_PPO ? c->ppo.value_learning_rate : 0;
	out->scale_rate = str_eq(c->train.scale_lr, "linear") ? TRAIN_SCALE_LINEAR
	                  : str_eq(c->train.scale_lr, "sqrt") ? TRAIN_SCALE_SQRT
	                                                      : TRAIN_SCALE_NONE;
	if (optimizer_parse(c->train.optimizer, &out->optimizer) < 0)
		return error_set(err, -EINVAL, "train.optimizer: %s is not known", c->train.optimizer);
	out->decay_all = c->train.decay_all;
	out->clip = c->train.clip;
	out->neftune_alpha = c->train.neftune_alpha;
	out->label_smoothing = c->train.label_smoothing;
	out->router_loss = c->train.router_loss;
	out->dft = str_eq(c->train.loss, "dft");
	out->distillation.weight = c->distillation.weight;
	out->distillation.temperature = c->distillation.temperature;
	/* "auto" is decided once the ranks are connected; until then, the one that allows the other
	 * options. */
	out->precision = DTYPE_BF16;
	precision_parse(c->train.precision, &out->precision);
	out->fp8 = precision_is_fp8(c->train.precision);
	out->scaler = (struct loss_scaler_options){.fixed = c->train.loss_scale,
	                                           .power = c->train.loss_scale_power,
	                                           .window = c->train.loss_scale_window,
	                                           .hysteresis = c->train.hysteresis,
	                                           .consecutive = c->train.consecutive_hysteresis,
	                                           .least = c->train.min_loss_scale};
	out->without_master = str_eq(c->train.master, "none");
	if (str_eq(c->train.recompute, "selective"))
		out->recompute = MODEL_RECOMPUTE_SELECTIVE;
	else if (str_eq(c->train.recompute, "full") || str_eq(c->train.recompute, "true"))
		out->recompute = MODEL_RECOMPUTE_BLOCK;
	out->shuffle = c->train.shuffle;
	out->seed = c->train.seed;
	out->log_steps = c->output.log_steps;
	out->save_steps = c->output.save_steps;
	out->copies_state = c->output.background && c->output.save_steps > 0;
	out->eval_steps = c->train.eval_steps;
	out->tuning =
	    (struct model_tuning){.kind = c->lora.rank > 0                        ? TUNE_LORA
	                                  : c->train.freeze_trainable_layers != 0 ? TUNE_SOME
	                                                                          : TUNE_ALL,
	                          .rank = c->lora.rank,
	                          .alpha = c->lora.alpha > 0 ? c->lora.alpha : 2 * (double)c->lora.rank,
	                          .dropout = c->lora.dropout,
	                          .rslora = c->lora.rslora,
	                          .dora = c->lora.dora,
	                          .pissa_iterations = (int)c->lora.pissa_iterations,
	                          .target = c->lora.target ? c->lora.target : (char **)all_modules,
	                          .saved = c->lora.modules_to_save,
	                          .layers = c->train.freeze_trainable_layers,
	                          .modules = c->train.freeze_trainable_modules,
	                          .extra = c->train.freeze_extra_modules};
	if (lora_init_parse(c->lora.init, &out->tuning.init) < 0)
		return error_set(err, -EINVAL, "lora.init: %s is not known", c->lora.init);
	out->plus_ratio = c->lora.plus_ratio;
	if (shard_quantize_parse(c->lora.quantize, &out->quantize) < 0)
		return error_set(err, -EINVAL, "lora.quantize: %s is not known", c->lora.quantize);
	/* "auto" is decided once the devices are known. */
	if (!options_strategy_is_auto(c) && shard_strategy_parse(c->parallel.strategy, &out->strategy) < 0)
		return error_set(err, -EINVAL, "parallel.strategy: %s is not known", c->parallel.strategy);
	out->shard_degree =
	    (int)(c->parallel.shard_degree ? c->parallel.shard_degree : c->resources.devices_per_node);
	out->sequence_degree = (int)c->parallel.sequence_degree;
	out->prefetch = (int)c->parallel.prefetch;
	out->persist_below = c->parallel.persist_below;
	precision_parse(c->parallel.reduce_type, &out->reduce_type);
	precision_parse(c->train.gradient_type, &out->gradient_type);
	if (shard_offload_parse(c->parallel.offload, &out->offload) < 0)
		return error_set(err, -EINVAL, "parallel.offload: %s is not known", c->parallel.offload);
	out->offload_dir = c->parallel.offload_dir;
	if (options_strategy_is_auto(c) && out->offload == SHARD_OFFLOAD_ALL)
		out->strategy = SHARD_ZERO3; /* until then, as precision */
	return train_options_check(out, err);
}

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* What is often named in the place of a model, with what to do about it. */
static int refuse_others(const char *path, struct error *err)
{
	if (file_exists(path) && !is_directory(path))
		return error_set(err, -ENOTDIR, "%s is not a directory", path);
	if (file_exists_in(path, "adapter_config.json") && !file_exists_in(path, "config.json"))
		return error_set(
		    err, -EINVAL,
		    "%s is an adapter, not a model; name the directory of a model, such as one that "
		    "dtrain export has merged it into",
		    path);
	return 0;
}

const char *options_other_path(const struct run_config *c)
{
	return run_task_rewards(c->task) ? run_config_policy(c)->reward_model : c->distillation.teacher;
}

const char *options_other_key(const struct run_config *c)
{
	return !options_other_path(c) ? NULL
	       : c->task == RUN_PPO   ? "ppo.reward_model"
	       : c->task == RUN_GRPO  ? "grpo.reward_model"
	                              : "distillation.teacher";
}

int options_other_model(const struct run_config *c, struct model_config *other, struct train_options *out,
                        struct error *err)
{
	const char *path = options_other_path(c), *key = options_other_key(c);
	bool scores = run_task_rewards(c->task);
	int r;

	if (!path)
		return 0;
	if ((r = refuse_others(path, err)) < 0 || (r = model_config_read(path, other, err)) < 0)
		return error_prefix(err, "%s", key);
	if (!scores && other->scores)
		return error_set(err, -EINVAL, "%s: %s is a reward model; a model of tokens is needed", key,
		                 path);
	if (scores && !other->scores)
		return error_set(
		    err, -EINVAL,
		    "%s: %s is a model of tokens; one that gives scores is needed, such as the task "
		    "reward makes",
		    key, path);
	if ((r = hf_choose_head(other, scores, path, err)) < 0)
		return error_prefix(err, "%s", key);
	if (scores)
		out->policy.reward_model = other;
	else
		out->distillation.teacher = other;
	return 0;
}

int options_choose_head(const struct run_config *c, struct model_config *model, const char *where,
                        struct error *err)
{
	if (model->multimodal && !c->model.path)
		return error_set(err, -EINVAL,
		                 "%s is that of a multimodal model, which is trained from files: name its "
		                 "directory with model.path; expected the config.json of a model of text",
		                 where);
	return hf_choose_head(model, c->task == RUN_REWARD, where, err);
}

int64_t options_row_tokens(const struct run_config *c)
{
	return c->data.max_length + (run_task_rewards(c->task) ? run_config_policy(c)->max_new_tokens : 0);
}

int options_other_length(const struct run_config *c, const struct model_config *other, struct error *err)
{
	bool rewards = run_task_rewards(c->task);
	int64_t row = options_row_tokens(c) + (rewards ? POLICY_CLOSING_MOST : 0);

	if (!other->learned_positions || row <= other->max_positions)
		return 0;
	return error_set(err, -EINVAL,
	                 "%s has %lld positions, fewer than data.max_length%s%s%s, which is %lld; lower it, "
	                 "or name another %s",
	                 options_other_path(c), (long long)other->max_positions, rewards ? " with " : "",
	                 rewards ? run_task_name(c->task) : "", rewards ? ".max_new_tokens" : "",
	                 (long long)row, rewards ? "reward model" : "teacher");
}

int64_t options_longest_row(const struct run_config *c, const struct model_config *model)
{
	int64_t row = options_row_tokens(c);

	return run_task_rewards(c->task) ? MAX(MIN(row, model->max_positions), 2) : row;
}

char *options_config(const struct run_config *c)
{
	const char *from = c->model.path ? c->model.path : c->model.init;

	return c->model.path || is_directory(from) ? str_path_join(from, "config.json") : strdup(from);
}

char *options_tokenizer(const struct run_config *c)
{
	return run_config_tokenizer(c);
}
