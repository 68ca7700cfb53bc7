/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the size functions of an engine by its name, for programs that are linked without a device. */
#include "engine/device/sizes.h"

#include "base/cleanup.h"

size_t device_sizing_logits(enum device_engine engine)
{
	return engine == DEVICE_ENGINE_CUDA ? cuda_logits_bytes() : cpu_logits_bytes();
}

size_t device_sizing_scratch(const struct device_sizing *s, const struct device_shapes *shapes)
{
	size_t queries = (size_t)shapes->tokens * (size_t)shapes->heads, need;

	if (s->engine == DEVICE_ENGINE_CPU)
		return cpu_scratch_bytes(shapes, s->threads, s->native_bf16);
	need = cuda_scratch_bytes(shapes);
	if (!s->cudnn || shapes->capped || shapes->type == DTYPE_F32)
		return need;
	return MAX(need, queries * ((size_t)shapes->head_dim + 2) * sizeof(float));
}

size_t device_sizing_packing(const struct device_sizing *s, const struct device_shapes *shapes,
                             bool accumulates)
{
	return s->engine == DEVICE_ENGINE_CPU
	           ? cpu_packing_bytes(shapes, accumulates, s->threads, s->native_bf16)
	           : 0;
}
