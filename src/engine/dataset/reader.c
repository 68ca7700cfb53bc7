/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts files into records: lines, paragraphs, whole files, JSON arrays and lines of JSON. */
#include "engine/dataset/reader.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/str.h"

/* A document of text longer than this comes in pieces, so that several threads can tokenize it. */
#define PIECE (64 << 10)

enum json_shape { SHAPE_UNKNOWN, SHAPE_ARRAY, SHAPE_LINES, SHAPE_VALUES };

struct records {
	struct file_map map;
	char *where;
	const char *start, *at, *end;
	const char *counted; /* lines are counted up to here */
	int64_t line;
	enum record_kind kind;
	enum json_shape shape;
	bool whole;               /* no document comes in pieces */
	bool first, inside;       /* inside: of a document that comes in pieces */
	const char *document_end; /* while inside */
};

size_t records_mark(const char *data, size_t len)
{
	static const char mark[] = "\xef\xbb\xbf";

	return len >= strlen(mark) && memcmp(data, mark, strlen(mark)) == 0 ? strlen(mark) : 0;
}

int records_open_memory(const char *data, size_t len, const char *where, enum record_kind kind,
                        struct records **out, struct error *err)
{
	struct records *r = calloc(1, sizeof(*r));

	if (!r || !(r->where = strdup(where))) {
		free(r);
		return error_oom(err);
	}
	r->start = r->at = r->counted = data + records_mark(data, len);
	r->end = data + len;
	r->line = 1;
	r->kind = kind;
	r->first = true;
	*out = r;
	return 0;
}

int records_open(const char *path, enum record_kind kind, struct records **out, struct error *err)
{
	struct file_map map;
	int r;

	r = file_map_open(path, &map, err);
	if (r < 0)
		return r;
	if (map.len)
		madvise((void *)map.data, map.len, MADV_SEQUENTIAL);
	r = records_open_memory(map.data, map.len, path, kind, out, err);
	if (r < 0)
		file_map_close(&map);
	else
		(*out)->map = map;
	return r;
}

void records_keep_whole(struct records *r)
{
	r->whole = true;
}

void records_close(struct records *r)
{
	if (!r)
		return;
	file_map_close(&r->map);
	free(r->where);
	free(r);
}

int64_t records_consumed(const struct records *r)
{
	return r->at - r->start;
}

const char *records_where(const struct records *r)
{
	return r->where;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(struct records *r)
{
	while (r->at < r->end && is_space(*r->at))
		r->at++;
}

static int64_t line_at(struct records *r, const char *p)
{
	const char *nl;

	while (r->counted < p && (nl = memchr(r->counted, '\n', p - r->counted))) {
		r->line++;
		r->counted = nl + 1;
	}
	r->counted = MAX(r->counted, p);
	return r->line;
}

static const char *line_end(const struct records *r, const char *p)
{
	const char *nl = memchr(p, '\n', r->end - p);

	return nl ? nl : r->end;
}

/* The end of the JSON value at p, by brackets and quotes alone; NULL: it does not end before `end`. */
static const char *value_end(const char *p, const char *end)
{
	size_t depth = 0;

	for (; p < end; p++) {
		switch (*p) {
		case '"':
			for (p++; p < end && *p != '"'; p++)
				if (*p == '\\')
					p++;
			if (p >= end)
				return NULL;
			if (depth == 0)
				return p + 1;
			break;
		case '{':
		case '[':
			depth++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return p; /* a scalar before the bracket that closes what is around it */
			if (--depth == 0)
				return p + 1;
			break;
		case ',':
		case ' ':
		case '\t':
		case '\r':
		case '\n':
			if (depth == 0)
				return p;
			break;
		}
	}
	return depth == 0 ? end : NULL;
}

/* One value a line (a broken one then costs its line alone), or values that may run over several? The first
 * line tells. */
static enum json_shape shape_of(const struct records *r)
{
	const char *end = line_end(r, r->at);

	if (*r->at == '[')
		return SHAPE_ARRAY;
	return value_end(r->at, end) || end == r->end ? SHAPE_LINES : SHAPE_VALUES;
}

static int next_value(struct records *r, struct record *out, struct error *err)
{
	const char *end;

	skip_space(r);
	if (r->shape == SHAPE_UNKNOWN) {
		if (r->at == r->end)
			return 0;
		r->shape = shape_of(r);
		if (r->shape == SHAPE_ARRAY)
			r->at++;
		skip_space(r);
	}
	if (r->shape == SHAPE_ARRAY) {
		if (r->at < r->end && *r->at == ']') {
			r->at++;
			skip_space(r);
			if (r->at < r->end)
				return error_set(err, -EINVAL,
				                 "%s:%lld: something stands behind the JSON array", r->where,
				                 (long long)line_at(r, r->at));
			r->shape = SHAPE_VALUES;
			return 0;
		}
		if (!r->first) {
			if (r->at < r->end && *r->at != ',')
				return error_set(
				    err, -EINVAL,
				    "%s:%lld: a comma is missing between two elements of the JSON array",
				    r->where, (long long)line_at(r, r->at));
			r->at += r->at < r->end;
			skip_space(r);
		}
		if (r->at == r->end)
			return error_set(err, -EINVAL,
			                 "%s:%lld: the JSON array breaks off here: is the file whole?",
			                 r->where, (long long)line_at(r, r->at));
	} else if (r->at == r->end) {
		return 0;
	}
	r->first = false;
	out->line = line_at(r, r->at);
	out->data = r->at;
	out->more = false;
	if (r->shape == SHAPE_LINES) {
		end = line_end(r, r->at);
		r->at = end;
		while (end > out->data && is_space(end[-1]))
			end--;
	} else {
		end = value_end(r->at, r->end);
		if (!end)
			return error_set(
			    err, -EINVAL,
			    "%s:%lld: the JSON value that begins here does not end: is the file whole?",
			    r->where, (long long)out->line);
		/* A bracket or comma in a wrong place becomes a broken record, so that the reader goes on. */
		if (end == r->at)
			end++;
		r->at = end;
	}
	out->len = end - out->data;
	return 1;
}

static bool is_blank(const char *p, const char *end)
{
	while (p < end && is_space(*p))
		p++;
	return p == end;
}

const char *records_piece_end(const char *p, const char *end)
{
	const char *q = p + PIECE;

	if (end - p <= 2 * PIECE)
		return end;
	while ((q = memchr(q, '\n', end - q)) && q + 1 < end) {
		q++;
		if (!is_space(*q) && !is_space(q[-2]))
			return q;
	}
	return end;
}

static const char *paragraph_end(const struct records *r, const char *p)
{
	while (p < r->end) {
		const char *end = line_end(r, p);

		if (is_blank(p, end))
			break;
		p = MIN(end + 1, r->end);
	}
	return p;
}

static int next_text(struct records *r, struct record *out)
{
	const char *end;

	if (!r->inside) {
		while (r->at < r->end && is_blank(r->at, line_end(r, r->at)))
			r->at = MIN(line_end(r, r->at) + 1, r->end);
	}
	if (r->at == r->end)
		return 0;
	out->line = line_at(r, r->at);
	out->data = r->at;
	out->more = false;
	if (r->kind == RECORDS_LINES) {
		end = line_end(r, r->at);
		r->at = MIN(end + 1, r->end);
		if (end > out->data && end[-1] == '\r')
			end--;
		out->len = end - out->data;
		return 1;
	}
	if (!r->inside)
		r->document_end = r->kind == RECORDS_PARAGRAPHS ? paragraph_end(r, r->at) : r->end;
	end = r->document_end;
	r->at = r->whole ? end : records_piece_end(out->data, end);
	out->more = r->inside = r->at < end;
	out->len = r->at - out->data;
	if (!out->more)
		while (out->len && is_space(out->data[out->len - 1]))
			out->len--;
	return 1;
}

int records_next(struct records *r, struct record *out, struct error *err)
{
	return r->kind == RECORDS_JSON ? next_value(r, out, err) : next_text(r, out);
}
