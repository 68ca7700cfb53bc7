/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernels of an optimizer's step by the processor's instruction set. Only these kernels are named
 * here, so that a program for GPUs gets none of the others. */
#include "engine/device/host.h"

#include <omp.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "engine/device/cpu/kernels.h"
#include "engine/device/sizes.h"

#if defined(KERNELS_X86)
#define SETS(X) X(generic) X(v3) X(v4) X(bf16)
#else
#define SETS(X) X(generic)
#endif

typedef void (*adamw_kernel)(struct device *dev, float *master, void *param, enum dtype param_type,
                             const void *grad, enum dtype grad_type, float *m, float *v, int64_t n,
                             const float *grad_scale, const struct device_adamw *h);
typedef void (*update_kernel)(struct device *dev, float *master, void *param, enum dtype param_type,
                              float *grad, float *m, float *v, int64_t n, const float *grad_scale,
                              const struct device_update *h);

#define DECLARE(isa)                                                                                         \
	void kernel_adamw_##isa(struct device *dev, float *master, void *param, enum dtype param_type,       \
	                        const void *grad, enum dtype grad_type, float *m, float *v, int64_t n,       \
	                        const float *grad_scale, const struct device_adamw *h);                      \
	void kernel_update_##isa(struct device *dev, float *master, void *param, enum dtype param_type,      \
	                         float *grad, float *m, float *v, int64_t n, const float *grad_scale,        \
	                         const struct device_update *h);
SETS(DECLARE)

/* The CPU engine's threads treat subnormal numbers as zero, and so do those of these steps: device.c says
 * why. */
static void flush_subnormals(void)
{
#if defined(__x86_64__)
	_mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
	uint64_t fpcr;

	__asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
	__asm__ volatile("msr fpcr, %0" : : "r"(fpcr | 1ul << 24));
#endif
}

/* The kernels ask a device of the CPU engine for its threads alone. */
static struct device all_threads(void)
{
	struct device dev = {.threads = omp_get_max_threads()};

#pragma omp parallel num_threads(dev.threads)
	flush_subnormals();
	return dev;
}

void host_adamw(float *master, void *param, enum dtype param_type, const float *grad, float *m, float *v,
                int64_t n, const float *grad_scale, const struct device_adamw *h)
{
#define KERNEL_OF(isa) kernel_adamw_##isa,
	static const adamw_kernel kernels[] = {SETS(KERNEL_OF)};
	struct device dev = all_threads();

	kernels[cpu_isa()](&dev, master, param, param_type, grad, DTYPE_F32, m, v, n, grad_scale, h);
#undef KERNEL_OF
}

void host_update(float *master, void *param, enum dtype param_type, float *grad, float *m, float *v,
                 int64_t n, const float *grad_scale, const struct device_update *h)
{
#define KERNEL_OF(isa) kernel_update_##isa,
	static const update_kernel kernels[] = {SETS(KERNEL_OF)};
	struct device dev = all_threads();

	kernels[cpu_isa()](&dev, master, param, param_type, grad, m, v, n, grad_scale, h);
#undef KERNEL_OF
}
