/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of fp32 with GCC's vector extensions, as wide as the instruction set that the file is compiled for,
 * so that each kernel is written once. bf16 and fp16 are widened when they are loaded, and rounded to nearest
 * even when they are stored.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/device/dtype.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define VW 16
#elif defined(__AVX2__)
#define VW 8
#else
#define VW 4
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f

#define VINLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef uint16_t vh __attribute__((vector_size(VW * 2)));
typedef float vf_u __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef uint16_t vh_u __attribute__((vector_size(VW * 2), aligned(2), may_alias));

VINLINE vf v_set(float x)
{
	return (vf){} + x;
}

VINLINE vf v_select(vi mask, vf yes, vf no)
{
	return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

VINLINE vf v_max(vf a, vf b)
{
#if VW == 16
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VW == 8
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return v_select(a > b, a, b);
#endif
}

VINLINE vf v_sqrt(vf a)
{
#if VW == 16
	return (vf)_mm512_sqrt_ps((__m512)a);
#elif VW == 8
	return (vf)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
	return (vf)_mm_sqrt_ps((__m128)a);
#else
	for (int i = 0; i < VW; i++)
		a[i] = sqrtf(a[i]);
	return a;
#endif
}

VINLINE vi v_lanes(void)
{
	vi v;

	for (int i = 0; i < VW; i++)
		v[i] = i;
	return v;
}

/* The sum of the lanes. The upper half is added to the lower one until a single lane is left, so the order is
 * fixed. */
VINLINE float v_hsum(vf v)
{
#if VW == 16
	return _mm512_reduce_add_ps((__m512)v);
#else
	float x[VW];

	memcpy(x, &v, sizeof(x));
#pragma GCC unroll 4
	for (int half = VW / 2; half; half /= 2)
#pragma GCC unroll 4
		for (int i = 0; i < half; i++)
			x[i] += x[i + half];
	return x[0];
#endif
}

VINLINE float v_hmax(vf v)
{
#if VW == 16
	return _mm512_reduce_max_ps((__m512)v);
#else
	float x = v[0];

	for (int i = 1; i < VW; i++)
		x = v[i] > x ? v[i] : x;
	return x;
#endif
}

/* Calls a function with TYPE, a constant, in the place of `type`, so that it is compiled once for each
 * type. */
#define WITH_TYPE(type, call)                                                                                \
	do {                                                                                                 \
		if ((type) == DTYPE_F32) {                                                                   \
			const enum dtype TYPE = DTYPE_F32;                                                   \
			call;                                                                                \
		} else if ((type) == DTYPE_BF16) {                                                           \
			const enum dtype TYPE = DTYPE_BF16;                                                  \
			call;                                                                                \
		} else {                                                                                     \
			const enum dtype TYPE = DTYPE_F16;                                                   \
			call;                                                                                \
		}                                                                                            \
	} while (0)

/* fp16, which F16C and AVX-512 convert; their flushing of subnormal fp32 does not reach subnormal fp16. */
VINLINE vf vh_widen_f16(vh h)
{
#if VW == 16
	return (vf)_mm512_cvtph_ps((__m256i)h);
#elif VW == 8 && defined(__F16C__)
	return (vf)_mm256_cvtph_ps((__m128i)h);
#else
	vu u = __builtin_convertvector(h, vu), bits = (u & 0x7fff) << 13, e = u & 0x7c00;
	vf v = v_select((vi)(e == 0x7c00), (vf)(bits | 0x7f800000), (vf)(bits + (112 << 23)));

	v = v_select((vi)(e == 0), __builtin_convertvector((vi)(u & 0x3ff), vf) * 0x1p-24f, v);
	return (vf)((vu)v | (u & 0x8000) << 16);
#endif
}

VINLINE vh v_narrow_f16(vf f)
{
#if VW == 16
	return (vh)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VW == 8 && defined(__F16C__)
	return (vh)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
#else
	/* As f16_from_float, in every lane. */
	vu u = (vu)f & 0x7fffffff, sign = (vu)f >> 16 & 0x8000;
	vu r = ((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10);
	vu subnormal = (vu)((vf)u + 0.5f) - 0x3f000000;

	r = (vu)v_select((vi)(u < 0x38800000), (vf)subnormal, (vf)r);
	r = (vu)v_select((vi)(u >= 0x477ff000), (vf)((vu){} + 0x7c00), (vf)r);
	r = (vu)v_select((vi)(u > 0x7f800000), (vf)((vu){} + 0x7e00), (vf)r);
	return __builtin_convertvector(r | sign, vh);
#endif
}

/* The 16-bit `type` widened, and rounded to. */
VINLINE vf vh_widen(vh h, enum dtype type)
{
	if (type == DTYPE_F16)
		return vh_widen_f16(h);
	return (vf)(__builtin_convertvector(h, vu) << 16);
}

VINLINE vh v_narrow(vf f, enum dtype type)
{
	if (type == DTYPE_F16)
		return v_narrow_f16(f);
#if defined(__AVX512BF16__) && VW == 16
	return (vh)_mm512_cvtneps_pbh((__m512)f);
#else
	vu u = (vu)f, r = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
	vu is_nan = (vu)((vi)(u & 0x7fffffff) > (vi)((vu){} + 0x7f800000));

	return __builtin_convertvector((r & ~is_nan) | (nan & is_nan), vh);
#endif
}

/* Load VW elements of p, which has `type`, from element i on; v_load_n loads only n (<= VW) elements and sets
 * the other lanes to zero. */
VINLINE vf v_load(const void *p, int64_t i, enum dtype type)
{
	if (type == DTYPE_F32)
		return *(const vf_u *)((const float *)p + i);
	return vh_widen(*(const vh_u *)((const uint16_t *)p + i), type);
}

VINLINE void v_store(void *p, int64_t i, enum dtype type, vf v)
{
	if (type == DTYPE_F32)
		*(vf_u *)((float *)p + i) = v;
	else
		*(vh_u *)((uint16_t *)p + i) = v_narrow(v, type);
}

VINLINE vf v_load_n(const void *p, int64_t i, enum dtype type, int64_t n)
{
#if VW == 16
	__mmask16 mask = (__mmask16)((1u << n) - 1);

	if (type == DTYPE_F32)
		return (vf)_mm512_maskz_loadu_ps(mask, (const float *)p + i);
	return vh_widen((vh)_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i), type);
#else
	if (type == DTYPE_F32) {
		vf v = {};

		memcpy(&v, (const float *)p + i, (size_t)n * 4);
		return v;
	}
	vh h = {};

	memcpy(&h, (const uint16_t *)p + i, (size_t)n * 2);
	return vh_widen(h, type);
#endif
}

VINLINE void v_store_n(void *p, int64_t i, enum dtype type, vf v, int64_t n)
{
#if VW == 16
	__mmask16 mask = (__mmask16)((1u << n) - 1);

	if (type == DTYPE_F32)
		_mm512_mask_storeu_ps((float *)p + i, mask, (__m512)v);
	else
		_mm256_mask_storeu_epi16((uint16_t *)p + i, mask, (__m256i)v_narrow(v, type));
#else
	if (type == DTYPE_F32) {
		memcpy((float *)p + i, &v, (size_t)n * 4);
	} else {
		vh h = v_narrow(v, type);

		memcpy((uint16_t *)p + i, &h, (size_t)n * 2);
	}
#endif
}

/* The first n (<= VW) elements from i on. */
VINLINE vf load_part(const void *from, int64_t i, enum dtype type, int64_t n)
{
	return n == VW ? v_load(from, i, type) : v_load_n(from, i, type, n);
}

VINLINE void store_part(void *to, int64_t i, enum dtype type, vf x, int64_t n)
{
	if (n == VW)
		v_store(to, i, type, x);
	else
		v_store_n(to, i, type, x, n);
}

/* The values that storing v as `type` and loading it again would give. */
VINLINE vf v_rounded(vf v, enum dtype type)
{
	return type == DTYPE_F32 ? v : vh_widen(v_narrow(v, type), type);
}

VINLINE float s_load(const void *p, int64_t i, enum dtype type)
{
	return type == DTYPE_F32    ? ((const float *)p)[i]
	       : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)p)[i])
	                            : f16_to_float(((const uint16_t *)p)[i]);
}

VINLINE void s_store(void *p, int64_t i, enum dtype type, float v)
{
	if (type == DTYPE_F32)
		((float *)p)[i] = v;
	else
		((uint16_t *)p)[i] = type == DTYPE_BF16 ? bf16_from_float(v) : f16_from_float(v);
}

VINLINE void *at(void *p, int64_t i, enum dtype type)
{
	return (char *)p + i * (type == DTYPE_F32 ? 4 : 2);
}

VINLINE const void *at_const(const void *p, int64_t i, enum dtype type)
{
	return (const char *)p + i * (type == DTYPE_F32 ? 4 : 2);
}

VINLINE vf v_min(vf a, vf b)
{
#if VW == 16
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VW == 8
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return v_select(a < b, a, b);
#endif
}

/*
 * exp with an error of about 1 ulp: x = n·ln 2 + r with |r| <= ln 2 / 2; the result is a polynomial in r
 * (Cephes), times 2^n. Below -87.3 the result would be subnormal: it is 0, except with AVX-512, where it is
 * right or flushed to 0. Above 88.4 the result is infinity. A NaN stays a NaN.
 */
VINLINE vf v_exp(vf x)
{
	vf n, r, p;

#if VW == 16
	/* With the operands in this order, min and max return a NaN where x is one. */
	r = v_min(v_set(104.0f), v_max(v_set(-104.0f), x));
	n = (vf)_mm512_roundscale_ps((__m512)(r * LOG2_E), _MM_FROUND_TO_NEAREST_INT);
	r = r - n * 0.693359375f;
#else
	const float magic = 12582912.0f; /* 1.5·2^23: adding it rounds to an integer */
	vf biased = x * LOG2_E + magic;

	n = biased - magic;
	r = x - n * 0.693359375f;
#endif
	r = r + n * 2.12194440054690583e-4f;
	p = r * 1.9875691500e-4f + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * (r * r) + r;
	p = p + 1.0f;
#if VW == 16
	return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
	/* The low bits of `biased` are n, which is added to the exponent. */
	p = (vf)((vu)p + ((vu)biased << 23));
	p = v_select(x < -87.3f, v_set(0.0f), p);
	p = v_select(x > 88.37f, v_set(INFINITY), p);
	return v_select(x == x, p, x);
#endif
}

/*
 * 2^x for attention and cross-entropy, whose arguments have a rounding error of their own. The relative error
 * is 2e-7, or 3e-6 with `coarse`, where the result will be rounded to bf16. Subnormal results are zero.
 */
VINLINE vf v_exp2(vf x, bool coarse)
{
	vf n, r, p;

#if VW == 16
	n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
	const float magic = 12582912.0f;
	vf biased = x + magic;

	n = biased - magic;
#endif
	r = x - n;
	if (coarse) {
		p = r * 0.00957010221f + 0.0559178591f;
		p = p * r + 0.240247443f;
		p = p * r + 0.693121791f;
		p = p * r + 1.0f;
	} else {
		p = r * 0.00132764725f + 0.00967554096f;
		p = p * r + 0.0555071309f;
		p = p * r + 0.240221202f;
		p = p * r + 0.693146944f;
		p = p * r + 1.0f;
	}
#if VW == 16
	return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
	p = (vf)((vu)p + ((vu)biased << 23));
	p = v_select(x < -126.0f, v_set(0.0f), p);
	p = v_select(x > 127.0f, v_set(INFINITY), p);
	return v_select(x == x, p, x);
#endif
}

/* tanh: 1 - 2 / (1 + exp(2x)), and its series where that would cancel. */
VINLINE vf v_tanh(vf x)
{
	vf s = x * x, series = s * (62.0f / 2835.0f) - 17.0f / 315.0f;

	series = series * s + 2.0f / 15.0f;
	series = series * s - 1.0f / 3.0f;
	series = series * (s * x) + x;
	return v_select(s < 0.0625f, series, 1.0f - 2.0f / (1.0f + v_exp(2.0f * x)));
}

/* In bf16 an error of 6e-5 is below that of the rounding. */
VINLINE vf v_sigmoid(vf x, enum dtype type)
{
#if VW == 16
	if (type == DTYPE_BF16)
		return (vf)_mm512_rcp14_ps((__m512)(1.0f + v_exp2(x * -LOG2_E, true)));
#endif
	return 1.0f / (1.0f + v_exp(-x));
}
