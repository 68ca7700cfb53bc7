/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

/* Loads libnccl.so.2, once; to be called before any of NCCL's functions. err names what is missing. */
int nccl_load(struct error *err);
