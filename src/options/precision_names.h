/* SPDX-License-Identifier: Apache-2.0 */
/* The names that a run file has for precisions. */
#pragma once

#include <stdbool.h>

#include "engine/device/dtype.h"

/* By name of the run file: "fp32", "bf16", "auto"; false: another. *type is left alone for "auto". */
bool precision_parse(const char *name, enum dtype *type);
/* "fp8": bf16 in which the products of the blocks' matrices are in fp8. */
bool precision_is_fp8(const char *name);
const char *precision_name(enum dtype type);
