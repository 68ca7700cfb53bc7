/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: every function that can fail returns 0 (or a count) or a negative errno, and fills `struct error`,
 * its last argument, with one sentence for a person: what is wrong, where, and what would be right.
 */
#pragma once

#include <stddef.h>

struct error {
	int code;          /* negative errno, 0 while unset */
	char message[768]; /* one line, no trailing newline; a longer one is cut */
};

#define ERROR_INIT                                                                                           \
	{                                                                                                    \
		0,                                                                                           \
		{                                                                                            \
			0                                                                                    \
		}                                                                                            \
	}

/* Fills err (which may be NULL) and returns code, so that `return error_set(err, -EINVAL, …)` reads well. */
int error_set(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same with ": " and strerror(-code) appended. */
int error_errno(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message already in err; returns err->code. */
int error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int error_oom(struct error *err); /* -ENOMEM */
