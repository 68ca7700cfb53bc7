/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads frames: frame.h. */
#include "wire/frame.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

size_t frame_head(const struct frame *frame, char head[FRAME_HEAD_MAX])
{
	return (size_t)snprintf(head, FRAME_HEAD_MAX, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n",
	                        frame->file, frame->rank, frame->end, frame->length);
}

/* text: the line without its end; it is changed. */
static int read_head(char *text, struct frame *frame)
{
	const struct {
		int64_t min, max, *value;
	} numbers[] = {
	    {0, INT64_MAX, &frame->file},
	    {0, FRAME_RANKS - 1, &frame->rank},
	    {-1, INT64_MAX, &frame->end},
	    {0, INT64_MAX, &frame->length},
	};

	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		char *next = strchr(text, ' ');

		if ((next != NULL) != (i + 1 < ARRAY_SIZE(numbers)))
			return -EPROTO;
		if (next)
			*next++ = '\0';
		if (str_to_int64(text, numbers[i].min, numbers[i].max, numbers[i].value) < 0)
			return -EPROTO;
		text = next;
	}
	return frame->end >= 0 && frame->end < frame->length ? -EPROTO : 0;
}

/* As much of the head as there is. Returns how many bytes that is; -EPROTO: it is none. */
static int take_head(struct frame_reader *reader, const char *data, size_t len)
{
	size_t room = sizeof(reader->head) - 1 - reader->head_len, n = MIN(room, len);
	const char *nl = memchr(data, '\n', n);

	if (!nl && n == room)
		return -EPROTO;
	n = nl ? (size_t)(nl - data) : n;
	memcpy(reader->head + reader->head_len, data, n);
	reader->head_len += n;
	if (!nl)
		return (int)n;
	reader->head[reader->head_len] = '\0';
	if (strlen(reader->head) != reader->head_len || read_head(reader->head, &reader->frame) < 0)
		return -EPROTO;
	reader->head_len = 0;
	reader->left = reader->frame.length;
	return (int)n + 1;
}

int frame_read(struct frame_reader *reader, const char *data, size_t len, frame_fn piece, void *context,
               struct error *err)
{
	const struct frame *frame = &reader->frame;

	while (len > 0) {
		bool whole = false;
		size_t n;
		int r;

		if (reader->left == 0) {
			r = take_head(reader, data, len);
			if (r < 0)
				return error_set(
				    err, r,
				    "dtraind has sent an invalid stream of frames; run the command again");
			data += r;
			len -= (size_t)r;
			whole = reader->head_len == 0 && reader->left == 0;
			if (!whole && (reader->left == 0 || len == 0))
				continue;
		}
		n = (int64_t)len < reader->left ? len : (size_t)reader->left;
		r = piece(context, frame, frame->end < 0 ? -1 : frame->end - reader->left, data, n, err);
		if (r < 0)
			return r;
		reader->left -= (int64_t)n;
		data += n;
		len -= n;
	}
	return 0;
}
