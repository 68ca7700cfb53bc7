/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the parameters of a model in safetensors, and refuses values that cannot be trained. */
#include "engine/checkpoint/parameters.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/checkpoint/hf.h"

/* It has no branch in its loop, so that the compiler vectorizes it: it checks the whole model. */
static bool all_finite(const float *in, int64_t n)
{
	uint32_t found = 0;

	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &in[i], sizeof(bits));
		found |= (bits & 0x7f800000) == 0x7f800000;
	}
	return !found;
}

static int damaged(const char *tensor, const char *file, int64_t element, const char *what, struct error *err)
{
	return error_set(err, -EDOM,
	                 "%s: tensor %s: element %" PRId64
	                 " is %s: these weights are damaged, or of a training that diverged",
	                 file, tensor, element, what);
}

int parameters_check_finite(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                            struct error *err)
{
	if (all_finite(in, n))
		return 0;
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(in[i]))
			return damaged(tensor, file, first + i, isnan(in[i]) ? "NaN" : "infinite", err);
	return 0;
}

int parameters_check_moments(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                             int64_t *infinite, struct error *err)
{
	if (all_finite(in, n))
		return 0;
	for (int64_t i = 0; i < n; i++) {
		if (isnan(in[i]))
			return damaged(tensor, file, first + i, "NaN", err);
		if (isinf(in[i]) && *infinite < 0)
			*infinite = first + i;
	}
	return 0;
}

/* transformers has bitsandbytes quantize the matrices of Conv1D, which are stored [in, out], as those of
 * nn.Linear. */
static bool is_turned(const struct tensor *t, const struct model_parameter *p)
{
	return p->transposed && t && t->type == TENSOR_NF4;
}

static int fill(struct safetensors *safetensors, const char *name, const struct model_parameter *p,
                int64_t first, int64_t n, float *out, struct error *err)
{
	const struct tensor *t = hf_find_tied(safetensors, name, p->tied_embedding);
	int r;

	if (!t)
		return error_set(err, -EINVAL, "%s is missing", name);
	r = is_turned(t, p) ? tensor_turned_to_f32(t, first, n, out, err)
	                    : tensor_to_f32(t, first, n, out, err);
	if (r < 0)
		return r;
	/* Else a rank would need the memory of its model twice while it loads it. The elements of a matrix
	 * that lies turned are all over it. */
	if (!is_turned(t, p))
		safetensors_release(safetensors, t, first, n);
	return parameters_check_finite(t->name, safetensors_file(safetensors, t), first, out, n, err);
}

int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	return fill(safetensors, p->name, p, first, n, out, err);
}

int parameters_fill_saved(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n,
                          float *out, struct error *err)
{
	return fill(safetensors, p->saved, p, first, n, out, err);
}

static int check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                 bool adapter, bool starts, struct error *err)
{
	_cleanup_free_ struct hf_parameter *all = calloc((size_t)layout->parameters, sizeof(*all));
	size_t n = 0;

	if (!all)
		return error_oom(err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i];

		const char *name = adapter ? p->saved : p->name;
		bool turned;

		if (p->in_state || !(adapter ? !p->frozen : p->part == PART_WEIGHT))
			continue;
		turned = is_turned(hf_find_tied(st, name, p->tied_embedding), p);
		all[n++] = (struct hf_parameter){.name = name,
		                                 .dims = p->dims,
		                                 .shape = {p->shape[turned], p->shape[!turned], p->shape[2]},
		                                 .tied_embedding = p->tied_embedding,
		                                 .optional = starts && p->random_start};
	}
	return hf_check(st, where, all, n, err);
}

int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     struct error *err)
{
	return check(layout, st, where, false, false, err);
}

int parameters_check_start(const struct model_layout *layout, const struct safetensors *st, const char *where,
                           struct error *err)
{
	return check(layout, st, where, false, true, err);
}

int parameters_check_adapter(const struct model_layout *layout, const struct safetensors *st,
                             const char *where, struct error *err)
{
	return check(layout, st, where, true, false, err);
}
