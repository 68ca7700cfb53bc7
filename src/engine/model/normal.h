/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that are a function of a key, a stream and a counter alone: any part of a tensor can be
 * filled by itself. */
#pragma once

#include <stdint.h>

/* Philox 4x32-10 (Salmon et al. 2011): four words of this counter. */
void random_words(uint64_t key, uint64_t counter, uint32_t stream, uint32_t out[4]);
/* Elements [first, first + n) of the stream's standard normals, times scale. The same bits on every
 * processor. */
void random_normals(uint64_t key, uint32_t stream, int64_t first, int64_t n, float scale, float *out);
