/* SPDX-License-Identifier: Apache-2.0 */
/* Random names and numbers. */
#pragma once

#include <stddef.h>

/* Fills text with size - 1 random hexadecimal digits and a NUL; size is 1 to 257. -errno: the kernel gives no
 * random bytes. */
int random_hex(char *text, size_t size);
/* 0 to below 1; 0.5 where the kernel gives no random bytes. */
double random_fraction(void);
