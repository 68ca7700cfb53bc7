/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of this machine's devices, in a file of the user: ~/.cache/dtrain/rates-cpu.json, and -cuda. */
#pragma once

#include "engine/train/hardware.h"
#include "engine/train/rates.h"

/* Runs the worker of this machine's device with --measure, and writes the file, whose path it returns in
 * *path, owned by the caller. Takes half a minute. */
int rates_file_measure(char **path, struct error *err);
/* Those that were measured on such a device; *out NULL where there are none. Freed by the caller. */
int rates_file_read(const struct hardware *h, struct rates **out, struct error *err);
