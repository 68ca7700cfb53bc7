/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run as the user describes it: from a run file (libconfig), from --set key=value, from JSON between
 * services and for the worker. One table of keys (run.c) gives name, type, default, range and meaning of
 * each; the parser, the JSON form, the man page's check and --set all read that table.
 *
 * Ownership: a run_config owns all its strings; run_config_free releases them. Absent strings are NULL,
 * absent lists NULL (lists are NULL-terminated).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/keys.h"

enum run_task {
	RUN_PRETRAIN,
	RUN_SFT,
	RUN_DPO,
	RUN_ORPO,
	RUN_SIMPO,
	RUN_KTO,
	RUN_REWARD,
	RUN_GRPO,
	RUN_PPO,
	RUN_GENERATE,
	RUN_COMMAND
};

/* What the tasks that learn from rewards have in groups of their own, grpo and ppo. */
struct run_policy {
	char **reward;       /* argv of the program that gives the rewards; */
	char *reward_model;  /* Hugging Face directory, whose scores are added to these; NULL: none */
	char **columns;      /* of the data, whose values the program gets, too; NULL: none */
	int64_t generations; /* completions of each prompt */
	int64_t max_new_tokens;
	double temperature, top_p, min_p;
	int64_t top_k;
	double beta; /* weight of the divergence from the reference; 0: there is none */
	double epsilon;
	int64_t iterations;        /* steps on the same completions */
	int64_t mini_batches;      /* parts of a set of completions, each of which has a step of its own */
	bool mask_truncated;       /* completions that have not ended do not count */
	double truncation_penalty; /* by which the reward of such a one is lowered */
	int64_t sequences;         /* generated at once on a rank; 0: all of a set */
	char *reference;           /* Hugging Face directory; default: model.path */
	int64_t log_completions;   /* of each logged step, to completions.jsonl */

	/* Of grpo alone. */
	char *loss;          /* grpo dapo dr_grpo cispo */
	char *level;         /* token sequence: what a ratio is of */
	char *scale;         /* group batch none: by whose standard deviation advantages are divided */
	double epsilon_high; /* 0: epsilon, or of cispo 5 */

	/* Of ppo alone. */
	double gamma, lambda, value_weight;
	double value_epsilon;       /* 0: no bound */
	double value_learning_rate; /* 0: learning_rate */
};

struct run_config {
	char *name;
	enum run_task task;
	char **command;     /* RUN_COMMAND: argv */
	char *directory;    /* working directory, absolute; submit fills in its own */
	char **environment; /* "K=V" for the worker */
	char *umask;        /* octal digits; NULL: 022 */

	struct {
		char *path;      /* Hugging Face directory */
		char *init;      /* config.json to start from random weights instead */
		char *tokenizer; /* directory; default: path, or the directory of init */
		char *load;      /* all broadcast: which ranks read the weights */
		double init_std; /* 0: config.json's initializer_range */
	} model;

	struct {
		char **path; /* a string or a list in the file */
		char *dataset_dir;
		char **dataset;
		char *format;    /* auto text paragraphs files jsonl alpaca sharegpt openai trl */
		char *columns;   /* JSON text of the group data.columns */
		char *tags;      /* JSON text of the group data.tags */
		char *template_; /* key "template" */
		char *system;
		char *tool_prompt; /* file with what describes tools */
		int64_t max_length;
		bool packing, cross_documents, train_on_prompt, mask_history, efficient_eos;
		int64_t max_samples;
		double eval_fraction;
		char *cache_dir; /* default: output.dir/cache */
	} data;

	struct {
		double epochs;
		int64_t max_steps; /* 0: what epochs give */
		int64_t micro_batch, accumulation;
		double learning_rate, min_learning_rate; /* the schedule's floor, absolute */
		char *schedule;                          /* linear cosine constant wsd */
		double warmup_ratio;
		int64_t warmup_steps;           /* wins over warmup_ratio when above 0 */
		double decay_ratio;             /* wsd: last part of the steps that decays */
		double embedding_learning_rate; /* 0: learning_rate */
		char *scale_lr;                 /* none linear sqrt */
		char *optimizer; /* adamw sgd lion lamb lars adafactor muon adamw_8bit lion_8bit */
		double weight_decay, beta1, beta2, epsilon, momentum;
		bool nesterov;
		bool decay_all; /* decay norms and biases too */
		double clip;    /* 0: none */
		char *loss;
		double label_smoothing, neftune_alpha; /* 0: none */
		double router_loss;                    /* -1: as config.json says */
		char *precision;                       /* auto fp32 bf16 fp16 */
		double loss_scale;                     /* fp16's; 0: dynamic, by the next five */
		int64_t loss_scale_power, loss_scale_window, hysteresis;
		bool consecutive_hysteresis;
		double min_loss_scale;
		char *gradient_type; /* fp32 bf16 */
		char *master;        /* fp32 none: copy of the weights that the optimizer steps */
		char *recompute;     /* none selective full auto; true: full, false: none */
		char *attention;     /* auto own cudnn: whose kernels, on a GPU */
		bool shuffle;
		int64_t seed;
		int64_t eval_steps;              /* 0: at each save and at the end */
		int64_t freeze_trainable_layers; /* 0: all is trained; below 0: the first ones */
		char **freeze_trainable_modules, **freeze_extra_modules;
	} train;

	struct {
		int64_t rank; /* 0: no adapter */
		double alpha; /* 0: twice the rank */
		double dropout;
		bool rslora, dora;
		char *init; /* default pissa */
		int64_t pissa_iterations;
		char **target;
		char **modules_to_save;
		double plus_ratio; /* 0: 1 */
		char *quantize;    /* none nf4 nf4_double */
		char *from;        /* directory of the adapter that it goes on from */
	} lora;

	struct {
		char *loss;   /* dpo: sigmoid ipo hinge */
		double beta;  /* how far the model may go from the reference, or the weight of the odds */
		double gamma; /* simpo: margin */
		double label_smoothing;                      /* dpo's sigmoid, simpo */
		double desirable_weight, undesirable_weight; /* kto */
		double center_rewards_coefficient;           /* reward */
		char *reference; /* dpo, kto: Hugging Face directory; default: the weights at the start */
	} preference;

	struct {
		char *teacher; /* Hugging Face directory; NULL: the run has none */
		double weight; /* of the teacher's part of the loss */
		double temperature;
	} distillation;

	struct run_policy grpo, ppo; /* run_config_policy */

	struct {
		char *strategy; /* ddp zero1 zero2 zero3 hybrid auto */
		char *trial;    /* auto always never: with strategy auto, steps of those that are as fast */
		int64_t shard_degree; /* hybrid: ranks that share one copy of the model; 0: those of a node */
		int64_t sequence_degree; /* ranks that share their sequences; 1: each has its own */
		int64_t prefetch;        /* zero3, hybrid: units whose weights are gathered ahead */
		int64_t persist_below; /* zero3, hybrid: elements; the weights of smaller units stay whole */
		char *reduce_type;     /* fp32 bf16: of gradients on the wire */
		char *offload;         /* none optimizer all */
		char *offload_dir;     /* NULL: in memory */
		int64_t timeout;       /* seconds without progress of a collective */
	} parallel;

	struct {
		struct key_range nodes;   /* an attempt takes the most that are free of so many */
		int64_t spares;           /* nodes that are kept beside these, for one that fails */
		int64_t devices_per_node; /* 0: all that a node has */
		char *kind;               /* auto gpu cpu */
		bool one_per_node;        /* RUN_COMMAND: one rank a node, which has all these devices */
		int64_t threads;          /* CPU threads per rank, 0: the slot's */
		char **hosts;             /* only on these nodes; NULL: any */
		int64_t grow_after;   /* seconds until a run with fewer nodes goes on with more; 0: never */
		int64_t max_restarts; /* attempts after failures of the program, */
		int64_t max_node_failures; /* and after those of nodes and devices */
		int64_t max_busy_starts;   /* and after those that found a slot taken */
		/* auto stop keep: ranks on a node that the controller cannot be reached from */
		char *on_partition;
		int64_t grace;        /* seconds between TERM and KILL */
		bool core_files;      /* a rank that crashes may leave one */
		int64_t time_limit;   /* seconds that its attempts may run together; 0: no limit */
		char *save_signal;    /* RUN_COMMAND: none USR1 USR2 HUP INT QUIT: asks the program to save */
		int64_t save_seconds; /* that a run has for saving before its grace begins */
	} resources;

	struct {
		char *dir;
		int64_t save_steps; /* 0: only the final model */
		int64_t keep;       /* checkpoints kept; 0: all */
		int64_t log_steps;
		bool tensorboard;
		char *resume;   /* auto never must: from the newest checkpoint-N in dir */
		bool overwrite; /* a non-empty dir without checkpoints is an error otherwise */
		int64_t max_shard_mb;
		bool background, gather;
	} output;

	struct {
		char *prompt;  /* either this */
		char *prompts; /* or a file of them */
		int64_t batch; /* of the file, at once */
		char *adapter; /* directory of a PEFT adapter, merged into the weights */
		char **stop;   /* strings that end the text; NULL: none */
		bool chat;     /* wrap the prompt with the template as a user's turn */
		int64_t max_new_tokens;
		double temperature; /* 0: greedy */
		int64_t top_k;
		double top_p, min_p;
		double repetition_penalty;
		int64_t seed;
	} generate;
};

void run_config_free(struct run_config *c);
DEFINE_CLEANUP(struct run_config *, run_config_free)

/* Parses a run file, applies overrides ("train.learning_rate=1e-4", NULL-terminated or NULL), then defaults
 * and checks. Errors are "file:line: key: what; what would be right", with the nearest known key for an
 * unknown one. */
int run_config_read(const char *path, const char *const *overrides, struct run_config **out,
                    struct error *err);
/* The same from text (fuzzing, tests). */
int run_config_parse(const char *text, const char *where, const char *const *overrides,
                     struct run_config **out, struct error *err);
/* The JSON form has the same nesting and names as the file ("task":"sft", "train":{"epochs":2.0,…}). From
 * JSON all the same checks run again: a service believes no client. */
int run_config_to_json(const struct run_config *c, json_t **out, struct error *err);
int run_config_from_json(const json_t *json, struct run_config **out, struct error *err);
/* The same of a run that another service has checked when it was submitted: names, types and ranges are
 * checked, and whether a task is named. lenient: unknown keys, as a service of another version may know them,
 * are left out. `where` begins the message. */
int run_config_decode(const json_t *json, const char *where, bool lenient, struct run_config **out,
                      struct error *err);
/* The first key that is not known here, into buf; false: all are known. */
bool run_config_unknown_key(const json_t *json, char *buf, size_t size);
const char *run_task_name(enum run_task task);
bool run_task_prefers(enum run_task task); /* learns from preferences */
bool run_task_trains(enum run_task task);  /* trains a model with the native engine */
bool run_task_rewards(enum run_task task); /* learns from the rewards of completions */
/* The group of a task that does so; of another, that of grpo. Its keys begin with run_task_name. */
static inline const struct run_policy *run_config_policy(const struct run_config *c)
{
	return c->task == RUN_PPO ? &c->ppo : &c->grpo;
}
bool run_task_by_name(const char *name, enum run_task *out);

/* One "NAME=VALUE" into config->environment, in the place of another with that name (keep: unless there is
 * one). -EINVAL: no such form, not UTF-8, or a variable that dtrain sets itself; `where` begins the
 * message. */
int run_config_set_variable(struct run_config *c, const char *entry, bool keep, const char *where,
                            struct error *err);
/* A variable that dtrain sets for each rank: RANK, MASTER_ADDR, DTRAIN_NODE … The name ends at '=' or NUL. */
bool run_variable_is_reserved(const char *name);

/* The table of keys (without "task"), for the man page's check and for completion. */
struct keys;
extern const struct keys run_keys;
extern const struct key run_task_key; /* "task": beside the table, its field is an enum */

/* How a run is stopped. */
enum run_stop {
	RUN_STOP_NOW,    /* nothing can be saved any more: another part of it has failed */
	RUN_STOP_CANCEL, /* within its grace it may save */
	RUN_STOP_SAVE,   /* it goes on later, or has had its time: it has save_seconds for saving */
};

struct stop_times {
	double save;  /* seconds between save_signal and TERM; 0: TERM at once */
	double grace; /* seconds between TERM and KILL */
};

struct stop_times run_config_stop_times(const struct run_config *c, enum run_stop how);
/* The same in so many seconds at most. */
static inline struct stop_times stop_times_within(struct stop_times times, double seconds)
{
	if (times.save + times.grace <= seconds)
		return times;
	times.save = MIN(times.save, seconds / 2);
	times.grace = seconds - times.save;
	return times;
}
/* The number of save_signal; 0: none. */
int run_config_save_signal(const struct run_config *c);

/* Whether a node ends the ranks of the run by itself when it is cut off from the controller. */
bool run_config_stops_on_partition(const struct run_config *c);
/* Where the tokenizer is: model.tokenizer, else the model's directory, else that of model.init. Owned by the
 * caller; NULL: out of memory. */
char *run_config_tokenizer(const struct run_config *c);
