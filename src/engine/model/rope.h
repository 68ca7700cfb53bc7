/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of rotary position embedding (Su et al. 2021), and their scaling to longer contexts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

enum rope_type {
	ROPE_DEFAULT,
	ROPE_LINEAR,   /* all frequencies divided by factor */
	ROPE_LLAMA3,   /* low frequencies divided, a smooth ramp between */
	ROPE_YARN,     /* the same with another ramp, and longer vectors (Peng et al. 2023) */
	ROPE_LONGROPE, /* each divided by a factor of its own, another list beyond the original context */
	ROPE_DYNAMIC   /* a larger theta beyond the original context (NTK-aware, by the longest document) */
};

#define ROPE_FACTORS_MAX 128 /* pairs of a head that longrope's lists may have */

/* Plain data, owns nothing. */
struct model_rope {
	enum rope_type type;
	double theta, factor, low_freq_factor, high_freq_factor;
	int64_t original_positions;
	double length;               /* of the rotated vectors: cos and sin are multiplied by it */
	double beta_fast, beta_slow; /* yarn: rotations within the original context where its ramp is */
	bool exact_ramp;             /* yarn: the ends of the ramp are not rounded to whole pairs */
	float short_factor[ROPE_FACTORS_MAX], long_factor[ROPE_FACTORS_MAX];
};

/* What a family expects of its config. */
struct rope_defaults {
	double theta;
	int64_t max_positions;
	int64_t original_positions; /* of a key beside the rope parameters, 0: none */
	bool yarn_is_longrope;      /* in old configs of phi3 */
	bool multimodal; /* "mrope" is the default: of text alone, the three positions are the same */
};

/* Reads rope_parameters (transformers 5), rope_scaling with rope_theta beside it, or one of the objects in
 * them; NULL: none. `place` names it in errors. partial: in and out, its partial_rotary_factor. */
int rope_read(const json_t *parameters, const char *place, const struct rope_defaults *defaults,
              struct model_rope *out, double *partial, struct error *err);
/* longrope has a factor for each of so many pairs. */
int rope_check_factors(const json_t *parameters, const char *place, int pairs, struct model_rope *rope,
                       struct error *err);
/* Fills inv_freq[dim / 2], in the float arithmetic of transformers, so that angles agree to the last bit.
 * longest: of the documents, in tokens. */
void rope_frequencies(const struct model_rope *rope, int dim, int64_t longest, float *inv_freq);
