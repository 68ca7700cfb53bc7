/* SPDX-License-Identifier: Apache-2.0 */
/* The adapter that a run goes on from. */
#pragma once

#include "engine/checkpoint/peft.h"
#include "engine/model/layout.h"

/* Opens the adapter in `directory`, which has to be what the run's keys describe: of the rank, the scale and
 * the variant that `tuning` says, with the tensors that the layout has. */
int adapter_open(const char *directory, const struct model_tuning *tuning, const struct model_layout *layout,
                 struct peft_adapter **out, struct error *err);
