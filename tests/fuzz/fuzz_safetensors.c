/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of safetensors files. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file that parses can be read completely: the first and the last element of every
 * tensor, with conversion. */
static void parse(const uint8_t *data, size_t size)
{
	struct safetensors *st = NULL;
	struct error err = ERROR_INIT;

	if (safetensors_parse(data, size, "fuzz", &st, &err) < 0) {
		if (!err.message[0])
			__builtin_trap();
		return;
	}
	for (size_t i = 0; i < safetensors_count(st); i++) {
		const struct tensor *t = safetensors_at(st, i);
		int64_t n = tensor_elements(t);
		float f;

		if (safetensors_find(st, t->name) != t)
			__builtin_trap();
		if (n > 0) {
			tensor_to_f32(t, 0, 1, &f, NULL);
			tensor_to_f32(t, n - 1, 1, &f, NULL);
			tensor_turned_to_f32(t, 0, 1, &f, NULL);
			tensor_turned_to_f32(t, n - 1, 1, &f, NULL);
		}
	}
	safetensors_close(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy;
	uint64_t end = 0;

	parse(data, size);
	/* Again with a length that fits the header, which a change anywhere in it would else spoil. */
	for (size_t i = 8; i < size; i++)
		if (data[i] == '}')
			end = i + 1 - 8;
	if (!end || !(copy = malloc(size)))
		return 0;
	memcpy(copy, data, size);
	for (int i = 0; i < 8; i++)
		copy[i] = (uint8_t)(end >> (8 * i));
	parse(copy, size);
	free(copy);
	return 0;
}
