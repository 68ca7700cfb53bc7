/* SPDX-License-Identifier: Apache-2.0 */
/* What adapters begin with under PiSSA (Meng et al. 2024, https://arxiv.org/abs/2404.02948): the largest
 * singular values of their matrix, with their vectors. A second half of the stored rank holds the same values
 * with the opposite sign (tuning.h), so that at the start the adapters add nothing to the model. */
#pragma once

#include "engine/model/layout.h"

struct pissa_start;

/* One rank computes this while the others wait in a collective: -EINVAL, with the time and with what to set,
 * where the exact singular values (svd.h) of the largest matrix would take `threads` threads more than half
 * of the collective's timeout. */
int pissa_check_time(const struct model_layout *layout, const struct model_tuning *tuning, int threads,
                     double timeout_s, struct error *err);

/* All is borrowed; `weights` produces the elements of the matrices. The seed is that of the subspaces. */
int pissa_start_create(const struct model_layout *layout, const struct model_tuning *tuning, uint64_t seed,
                       model_fill_fn weights, void *context, struct pissa_start **out, struct error *err);
void pissa_start_free(struct pissa_start *start);
DEFINE_CLEANUP(struct pissa_start *, pissa_start_free)
/* The fill (layout.h) of A and B. It keeps what it has computed for the matrix that it was asked for last. */
int pissa_start_fill(struct pissa_start *start, const struct model_parameter *p, int64_t first, int64_t n,
                     float *out, struct error *err);
