/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream whose reader knows where it is, so that it can go on there over another connection: a file, or
 * several of them, in pieces, each behind a line that says what it is of.
 *
 *     FILE RANK END LENGTH\n      four decimal numbers; then LENGTH bytes, which end at the offset END
 *
 * This is what a request with positions=1 gets, as Content-Type FRAME_TYPE. The first frame of a rank may be
 * empty, and says where the next one begins.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define FRAME_TYPE "application/vnd.dtrain.frames"

enum {
	FRAME_RANKS = 1 << 20, /* ranks are below this */
	FRAME_HEAD_MAX = 96,   /* a head and its NUL */
};

struct frame {
	int64_t file; /* which offsets can be compared: of the same file. Of a log, the attempt */
	int64_t rank;
	int64_t end;    /* -1: not known, as of a message about a log */
	int64_t length; /* bytes */
};

/* The line before the bytes; returns its length. */
size_t frame_head(const struct frame *frame, char head[FRAME_HEAD_MAX]);

/* All of it 0: the stream begins. */
struct frame_reader {
	char head[FRAME_HEAD_MAX]; /* so much of it as has come */
	size_t head_len;
	struct frame frame;
	int64_t left; /* bytes of the frame that have not come */
};

/* A piece of a frame, the whole of an empty one. offset: of its first byte; -1: not known. */
typedef int (*frame_fn)(void *context, const struct frame *frame, int64_t offset, const char *data,
                        size_t len, struct error *err);
/* Takes what has come, however it is divided. A negative return of `piece` ends it and is returned. -EPROTO:
 * these are no frames. */
int frame_read(struct frame_reader *reader, const char *data, size_t len, frame_fn piece, void *context,
               struct error *err);
