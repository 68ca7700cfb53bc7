/* SPDX-License-Identifier: Apache-2.0 */
/* The file with what a preference task knows of its reference model: the log-probabilities of all answers
 * (trainer_compute_reference), in the output directory. Rank 0 writes and reads it for all ranks. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/train/trainer.h"

struct reference_file {
	const char *directory;
	const char *key; /* names the data and the reference model: a file with another one is not taken */
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	struct trainer *trainer;
};

/* Of rank 0; nothing on the others. */
int reference_save(const struct reference_file *f, struct error *err);
/* Every rank calls it. *found false: there is no whole file with this key. */
int reference_load(const struct reference_file *f, bool *found, struct error *err);
