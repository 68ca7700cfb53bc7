/* SPDX-License-Identifier: Apache-2.0 */
/* Errors with one sentence for a person: making, prefixing and copying them. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What is quoted from a file may hold line ends; the message stays one line. */
static void keep_one_line(struct error *err)
{
	for (char *p = err->message; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
}

int error_set(struct error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	keep_one_line(err);
	return code;
}

int error_errno(struct error *err, int code, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	n = strlen(err->message);
	snprintf(err->message + n, sizeof(err->message) - n, ": %s", strerror(-code));
	keep_one_line(err);
	return code;
}

int error_prefix(struct error *err, const char *fmt, ...)
{
	char old[sizeof(err->message)];
	va_list ap;
	size_t n;

	if (!err)
		return -EIO;
	memcpy(old, err->message, sizeof(old));
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	n = strlen(err->message);
	snprintf(err->message + n, sizeof(err->message) - n, ": %s", old);
	keep_one_line(err);
	return err->code;
}

int error_oom(struct error *err)
{
	return error_set(err, -ENOMEM, "out of memory");
}
