/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in files -> numbers in memory. The data may be unaligned, hence memcpy for every element. */
#include <errno.h>
#include <string.h>

#include "engine/checkpoint/safetensors.h"

static float f16_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, u;
	float f;

	if (e == 31) {
		u = sign | 0x7f800000 | m << 13;
	} else if (e) {
		u = sign | (e + 112) << 23 | m << 13;
	} else { /* subnormal: m · 2^-24 is exact in fp32 */
		f = m * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= sign;
	}
	memcpy(&f, &u, 4);
	return f;
}

/* Round to nearest even, overflow to infinity. */
static uint16_t f16_from_float(float f)
{
	uint32_t u, sign;
	float a;

	memcpy(&u, &f, 4);
	sign = u >> 16 & 0x8000;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return sign | 0x7e00;
	if (u >= 0x477ff000) /* rounds to 65536 or more */
		return sign | 0x7c00;
	if (u < 0x38800000) { /* below 2^-14: adding 0.5 leaves the subnormal in the low bits, rounded */
		memcpy(&a, &u, 4);
		a += 0.5f;
		memcpy(&u, &a, 4);
		return sign | (u - 0x3f000000);
	}
	u += 0xfff + (u >> 13 & 1);
	return sign | ((u >> 13) - (112 << 10));
}

int64_t tensor_elements(const struct tensor *t)
{
	return t->bytes / tensor_type_size(t->type);
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
