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
	if (!s->cudnn || device_sizing_attention(s, shapes->type, shapes->head_dim, shapes->capped) !=
	                     DEVICE_ATTENTION_FAST)
		return need;
	return MAX(need, queries * ((size_t)shapes->head_dim + 2) * sizeof(float));
}

enum device_attention_kernels device_sizing_attention(const struct device_sizing *s, enum dtype type,
                                                      int head_dim, bool capped)
{
	return s->engine == DEVICE_ENGINE_CPU ? DEVICE_ATTENTION_FAST
	                                      : cuda_attention_kernels(type, head_dim, capped);
}

size_t device_sizing_packing(const struct device_sizing *s, const struct device_shapes *shapes,
                             bool accumulates)
{
	return s->engine == DEVICE_ENGINE_CPU
	           ? cpu_packing_bytes(shapes, accumulates, s->threads, s->native_bf16)
	           : 0;
}
