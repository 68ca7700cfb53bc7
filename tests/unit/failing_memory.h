/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats a piece of work and lets one allocation after the other fail: each time the work has to report it,
 * and under sanitizers to free what it had. For the one source file of a program that is linked with
 * $(failing_memory_ldflags); the allocations of the thread that calls memory_runs_out count. */
#pragma once

#include "unit.h"

/* Volatile, for compilers know that an allocation reads no variable. */
static _Thread_local volatile long memory_left; /* allocations until one fails; 0: none does */
static _Thread_local volatile bool memory_refused;

static bool memory_refuses(void)
{
	if (memory_left == 0 || --memory_left > 0)
		return false;
	memory_refused = true;
	errno = ENOMEM;
	return true;
}

#define DEFINE_FAILING(TYPE, NAME, PARAMETERS, ...)                                                          \
	TYPE __real_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS;                                                                       \
	TYPE __wrap_##NAME PARAMETERS                                                                        \
	{                                                                                                    \
		return memory_refuses() ? NULL : __real_##NAME(__VA_ARGS__);                                 \
	}

DEFINE_FAILING(void *, malloc, (size_t size), size)
DEFINE_FAILING(void *, calloc, (size_t n, size_t size), n, size)
DEFINE_FAILING(void *, realloc, (void *p, size_t size), p, size)
DEFINE_FAILING(void *, reallocarray, (void *p, size_t n, size_t size), p, n, size)
DEFINE_FAILING(char *, strdup, (const char *text), text)
DEFINE_FAILING(char *, strndup, (const char *text, size_t n), text, n)

/* work: makes something and releases it; 0 or a negative errno. tolerant: it may also do without what could
 * not be allocated, and then itself checks what it has made. */
static inline void memory_fails_in_turn(int (*work)(void *context, struct error *err), void *context,
                                        bool tolerant)
{
	for (long n = 1;; n++) {
		struct error err = ERROR_INIT;
		int r;

		mark_point();
		memory_refused = false;
		memory_left = n;
		r = work(context, &err);
		memory_left = 0;
		if (!memory_refused) {
			ck_ok(r, &err);
			break;
		}
		ck_assert_msg(r < 0 || tolerant, "allocation %ld failed, and nothing was reported", n);
		ck_assert_msg(r == -ENOMEM || (r == 0 && tolerant), "allocation %ld failed: %d, %s", n, r,
		              err.message);
	}
}

static inline void memory_runs_out(int (*work)(void *context, struct error *err), void *context)
{
	memory_fails_in_turn(work, context, false);
}
