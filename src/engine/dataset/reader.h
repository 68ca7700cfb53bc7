/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits a file into records without parsing or copying it: the elements of a JSON array, the lines of a JSON
 * lines file, the documents of a text. The file is mapped, so its size does not matter.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

enum record_kind {
	RECORDS_JSON,       /* an array of values, values one a line, or values one after the other */
	RECORDS_LINES,      /* each line that is not blank */
	RECORDS_PARAGRAPHS, /* what stands between blank lines */
	RECORDS_FILE,       /* the whole */
};

struct record {
	const char *data; /* valid until records_close */
	size_t len;
	int64_t line; /* where it begins, from 1 */
	bool more;    /* the same document goes on in the next record, which begins behind a line break */
};

struct records;

int records_open(const char *path, enum record_kind kind, struct records **out, struct error *err);
/* Over memory that outlives the reader; `where` names it in errors. */
int records_open_memory(const char *data, size_t len, const char *where, enum record_kind kind,
                        struct records **out, struct error *err);
/* From now on each document of text is one record, however long it is: without, a long one comes in
 * pieces. */
void records_keep_whole(struct records *r);
void records_close(struct records *r);
/* The end of a piece of 64 to 128 KiB of a long text that begins at p, or of a longer line: a line begins
 * there that has no white space in front, where byte-level pre-tokenizers cut anyway. */
const char *records_piece_end(const char *p, const char *end);
DEFINE_CLEANUP(struct records *, records_close)

/* 1 with a record, 0 at the end, or a negative errno (a JSON array that breaks off, or has no comma where one
 * is due: "file:line: …"). A record is not yet known to be valid JSON. */
int records_next(struct records *r, struct record *out, struct error *err);
/* The length of the byte order mark that text in UTF-8 may begin with, which is no part of it: 3, or 0. */
size_t records_mark(const char *data, size_t len);
int64_t records_consumed(const struct records *r); /* bytes so far */
const char *records_where(const struct records *r);
