/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/train/parameters.h"

#include <errno.h>

#include "engine/checkpoint/hf.h"

int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	const struct tensor *t = hf_find(safetensors, p->name);

	if (!t)
		return error_set(err, -EINVAL, "%s is missing", p->name);
	return tensor_to_f32(t, first, n, out, err);
}

int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     struct error *err)
{
	_cleanup_free_ struct hf_parameter *all = calloc((size_t)layout->parameters, sizeof(*all));

	if (!all)
		return error_oom(err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i];

		all[i] = (struct hf_parameter){
		    .name = p->name, .dims = p->dims, .shape = {p->shape[0], p->shape[1]}};
	}
	return hf_check(st, where, all, (size_t)layout->parameters, err);
}
