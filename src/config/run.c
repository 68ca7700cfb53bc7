/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a run file as a table, and the ways to fill struct run_config by it. */
#include "config/run.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "config/keys.h"
#include "config/run_checks.h"
#include "config/run_names.h"

#define F(field) offsetof(struct run_config, field)

/* A key that both tasks have which learn from rewards. */
#define GRPO_AND_PPO(name, type, fallback, min, max, help)                                                   \
	{"grpo", #name, type, F(grpo.name), fallback, min, max, NULL, help},                                 \
	{                                                                                                    \
		"ppo", #name, type, F(ppo.name), fallback, min, max, NULL, help                              \
	}

static const struct key run_key_list[] = {
    {NULL, "name", KEY_STRING, F(name), NULL, 0, 0, NULL, "name shown in listings; default: the file's name"},
    {NULL, "command", KEY_TEXTS, F(command), NULL, 0, 0, NULL,
     "program and arguments, run once per device with torchrun's environment"},
    {NULL, "directory", KEY_STRING, F(directory), NULL, 0, 0, NULL,
     "working directory; default: where dtrain submit was called"},
    {NULL, "environment", KEY_TEXTS, F(environment), NULL, 0, 0, NULL,
     "more environment for the workers: a group or a list of \"K=V\""},
    {NULL, "umask", KEY_STRING, F(umask), NULL, 0, 0, NULL,
     "rights that new files are not to give, in octal: \"027\"; default: the submitter's for a command, "
     "else 022"},

    {"model", "path", KEY_STRING, F(model.path), NULL, 0, 0, NULL,
     "Hugging Face directory to start from; weights in 4 bits (nf4) of bitsandbytes are read, too"},
    {"model", "init", KEY_STRING, F(model.init), NULL, 0, 0, NULL,
     "config.json (or its directory) to start from random weights"},
    {"model", "tokenizer", KEY_STRING, F(model.tokenizer), NULL, 0, 0, NULL,
     "directory with tokenizer.json; default: the adapter's, or else the model's"},
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
     "number of steps, in place of epochs; 0: what epochs give"},
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
    {"train", "loss", KEY_CHOICE, F(train.loss), "cross_entropy", 0, 0, "cross_entropy|dft",
     "of pretraining and fine-tuning; dft: each token's loss times its own probability"},
    {"train", "label_smoothing", KEY_NUMBER, F(train.label_smoothing), "0", 0, 0.99, NULL,
     "of the loss cross_entropy: weight of the mean over all tokens of the vocabulary"},
    {"train", "neftune_alpha", KEY_NUMBER, F(train.neftune_alpha), "0", 0, 10000, NULL,
     "noise on the embeddings of training passes (NEFTune), such as 5; 0: none"},
    {"train", "router_loss", KEY_NUMBER, F(train.router_loss), "-1", -1, 1000, NULL,
     "factor of the loss that balances the loads of experts, such as 0.001; 0: none; -1: as config.json "
     "says"},
    {"train", "precision", KEY_CHOICE, F(train.precision), "auto", 0, 0, "auto|fp32|bf16|fp16|fp8",
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
    {"train", "gradient_type", KEY_CHOICE, F(train.gradient_type), "fp32", 0, 0, "fp32|bf16",
     "of the blocks' gradients; bf16: 2 bytes a parameter less, with bf16 weights and one micro-step a step"},
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
    {"lora", "dropout", KEY_NUMBER, F(lora.dropout), "0", 0, 0.99, NULL,
     "probability with which an element of an adapter's input is left out of a training pass"},
    {"lora", "dora", KEY_BOOL, F(lora.dora), "false", 0, 0, NULL,
     "DoRA: train the lengths of the matrices' rows, too"},
    {"lora", "init", KEY_CHOICE, F(lora.init), "default", 0, 0, "default|pissa",
     "what the adapters begin with; pissa: the largest singular values of their matrices"},
    {"lora", "pissa_iterations", KEY_INT, F(lora.pissa_iterations), "16", 0, 1000, NULL,
     "of the subspace by which these are found; 0: exactly, which takes much longer"},
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
    {"preference", "center_rewards_coefficient", KEY_NUMBER, F(preference.center_rewards_coefficient), "0", 0,
     1000, NULL, "of reward: weight of the square of the sum of both rewards, which keeps their mean near 0"},
    {"preference", "reference", KEY_STRING, F(preference.reference), NULL, 0, 0, NULL,
     "of dpo and kto: Hugging Face directory of the reference model; default: the weights at the start"},

    {"distillation", "teacher", KEY_STRING, F(distillation.teacher), NULL, 0, 0, NULL,
     "Hugging Face directory of a model with the same tokenizer, from whose probabilities the run learns, "
     "too"},
    {"distillation", "weight", KEY_NUMBER, F(distillation.weight), "0.5", 0, 1, NULL,
     "of the teacher's part of the loss; the rest is cross-entropy's"},
    {"distillation", "temperature", KEY_NUMBER, F(distillation.temperature), "1.5", 0.01, 1000, NULL,
     "by which the logits of both are divided, in the teacher's part of the loss"},

    GRPO_AND_PPO(reward, KEY_TEXTS, NULL, 0, 0,
                 "program and arguments: gives each completion its reward; dtrain-run(5) says how"),
    GRPO_AND_PPO(columns, KEY_LIST, NULL, 0, 0,
                 "columns of the data whose values the program that gives rewards gets, too"),
    GRPO_AND_PPO(reward_model, KEY_STRING, NULL, 0, 0,
                 "Hugging Face directory of a reward model with the same tokenizer, whose scores are "
                 "rewards, too"),
    {"grpo", "generations", KEY_INT, F(grpo.generations), "8", 2, 4096, NULL,
     "completions of each prompt, which are compared with each other"},
    {"ppo", "generations", KEY_INT, F(ppo.generations), "1", 1, 4096, NULL, "completions of each prompt"},
    GRPO_AND_PPO(max_new_tokens, KEY_INT, "256", 1, 1 << 20, "of a completion at most"),
    GRPO_AND_PPO(temperature, KEY_NUMBER, "1", 0.01, 100,
                 "of the choice of tokens, and of their probabilities in the loss"),
    GRPO_AND_PPO(top_k, KEY_INT, "0", 0, 1e9, "choose among the k likeliest tokens; 0: all"),
    GRPO_AND_PPO(top_p, KEY_NUMBER, "1", 0, 1,
                 "choose among the likeliest tokens that hold this much of the probability"),
    GRPO_AND_PPO(min_p, KEY_NUMBER, "0", 0, 1,
                 "choose among the tokens that are at least so many times as likely as the likeliest"),
    {"grpo", "loss", KEY_CHOICE, F(grpo.loss), "dapo", 0, 0, "grpo|dapo|dr_grpo|cispo",
     "how the losses of tokens are put together"},
    {"grpo", "level", KEY_CHOICE, F(grpo.level), "token", 0, 0, "token|sequence",
     "of what the ratio of probabilities is; sequence: of the whole completion (GSPO)"},
    {"grpo", "scale", KEY_CHOICE, F(grpo.scale), "group", 0, 0, "group|batch|none",
     "whose standard deviation of rewards advantages are divided by"},
    {"grpo", "beta", KEY_NUMBER, F(grpo.beta), "0", 0, 1000, NULL,
     "weight of the divergence from the reference model; 0: there is none, and no memory for it"},
    {"ppo", "beta", KEY_NUMBER, F(ppo.beta), "0.05", 0, 1000, NULL,
     "what the reward of a token loses for each unit of divergence from the reference model; 0: there is "
     "none, and no memory for it"},
    GRPO_AND_PPO(epsilon, KEY_NUMBER, "0.2", 1e-6, 1, "a ratio of probabilities counts from 1 - epsilon"),
    {"grpo", "epsilon_high", KEY_NUMBER, F(grpo.epsilon_high), "0", 0, 1000, NULL,
     "and up to 1 + epsilon_high; 0: epsilon; of cispo the highest ratio, 0: 5"},
    {"grpo", "iterations", KEY_INT, F(grpo.iterations), "1", 1, 1000, NULL, "steps on the same completions"},
    {"ppo", "iterations", KEY_INT, F(ppo.iterations), "4", 1, 1000, NULL, "steps on the same completions"},
    GRPO_AND_PPO(mini_batches, KEY_INT, "1", 1, 1024,
                 "completions are generated for so many steps at once, each of which learns from a part"),
    GRPO_AND_PPO(mask_truncated, KEY_BOOL, "false", 0, 0,
                 "completions that are cut off by max_new_tokens do not count in the loss"),
    GRPO_AND_PPO(truncation_penalty, KEY_NUMBER, "0", 0, 1e6,
                 "by which the reward of a completion is lowered that is cut off"),
    GRPO_AND_PPO(sequences, KEY_INT, "0", 0, 4096,
                 "completions that a rank generates at once; 0: all of a set"),
    GRPO_AND_PPO(reference, KEY_STRING, NULL, 0, 0,
                 "with beta: Hugging Face directory of the reference model; default: model.path"),
    GRPO_AND_PPO(log_completions, KEY_INT, "0", 0, 1e6,
                 "of each step in the log, so many completions go to completions.jsonl in output.dir"),
    {"ppo", "gamma", KEY_NUMBER, F(ppo.gamma), "1", 0, 1, NULL, "discount factor of rewards"},
    {"ppo", "lambda", KEY_NUMBER, F(ppo.lambda), "0.95", 0, 1, NULL,
     "factor of the generalized advantage estimate"},
    {"ppo", "value_weight", KEY_NUMBER, F(ppo.value_weight), "0.1", 0, 1000, NULL,
     "weight of the value head's part of the loss"},
    {"ppo", "value_epsilon", KEY_NUMBER, F(ppo.value_epsilon), "0.2", 0, 1e6, NULL,
     "bound of how far a value may move and still count in the loss; 0: none"},
    {"ppo", "value_learning_rate", KEY_NUMBER, F(ppo.value_learning_rate), "0", 0, 100, NULL,
     "highest learning rate of the value head; 0: train.learning_rate"},

    {"parallel", "strategy", KEY_CHOICE, F(parallel.strategy), "auto", 0, 0,
     "ddp|zero1|zero2|zero3|hybrid|auto",
     "what of the model each rank holds; auto: the fastest that fits into memory"},
    {"parallel", "trial", KEY_CHOICE, F(parallel.trial), "auto", 0, 0, "auto|always|never",
     "with strategy auto: first run steps of each strategy that is predicted to be about as fast; auto: "
     "where that takes at most a hundredth of the run"},
    {"parallel", "shard_degree", KEY_INT, F(parallel.shard_degree), "0", 0, 1e6, NULL,
     "hybrid: ranks that share one copy of the model; 0: those of a node"},
    {"parallel", "sequence_degree", KEY_INT, F(parallel.sequence_degree), "1", 1, 1e6, NULL,
     "ranks that share their sequences: each has a part of the tokens, and in attention of the heads"},
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

    {"resources", "nodes", KEY_RANGE, F(resources.nodes), "1", 1, 100000, NULL,
     "machines; 2..4: each attempt takes as many of so many as are free"},
    {"resources", "spares", KEY_INT, F(resources.spares), "0", 0, 100000, NULL,
     "further nodes that are kept idle for the run, and take the place of nodes that fail; they need "
     "max_node_failures"},
    {"resources", "devices_per_node", KEY_COUNT, F(resources.devices_per_node), "1", 1, 1024, NULL,
     "slots on each: GPUs, or CPU slots; \"all\": every one that a node has"},
    {"resources", "kind", KEY_CHOICE, F(resources.kind), "auto", 0, 0, "auto|gpu|cpu",
     "of the slots; auto: GPUs where the cluster has nodes with enough of them, else CPU slots"},
    {"resources", "one_per_node", KEY_BOOL, F(resources.one_per_node), "false", 0, 0, NULL,
     "a command is started once a node, and has all devices of the run there"},
    {"resources", "threads", KEY_INT, F(resources.threads), "0", 0, 4096, NULL,
     "CPU threads per rank; 0: the slot's"},
    {"resources", "hosts", KEY_LIST, F(resources.hosts), NULL, 0, 0, NULL, "only on these nodes"},
    {"resources", "grow_after", KEY_DURATION, F(resources.grow_after), "300", 0, 1e9, NULL,
     "nodes = 2..4: an attempt with fewer lasts so long, and nodes for more are free for so long, before the "
     "run goes on with more; 0: never"},
    {"resources", "max_restarts", KEY_INT, F(resources.max_restarts), "0", 0, 1e6, NULL,
     "how often the run is started again after its program has failed"},
    {"resources", "max_node_failures", KEY_INT, F(resources.max_node_failures), "0", 0, 1e6, NULL,
     "how often the run is started again after a node or a device of it has failed"},
    {"resources", "max_busy_starts", KEY_INT, F(resources.max_busy_starts), "100", 0, 1e6, NULL,
     "how often the run is started again after a node has refused its part, since a slot was taken there"},
    {"resources", "on_partition", KEY_CHOICE, F(resources.on_partition), "auto", 0, 0, "auto|stop|keep",
     "what a node does with the ranks when it is cut off from the controller; auto: stop where "
     "max_node_failures is above 0, else keep"},
    {"resources", "grace", KEY_INT, F(resources.grace), "30", 0, 86400, NULL,
     "seconds between TERM and KILL when a run is stopped"},
    {"resources", "core_files", KEY_BOOL, F(resources.core_files), "false", 0, 0, NULL,
     "a rank that crashes may leave a core file"},
    {"resources", "time_limit", KEY_DURATION, F(resources.time_limit), "0", 0, 1e9, NULL,
     "so long the run may run, all its attempts together; 0: no limit"},
    {"resources", "save_signal", KEY_CHOICE, F(resources.save_signal), "none", 0, 0,
     "none|USR1|USR2|HUP|INT|QUIT", "asks a command to save, before TERM"},
    {"resources", "save_seconds", KEY_DURATION, F(resources.save_seconds), "60", 0, 86400, NULL,
     "so long a run has for saving before its grace begins, where it is to go on later or has had its time"},

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
    {"generate", "batch", KEY_INT, F(generate.batch), "8", 1, 4096, NULL,
     "prompts of a file that are continued at once"},
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
    {"generate", "stop", KEY_TEXTS, F(generate.stop), NULL, 0, 0, NULL, "strings that end the text"},
    {"generate", "seed", KEY_INT, F(generate.seed), "42", 0, 9007199254740992.0, NULL, "of the choices"},
};

const struct keys run_keys = {run_key_list, ARRAY_SIZE(run_key_list), run_other_names};

/* `task` is an enum in the struct; while reading it is one more key beside the table. */
struct reading {
	struct run_config config; /* first: the table's offsets are into it */
	char *task;
};

const struct key run_task_key = {
    NULL,        "task", KEY_CHOICE, offsetof(struct reading, task),
    NULL,        0,      0,          "pretrain|sft|dpo|orpo|simpo|kto|reward|grpo|ppo|generate|command",
    "what to do"};

void run_config_free(struct run_config *c)
{
	if (!c)
		return;
	keys_free(&run_keys, c);
	free(c);
}

/* What all sources share: table plus task, then what depends on the task, then the checks. */
static struct keys reading_keys(struct key *list)
{
	memcpy(list, run_key_list, sizeof(run_key_list));
	list[ARRAY_SIZE(run_key_list)] = run_task_key;
	return (struct keys){list, ARRAY_SIZE(run_key_list) + 1, run_other_names};
}

static int finish(struct reading *in, const struct keys *keys, const bool *seen, bool check,
                  const char *where, struct run_config **out, struct error *err)
{
	struct run_config *c;
	int r;

	if (!in->task && !in->config.command)
		return error_set(err, -EINVAL, "%s: task: missing; it has to be one of %s", where,
		                 run_task_key.choices);
	in->config.task = RUN_COMMAND;
	if (in->task)
		run_task_by_name(in->task, &in->config.task);
	if (!keys_seen(keys, seen, "data.packing"))
		in->config.data.packing = in->config.task == RUN_PRETRAIN;
	r = check ? run_check(&in->config, where, err) : 0;
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

/* Defaults, then the text or the JSON, then overrides, then checks. */
static int read_all(const char *text, const json_t *json, const char *where, const char *const *overrides,
                    struct run_config **out, struct error *err)
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
	for (; r == 0 && overrides && *overrides; overrides++)
		r = keys_override(&keys, &in, *overrides, seen, err);
	if (r < 0 || (r = finish(&in, &keys, seen, true, where, out, err)) < 0 || !text)
		return r;
	r = run_check_unused(*out, &keys, seen, where, err);
	if (r < 0)
		run_config_free(steal_pointer(*out));
	return r;
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
	return read_all(text, NULL, where, overrides, out, err);
}

/* "/a/b/alpaca.conf" -> "alpaca" */
static char *name_from_path(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');

	return dot && dot > base ? strndup(base, dot - base) : strdup(base);
}

/* A program that was given in place of a run file. A run file may have a first line of this form, too: one
 * that names dtrain. */
static bool is_program(const char *path, const char *text)
{
	size_t n = strcspn(text, "\n");

	return str_ends(path, ".py") || str_ends(path, ".sh") ||
	       (str_starts(text, "#!") && !memmem(text, n, "dtrain", strlen("dtrain")));
}

static int refuse_program(const char *path, struct error *err)
{
	const char *with = str_ends(path, ".py") ? "python3 " : str_ends(path, ".sh") ? "sh " : "";

	return error_set(err, -EINVAL,
	                 "%s is a program, not a run file; a command goes after --: dtrain submit -- %s%s%s",
	                 path, with, *with || strchr(path, '/') ? "" : "./", path);
}

/* A file of another program, in a format that is not that of a run file. */
static bool is_foreign(const char *path, const char *text, const char **format)
{
	/* Settings of a run file end so. */
	if (strstr(text, ";\n"))
		return false;
	*format = str_ends(path, ".yaml") || str_ends(path, ".yml") ? "YAML"
	          : str_ends(path, ".json")                         ? "JSON"
	                                                            : NULL;
	return *format;
}

static int refuse_foreign(const char *path, const char *format, struct error *err)
{
	return error_set(
	    err, -EINVAL,
	    "%s is a file in %s; a run file is written name = \"value\"; section = { key = 1; }; "
	    "and dtrain-run(5) lists the keys that correspond to those of other programs (NAMES OF OTHER "
	    "PROGRAMS)",
	    path, format);
}

int run_config_read(const char *path, const char *const *overrides, struct run_config **out,
                    struct error *err)
{
	_cleanup_free_ char *text = NULL;
	const char *format;
	size_t len;
	int r;

	r = file_read_stream(path, 1 << 20, &text, &len, err);
	if (r < 0)
		return r;
	if (strlen(text) != len)
		return error_set(err, -EINVAL, "%s: not a text file: a NUL byte in it", path);
	if ((r = run_config_parse(text, path, overrides, out, err)) < 0)
		return is_program(path, text)            ? refuse_program(path, err)
		       : is_foreign(path, text, &format) ? refuse_foreign(path, format, err)
		                                         : r;
	if (!(*out)->name) {
		(*out)->name = name_from_path(path);
		if (!(*out)->name) {
			run_config_free(*out);
			return error_oom(err);
		}
	}
	return r;
}

/* What a command has no use for: two thirds of all keys, which would be written and read again for each of
 * its parts. */
static bool is_for_training(const struct key *key)
{
	static const char *const sections[] = {"data",         "train", "lora", "preference",
	                                       "distillation", "grpo",  "ppo",  "generate"};

	for (size_t i = 0; key->section && i < ARRAY_SIZE(sections); i++)
		if (str_eq(key->section, sections[i]))
			return true;
	return false;
}

static struct keys command_keys(struct key *list)
{
	struct keys keys = {list, 0, NULL};

	for (size_t i = 0; i < ARRAY_SIZE(run_key_list); i++)
		if (!is_for_training(&run_key_list[i]))
			list[keys.count++] = run_key_list[i];
	return keys;
}

int run_config_to_json(const struct run_config *c, json_t **out, struct error *err)
{
	struct key list[ARRAY_SIZE(run_key_list)];
	struct keys keys = c->task == RUN_COMMAND ? command_keys(list) : run_keys;
	int r = keys_to_json(&keys, c, out, err);

	if (r < 0)
		return r;
	json_object_set_new(*out, "task", json_string(run_task_name(c->task)));
	return 0;
}

int run_config_from_json(const json_t *json, struct run_config **out, struct error *err)
{
	return read_all(NULL, json, "config", NULL, out, err);
}

int run_config_save_signal(const struct run_config *c)
{
	static const struct {
		const char *name;
		int number;
	} signals[] = {
	    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"INT", SIGINT}, {"QUIT", SIGQUIT}};

	for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
		if (str_eq(c->resources.save_signal, signals[i].name))
			return signals[i].number;
	return 0;
}

struct stop_times run_config_stop_times(const struct run_config *c, enum run_stop how)
{
	double grace = (double)c->resources.grace, save = (double)c->resources.save_seconds;
	bool asks = run_config_save_signal(c) != 0;

	/* A native run saves when it gets TERM. */
	if (how == RUN_STOP_SAVE)
		return asks                       ? (struct stop_times){save, grace}
		       : run_task_trains(c->task) ? (struct stop_times){0, save + grace}
		                                  : (struct stop_times){0, grace};
	if (how == RUN_STOP_CANCEL && asks)
		return stop_times_within((struct stop_times){save, grace}, grace);
	return (struct stop_times){0, grace};
}

bool run_config_stops_on_partition(const struct run_config *c)
{
	const char *what = c->resources.on_partition;

	return str_eq(what, "stop") || (!str_eq(what, "keep") && c->resources.max_node_failures > 0);
}

char *run_config_tokenizer(const struct run_config *c)
{
	const char *init = c->model.init, *slash;
	struct stat st;

	/* An adapter is saved with the tokenizer that it was trained with, chat template included. */
	if (c->task == RUN_GENERATE && !c->model.tokenizer && c->generate.adapter &&
	    file_exists_in(c->generate.adapter, "tokenizer.json"))
		return strdup(c->generate.adapter);
	if (c->model.tokenizer || c->model.path)
		return strdup(c->model.tokenizer ? c->model.tokenizer : c->model.path);
	if (stat(init, &st) == 0 && S_ISDIR(st.st_mode))
		return strdup(init);
	slash = strrchr(init, '/');
	return slash ? strndup(init, slash - init + (slash == init)) : strdup(".");
}
