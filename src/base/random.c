/* SPDX-License-Identifier: Apache-2.0 */
/* One digit for each byte that the kernel gives. */
#include "base/random.h"

#include <errno.h>
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
