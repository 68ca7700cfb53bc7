/* SPDX-License-Identifier: Apache-2.0 */
/* Of the bytes that the kernel gives: one digit for each, or a number of four. */
#include "base/random.h"

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>

int random_hex(char *text, size_t size)
{
	/* So few bytes come at once, or not at all. */
	if (getrandom(text, size - 1, 0) < 0)
		return -errno;
	for (size_t i = 0; i + 1 < size; i++)
		text[i] = "0123456789abcdef"[text[i] & 15];
	text[size - 1] = '\0';
	return 0;
}

double random_fraction(void)
{
	uint32_t bits;

	return getrandom(&bits, sizeof(bits), 0) < 0 ? 0.5 : bits / 4294967296.0;
}
