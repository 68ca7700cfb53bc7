/* SPDX-License-Identifier: Apache-2.0 */
/* Puts short examples together into rows: the greedy knapsack of LLaMA-Factory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Takes the largest item that still fits until none does, then begins the next row; of equal ones the later.
 * order[count] gets the items row after row, row_ends[…] the end of each row in it. Items longer than
 * capacity are left out. Returns the number of rows, or -ENOMEM. */
int64_t pack_knapsack(const int32_t *lengths, size_t count, int32_t capacity, size_t *order,
                      size_t *row_ends);
