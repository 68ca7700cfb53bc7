/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the logs of the ranks on this node below log_quota: looks at them each second. */
#pragma once

#include "dtraind/daemon.h"

struct log_quotas;

int log_quotas_create(struct daemon *d, struct log_quotas **out, struct error *err);
void log_quotas_destroy(struct log_quotas *quotas); /* NULL: nothing */
