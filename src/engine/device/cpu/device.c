/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: creates it, and chooses its threads and kernels. */
#include <cblas.h>
#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/moments.h"
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
	static const struct kernels *const all[] = {[CPU_ISA_GENERIC] = &kernels_generic,
	                                            [CPU_ISA_V3] = &kernels_v3,
	                                            [CPU_ISA_V4] = &kernels_v4,
	                                            [CPU_ISA_BF16] = &kernels_bf16};

	return all[cpu_isa()];
#else
	return &kernels_generic;
#endif
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
	dev->kernels = choose_kernels();
	dev->parts = calloc(REDUCE_PARTS, sizeof(*dev->parts));
	dev->moments = malloc(2 * sizeof(*dev->moments));
	if (!dev->parts || !dev->moments) {
		device_destroy(dev);
		return error_oom(err);
	}
	flush_subnormals();
	omp_set_dynamic(0);
	omp_set_num_threads(dev->threads);
#pragma omp parallel num_threads(dev->threads)
	flush_subnormals();

	moment_table_fill(&dev->moments[0], false);
	moment_table_fill(&dev->moments[1], true);
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
	free(dev->moments);
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

bool device_is_exclusive(const struct device *dev)
{
	return false;
}

bool device_runs_behind(const struct device *dev)
{
	return false;
}

double device_peak_flops(const struct device *dev, enum dtype type)
{
	return 0; /* unknown: no interface gives the clock rate under vector load */
}

/* Products have one algorithm here. */
const char *device_gemm_kind(const struct device *dev)
{
	return NULL;
}

int device_gemm_measure(struct device *dev, struct device_gemm_choice *choices, size_t n, struct error *err)
{
	return error_set(err, -EOPNOTSUPP, "the CPU engine has no algorithms of products to choose from");
}

int device_gemm_use(struct device *dev, const struct device_gemm_choice *choices, size_t n, struct error *err)
{
	return device_gemm_measure(dev, NULL, n, err);
}

bool device_attention_has_hopper(const struct device *dev, const struct device_attention_shape *shape)
{
	return false;
}

int device_attention_check(struct device *dev, const struct device_attention_shape *shape, double seconds[2],
                           struct error *err)
{
	return error_set(err, -EOPNOTSUPP, "the CPU engine has one kernel of attention");
}

void device_attention_use_hopper(struct device *dev, enum device_attention_pass pass, bool use)
{
}

void device_get_sizing(const struct device *dev, struct device_sizing *out, int64_t *memory)
{
	*out = (struct device_sizing){
	    .engine = DEVICE_ENGINE_CPU, .threads = dev->threads, .native_bf16 = gemm_native_bf16(dev)};
	*memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

size_t device_logits_bytes(void)
{
	return cpu_logits_bytes();
}

size_t device_scratch_bytes(const struct device *dev, const struct device_shapes *s)
{
	return cpu_scratch_bytes(s, dev->threads, gemm_native_bf16(dev));
}
