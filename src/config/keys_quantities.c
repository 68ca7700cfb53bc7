/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that stand for one integer or two: times such as "1h30m", and ranges such as "2..4". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "config/keys_source.h"

/* Decimal digits at *text, and past them. */
static int read_digits(const char **text, int64_t *out)
{
	const char *p = *text;
	int64_t n = 0;

	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++)
		if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n))
			return -ERANGE;
	*text = p;
	*out = n;
	return 0;
}

/* Each unit at most once, the larger one first; the last one is seconds where none is named. */
int keys_parse_duration(const char *text, int64_t *seconds)
{
	static const struct {
		char letter;
		int64_t seconds;
	} units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
	size_t next = 0;
	int64_t sum = 0;
	bool named = true;

	if (!*text)
		return -EINVAL;
	while (*text) {
		int64_t n;
		int r = read_digits(&text, &n);

		if (r < 0 || !named)
			return r < 0 ? r : -EINVAL;
		named = *text != '\0';
		while (named && next < ARRAY_SIZE(units) && units[next].letter != *text)
			next++;
		if (next == ARRAY_SIZE(units) || (!named && next > 0))
			return -EINVAL;
		if (__builtin_mul_overflow(n, named ? units[next].seconds : 1, &n) ||
		    __builtin_add_overflow(sum, n, &sum))
			return -ERANGE;
		text += named;
		next += named;
	}
	*seconds = sum;
	return 0;
}

int keys_parse_range(const char *text, struct key_range *range)
{
	struct key_range r = {0};
	int code = read_digits(&text, &r.low);

	r.high = r.low;
	if (code == 0 && str_starts(text, "..")) {
		text += 2;
		code = read_digits(&text, &r.high);
	}
	if (code < 0)
		return code;
	if (*text || r.high < r.low)
		return -EINVAL;
	*range = r;
	return 0;
}
