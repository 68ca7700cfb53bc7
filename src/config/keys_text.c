/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libconfig text on its way to libconfig's parser. What libconfig cannot do well is done before it sees the
 * text: files that @include names are put in their places here (libconfig ends the whole process where one is
 * a directory, waits for ever where it is a FIFO, and forgets which file a line is of), what is no text is
 * refused, and integers are widened. What the parser then refuses is said in words of our own, with the file
 * and the line.
 */
#include <errno.h>
#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/str.h"
#include "config/keys_source.h"

enum { INCLUDE_DEPTH = 10, INCLUDES_MAX = 1000, FILE_BYTES = 1 << 20, NAMES_MAX = 4096, GROUPS_MAX = 64 };

void keys_text_release(struct keys_text *t)
{
	for (size_t i = 0; i < t->file_count; i++)
		free(t->files[i]);
	free(t->files);
	free(t->lines);
	strbuf_free(&t->text);
}

const char *keys_text_where(const struct keys_text *t, unsigned line, char *buf, size_t size)
{
	const struct keys_line *l = &t->lines[MIN(MAX(line, 1u), t->line_count) - 1];

	snprintf(buf, size, "%s:%u", t->files[l->file], l->line);
	return buf;
}

/* What the newest line of the text is. */
static void name_line(struct keys_text *t, size_t file, unsigned line)
{
	t->lines[t->line_count - 1] = (struct keys_line){file, line};
}

static int add_line(struct keys_text *t, size_t file, unsigned line, struct error *err)
{
	if (t->line_count == t->line_cap) {
		size_t cap = t->line_cap ? t->line_cap * 2 : 256;
		struct keys_line *lines = reallocarray(t->lines, cap, sizeof(*lines));

		if (!lines)
			return error_oom(err);
		t->lines = lines;
		t->line_cap = cap;
	}
	t->line_count++;
	name_line(t, file, line);
	return 0;
}

/* Copies [from, to), which begins in line *line of the file. */
static int add_text(struct keys_text *t, size_t file, const char *from, const char *to, unsigned *line,
                    struct error *err)
{
	strbuf_add(&t->text, from, (size_t)(to - from));
	if (t->text.failed)
		return error_oom(err);
	for (; from < to; from++)
		if (*from == '\n' && add_line(t, file, ++*line, err) < 0)
			return -ENOMEM;
	return 0;
}

/* Is there the directive at p? *path is its string's begin, *end what follows the string. */
static bool is_include(const char *begin, const char *p, const char **path, const char **end)
{
	static const char word[] = "@include";
	const char *q = p;

	while (q > begin && (q[-1] == ' ' || q[-1] == '\t'))
		q--;
	if ((q > begin && q[-1] != '\n') || !str_starts(p, word))
		return false;
	p += sizeof(word) - 1;
	q = p + strspn(p, " \t");
	if (q == p || *q != '"')
		return false;
	*path = q + 1;
	*end = keys_skip_blank(q);
	return true;
}

static int add_file(struct keys_text *t, const char *name, const char *text, int depth, struct error *err);

/* path: as it is written, with \" and \\. */
static int add_included(struct keys_text *t, const char *path, const char *end, const char *where, int depth,
                        struct error *err)
{
	_cleanup_free_ char *name = strndup(path, (size_t)(end - path)), *text = NULL;
	char *to = name;
	struct stat st;
	size_t len;

	if (!name)
		return error_oom(err);
	for (const char *from = name; *from; from++) {
		from += *from == '\\' && from[1];
		*to++ = *from;
	}
	*to = '\0';
	if (depth == INCLUDE_DEPTH || t->file_count > INCLUDES_MAX)
		return error_set(err, -ELOOP, "%s: @include \"%s\": too many; does a file include itself?",
		                 where, name);
	if (stat(name, &st) < 0)
		return error_errno(err, -errno, "%s: @include \"%s\"", where, name);
	if (!S_ISREG(st.st_mode))
		return error_set(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL,
		                 "%s: @include \"%s\": %s; a file is needed", where, name,
		                 S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
	if (file_read(name, FILE_BYTES, &text, &len, err) < 0)
		return error_prefix(err, "%s", where);
	if (strlen(text) != len)
		return error_set(err, -EINVAL, "%s: not a text file: a NUL byte in it", name);
	return add_file(t, name, text, depth + 1, err);
}

static bool ends_string(const char *p, const char *end)
{
	bool closed = false;

	for (p++; p < end; p++)
		if (*p == '\\')
			p++;
		else
			closed = *p == '"';
	return closed;
}

/* What libconfig's scanner refuses without naming the reason. */
static int check_token(const char *where, const char *p, const char *end, struct error *err)
{
	size_t n = (size_t)(end - p);
	bool comment = p[0] == '/' && p[1] == '*';

	if (comment && (n < 4 || end[-1] != '/' || end[-2] != '*'))
		return error_set(err, -EINVAL, "%s: a comment without an end: /* … */", where);
	if (*p == '"' && !ends_string(p, end))
		return error_set(err, -EINVAL, "%s: a string without an end: \"…\"", where);
	if ((unsigned char)*p < 0x20 && !strchr("\t\n\r\f\v", *p))
		return error_set(err, -EINVAL, "%s: not a text file: the byte 0x%02x is in it", where, *p);
	return 0;
}

static int add_text_of(struct keys_text *t, size_t file, const char *text, int depth, struct error *err)
{
	const char *done = text, *p = text;
	unsigned line = 1, at = 1; /* of done, of p */
	char where[512];

	while (*p) {
		const char *path, *end = keys_skip_blank(p);
		int r;

		snprintf(where, sizeof(where), "%s:%u", t->files[file], at);
		if (end == p && is_include(text, p, &path, &end)) {
			if (!ends_string(path - 1, end))
				return error_set(err, -EINVAL, "%s: @include: a string without an end: \"…\"",
				                 where);
			if ((r = add_text(t, file, done, p, &line, err)) < 0 ||
			    (r = add_included(t, path, end - 1, where, depth, err)) < 0)
				return r;
			for (; p < end; p++)
				at += *p == '\n';
			line = at;
			name_line(t, file, line);
			done = p;
			continue;
		}
		r = check_token(where, p, end, err);
		if (r < 0)
			return r;
		for (end += end == p; p < end; p++)
			at += *p == '\n';
	}
	return add_text(t, file, done, p, &line, err);
}

static int add_file(struct keys_text *t, const char *name, const char *text, int depth, struct error *err)
{
	static const char newline[] = "\n";
	char **files = reallocarray(t->files, t->file_count + 1, sizeof(*files));
	_cleanup_free_ char *widened = NULL;
	size_t file = t->file_count;
	int r;

	if (!files)
		return error_oom(err);
	t->files = files;
	t->files[file] = strdup(name);
	if (!t->files[file])
		return error_oom(err);
	t->file_count++;
	if (t->line_count == 0)
		r = add_line(t, file, 1, err);
	else
		r = 0, name_line(t, file, 1);
	/* Editors of Windows mark UTF-8 so. */
	text += str_starts(text, "\xef\xbb\xbf") ? 3 : 0;
	if (r < 0 || (r = keys_widen_integers(text, name, &widened, err)) < 0 ||
	    (r = add_text_of(t, file, widened, depth, err)) < 0)
		return r;
	/* What follows the directive is a line of its own. */
	return depth > 0 ? add_text(t, file, newline, newline + 1, &(unsigned){0}, err) : 0;
}

int keys_text_read(struct keys_text *t, const char *text, const char *where, struct error *err)
{
	int r = add_file(t, where, text, 0, err);

	if (r == 0 && !t->text.data)
		strbuf_adds(&t->text, "");
	return r < 0 ? r : t->text.failed || !t->text.data ? error_oom(err) : 0;
}

/* ---- what the parser refuses ---- */

/* A setting's name and the group that it is in. */
struct seen_name {
	const char *name;
	size_t len;
	unsigned group, line;
};

/* "train.epochs": the names of the open groups, then the setting's own. */
static void dotted_name(const struct seen_name *groups, size_t depth, const struct seen_name *last, char *buf,
                        size_t size)
{
	size_t n = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < depth && n < size; i++)
		if (groups[i].len)
			n += (size_t)snprintf(buf + n, size - n, "%.*s.", (int)MIN(groups[i].len, 64u),
			                      groups[i].name);
	if (n < size)
		snprintf(buf + n, size - n, "%.*s", (int)MIN(last->len, 64u), last->name);
}

static const struct seen_name *find_name(const struct seen_name *names, size_t count,
                                         const struct seen_name *n)
{
	for (size_t i = 0; i < count; i++)
		if (names[i].group == n->group && names[i].len == n->len &&
		    !memcmp(names[i].name, n->name, n->len))
			return &names[i];
	return NULL;
}

/* Finds the first setting that is there twice, since libconfig names only its line. False where it cannot be
 * found. */
static bool find_duplicate(const char *p, char *dotted, size_t size, unsigned *second, unsigned *first)
{
	struct seen_name groups[GROUPS_MAX] = {{0}}, last = {0};
	_cleanup_free_ struct seen_name *names = calloc(NAMES_MAX, sizeof(*names));
	unsigned line = 1, group_count = 0;
	size_t depth = 0, count = 0;

	while (names && *p) {
		const char *start = p, *end = keys_skip_blank(p);

		if (end == p && (end = keys_skip_name(p)) > p) {
			last = (struct seen_name){p, (size_t)(end - p), depth ? groups[depth - 1].group : 0,
			                          line};
		} else if (end == p) {
			end++;
			if ((*p == '=' || *p == ':') && last.len) {
				const struct seen_name *old = find_name(names, count, &last);

				if (old) {
					dotted_name(groups, depth, &last, dotted, size);
					*second = last.line;
					*first = old->line;
					return true;
				}
				if (count == NAMES_MAX)
					return false;
				names[count++] = last;
			} else if (*p == '{' || *p == '(') {
				if (depth == GROUPS_MAX)
					return false;
				groups[depth] = last;
				groups[depth++].group = ++group_count;
				last.len = 0;
			} else if ((*p == '}' || *p == ')') && depth > 0) {
				depth--;
			}
			if (*p == ';' || *p == ',')
				last.len = 0;
		}
		for (p = start; p < end; p++)
			line += *p == '\n';
	}
	return false;
}

/* A value that libconfig has no form for: a word without quotes, such as bf16, 2..4 or 90m. */
struct bare_value {
	const char *name, *text;
	size_t name_len, len;
};

static bool is_value(const char *p, size_t n)
{
	_cleanup_free_ char *text = strndup(p, n);
	double d;

	if (!text || strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0)
		return true;
	while (n > 1 && text[n - 1] == 'L')
		text[--n] = '\0';
	return str_to_double(text, &d) == 0;
}

/* Finds the first of these in that line, which libconfig names alone. */
static bool find_bare_value(const char *p, unsigned wanted, struct bare_value *out)
{
	bool awaits = false, list = false; /* a value is awaited at p; within [ … ] */
	unsigned line = 1;

	*out = (struct bare_value){0};
	while (*p && line <= wanted) {
		const char *start = p, *end = keys_skip_blank(p);
		size_t n = strcspn(p, "=:;,{}()[]\"# \t\r\n\f\v");

		if (end == p && awaits && n > 0) {
			if (line == wanted && !is_value(p, n)) {
				out->text = p;
				out->len = n;
				return out->name != NULL;
			}
			end = p + n;
			awaits = false;
		} else if (end == p && (end = keys_skip_name(p)) > p) {
			out->name = p;
			out->name_len = (size_t)(end - p);
		} else if (end == p) {
			end++;
			list = *p == '[' || (list && *p != ']');
			awaits = *p == '=' || *p == ':' || *p == '[' || (list && *p == ',');
		} else if (*p == '"') {
			awaits = false;
		}
		for (p = start; p < end; p++)
			line += *p == '\n';
	}
	return false;
}

/* What looks like a switch or like a string in single quotes is named otherwise than other words. */
static int bare_value_error(const char *where, const struct bare_value *b, struct error *err)
{
	static const char *const switches[] = {"yes", "no", "on", "off"};
	int name = (int)MIN(b->name_len, 64u), len = (int)MIN(b->len, 100u);
	const char *text = b->text;

	for (size_t i = 0; i < ARRAY_SIZE(switches); i++)
		if (b->len == strlen(switches[i]) && strncasecmp(text, switches[i], b->len) == 0)
			return error_set(
			    err, -EINVAL,
			    "%s: %.*s = %.*s: a switch is true or false, written without quotes; strings, "
			    "times and ranges are written in double quotes",
			    where, name, b->name, len, text);
	if (len > 1 && text[0] == '\'' && text[len - 1] == '\'')
		text++, len -= 2;
	return error_set(err, -EINVAL,
	                 "%s: %.*s = %.*s: strings, times and ranges are written in double quotes: \"%.*s\"; "
	                 "true and false without",
	                 where, name, b->name, (int)MIN(b->len, 100u), b->text, len, text);
}

int keys_text_error(const struct keys_text *t, const char *text, unsigned line, struct error *err)
{
	static const struct {
		const char *theirs, *ours;
	} words[] = {
	    {"syntax error", "syntax error; a setting is written: name = value;"},
	    {"memory exhausted",
	     "nested too deeply; a key is at most in a group: section = { name = value; };"},
	    {"mismatched element type in array",
	     "values of several types in an array; [ … ] holds values of one type"},
	    {"duplicate setting name", "a setting that is there twice"},
	};
	char where[512], other[512], dotted[512];
	struct bare_value bare;
	unsigned second, first;

	if (str_eq(text, "duplicate setting name") &&
	    find_duplicate(t->text.data, dotted, sizeof(dotted), &second, &first))
		return error_set(err, -EINVAL, "%s: %s: set twice; the first time at %s",
		                 keys_text_where(t, second, where, sizeof(where)), dotted,
		                 keys_text_where(t, first, other, sizeof(other)));
	keys_text_where(t, line, where, sizeof(where));
	if (str_eq(text, "syntax error") && find_bare_value(t->text.data, line, &bare))
		return bare_value_error(where, &bare, err);
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (str_eq(text, words[i].theirs))
			return error_set(err, -EINVAL, "%s: %s", where, words[i].ours);
	return error_set(err, -EINVAL, "%s: %s", where, text ? text : "cannot be read");
}
