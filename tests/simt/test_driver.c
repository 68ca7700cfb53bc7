/* SPDX-License-Identifier: Apache-2.0 */
/* The messages where the driver is missing, too old, or reports an error. */
#include <errno.h>
#include <stdlib.h>

#include "base/str.h"
#include "engine/device/cuda/cuda.h"
#include "unit.h"

static void refused(struct driver_report report, const char *words)
{
	struct error err = ERROR_INIT;

	ck_assert_int_eq(driver_check(&report, &err), -ENODEV);
	ck_assert_msg(strstr(err.message, words) != NULL, "%s", err.message);
	ck_assert_msg(strchr(err.message, '\n') == NULL, "%s", err.message);
}

START_TEST(no_driver)
{
	refused(
	    (struct driver_report){.runtime = 13000},
	    "no NVIDIA driver on this machine (no libcuda.so.1): the CUDA engine needs CUDA 13.0, driver 580 "
	    "or newer: apt install cuda-drivers");
	refused(
	    (struct driver_report){.runtime = 13000, .module = "580.65.06"},
	    "the NVIDIA driver 580.65.06 is loaded, but its library libcuda.so.1 is not there: apt install "
	    "nvidia-driver-cuda (Ubuntu: libnvidia-compute-580)");
}
END_TEST

START_TEST(too_old)
{
	refused(
	    (struct driver_report){.runtime = 13000,
	                           .driver = 12020,
	                           .status = cudaErrorInsufficientDriver,
	                           .module = "535.183.01"},
	    "the NVIDIA driver 535.183.01 is too old: it supports CUDA 12.2, this engine needs CUDA 13.0, "
	    "driver 580 or newer: apt install cuda-drivers");
	refused(
	    (struct driver_report){.runtime = 12040, .driver = 11070},
	    "the NVIDIA driver is too old: it supports CUDA 11.7, this engine needs CUDA 12.4, driver 525");
	/* A later minor version of the runtime is not an error. */
	ck_assert_int_eq(driver_check(&(struct driver_report){.runtime = 13010, .driver = 13000}, NULL), 0);
	ck_assert_int_eq(driver_check(&(struct driver_report){.runtime = 13000, .driver = 14000}, NULL), 0);
}
END_TEST

START_TEST(gpu_too_old)
{
	struct error err = ERROR_INIT;

	ck_fails(
	    driver_check_gpu("Tesla V100-SXM2-32GB", 7, 0, &err), &err,
	    "Tesla V100-SXM2-32GB has compute capability 7.0, the CUDA engine needs 8.0 (Ampere) or newer");
	ck_assert_int_eq(driver_check_gpu("NVIDIA A100", 8, 0, &err), 0);
	ck_assert_int_eq(driver_check_gpu("NVIDIA B200", 10, 0, &err), 0);
}
END_TEST

START_TEST(in_trouble)
{
	struct driver_report r = {.runtime = 13000, .driver = 13000, .module = "580.65.06"};

	r.status = cudaErrorSystemDriverMismatch;
	refused(r, "its kernel module 580.65.06 differ in version: reboot");
	r.status = cudaErrorSystemNotReady;
	refused(r, "systemctl start nvidia-fabricmanager");
	r.status = cudaErrorNoDevice;
	unsetenv("CUDA_VISIBLE_DEVICES");
	refused(r, "the NVIDIA driver 580.65.06 shows no GPU to this process");
	setenv("CUDA_VISIBLE_DEVICES", "7", 1);
	refused(r, "shows no GPU to this process: CUDA_VISIBLE_DEVICES is 7");
	r.status = 999;
	refused(r, "the NVIDIA driver 580.65.06 does not answer: an error");
}
END_TEST

START_TEST(version_of_the_module)
{
	static const struct {
		const char *text, *version;
	} files[] = {
	    {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
	     "GCC version:  gcc version 12.2.0\n",
	     "535.183.01"},
	    {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\n",
	     "580.65.06"},
	    {"something else\n", ""},
	    {"", ""},
	};
	_cleanup_free_ char *directory = unit_tmpdir();
	_cleanup_free_ char *path = str_printf("%s/version", directory);
	struct error err = ERROR_INIT;
	char version[32];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		ck_ok(file_write_atomic(path, files[i].text, strlen(files[i].text), 0644, &err), &err);
		driver_module_version(path, version, sizeof(version));
		ck_assert_str_eq(version, files[i].version);
	}
	driver_module_version("/nonexistent", version, sizeof(version));
	ck_assert_str_eq(version, "");
	ck_assert(!file_remove_tree(directory, NULL));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("driver");
	TCase *tc = tcase_create("driver");

	tcase_add_test(tc, no_driver);
	tcase_add_test(tc, too_old);
	tcase_add_test(tc, gpu_too_old);
	tcase_add_test(tc, in_trouble);
	tcase_add_test(tc, version_of_the_module);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
