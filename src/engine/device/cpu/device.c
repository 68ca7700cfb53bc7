/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: creates it, chooses its threads and kernels, and computes how much
 * scratch they need. */
#include <cblas.h>
#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

#include "base/str.h"
#endif

#include "engine/device/cpu/kernels.h"
#include "engine/device/sizes.h"

/* OpenBLAS has these functions. They are declared here because the cblas.h that Debian's pkg-config finds for
 * `blas` may be another library's, which does not declare them. */
extern char *openblas_get_corename(void);
extern char *openblas_get_config(void);

static int default_threads(void)
{
	const char *env = getenv("OMP_NUM_THREADS");
	int n = env ? atoi(env) : 0;
	cpu_set_t set;

	if (n > 0)
		return n;
	if (!sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) > 0)
		return CPU_COUNT(&set);
	return omp_get_num_procs();
}

static const struct kernels *choose_kernels(void)
{
#if defined(KERNELS_X86)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2") &&
	    __builtin_cpu_supports("fma"))
		return __builtin_cpu_supports("avx512bf16") ? &kernels_bf16 : &kernels_v4;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
		return &kernels_v3;
#endif
	return &kernels_generic;
}

/* DTRAIN_CPU_ISA (generic, v3, v4 or bf16) names a table below the best one, so that tests on one machine can
 * run all of them. */
static const struct kernels *override_kernels(const struct kernels *best)
{
	const char *name = getenv("DTRAIN_CPU_ISA");
#if defined(KERNELS_X86)
	const struct kernels *all[] = {&kernels_generic, &kernels_v3, &kernels_v4, &kernels_bf16};
#else
	const struct kernels *all[] = {&kernels_generic};
#endif

	for (size_t i = 0; name && i < sizeof(all) / sizeof(all[0]); i++) {
		if (str_eq(all[i]->isa, name))
			return all[i];
		if (all[i] == best)
			break;
	}
	return best;
}

/*
 * The thread that creates the device and the threads of its pool treat subnormal numbers as zero. The moments
 * of rarely used rows decay into that range, where on some processors each update would take a hundred times
 * as long.
 */
static void flush_subnormals(void)
{
#if defined(__x86_64__)
	_mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ and DAZ: flush to zero, denormals are zero */
#elif defined(__aarch64__)
	uint64_t fpcr;

	__asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
	__asm__ volatile("msr fpcr, %0" : : "r"(fpcr | 1ul << 24));
#endif
}

/* The length of "OpenBLAS 0.3.21" in "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …". */
static int first_words(const char *config)
{
	size_t name = strcspn(config, " "), version = config[name] ? strcspn(config + name + 1, " ") + 1 : 0;

	return (int)(name + version);
}

int device_create(const struct device_options *options, struct device **out, struct error *err)
{
	struct device *dev = calloc(1, sizeof(*dev));
	const char *version;
	int r;

	if (!dev)
		return error_oom(err);
	dev->threads = options && options->threads > 0 ? options->threads : default_threads();
	dev->kernels = override_kernels(choose_kernels());
	dev->parts = calloc(REDUCE_PARTS, sizeof(*dev->parts));
	if (!dev->parts) {
		device_destroy(dev);
		return error_oom(err);
	}
	flush_subnormals();
	omp_set_dynamic(0);
	omp_set_num_threads(dev->threads);
#pragma omp parallel num_threads(dev->threads)
	flush_subnormals();

	r = gemm_create(dev, err);
	if (r < 0) {
		device_destroy(dev);
		return r;
	}
	version = openblas_get_config();
	snprintf(dev->description, sizeof(dev->description), "cpu: %d thread%s, kernels %s, %.*s %s, %s",
	         dev->threads, dev->threads == 1 ? "" : "s", dev->kernels->isa, first_words(version), version,
	         openblas_get_corename(), gemm_describe());
	*out = dev;
	return 0;
}

void device_destroy(struct device *dev)
{
	if (!dev)
		return;
	gemm_destroy(dev);
	free(dev->base.scratch);
	free(dev->parts);
	free(dev);
}

const char *device_describe(const struct device *dev)
{
	return dev->description;
}

bool device_supports(const struct device *dev, enum dtype type)
{
	return type == DTYPE_F32 || (type == DTYPE_BF16 && gemm_native_bf16(dev));
}

double device_peak_flops(const struct device *dev, enum dtype type)
{
	return 0; /* unknown: no interface gives the clock rate under vector load */
}

size_t device_logits_bytes(void)
{
	return cpu_logits_bytes();
}

size_t device_scratch_bytes(const struct device *dev, const struct device_shapes *s)
{
	return cpu_scratch_bytes(s, dev->threads, gemm_native_bf16(dev));
}
