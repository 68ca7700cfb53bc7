/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "engine/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What parses can be read whole: first and last bytes of every tensor, each converted. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors *st = NULL;
	struct error err = ERROR_INIT;

	if (safetensors_parse(data, size, "fuzz", &st, &err) < 0) {
		if (!err.message[0])
			__builtin_trap();
		return 0;
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
		}
	}
	safetensors_close(st);
	return 0;
}
