/* SPDX-License-Identifier: Apache-2.0 */
/* Converts numbers of files to types of the engine. The data may be unaligned, so every element is copied
 * with memcpy. */
#include <errno.h>
#include <string.h>

#include "engine/checkpoint/nf4_tensors.h"
#include "engine/checkpoint/safetensors.h"

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
		nf4_tensor_to_f32(t, first, n, out);
		return 0;
	default:
		return error_set(err, -EINVAL, "tensor %s: %s where F32, BF16 or F16 is needed", t->name,
		                 tensor_type_name(t->type));
	}
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
