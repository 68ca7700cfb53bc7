/* SPDX-License-Identifier: Apache-2.0 */
/* Texts in files of a directory of the test's own. */
#pragma once

#include <sys/types.h>

#include "base/str.h"
#include "unit.h"

static char *dir; /* made and removed by the test */

/* Owned by the caller, as are texts. */
static inline char *in_dir(const char *name)
{
	return str_path_join(dir, name);
}

/* Not inlined: gcc 12 would take its result for the address of a variable that is gone. */
static char *read_text(const char *name) __attribute__((noinline, unused));
static char *read_text(const char *name)
{
	_cleanup_free_ char *path = in_dir(name);
	struct error err = ERROR_INIT;
	char *text = NULL;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return text;
}

static inline void write_text(const char *name, const char *text, mode_t mode)
{
	_cleanup_free_ char *path = in_dir(name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), mode, &err), &err);
}
