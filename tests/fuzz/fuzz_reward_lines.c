/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what the program that gives rewards writes: the first byte is the number of rewards that are
 * awaited. In whatever pieces it comes, it is the same, and what is taken are finite numbers, the sums of
 * their parts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/reward_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 256 };

struct taken {
	int64_t done;
	double rewards[MOST], values[MOST * POLICY_PARTS_MOST];
	struct policy_parts parts;
	struct error err;
	int r;
};

/* In parts of so many bytes. */
static void take(const char *text, size_t len, size_t part, int64_t n, struct taken *out)
{
	_cleanup_free_ struct reward_lines *l = calloc(1, sizeof(*l));
	/* Its own memory, so that no read goes beyond a part. */
	_cleanup_free_ char *copy = malloc(part);

	if (!l || !copy)
		abort();
	memset(out, 0, sizeof(*out));
	out->err = (struct error)ERROR_INIT;
	out->parts.values = out->values;
	for (size_t at = 0; at < len && out->r == 0; at += part) {
		size_t bytes = MIN(part, len - at);

		memcpy(copy, text + at, bytes);
		out->r = reward_lines_add(l, "p", copy, bytes, n, &out->done, out->rewards, &out->parts,
		                          &out->err);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct taken whole, parts;
	const char *text = (const char *)data + 1;
	size_t lines = 0;

	if (size < 2)
		return 0;
	take(text, size - 1, size - 1, data[0], &whole);
	take(text, size - 1, 1 + data[0] % 7, data[0], &parts);
	for (size_t i = 0; i < size - 1; i++)
		lines += text[i] == '\n';
	if (whole.r != parts.r || whole.done != parts.done || strcmp(whole.err.message, parts.err.message) ||
	    memcmp(whole.rewards, parts.rewards, sizeof(whole.rewards)) ||
	    memcmp(whole.values, parts.values, sizeof(whole.values)) ||
	    whole.parts.count != parts.parts.count ||
	    memcmp(whole.parts.name, parts.parts.name, sizeof(whole.parts.name)))
		abort();
	if (whole.done > data[0] || (size_t)whole.done > lines ||
	    (whole.r == 0 && (size_t)whole.done != lines) || (whole.r < 0 && !whole.err.message[0]))
		abort();
	for (int64_t i = 0; i < whole.done; i++) {
		double sum = 0;

		for (int k = 0; k < whole.parts.count; k++)
			sum += whole.values[i * POLICY_PARTS_MOST + k];
		if (!isfinite(whole.rewards[i]) || (whole.parts.count > 0 && sum != whole.rewards[i]))
			abort();
	}
	if (whole.parts.count > POLICY_PARTS_MOST || (whole.done > 0 && !whole.parts.known))
		abort();
	return 0;
}
