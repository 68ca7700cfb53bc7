/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file in the output directory with the algorithms that were chosen for the matrix products of a run, and
 * the kernels of its attention, so that a run that resumes computes with the same ones. It has a list for
 * each kind of device (its name, and the library with its version), as JSON, with a hash of the lists:
 *
 *     {"version": 1, "hash": "…", "devices": [{"name": "…", "products": [{"m": 4096, …, "algorithm": "…"}],
 *       "attention": {"kernel": "hopper", …}, "attention_backward": {"kernel": "portable", …}}]}
 *
 * What is read is checked like any other input.
 */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/device.h"

#define ALGORITHMS_FILE "algorithms.json"
/* Beginning of the names of files that say that the check of a kernel of attention has ended its process. */
#define ATTENTION_FAILED     "attention-failed"
#define ALGORITHMS_BYTES_MAX ((size_t)16 << 20) /* of the file */
#define ALGORITHMS_NAME_MAX  160

/* Which kernel a pass of attention has, and the times of both for the shape, in nanoseconds; 0: it was not
 * measured. */
struct algorithms_attention {
	struct device_attention_shape shape;
	int64_t portable_ns, hopper_ns;
	int32_t chosen; /* 0: nothing was chosen, and the kernel is the portable one */
	int32_t hopper; /* 1: Hopper's kernel, 0: the portable one */
};

struct algorithms_of_kind {
	char name[ALGORITHMS_NAME_MAX]; /* device_gemm_kind */
	struct algorithms_attention attention[DEVICE_ATTENTION_PASSES];
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
/* For the pass that attention->shape names. */
int algorithms_set_attention(struct algorithms *a, const char *name,
                             const struct algorithms_attention *attention, struct error *err);
/* All products without a choice: they are measured again. */
void algorithms_forget(struct algorithms *a, const char *name);
