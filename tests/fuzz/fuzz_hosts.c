/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of hosts files. */
#include <stdint.h>

#include "config/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_(hosts_freep) struct hosts *h = NULL;
	const struct host *self;
	struct error err;

	if (hosts_parse((const char *)data, size, "fuzz", &h, &err) == 0)
		hosts_find_self(h, h->list[h->count - 1].name, &self, &err);
	return 0;
}
