/* SPDX-License-Identifier: Apache-2.0 */
/* Growing byte strings; text of numbers, sizes and durations; numbers out of text; the distance between
 * words. */
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool reserve(struct strbuf *b, size_t more)
{
	size_t cap = b->cap ? b->cap : 64;
	char *p;

	if (b->failed)
		return false;
	if (more < b->cap - b->len && b->cap)
		return true;
	while (cap - b->len <= more) {
		if (cap > SIZE_MAX / 2) {
			b->failed = true;
			return false;
		}
		cap *= 2;
	}
	p = realloc(b->data, cap);
	if (!p) {
		b->failed = true;
		return false;
	}
	b->data = p;
	b->cap = cap;
	return true;
}

void strbuf_add(struct strbuf *b, const void *data, size_t len)
{
	if (!reserve(b, len))
		return;
	if (len)
		memcpy(b->data + b->len, data, len);
	b->len += len;
	b->data[b->len] = '\0';
}

void strbuf_adds(struct strbuf *b, const char *s)
{
	strbuf_add(b, s, strlen(s));
}

void strbuf_addc(struct strbuf *b, char c)
{
	strbuf_add(b, &c, 1);
}

void strbuf_addv(struct strbuf *b, const char *fmt, va_list ap)
{
	va_list again;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n < 0)
		b->failed = true;
	else if (reserve(b, n)) {
		vsnprintf(b->data + b->len, n + 1, fmt, again);
		b->len += n;
	}
	va_end(again);
}

void strbuf_addf(struct strbuf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	strbuf_addv(b, fmt, ap);
	va_end(ap);
}

void strbuf_reset(struct strbuf *b)
{
	b->len = 0;
	b->failed = false;
	if (b->data)
		b->data[0] = '\0';
}

void strbuf_free(struct strbuf *b)
{
	free(b->data);
	*b = (struct strbuf){0};
}

char *strbuf_steal(struct strbuf *b)
{
	char *s;

	strbuf_add(b, "", 0);
	if (b->failed) {
		strbuf_free(b);
		return NULL;
	}
	s = b->data;
	*b = (struct strbuf){0};
	return s;
}

char *str_printf(const char *fmt, ...)
{
	struct strbuf b = {0};
	va_list ap;

	va_start(ap, fmt);
	strbuf_addv(&b, fmt, ap);
	va_end(ap);
	return strbuf_steal(&b);
}

int str_replace(char **to, const char *from)
{
	char *copy = from ? strdup(from) : NULL;

	if (from && !copy)
		return -ENOMEM;
	free(*to);
	*to = copy;
	return 0;
}

bool str_starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
	size_t n = strlen(s), m = strlen(suffix);

	return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool str_eq(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

bool str_eq_host(const char *a, const char *b)
{
	return a && b ? strcasecmp(a, b) == 0 : a == b;
}

/* Bytes of the well-formed character at s, 0: there is none. */
static size_t utf8_length(const unsigned char *s)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
	uint32_t c = n > 1 ? *s & (0x7f >> n) : *s;

	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	return n > 1 && (c < least[n] || c > 0x10ffff || c >> 11 == 0xd800 >> 11) ? 0 : n;
}

bool str_is_utf8(const char *s)
{
	size_t n = 1;

	for (; *s && n > 0; s += n)
		n = utf8_length((const unsigned char *)s);
	return n > 0;
}

size_t str_control_length(const char *s)
{
	const unsigned char *c = (const unsigned char *)s;

	if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
		return 2;
	return (*c > 0 && *c < 0x20) || *c == 0x7f;
}

char *str_make_plain(char *s)
{
	for (char *p = s; *p; p++)
		if (*p != '\n' && *p != '\t')
			memset(p, '?', str_control_length(p));
	return s;
}

char *str_make_utf8(char *s)
{
	for (char *p = s; *p;) {
		size_t n = utf8_length((const unsigned char *)p);

		if (n == 0)
			*p = '?';
		p += n ? n : 1;
	}
	return s;
}

char *str_strip(char *s)
{
	char *end;

	while (isspace((unsigned char)*s))
		s++;
	end = s + strlen(s);
	while (end > s && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	return s;
}

int str_to_int64(const char *s, int64_t min, int64_t max, int64_t *out)
{
	char *end;
	long long v;

	if (!*s || isspace((unsigned char)*s))
		return -EINVAL;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (*end)
		return -EINVAL;
	if (errno == ERANGE || v < min || v > max)
		return -ERANGE;
	*out = v;
	return 0;
}

int str_to_double(const char *s, double *out)
{
	char *end;
	double v;

	if (!*s || isspace((unsigned char)*s))
		return -EINVAL;
	v = strtod(s, &end);
	if (*end || !isfinite(v))
		return -EINVAL;
	*out = v;
	return 0;
}

const char *str_count(char *buf, size_t size, int64_t n, const char *noun)
{
	snprintf(buf, size, "%" PRId64 " %s%s", n, noun, n == 1 ? "" : "s");
	return buf;
}

const char *str_bytes(char *buf, size_t size, uint64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double v = (double)bytes;
	size_t i = 0;

	while (v >= 1024 && i + 1 < ARRAY_SIZE(unit)) {
		v /= 1024;
		i++;
	}
	snprintf(buf, size, i == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, unit[i]);
	return buf;
}

const char *str_duration(char *buf, size_t size, double seconds)
{
	/* No number at all is no time; beyond some thousand years it does not matter. */
	long s = seconds > 0 ? (long)(MIN(seconds, 1e11) + 0.5) : 0;

	if (s < 60)
		snprintf(buf, size, "%lds", s);
	else if (s < 3600)
		snprintf(buf, size, "%ldm%02lds", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, size, "%ldh%02ldm", s / 3600, s / 60 % 60);
	else
		snprintf(buf, size, "%ldd%02ldh", s / 86400, s / 3600 % 24);
	return buf;
}

const char *str_millions(char *buf, size_t size, int64_t n)
{
	if (n < 1000000)
		snprintf(buf, size, "%lld", (long long)n);
	else
		snprintf(buf, size, "%.1f M", (double)n / 1e6);
	return buf;
}

const char *str_measure(char *buf, size_t size, double value, int decimals)
{
	bool fits = fabs(value) < 1e6 || !isfinite(value);

	snprintf(buf, size, fits ? "%.*f" : "%.*e", fits ? MIN(decimals, 8) : 3, value);
	return buf;
}

char *str_path_join(const char *base, const char *path)
{
	if (path[0] == '/' || !base || !*base)
		return strdup(path);
	return str_printf("%s%s%s", base, str_ends(base, "/") ? "" : "/", path);
}

void str_list_free(char **list)
{
	for (char **p = list; p && *p; p++)
		free(*p);
	free(list);
}

size_t str_distance(const char *a, const char *b)
{
	enum { LONGEST = 128 };
	size_t n = strlen(a), m = strlen(b), rows[3][LONGEST + 1];

	if (n > LONGEST || m > LONGEST)
		return MAX(n, m);
	for (size_t i = 0; i <= n; i++) {
		size_t *row = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

		row[0] = i;
		for (size_t j = 1; j <= m; j++) {
			if (i == 0) {
				row[j] = j;
				continue;
			}
			row[j] = MIN(MIN(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = MIN(row[j], before[j - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

char **str_list_copy(char *const *list)
{
	size_t count = 0;
	char **copy;

	while (list && list[count])
		count++;
	copy = calloc(count + 1, sizeof(*copy));
	for (size_t i = 0; copy && i < count; i++)
		if (!(copy[i] = strdup(list[i]))) {
			str_list_free(copy);
			return NULL;
		}
	return copy;
}
