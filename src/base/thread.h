/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that handle no signals. */
#pragma once

#include <pthread.h>

/* Starts a thread that blocks all signals, so that those of the caller handle them. 0, or -errno. The caller
 * joins or detaches it. */
int thread_start(pthread_t *out, void *(*run)(void *), void *context);
