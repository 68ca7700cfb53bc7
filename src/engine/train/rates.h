/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates that were measured on a device, in the place of the shares in hardware.h: of matrix products by their
 * three lengths, of attention by the length of rows, of other operations by the bytes that they touch.
 * Between the measured sizes the logarithm of the rate is interpolated; beyond them it is that of the
 * nearest.
 *
 * The file, which `dtrain estimate --measure` writes, is JSON:
 * {"device":…,"version":…,"sets":[{"threads":N,"ranks":N,
 * "products":{"fp32":{"forward":[…],…}},"attention":…,"operations":…}],"gather":[…],"reduce":[…]}; a GPU's
 * set has 0 threads. Ranks on a CPU share its caches, its memory and its clock: one set is measured by one
 * rank alone, another by one of as many ranks as there are processors and memory for, which all run at the
 * same time; between them the logarithm of the rate is interpolated, too.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/device/dtype.h"

/* y = x·wᵀ, dx = dy·w, dw = dyᵀ·x. */
enum rate_product { RATE_PRODUCT_FORWARD, RATE_PRODUCT_INPUT, RATE_PRODUCT_WEIGHT, RATE_PRODUCTS };
enum rate_operation {
	RATE_NORM,
	RATE_NORM_BACKWARD,
	RATE_ROTATION,
	RATE_SWIGLU,
	RATE_SWIGLU_BACKWARD,
	RATE_LOSS,
	RATE_OPTIMIZER,
	RATE_COPY,
	RATE_OPERATIONS
};
enum { RATE_LENGTHS = 4, RATE_WIDTHS = 2, RATE_TYPES = 3, RATE_SETS_MAX = 4 };
extern const int64_t rate_lengths[RATE_LENGTHS]; /* of m, n and k, and of the rows of attention */
extern const int64_t rate_widths[RATE_WIDTHS];   /* of a head */
extern const int64_t rate_bytes[RATE_LENGTHS];   /* that an operation touches */

struct rate_set {
	int threads; /* 0: not a CPU */
	int ranks;   /* processes of so many threads that were measured at the same time */
	bool has[RATE_TYPES];
	double product[RATE_TYPES][RATE_PRODUCTS][RATE_LENGTHS * RATE_LENGTHS * RATE_LENGTHS]; /* [m][n][k] */
	double attention[RATE_TYPES][2][RATE_WIDTHS * RATE_LENGTHS]; /* backward last */
	double operation[RATE_TYPES][RATE_OPERATIONS][RATE_LENGTHS]; /* bytes a second */
};

struct rates {
	char device[160];
	char version[32]; /* of the dtrain that measured; "": one before 0.2.0, which did not write it */
	/* Bytes a second that enter a rank in a gather, and that leave it in a reduce-scatter, by the bytes
	 * of all of it: of the time by which it lengthens a computation on all ranks. 0: not measured. */
	double gather[RATE_LENGTHS], reduce[RATE_LENGTHS];
	int sets;
	struct rate_set set[RATE_SETS_MAX];
};

/* NULL: out of memory. */
json_t *rates_encode(const struct rates *rates);
int rates_decode(const json_t *json, const char *where, struct rates *out, struct error *err);
/* -ENOENT where there is no such file. Freed by the caller. */
int rates_read(const char *path, struct rates **out, struct error *err);

/* What to print where another version has measured them, whose kernels may be slower or faster; "" where it
 * was this one. */
const char *rates_version_note(const struct rates *r, char *text, size_t size);

/* Operations, or bytes, a second; 0: not measured for that type. `slots` slots of `threads` threads run on
 * the device at the same time; the rate is that of one of them. */
double rates_product(const struct rates *r, int slots, int threads, enum dtype type, enum rate_product kind,
                     double m, double n, double k);
double rates_attention(const struct rates *r, int slots, int threads, enum dtype type, bool backward,
                       double row, double width);
double rates_gather(const struct rates *r, double bytes);
double rates_reduce(const struct rates *r, double bytes);
double rates_operation(const struct rates *r, int slots, int threads, enum dtype type,
                       enum rate_operation operation, double bytes);
