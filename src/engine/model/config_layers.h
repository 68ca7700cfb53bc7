/* SPDX-License-Identifier: Apache-2.0 */
/* Of config_read.c alone. */
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "engine/model/families.h"

/* Fills in which layers of c, whose sizes have been read, have a window, linear attention, or no rotation. */
int config_read_layers(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                       struct error *err);
