/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizes fp32 numbers from the standard input to NF4, for nf4.py, which does the same with bitsandbytes:
 * nf4_dump once|twice. Writes the codes, the scales (twice: their codes, the scales of these, the mean), and
 * what the codes stand for in fp32. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/device/device.h"

static float *read_all(int64_t *n)
{
	size_t room = 1 << 20, got = 0, more;
	float *x = malloc(room * sizeof(*x));

	while (x && (more = fread(x + got, sizeof(*x), room - got, stdin)) > 0) {
		got += more;
		if (got == room)
			x = realloc(x, (room *= 2) * sizeof(*x));
	}
	*n = (int64_t)got;
	return x;
}

static bool put(const void *data, size_t bytes)
{
	return fwrite(data, 1, bytes, stdout) == bytes;
}

int main(int argc, char **argv)
{
	struct device *dev = NULL;
	_cleanup_free_ float *x = NULL, *y = NULL, *absmax = NULL, *absmax2 = NULL;
	_cleanup_free_ uint8_t *codes = NULL, *absmax8 = NULL;
	const struct device_options options = {.threads = 1};
	struct device_nf4 q = {0};
	struct error err = {0};
	bool twice = argc == 2 && str_eq(argv[1], "twice");
	size_t blocks;
	float offset;

	if (argc != 2 || (!twice && !str_eq(argv[1], "once"))) {
		fprintf(stderr, "usage: nf4_dump once|twice <NUMBERS\n");
		return 2;
	}
	x = read_all(&q.n);
	blocks = (size_t)(q.n + 63) / 64;
	y = calloc((size_t)q.n + 1, sizeof(*y));
	q.codes = codes = calloc(blocks + 1, 32);
	absmax = calloc(blocks + 1, sizeof(*absmax));
	absmax2 = calloc(blocks + 1, sizeof(*absmax2));
	absmax8 = calloc(blocks + 1, 1);
	if (!x || !y || !codes || !absmax || !absmax2 || !absmax8 ||
	    device_create(&options, &dev, &err) < 0 ||
	    device_reserve_scratch(dev, blocks * sizeof(*absmax), &err) < 0) {
		fprintf(stderr, "nf4_dump: %s\n", err.message[0] ? err.message : "out of memory");
		return 1;
	}
	if (twice)
		q.absmax8 = absmax8, q.absmax2 = absmax2, q.offset = &offset;
	else
		q.absmax = absmax;
	device_nf4_quantize(dev, &q, x, DTYPE_F32);
	device_nf4_dequantize(dev, y, DTYPE_F32, &q);
	if (!put(codes, (size_t)(q.n + 1) / 2) ||
	    !(twice ? put(absmax8, blocks) && put(absmax2, (blocks + 255) / 256 * sizeof(*absmax2)) &&
	                  put(&offset, sizeof(offset))
	            : put(absmax, blocks * sizeof(*absmax))) ||
	    !put(y, (size_t)q.n * sizeof(*y)))
		return 1;
	device_destroy(dev);
	return 0;
}
