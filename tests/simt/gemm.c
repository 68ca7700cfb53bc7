/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of cuda/gemm.c: the library's part in plain loops. */
#include <errno.h>

#include "engine/device/cuda/cuda.h"

int gemm_create(struct device *dev, struct error *err)
{
	return 0;
}

void gemm_destroy(struct device *dev)
{
}

const char *gemm_describe(void)
{
	return "plain loops";
}

static inline float get(const void *p, int64_t i, enum dtype type)
{
	return type == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_float(((const uint16_t *)p)[i]);
}

void device_gemm(struct device *dev, const struct device_gemm *g)
{
	if (g->ab_type == DTYPE_F16 || g->c_type == DTYPE_F16) {
		device_fault(dev, -EOPNOTSUPP, "gemm does not work in float16");
		return;
	}
	simt_check(g->a, "A of a gemm");
	simt_check(g->b, "B of a gemm");
	simt_check(g->c, "C of a gemm");
	simt_enter(dev->stream);
	for (int64_t i = 0; i < g->m; i++) {
		for (int64_t j = 0; j < g->n; j++) {
			double sum = 0;
			float c;

			for (int64_t k = 0; k < g->k; k++)
				sum +=
				    (double)get(g->a, g->transpose_a ? k * g->lda + i : i * g->lda + k,
				                g->ab_type) *
				    get(g->b, g->transpose_b ? j * g->ldb + k : k * g->ldb + j, g->ab_type);
			c = (float)(g->alpha * sum);
			if (g->beta != 0)
				c += g->beta * get(g->c, i * g->ldc + j, g->c_type);
			if (g->c_type == DTYPE_F32)
				((float *)g->c)[i * g->ldc + j] = c;
			else
				((uint16_t *)g->c)[i * g->ldc + j] = bf16_from_float(c);
		}
	}
	simt_leave();
}
