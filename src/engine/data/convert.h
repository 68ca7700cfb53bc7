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

/* Parses and converts a record of a source that source_detect() has settled; a column that the record lacks
 * is as null. Errors: -EBADMSG the example is broken and should be skipped, -ENOMEM. `where`: "file:line",
 * begins all messages. */
int example_convert(const struct source *s, enum dataset_task task, const char *data, size_t len,
                    const char *where, struct example *e, struct error *err);

/* The description of the tools (JSON text) as text of the system prompt, appended to out; an empty list adds
 * nothing. */
struct strbuf;
int tools_describe(const struct template *t, const struct text *tools, struct strbuf *out, struct error *err);
/* A file's text before and after its {{tools}}, for a template's tool_words; owned by the caller, also on
 * failure. */
int tools_read_words(const char *path, char **before, char **after, struct error *err);
/* The text of function calls: content is JSON, {"name", "arguments"} or a list of such. */
int tools_call(enum tool_format format, const struct text *content, struct strbuf *out, struct error *err);
