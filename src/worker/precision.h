/* SPDX-License-Identifier: Apache-2.0 */
/* The precision that all ranks of a run train in, where train.precision is "auto". */
#pragma once

#include "base/error.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/device/sizes.h"

enum precision_reason {
	PRECISION_GIVEN,      /* the run file gives it */
	PRECISION_CHECKPOINT, /* that of the checkpoint that the run goes on from */
	PRECISION_DEVICE,     /* the devices of all ranks decide */
};

struct precision {
	enum dtype type;
	bool fp8; /* with bf16; never by "auto" */
	enum precision_reason reason;
	int slower; /* PRECISION_DEVICE: ranks whose device computes bf16 slower than fp32 */
};

/* The best for one device. */
enum dtype precision_of_device(const struct device *dev);

/* "fp32", "bf16", "fp16" or "fp8"; static. */
const char *precision_label(const struct precision *p);

/* Called by all ranks with the same wanted ("auto" or a type's name); comm may be NULL for one. checkpoint:
 * the precision that rank 0's checkpoint was made with, by name; NULL on the other ranks, and where there is
 * no checkpoint; one made with fp8 goes on in bf16. bf16 only where all ranks compute it faster than fp32:
 * they have to agree. -EOPNOTSUPP: fp8 is wanted, and this rank's device has none. */
int precision_choose(const char *wanted, const char *checkpoint, struct device *dev, struct comm *comm,
                     struct precision *out, struct error *err);
/* "bf16 (faster than fp32 on every rank)": for the log. Into buf, returned. */
const char *precision_describe(char *buf, size_t size, const struct precision *p);
/* Where the engine computes the model's attention without tensor cores: a warning that says what would be
 * faster. Into buf, returned; NULL: there is nothing to warn of. */
const char *precision_warn_of_attention(char *buf, size_t size, const struct precision *p,
                                        const struct device_sizing *sizing, int head_dim, bool capped);
