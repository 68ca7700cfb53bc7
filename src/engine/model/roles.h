/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout knows of each role of a parameter (layout.h). */
#pragma once

#include "engine/model/layout.h"

/* The role's shape in base unit `base` of this model, [out, in], [n] or three; returns the dimensions, 0: the
 * unit has none. */
int role_shape(const struct model_config *c, enum parameter_role role, int base, int64_t shape[3]);
/* Elements of such a shape. */
int64_t role_elements(int dims, const int64_t shape[3]);
/* Whether the role's matrix is stored [in, out] in this model. */
bool role_transposed(const struct model_config *c, enum parameter_role role);
/* Whether each expert of a block has a matrix of the role; and the elements from the beginning of one
 * expert's to that of the next. */
bool role_of_experts(const struct model_config *c, enum parameter_role role);
int64_t role_distance(const struct model_config *c, enum parameter_role role);
/* The base unit of the role: 0, the last one (layers + 1), or 1 for every block. */
int role_unit(const struct model_config *c, enum parameter_role role);
/* Whether it lies directly behind the role before it in the order of a unit, without a gap. */
bool role_follows(enum parameter_role role);
/* Of the families that are named as Llama is: below the block, or whole. */
const char *role_name(enum parameter_role role);
/* The whole name, of the role in base unit `base`, and of the expert where its matrices are experts' (-1:
 * without its number). */
void role_parameter_name(const struct model_config *c, enum parameter_role role, int base, int expert,
                         char *buf, size_t size);
/* The same in the files of a model that are written. */
void role_saved_name(const struct model_config *c, enum parameter_role role, int base, int expert, char *buf,
                     size_t size);
