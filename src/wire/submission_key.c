/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of submissions: 128 random bits, in hexadecimal. */
#include "wire/submission_key.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int submission_key_make(char key[SUBMISSION_KEY_SIZE])
{
	unsigned char bits[(SUBMISSION_KEY_SIZE - 1) / 2];

	/* So few bytes come at once, or not at all. */
	if (getrandom(bits, sizeof(bits), 0) < 0)
		return -errno;
	for (size_t i = 0; i < sizeof(bits); i++)
		snprintf(key + 2 * i, 3, "%02x", bits[i]);
	return 0;
}

bool submission_key_is_valid(const char *key)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	size_t len = strlen(key);

	return len > 0 && len <= SUBMISSION_KEY_MAX && strspn(key, allowed) == len;
}
