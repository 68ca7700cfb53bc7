/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of device.h on a GPU, except for the operations: the stream, memory, scratch, transfers,
 * faults and events. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/cuda/attention/cudnn_attention.h"
#include "engine/device/cuda/cuda.h"
#include "engine/device/sizes.h"

struct device_event {
	cudaEvent_t event;
};

#define MIB(bytes) ((double)(bytes) / (1 << 20))

/* ---- finding and describing the GPU ---- */
static int find_gpu(struct device *dev, struct error *err)
{
	struct driver_report report = {0};
	int count = 0, r;
	cudaError_t status;

	(void)cudaRuntimeGetVersion(&report.runtime);
	if (cudaDriverGetVersion(&report.driver) != cudaSuccess)
		report.driver = 0;
	report.status = report.driver ? (int)cudaGetDeviceCount(&count) : cudaSuccess;
	driver_module_version("/proc/driver/nvidia/version", report.module, sizeof(report.module));
	r = driver_check(&report, err);
	if (r < 0)
		return r;
	if (dev->index < 0 || dev->index >= count)
		return error_set(err, -ENODEV,
		                 "GPU %d is asked for, %d %s visible to this process (CUDA_VISIBLE_DEVICES)",
		                 dev->index, count, count == 1 ? "is" : "are");
	status = cudaSetDevice(dev->index);
	return status ? device_cuda_error(dev, status, "cannot be used", err) : 0;
}

static int open_gpu(struct device *dev, const struct device_options *options, struct error *err)
{
	struct cudaDeviceProp properties;
	cudaError_t status;
	char gemm[32], attention[96];
	int r;

	if ((r = cublaslt_load(err)) < 0 || (r = find_gpu(dev, err)) < 0)
		return r;
	status = cudaGetDeviceProperties(&properties, dev->index);
	if (status)
		return device_cuda_error(dev, status, "cannot be asked what it is", err);
	dev->memory = (int64_t)properties.totalGlobalMem;
	dev->major = properties.major;
	dev->minor = properties.minor;
	dev->multiprocessors = properties.multiProcessorCount;
	dev->shared_most = properties.sharedMemPerBlockOptin;
	r = driver_check_gpu(properties.name, dev->major, dev->minor, err);
	if (r < 0)
		return r;
	status = cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking);
	if (status)
		return device_cuda_error(dev, status, "cannot make a stream", err);
	dev->stream_made = true;
	dev->compute = dev->stream;
	if ((status = cudaMalloc((void **)&dev->parts, REDUCE_PARTS * sizeof(*dev->parts))) ||
	    (status = cudaMallocHost((void **)&dev->staging, STAGING)) ||
	    (status = cudaEventCreateWithFlags(&dev->left[0], cudaEventDisableTiming)) ||
	    (status = cudaEventCreateWithFlags(&dev->left[1], cudaEventDisableTiming)))
		return device_cuda_error(dev, status, "cannot allocate the engine's own buffers", err);
	if ((r = gemm_create(dev, err)) < 0 ||
	    (r = attention_cudnn_create(dev, options ? options->attention : DEVICE_ATTENTION_AUTO, err)) < 0)
		return r;
	snprintf(dev->description, sizeof(dev->description), "cuda:%d: %.80s, %.1f GiB, sm_%d%d, %s, %s",
	         dev->index, properties.name, MIB(properties.totalGlobalMem) / 1024, dev->major, dev->minor,
	         gemm_describe(gemm, sizeof(gemm)),
	         attention_cudnn_describe(dev, attention, sizeof(attention)));
	snprintf(dev->gemm_kind, sizeof(dev->gemm_kind), "%.80s, sm_%d%d, %d multiprocessors, %s",
	         properties.name, dev->major, dev->minor, dev->multiprocessors,
	         gemm_describe(gemm, sizeof(gemm)));
	return 0;
}

int device_create(const struct device_options *options, struct device **out, struct error *err)
{
	struct device *dev = calloc(1, sizeof(*dev));
	int r;

	if (!dev)
		return error_oom(err);
	dev->index = options ? options->index : 0;
	dev->unfused = options ? options->unfused : 0;
	r = open_gpu(dev, options, err);
	if (r < 0)
		device_destroy(dev);
	else
		*out = dev;
	return r;
}

void device_destroy(struct device *dev)
{
	if (!dev)
		return;
	if (dev->stream_made)
		(void)cudaStreamSynchronize(dev->stream);
	if (dev->transfers)
		(void)cudaStreamSynchronize(dev->transfers);
	if (dev->aside)
		(void)cudaStreamSynchronize(dev->aside);
	attention_cudnn_destroy(dev);
	gemm_destroy(dev);
	(void)cudaFree(dev->base.scratch);
	(void)cudaFree(dev->parts);
	(void)cudaFreeHost(dev->staging);
	for (int i = 0; i < 2; i++)
		if (dev->left[i])
			(void)cudaEventDestroy(dev->left[i]);
	if (dev->computed)
		(void)cudaEventDestroy(dev->computed);
	if (dev->transfers)
		(void)cudaStreamDestroy(dev->transfers);
	if (dev->before_aside)
		(void)cudaEventDestroy(dev->before_aside);
	if (dev->aside)
		(void)cudaStreamDestroy(dev->aside);
	if (dev->stream_made)
		(void)cudaStreamDestroy(dev->stream);
	free(dev);
}

const char *device_describe(const struct device *dev)
{
	return dev->description;
}

bool device_supports(const struct device *dev, enum dtype type)
{
	return true;
}

/* The mode of one thread, which older drivers have, keeps other processes out, too. */
bool device_is_exclusive(const struct device *dev)
{
	int mode = cudaComputeModeDefault;

	if (cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, dev->index) != cudaSuccess)
		(void)cudaGetLastError();
	return mode == cudaComputeModeExclusiveProcess || mode == cudaComputeModeExclusive;
}

bool device_runs_behind(const struct device *dev)
{
	return true;
}

/* The dense figures of NVIDIA's data sheets for the full-size boards, in proportion to the multiprocessors
 * that this GPU has. */
double device_peak_flops(const struct device *dev, enum dtype type)
{
	static const struct {
		int major, minor, multiprocessors;
		double bf16, f32;
	} boards[] = {
	    {8, 0, 108, 312e12, 19.5e12},   /* A100 SXM */
	    {9, 0, 132, 989.4e12, 66.9e12}, /* H100 SXM, H200 */
	    {10, 0, 148, 2250e12, 75e12},   /* B200 */
	};

	for (size_t i = 0; i < sizeof(boards) / sizeof(boards[0]); i++)
		if (boards[i].major == dev->major && boards[i].minor == dev->minor)
			return (type == DTYPE_F32 ? boards[i].f32 : boards[i].bf16) * dev->multiprocessors /
			       boards[i].multiprocessors;
	return 0;
}

/* ---- memory ---- */
static int allocate(struct device *dev, size_t bytes, const char *what, void **out, struct error *err)
{
	size_t available = 0, total = 0;
	cudaError_t status = cudaMalloc(out, bytes ? bytes : 1);

	if (status == cudaSuccess)
		return 0;
	*out = NULL;
	(void)cudaGetLastError();
	if (status != cudaErrorMemoryAllocation)
		return device_cuda_error(dev, status, "cannot allocate memory", err);
	(void)cudaMemGetInfo(&available, &total);
	return error_set(err, -ENOMEM,
	                 "cannot allocate %.1f MiB of %s on GPU %d: %.1f MiB of its %.1f MiB are free",
	                 MIB(bytes), what, dev->index, MIB(available), MIB(total));
}

int device_alloc(struct device *dev, size_t bytes, void **out, struct error *err)
{
	int r = allocate(dev, bytes, "memory", out, err);

	if (r < 0)
		return r;
	device_zero(dev, *out, bytes);
	return 0;
}

void device_free(struct device *dev, void *p)
{
	(void)cudaFree(p);
}

void device_get_sizing(const struct device *dev, struct device_sizing *out, int64_t *memory)
{
	*out = (struct device_sizing){.engine = DEVICE_ENGINE_CUDA, .cudnn = dev->cudnn != NULL};
	*memory = dev->memory;
}

size_t device_logits_bytes(void)
{
	return cuda_logits_bytes();
}

size_t device_scratch_bytes(const struct device *dev, const struct device_shapes *s)
{
	size_t own = cuda_scratch_bytes(s), cudnn = attention_cudnn_scratch(dev, s);

	return own > cudnn ? own : cudnn;
}

int device_reserve_scratch(struct device *dev, size_t bytes, struct error *err)
{
	void *p;
	int r;

	if (bytes <= dev->base.scratch_size)
		return 0;
	r = allocate(dev, bytes, "scratch", &p, err);
	if (r < 0)
		return r;
	(void)cudaStreamSynchronize(dev->stream);
	(void)cudaFree(dev->base.scratch);
	dev->base.scratch = p;
	dev->base.scratch_size = bytes;
	return 0;
}

/* ---- faults ---- */
int device_cuda_error(const struct device *dev, cudaError_t status, const char *what, struct error *err)
{
	return error_set(err, status == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "GPU %d: %s: %s",
	                 dev->index, what, cudaGetErrorString(status));
}

void device_launched(struct device *dev, const char *kernel)
{
	cudaError_t status = cudaGetLastError();

	if (status == (cudaError_t)cudaErrorNoKernelImageForDevice)
		device_fault(dev, -ENODEV, "this engine has no code for sm_%d%d", dev->major, dev->minor);
	else if (status)
		device_fault(dev, -EIO, "%s: %s", kernel, cudaGetErrorString(status));
}

/* What the device has returned to a wait, or the fault before it. */
static int waited(struct device *dev, cudaError_t status, struct error *err)
{
	char where[24];
	int fault;

	snprintf(where, sizeof(where), "GPU %d", dev->index);
	fault = device_take_fault(dev, where, err);
	if (fault)
		return fault;
	/* After a kernel has failed, the context cannot be used: every later call returns the same error. */
	return status ? device_cuda_error(dev, status, "the computation failed", err) : 0;
}

static int wait_for_stream(struct device *dev, struct error *err)
{
	cudaError_t status = cudaStreamSynchronize(dev->compute);

	dev->staged = 0;
	return waited(dev, status, err);
}

int device_synchronize(struct device *dev, struct error *err)
{
	cudaError_t status = dev->aside ? cudaStreamSynchronize(dev->aside) : cudaSuccess;
	int r = wait_for_stream(dev, err);

	return r == 0 && status ? device_cuda_error(dev, status, "the computation failed", err) : r;
}

/* ---- transfers ---- */
static char *place_in_staging(const struct device *dev)
{
	return dev->staging + (size_t)dev->half * (STAGING / 2) + dev->staged;
}

/* Goes on in the other half, once the writes that last left from there have ended. */
static cudaError_t turn_staging(struct device *dev)
{
	cudaError_t status = cudaEventRecord(dev->left[dev->half], dev->stream);

	dev->half = !dev->half;
	dev->staged = 0;
	return status ? status : cudaEventSynchronize(dev->left[dev->half]);
}

int device_read(struct device *dev, void *host, const void *src, size_t bytes, struct error *err)
{
	bool small = bytes <= STAGING / 2 - dev->staged;
	void *to = small ? place_in_staging(dev) : host;
	cudaError_t status =
	    bytes ? cudaMemcpyAsync(to, src, bytes, cudaMemcpyDeviceToHost, dev->stream) : cudaSuccess;
	int r = wait_for_stream(dev, err);

	if (r == 0 && status)
		r = device_cuda_error(dev, status, "cannot be read from", err);
	if (r == 0 && small && bytes)
		memcpy(host, to, bytes);
	return r;
}

int device_write(struct device *dev, void *dst, const void *host, size_t bytes, struct error *err)
{
	bool small = bytes <= STAGING / 4;
	cudaError_t status = cudaSuccess;

	if (bytes == 0)
		return 0;
	if (small && round_up(bytes, 16) > STAGING / 2 - dev->staged)
		status = turn_staging(dev);
	if (small && !status) {
		char *place = place_in_staging(dev);

		memcpy(place, host, bytes);
		host = place;
		dev->staged += round_up(bytes, 16);
	}
	if (!status)
		status = cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, dev->stream);
	/* Where a GPU reads the process's own memory (Grace, HMM) the copy need not be done at return. */
	if (!status && !small) {
		status = cudaStreamSynchronize(dev->stream);
		dev->staged = 0;
	}
	return status ? device_cuda_error(dev, status, "cannot be written to", err) : 0;
}

void device_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
	cudaError_t status =
	    bytes ? cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, dev->stream) : cudaSuccess;

	if (status)
		device_fault(dev, -EIO, "copy: %s", cudaGetErrorString(status));
}

void device_zero(struct device *dev, void *dst, size_t bytes)
{
	cudaError_t status = bytes ? cudaMemsetAsync(dst, 0, bytes, dev->stream) : cudaSuccess;

	if (status)
		device_fault(dev, -EIO, "zero: %s", cudaGetErrorString(status));
}

/* ---- events ---- */
int device_event_create(struct device *dev, struct device_event **out, struct error *err)
{
	struct device_event *event = calloc(1, sizeof(*event));
	cudaError_t status;

	if (!event)
		return error_oom(err);
	status = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
	if (status) {
		free(event);
		return device_cuda_error(dev, status, "cannot make an event", err);
	}
	*out = event;
	return 0;
}

void device_event_destroy(struct device_event *event)
{
	if (event)
		(void)cudaEventDestroy(event->event);
	free(event);
}

void device_event_record(struct device *dev, struct device_event *event)
{
	cudaError_t status = cudaEventRecord(event->event, dev->stream);

	if (status)
		device_fault(dev, -EIO, "event: %s", cudaGetErrorString(status));
}

/* ---- operations aside ---- */
/* The compute stream waits for them unit by unit, so that they go first where both have work. */
static cudaError_t make_aside(struct device *dev)
{
	int least = 0, greatest = 0;
	cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);

	if (!status)
		status = cudaStreamCreateWithPriority(&dev->aside, cudaStreamNonBlocking, greatest);
	return status ? status : cudaEventCreateWithFlags(&dev->before_aside, cudaEventDisableTiming);
}

void device_aside_begin(struct device *dev)
{
	cudaError_t status = dev->before_aside ? cudaSuccess : make_aside(dev);

	if (!status)
		status = cudaEventRecord(dev->before_aside, dev->compute);
	if (!status)
		status = cudaStreamWaitEvent(dev->aside, dev->before_aside, 0);
	if (status)
		device_fault(dev, -EIO, "a second stream: %s", cudaGetErrorString(status));
	else
		dev->stream = dev->aside;
}

void device_aside_end(struct device *dev, struct device_event *done)
{
	cudaError_t status = cudaEventRecord(done->event, dev->stream);

	dev->stream = dev->compute;
	if (status)
		device_fault(dev, -EIO, "event: %s", cudaGetErrorString(status));
}

/* ---- host memory and its transfers ---- */
static int open_lane(struct device *dev, struct error *err)
{
	cudaError_t status = cudaSuccess;

	if (!dev->transfers)
		status = cudaStreamCreateWithFlags(&dev->transfers, cudaStreamNonBlocking);
	if (!status && !dev->computed)
		status = cudaEventCreateWithFlags(&dev->computed, cudaEventDisableTiming);
	return status ? device_cuda_error(dev, status, "cannot make a stream for transfers", err) : 0;
}

int device_alloc_host(struct device *dev, size_t bytes, void **out, struct error *err)
{
	cudaError_t status;
	int r = open_lane(dev, err);

	if (r < 0)
		return r;
	status = cudaMallocHost(out, bytes ? bytes : 1);
	if (status) {
		*out = NULL;
		(void)cudaGetLastError();
		return error_set(err, status == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
		                 "cannot allocate %.1f MiB of pinned host memory for GPU %d: %s", MIB(bytes),
		                 dev->index, cudaGetErrorString(status));
	}
	memset(*out, 0, bytes);
	return 0;
}

void device_free_host(struct device *dev, void *p)
{
	if (dev->transfers)
		(void)cudaStreamSynchronize(dev->transfers);
	(void)cudaFreeHost(p);
}

void device_transfer(struct device *dev, enum device_direction direction, void *dst, const void *src,
                     size_t bytes, struct device_event *done)
{
	enum cudaMemcpyKind kind =
	    direction == DEVICE_TO_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
	cudaError_t status = cudaEventRecord(dev->computed, dev->stream);

	if (!status)
		status = cudaStreamWaitEvent(dev->transfers, dev->computed, 0);
	if (!status && bytes)
		status = cudaMemcpyAsync(dst, src, bytes, kind, dev->transfers);
	if (!status && done)
		status = cudaEventRecord(done->event, dev->transfers);
	if (status)
		device_fault(dev, -EIO, "transfer: %s", cudaGetErrorString(status));
}

void device_event_wait(struct device *dev, struct device_event *event)
{
	cudaError_t status = cudaStreamWaitEvent(dev->stream, event->event, 0);

	if (status)
		device_fault(dev, -EIO, "event: %s", cudaGetErrorString(status));
}

int device_event_finish(struct device *dev, struct device_event *event, struct error *err)
{
	return waited(dev, cudaEventSynchronize(event->event), err);
}
