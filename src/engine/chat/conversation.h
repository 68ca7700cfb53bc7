/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation as a data file gives it: its turns, system prompt and tools. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "engine/chat/template.h"

struct text {
	const char *data;
	size_t len;
};

struct turn {
	enum template_role role;
	struct text content;
};

/* {0} is empty. Owns its texts; they live until example_clear. */
struct example {
	json_t *record;
	struct turn *turns;
	size_t count, cap;
	struct text system, tools; /* empty: none; tools is JSON */
	/* Of a preference: another answer to the last prompt, which is worse than the last turn; or whether
	 * the last turn is a good answer. */
	struct turn rejected;
	bool desirable;
	float margin; /* of a pair: by how much its better answer is better; 0: not said */
	char **owned;
	size_t owned_count;
};

void example_clear(struct example *e);
