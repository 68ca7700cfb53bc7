/* SPDX-License-Identifier: Apache-2.0 */
/* A record of a file -> the turns of a conversation, whatever the format (LLaMA-Factory's rules). */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "engine/data/source.h"
#include "engine/data/template.h"

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
	char **owned;
	size_t owned_count;
};

void example_clear(struct example *e);

/* Parses and converts a record. Errors: -ENOKEY a column is missing (the message says which are there),
 * -EBADMSG the example is broken and should be skipped, -ENOMEM. `where`: "file:line", begins all messages.
 */
int example_convert(const struct source *s, enum dataset_task task, const char *data, size_t len,
                    const char *where, struct example *e, struct error *err);

/* The description of the tools as text of the system prompt, appended to out. */
struct strbuf;
int tools_describe(enum tool_format format, const struct text *tools, struct strbuf *out, struct error *err);
/* The text of function calls: content is JSON, {"name", "arguments"} or a list of such. */
int tools_call(enum tool_format format, const struct text *content, struct strbuf *out, struct error *err);
/* JSON as Python's json.dumps(…, ensure_ascii=False, indent=indent) writes it (indent 0: one line): what the
 * models have seen. */
void tools_dump(const json_t *value, int indent, struct strbuf *out);
