/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of CUDA take of the scratch: constants that their sizes are computed from, too. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define COLUMN_PARTS 512
#define WORKSPACE    ((size_t)32 << 20) /* of cuBLASLt; what it recommends for Hopper */

/* Our own attention's backward pass keeps a number for each row of each head. */
static inline size_t attention_scratch(int64_t tokens, int heads)
{
	return (size_t)tokens * (size_t)heads * sizeof(float);
}
