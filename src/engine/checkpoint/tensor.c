/* SPDX-License-Identifier: Apache-2.0 */
/* Converts numbers of files to types of the engine. The data may be unaligned, so every element is copied
 * with memcpy. */
#pragma GCC optimize("fp-contract=off")
#include <errno.h>
#include <string.h>

#include "engine/checkpoint/nf4_tensors.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/device/nf4.h"

static const struct {
	const char *name;
	size_t size;
} types[] = {
    [TENSOR_F64] = {"F64", 8},   [TENSOR_F32] = {"F32", 4}, [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2}, [TENSOR_I64] = {"I64", 8}, [TENSOR_I32] = {"I32", 4},
    [TENSOR_I16] = {"I16", 2},   [TENSOR_I8] = {"I8", 1},   [TENSOR_U8] = {"U8", 1},
    [TENSOR_BOOL] = {"BOOL", 1}, [TENSOR_NF4] = {"NF4", 0},
};

size_t tensor_type_size(enum tensor_type type)
{
	return types[type].size;
}

const char *tensor_type_name(enum tensor_type type)
{
	return types[type].name;
}

int64_t tensor_elements(const struct tensor *t)
{
	int64_t n = 1;

	if (t->type != TENSOR_NF4)
		return t->bytes / tensor_type_size(t->type);
	for (int d = 0; d < t->dims; d++)
		n *= t->shape[d];
	return n;
}

enum tensor_type tensor_type_of(enum dtype type)
{
	return type == DTYPE_F32 ? TENSOR_F32 : type == DTYPE_BF16 ? TENSOR_BF16 : TENSOR_F16;
}

static float float_at(const void *data, int64_t i)
{
	float f;

	memcpy(&f, (const char *)data + i * (int64_t)sizeof(f), sizeof(f));
	return f;
}

/* The same numbers as device_nf4_dequantize gives. */
static float scale_at(const struct tensor_nf4 *q, const struct nf4_tables *tables, int64_t block)
{
	return q->absmax ? float_at(q->absmax, block)
	                 : tables->map[q->absmax8[block]] * float_at(q->nested_absmax, block / NF4_SCALES) +
	                       q->offset;
}

static float code_at(const struct tensor *t, const struct nf4_tables *tables, int64_t at)
{
	return tables->code[((const uint8_t *)t->data)[at / 2] >> (at % 2 ? 0 : 4) & 15];
}

static void nf4_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out)
{
	struct nf4_tables tables;

	nf4_tables_fill(&tables);
	for (int64_t at = first; at < first + n;) {
		int64_t b = at / NF4_BLOCK, end = MIN((b + 1) * NF4_BLOCK, first + n);
		float scale = scale_at(t->nf4, &tables, b);

		for (; at < end; at++)
			*out++ = code_at(t, &tables, at) * scale;
	}
}

int tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out, struct error *err)
{
	const char *p;

	if (first < 0 || n < 0 || first > tensor_elements(t) || n > tensor_elements(t) - first)
		return error_set(err, -EINVAL, "tensor %s: elements beyond its end", t->name);
	p = (const char *)t->data + first * tensor_type_size(t->type);
	switch (t->type) {
	case TENSOR_F32:
		memcpy(out, p, n * 4);
		return 0;
	case TENSOR_BF16:
	case TENSOR_F16:
		for (int64_t i = 0; i < n; i++) {
			uint16_t h;

			memcpy(&h, p + 2 * i, 2);
			out[i] = t->type == TENSOR_BF16 ? bf16_to_float(h) : f16_to_float(h);
		}
		return 0;
	case TENSOR_F64:
		for (int64_t i = 0; i < n; i++) {
			double d;

			memcpy(&d, p + 8 * i, 8);
			out[i] = d;
		}
		return 0;
	case TENSOR_NF4:
		nf4_to_f32(t, first, n, out);
		return 0;
	default:
		return error_set(err, -EINVAL, "tensor %s: %s where F32, BF16 or F16 is needed", t->name,
		                 tensor_type_name(t->type));
	}
}

int tensor_turned_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out, struct error *err)
{
	struct nf4_tables tables;

	if (t->type != TENSOR_NF4 || t->dims != 2)
		return error_set(err, -EINVAL, "tensor %s: not a matrix in NF4", t->name);
	if (first < 0 || n < 0 || first > tensor_elements(t) || n > tensor_elements(t) - first)
		return error_set(err, -EINVAL, "tensor %s: elements beyond its end", t->name);
	nf4_tables_fill(&tables);
	for (int64_t i = first; i < first + n; i++) {
		int64_t at = i % t->shape[0] * t->shape[1] + i / t->shape[0];

		*out++ = code_at(t, &tables, at) * scale_at(t->nf4, &tables, at / NF4_BLOCK);
	}
	return 0;
}

int tensor_convert(const struct tensor *t, int64_t first, int64_t n, enum dtype type, void *out,
                   struct error *err)
{
	size_t size = dtype_size(type);
	char *o = out;

	if (first < 0 || n < 0 || first > tensor_elements(t) || n > tensor_elements(t) - first)
		return error_set(err, -EINVAL, "tensor %s: elements beyond its end", t->name);
	if (t->type == tensor_type_of(type)) {
		memcpy(out, (const char *)t->data + first * size, n * size);
		return 0;
	}
	if (type == DTYPE_F32)
		return tensor_to_f32(t, first, n, out, err);
	while (n > 0) {
		float piece[1024];
		int64_t k = MIN(n, (int64_t)ARRAY_SIZE(piece));
		int r = tensor_to_f32(t, first, k, piece, err);

		if (r < 0)
			return r;
		for (int64_t i = 0; i < k; i++) {
			uint16_t h =
			    type == DTYPE_BF16 ? bf16_from_float(piece[i]) : f16_from_float(piece[i]);

			memcpy(o + 2 * i, &h, 2);
		}
		first += k;
		n -= k;
		o += 2 * k;
	}
	return 0;
}
