/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a product: all that the choice of an algorithm depends on, without the addresses. */
#include "base/cleanup.h"
#include "engine/device/device.h"

int32_t device_alignment(const void *p, int32_t most)
{
	uintptr_t low = (uintptr_t)p & -(uintptr_t)p;

	return low == 0 || low > (uintptr_t)most ? most : (int32_t)low;
}

static int32_t alignment(const void *p)
{
	return device_alignment(p, DEVICE_GEMM_ALIGNMENT);
}

void device_gemm_shape(const struct device_gemm *g, struct device_gemm_shape *out)
{
	*out = (struct device_gemm_shape){.m = g->m,
	                                  .n = g->n,
	                                  .k = g->k,
	                                  .lda = g->lda,
	                                  .ldb = g->ldb,
	                                  .ldc = g->ldc,
	                                  .transpose_a = g->transpose_a,
	                                  .transpose_b = g->transpose_b,
	                                  .ab_type = (int32_t)g->ab_type,
	                                  .c_type = (int32_t)g->c_type,
	                                  .adds = g->beta != 0,
	                                  .bias = g->bias != NULL,
	                                  .d_bias = g->d_bias != NULL,
	                                  .align_a = alignment(g->a),
	                                  .align_b = alignment(g->b),
	                                  .align_c = alignment(g->c),
	                                  .align_bias = alignment(g->bias),
	                                  .fp8 = (int32_t)g->fp8_a << 4 | (int32_t)g->fp8_b};
}
