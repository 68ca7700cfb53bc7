/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reading of streams with positions. The first byte says how long the pieces are that come: how a
 * stream is divided makes no difference. */
#include <stdint.h>
#include <stdlib.h>

#include "base/hash.h"
#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	uint64_t hash; /* of all frames and their bytes */
	int64_t next;  /* the offset behind the last piece */
};

static int look(void *context, const struct frame *frame, int64_t offset, const char *data, size_t len,
                struct error *err)
{
	struct seen *seen = context;
	bool begins = frame->end < 0 || offset == frame->end - frame->length;

	if (frame->rank < 0 || frame->rank >= FRAME_RANKS || frame->length < 0 || frame->file < 0 ||
	    (int64_t)len > frame->length ||
	    (frame->end >= 0 && (offset < 0 || offset > frame->end - (int64_t)len)))
		abort();
	if (!begins && offset != seen->next)
		abort();
	seen->next = offset + (int64_t)len;
	if (len == 0)
		seen->hash = hash_bytes(frame, sizeof(*frame), seen->hash);
	for (size_t i = 0; i < len; i++)
		seen->hash = hash_bytes(&data[i], 1, seen->hash);
	return 0;
}

static int read_in_pieces(const char *data, size_t size, size_t piece, struct seen *seen)
{
	struct frame_reader reader = {0};
	int r = 0;

	for (size_t i = 0; r == 0 && i < size; i += piece)
		r = frame_read(&reader, data + i, size - i < piece ? size - i : piece, look, seen, NULL);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen whole = {0}, divided = {0};

	if (size < 2)
		return 0;
	if (read_in_pieces((const char *)data + 1, size - 1, size, &whole) !=
	        read_in_pieces((const char *)data + 1, size - 1, data[0] + 1U, &divided) ||
	    whole.hash != divided.hash)
		abort();
	return 0;
}
