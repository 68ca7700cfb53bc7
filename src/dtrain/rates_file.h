/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of this machine's devices, in a file of the user: ~/.cache/dtrain/rates-cpu.json, and -cuda. */
#pragma once

#include "engine/train/hardware.h"
#include "engine/train/rates.h"

/* Runs the worker of this machine's device with --measure, and writes the file, whose path it returns in
 * *path, owned by the caller. Takes a minute. */
int rates_file_measure(char **path, struct error *err);
