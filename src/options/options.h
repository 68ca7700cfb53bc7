/* SPDX-License-Identifier: Apache-2.0 */
/* From a run's config to the engine's options: for the worker, and for the client, which plans
 * without one. */
#pragma once

#include "config/run.h"
#include "engine/dataset/dataset.h"
#include "engine/train/options.h"

enum dataset_task options_dataset_task(enum run_task task); /* of one that trains */
/* Strings are borrowed from the config; cache_dir is where the tokenized rows are kept. */
void options_dataset(const struct run_config *c, const char *cache_dir, struct dataset_options *out);
/* parallel.strategy = "auto": options_train leaves the default. */
bool options_strategy_is_auto(const struct run_config *c);
bool options_recompute_is_auto(const struct run_config *c); /* the same of train.recompute */
int options_train(const struct run_config *c, struct train_options *out, struct error *err);
/* Of a run with distillation.teacher, grpo.reward_model or ppo.reward_model: reads the config.json of that
 * model into *other, which *out then borrows. 0 where it has none. */
int options_other_model(const struct run_config *c, struct model_config *other, struct train_options *out,
                        struct error *err);
/* hf_choose_head for the model of the run, which is the config.json `where`; a multimodal one has to have
 * files. */
int options_choose_head(const struct run_config *c, struct model_config *model, const char *where,
                        struct error *err);
/* The key of that model and its directory; NULL: the run has none. */
const char *options_other_key(const struct run_config *c);
const char *options_other_path(const struct run_config *c);
/* -EINVAL where a row is longer than it can read. */
int options_other_length(const struct run_config *c, const struct model_config *other, struct error *err);
/* Most tokens of a row, with a completion where the task makes some, however many positions the model has. */
int64_t options_row_tokens(const struct run_config *c);
/* Tokens of the longest row that the run may have; completions end where the model's positions do. */
int64_t options_longest_row(const struct run_config *c, const struct model_config *model);
enum device_attention_choice options_attention(const struct run_config *c);
/* Owned by the caller; NULL: out of memory. */
char *options_tokenizer(const struct run_config *c); /* directory or file to load the tokenizer from */
char *options_config(const struct run_config *c);    /* path of config.json */
