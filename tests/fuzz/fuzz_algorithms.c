/* SPDX-License-Identifier: Apache-2.0 */
/* The file with the algorithms of matrix products: as it is, and with a hash that fits its contents. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "engine/checkpoint/algorithms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_choice(const struct device_gemm_choice *c)
{
	const struct device_gemm_shape *s = &c->shape;

	if (s->m < 1 || s->n < 1 || s->k < 1 || s->lda < (s->transpose_a ? s->m : s->k) ||
	    s->ldb < (s->transpose_b ? s->k : s->n) || s->ldc < s->n || s->ab_type < DTYPE_F32 ||
	    s->ab_type > DTYPE_F16 || s->align_a < 1 || s->align_a > DEVICE_GEMM_ALIGNMENT || s->fp8 < 0 ||
	    s->fp8 > (FP8_E5M2 << 4 | FP8_E5M2))
		__builtin_trap();
}

/* What is read is within its ranges, and what is written of it reads back the same. */
static void check(const char *text, size_t len)
{
	_cleanup_(algorithms_free) struct algorithms a = {0}, again = {0};
	_cleanup_free_ char *written = NULL;
	struct error err = {0};

	if (algorithms_parse(text, len, "fuzz", &a, &err) < 0) {
		if (!err.message[0] || a.n != 0)
			__builtin_trap();
		return;
	}
	written = algorithms_text(&a);
	if (!written || algorithms_parse(written, strlen(written), "again", &again, &err) < 0 ||
	    again.n != a.n)
		__builtin_trap();
	for (size_t i = 0; i < a.n; i++) {
		const struct algorithms_of_kind *x = &a.kinds[i], *y = &again.kinds[i];

		if (x->n != y->n || strcmp(x->name, y->name) != 0 || algorithms_find(&a, x->name) != x)
			__builtin_trap();
		for (size_t k = 0; k < x->n; k++) {
			check_choice(&x->choices[k]);
			if (memcmp(&x->choices[k].shape, &y->choices[k].shape, sizeof(x->choices[k].shape)) ||
			    memcmp(x->choices[k].algorithm, y->choices[k].algorithm, DEVICE_ALGORITHM) ||
			    x->choices[k].separate != y->choices[k].separate)
				__builtin_trap();
		}
	}
}

static char *with_hash(const char *text, size_t len)
{
	_cleanup_json_ json_t *j = json_loadb(text, len, 0, NULL);
	_cleanup_free_ char *devices = json_to_string(json_object_get(j, "devices"));
	char hash[20];

	if (!devices)
		return NULL;
	snprintf(hash, sizeof(hash), "%016" PRIx64, hash_bytes(devices, strlen(devices), 0));
	json_object_set_new(j, "hash", json_string(hash));
	return json_to_string(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ char *fits = with_hash((const char *)data, size);

	check((const char *)data, size);
	if (fits)
		check(fits, strlen(fits));
	return 0;
}
