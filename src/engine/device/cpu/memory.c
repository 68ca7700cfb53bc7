/* SPDX-License-Identifier: Apache-2.0 */
/* The memory functions of device.h on the CPU: allocation, transfers, scratch; and its events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/device/cpu/kernels.h"

struct device_event {
	int recorded;
};

static void *alloc_aligned(size_t bytes)
{
	size_t huge = (size_t)2 << 20;
	void *p = NULL;

	bytes = round_up(bytes ? bytes : 1, CACHE_LINE);
	if (posix_memalign(&p, bytes >= 2 * huge ? huge : CACHE_LINE, bytes))
		return NULL;
	/* Huge pages save TLB misses. This is advice only: a failure changes nothing. */
	if (bytes >= 2 * huge)
		(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

int device_alloc(struct device *dev, size_t bytes, void **out, struct error *err)
{
	void *p = alloc_aligned(bytes);

	if (!p)
		return error_set(err, -ENOMEM, "cannot allocate %.1f MiB of memory for the CPU engine",
		                 (double)bytes / (1 << 20));
	/* The threads that will use the memory zero it, so that its pages are on their NUMA nodes. */
	device_zero(dev, p, bytes);
	*out = p;
	return 0;
}

void device_free(struct device *dev, void *p)
{
	free(p);
}

int device_reserve_scratch(struct device *dev, size_t bytes, struct error *err)
{
	void *p;

	if (bytes <= dev->base.scratch_size)
		return 0;
	p = alloc_aligned(bytes);
	if (!p)
		return error_set(err, -ENOMEM, "cannot allocate %.1f MiB of scratch for the CPU engine",
		                 (double)bytes / (1 << 20));
	/* All of it is resident from now on, as it is planned, and not what an operation happens to use. */
	device_zero(dev, p, bytes);
	free(dev->base.scratch);
	dev->base.scratch = p;
	dev->base.scratch_size = bytes;
	return 0;
}

int device_synchronize(struct device *dev, struct error *err)
{
	return device_take_fault(dev, "cpu engine", err);
}

int device_read(struct device *dev, void *host, const void *src, size_t bytes, struct error *err)
{
	memcpy(host, src, bytes);
	return device_synchronize(dev, err);
}

int device_write(struct device *dev, void *dst, const void *host, size_t bytes, struct error *err)
{
	memcpy(dst, host, bytes);
	return 0;
}

void device_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
	const size_t piece = 64 << 10;

	if (bytes <= piece) {
		memmove(dst, src, bytes);
		return;
	}
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (size_t i = 0; i < (bytes + piece - 1) / piece; i++)
		memcpy((char *)dst + i * piece, (const char *)src + i * piece,
		       bytes - i * piece < piece ? bytes - i * piece : piece);
}

void device_zero(struct device *dev, void *dst, size_t bytes)
{
	const size_t piece = 64 << 10;

#pragma omp parallel for schedule(static) num_threads(dev->threads) if (bytes > piece)
	for (size_t i = 0; i < (bytes + piece - 1) / piece; i++)
		memset((char *)dst + i * piece, 0, bytes - i * piece < piece ? bytes - i * piece : piece);
}

/* Every operation is complete when its call returns, so an event has nothing to wait for. */
int device_event_create(struct device *dev, struct device_event **out, struct error *err)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : error_oom(err);
}

void device_event_destroy(struct device_event *event)
{
	free(event);
}

void device_event_record(struct device *dev, struct device_event *event)
{
	__atomic_store_n(&event->recorded, 1, __ATOMIC_RELEASE);
}

int device_alloc_host(struct device *dev, size_t bytes, void **out, struct error *err)
{
	return device_alloc(dev, bytes, out, err);
}

void device_free_host(struct device *dev, void *p)
{
	device_free(dev, p);
}

void device_transfer(struct device *dev, enum device_direction direction, void *dst, const void *src,
                     size_t bytes, struct device_event *done)
{
	device_copy(dev, dst, src, bytes);
	if (done)
		device_event_record(dev, done);
}

void device_event_wait(struct device *dev, struct device_event *event)
{
}

void device_aside_begin(struct device *dev)
{
}

void device_aside_end(struct device *dev, struct device_event *done)
{
	device_event_record(dev, done);
}

int device_event_finish(struct device *dev, struct device_event *event, struct error *err)
{
	return device_synchronize(dev, err);
}
