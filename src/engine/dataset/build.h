/* SPDX-License-Identifier: Apache-2.0 */
/* Reads all sources, tokenizes in parallel, truncates, packs, and writes the rows of both splits. */
#pragma once

#include "engine/chat/template.h"
#include "engine/dataset/cache.h"
#include "engine/dataset/dataset.h"
#include "engine/dataset/source.h"

/* Completes formats and columns in `sources`. template may be NULL for pretraining. held_out may be NULL
 * where nothing is. */
int dataset_build(const struct dataset_options *options, struct source_list *sources,
                  const struct tokenizer *tok, const struct template *template, struct cache_writer *train,
                  struct cache_writer *held_out, struct error *err);
