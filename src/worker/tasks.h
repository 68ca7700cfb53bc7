/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker does: one function for each task, and the one that calls them. */
#pragma once

#include "config/run.h"
#include "worker/environment.h"
#include "worker/service_client.h"

int worker_main(void);  /* the exit status */
int measure_main(void); /* the same of --measure, which prints the rates of the device */

/* pretrain, sft and the tasks of preferences. 0: done; 1: stopped by a signal; or a negative errno. */
int train_task(const struct run_config *c, const struct environment *env, struct service_client *service,
               struct error *err);

/* Loads the model and prints the continuation of the prompt as it comes. */
int generate_task(const struct run_config *c, const struct environment *env, struct error *err);
