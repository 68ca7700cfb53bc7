/* SPDX-License-Identifier: Apache-2.0 */
/* The largest singular values of a matrix, with their vectors: what PiSSA starts from. On the host, with
 * threads of OpenMP, whose number changes no bit. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* The `rank` largest of W [rows, cols], rank at most the smaller of both: W ≈ u · diag(s) · v, u [rows,
 * rank], s descending, v [rank, cols]. iterations 0: exactly (one-sided Jacobi, Hestenes 1958), which takes
 * time in proportion to rows · cols · min(rows, cols); else by so many power iterations over a random
 * subspace (Halko et al. 2011, algorithm 4.4), drawn from the seed, in proportion to rows · cols · rank ·
 * iterations. */
int svd_largest(const float *w, int64_t rows, int64_t cols, int64_t rank, int iterations, uint64_t seed,
                float *u, float *s, float *v, struct error *err);
