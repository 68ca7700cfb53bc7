/* SPDX-License-Identifier: Apache-2.0 */
/* From a run's config to the engine's options. */
#pragma once

#include "config/run.h"
#include "engine/checkpoint/saver.h"
#include "engine/dataset/dataset.h"
#include "engine/train/trainer.h"
#include "worker/environment.h"

/* Strings are borrowed from the config; cache_dir is where the tokenized rows are kept. */
void options_dataset(const struct run_config *c, const char *cache_dir, struct dataset_options *out);
int options_train(const struct run_config *c, struct train_options *out, struct error *err);
enum device_attention_choice options_attention(const struct run_config *c);
/* All but what is called (notify). config and tokenizer: as options_config and options_tokenizer make them,
 * borrowed. */
void options_saver(const struct run_config *c, const struct environment *env, const char *config,
                   const char *tokenizer, struct saver_options *out);
/* Owned by the caller; NULL: out of memory. */
char *options_tokenizer(const struct run_config *c); /* directory or file to load the tokenizer from */
char *options_config(const struct run_config *c);    /* path of config.json */
