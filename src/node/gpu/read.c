/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a GPU's sensors and error counters through NVML. */
#include "node/gpu/read.h"

#include "base/clock.h"

/* What is said of the device itself, not of the one figure that was asked for. */
static int as_fault(int code)
{
	bool fault = code == NVML_INSUFFICIENT_POWER || code == NVML_IRQ_ISSUE || code == NVML_GPU_IS_LOST ||
	             code == NVML_RESET_REQUIRED;

	return fault ? code : 0;
}

static int read_temperature(const struct nvml *nvml, void *gpu, int64_t *out)
{
	struct nvml_temperature v = {NVML_TEMPERATURE_V1, NVML_TEMPERATURE_GPU, 0};
	unsigned value;
	int code = NVML_NOT_SUPPORTED;

	if (nvml->temperature) {
		code = nvml->temperature(gpu, NVML_TEMPERATURE_GPU, &value);
		if (code == NVML_SUCCESS)
			*out = value;
	}
	if (code != NVML_SUCCESS && nvml->temperature_v) {
		code = nvml->temperature_v(gpu, &v);
		if (code == NVML_SUCCESS)
			*out = v.temperature;
	}
	return code;
}

static int read_retirement(const struct nvml *nvml, void *gpu, struct gpu_reading *out)
{
	unsigned corrected, uncorrected, pending, failed;
	int code = NVML_NOT_SUPPORTED, enabled;

	/* Rows since Ampere, pages before. */
	if (nvml->remapped_rows) {
		code = nvml->remapped_rows(gpu, &corrected, &uncorrected, &pending, &failed);
		if (code == NVML_SUCCESS) {
			out->retirement_pending = pending != 0;
			out->retirement_failed = failed != 0;
		}
	}
	if (code != NVML_SUCCESS && nvml->retired_pending) {
		code = nvml->retired_pending(gpu, &enabled);
		if (code == NVML_SUCCESS)
			out->retirement_pending = enabled != 0;
	}
	return code;
}

void gpu_read(const struct nvml *nvml, const struct node_device *d, struct gpu_reading *out)
{
	struct nvml_utilization use;
	struct nvml_memory memory;
	unsigned long long errors;
	unsigned value;
	int code;

	*out = (struct gpu_reading){.memory_used = -1,
	                            .utilization = -1,
	                            .temperature = -1,
	                            .power = -1,
	                            .power_limit = -1,
	                            .ecc_errors = -1,
	                            .retirement_pending = -1,
	                            .retirement_failed = -1};
	code = nvml->memory(d->handle, &memory);
	out->fault = as_fault(code);
	if (d->mig && (code == NVML_NOT_FOUND || code == NVML_INVALID_ARGUMENT))
		out->fault = NVML_NOT_FOUND; /* it was taken away */
	if (code == NVML_SUCCESS)
		out->memory_used = (int64_t)memory.used;

	/* The first that says the GPU is gone says enough: each further call may take its time, too. */
	if (!out->fault && nvml->utilization && !d->mig) {
		code = nvml->utilization(d->parent, &use);
		out->fault = as_fault(code);
		if (code == NVML_SUCCESS)
			out->utilization = use.gpu;
	}
	if (!out->fault)
		out->fault = as_fault(read_temperature(nvml, d->parent, &out->temperature));
	if (!out->fault && nvml->power) {
		code = nvml->power(d->parent, &value);
		out->fault = as_fault(code);
		if (code == NVML_SUCCESS)
			out->power = value;
	}
	if (!out->fault && nvml->power_limit && nvml->power_limit(d->parent, &value) == NVML_SUCCESS)
		out->power_limit = value;
	if (!out->fault && nvml->ecc_errors) {
		code = nvml->ecc_errors(d->parent, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &errors);
		out->fault = as_fault(code);
		if (code == NVML_SUCCESS)
			out->ecc_errors = (int64_t)errors;
	}
	if (!out->fault)
		out->fault = as_fault(read_retirement(nvml, d->parent, out));
	out->time = clock_realtime();
}
