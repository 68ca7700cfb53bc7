/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound release: `_cleanup_(fn) T x = …;` calls fn(&x) on every path out of the scope. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Defines fn##p(T **), for _cleanup_, from a destroy function that accepts NULL. */
#define DEFINE_CLEANUP(T, fn)                                                                                \
	static inline void fn##p(T *p)                                                                       \
	{                                                                                                    \
		if (*p)                                                                                      \
			fn(*p);                                                                              \
	}

static inline void freep(void *p)
{
	free(*(void **)p);
}

static inline void closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

DEFINE_CLEANUP(FILE *, fclose)
DEFINE_CLEANUP(DIR *, closedir)

#define _cleanup_free_     _cleanup_(freep)
#define _cleanup_close_    _cleanup_(closep)
#define _cleanup_fclose_   _cleanup_(fclosep)
#define _cleanup_closedir_ _cleanup_(closedirp)

/* Moves a pointer out of a _cleanup_ variable: the caller owns the value, the variable is NULL. */
#define steal_pointer(p)                                                                                     \
	({                                                                                                   \
		__typeof__(p) steal_tmp_ = (p);                                                              \
		(p) = NULL;                                                                                  \
		steal_tmp_;                                                                                  \
	})

static inline int steal_fd(int *fd)
{
	int r = *fd;
	*fd = -1;
	return r;
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)     ((a) < (b) ? (a) : (b))
#define MAX(a, b)     ((a) > (b) ? (a) : (b))
