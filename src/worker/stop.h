/* SPDX-License-Identifier: Apache-2.0 */
/* SIGTERM and SIGINT: end at once while nothing would be lost, else after the current step. */
#pragma once

#include <stdbool.h>

void stop_init(void);            /* installs the handlers */
void stop_defer(bool defer);     /* from now on a signal is recorded and does not end the process */
int stop_signal(void);           /* the signal that was received, or 0 */
int stop_exit_status(void);      /* 128 + signal; SIGTERM where another rank received it */
bool stop_requested(void *none); /* as train_callbacks.should_stop */
