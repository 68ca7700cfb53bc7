/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's libraries are loaded at run time. If they were linked, a missing one would end the program before
 * main, with a message of the dynamic loader. A file that has the forwarding functions of one library
 * (cublaslt.c, comm/nccl/library.c) defines them from a list, so that callers use the library's own header:
 *
 *     #define FUNCTIONS(F) F(size_t, cublasLtGetVersion, (void), ()) …
 *     LIBRARY_DEFINE(FUNCTIONS)
 *
 * `real` is written once, by library_load, before any of the functions is called.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"

#define LIBRARY_PATH_MAX 512

struct library_symbol {
	const char *name;
	void **to; /* where its address goes */
};

#define LIBRARY_POINTER(type, name, parameters, arguments) type(*name) parameters;
#define LIBRARY_FORWARD(type, name, parameters, arguments)                                                   \
	type name parameters                                                                                 \
	{                                                                                                    \
		return real.name arguments;                                                                  \
	}
#define LIBRARY_SYMBOL(type, name, parameters, arguments) {#name, (void **)&real.name},
/* The forwarding functions, the addresses that they use (`real`), and `symbols` for struct library. There is
 * one library in a process, as if it were linked: the functions have no argument that could name it. */
#define LIBRARY_DEFINE(FUNCTIONS)                                                                            \
	static struct {                                                                                      \
		FUNCTIONS(LIBRARY_POINTER)                                                                   \
	} real;                                                                                              \
	FUNCTIONS(LIBRARY_FORWARD)                                                                           \
	static const struct library_symbol symbols[] = {FUNCTIONS(LIBRARY_SYMBOL)};

struct library {
	const char *title;   /* "cuBLASLt" */
	const char *soname;  /* "libcublasLt.so.13"; a library with another soname has another ABI */
	const char *package; /* the package of NVIDIA's apt repository, for the message */
	int minimum;         /* 10000 · major + 100 · minor + patch, as all of these libraries count */
	const char *version_symbol;
	int (*version)(void *function); /* calls what version_symbol names; negative: it did not say */
	const struct library_symbol *symbols;
	size_t symbol_count;
	const struct library_symbol *optional; /* whose addresses are NULL where the library lacks them */
	size_t optional_count;
};

/* What was found. */
struct library_found {
	int version;
	char path[LIBRARY_PATH_MAX];
};

/*
 * Opens the library and sets the addresses of all its symbols; the library stays open. It is searched for in
 * the directories that the environment variable DTRAIN_LIBRARY_PATH lists, then where the dynamic loader
 * searches, then in /usr/local/cuda. -ENOENT: there is none; -ELIBBAD: there is one, but it is too old,
 * broken, or a different file of that name. err then says which file, what version, and what to install, and
 * no address is set. found may be NULL.
 */
int library_load(const struct library *library, struct library_found *found, struct error *err);

/* "13.0.2", or "13.0" where there is no patch; into text, which is returned. */
const char *library_version_text(int version, char *text, size_t size);
