/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the precision that all ranks of a run train in. */
#include "worker/precision.h"

#include <errno.h>
#include <stdio.h>

#include "base/str.h"
#include "options/precision_names.h"

enum dtype precision_of_device(const struct device *dev)
{
	return device_supports(dev, DTYPE_BF16) ? DTYPE_BF16 : DTYPE_F32;
}

/* Sums over the ranks through `staging`, which is on the device. */
static int sum_through(double *values, int n, struct device *dev, struct comm *comm, void *staging,
                       struct error *err)
{
	size_t bytes = (size_t)n * sizeof(*values);
	int r;

	if ((r = device_write(dev, staging, values, bytes, err)) < 0 ||
	    (r = comm_wait(comm, comm_all_reduce_f64(comm, staging, n, COMM_SUM), err)) < 0 ||
	    (r = comm_flush(comm, err)) < 0)
		return r;
	return device_read(dev, values, staging, bytes, err);
}

/* Sums over the ranks, in place. */
static int sum(double *values, int n, struct device *dev, struct comm *comm, struct error *err)
{
	void *staging;
	int r;

	if (!comm)
		return 0;
	if ((r = device_alloc(dev, (size_t)n * sizeof(*values), &staging, err)) < 0)
		return r;
	r = sum_through(values, n, dev, comm, staging, err);
	device_free(dev, staging);
	return r;
}

int precision_choose(const char *wanted, const char *checkpoint, struct device *dev, struct comm *comm,
                     struct precision *out, struct error *err)
{
	enum { SLOWER, CHECKPOINT, CHECKPOINT_BF16, CHECKPOINT_F16, VALUES };
	double values[VALUES] = {[SLOWER] = precision_of_device(dev) == DTYPE_F32};
	enum dtype type = DTYPE_F32;
	int r;

	*out = (struct precision){.reason = PRECISION_GIVEN};
	if (precision_is_fp8(wanted) && !device_supports_fp8(dev))
		return error_set(err, -EOPNOTSUPP,
		                 "train.precision = \"fp8\": %s has no fp8 arithmetic; bf16 works",
		                 device_describe(dev));
	if (precision_is_fp8(wanted)) {
		out->type = DTYPE_BF16;
		out->fp8 = true;
		return 0;
	}
	if (!str_eq(wanted, "auto")) {
		precision_parse(wanted, &out->type);
		return 0;
	}
	if (checkpoint) {
		precision_parse(precision_is_fp8(checkpoint) ? "bf16" : checkpoint, &type);
		values[CHECKPOINT] = 1;
		values[CHECKPOINT_BF16] = type == DTYPE_BF16;
		values[CHECKPOINT_F16] = type == DTYPE_F16;
	}
	if ((r = sum(values, VALUES, dev, comm, err)) < 0)
		return r;
	out->slower = (int)values[SLOWER];
	out->reason = values[CHECKPOINT] > 0 ? PRECISION_CHECKPOINT : PRECISION_DEVICE;
	if (values[CHECKPOINT_F16] > 0) {
		out->type = DTYPE_F16;
		return 0;
	}
	out->type = (out->reason == PRECISION_CHECKPOINT ? values[CHECKPOINT_BF16] > 0 : out->slower == 0)
	                ? DTYPE_BF16
	                : DTYPE_F32;
	return 0;
}

const char *precision_label(const struct precision *p)
{
	return p->fp8 ? "fp8" : precision_name(p->type);
}

const char *precision_describe(char *buf, size_t size, const struct precision *p)
{
	const char *name = precision_label(p);

	if (p->reason == PRECISION_GIVEN)
		snprintf(buf, size, "%s", name);
	else if (p->reason == PRECISION_CHECKPOINT)
		snprintf(buf, size, "%s (auto: as the checkpoint)", name);
	else if (p->slower == 0)
		snprintf(buf, size, "%s (auto: every rank's device multiplies it)", name);
	else
		snprintf(buf, size, "%s (auto: %d rank%s no bf16 arithmetic)", name, p->slower,
		         p->slower == 1 ? " has" : "s have");
	return buf;
}

const char *precision_warn_of_attention(char *buf, size_t size, const struct precision *p,
                                        const struct device_sizing *sizing, int head_dim, bool capped)
{
	if (device_sizing_attention(sizing, p->type, head_dim, capped) != DEVICE_ATTENTION_PLAIN)
		return NULL;
	if (device_sizing_attention(sizing, DTYPE_BF16, head_dim, capped) != DEVICE_ATTENTION_PLAIN)
		snprintf(
		    buf, size,
		    "attention in fp32 does not use the tensor cores of this device; it is many times faster "
		    "with train.precision = \"bf16\" or \"fp16\"");
	else
		snprintf(
		    buf, size,
		    "attention with heads of %d does not use the tensor cores of this device; it is many "
		    "times faster in models with heads of 64, 96, 128 or 256, in bf16 and fp16",
		    head_dim);
	return buf;
}
