/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a run file as a table, and what must hold between them. */
#include "config/run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "config/keys.h"

#define F(field) offsetof(struct run_config, field)

static const struct key run_key_list[] = {
    {NULL, "name", KEY_STRING, F(name), NULL, 0, 0, NULL, "name shown in listings; default: the file's name"},
    {NULL, "command", KEY_LIST, F(command), NULL, 0, 0, NULL,
     "program and arguments, run once per device with torchrun's environment"},
    {NULL, "directory", KEY_STRING, F(directory), NULL, 0, 0, NULL,
     "working directory; default: where dtrain submit was called"},
    {NULL, "environment", KEY_LIST, F(environment), NULL, 0, 0, NULL,
     "more environment for the workers: a group or a list of \"K=V\""},
    {NULL, "umask", KEY_STRING, F(umask), NULL, 0, 0, NULL,
     "rights that new files are not to give, in octal: \"027\"; default: the submitter's for a command, "
     "else 022"},

    {"model", "path", KEY_STRING, F(model.path), NULL, 0, 0, NULL,
     "Hugging Face directory to start from; weights in 4 bits (nf4) of bitsandbytes are read, too"},
    {"model", "init", KEY_STRING, F(model.init), NULL, 0, 0, NULL,
     "config.json (or its directory) to start from random weights"},
    {"model", "tokenizer", KEY_STRING, F(model.tokenizer), NULL, 0, 0, NULL,
     "directory with tokenizer.json; default: the model's"},
    {"model", "load", KEY_CHOICE, F(model.load), "all", 0, 0, "all|broadcast",
     "all: each rank reads the weights on its own node, and all are compared; broadcast: rank 0 reads and "
     "sends them"},
    {"model", "init_std", KEY_NUMBER, F(model.init_std), "0", 0, 10, NULL,
     "standard deviation of random weights; 0: initializer_range of config.json"},

    {"data", "path", KEY_LIST, F(data.path), NULL, 0, 0, NULL, "files or directories"},
    {"data", "dataset_dir", KEY_STRING, F(data.dataset_dir), NULL, 0, 0, NULL,
     "directory with dataset_info.json"},
    {"data", "dataset", KEY_LIST, F(data.dataset), NULL, 0, 0, NULL,
     "names in dataset_info.json, instead of path"},
    {"data", "format", KEY_CHOICE, F(data.format), "auto", 0, 0,
     "auto|text|paragraphs|files|jsonl|alpaca|sharegpt|openai|trl", "how the files are read"},
    {"data", "columns", KEY_GROUP, F(data.columns), NULL, 0, 0, NULL,
     "column names: { prompt = \"instruction\"; … }"},
    {"data", "tags", KEY_GROUP, F(data.tags), NULL, 0, 0, NULL,
     "tags of sharegpt and openai messages: { role_tag = \"from\"; … }"},
    {"data", "template", KEY_STRING, F(data.template_), NULL, 0, 0, NULL,
     "chat template; default: the tokenizer's own where it is known"},
    {"data", "system", KEY_STRING, F(data.system), NULL, 0, 0, NULL,
     "system prompt where an example has none"},
    {"data", "tool_prompt", KEY_STRING, F(data.tool_prompt), NULL, 0, 0, NULL,
     "file with the text that describes tools to the model, {{tools}} where their list goes; default: the "
     "template's"},
    {"data", "max_length", KEY_INT, F(data.max_length), "2048", 2, 1 << 20, NULL, "tokens of a row at most"},
    {"data", "packing", KEY_BOOL, F(data.packing), "false", 0, 0, NULL,
     "several documents in a row; default: true when pretraining, else false"},
    {"data", "cross_documents", KEY_BOOL, F(data.cross_documents), "false", 0, 0, NULL,
     "packed documents attend to each other"},
    {"data", "train_on_prompt", KEY_BOOL, F(data.train_on_prompt), "false", 0, 0, NULL,
     "prompts count in the loss"},
    {"data", "mask_history", KEY_BOOL, F(data.mask_history), "false", 0, 0, NULL,
     "only the last answer counts in the loss"},
    {"data", "efficient_eos", KEY_BOOL, F(data.efficient_eos), "false", 0, 0, NULL,
     "one end of sequence after the last turn instead of one a turn"},
    {"data", "max_samples", KEY_INT, F(data.max_samples), "0", 0, 1e15, NULL,
     "first N examples of each file; 0: all"},
    {"data", "eval_fraction", KEY_NUMBER, F(data.eval_fraction), "0", 0, 1e15, NULL,
     "part of the examples that is held out for evaluation, or their count when above 1"},
    {"data", "cache_dir", KEY_STRING, F(data.cache_dir), NULL, 0, 0, NULL,
     "where tokenized data is kept; default: output.dir/cache"},

    {"train", "epochs", KEY_NUMBER, F(train.epochs), "1", 0, 1e9, NULL, "passes over the data"},
    {"train", "max_steps", KEY_INT, F(train.max_steps), "0", 0, 1e12, NULL,
     "steps at most; 0: what epochs give"},
    {"train", "micro_batch", KEY_INT, F(train.micro_batch), "1", 1, 65536, NULL,
     "rows per rank and micro-step"},
    {"train", "accumulation", KEY_INT, F(train.accumulation), "1", 1, 65536, NULL, "micro-steps per step"},
    {"train", "learning_rate", KEY_NUMBER, F(train.learning_rate), "1e-4", 0, 100, NULL,
     "highest learning rate"},
    {"train", "min_learning_rate", KEY_NUMBER, F(train.min_learning_rate), "0", 0, 100, NULL,
     "floor of the schedule"},
    {"train", "schedule", KEY_CHOICE, F(train.schedule), "cosine", 0, 0, "linear|cosine|constant|wsd",
     "how the learning rate falls after warm-up"},
    {"train", "warmup_ratio", KEY_NUMBER, F(train.warmup_ratio), "0", 0, 1, NULL,
     "part of all steps that warms up"},
    {"train", "warmup_steps", KEY_INT, F(train.warmup_steps), "0", 0, 1e12, NULL,
     "steps that warm up; wins over warmup_ratio"},
    {"train", "decay_ratio", KEY_NUMBER, F(train.decay_ratio), "0.1", 0, 1, NULL,
     "wsd: last part of all steps that decays"},
    {"train", "embedding_learning_rate", KEY_NUMBER, F(train.embedding_learning_rate), "0", 0, 100, NULL,
     "highest learning rate of the embedding; 0: learning_rate"},
    {"train", "scale_lr", KEY_CHOICE, F(train.scale_lr), "none", 0, 0, "none|linear|sqrt",
     "multiply the learning rates by the rows of a step over all ranks, or by their square root"},
    {"train", "optimizer", KEY_CHOICE, F(train.optimizer), "adamw", 0, 0,
     "adamw|sgd|lion|lamb|lars|adafactor|muon|adamw_8bit|lion_8bit", "how gradients change the weights"},
    {"train", "weight_decay", KEY_NUMBER, F(train.weight_decay), "0", 0, 100, NULL,
     "weight decay: decoupled, but under sgd and lars added to the gradient"},
    {"train", "beta1", KEY_NUMBER, F(train.beta1), "0.9", 0, 0.999999, NULL,
     "first beta of adamw, lion and lamb"},
    {"train", "beta2", KEY_NUMBER, F(train.beta2), "0.999", 0, 0.999999, NULL,
     "second beta of adamw, lion and lamb"},
    {"train", "epsilon", KEY_NUMBER, F(train.epsilon), "1e-8", 1e-20, 1, NULL,
     "epsilon of adamw, lamb and lars"},
    {"train", "momentum", KEY_NUMBER, F(train.momentum), "0.9", 0, 0.999999, NULL,
     "momentum of sgd, lars and muon"},
    {"train", "nesterov", KEY_BOOL, F(train.nesterov), "false", 0, 0, NULL,
     "Nesterov's momentum, for sgd, lars and muon"},
    {"train", "decay_all", KEY_BOOL, F(train.decay_all), "false", 0, 0, NULL, "decay norms and biases too"},
    {"train", "clip", KEY_NUMBER, F(train.clip), "1.0", 0, 1e9, NULL,
     "largest global norm of the gradients; 0: no clipping"},
    {"train", "precision", KEY_CHOICE, F(train.precision), "auto", 0, 0, "auto|fp32|bf16|fp16",
     "of activations and matrix products; auto: bf16 where every rank's device multiplies it, else fp32"},
    {"train", "loss_scale", KEY_NUMBER, F(train.loss_scale), "0", 0, 1e30, NULL,
     "fp16: factor of the loss; 0: it adapts itself, by the five keys that follow"},
    {"train", "loss_scale_power", KEY_INT, F(train.loss_scale_power), "16", 0, 64, NULL,
     "fp16: the first factor of the loss is 2 to this power"},
    {"train", "loss_scale_window", KEY_INT, F(train.loss_scale_window), "1000", 1, 1e12, NULL,
     "fp16: steps in a row without overflow after which the factor is doubled"},
    {"train", "hysteresis", KEY_INT, F(train.hysteresis), "2", 1, 1e6, NULL,
     "fp16: overflows before the factor is halved"},
    {"train", "consecutive_hysteresis", KEY_BOOL, F(train.consecutive_hysteresis), "false", 0, 0, NULL,
     "fp16: each step without overflow restores the hysteresis; false: only doubling the factor does"},
    {"train", "min_loss_scale", KEY_NUMBER, F(train.min_loss_scale), "1", 1e-6, 1e30, NULL,
     "fp16: least factor of the loss; an overflow at it ends the run"},
    {"train", "master", KEY_CHOICE, F(train.master), "fp32", 0, 0, "fp32|none",
     "the copy of bf16 weights that steps add up in; none: 4 bytes a parameter less, and the weights are "
     "rounded stochastically"},
    {"train", "recompute", KEY_CHOICE, F(train.recompute), "none", 0, 0,
     "none|selective|full|auto|true|false",
     "what blocks compute again in the backward pass; auto: what memory has no room for. true is full, false "
     "none"},
    {"train", "attention", KEY_CHOICE, F(train.attention), "auto", 0, 0, "auto|own|cudnn",
     "whose kernels compute attention on a GPU"},
    {"train", "shuffle", KEY_BOOL, F(train.shuffle), "true", 0, 0, NULL, "a new order each epoch"},
    {"train", "seed", KEY_INT, F(train.seed), "42", 0, 9007199254740992.0, NULL,
     "of weights, order and the split"},
    {"train", "eval_steps", KEY_INT, F(train.eval_steps), "0", 0, 1e12, NULL,
     "evaluate each N steps; 0: at each save and at the end"},

    {"train", "freeze_trainable_layers", KEY_INT, F(train.freeze_trainable_layers), "0", -100000, 100000,
     NULL, "train only the last so many layers, or the first where below 0; 0: everything"},
    {"train", "freeze_trainable_modules", KEY_LIST, F(train.freeze_trainable_modules), NULL, 0, 0, NULL,
     "of these layers only these modules, such as self_attn, mlp; default: all"},
    {"train", "freeze_extra_modules", KEY_LIST, F(train.freeze_extra_modules), NULL, 0, 0, NULL,
     "trained as well: modules outside of the layers, such as embed_tokens, norm, lm_head"},

    {"lora", "rank", KEY_INT, F(lora.rank), "0", 0, 65536, NULL,
     "train adapters of this rank instead of the model; 0: none"},
    {"lora", "alpha", KEY_NUMBER, F(lora.alpha), "0", 0, 1e9, NULL,
     "an adapter's output is multiplied by alpha / rank; 0: twice the rank"},
    {"lora", "rslora", KEY_BOOL, F(lora.rslora), "false", 0, 0, NULL,
     "multiply by alpha / sqrt(rank) instead"},
    {"lora", "target", KEY_LIST, F(lora.target), NULL, 0, 0, NULL,
     "modules with an adapter, such as q_proj; default: all linear ones of the layers"},
    {"lora", "modules_to_save", KEY_LIST, F(lora.modules_to_save), NULL, 0, 0, NULL,
     "modules that are trained and saved whole, such as embed_tokens, lm_head, norm"},
    {"lora", "plus_ratio", KEY_NUMBER, F(lora.plus_ratio), "0", 0, 1e6, NULL,
     "LoRA+: the learning rate of B is so many times that of A; 0: the same"},
    {"lora", "quantize", KEY_CHOICE, F(lora.quantize), "none", 0, 0, "none|nf4|nf4_double",
     "store the frozen blocks in 4 bits (QLoRA); nf4_double: their scales in 8 bits"},
    {"lora", "from", KEY_STRING, F(lora.from), NULL, 0, 0, NULL,
     "directory of an adapter in PEFT's format to go on from"},

    {"preference", "loss", KEY_CHOICE, F(preference.loss), "sigmoid", 0, 0, "sigmoid|ipo|hinge",
     "of dpo: how the difference of both answers counts"},
    {"preference", "beta", KEY_NUMBER, F(preference.beta), "0.1", 0, 1000, NULL,
     "dpo, kto: the greater, the nearer to the reference; simpo: the scale of rewards; orpo: the weight of "
     "the odds ratio"},
    {"preference", "gamma", KEY_NUMBER, F(preference.gamma), "0.5", 0, 1000, NULL,
     "of simpo: by how much the reward of the chosen answer is to be above the other"},
    {"preference", "label_smoothing", KEY_NUMBER, F(preference.label_smoothing), "0", 0, 0.5, NULL,
     "of dpo (sigmoid) and simpo: the part of the pairs that may be the wrong way round"},
    {"preference", "desirable_weight", KEY_NUMBER, F(preference.desirable_weight), "1", 0, 1000, NULL,
     "of kto: weight of the answers whose label is true"},
    {"preference", "undesirable_weight", KEY_NUMBER, F(preference.undesirable_weight), "1", 0, 1000, NULL,
     "of kto: weight of the answers whose label is false"},
    {"preference", "reference", KEY_STRING, F(preference.reference), NULL, 0, 0, NULL,
     "of dpo and kto: Hugging Face directory of the reference model; default: the weights at the start"},

    {"parallel", "strategy", KEY_CHOICE, F(parallel.strategy), "auto", 0, 0,
     "ddp|zero1|zero2|zero3|hybrid|auto",
     "what of the model each rank holds; auto: the fastest that fits into memory, as dtrain estimate has it"},
    {"parallel", "shard_degree", KEY_INT, F(parallel.shard_degree), "0", 0, 1e6, NULL,
     "hybrid: ranks that share one copy of the model; 0: those of a node"},
    {"parallel", "prefetch", KEY_INT, F(parallel.prefetch), "1", 0, 15, NULL,
     "zero3, hybrid: units whose weights are gathered ahead of the one in use"},
    {"parallel", "persist_below", KEY_INT, F(parallel.persist_below), "0", 0, 1e15, NULL,
     "zero3, hybrid: units with fewer elements keep their weights whole"},
    {"parallel", "reduce_type", KEY_CHOICE, F(parallel.reduce_type), "fp32", 0, 0, "fp32|bf16",
     "of gradients while they travel between ranks"},
    {"parallel", "offload", KEY_CHOICE, F(parallel.offload), "none", 0, 0, "none|optimizer|all",
     "what lies in the host's memory, and is stepped by its cores; all: weights and gradients, too"},
    {"parallel", "offload_dir", KEY_STRING, F(parallel.offload_dir), NULL, 0, 0, NULL,
     "with offload: a directory on a disk of each node, for the state of the optimizer"},
    {"parallel", "timeout", KEY_INT, F(parallel.timeout), "600", 1, 86400, NULL,
     "seconds that a collective may make no progress"},

    {"resources", "nodes", KEY_INT, F(resources.nodes), "1", 1, 100000, NULL, "machines"},
    {"resources", "devices_per_node", KEY_COUNT, F(resources.devices_per_node), "1", 1, 1024, NULL,
     "slots on each: GPUs, or CPU slots; \"all\": every one that a node has"},
    {"resources", "kind", KEY_CHOICE, F(resources.kind), "auto", 0, 0, "auto|gpu|cpu",
     "of the slots; auto: GPUs where the cluster has nodes with enough of them, else CPU slots"},
    {"resources", "one_per_node", KEY_BOOL, F(resources.one_per_node), "false", 0, 0, NULL,
     "a command is started once a node, and has all devices of the run there"},
    {"resources", "threads", KEY_INT, F(resources.threads), "0", 0, 4096, NULL,
     "CPU threads per rank; 0: the slot's"},
    {"resources", "hosts", KEY_LIST, F(resources.hosts), NULL, 0, 0, NULL, "only on these nodes"},
    {"resources", "max_restarts", KEY_INT, F(resources.max_restarts), "0", 0, 1e6, NULL,
     "0, all that can be given: a failed run is not started again"},
    {"resources", "grace", KEY_INT, F(resources.grace), "30", 0, 86400, NULL,
     "seconds between TERM and KILL when a run is stopped"},

    {"output", "dir", KEY_STRING, F(output.dir), NULL, 0, 0, NULL,
     "where checkpoints and the final model go"},
    {"output", "save_steps", KEY_INT, F(output.save_steps), "0", 0, 1e12, NULL,
     "a checkpoint each N steps; 0: only the final model"},
    {"output", "keep", KEY_INT, F(output.keep), "0", 0, 1e9, NULL, "newest checkpoints kept; 0: all"},
    {"output", "log_steps", KEY_INT, F(output.log_steps), "10", 1, 1e12, NULL, "report each N steps"},
    {"output", "tensorboard", KEY_BOOL, F(output.tensorboard), "true", 0, 0, NULL,
     "write TensorBoard event files"},
    {"output", "resume", KEY_CHOICE, F(output.resume), "auto", 0, 0, "auto|never|must",
     "go on from the newest checkpoint in dir"},
    {"output", "overwrite", KEY_BOOL, F(output.overwrite), "false", 0, 0, NULL,
     "use a dir that has files but no checkpoint"},
    {"output", "max_shard_mb", KEY_INT, F(output.max_shard_mb), "5000", 1, 1e9, NULL,
     "size of a safetensors file at most, in MB"},
    {"output", "background", KEY_BOOL, F(output.background), "true", 0, 0, NULL,
     "checkpoints are copied to host memory, and written while the training goes on"},
    {"output", "gather", KEY_BOOL, F(output.gather), "false", 0, 0, NULL,
     "where not all nodes find dir, rank 0 writes what the others hold"},

    {"generate", "prompt", KEY_STRING, F(generate.prompt), NULL, 0, 0, NULL, "text to go on from"},
    {"generate", "prompts", KEY_STRING, F(generate.prompts), NULL, 0, 0, NULL,
     "file of prompts, one in each line, or .jsonl; the answers are JSON lines"},
    {"generate", "adapter", KEY_STRING, F(generate.adapter), NULL, 0, 0, NULL,
     "directory of a PEFT adapter of the model"},
    {"generate", "chat", KEY_BOOL, F(generate.chat), "false", 0, 0, NULL,
     "the prompt is a user's turn of a conversation"},
    {"generate", "max_new_tokens", KEY_INT, F(generate.max_new_tokens), "128", 1, 1e9, NULL,
     "tokens at most"},
    {"generate", "temperature", KEY_NUMBER, F(generate.temperature), "0", 0, 100, NULL,
     "0: the likeliest token each time"},
    {"generate", "top_k", KEY_INT, F(generate.top_k), "0", 0, 1e9, NULL,
     "choose among the K likeliest; 0: all"},
    {"generate", "top_p", KEY_NUMBER, F(generate.top_p), "1", 0, 1, NULL,
     "choose among the likeliest that make up this probability"},
    {"generate", "min_p", KEY_NUMBER, F(generate.min_p), "0", 0, 1, NULL,
     "choose among those at least this many times as likely as the likeliest"},
    {"generate", "repetition_penalty", KEY_NUMBER, F(generate.repetition_penalty), "1", 0.01, 100, NULL,
     "above 1: tokens that are there already become less likely"},
    {"generate", "stop", KEY_LIST, F(generate.stop), NULL, 0, 0, NULL, "strings that end the text"},
    {"generate", "seed", KEY_INT, F(generate.seed), "42", 0, 9007199254740992.0, NULL, "of the choices"},
};

const struct keys run_keys = {run_key_list, ARRAY_SIZE(run_key_list)};

static const char *const task_names[] = {
    [RUN_PRETRAIN] = "pretrain", [RUN_SFT] = "sft", [RUN_DPO] = "dpo",           [RUN_ORPO] = "orpo",
    [RUN_SIMPO] = "simpo",       [RUN_KTO] = "kto", [RUN_GENERATE] = "generate", [RUN_COMMAND] = "command"};

/* `task` is an enum in the struct; while reading it is one more key beside the table. */
struct reading {
	struct run_config config; /* first: the table's offsets are into it */
	char *task;
};

const struct key run_task_key = {
    NULL,        "task", KEY_CHOICE, offsetof(struct reading, task),
    NULL,        0,      0,          "pretrain|sft|dpo|orpo|simpo|kto|generate|command",
    "what to do"};

const char *run_task_name(enum run_task task)
{
	return task_names[task];
}

bool run_task_prefers(enum run_task task)
{
	return task >= RUN_DPO && task <= RUN_KTO;
}

bool run_task_trains(enum run_task task)
{
	return task == RUN_PRETRAIN || task == RUN_SFT || run_task_prefers(task);
}

bool run_task_by_name(const char *name, enum run_task *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(task_names); i++)
		if (str_eq(task_names[i], name)) {
			*out = (enum run_task)i;
			return true;
		}
	return false;
}

void run_config_free(struct run_config *c)
{
	if (!c)
		return;
	keys_free(&run_keys, c);
	free(c);
}

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
		if (d + off <= n && n % (d + off) == 0)
			return d + off;
		if (d - off > 0 && d - off <= n && n % (d - off) == 0)
			return d - off;
	}
	return n;
}

static int check_parallel(const struct run_config *c, const char *where, struct error *err)
{
	int64_t ranks = c->resources.nodes * c->resources.devices_per_node, degree = c->parallel.shard_degree;

	if (degree > 0 && strcmp(c->parallel.strategy, "hybrid") != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.shard_degree: has no effect with parallel.strategy = \"%s\"; leave "
		    "it out, or use the strategy \"hybrid\"",
		    where, c->parallel.strategy);
	if (degree > 0 && ranks > 0 && ranks % degree)
		return error_set(
		    err, -EINVAL,
		    "%s: parallel.shard_degree: %lld ranks cannot be divided into groups of %lld; "
		    "expected a divisor of %lld, such as %lld",
		    where, (long long)ranks, (long long)degree, (long long)ranks,
		    (long long)nearest_divisor(ranks, degree));
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
	         (c->lora.alpha > 0 || c->lora.rslora || c->lora.target || c->lora.modules_to_save ||
	          c->lora.plus_ratio > 0 || c->lora.from || strcmp(c->lora.quantize, "none") != 0),
	     "lora.rank: 0, with which the other keys of lora have no effect; expected at least 1, such as "
	     "16"},
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
	    {(c->lora.rank > 0 || freezes) && strcmp(c->parallel.offload, "none") != 0,
	     "parallel.offload: is for training of all parameters; leave it out, as the optimizer's state of "
	     "an "
	     "adapter or of a few layers is small"},
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

/* Keys that have no effect with the task, or not with each other. */
static int check_preference(const struct run_config *c, const char *where, struct error *err)
{
	bool prefers = run_task_prefers(c->task), sigmoid = str_eq(c->preference.loss, "sigmoid");
	const struct {
		bool wrong;
		const char *key, *words;
	} checks[] = {
	    {c->task != RUN_DPO && !sigmoid, "preference.loss", "it is for task = \"dpo\""},
	    {!prefers && c->preference.beta != 0.1, "preference.beta", "it is for the tasks of preferences"},
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
	    {prefers && c->data.packing, "data.packing", "a row of preferences is a pair of answers"},
	    {prefers && c->data.train_on_prompt, "data.train_on_prompt",
	     "preferences compare answers to the same prompt"},
	    {prefers && c->data.mask_history, "data.mask_history", "the last answer alone counts anyway"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].wrong)
			return error_set(err, -EINVAL,
			                 "%s: %s: has no effect with task = \"%s\": %s; leave it out", where,
			                 checks[i].key, task_names[c->task], checks[i].words);
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
	if (!strcmp(c->train.master, "none") && !strcmp(c->train.precision, "fp16"))
		return error_set(
		    err, -EINVAL,
		    "%s: train.master: \"none\" rounds weights stochastically to bf16, and most "
		    "steps are below what fp16 can hold of a weight; train.master = \"fp32\", or "
		    "train.precision = \"bf16\", works",
		    where);
	if (!strcmp(c->train.master, "none") && !strcmp(c->train.precision, "fp32"))
		return error_set(err, -EINVAL,
		                 "%s: train.master: \"none\" is for bf16 weights; train.precision = \"bf16\" "
		                 "would be right",
		                 where);
	if (c->train.epochs <= 0 && c->train.max_steps == 0)
		return error_set(err, -EINVAL,
		                 "%s: train.epochs: 0 epochs and no train.max_steps: nothing to do", where);
	return check_preference(c, where, err) < 0 ? -EINVAL : check_parallel(c, where, err);
}

bool run_variable_is_reserved(const char *name)
{
	static const char *const names[] = {
	    "RANK",
	    "WORLD_SIZE",
	    "LOCAL_RANK",
	    "LOCAL_WORLD_SIZE",
	    "LOCAL_SIZE",
	    "GROUP_RANK",
	    "GROUP_WORLD_SIZE",
	    "CROSS_RANK",
	    "CROSS_SIZE",
	    "ROLE_RANK",
	    "ROLE_WORLD_SIZE",
	    "ROLE_NAME",
	    "MASTER_ADDR",
	    "MASTER_PORT",
	    "TORCHELASTIC_RUN_ID",
	    "TORCHELASTIC_RESTART_COUNT",
	    "TORCHELASTIC_MAX_RESTARTS",
	    "TORCHELASTIC_USE_AGENT_STORE",
	    "TORCHELASTIC_ERROR_FILE",
	};
	/* Of ours, these are for who runs it to set. */
	static const char *const free_names[] = {"DTRAIN_LIBRARY_PATH", "DTRAIN_CPU_ISA"};
	size_t n = strcspn(name, "=");

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strlen(names[i]) == n && strncmp(names[i], name, n) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(free_names); i++)
		if (strlen(free_names[i]) == n && strncmp(free_names[i], name, n) == 0)
			return false;
	return str_starts(name, "DTRAIN_");
}

static int check_variable(const char *entry, const char *where, struct error *err)
{
	size_t n = strcspn(entry, "=");

	if (n == 0 || !entry[n])
		return error_set(err, -EINVAL, "%s: \"%.100s\" is not of the form NAME=VALUE", where, entry);
	if (run_variable_is_reserved(entry))
		return error_set(err, -EINVAL, "%s: %.*s: dtrain sets it for each rank itself; leave it out",
		                 where, (int)MIN(n, 100), entry);
	if (!str_is_utf8(entry))
		return error_set(err, -EINVAL, "%s: %.*s: not valid UTF-8; convert it, or leave it out",
		                 where, (int)MIN(n, 100), entry);
	return 0;
}

int run_config_set_variable(struct run_config *c, const char *entry, bool keep, const char *where,
                            struct error *err)
{
	size_t n = strcspn(entry, "=") + 1, count = 0;
	char *copy, **list;
	int r = check_variable(entry, where, err);

	if (r < 0)
		return r;
	for (; c->environment && c->environment[count]; count++)
		if (strncmp(c->environment[count], entry, n) == 0) {
			if (keep)
				return 0;
			copy = strdup(entry);
			if (!copy)
				return error_oom(err);
			free(c->environment[count]);
			c->environment[count] = copy;
			return 0;
		}
	list = reallocarray(c->environment, count + 2, sizeof(*list));
	if (!list)
		return error_oom(err);
	c->environment = list;
	list[count] = strdup(entry);
	list[count + 1] = NULL;
	return list[count] ? 0 : error_oom(err);
}

/* Octal digits, no more than nine bits. */
static bool is_umask(const char *text)
{
	size_t n = strspn(text, "01234567");

	return n > 0 && n <= 4 && !text[n] && strtol(text, NULL, 8) <= 0777;
}

static int check_run(const struct run_config *c, const char *where, struct error *err)
{
	_cleanup_free_ char *environment = str_printf("%s: environment", where);

	if (!environment)
		return error_oom(err);
	for (char **e = c->environment; e && *e; e++)
		if (check_variable(*e, environment, err) < 0)
			return -EINVAL;
	if (c->umask && !is_umask(c->umask))
		return error_set(err, -EINVAL,
		                 "%s: umask: \"%.20s\" is not three octal digits such as \"027\"", where,
		                 c->umask);
	if (c->resources.max_restarts != 0)
		return error_set(
		    err, -EINVAL,
		    "%s: resources.max_restarts: %lld: a failed run is not started again: this is not "
		    "implemented yet, and 0 is all that can be given",
		    where, (long long)c->resources.max_restarts);
	if (c->task != RUN_COMMAND && c->command)
		return error_set(err, -EINVAL,
		                 "%s: command: has no effect with task = \"%s\"; leave out one of the two",
		                 where, task_names[c->task]);
	if (c->task != RUN_COMMAND && c->resources.one_per_node)
		return error_set(err, -EINVAL,
		                 "%s: resources.one_per_node: has no effect with task = \"%s\": it is for "
		                 "commands; leave it out",
		                 where, task_names[c->task]);
	switch (c->task) {
	case RUN_PRETRAIN:
	case RUN_SFT:
	case RUN_DPO:
	case RUN_ORPO:
	case RUN_SIMPO:
	case RUN_KTO:
		return check_training(c, where, err);
	case RUN_GENERATE:
		if (c->resources.nodes * c->resources.devices_per_node != 1)
			return error_set(err, -EINVAL, "%s: resources: generate runs on one device", where);
		if (need(c->model.path, where, "model.path",
		         "name the Hugging Face directory to generate from", err) < 0)
			return -EINVAL;
		return check_generate(c, where, err);
	case RUN_COMMAND:
		if (!c->command || !c->command[0] || !c->command[0][0])
			return error_set(err, -EINVAL, "%s: command: missing; name the program to run",
			                 where);
		return 0;
	}
	return 0;
}

static enum run_task task_from_name(const char *name)
{
	enum run_task t = RUN_PRETRAIN;

	while (strcmp(task_names[t], name) != 0)
		t++;
	return t;
}

/* What all sources share: table plus task, then what depends on the task, then the checks. */
static struct keys reading_keys(struct key *list)
{
	memcpy(list, run_key_list, sizeof(run_key_list));
	list[ARRAY_SIZE(run_key_list)] = run_task_key;
	return (struct keys){list, ARRAY_SIZE(run_key_list) + 1};
}

static int finish(struct reading *in, const struct keys *keys, const bool *seen, bool check,
                  const char *where, struct run_config **out, struct error *err)
{
	struct run_config *c;
	int r;

	if (!in->task && !in->config.command)
		return error_set(err, -EINVAL, "%s: task: missing; it has to be one of %s", where,
		                 run_task_key.choices);
	in->config.task = in->task ? task_from_name(in->task) : RUN_COMMAND;
	if (!keys_seen(keys, seen, "data.packing"))
		in->config.data.packing = in->config.task == RUN_PRETRAIN;
	r = check ? check_run(&in->config, where, err) : 0;
	if (r < 0)
		return r;
	c = malloc(sizeof(*c));
	if (!c)
		return error_oom(err);
	*c = in->config;
	in->config = (struct run_config){0};
	*out = c;
	return 0;
}

static void reading_free(struct reading *in)
{
	keys_free(&run_keys, &in->config);
	free(in->task);
}

static int read_all(const char *text, const json_t *json, const char *task, const char *where,
                    const char *const *overrides, struct run_config **out, struct error *err)
{
	_cleanup_(reading_free) struct reading in = {0};
	struct key list[ARRAY_SIZE(run_key_list) + 1];
	bool seen[ARRAY_SIZE(run_key_list) + 1] = {0};
	struct keys keys = reading_keys(list);
	int r;

	r = keys_set_defaults(&keys, &in, err);
	if (r == 0 && text)
		r = keys_read_text(&keys, &in, text, where, seen, err);
	if (r == 0 && json)
		r = keys_from_json(&keys, &in, json, where, seen, err);
	if (r == 0 && task) {
		in.task = strdup(task);
		r = in.task ? 0 : error_oom(err);
	}
	for (; r == 0 && overrides && *overrides; overrides++)
		r = keys_override(&keys, &in, *overrides, seen, err);
	return r < 0 ? r : finish(&in, &keys, seen, true, where, out, err);
}

int run_config_decode(const json_t *json, const char *where, bool lenient, struct run_config **out,
                      struct error *err)
{
	_cleanup_(reading_free) struct reading in = {0};
	struct key list[ARRAY_SIZE(run_key_list) + 1];
	bool seen[ARRAY_SIZE(run_key_list) + 1] = {0};
	struct keys keys = reading_keys(list);
	_cleanup_json_ json_t *known = lenient ? json_deep_copy(json) : json_incref((json_t *)json);
	int r = known ? keys_set_defaults(&keys, &in, err) : error_oom(err);

	if (lenient)
		keys_drop_unknown(&keys, known, NULL, 0);
	if (r < 0 || (r = keys_from_json(&keys, &in, known, where, seen, err)) < 0)
		return r;
	return finish(&in, &keys, seen, false, where, out, err);
}

bool run_config_unknown_key(const json_t *json, char *buf, size_t size)
{
	struct key list[ARRAY_SIZE(run_key_list) + 1];
	struct keys keys = reading_keys(list);
	_cleanup_json_ json_t *copy = json_deep_copy(json);

	return keys_drop_unknown(&keys, copy, buf, size) > 0;
}

int run_config_parse(const char *text, const char *where, const char *const *overrides,
                     struct run_config **out, struct error *err)
{
	return read_all(text, NULL, NULL, where, overrides, out, err);
}

/* "/a/b/alpaca.conf" -> "alpaca" */
static char *name_from_path(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');

	return dot && dot > base ? strndup(base, dot - base) : strdup(base);
}

int run_config_read(const char *path, const char *const *overrides, struct run_config **out,
                    struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	r = file_read_stream(path, 1 << 20, &text, &len, err);
	if (r < 0)
		return r;
	if (strlen(text) != len)
		return error_set(err, -EINVAL, "%s: not a text file: a NUL byte in it", path);
	r = run_config_parse(text, path, overrides, out, err);
	if (r == 0 && !(*out)->name) {
		(*out)->name = name_from_path(path);
		if (!(*out)->name) {
			run_config_free(*out);
			return error_oom(err);
		}
	}
	return r;
}

int run_config_new(enum run_task task, const char *const *overrides, struct run_config **out,
                   struct error *err)
{
	return read_all(NULL, NULL, task_names[task], "command line", overrides, out, err);
}

int run_config_to_json(const struct run_config *c, json_t **out, struct error *err)
{
	int r = keys_to_json(&run_keys, c, out, err);

	if (r < 0)
		return r;
	json_object_set_new(*out, "task", json_string(task_names[c->task]));
	return 0;
}

int run_config_from_json(const json_t *json, struct run_config **out, struct error *err)
{
	return read_all(NULL, json, NULL, "config", NULL, out, err);
}

char *run_config_tokenizer(const struct run_config *c)
{
	const char *init = c->model.init, *slash;
	struct stat st;

	if (c->model.tokenizer || c->model.path)
		return strdup(c->model.tokenizer ? c->model.tokenizer : c->model.path);
	if (stat(init, &st) == 0 && S_ISDIR(st.st_mode))
		return strdup(init);
	slash = strrchr(init, '/');
	return slash ? strndup(init, slash - init + (slash == init)) : strdup(".");
}
