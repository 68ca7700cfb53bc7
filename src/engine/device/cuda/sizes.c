/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the CUDA engine, from shapes alone. */
#include "engine/device/sizes.h"

#include "engine/device/cuda/parts.h"
#include "engine/device/delta.h"

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/*
 * A chunk of r rows adds 2·r·vocab·hidden operations and 8·vocab·hidden bytes to the gradient of the head.
 * With fewer than about 600 rows, an H200 waits for its memory: 256 rows with a vocabulary of 128256 take
 * 0.45 ms for 0.14 ms of operations. With that vocabulary, this size is 4096 rows.
 */
size_t cuda_logits_bytes(void)
{
	return (size_t)1 << 30;
}

static size_t delta_bytes(const struct device_shapes *s)
{
	const struct device_delta_shape *d = &s->delta;
	size_t need;

	if (!d->value_heads)
		return 0;
	need = delta_scratch(s->tokens, d->key_heads, d->value_heads, d->key_dim, d->value_dim, d->trained);
	return d->trained ? larger(need, conv_scratch(s->tokens, device_delta_channels(d), DEVICE_CONV_WIDTH))
	                  : need;
}

size_t cuda_scratch_bytes(const struct device_shapes *s)
{
	size_t qkv = (size_t)(s->heads + 2 * s->kv_heads) * (size_t)s->head_dim;
	size_t norm = larger((size_t)s->norm_cols, larger((size_t)s->hidden, (size_t)s->head_dim));
	size_t bias = larger(larger(2 * (size_t)s->intermediate, (size_t)s->projection),
	                     larger(qkv, (size_t)s->hidden));
	size_t bias_parts = (size_t)s->tokens / 64 + 1; /* reduce.cu gives each part at least 64 rows */
	size_t bias_row = (bias * sizeof(float) + 255) / 256 * 256;
	size_t need = larger(WORKSPACE + bias_row, COLUMN_PARTS * norm * sizeof(float));
	int64_t stretches = (s->cache_tokens + CACHED_CHUNK - 1) / CACHED_CHUNK;
	int64_t rows = s->cache_rows > CACHED_MANY - 1 ? s->cache_rows : CACHED_MANY - 1;

	if (bias_parts > COLUMN_PARTS)
		bias_parts = COLUMN_PARTS;
	need = larger(need, bias_parts * bias * sizeof(float));
	need = larger(need, (size_t)(s->quantized + 63) / 64 * sizeof(float));
	need = larger(need,
	              (2 * (size_t)s->tokens + 1) * sizeof(int32_t)); /* the order that embedding.cu sorts */
	need = larger(need, attention_cached_scratch(rows, s->heads, s->head_dim,
	                                             stretches < CACHED_SPLITS ? stretches : CACHED_SPLITS));
	need = larger(need, delta_bytes(s));
	return larger(need, attention_scratch(s->tokens, s->heads));
}

/* cuDNN is asked for bf16, and for the sizes that Hopper's kernels have, too (cudnn_attention.c). */
enum device_attention_kernels cuda_attention_kernels(enum dtype type, int head_dim, bool capped)
{
	if (!attention_in_tiles(type, head_dim))
		return DEVICE_ATTENTION_PLAIN;
	return type == DTYPE_BF16 && head_dim <= 128 && !capped ? DEVICE_ATTENTION_FAST
	                                                        : DEVICE_ATTENTION_PORTABLE;
}
