/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and checks of the options of a training run. */
#include "engine/train/options.h"

#include <errno.h>
#include <math.h>

#include "base/cleanup.h"

void train_options_default(struct train_options *o)
{
	*o = (struct train_options){.epochs = 1,
	                            .micro_batch = 1,
	                            .accumulation = 1,
	                            .learning_rate = 5e-5,
	                            .schedule = SCHEDULE_LINEAR,
	                            .decay_ratio = 0.1,
	                            .optimizer = OPTIMIZER_ADAMW,
	                            .router_loss = -1,
	                            .momentum = 0.9,
	                            .beta1 = 0.9,
	                            .beta2 = 0.999,
	                            .epsilon = 1e-8,
	                            .clip = 1,
	                            .precision = DTYPE_F32,
	                            .scaler = {.power = 16, .window = 1000, .hysteresis = 2, .least = 1},
	                            .shuffle = true,
	                            .seed = 42,
	                            .log_steps = 10,
	                            .strategy = SHARD_DDP,
	                            .reduce_type = DTYPE_F32,
	                            .gradient_type = DTYPE_F32,
	                            .prefetch = 1};
	preference_options_default(&o->preference);
	policy_options_default(&o->policy);
}

int train_sequence_degree(const struct train_options *o)
{
	return MAX(o->sequence_degree, 1);
}

int64_t train_tokens(const struct train_options *o, int64_t max_row)
{
	int degree = train_sequence_degree(o);

	return (o->micro_batch * max_row + degree - 1) / degree;
}

bool train_has_reference(const struct train_options *o)
{
	return o->policy.generations && o->policy.beta > 0;
}

int64_t train_completions(const struct train_options *o)
{
	return o->micro_batch * o->accumulation * o->policy.mini_batches;
}

bool train_observes(const struct train_options *o)
{
	return o->policy.generations && (o->policy.loss == POLICY_PPO || o->policy.mini_batches > 1);
}

int train_sequences(const struct train_options *o)
{
	int64_t all = train_completions(o);

	return (int)(o->policy.sequences ? MIN(o->policy.sequences, all) : all);
}

int64_t train_prompts(const struct train_options *o)
{
	return train_completions(o) / o->policy.generations;
}

int64_t train_set_steps(const struct train_options *o)
{
	return MAX((int64_t)o->policy.iterations * o->policy.mini_batches, 1);
}

int train_options_check(const struct train_options *o, struct error *err)
{
	const struct {
		bool ok;
		const char *what;
	} checks[] = {
	    {o->micro_batch >= 1 && o->accumulation >= 1,
	     "micro_batch and accumulation have to be at least 1"},
	    {o->max_steps > 0 || o->epochs > 0, "epochs or max_steps has to be above 0"},
	    {o->learning_rate >= 0 && o->min_learning_rate >= 0 && o->min_learning_rate <= o->learning_rate,
	     "learning rates: 0 <= min_learning_rate <= learning_rate"},
	    {o->warmup_ratio >= 0 && o->warmup_ratio <= 1 && o->warmup_steps >= 0,
	     "warmup_ratio has to be 0 to 1"},
	    {o->decay_ratio >= 0 && o->decay_ratio <= 1, "decay_ratio has to be 0 to 1"},
	    {o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1,
	     "betas have to be from 0 to below 1"},
	    {o->epsilon > 0 && o->weight_decay >= 0 && o->clip >= 0,
	     "epsilon, weight_decay and clip: not negative"},
	    {o->momentum >= 0 && o->momentum < 1, "momentum has to be from 0 to below 1"},
	    {!o->nesterov || o->momentum > 0, "nesterov needs a momentum above 0"},
	    {o->embedding_rate >= 0 && (o->embedding_rate == 0 || o->learning_rate > 0),
	     "embedding_rate: not negative, and with a learning_rate above 0"},
	    {o->value_rate >= 0 && (o->value_rate == 0 || o->learning_rate > 0),
	     "value_rate: not negative, and with a learning_rate above 0"},
	    {o->precision != DTYPE_F16 || o->scaler.fixed > 0 ||
	         (o->scaler.window >= 1 && o->scaler.hysteresis >= 1 && o->scaler.least > 0 &&
	          o->scaler.least <= ldexp(1, (int)o->scaler.power)),
	     "fp16 needs a loss scale: a fixed one, or window and hysteresis of at least 1, and a least "
	     "scale "
	     "above 0 and not above the first"},
	    {!o->without_master || o->precision == DTYPE_BF16,
	     "only bf16 weights can do without a master copy (train.master)"},
	    {o->gradient_type == DTYPE_F32 || o->precision == o->gradient_type,
	     "bf16 gradients (train.gradient_type) need bf16 arithmetic (train.precision)"},
	    {o->gradient_type == DTYPE_F32 || o->accumulation == 1,
	     "bf16 gradients (train.gradient_type) are for steps of one micro-step (train.accumulation = 1): "
	     "sums of several are taken in fp32"},
	    {o->gradient_type == DTYPE_F32 || !o->offload,
	     "bf16 gradients (train.gradient_type) cannot be offloaded: the host steps by fp32"},
	    {optimizer_reads(o->optimizer, o->gradient_type),
	     "only adamw and adamw_8bit can step by bf16 gradients (train.gradient_type)"},
	    {!o->fp8 || (o->precision == DTYPE_BF16 && o->quantize == SHARD_QUANTIZE_NONE),
	     "fp8 goes with bf16, and not with weights in 4 bits (lora.quantize)"},
	    {o->log_steps >= 1 && o->save_steps >= 0 && o->eval_steps >= 0,
	     "log_steps has to be at least 1, save_steps and eval_steps at least 0"},
	    {!o->offload || optimizer_steps_on_host(o->optimizer),
	     "only adamw, sgd and lion can step on the host (parallel.offload)"},
	    {!o->offload_dir || o->offload, "offload_dir has no effect without offload"},
	    {o->tuning.kind != TUNE_LORA || (o->tuning.rank >= 1 && o->tuning.alpha > 0 &&
	                                     o->tuning.dropout >= 0 && o->tuning.dropout < 1),
	     "lora needs a rank of at least 1, an alpha above 0, and a dropout from 0 to below 1"},
	    {o->plus_ratio >= 0, "lora.plus_ratio: not negative"},
	    {o->preference.kind == PREFERENCE_NONE ||
	         (o->preference.beta > 0 && o->preference.label_smoothing >= 0 &&
	          o->preference.label_smoothing < 0.5),
	     "preference.beta has to be above 0, and preference.label_smoothing from 0 to below 0.5"},
	    {o->neftune_alpha >= 0 && o->label_smoothing >= 0 && o->label_smoothing < 1,
	     "neftune_alpha: not negative, and label_smoothing from 0 to below 1"},
	    {!o->dft || o->label_smoothing == 0,
	     "the loss of DFT has no label smoothing (train.loss, train.label_smoothing)"},
	    {o->preference.kind == PREFERENCE_NONE ||
	         (o->neftune_alpha == 0 && o->label_smoothing == 0 && !o->dft),
	     "neftune_alpha, label_smoothing and dft are for pretraining and fine-tuning"},
	    {o->preference.kind == PREFERENCE_NONE || o->router_loss <= 0,
	     "router_loss is for pretraining and fine-tuning"},
	    {!o->distillation.teacher || (o->distillation.weight > 0 && o->distillation.weight <= 1 &&
	                                  o->distillation.temperature > 0),
	     "distillation.weight has to be above 0, and 1 at most, and distillation.temperature above 0"},
	    {!o->distillation.teacher ||
	         (o->preference.kind == PREFERENCE_NONE && o->label_smoothing == 0 && !o->dft),
	     "distillation is for pretraining and fine-tuning, without label_smoothing and dft"},
	    {!o->policy.generations || ((o->policy.generations >= 2 || o->policy.loss == POLICY_PPO) &&
	                                o->micro_batch * o->accumulation % o->policy.generations == 0),
	     "a rank's completions of a step, micro_batch times accumulation, have to be a multiple of "
	     "generations, which has to be at least 2, or with ppo 1"},
	    {o->policy.loss != POLICY_PPO ||
	         (o->policy.gamma >= 0 && o->policy.gamma <= 1 && o->policy.lambda >= 0 &&
	          o->policy.lambda <= 1 && o->policy.value_weight >= 0 && o->policy.value_epsilon >= 0),
	     "ppo: gamma and lambda have to be from 0 to 1, value_weight and value_epsilon not negative"},
	    {!o->policy.generations ||
	         (o->policy.max_tokens >= 1 && o->policy.temperature > 0 && o->policy.beta >= 0 &&
	          o->policy.epsilon[0] > 0 && o->policy.epsilon[1] > 0 && o->policy.iterations >= 1 &&
	          o->policy.mini_batches >= 1 && o->policy.truncation_penalty >= 0 &&
	          o->policy.sequences >= 0),
	     "grpo and ppo: max_new_tokens, iterations and mini_batches have to be at least 1, temperature "
	     "and epsilon above 0, beta, sequences and truncation_penalty not negative"},
	    {!o->policy.generations ||
	         (o->preference.kind == PREFERENCE_NONE && !o->distillation.teacher && !o->fp8 &&
	          o->neftune_alpha == 0 && o->label_smoothing == 0 && !o->dft && o->router_loss <= 0),
	     "grpo and ppo go without a teacher, fp8, neftune_alpha, label_smoothing, dft and router_loss"},
	    {!o->policy.generations || o->save_steps % train_set_steps(o) == 0,
	     "output.save_steps has to be a multiple of iterations times mini_batches of grpo or ppo: "
	     "completions are not saved"},
	    {train_sequence_degree(o) == 1 || !o->policy.generations,
	     "grpo and ppo go without parallel.sequence_degree"},
	    {o->prefetch >= 0 && o->prefetch < SHARD_SLOTS_MAX && o->persist_below >= 0,
	     "prefetch has to be 0 to 15, persist_below not negative"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (!checks[i].ok)
			return error_set(err, -EINVAL, "%s", checks[i].what);
	return 0;
}
