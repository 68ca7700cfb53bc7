/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <nccl.h>
#include <stdbool.h>

#include "base/error.h"

/* Loads libnccl.so.2, once; to be called before any of NCCL's functions. err names what is missing. */
int nccl_load(struct error *err);

/* Symmetric windows, which NCCL has since 2.27, whatever the headers are that this is compiled with. */
bool nccl_has_windows(void);
/* ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC, a collective: *window stays NULL until NCCL has
 * accepted it, and where it makes none of this memory. */
ncclResult_t nccl_window_register(ncclComm_t comm, void *memory, size_t size, void **window);
ncclResult_t nccl_window_deregister(ncclComm_t comm, void *window);
