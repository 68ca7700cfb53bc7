/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text, size_t len, struct error *err)
{
	_cleanup_(manifest_index_free) struct manifest_index index = {0};
	_cleanup_(manifest_free) struct manifest list = {0};

	if (manifest_index_parse(text, len, "fuzz", &index, err) == 0)
		for (int i = 0; i < index.world_size; i++)
			if (!index.ranks[i].node)
				__builtin_trap();
	if (manifest_parse(text, len, "fuzz", &list, err) < 0) {
		if (!err->message[0])
			__builtin_trap();
		return;
	}
	/* Names that lead nowhere outside, parts within their files; and what is written reads back the
	 * same. */
	for (size_t i = 0; i < list.n; i++) {
		const struct manifest_file *f = &list.files[i];

		if (f->name[0] == '/' || strstr(f->name, "/../") || !strncmp(f->name, "../", 3))
			__builtin_trap();
		for (size_t k = 0; k < f->n; k++)
			if (f->parts[k].offset > f->bytes ||
			    f->parts[k].bytes > f->bytes - f->parts[k].offset)
				__builtin_trap();
	}
	{
		_cleanup_(manifest_free) struct manifest again = {0};
		_cleanup_free_ char *written = manifest_text(&list);

		if (!written || manifest_parse(written, strlen(written), "again", &again, err) < 0 ||
		    again.n != list.n)
			__builtin_trap();
	}
	manifest_check(&list, "/nonexistent", err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = {0};

	check((const char *)data, size, &err);
	return 0;
}
