/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the CPU engine, from shapes alone. */
#include "engine/device/sizes.h"

#include "base/cleanup.h"
#include "engine/device/cpu/kernels.h"

/* 16 MiB is about the size of a last-level cache; larger chunks would have to come from memory. */
size_t cpu_logits_bytes(void)
{
	return (size_t)16 << 20;
}

/* The memory of a product in a type that the processor cannot multiply: its matrices in fp32, each padded to
 * whole vectors. The sum covers the forward product and both backward products, since it has the size of each
 * of the three. */
static size_t gemm_scratch(int64_t m, int64_t n, int64_t k, enum dtype type, bool native_bf16)
{
	if (type == DTYPE_F32 || (type == DTYPE_BF16 && native_bf16))
		return 0;
	return (round_up((size_t)(m * k), 16) + round_up((size_t)(k * n), 16) +
	        round_up((size_t)(m * n), 16)) *
	       sizeof(float);
}

/* Codes of fp8 are widened on every processor. A gradient's factors have padded rows. */
static size_t fp8_scratch(const struct device_shapes *s, int64_t wide)
{
	int64_t tokens = fp8_padded(s->tokens), q = (int64_t)s->heads * s->head_dim;
	size_t first = gemm_scratch(tokens, wide, s->hidden, DTYPE_BF16, false);
	size_t second = gemm_scratch(tokens, s->hidden, MAX(q, s->intermediate), DTYPE_BF16, false);

	return s->fp8 ? MAX(first, second) : 0;
}

static size_t delta_scratch_bytes(const struct device_shapes *s, int threads)
{
	const struct device_delta_shape *d = &s->delta;
	size_t forward, backward = 0;

	if (d->value_heads == 0)
		return 0;
	forward = (size_t)threads *
	          round_up(delta_thread_floats(d->key_dim, d->value_dim, false) * sizeof(float), CACHE_LINE);
	/* Sums of each document, of which there may be as many as tokens. */
	if (d->trained)
		backward = (size_t)threads * delta_backward_bytes(s->tokens, d->value_heads / d->key_heads,
		                                                  d->key_dim, d->value_dim) +
		           (size_t)s->tokens * (size_t)d->value_heads * 2 * sizeof(double);
	return MAX(MAX(forward, backward), conv_bytes(device_delta_channels(d), DEVICE_CONV_WIDTH));
}

size_t cpu_scratch_bytes(const struct device_shapes *s, int threads, bool native_bf16)
{
	const struct device_shapes attended = device_attended(s);
	int64_t longest = MIN(s->max_sequence, attended.tokens);
	int64_t qkv = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
	int64_t wide = 2 * (int64_t)s->intermediate > qkv ? 2 * (int64_t)s->intermediate : qkv;
	int head = MAX(MAX(s->head_dim, s->norm_cols), s->delta.value_dim);
	int cols = s->hidden > head ? s->hidden : head;
	size_t attention = attention_thread_bytes(longest, s->head_dim) * (size_t)threads;
	size_t cached = attention_cached_bytes(s->cache_tokens, s->head_dim) * (size_t)threads;
	size_t norm = COLUMN_PARTS * round_up((size_t)cols, 16) * sizeof(float);
	/* of a matrix, before they are quantized */
	size_t scales = (size_t)(s->quantized + 63) / 64 * sizeof(float);
	/* Experts compute a multiple of rows, all tokens' at most, and behind attention there is their
	 * router. */
	int64_t rows = s->experts > 0 ? (int64_t)round_up((size_t)s->tokens, (size_t)s->multiple) : s->tokens;
	size_t need, gemm;

	wide = MAX(wide, s->projection);
	/* Where the threads are more than the groups of heads of one document, these are divided. */
	if (s->heads != s->kv_heads && attended.kv_heads < 2 * threads)
		attention += 2 * (size_t)(s->heads * s->head_dim * s->tokens) * sizeof(float);
	need = attention > norm ? attention : norm;
	if (s->cache_tokens > 0 && cached > need)
		need = cached;
	need = scales > need ? scales : need;
	need = MAX(need, delta_scratch_bytes(s, threads));
	gemm = gemm_scratch(rows, MAX(wide, s->experts), s->hidden, s->type, native_bf16);
	need = gemm > need ? gemm : need;
	gemm = fp8_scratch(s, wide);
	need = gemm > need ? gemm : need;
	gemm = gemm_scratch(s->logits_rows, s->vocab, s->hidden, s->type, native_bf16);
	return gemm > need ? gemm : need;
}
