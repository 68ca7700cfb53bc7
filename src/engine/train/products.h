/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a training: which algorithm each of its matrix products has on a GPU, and which kernels its
 * attention. What the file of the run has for the kind of device is used as it is. What is missing is
 * measured by the first rank of each kind of device, so that all ranks of a kind compute with the same
 * algorithms, and is added to the file.
 */
#pragma once

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"
#include "engine/train/options.h"

struct products_file {
	const char *path; /* as this rank finds it */
	bool resumes; /* the run goes on from a checkpoint, whose bits other algorithms would not continue */
	/* Writes the file where this rank is to write one; called on all ranks. */
	int (*write)(void *context, const char *text, struct error *err);
	/* Takes a line for the log. Of several ranks, one calls it. */
	void (*notify)(void *context, const char *message);
	/* Calls device_attention_check, in another process where that can open the device: it may fail or
	 * hang. -ENODEV: the device could not be opened, and the kernel was not checked. NULL: it is called
	 * in this process. */
	int (*check_attention)(void *context, const struct device_attention_shape *shape, double seconds[2],
	                       struct error *err);
	void *context;
};

/* Called by all ranks (comm NULL: one) with the same options, before trainer_create: the memory of the device
 * is still free. max_row as trainer_create finds it. Does nothing on a device without such a choice. */
int products_choose(struct device *dev, struct comm *comm, const char *node, const struct model_config *c,
                    const struct train_options *options, int64_t max_row, const struct products_file *file,
                    struct error *err);
