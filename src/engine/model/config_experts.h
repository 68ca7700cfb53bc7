/* SPDX-License-Identifier: Apache-2.0 */
/* Of config_read.c alone. */
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "engine/model/families.h"

/* Fills in the experts of c, whose other sizes have been read, where the family has any. */
int config_read_experts(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                        struct error *err);
