/* SPDX-License-Identifier: Apache-2.0 */
/* Weights from safetensors: the fill (layout.h) that trainer_load and generator_create take. */
#pragma once

#include "engine/checkpoint/safetensors.h"
#include "engine/model/layout.h"

/* Every parameter is there with its shape, and nothing that matters besides (hf_check). */
int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     struct error *err);
/* context: the struct safetensors, checked. */
int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
