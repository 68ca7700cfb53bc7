/* SPDX-License-Identifier: Apache-2.0 */
/* Growing byte strings, and the few string helpers that libc lacks. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

/* A growing string, always NUL-terminated once anything was added; {0} is the empty one. An allocation
 * failure sticks in `failed` (later calls do nothing), so that a builder checks once, at the end. */
struct strbuf {
	char *data;
	size_t len, cap;
	bool failed;
};

void strbuf_add(struct strbuf *b, const void *data, size_t len);
void strbuf_adds(struct strbuf *b, const char *s);
void strbuf_addc(struct strbuf *b, char c);
void strbuf_addf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_addv(struct strbuf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void strbuf_reset(struct strbuf *b); /* length 0, memory kept */
void strbuf_free(struct strbuf *b);
/* The string, owned by the caller, b empty again; NULL after a failed allocation. An empty buffer
 * gives "". */
char *strbuf_steal(struct strbuf *b);

#define _cleanup_strbuf_ _cleanup_(strbuf_free)

char *str_printf(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), malloc)); /* NULL: out of memory */
/* Frees *to and puts a copy of `from` in its place, NULL for NULL; -ENOMEM: *to is as before. */
int str_replace(char **to, const char *from);
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
bool str_eq(const char *a, const char *b); /* NULL equals only NULL */
/* Is it the same host? Upper and lower case of its name are the same; NULL equals only NULL. */
bool str_eq_host(const char *a, const char *b);
char *str_strip(char *s); /* in place: no white space at either end */
bool str_is_utf8(const char *s);
/* Bytes of the control character at s, 0: there is none. Those from U+0080 to U+009F are control characters
 * for terminals, too: U+009B does what ESC [ does. */
size_t str_control_length(const char *s);
char *str_make_plain(char *s); /* in place: '?' for control characters but newline and tab */
char *str_make_utf8(char *s);  /* in place: '?' for each byte that is no part of a character */

/* Whole string as a decimal number within [min, max]: 0, or -EINVAL / -ERANGE with *out untouched. */
int str_to_int64(const char *s, int64_t min, int64_t max, int64_t *out);
int str_to_double(const char *s, double *out); /* finite only */

/* "1 step", "2 steps": into buf (at least 24 bytes and the noun), returned. */
const char *str_count(char *buf, size_t size, int64_t n, const char *noun);
/* "596.0 M", and less than a million in full: "16384". Into buf (at least 24 bytes), returned. */
const char *str_millions(char *buf, size_t size, int64_t n);
/* "1.5 GiB", "312 KiB": into buf (at least 16 bytes), returned. */
const char *str_bytes(char *buf, size_t size, uint64_t bytes);
/* "42s", "3m10s", "2h05m", "3d04h": into buf (at least 16 bytes), returned. */
const char *str_duration(char *buf, size_t size, double seconds);

/* A measured number in at most 16 characters: with so many decimals ("2.3026"), or "1.000e+308" where it has
 * more than 6 digits before the point. Into buf, returned. */
#define STR_MEASURE 24
const char *str_measure(char *buf, size_t size, double value, int decimals);

/* How many letters differ: put in, left out, changed, or two neighbours swapped (Damerau and Levenshtein). */
size_t str_distance(const char *a, const char *b);

/* Path of `path` seen from directory `base`: path itself where absolute or base is NULL. Owned by the
 * caller. */
char *str_path_join(const char *base, const char *path);

/* A list of strings that ends with NULL, and the strings; NULL is fine. */
void str_list_free(char **list);
/* A copy, owned by the caller: an empty list of NULL. NULL: out of memory. */
char **str_list_copy(char *const *list);
