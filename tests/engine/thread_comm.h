/* SPDX-License-Identifier: Apache-2.0 */
/* An implementation of comm.h between threads of one process, for tests of code that uses it. A collective is
 * done when it is waited for (by all ranks), not before. Until then its buffers are its own: a test aborts
 * where they were touched meanwhile, also by another collective. */
#pragma once

#include "engine/comm/comm.h"

/* comms[world_size] are filled; destroyed one by one. */
void thread_comm_create(int world_size, struct comm **comms);
