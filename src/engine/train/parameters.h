/* SPDX-License-Identifier: Apache-2.0 */
/* Weights from safetensors: the fill (layout.h) that trainer_load and generator_create take. */
#pragma once

#include "engine/checkpoint/safetensors.h"
#include "engine/model/layout.h"

/* Every parameter is there with the right shape, else one line naming the first that is not; what the file
 * has beyond is named through warn (which may be NULL) unless it is known to be harmless (lm_head.weight of a
 * tied model, rotary inv_freq). */
int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     void (*warn)(void *context, const char *message), void *warn_context, struct error *err);
/* context: the struct safetensors. */
int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
