/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters between safetensors and whoever holds them in memory: the fill (layout.h) that trainer_load and
 * generator_create take, and what the saver reads and writes of a trainer. */
#pragma once

#include "engine/checkpoint/safetensors.h"
#include "engine/model/layout.h"

/* What is kept of a parameter. */
enum parameter_state {
	STATE_WEIGHTS, /* the master weights, where there are any */
	STATE_MOMENT1,
	STATE_MOMENT2
};

/* Access to the state of all parameters, which the trainer holds (trainer_access): pieces of it in fp32, on
 * the host. Elements are [first, first + n) of p. */
struct parameter_access {
	const struct model_layout *layout;
	void *context;
	int (*read)(void *context, enum parameter_state which, const struct model_parameter *p, int64_t first,
	            int64_t n, float *out, struct error *err);
	int (*write)(void *context, enum parameter_state which, const struct model_parameter *p,
	             int64_t first, int64_t n, const float *in, struct error *err);
	/* All weights from fill, and whatever is computed from them. */
	int (*load)(void *context, model_fill_fn fill, void *fill_context, struct error *err);
};

/* Every parameter is there with its shape, and nothing that matters besides (hf_check). */
int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     struct error *err);
/* A value that is neither NaN nor infinite can be trained; else -EDOM naming tensor, file and element. `in`
 * are elements [first, first + n) of it. */
int parameters_check_finite(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                            struct error *err);
/* The same of an optimizer's moments, where a squared gradient may have overflowed in a run that went on: NaN
 * is -EDOM; *infinite, set by the caller to -1, is the first element that is infinite. */
int parameters_check_moments(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                             int64_t *infinite, struct error *err);
/* context: the struct safetensors, checked. Values have to be finite. */
int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
