/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file in the output directory with the algorithms that were chosen for the matrix products of a run, so
 * that a run that resumes computes with the same ones. It has a list for each kind of device (its name, and
 * the library with its version), as JSON, with a hash of the lists:
 *
 *     {"version": 1, "hash": "…", "devices": [{"name": "…", "products": [{"m": 4096, …, "algorithm": "…"}]}]}
 *
 * What is read is checked like any other input.
 */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/device.h"

#define ALGORITHMS_FILE      "algorithms.json"
#define ALGORITHMS_BYTES_MAX ((size_t)16 << 20) /* of the file */
#define ALGORITHMS_NAME_MAX  160

struct algorithms_of_kind {
	char name[ALGORITHMS_NAME_MAX]; /* device_gemm_kind */
	struct device_gemm_choice *choices;
	size_t n;
};

struct algorithms {
	struct algorithms_of_kind *kinds;
	size_t n;
};

/* -EBADMSG, with err naming what is wrong, where the text is not such a file; *out is empty then. `where`
 * names it. */
int algorithms_parse(const char *text, size_t len, const char *where, struct algorithms *out,
                     struct error *err);
/* Owned by the caller; NULL: out of memory. */
char *algorithms_text(const struct algorithms *a);
void algorithms_free(struct algorithms *a);

/* NULL: it has none of that kind. Borrowed until `a` is changed. */
struct algorithms_of_kind *algorithms_find(const struct algorithms *a, const char *name);
/* Adds the choices; one for a shape that is there takes its place. */
int algorithms_add(struct algorithms *a, const char *name, const struct device_gemm_choice *choices, size_t n,
                   struct error *err);
/* All of them without a choice: they are measured again. */
void algorithms_forget(struct algorithms *a, const char *name);
