/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the device share: buffers in a dtype, random numbers, comparison. Memory of the device is
 * touched through device_write and device_read alone, so that the same tests run on a GPU; the emulated one
 * (SIMT_PROTECT) ends a test that forgets it.
 *
 * TEST_ENGINE_SIMT: over the emulated GPU; TEST_ENGINE_CUDA: over a real one; neither: over the CPU engine.
 */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/device.h"
#include "unit.h"

static const enum dtype test_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
/* A GPU has no threads to choose; the emulated one takes its time. */
#if defined(TEST_ENGINE_SIMT) || defined(TEST_ENGINE_CUDA)
#define TEST_GPU
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

#define TEST_GUARD 64 /* bytes behind every buffer: an operation that writes too far is seen */

/* The bytes on the device. */
static inline void *test_put(struct device *dev, const void *host, size_t bytes)
{
	struct error err = ERROR_INIT;
	unsigned char guard[TEST_GUARD];
	void *p = NULL;

	memset(guard, 0x5a, sizeof(guard));
	ck_ok(device_alloc(dev, bytes + TEST_GUARD, &p, &err), &err);
	ck_ok(device_write(dev, p, host, bytes, &err), &err);
	ck_ok(device_write(dev, (char *)p + bytes, guard, sizeof(guard), &err), &err);
	return p;
}

/* The bytes back, once all that was queued before is done. */
static inline void test_fetch(struct device *dev, void *host, const void *p, size_t bytes)
{
	struct error err = ERROR_INIT;

	ck_ok(device_read(dev, host, p, bytes, &err), &err);
}

static inline void test_set(void *host, int64_t i, enum dtype type, double value)
{
	if (type == DTYPE_F32)
		((float *)host)[i] = (float)value;
	else
		((uint16_t *)host)[i] =
		    type == DTYPE_BF16 ? bf16_from_float((float)value) : f16_from_float((float)value);
}

static inline double test_get(const void *host, int64_t i, enum dtype type)
{
	return type == DTYPE_F32    ? ((const float *)host)[i]
	       : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)host)[i])
	                            : f16_to_float(((const uint16_t *)host)[i]);
}

static inline double test_rounded(double value, enum dtype type)
{
	float cell;

	test_set(&cell, 0, type, value);
	return test_get(&cell, 0, type);
}

/* n elements of `type` on the device, from float64 values which are rounded likewise in place. */
static inline void *test_buffer(struct device *dev, double *values, int64_t n, enum dtype type)
{
	size_t bytes = (size_t)n * dtype_size(type);
	void *host = calloc(1, bytes ? bytes : 1), *p;

	for (int64_t i = 0; i < n; i++) {
		test_set(host, i, type, values[i]);
		values[i] = test_get(host, i, type);
	}
	p = test_put(dev, host, bytes);
	free(host);
	return p;
}

/* What n elements of the device are, widened; the caller frees it. */
static inline double *test_fetch_values(struct device *dev, const void *p, int64_t n, enum dtype type)
{
	size_t bytes = (size_t)n * dtype_size(type);
	double *values = malloc((size_t)(n ? n : 1) * sizeof(*values));
	void *host = malloc(bytes ? bytes : 1);

	test_fetch(dev, host, p, bytes);
	for (int64_t i = 0; i < n; i++)
		values[i] = test_get(host, i, type);
	free(host);
	return values;
}

/* The guard behind `bytes` of a buffer stands. */
static inline void test_guard(struct device *dev, const char *what, const void *p, size_t bytes)
{
	unsigned char guard[TEST_GUARD];

	test_fetch(dev, guard, (const char *)p + bytes, sizeof(guard));
	for (int i = 0; i < TEST_GUARD; i++)
		ck_assert_msg(guard[i] == 0x5a, "%s: written %d bytes past its end", what, i);
}

static inline bool test_is_close(double got, double want, double tolerance, double scale)
{
	return fabs(got - want) <= tolerance * (fabs(want) + scale);
}

/* |got - want| <= tolerance · (|want| + scale), everywhere, or in fp16, where not to be the same, within half
 * of a subnormal's step; and the guard stands. */
static inline void test_close(struct device *dev, const char *what, const void *p, const double *want,
                              int64_t n, enum dtype type, double tolerance, double scale)
{
	double *got = test_fetch_values(dev, p, n, type),
	       step = type == DTYPE_F16 && tolerance > 0 ? 0x1p-24 : 0;

	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(test_is_close(got[i], want[i], tolerance, scale) ||
		                  fabs(got[i] - want[i]) <= step,
		              "%s[%lld] is %.9g, not %.9g", what, (long long)i, got[i], want[i]);
	free(got);
	test_guard(dev, what, p, (size_t)n * dtype_size(type));
}

/* Runs a suite under each instruction set that the machine has (a lesser one is taken for a greater it
 * lacks); on the emulated GPU, with the threads of a block in their order and against it (SIMT_ONLY=forward
 * or SIMT_ONLY=reverse: one of both), and with its memory out of the host's reach; on a GPU once, where there
 * is one. */
#if defined(TEST_ENGINE_CUDA)
static inline int test_run_each(Suite *(*make)(void))
{
	/* In a process of its own: a context does not live on in the children that Check starts. */
	pid_t probe = fork();
	int status;

	if (probe == 0) {
		struct error err = ERROR_INIT;
		struct device *dev = NULL;

		const char *choice = getenv("TEST_ATTENTION"); /* test_device_attention's */
		struct device_options o = {.attention =
		                               (enum device_attention_choice)(choice ? atoi(choice) : 0)};

		if (device_create(&o, &dev, &err) == 0)
			printf("%s\n", device_describe(dev));
		else
			printf("skipped: %s\n", err.message);
		fflush(stdout);
		_exit(dev ? EXIT_SUCCESS : 77);
	}
	if (probe < 0 || waitpid(probe, &status, 0) < 0)
		return EXIT_FAILURE;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
	return unit_run(make());
}
#elif defined(TEST_ENGINE_SIMT)
static inline int test_run_each(Suite *(*make)(void))
{
	static const char *const orders[] = {"forward", "reverse"};
	const char *only = getenv("SIMT_ONLY");
	int status = EXIT_SUCCESS, runs = 0;

	setenv("SIMT_PROTECT", "1", 1);

	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]) && status == EXIT_SUCCESS; i++) {
		if (only && strcmp(only, orders[i]) != 0)
			continue;
		setenv("SIMT_ORDER", orders[i], 1);
		status = unit_run(make());
		runs++;
	}
	if (!runs)
		fprintf(stderr, "SIMT_ONLY is neither \"forward\" nor \"reverse\": %s\n", only);
	return runs ? status : EXIT_FAILURE;
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

static inline double test_tolerance(enum dtype type)
{
	return type == DTYPE_F32 ? 2e-6 : type == DTYPE_BF16 ? 8e-3 : 1e-3;
}
