/* SPDX-License-Identifier: Apache-2.0 */
/* The weight of a module with its adapter in it, in fp32, a row at a time: W + scale·B·A, or with DoRA (Liu
 * et al. 2024, https://arxiv.org/abs/2402.09353) m · (W + scale·B·A) / |W + scale·B·A|, row by row of [out,
 * in]. Besides the adapter's matrices in fp32 it needs memory for two rows. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/peft.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/layout.h"

struct merge;

/* w: the base's weight, in the set `base`; all is borrowed. Values of the adapter have to be finite. */
int merge_create(const struct safetensors *base, const struct tensor *w, const struct peft_adapter *a,
                 const struct peft_module *m, struct merge **out, struct error *err);
void merge_free(struct merge *m);
DEFINE_CLEANUP(struct merge *, merge_free)
/* -ENOTSUP where the adapter does not belong to the weights of the base as they are. */
int merge_check(const struct peft_adapter *a, const char *directory, struct error *err);
/* Whether a weight of that name is an embedding of tokens or a head. */
bool merge_is_embedding_or_head(const char *weight);
/* Row `row` of the weight as the base stores it: w->shape[1] values. */
int merge_row(struct merge *m, int64_t row, float *out, struct error *err);

/* The weights of a whole model with an adapter in them, for a fill (layout.h). `base` and `layout` are
 * borrowed; the layout is that of the model with a head of its own, and `base` was checked (parameters_check)
 * against that of the model as it is. Of an embedding and a head that are tied the base may have one: the
 * other has its weights. Refuses what peft_adapter_open and merge_check refuse. */
struct merged_model;
int merged_model_open(const char *adapter, const struct model_layout *layout, struct safetensors *base,
                      struct merged_model **out, struct error *err);
void merged_model_close(struct merged_model *m);
DEFINE_CLEANUP(struct merged_model *, merged_model_close)
/* Whether the adapter changes the embedding or the head. A model that ties the two is untied then, as PEFT
 * changes the one and not the other. */
bool merged_model_unties(const struct merged_model *m);
int merged_model_fill(void *merged_model, const struct model_parameter *p, int64_t first, int64_t n,
                      float *out, struct error *err);
