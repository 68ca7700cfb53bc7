/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether the driver supports this engine; an error says what has to be installed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/cuda.h"

/* The branch of NVIDIA's driver that was released with a major version of CUDA. All minor versions
 * run on it. */
static int branch_needed(int runtime)
{
	static const struct {
		int major, branch;
	} first[] = {{11, 450}, {12, 525}, {13, 580}};

	for (size_t i = 0; i < ARRAY_SIZE(first); i++)
		if (first[i].major == runtime / 1000)
			return first[i].branch;
	return 0;
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (…)" */
void driver_module_version(const char *path, char *version, size_t size)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	char line[256], *rest = line, *word;

	*version = '\0';
	if (!f || !fgets(line, sizeof(line), f))
		return;
	while ((word = strsep(&rest, " \t\n")))
		if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.'))
			break;
	if (word)
		snprintf(version, size, "%s", word);
}

/* "CUDA 13.0, which needs driver 580" */
static const char *wanted(const struct driver_report *d, char *text, size_t size)
{
	int branch = branch_needed(d->runtime);
	int n = snprintf(text, size, "CUDA %d.%d", d->runtime / 1000, d->runtime % 1000 / 10);

	if (branch && n > 0 && (size_t)n < size)
		snprintf(text + n, size - (size_t)n, ", driver %d or newer", branch);
	return text;
}

int driver_check(const struct driver_report *d, struct error *err)
{
	const char *space = *d->module ? " " : "";
	char want[64];

	wanted(d, want, sizeof(want));
	if (d->driver == 0 && *d->module)
		return error_set(
		    err, -ENODEV,
		    "the NVIDIA driver %s is loaded, but its library libcuda.so.1 is not there: apt "
		    "install nvidia-driver-cuda (Ubuntu: libnvidia-compute-%d)",
		    d->module, atoi(d->module));
	if (d->driver == 0)
		return error_set(
		    err, -ENODEV,
		    "no NVIDIA driver on this machine (no libcuda.so.1): the CUDA engine needs %s: "
		    "apt install cuda-drivers; or train on CPU slots",
		    want);
	if (d->status == cudaErrorInsufficientDriver || d->driver / 1000 < d->runtime / 1000)
		return error_set(
		    err, -ENODEV,
		    "the NVIDIA driver%s%s is too old: it supports CUDA %d.%d, this engine needs %s: "
		    "apt install cuda-drivers",
		    space, d->module, d->driver / 1000, d->driver % 1000 / 10, want);
	if (d->status == cudaErrorSystemDriverMismatch)
		return error_set(err, -ENODEV,
		                 "the NVIDIA driver's library and its kernel module%s%s differ in version: "
		                 "reboot, or reload the module",
		                 space, d->module);
	if (d->status == cudaErrorSystemNotReady)
		return error_set(err, -ENODEV,
		                 "the NVIDIA driver%s%s is not ready: on a machine with NVSwitch its fabric "
		                 "manager has to run (systemctl start nvidia-fabricmanager)",
		                 space, d->module);
	if (d->status == cudaErrorNoDevice) {
		const char *visible = getenv("CUDA_VISIBLE_DEVICES");

		return error_set(err, -ENODEV, "the NVIDIA driver%s%s shows no GPU to this process%s%s",
		                 space, d->module, visible ? ": CUDA_VISIBLE_DEVICES is " : "",
		                 visible ? visible : "");
	}
	if (d->status != cudaSuccess)
		return error_set(err, -ENODEV, "the NVIDIA driver%s%s does not answer: %s", space, d->module,
		                 cudaGetErrorString((cudaError_t)d->status));
	return 0;
}

int driver_check_gpu(const char *name, int major, int minor, struct error *err)
{
	if (major >= 8)
		return 0;
	return error_set(
	    err, -ENODEV,
	    "%s has compute capability %d.%d, the CUDA engine needs 8.0 (Ampere) or newer: train on CPU "
	    "slots, with CUDA_VISIBLE_DEVICES= in dtraind's environment",
	    name, major, minor);
}
