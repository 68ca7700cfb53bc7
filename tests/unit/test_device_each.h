/* SPDX-License-Identifier: Apache-2.0 */
/* One device at a time in every combination of threads and dtype: for the files of tests/unit/test_device. */
#pragma once

#include "test_device.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct device *dev; /* of the combination that is tried; each test runs in a process of its own */
static int threads;
static enum dtype type __attribute__((unused));

static void setup(void)
{
	dev = test_device(threads);
}

static void teardown(void)
{
	struct error err = ERROR_INIT;

	ck_ok(device_synchronize(dev, &err), &err);
	device_destroy(dev);
}

/* Every combination of threads and dtype. */
#define FOR_ALL                                                                                              \
	for (size_t ti_ = 0; ti_ < COUNT(test_threads); ti_++)                                               \
		for (size_t ty_ = 0; ty_ < COUNT(test_types); ty_++)                                         \
			for (int once_ = (threads = test_threads[ti_], type = test_types[ty_], setup(), 1);  \
			     once_; once_ = (teardown(), 0))

/* The cases of the other files. */
TCase *test_device_adapters(void);
TCase *test_device_delta(void);
TCase *test_device_experts(void);
TCase *test_device_fp8(void);
TCase *test_device_gemm(void);
TCase *test_device_generate(void);
TCase *test_device_loss(void);
TCase *test_device_large(void);
TCase *test_device_large_rows(void);
TCase *test_device_rounding(void);
TCase *test_device_quantize(void);
TCase *test_device_update(void);
