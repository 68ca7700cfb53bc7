/* SPDX-License-Identifier: Apache-2.0 */
/* The output directory of a training run, looked at before the run exists. */
#pragma once

#include "base/error.h"
#include "config/run.h"

/* Whether the worker of a first attempt would accept output.dir as it is on this machine; an error in its
 * words. Nothing is wrong with one that does not exist. *checkpoint: the one that the run would go on from,
 * owned by the caller; NULL: it begins anew. */
int output_dir_check(const struct run_config *config, char **checkpoint, struct error *err);
