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
/* Of a run with distillation.teacher: reads the teacher's config.json into *teacher, which *out then borrows.
 * 0 where it has none. */
int options_teacher(const struct run_config *c, struct model_config *teacher, struct train_options *out,
                    struct error *err);
/* -EINVAL where a row of data.max_length is longer than a teacher can read. */
int options_teacher_length(const struct run_config *c, const struct model_config *teacher, struct error *err);
enum device_attention_choice options_attention(const struct run_config *c);
/* Owned by the caller; NULL: out of memory. */
char *options_tokenizer(const struct run_config *c); /* directory or file to load the tokenizer from */
char *options_config(const struct run_config *c);    /* path of config.json */
