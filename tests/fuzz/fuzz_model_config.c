/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of a model's config.json. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/model/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_INIT;
	struct model_layout *layout;
	struct model_config c;
	float inv_freq[512], length;

	if (model_config_parse((const char *)data, size, "config.json", &c, &err) < 0) {
		/* A refusal always says why. */
		if (!err.message[0])
			abort();
		return 0;
	}
	for (int t = 0; t < model_config_rotary_tables(&c); t++)
		model_config_rope(&c, t, c.max_positions, inv_freq, &length);
	if (c.layers > 64 || model_layout_create(&c, &layout, &err) < 0)
		return 0;
	if (layout->elements != model_config_parameters(&c))
		abort();
	model_layout_free(layout);
	return 0;
}
