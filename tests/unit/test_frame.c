/* SPDX-License-Identifier: Apache-2.0 */
/* Streams with positions: what was written is read, however it is divided, and nothing else is. */
#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "unit.h"
#include "wire/frame.h"

/* What the reader gives: "FILE.RANK OFFSET bytes|", pieces of a frame as one. */
struct result {
	struct strbuf text;
	int64_t next; /* the offset of the next piece of the frame */
	int64_t left; /* of the frame */
	int code;     /* of the piece function */
};

static int collect(void *context, const struct frame *frame, int64_t offset, const char *data, size_t len,
                   struct error *err)
{
	struct result *r = context;

	if (r->left == 0) {
		strbuf_addf(&r->text, "%d.%d %d ", (int)frame->file, (int)frame->rank, (int)offset);
		r->left = frame->length;
		ck_assert_int_eq(offset, frame->end < 0 ? -1 : frame->end - frame->length);
	} else if (frame->end >= 0) {
		ck_assert_int_eq(offset, r->next);
	}
	ck_assert_uint_le(len, r->left);
	r->next = offset + (int64_t)len;
	r->left -= (int64_t)len;
	strbuf_add(&r->text, data, len);
	if (r->left == 0)
		strbuf_addc(&r->text, '|');
	return r->code < 0 ? error_set(err, r->code, "no more") : 0;
}

static void add_frame(struct strbuf *b, struct frame frame, const char *bytes)
{
	char head[FRAME_HEAD_MAX];

	frame.length = (int64_t)strlen(bytes);
	strbuf_add(b, head, frame_head(&frame, head));
	strbuf_adds(b, bytes);
}

START_TEST(frames_are_read_however_they_come)
{
	_cleanup_strbuf_ struct strbuf sent = {0};
	const struct frame largest = {INT64_MAX, FRAME_RANKS - 1, INT64_MAX, INT64_MAX};
	char head[FRAME_HEAD_MAX];

	add_frame(&sent, (struct frame){2, 0, 100, 0}, "");
	add_frame(&sent, (struct frame){2, 0, 104, 0}, "one\n");
	add_frame(&sent, (struct frame){2, 7, -1, 0}, "1 2 3 4\n");
	add_frame(&sent, (struct frame){2, 7, 0, 0}, "");
	add_frame(&sent, (struct frame){3, 7, 3, 0}, "end");
	for (size_t piece = 1; piece <= sent.len; piece++) {
		struct frame_reader reader = {0};
		struct result result = {0};
		struct error err = ERROR_INIT;

		for (size_t i = 0; i < sent.len; i += piece)
			ck_ok(frame_read(&reader, sent.data + i, MIN(piece, sent.len - i), collect, &result,
			                 &err),
			      &err);
		ck_assert_str_eq(result.text.data,
		                 "2.0 100 |2.0 100 one\n|2.7 -1 1 2 3 4\n|2.7 0 |3.7 0 end|");
		strbuf_free(&result.text);
	}
	ck_assert_uint_lt(frame_head(&largest, head), FRAME_HEAD_MAX);
}
END_TEST

START_TEST(what_is_no_frame_is_refused)
{
	static const char *const wrong[] = {"one\n",
	                                    "\n",
	                                    "1 1 4\n",
	                                    "1 1 4 4 4\n",
	                                    "1 1 4 4 \n",
	                                    " 1 1 4 4\n",
	                                    "1  4 4\n",
	                                    "1 1 3 4\n",
	                                    "-1 1 4 4\n",
	                                    "1 -1 4 4\n",
	                                    "1 1048576 4 4\n",
	                                    "1 1 -2 4\n",
	                                    "1 1 4 -4\n",
	                                    "1 1 4 4x\n",
	                                    "1 1 4 0x4\n",
	                                    "1 1 4 4\r\n",
	                                    "9223372036854775808 1 4 4\n",
	                                    "1 1 4 4                                                         "
	                                    "                                   \n"};
	struct frame_reader reader = {0};
	struct result result = {0};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct error err = ERROR_INIT;

		reader = (struct frame_reader){0};
		ck_assert_msg(frame_read(&reader, wrong[i], strlen(wrong[i]), collect, &result, &err) ==
		                  -EPROTO,
		              "%s", wrong[i]);
		ck_assert_str_eq(err.message,
		                 "dtraind has sent an invalid stream of frames; run the command again");
	}
	/* A NUL hides nothing. */
	reader = (struct frame_reader){0};
	ck_assert_int_eq(frame_read(&reader, "1 1 4 4\0 5\n", 11, collect, &result, NULL), -EPROTO);
	ck_assert_uint_eq(result.text.len, 0);
}
END_TEST

START_TEST(the_reader_may_end_it)
{
	struct frame_reader reader = {0};
	struct result result = {.code = -EINTR};
	struct error err = ERROR_INIT;

	ck_assert_int_eq(frame_read(&reader, "1 1 4 4\none\n1 1 8 4\ntwo\n", 24, collect, &result, &err),
	                 -EINTR);
	ck_assert_str_eq(result.text.data, "1.1 0 one\n|");
	strbuf_free(&result.text);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("frame");
	TCase *c = tcase_create("frame");

	suite_add_tcase(s, c);
	tcase_add_test(c, frames_are_read_however_they_come);
	tcase_add_test(c, what_is_no_frame_is_refused);
	tcase_add_test(c, the_reader_may_end_it);
	return unit_run(s);
}
