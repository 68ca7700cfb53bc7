/* SPDX-License-Identifier: Apache-2.0 */
/* The route of a request: the first row of the table whose method and pattern match. */
#include "http/route.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/str.h"

static bool path_match(const char *pattern, const char *path, struct http_match *m)
{
	const char *p = path;

	m->count = 0;
	while (*pattern) {
		size_t len;

		if (*pattern != '{') {
			if (*pattern++ != *p++)
				return false;
			continue;
		}
		len = str_starts(pattern, "{...}") ? strlen(p) : strcspn(p, "/");
		if (len == 0 || m->count == HTTP_CAPTURES)
			return false;
		m->captures[m->count].start = p - path;
		m->captures[m->count++].len = len;
		p += len;
		pattern = strchr(pattern, '}') + 1;
	}
	return *p == '\0';
}

int http_route_match(const struct http_route *routes, size_t count, const char *method, const char *path,
                     struct http_match *match)
{
	int r = -ENOENT;

	for (size_t i = 0; i < count; i++) {
		if (!path_match(routes[i].pattern, path, match))
			continue;
		if (strcmp(routes[i].method, method) == 0) {
			match->route = &routes[i];
			return 0;
		}
		r = -EOPNOTSUPP;
	}
	return r;
}
