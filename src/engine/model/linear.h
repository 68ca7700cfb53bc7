/* SPDX-License-Identifier: Apache-2.0 */
/* What linear.c is built on: groups of matrices (linear_group.c) and their adapters (linear_adapters.c). Of
 * the model's own files alone. */
#pragma once

#include "engine/model/internal.h"

/* Matrices of a group that are one product, or one that has an adapter: they write columns [column, column +
 * out) of a row. */
struct linear_columns {
	enum parameter_role role; /* of the first */
	int64_t column, out;
};

struct linear_group {
	int64_t in, out;
	int n, adapters;
	struct linear_columns product[MODEL_GROUP_MAX], adapter[MODEL_GROUP_MAX];
};

/* The rows of a matrix [out, in], and its columns. */
int64_t linear_rows_of(const struct model *m, enum parameter_role role);
int64_t linear_columns_in(const struct model *m, enum parameter_role role);
bool linear_is_adapted(const struct model *m, int unit, enum parameter_role role);
/* The group that begins with `leader`. */
struct linear_group linear_find_group(const struct model *m, int unit, enum parameter_role leader);
/* PARAMETER_ROLES: the matrix has no bias. */
enum parameter_role linear_bias_of(enum parameter_role role);
/* Whether the matrix lies as [in, out]. Those in 4 bits lie turned (layout.h). */
bool linear_is_transposed(const struct model *m, int unit, enum parameter_role role);
/* Column `column` of the first row of y, in the type of activations. */
char *linear_at_column(const struct model *m, const void *y, int64_t column);
/* Products that are listed are not computed, and what is done between them is left out. */
bool linear_is_listing(const struct model *m);
void linear_compute(const struct model *m, const struct device_gemm *product);

/* y[tokens, out] += scale · x · Aᵀ · Bᵀ, for each adapter of the group. */
void adapters_add(struct model *m, int unit, const struct linear_group *g, void *y, const void *x,
                  int64_t tokens);
/* dx[tokens, in] += scale · dy · B · A, through the mask of dropout. */
void adapters_input_gradient(struct model *m, int unit, const struct linear_group *g, void *dx,
                             const void *dy, int64_t tokens);
/* dA = (scale · dy · B)ᵀ · x, dB = scale · dyᵀ · (x · Aᵀ); first: they are set, else added to. */
void adapters_weight_gradient(struct model *m, int unit, const struct linear_group *g, const void *dy,
                              const void *input, int64_t tokens, bool first);

/* y = magnitude / norm · y + bias */
void dora_scale_outputs(struct model *m, int unit, const struct linear_group *g, void *y, int64_t tokens);
/* The gradient of the outputs before they were scaled; dy itself where nothing is. */
const void *dora_scaled_gradient(struct model *m, int unit, const struct linear_group *g, const void *dy,
                                 int64_t tokens);
struct device_columns dora_columns_of(const struct model *m, const struct linear_group *g,
                                      const struct linear_columns *c, int64_t tokens);
