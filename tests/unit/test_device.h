/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the device share: buffers in a dtype, random numbers, comparison. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "unit.h"

static const enum dtype test_types[] = {DTYPE_F32, DTYPE_BF16};
/* The emulated GPU has no threads to choose, and takes its time. */
#ifdef TEST_ENGINE_SIMT
static const int test_threads[] = {1};
#else
static const int test_threads[] = {1, 3};
#endif

static inline double test_random(uint64_t *state) /* about normal */
{
	double sum = 0;

	for (int i = 0; i < 6; i++) {
		*state = *state * 6364136223846793005ull + 1442695040888963407ull;
		sum += (double)(*state >> 40) / (1 << 24) - 0.5;
	}
	return sum * 1.4142;
}

static inline struct device *test_device(int threads)
{
	struct error err = ERROR_INIT;
	struct device *dev = NULL;

	ck_ok(device_create(&(struct device_options){.threads = threads}, &dev, &err), &err);
	ck_ok(device_reserve_scratch(dev, 64 << 20, &err), &err);
	return dev;
}

/* n elements of `type` on the device, from float64 values which are rounded likewise in place. */
static inline void *test_buffer(struct device *dev, double *values, int64_t n, enum dtype type)
{
	struct error err = ERROR_INIT;
	void *p = NULL;

	/* A guard of one line behind it: an operation that writes too far is seen. */
	ck_ok(device_alloc(dev, (size_t)n * dtype_size(type) + 64, &p, &err), &err);
	memset((char *)p + (size_t)n * dtype_size(type), 0x5a, 64);
	for (int64_t i = 0; i < n; i++) {
		if (type == DTYPE_F32) {
			((float *)p)[i] = (float)values[i];
			values[i] = ((float *)p)[i];
		} else {
			((uint16_t *)p)[i] = bf16_from_float((float)values[i]);
			values[i] = bf16_to_float(((uint16_t *)p)[i]);
		}
	}
	return p;
}

/* Runs a suite under each instruction set that the machine has (a lesser one is taken for a greater it
 * lacks); on the emulated GPU, with the threads of a block in their order and against it. */
#ifdef TEST_ENGINE_SIMT
static inline int test_run_each(Suite *(*make)(void))
{
	int status = EXIT_SUCCESS;

	for (int reverse = 0; reverse < 2 && status == EXIT_SUCCESS; reverse++) {
		setenv("SIMT_ORDER", reverse ? "reverse" : "forward", 1);
		status = unit_run(make());
	}
	return status;
}
#else
static inline int test_run_each(Suite *(*make)(void))
{
	static const char *const sets[] = {"generic", "v3", "v4", "bf16"};
	int status = EXIT_SUCCESS;

	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		struct error err = ERROR_INIT;
		struct device *dev = NULL;
		char words[32];

		setenv("DTRAIN_CPU_ISA", sets[i], 1);
		snprintf(words, sizeof(words), "kernels %s,", sets[i]);
		if (device_create(&(struct device_options){.threads = 1}, &dev, &err) < 0) {
			fprintf(stderr, "error: %s\n", err.message);
			return EXIT_FAILURE;
		}
		printf("%s\n", device_describe(dev));
		if (!strstr(device_describe(dev), words))
			printf("skipped: this machine or build has no %s\n", sets[i]);
		else if (unit_run(make()))
			status = EXIT_FAILURE;
		device_destroy(dev);
	}
	return status;
}
#endif

static inline double *test_values(int64_t n, uint64_t seed)
{
	double *v = malloc((size_t)(n ? n : 1) * sizeof(*v));

	for (int64_t i = 0; i < n; i++)
		v[i] = test_random(&seed);
	return v;
}

static inline double test_get(const void *p, int64_t i, enum dtype type)
{
	return type == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_float(((const uint16_t *)p)[i]);
}

static inline double test_tolerance(enum dtype type)
{
	return type == DTYPE_F32 ? 2e-6 : 8e-3;
}

/* |got - want| <= tolerance · (|want| + scale), everywhere; and the guard stands. */
static inline void test_close(const char *what, const void *got, const double *want, int64_t n,
                              enum dtype type, double tolerance, double scale)
{
	const unsigned char *guard = (const unsigned char *)got + (size_t)n * dtype_size(type);

	for (int64_t i = 0; i < n; i++) {
		double g = test_get(got, i, type);

		ck_assert_msg(fabs(g - want[i]) <= tolerance * (fabs(want[i]) + scale),
		              "%s[%lld] is %.9g, not %.9g", what, (long long)i, g, want[i]);
	}
	for (int i = 0; i < 64; i++)
		ck_assert_msg(guard[i] == 0x5a, "%s: written %d bytes past its end", what, i);
}
