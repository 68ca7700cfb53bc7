/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what PEFT writes: adapter_config.json, its patterns, and the names of tensors. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/checkpoint/peft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_name(const char *text)
{
	_cleanup_free_ char *name = NULL;
	struct error err = ERROR_INIT;
	enum peft_role role;

	if (peft_tensor_parse(text, &name, &role, &err) < 0) {
		if (!err.message[0])
			abort();
		return;
	}
	{
		_cleanup_free_ char *again = peft_tensor_name(name, role), *second = NULL;
		enum peft_role same;

		/* What is written reads back. */
		if (!again || peft_tensor_parse(again, &second, &same, &err) < 0 || same != role ||
		    !str_eq(second, name))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const modules[] = {"model.layers.0.self_attn.q_proj",
	                                      "model.layers.11.mlp.down_proj", "model.embed_tokens",
	                                      "lm_head"};
	_cleanup_(peft_config_free) struct peft_config c = {0};
	_cleanup_free_ char *text = strndup((const char *)data, size);
	struct error err = ERROR_INIT;

	try_name(text);
	if (peft_config_parse((const char *)data, size, "adapter_config.json", &c, &err) < 0) {
		/* A refusal always says why. */
		if (!err.message[0])
			abort();
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(modules); i++) {
		int64_t rank = 0;
		double scale = -1;
		int r = peft_config_match(&c, modules[i], &rank, &scale, &err);

		if ((r > 0 && (rank < 1 || !(scale >= 0))) || (r < 0 && !err.message[0]))
			abort();
	}
	return 0;
}
