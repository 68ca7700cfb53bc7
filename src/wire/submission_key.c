/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys of submissions are valid. */
#include "wire/submission_key.h"

#include <string.h>

bool submission_key_is_valid(const char *key)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	size_t len = strlen(key);

	return len > 0 && len <= SUBMISSION_KEY_MAX && strspn(key, allowed) == len;
}
