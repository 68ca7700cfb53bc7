/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel each pass of attention has in a run: a part of products_choose. */
#pragma once

#include "engine/checkpoint/algorithms.h"
#include "engine/checkpoint/ranks.h"
#include "engine/train/products.h"

/* Called by all ranks with the same table. Sets the kernel of this rank's device for the pass that the shape
 * names, and *changed where the table has to be written. */
int attention_choose(const struct ranks *ranks, const struct products_file *file, const char *kind,
                     const struct device_attention_shape *shape, struct algorithms *table, bool *changed,
                     struct error *err);
