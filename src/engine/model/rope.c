/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parameters of rotary position embedding, and computes its frequencies as transformers does. */
#include "engine/model/rope.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/str.h"
#include "engine/model/config_values.h"

static int read_type(const json_t *rope, const char *place, const struct rope_defaults *defaults,
                     enum rope_type *out, struct error *err)
{
	static const struct {
		const char *name;
		enum rope_type type;
	} types[] = {{"default", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},     {"llama3", ROPE_LLAMA3},
	             {"yarn", ROPE_YARN},       {"longrope", ROPE_LONGROPE}, {"su", ROPE_LONGROPE},
	             {"dynamic", ROPE_DYNAMIC}};
	const char *key, *type;
	json_t *v;
	int r;

	json_object_foreach((json_t *)rope, key, v)
	{
		if (json_is_object(v))
			return error_set(
			    err, -EINVAL,
			    "%s: %.40s: other parameters for each kind of layer are not supported", place,
			    key);
	}
	r = config_word(rope, json_object_get(rope, "rope_type") ? "rope_type" : "type", place, "default",
	                &type, err);
	if (r < 0)
		return r;
	if (defaults->multimodal && str_eq(type, "mrope")) {
		*out = ROPE_DEFAULT;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		if (str_eq(type, types[i].name)) {
			*out = types[i].type;
			if (*out == ROPE_YARN && defaults->yarn_is_longrope)
				*out = ROPE_LONGROPE;
			return 0;
		}
	}
	return error_set(err, -EINVAL,
	                 "%s: rope type \"%.40s\" is not supported (default, linear, dynamic, llama3, yarn "
	                 "and longrope are)",
	                 place, type);
}

static int read_llama3(const json_t *rope, const char *place, struct model_rope *out, struct error *err)
{
	int r;

	if ((r = config_need_number(rope, "low_freq_factor", place, 1e-3, 1e6, NAN, &out->low_freq_factor,
	                            err)) < 0 ||
	    (r = config_need_number(rope, "high_freq_factor", place, 1e-3, 1e6, NAN, &out->high_freq_factor,
	                            err)) < 0)
		return r;
	if (out->high_freq_factor <= out->low_freq_factor)
		return error_set(err, -EINVAL, "%s: high_freq_factor has to exceed low_freq_factor", place);
	return 0;
}

/* 0.1 · m · log(scale) + 1, of the paper. */
static double yarn_length(double scale, double m)
{
	return scale <= 1 ? 1 : 0.1 * m * log(scale) + 1;
}

static int read_yarn(const json_t *rope, const char *place, struct model_rope *out, struct error *err)
{
	double m, m_all;
	bool truncate;
	int r;

	if ((r = config_number(rope, "beta_fast", place, 1e-3, 1e6, 32, &out->beta_fast, err)) < 0 ||
	    (r = config_number(rope, "beta_slow", place, 1e-3, 1e6, 1, &out->beta_slow, err)) < 0 ||
	    (r = config_bool(rope, "truncate", place, true, &truncate, err)) < 0 ||
	    (r = config_number(rope, "mscale", place, 0, 1e6, 0, &m, err)) < 0 ||
	    (r = config_number(rope, "mscale_all_dim", place, 0, 1e6, 0, &m_all, err)) < 0)
		return r;
	out->exact_ramp = !truncate;
	out->length = m > 0 && m_all > 0 ? yarn_length(out->factor, m) / yarn_length(out->factor, m_all)
	                                 : yarn_length(out->factor, 1);
	return config_number(rope, "attention_factor", place, 1e-3, 1e3, out->length, &out->length, err);
}

static int read_longrope(const json_t *rope, const char *place, struct model_rope *out, struct error *err)
{
	out->length =
	    out->factor <= 1 ? 1 : sqrt(1 + log(out->factor) / log((double)MAX(out->original_positions, 2)));
	return config_number(rope, "attention_factor", place, 1e-3, 1e3, out->length, &out->length, err);
}

int rope_read(const json_t *rope, const char *place, const struct rope_defaults *defaults,
              struct model_rope *out, double *partial, struct error *err)
{
	double factor;
	int r;

	*out = (struct model_rope){.theta = defaults->theta, .factor = 1, .length = 1};
	if (!rope)
		return 0;
	if (!json_is_object(rope))
		return error_set(err, -EINVAL, "%s: an object is needed", place);
	if ((r = read_type(rope, place, defaults, &out->type, err)) < 0 ||
	    (r = config_need_number(rope, "rope_theta", place, 1, 1e15, out->theta, &out->theta, err)) < 0 ||
	    (r = config_number(rope, "partial_rotary_factor", place, 0, 1, *partial, partial, err)) < 0)
		return r;
	if (out->type == ROPE_DEFAULT)
		return 0;
	/* transformers takes the whole context of the model for the original one. */
	if (out->type == ROPE_DYNAMIC)
		out->original_positions = defaults->max_positions;
	else if (out->type != ROPE_LINEAR && defaults->original_positions)
		out->original_positions = defaults->original_positions;
	else if (out->type != ROPE_LINEAR &&
	         (r = config_int(rope, "original_max_position_embeddings", place, 1, INT32_MAX,
	                         defaults->max_positions, &out->original_positions, err)) < 0)
		return r;
	/* yarn and longrope may leave it to the two lengths of context. */
	factor = (double)defaults->max_positions / (double)MAX(out->original_positions, 1);
	if ((out->type == ROPE_YARN || out->type == ROPE_LONGROPE) && !config_member(rope, "factor"))
		out->factor = factor;
	else if ((r = config_need_number(rope, "factor", place, out->type == ROPE_LONGROPE ? 0 : 1, 1e6, NAN,
	                                 &out->factor, err)) < 0)
		return r;
	return out->type == ROPE_LLAMA3     ? read_llama3(rope, place, out, err)
	       : out->type == ROPE_YARN     ? read_yarn(rope, place, out, err)
	       : out->type == ROPE_LONGROPE ? read_longrope(rope, place, out, err)
	                                    : 0;
}

static int read_factors(const json_t *rope, const char *key, const char *place, int pairs, float *out,
                        struct error *err)
{
	const json_t *list = json_object_get(rope, key);

	if (!json_is_array(list) || json_array_size(list) != (size_t)pairs || pairs > ROPE_FACTORS_MAX)
		return error_set(err, -EINVAL, "%s: %s: a list of %d numbers is needed", place, key,
		                 MIN(pairs, ROPE_FACTORS_MAX));
	for (int i = 0; i < pairs; i++) {
		const json_t *v = json_array_get(list, (size_t)i);

		if (!json_is_number(v) || !(json_number_value(v) >= 1e-3 && json_number_value(v) <= 1e6))
			return error_set(err, -EINVAL, "%s: %s: %d: a number from %g to %g is needed", place,
			                 key, i, 1e-3, 1e6);
		out[i] = (float)json_number_value(v);
	}
	return 0;
}

int rope_check_factors(const json_t *rope, const char *place, int pairs, struct model_rope *out,
                       struct error *err)
{
	int r;

	if (out->type != ROPE_LONGROPE)
		return 0;
	r = read_factors(rope, "short_factor", place, pairs, out->short_factor, err);
	return r < 0 ? r : read_factors(rope, "long_factor", place, pairs, out->long_factor, err);
}

static float llama3_frequency(const struct model_rope *rope, float f)
{
	float factor = (float)rope->factor, low = (float)rope->low_freq_factor;
	float high = (float)rope->high_freq_factor, original = (float)rope->original_positions;
	float wavelength = (float)(2 * M_PI) / f;

	if (wavelength > original / low) {
		f /= factor;
	} else if (wavelength >= original / high) {
		float smooth = (original / wavelength - low) / (high - low);

		f = (1 - smooth) * f / factor + smooth * f;
	}
	return f;
}

/* The pair that turns so often within the original context. */
static double yarn_pair(const struct model_rope *rope, int dim, double rotations)
{
	return dim * log((double)rope->original_positions / (rotations * 2 * M_PI)) / (2 * log(rope->theta));
}

static float yarn_frequency(const struct model_rope *rope, int dim, int pair, float power)
{
	double low = yarn_pair(rope, dim, rope->beta_fast), high = yarn_pair(rope, dim, rope->beta_slow);
	float ramp, keep;

	low = MAX(rope->exact_ramp ? low : floor(low), 0);
	high = MIN(rope->exact_ramp ? high : ceil(high), dim - 1);
	if (low == high)
		high += 0.001;
	ramp = ((float)pair - (float)low) / (float)(high - low);
	ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
	keep = 1 - ramp;
	return 1.0f / ((float)rope->factor * power) * (1 - keep) + 1.0f / power * keep;
}

/* theta for documents of up to `longest` tokens. */
static double dynamic_theta(const struct model_rope *rope, int dim, int64_t longest)
{
	double times = (double)MAX(longest, rope->original_positions) / (double)rope->original_positions;

	return rope->theta * pow(rope->factor * times - (rope->factor - 1), (double)dim / (dim - 2));
}

void rope_frequencies(const struct model_rope *rope, int dim, int64_t longest, float *inv_freq)
{
	double theta =
	    rope->type == ROPE_DYNAMIC && dim > 2 ? dynamic_theta(rope, dim, longest) : rope->theta;
	const float *each = longest > rope->original_positions ? rope->long_factor : rope->short_factor;

	for (int i = 0; i < dim / 2; i++) {
		float power = powf((float)theta, (float)(2 * i) / (float)dim), f = 1.0f / power;

		switch (rope->type) {
		case ROPE_DEFAULT:
		case ROPE_DYNAMIC:
			break;
		case ROPE_LINEAR:
			f /= (float)rope->factor;
			break;
		case ROPE_LLAMA3:
			f = llama3_frequency(rope, f);
			break;
		case ROPE_YARN:
			f = yarn_frequency(rope, dim, i, power);
			break;
		case ROPE_LONGROPE:
			f = 1.0f / (each[i] * power);
			break;
		}
		inv_freq[i] = f;
	}
}
