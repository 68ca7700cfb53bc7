/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what the table of keys cannot say of one key alone: which are needed, and which exclude or
 * require others. */
#include "config/run_checks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

static int need(const char *value, const char *where, const char *key, const char *why, struct error *err)
{
	if (value && *value)
		return 0;
	return error_set(err, -EINVAL, "%s: %s: missing; %s", where, key, why);
}

static int check_generate(const struct run_config *c, const char *where, struct error *err)
{
	if (c->generate.prompt && c->generate.prompts)
		return error_set(err, -EINVAL, "%s: generate.prompts: leave out one of prompt and prompts",
		                 where);
	if (!c->generate.prompt && !c->generate.prompts)
		return need(NULL, where, "generate.prompt", "give the text to go on from", err);
	if (str_eq(c->train.precision, "fp8"))
		return error_set(
		    err, -EINVAL,
		    "%s: train.precision: \"fp8\" is for training; expected auto, fp32, bf16 or fp16", where);
	for (char **s = c->generate.stop; s && *s; s++)
		if (!**s)
			return error_set(err, -EINVAL, "%s: generate.stop: an empty string ends every text",
			                 where);
	return 0;
}

/* The divisor of n that is nearest to d, not below it where two are as near. */
static int64_t nearest_divisor(int64_t n, int64_t d)
{
	for (int64_t off = 0; off <= n; off++) {
		if (n % (d + off) == 0)
			return d + off;
		if (n % (d - off) == 0)
			return d - off;
	}
	return n;
}

static int check_degree(const char *key, int64_t degree, int64_t ranks, const char *where, struct error *err)
{
	if (degree > 0 && ranks > 0 && ranks % degree)
		return error_set(err, -EINVAL,
		                 "%s: parallel.%s: %lld ranks cannot be divided into groups of %lld; "
		                 "expected a divisor of %lld, such as %lld",
		                 where, key, (long long)ranks, (long long)degree, (long long)ranks,
		                 (long long)nearest_divisor(ranks, degree));
	return 0;
}

static int check_parallel(const struct run_config *c, const char *where, struct error *err)
{
	int64_t each = c->resources.devices_per_node, ranks = c->resources.nodes.high * each,
	        degree = c->parallel.shard_degree;

	if (degree > 0 && strcmp(c->parallel.strategy, "hybrid") != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.shard_degree: has no effect with parallel.strategy = \"%s\"; leave "
		    "it out, or use the strategy \"hybrid\"",
		    where, c->parallel.strategy);
	if (str_eq(c->parallel.trial, "always") && !str_eq(c->parallel.strategy, "auto"))
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.trial: has no effect with parallel.strategy = \"%s\"; leave it out, "
		    "or use the strategy \"auto\"",
		    where, c->parallel.strategy);
	for (int64_t n = c->resources.nodes.low; n <= c->resources.nodes.high; n++)
		if (check_degree("shard_degree", degree, n * each, where, err) < 0 ||
		    check_degree("sequence_degree", c->parallel.sequence_degree, n * each, where, err) < 0)
			return -EINVAL;
	if (c->parallel.sequence_degree > 1 && run_task_rewards(c->task))
		return error_set(err, -EINVAL,
		                 "%s: parallel.sequence_degree: has no effect with task = \"%s\", whose "
		                 "completions each rank generates by itself; leave it out",
		                 where, run_task_name(c->task));
	if (c->parallel.offload_dir && !strcmp(c->parallel.offload, "none"))
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.offload_dir: has no effect with parallel.offload = \"none\"; leave it out, "
		    "or use \"optimizer\" or \"all\"",
		    where);
	if (c->parallel.offload_dir && !c->parallel.offload_dir[0])
		return error_set(err, -EINVAL, "%s: parallel.offload_dir: is empty; expected a directory",
		                 where);
	if (!strcmp(c->parallel.offload, "all") && ranks > 1 && strcmp(c->parallel.strategy, "auto") != 0 &&
	    strcmp(c->parallel.strategy, "zero3") != 0 && strcmp(c->parallel.strategy, "hybrid") != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.offload: \"all\" keeps shards of the weights in the host's memory, and "
		    "parallel.strategy = \"%s\" has no shards of them; use \"zero3\" or \"hybrid\", or "
		    "offload = \"optimizer\"",
		    where, c->parallel.strategy);
	if (strcmp(c->parallel.offload, "none") != 0 && strcmp(c->train.optimizer, "adamw") != 0 &&
	    strcmp(c->train.optimizer, "sgd") != 0 && strcmp(c->train.optimizer, "lion") != 0)
		return error_set(err, -EINVAL,
		                 "%s: parallel.offload: the host can step adamw, sgd and lion, and "
		                 "train.optimizer is \"%s\"; use one of these, or leave it out",
		                 where, c->train.optimizer);
	return 0;
}

static int check_tuning(const struct run_config *c, const char *where, struct error *err)
{
	bool freezes = c->train.freeze_trainable_layers != 0;
	const struct {
		bool wrong;
		const char *what;
	} checks[] = {
	    {c->lora.rank == 0 &&
	         (c->lora.alpha > 0 || c->lora.dropout > 0 || c->lora.rslora || c->lora.dora ||
	          strcmp(c->lora.init, "default") != 0 || c->lora.target || c->lora.modules_to_save ||
	          c->lora.plus_ratio > 0 || c->lora.from || strcmp(c->lora.quantize, "none") != 0),
	     "lora.rank: 0, with which the other keys of lora have no effect; expected at least 1, such as "
	     "16"},
	    {strcmp(c->lora.init, "pissa") == 0 && c->lora.from,
	     "lora.init: has no effect with lora.from, where the adapters are there already; leave one of "
	     "the two out"},
	    {strcmp(c->lora.init, "pissa") == 0 && c->train.weight_decay > 0 &&
	         strcmp(c->train.optimizer, "adamw") != 0,
	     "train.weight_decay: adamw alone can leave out what is kept of the adapters as they begin "
	     "(lora.init = \"pissa\"); expected 0, or train.optimizer = \"adamw\""},
	    {c->lora.rank > 0 && (freezes || c->train.freeze_extra_modules),
	     "train.freeze_trainable_layers: has no effect with lora, which freezes the model; leave one of "
	     "the "
	     "two out"},
	    {!freezes && c->train.freeze_trainable_modules,
	     "train.freeze_trainable_modules: has no effect without train.freeze_trainable_layers; set that, "
	     "too"},
	    {!freezes && c->train.freeze_extra_modules && c->lora.rank == 0,
	     "train.freeze_extra_modules: has no effect without train.freeze_trainable_layers; set that, "
	     "too"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL, "%s: %s", where, checks[i].what);
	return 0;
}

static int check_loss_scale(const struct run_config *c, const char *where, struct error *err)
{
	bool fp16 = !strcmp(c->train.precision, "fp16");
	double first = ldexp(1, (int)c->train.loss_scale_power);

	if (!fp16 && c->train.loss_scale > 0)
		return error_set(err, -EINVAL,
		                 "%s: train.loss_scale: only fp16 needs a scaled loss; leave it out, or set "
		                 "train.precision = \"fp16\"",
		                 where);
	if (fp16 && c->train.loss_scale > 0 && c->train.loss_scale <= 1)
		return error_set(
		    err, -EINVAL,
		    "%s: train.loss_scale: with %g small gradients vanish in fp16; 0, by which the "
		    "scale adapts itself, or a fixed scale such as 65536 works",
		    where, c->train.loss_scale);
	if (fp16 && c->train.loss_scale == 0 && c->train.min_loss_scale > first)
		return error_set(err, -EINVAL,
		                 "%s: train.min_loss_scale: %g is above the first loss scale, 2^%lld = %g; "
		                 "expected at most that, or a greater train.loss_scale_power",
		                 where, c->train.min_loss_scale, (long long)c->train.loss_scale_power, first);
	return 0;
}

/* bf16 gradients hold one micro-step's, as they are written, and what reads them is adamw on the device. */
static int check_gradients(const struct run_config *c, const char *where, struct error *err)
{
	const struct {
		bool wrong;
		const char *what;
	} checks[] = {
	    {!str_eq(c->train.precision, "bf16") && !str_eq(c->train.precision, "auto"),
	     "is for bf16 weights; expected train.precision = \"bf16\""},
	    {c->train.accumulation > 1,
	     "is for steps of one micro-step, since sums of several are taken in fp32; expected "
	     "train.accumulation = 1, or \"fp32\""},
	    {c->resources.nodes.low != c->resources.nodes.high,
	     "is for steps of one micro-step, and with a range of nodes fewer of them take more; expected "
	     "one "
	     "number for resources.nodes, or \"fp32\""},
	    {!str_eq(c->train.optimizer, "adamw") && !str_eq(c->train.optimizer, "adamw_8bit"),
	     "is for the optimizers adamw and adamw_8bit; expected one of these, or \"fp32\""},
	    {!str_eq(c->parallel.offload, "none"),
	     "cannot be offloaded, since the host steps by fp32; expected parallel.offload = \"none\", or "
	     "\"fp32\""},
	    {c->lora.rank > 0,
	     "has no effect with lora, whose gradients are small and always fp32; leave it out"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks) && str_eq(c->train.gradient_type, "bf16"); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL, "%s: train.gradient_type: \"bf16\" %s", where,
			                 checks[i].what);
	return 0;
}

/* Keys that have no effect with the task, or not with each other. */
static int check_preference(const struct run_config *c, const char *where, struct error *err)
{
	bool prefers = run_task_prefers(c->task), sigmoid = str_eq(c->preference.loss, "sigmoid");
	const struct {
		bool wrong;
		const char *key, *words;
	} checks[] = {
	    {c->task != RUN_DPO && !sigmoid, "preference.loss", "it is for task = \"dpo\""},
	    {(!prefers || c->task == RUN_REWARD) && c->preference.beta != 0.1, "preference.beta",
	     "it is for the tasks dpo, orpo, simpo and kto"},
	    {c->task != RUN_REWARD && c->preference.center_rewards_coefficient != 0,
	     "preference.center_rewards_coefficient", "it is for task = \"reward\""},
	    {c->task != RUN_SIMPO && c->preference.gamma != 0.5, "preference.gamma",
	     "it is for task = \"simpo\""},
	    {((c->task != RUN_DPO && c->task != RUN_SIMPO) || !sigmoid) && c->preference.label_smoothing != 0,
	     "preference.label_smoothing",
	     "it is for task = \"dpo\" with the loss sigmoid, and for \"simpo\""},
	    {c->task != RUN_KTO && c->preference.desirable_weight != 1, "preference.desirable_weight",
	     "it is for task = \"kto\""},
	    {c->task != RUN_KTO && c->preference.undesirable_weight != 1, "preference.undesirable_weight",
	     "it is for task = \"kto\""},
	    {c->task != RUN_DPO && c->task != RUN_KTO && c->preference.reference, "preference.reference",
	     "it is for the tasks dpo and kto: no other one has a reference model"},
	    {prefers && c->train.neftune_alpha > 0, "train.neftune_alpha",
	     "it is for the tasks pretrain and sft"},
	    {prefers && c->train.label_smoothing > 0, "train.label_smoothing",
	     c->task == RUN_DPO || c->task == RUN_SIMPO
	         ? "it is of tokens, and preference.label_smoothing of pairs"
	         : "it is for the tasks pretrain and sft"},
	    {prefers && c->train.router_loss > 0, "train.router_loss",
	     "it is for the tasks pretrain and sft"},
	    {prefers && !str_eq(c->train.loss, "cross_entropy"), "train.loss",
	     "it is for the tasks pretrain and sft"},
	    {prefers && c->data.packing, "data.packing", "a row of preferences is a pair of answers"},
	    {prefers && c->data.train_on_prompt, "data.train_on_prompt",
	     "preferences compare answers to the same prompt"},
	    {prefers && c->data.mask_history, "data.mask_history", "the last answer alone counts anyway"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL,
			                 "%s: %s: has no effect with task = \"%s\": %s; leave it out", where,
			                 checks[i].key, run_task_name(c->task), checks[i].words);
	if (c->preference.reference && c->lora.from)
		return error_set(
		    err, -EINVAL,
		    "%s: preference.reference: with lora.from the reference is the model with that "
		    "adapter, at the start of the run; leave one of the two out",
		    where);
	if (prefers && c->preference.beta <= 0)
		return error_set(err, -EINVAL,
		                 "%s: preference.beta: 0 learns nothing; expected a number above 0", where);
	if (c->preference.label_smoothing >= 0.5)
		return error_set(
		    err, -EINVAL,
		    "%s: preference.label_smoothing: half of the pairs the wrong way round teach "
		    "nothing; expected less than 0.5",
		    where);
	return 0;
}

static int check_distillation(const struct run_config *c, const char *where, struct error *err)
{
	const struct {
		bool wrong;
		const char *key, *words;
	} checks[] = {
	    {!c->distillation.teacher && c->distillation.weight != 0.5, "distillation.weight",
	     "has no effect without distillation.teacher; leave it out"},
	    {!c->distillation.teacher && c->distillation.temperature != 1.5, "distillation.temperature",
	     "has no effect without distillation.teacher; leave it out"},
	    {c->distillation.teacher && run_task_prefers(c->task), "distillation.teacher",
	     "is for the tasks pretrain and sft; leave it out"},
	    {c->distillation.teacher && c->distillation.weight <= 0, "distillation.weight",
	     "of 0 learns nothing from the teacher; expected a number above 0, or no distillation.teacher"},
	    {c->distillation.teacher && !*c->distillation.teacher, "distillation.teacher",
	     "is empty; name the directory of a model, or leave it out"},
	    {c->distillation.teacher && !str_eq(c->train.loss, "cross_entropy"), "train.loss",
	     "has no effect with distillation.teacher; leave it out"},
	    {c->distillation.teacher && c->train.label_smoothing > 0, "train.label_smoothing",
	     "has no effect with distillation.teacher; leave it out"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL, "%s: %s: %s", where, checks[i].key, checks[i].words);
	return 0;
}

static int check_training(const struct run_config *c, const char *where, struct error *err)
{
	if (!c->model.path == !c->model.init)
		return error_set(
		    err, -EINVAL,
		    "%s: model: exactly one of model.path (a Hugging Face directory) and model.init (a "
		    "config.json for random weights) is needed",
		    where);
	if (!c->data.path == !c->data.dataset)
		return error_set(err, -EINVAL,
		                 "%s: data: exactly one of data.path (files) and data.dataset (names in "
		                 "dataset_info.json) is needed",
		                 where);
	if ((c->data.path && !c->data.path[0]) || (c->data.dataset && !c->data.dataset[0]))
		return error_set(err, -EINVAL, "%s: data.path: an empty list; name at least one file", where);
	if (check_tuning(c, where, err) < 0)
		return -EINVAL;
	if (need(c->output.dir, where, "output.dir", "name the directory for checkpoints and the final model",
	         err) < 0)
		return -EINVAL;
	if (c->train.min_learning_rate > c->train.learning_rate)
		return error_set(err, -EINVAL,
		                 "%s: train.min_learning_rate: %g is above train.learning_rate, %g", where,
		                 c->train.min_learning_rate, c->train.learning_rate);
	if (check_loss_scale(c, where, err) < 0)
		return -EINVAL;
	if (c->train.router_loss < 0 && c->train.router_loss > -1)
		return error_set(err, -EINVAL,
		                 "%s: train.router_loss: %g: expected a factor from 0 on, or -1", where,
		                 c->train.router_loss);
	if (str_eq(c->train.loss, "dft") && c->train.label_smoothing > 0)
		return error_set(
		    err, -EINVAL,
		    "%s: train.label_smoothing: has no effect with train.loss = \"dft\"; leave one "
		    "of the two out",
		    where);
	if (!strcmp(c->train.precision, "fp8") && strcmp(c->lora.quantize, "none") != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: train.precision: \"fp8\" makes its codes of weights in bf16, not of those "
		    "in 4 bits; leave out lora.quantize, or set train.precision = \"bf16\"",
		    where);
	if (!strcmp(c->train.master, "none") && !strcmp(c->train.precision, "fp16"))
		return error_set(
		    err, -EINVAL,
		    "%s: train.master: \"none\" rounds weights stochastically to bf16, and most "
		    "steps are below what fp16 can hold of a weight; train.master = \"fp32\", or "
		    "train.precision = \"bf16\", works",
		    where);
	if (!strcmp(c->train.master, "none") && !strcmp(c->train.precision, "fp32"))
		return error_set(err, -EINVAL,
		                 "%s: train.master: \"none\" is for bf16 weights; expected train.precision = "
		                 "\"bf16\"",
		                 where);
	if (check_gradients(c, where, err) < 0)
		return -EINVAL;
	if (c->train.epochs <= 0 && c->train.max_steps == 0)
		return error_set(err, -EINVAL,
		                 "%s: train.epochs: 0 epochs and no train.max_steps: nothing to do", where);
	if (check_preference(c, where, err) < 0 || check_distillation(c, where, err) < 0 ||
	    run_check_batch(c, where, err) < 0 || run_check_rewards(c, where, err) < 0)
		return -EINVAL;
	return check_parallel(c, where, err);
}

/* Octal digits, no more than nine bits. */
static bool is_umask(const char *text)
{
	size_t n = strspn(text, "01234567");

	return n > 0 && n <= 4 && !text[n] && strtol(text, NULL, 8) <= 0777;
}

int run_check(const struct run_config *c, const char *where, struct error *err)
{
	_cleanup_free_ char *environment = str_printf("%s: environment", where);

	if (!environment)
		return error_oom(err);
	for (char **e = c->environment; e && *e; e++)
		if (run_check_variable(*e, environment, err) < 0)
			return -EINVAL;
	if (c->umask && !is_umask(c->umask))
		return error_set(err, -EINVAL,
		                 "%s: umask: \"%.20s\" is not three octal digits such as \"027\"", where,
		                 c->umask);
	if (c->task != RUN_COMMAND && c->command)
		return error_set(err, -EINVAL,
		                 "%s: command: has no effect with task = \"%s\"; leave out one of the two",
		                 where, run_task_name(c->task));
	if (c->resources.spares > 0 && c->resources.max_node_failures == 0)
		return error_set(
		    err, -EINVAL,
		    "%s: resources.spares: spare nodes are for the attempt after the failure of a "
		    "node: set resources.max_node_failures above 0",
		    where);
	if (c->task != RUN_COMMAND && c->resources.one_per_node)
		return error_set(err, -EINVAL,
		                 "%s: resources.one_per_node: has no effect with task = \"%s\": it is for "
		                 "commands; leave it out",
		                 where, run_task_name(c->task));
	if (c->task != RUN_COMMAND && !str_eq(c->resources.save_signal, "none"))
		return error_set(
		    err, -EINVAL,
		    "%s: resources.save_signal: has no effect with task = \"%s\": it is for commands; "
		    "leave it out",
		    where, run_task_name(c->task));
	if (run_task_trains(c->task))
		return check_training(c, where, err);
	if (c->task == RUN_GENERATE) {
		if (c->resources.nodes.high * c->resources.devices_per_node != 1)
			return error_set(err, -EINVAL, "%s: resources: generate runs on one device", where);
		if (need(c->model.path, where, "model.path",
		         "name the Hugging Face directory to generate from", err) < 0)
			return -EINVAL;
		return check_generate(c, where, err);
	}
	if (!c->command || !c->command[0] || !c->command[0][0])
		return error_set(err, -EINVAL, "%s: command: missing; name the program to run", where);
	return 0;
}
