/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that all files of the tokenizer share. Files of other rooms do not include this header. */
#pragma once

#include <stddef.h>

/* The id where there is no token. */
#define TOKEN_NONE (-1)
/* Texts are addressed with 32 bits; a longer one is refused. */
#define TOKENIZER_TEXT_MAX (1u << 30)

/* Grows *v (elements of `size` bytes) to hold n; 0 or -ENOMEM. */
int tokenizer_grow(void *v, size_t *cap, size_t n, size_t size);
