/* SPDX-License-Identifier: Apache-2.0 */
/* From a run's config, and the worker's place in it, to the options of saving. */
#pragma once

#include "config/run.h"
#include "engine/checkpoint/saver.h"
#include "worker/environment.h"

/* All but what is called (notify). config and tokenizer: as options_config and options_tokenizer make them,
 * borrowed. */
void options_saver(const struct run_config *c, const struct environment *env, const char *config,
                   const char *tokenizer, struct saver_options *out);
